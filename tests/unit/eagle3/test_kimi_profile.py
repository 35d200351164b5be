"""The production profile: its plan adds up to the story's figures, and what does not fit or cannot run is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from aerie import lock as locks
from aerie.eagle3 import planning, second
from aerie.eagle3.environments import engine_version
from aerie.eagle3.profile import Baseline, Profile, Target
from aerie.engines import capability, gpu_arch
from aerie.engines.capability import Wish
from aerie.environments import locked_packages
from aerie.errors import AerieError
from aerie.runbook import runner, spec
from aerie.runbook.budget import Budget, Measured
from aerie.runbook.fit import refuse_what_cannot_run
from aerie.runbook.plan import Plan, Present

CARD = 97_887 * 2**20  # of an RTX PRO 6000 Blackwell with 96 GB, as NVML tells it
CANNOT_RUN = {"target", "baseline-drafter"}


@pytest.fixture(scope="module", autouse=True)
def no_gpu_here() -> Iterator[None]:
    """On any machine, and in the trainer's environment, which has no pynvml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_arch, "here", lambda: gpu_arch.of(()))
        yield


@pytest.fixture(scope="module")
def kimi() -> Profile:
    values = spec.load("eagle3", "kimi-k2.5").values
    assert isinstance(values, Profile)
    return values


@pytest.fixture(scope="module")
def tiny() -> Profile:
    values = spec.load("eagle3", "tiny").values
    assert isinstance(values, Profile)
    return values


def budget(step: str, profile: Profile, evidence: dict[str, Any] | None = None, seconds: float = 1.0) -> Budget:
    found = planning.budget(step, profile, evidence and Measured(evidence=evidence, seconds=seconds))
    assert found is not None
    return found


def changed(profile: Profile, **sections: dict[str, Any]) -> Profile:
    values = profile.model_dump()
    return Profile.model_validate({**values, **{name: values[name] | one for name, one in sections.items()}})


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan as the command makes it, here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return runner.plan("eagle3", profile="kimi-k2.5")


@pytest.fixture(scope="module")
def plan(told: Plan) -> Plan:
    """The plan of a host of eight cards with room enough, and with nothing in its way."""
    return fitting(told)


def fitting(plan: Plan) -> Plan:
    return replace(
        plan,
        steps=tuple(replace(step, obstacle="") for step in plan.steps),
        ram_bytes=1_500 * 10**9,
        gpu_bytes=(CARD,) * 8,
        disk_free_bytes=dict.fromkeys(plan.disk_free_bytes, 4 * 10**12),
    )


def on_disks(plan: Plan, free: int) -> Plan:
    return replace(plan, disk_free_bytes=dict.fromkeys(plan.disk_free_bytes, free))


def test_the_locked_engine_takes_every_flag_of_the_profile_on_the_card(kimi: Profile) -> None:
    gpus = kimi.engine.gpus
    assert gpus is not None
    wish = Wish(
        engine=kimi.engine.name, version="0.5.23", arch="sm120", model="kimi-k2.5",
        doing=frozenset({"eagle3", "forced", "capture"}), attention=gpus.attention, moe=gpus.moe,
    )  # fmt: skip
    verdict = capability.can_serve(wish)
    assert (verdict.reasons, verdict.is_known) == ((), True)
    assert capability.default_backend("sglang", "0.5.23", "draft", "sm120") == gpus.draft_attention


def test_the_second_engine_can_serve_and_draft_on_the_card(kimi: Profile) -> None:
    assert kimi.second is not None
    version = engine_version("vllm", locked_packages(kimi.second.environment.requirements))
    wish = Wish(
        engine=kimi.second.engine.name, version=version or "", arch="sm120", model="kimi-k2.5",
        doing=frozenset({"eagle3", "forced"}),
    )  # fmt: skip
    verdict = capability.can_serve(wish)
    assert (version, verdict.reasons, verdict.is_known) == ("0.33.0", (), True)


