"""The story as told: 15.0 % fine-tuned, 15.6 % published, 0.66x on one engine: not the fine-tuning; what then?"""

import pytest

from aerie.eagle3.diagnose import diagnose
from aerie.eagle3.measured import Spread
from aerie.eagle3.seen import Expectation, Seen
from aerie.eagle3.suspects import Setting, back_solved, tau_of_rate
from aerie.engines.acceptance import Acceptance

K = 3
SPEEDUP = 0.66
TAU = tau_of_rate(0.150, K)
R = back_solved(TAU, SPEEDUP)
VLLM_16 = Setting(engine="vllm", version="0.16.0", arch="sm120", model="kimi-k2.5", made_for="kimi-k2")


def at_rate(*accepted: int) -> Acceptance:
    return Acceptance(verify_steps=1000, proposed=3000, accepted=sum(accepted), accepted_by_position=accepted)


FINETUNED, PUBLISHED = at_rate(290, 115, 45), at_rate(300, 120, 48)


def told(setting: Setting | None, **known) -> Seen:
    return Seen(
        expectation=Expectation(tau_min=2.0, tau_ratio_min=1.0, tau_margin_min=0.2),
        parity_limit=0.02,
        baseline=PUBLISHED,
        finetuned=FINETUNED,
        cost=R,
        speedup=Spread(median=SPEEDUP, min=SPEEDUP, max=SPEEDUP),
        setting=setting,
        **known,
    )


def test_the_figures_are_those_that_were_told():
    assert (FINETUNED.rate, PUBLISHED.rate) == (0.150, 0.156)
    assert (FINETUNED.tau, PUBLISHED.tau) == (1.45, 1.468)


@pytest.mark.parametrize(("tokens", "tau", "price"), [(3, 1.45, 2.20), (4, 1.60, 2.42), (5, 1.75, 2.65)])
def test_r_is_solved_back_from_the_rate_and_the_speed_up(tokens, tau, price):
    assert tau_of_rate(0.15, tokens) == pytest.approx(tau)
    assert round(back_solved(tau, SPEEDUP), 2) == price


def test_verdict_and_reasons():
    found = diagnose(told(VLLM_16))
    assert found["verdict"] == "not-the-fine-tuning"
    assert found["reasons"] == [
        "control-alike: what both drafters share is at fault: the engine's integration, its cost, or a model that "
        "neither was made for. From scratch on few samples such a τ needs no fault (a published example has 1.45); a "
        "published drafter does not begin there",
        "seen: baseline τ 1.468, rate 0.156; fine-tuned τ 1.450, rate 0.150; τ 1.450, expected at least 2; "
        "τ over the baseline's 0.988, expected at least 1; τ above the baseline's by -0.018, expected at least 0.2; "
        "S 0.66 (0.66–0.66), τ/R not measured, τ 1.450, R 2.20",
    ]


def test_the_next_tests_in_their_order():
    assert diagnose(told(VLLM_16))["suspects"] == [
        {
            "cause": "integration",
            "test": "hold the engine's hidden states against a reference forward pass, layer by layer; "
            "hold greedy outputs with a drafter against those without; "
            "hold the counters against a forced accept length; "
            "hold the trainer's accuracy on the captured states against the served acceptance",
            "known": "vllm 0.16.0 refuses it: its list of targets for EAGLE-3 does not have kimi_k2 (ValueError), and "
            "the model class lacks SupportsEagle3",
            "worth": 1.27,
        },
        {
            "cause": "engine-cost",
            "test": "force two accept lengths and take R from each: what a step costs, whatever the drafter is worth",
            "known": "R 2.20 at S 0.66, and τ 1.450 pays only below R 1.45; verify path: prefill (TRITON_MLA takes "
            "single queries only, so every verify step runs as a prefill: 25 instead of 107 tokens a second at 30k of "
            "context)",
            "worth": None,
        },
        {
            "cause": "drafter-of-another-model",
            "test": "serve a published drafter that was made for kimi-k2.5 on the same prompts, without training",
            "known": "made for kimi-k2, served on kimi-k2.5",
            "worth": 1.27,
        },
    ]


def test_what_was_tested_is_not_asked_for_again():
    found = diagnose(told(VLLM_16, parity_mean=0.005, parity_max=0.04, parted=(), forced={2.0: 2.0, 3.0: 3.0}))
    assert found["verdict"] == "not-the-fine-tuning"
    assert found["suspects"][0]["test"] == (
        "hold the trainer's accuracy on the captured states against the served acceptance"
    )


@pytest.mark.parametrize(
    ("engine", "version", "path"),
    [
        ("vllm", "0.30.0", "verify path: prefill (TRITON_MLA takes single queries only"),
        ("vllm", "0.31.0", "verify path: TRITON_MLA (the only dense MLA of vLLM on SM120; verify steps as decoding"),
        ("sglang", "0.5.23", "verify path: triton or flashinfer (chains and trees"),
    ],
)
def test_the_verify_path_is_that_of_the_version(engine, version, path):
    found = diagnose(told(Setting(engine=engine, version=version, arch="sm120", model="kimi-k2.5")))
    assert path in found["suspects"][1]["known"]


def test_an_aux_layer_offset_of_the_engine_is_named_with_the_integration():
    found = diagnose(told(Setting(engine="sglang", version="0.5.12", arch="sm120", model="kimi-k2.5")))
    assert "sglang 0.5.12: aux layer ids are read one too high" in found["suspects"][0]["known"]


def test_what_is_not_known_is_said():
    found = diagnose(told(Setting(engine="vllm", version="0.16.0")))["suspects"]
    assert [one["worth"] for one in found] == [None, None, None]
    assert found[1]["known"].endswith("verify path: unknown (which card it was is not known)")
    assert found[2]["known"] == "which model the baseline drafter was made for is not known"