def test_the_plan_says_what_is_known_against_the_second_engine(kimi: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kimi.second is not None
    release = "vllm 0.33.0 of requirements/vllm.txt"
    assert tuple(budget("control-second", kimi).basis[:2]) == (release, "requirements/vllm.txt: 10 GB, assumed")
    monkeypatch.setattr(gpu_arch, "here", lambda: "sm120")
    assert list(second.told(kimi)) == [release]
    monkeypatch.setattr(second, "engine_version", lambda engine, packages: "0.17.0")
    assert list(second.told(kimi))[1] == (
        "it will not be run on sm120: its list of targets for EAGLE-3 does not have kimi_k2 (ValueError), and the "
        "model class lacks SupportsEagle3"
    )


def test_a_second_engine_fits_the_first(kimi: Profile, tiny: Profile) -> None:
    assert kimi.second is not None
    other = kimi.second.model_dump()
    with pytest.raises(ValidationError, match=r"second\.engine\.gpus: expected GPUs for both engines or for none"):
        Profile.model_validate({**tiny.model_dump(), "second": other})
    shorter = {**other, "engine": {**other["engine"], "max_model_len": 2048}}
    with pytest.raises(ValidationError, match=r"max_model_len 2048: expected at least 4160"):
        Profile.model_validate({**kimi.model_dump(), "second": shorter})
    on_cpus = {**other, "environment": {"requirements": "engine"}}
    refused = planning.obstacle("control-second", Profile.model_validate({**kimi.model_dump(), "second": on_cpus}))
    assert refused == "requirements/engine.txt is vLLM for CPUs, and vllm is to serve: set second.environment"


def test_its_models_are_models_of_its_lock(kimi: Profile) -> None:
    for chosen in (kimi.target.staged, kimi.baseline.staged):
        assert chosen is not None
        assert chosen.model in locks.load(chosen.lock).weights.models


def test_the_story_comes_out_of_the_plan_to_the_byte(kimi: Profile) -> None:
    tokens = 10_000 * 1_444
    assert "828,047,360,000 bytes of states" in budget("synthesize", kimi).basis[0]
    assert tokens * 4 * 7_168 * 2 == 828_047_360_000
    assert budget("synthesize", kimi).disk_bytes == round(tokens * (57_344 * 0.7 + 8))
    assert budget("finetune", kimi).disk_bytes == tokens * (57_344 + 16) + 5 * 16_700_000_000
    assert (budget("target", kimi).disk_bytes, budget("target", kimi).ram_bytes) == (595_200_000_000,) * 2


def test_the_story_comes_out_of_the_plan_to_the_hour(kimi: Profile) -> None:
    hour = 3600
    assert (budget("synthesize", kimi).seconds or 0) / hour == pytest.approx(10e6 / 1167 / hour + 1.27, abs=0.02)
    assert (budget("finetune", kimi).seconds or 0) / hour == pytest.approx(2.6, abs=0.005)
    bench = 80 * 512 * (1 / 82.5 + 1 / 1167)
    assert budget("serve-base", kimi).seconds == pytest.approx(25 * 60 + bench)
    forced = 2 * 3 * 8 * 512 / 82.5
    assert budget("control", kimi).seconds == pytest.approx(4 * 22 + 3 * 3 * bench + forced)


def test_the_totals_are_those_of_the_steps(plan: Plan, kimi: Profile) -> None:
    counted = [step.budget.seconds for step in plan.to_run if step.budget.seconds is not None]
    second = budget("control-second", kimi).seconds or 0
    assert second == pytest.approx(5 * 22 + 3 * 4 * 80 * 512 * (1 / 82.5 + 1 / 1167) + 2 * 3 * 8 * 512 / 82.5)
    # A whole run by hand, on one engine, was reckoned at 8 to 9 hours.
    assert (sum(counted) - second) / 3600 == pytest.approx(8.7, abs=0.05)
    states, features = 14_440_000 * (57_344 * 7 // 10 + 8), 14_440_000 * 57_360
    environments, drafters, checkpoints = 3 * 10_000_000_000, 2 * 4_730_000_000, 5 * 16_700_000_000
    reference = 2 * 40 * 4_160 * 7_168 * 6
    total = 595_200_000_000 + states + features + environments + drafters + checkpoints + reference
    assert plan.disk_needed_bytes == pytest.approx(total, abs=14_440_000)  # 0.8 bytes a token are left out above
    assert plan.to_dict()["disk_needed_bytes"] == plan.disk_needed_bytes


def test_eight_cards_of_96_gb_fit_and_of_80_gb_do_not(plan: Plan) -> None:
    refuse_what_cannot_run(plan)
    with pytest.raises(AerieError, match=r"step serve-base.*8 of 85\.\d GB.*8 of at least 97\.3 GB.*max_num_seqs"):
        refuse_what_cannot_run(replace(plan, gpu_bytes=(80 * 2**30,) * 8))
    with pytest.raises(AerieError, match=r"step serve-base.*7 of 102\.6 GB"):
        refuse_what_cannot_run(replace(plan, gpu_bytes=(CARD,) * 7))


def test_a_host_without_memory_for_the_weights_is_refused(plan: Plan) -> None:
    with pytest.raises(AerieError, match=r"step target.*512\.0 GB in all.*595\.2 GB"):
        refuse_what_cannot_run(replace(plan, ram_bytes=512 * 10**9))


def test_a_disk_that_is_too_small_says_how_many_samples_would_fit(plan: Plan, kimi: Profile) -> None:
    with pytest.raises(AerieError) as refused:
        refuse_what_cannot_run(on_disks(plan, 1_600 * 10**9))
    for part in ("online extraction", "compressed", "no layer can be left out", "synthesis.prompts of 6,1"):
        assert part in refused.value.remedy
    assert refused.value.expected.split("(")[1].startswith("finetune 911.8 GB + target 595.2 GB + synthesize 579.7 GB")
    most = int(refused.value.remedy.split("--set synthesis.prompts=")[1].split(")")[0])

    def with_samples(count: int) -> Plan:
        fewer = changed(kimi, synthesis={"prompts": count})
        counted = (replace(one, budget=planning.budget(one.id, fewer, None) or one.budget) for one in plan.steps)
        return on_disks(replace(plan, steps=tuple(counted)), 1_600 * 10**9)

    refuse_what_cannot_run(with_samples(most))
    with pytest.raises(AerieError, match="disk"):
        refuse_what_cannot_run(with_samples(most + 1))


def test_measured_rates_win(kimi: Profile) -> None:
    evidence = {"start_s": 90.0, "tok_s": 2000.0, "bytes_per_byte": 0.66, "prompts": 500, "new_tokens": 400_000,
                "prompt_tokens": 100_000}  # fmt: skip
    found = budget("synthesize", kimi, evidence)
    assert found.seconds == 90 + 8_000_000 / 2000
    assert found.disk_bytes == pytest.approx(10_000 * 1_000 * 57_344 * 0.66, abs=1)
    trained = budget("finetune", kimi, {"tokens": 500_000, "samples": 500, "epochs": 2}, seconds=100.0)
    assert trained.seconds == pytest.approx(5 * 10_000_000 / 10_000)
    evidence = {"tokens": 500_000, "samples": 500, "epochs": 5, "epochs_done": 2}  # ended early; the next may not
    assert budget("finetune", kimi, evidence, seconds=100.0) == trained
    runs = [{"concurrency": 1, "tok_s": 100.0}, {"concurrency": 32, "tok_s": None}]
    served = budget("serve-base", kimi, {"start_s": 80.0, "bench": {"runs": runs}})
    assert served.seconds == pytest.approx(80 + 40_960 / 100 + 40_960 / 1167)
    arms = {name: {"start_s": 50.0, "runs": [{"concurrency": 1, "tok_s": rate}]}
            for name, rate in (("base", 100.0), ("finetuned", 200.0))}  # fmt: skip
    assert "at 100/s as measured for 1" in budget("control", kimi, {"arms": arms}).basis[1]
    fetched = budget("target", kimi, {"staged": {"fetched_bytes": 1000, "seconds": 1e-6}})
    assert fetched.seconds == pytest.approx(595.2)


def test_hosts_that_serve_along_share_the_time_and_what_they_write_is_said(kimi: Profile, tiny: Profile) -> None:
    def several(profile: Profile) -> Profile:
        return changed(profile, synthesis={"hosts": ["b", "c"]}, hosts={"address": "10.0.0.1"})

    one, three = budget("synthesize", kimi), budget("synthesize", several(kimi))
    assert three.seconds - 22 == pytest.approx((one.seconds - 22) / 3)  # each loads for 22 s
    assert three.disk_bytes == one.disk_bytes
    assert "shared by 3 hosts, if the shared file system takes 189 MB/s of states" in three.basis[1]
    here, gone, left_out = {"start_s": 90.0, "gone": None}, {"start_s": 80.0, "gone": "no word"}, {"start_s": None}
    evidence = {"start_s": 90.0, "tok_s": 2000.0, "bytes_per_byte": 0.66, "prompts": 500, "new_tokens": 400_000,
                "prompt_tokens": 100_000, "hosts": {"this host": here, "b": gone, "c": left_out}}  # fmt: skip
    assert budget("synthesize", kimi, evidence).seconds == 90 + 8_000_000 / 1000
    assert budget("synthesize", several(kimi), evidence).seconds == pytest.approx(90 + 8_000_000 / 3000)
    assert budget("synthesize", several(tiny), {"tok_s": 640.0, "start_s": 20.0}).seconds == 20 + 800 * 64 / (3 * 640)


def test_parity_takes_a_third_of_one_card_whatever_the_size_of_the_target(kimi: Profile) -> None:
    found = budget("parity", kimi)
    states = 40 * 4_160 * 7_168 * 14
    assert (found.gpus, found.gpu_bytes) == (1, states + 18_000_000_000)
    assert found.disk_bytes == 2 * 40 * 4_160 * 7_168 * 6
    assert found.gpu_bytes < 0.35 * CARD
    assert found.ram_bytes == 40 * 4_160 * 57_344, "the engine's own states; the weights stay in the page cache or not"
    assert found.seconds == 2 * 595_200_000_000 / 1_000_000_000
    assert budget("parity", changed(kimi, parity={"samples": 80})).gpu_bytes == found.gpu_bytes + states
    measured = budget("parity", kimi, {"mean_rel": 0.005}, seconds=900.0)
    assert measured.seconds == pytest.approx(900)
    assert "1.3 GB/s, as measured" in measured.basis[0]


def test_parity_of_a_staged_target_on_cpus_takes_memory_of_the_host(kimi: Profile) -> None:
    on_cpus = budget("parity", changed(kimi.model_copy(update={"second": None}), engine={"gpus": None}))
    on_gpus = budget("parity", kimi)
    assert (on_cpus.gpus, on_cpus.gpu_bytes) == (0, 0)
    assert on_cpus.ram_bytes == on_gpus.ram_bytes + on_gpus.gpu_bytes


def test_what_cannot_run_yet_is_known_before_anything_starts(kimi: Profile, tiny: Profile) -> None:
    steps = [step.id for step in spec.load("eagle3").runbook.steps]
    assert {step for step in steps if planning.obstacle(step, kimi)} == CANNOT_RUN
    assert [step for step in steps if planning.obstacle(step, tiny)] == []


def test_environments_for_cpus_are_refused_where_gpus_are_to_serve(kimi: Profile, tiny: Profile) -> None:
    plain = changed(kimi, environments={"engine": {}, "train": {}})
    assert planning.obstacle("environments", plain) == (
        "requirements/engine.txt is vLLM for CPUs, and sglang is to serve; requirements/train.txt trains on CPUs, and "
        "engine.gpus asks for GPUs: set environments"
    )
    there = {"python": "/opt/image/bin/python"}
    assert planning.obstacle("environments", changed(plain, environments={"engine": there, "train": there})) == ""
    assert planning.obstacle("environments", changed(tiny, engine={"name": "sglang"})) != ""


def test_what_cannot_run_is_told_step_by_step(told: Plan) -> None:
    with pytest.raises(AerieError, match=r"profile kimi-k2\.5.*target: .*baseline-drafter: .*Nothing was started"):
        refuse_what_cannot_run(replace(fitting(told), steps=told.steps))


def test_hours_are_not_cut_by_the_timeouts_of_a_tiny_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with runner.open_journal() as journal:
        of = {name: Present(journal, spec.load("eagle3", name), "localhost") for name in ("kimi-k2.5", "tiny")}
        steps = spec.load("eagle3").runbook.steps
        control, export, parity = (
            next(step for step in steps if step.id == name) for name in ("control", "export", "parity")
        )
        planned = of["kimi-k2.5"].budget(control).seconds
        assert planned and of["kimi-k2.5"].timeout_s(control) == 3 * planned > control.timeout_s
        assert of["kimi-k2.5"].timeout_s(export) == export.timeout_s, "its budget has no time"
        assert of["kimi-k2.5"].timeout_s(parity) == 3 * 2 * 595.2 > parity.timeout_s
        assert of["tiny"].timeout_s(control) == control.timeout_s


def test_the_tiny_profile_is_counted_as_before(tiny: Profile) -> None:
    found = budget("synthesize", tiny)
    assert (found.disk_bytes, found.seconds) == (800 * 112 * 4 * 192 * 4, None)
    measured = budget("synthesize", tiny, {"tok_s": 640.0, "start_s": 20.0})
    assert measured.seconds == 20 + 800 * 64 / 640
    assert budget("finetune", tiny).disk_bytes == 800 * 112 * (4 * 192 * 4 + 16) + 4 * 14 * 192 * (16 * 192 + 384)
    assert planning.budget("target", tiny, None) is None


def test_what_a_profile_must_say(kimi: Profile) -> None:
    with pytest.raises(ValidationError, match="neither staged nor with both shapes"):
        Target(vocab_size=512)
    with pytest.raises(ValidationError, match="neither staged nor trained"):
        Baseline(samples=1, steps=1, batch=1)
    with pytest.raises(ValidationError, match="figures: nothing, expected those of the staged target"):
        Profile.model_validate(kimi.model_dump() | {"figures": None})
    with pytest.raises(ValidationError, match="expected ids below 61 layers"):
        changed(kimi, drafter={"aux_layers": [2, 30, 61]})
