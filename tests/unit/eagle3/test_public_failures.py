"""The seventeen failures of public EAGLE-3 work: for each the check that catches it, and what is not caught yet."""

import importlib
import inspect
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from aerie.eagle3 import compute, features, finetune, specforge
from aerie.eagle3.diagnose import diagnose
from aerie.eagle3.profile import Drafter
from aerie.eagle3.rows import teacher_forced
from aerie.eagle3.samples import Samples
from aerie.eagle3.seen import Expectation, Seen
from aerie.engines import adapter, bench, capability, drafters
from aerie.engines.acceptance import Acceptance
from aerie.engines.bench import Prompt
from aerie.engines.sglang import Sglang
from aerie.engines.states import States
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError
from aerie.pagecache import PassBy

E3 = "tests.unit.eagle3."


@dataclass(frozen=True)
class Caught:
    """checks: module:function of aerie. tests: module:test that provokes it. missing: what is open, and why."""

    symptom: str
    checks: tuple[str, ...]
    tests: tuple[str, ...]
    missing: str = ""


NEEDS_TRAINER = "takes SpecForge's model beside a plain forward pass of it, which no check of values can do"
HERE = f"{E3}test_public_failures:"

FAILURES = {
    1: Caught(
        "the last state is the one before the final norm, and lm_head gets it",
        ("aerie.eagle3.features:agreement", "aerie.eagle3.features:after_norm"),
        (
            f"{E3}test_finetune:test_agreement_counts_the_generated_tokens_that_the_states_predict",
            f"{E3}test_specforge:test_the_last_state_is_stored_after_the_norm",
        ),
    ),
    2: Caught(
        "norm_output means one thing to SpecForge 0.2.0 and another to SGLang",
        ("aerie.eagle3.specforge:check_start", "aerie.eagle3.export:checks"),
        (f"{HERE}test_norm_output_is_refused", f"{E3}test_export:test_a_defect_is_named"),
        missing=f"one step of the trainer against one of the engine: {NEEDS_TRAINER}",
    ),
    3: Caught(
        "the engine passes over norm_before_fc or fc_norm",
        ("aerie.engines.drafters:unread",),
        (f"{HERE}test_what_a_version_does_not_read_is_named", f"{HERE}test_a_tensor_without_its_key_is_named"),
        missing="versions of which the source was not read have no row, and are refused such a drafter",
    ),
    4: Caught(
        "aux layer ids off by one",
        ("aerie.eagle3.parity:run", "aerie.engines.capability:can_serve", "aerie.eagle3.profile:Drafter"),
        (
            f"{E3}test_parity:test_parity_of_a_real_model",
            f"{HERE}test_aux_ids_that_engines_read_differently_are_refused_or_warned_of",
        ),
    ),
    5: Caught(
        "the loss mask is not shifted with ids and targets",
        ("aerie.eagle3.features:feature_mask",),
        (f"{HERE}test_supervised_positions_of_a_six_token_answer",),
    ),
    6: Caught(
        "a mask of zeros or of ones, and the loss looks fine",
        ("aerie.eagle3.features:check_mask", "aerie.eagle3.finetune:check_usable"),
        (f"{HERE}test_a_mask_of_ones_is_refused", f"{HERE}test_masks_of_zeros_are_refused"),
    ),
    7: Caught(
        "boilerplate of the template is supervised, such as an empty pair of thinking marks",
        ("aerie.eagle3.features:check_mask", "aerie.eagle3.rows:teacher_forced"),
        (f"{HERE}test_only_generated_ids_are_supervised", f"{HERE}test_a_template_that_renders_otherwise_is_refused"),
    ),
    8: Caught(
        "d2t holds absolute ids, or an arange, or is not among the weights",
        ("aerie.eagle3.export:checks", "aerie.eagle3.staged:vocabulary_map"),
        (f"{E3}test_export:test_a_defect_is_named", f"{E3}test_staged:test_a_map_that_is_none_is_refused"),
    ),
    9: Caught(
        "a warm start makes a vocabulary map of its own",
        ("aerie.eagle3.export:checks",),
        (f"{E3}test_export:test_a_defect_is_named",),
        missing="τ of step 0 against the published drafter's: SpecForge 0.2.0 has no evaluation before its first step",
    ),
    10: Caught(
        "states belong to other tokens, or a batch's padding is stored with them",
        ("aerie.eagle3.parity:read_states", "aerie.eagle3.samples:Samples"),
        (
            f"{E3}test_parity:test_states_that_are_not_the_samples_own_are_refused",
            f"{HERE}test_states_with_padding_or_cut_short_are_asked_for_again",
        ),
        missing="a batch against each of its samples alone: takes an engine",
    ),
    11: Caught(
        "training-time test: the attention mask is shifted, or the position stays",
        ("aerie.eagle3.diagnose:diagnose",),
        (f"{HERE}test_a_drafter_that_loses_its_later_positions_is_integration",),
        missing=f"step k of the trainer against a plain recurrent pass: {NEEDS_TRAINER}; so far serving shows it",
    ),
    12: Caught(
        "the rotary scaling is lost in a conversion",
        ("aerie.eagle3.export:checks",),
        (f"{E3}test_export:test_a_defect_is_named",),
        missing="angles at far positions in trainer and engine: takes both; acceptance by context: no long prompts yet",
    ),
    13: Caught(
        "the drafter's own guess is fed while the label assumes the truth",
        ("aerie.eagle3.diagnose:diagnose",),
        (f"{HERE}test_a_drafter_that_loses_its_later_positions_is_integration",),
        missing=f"teacher forcing inside the trainer: {NEEDS_TRAINER}",
    ),
    14: Caught(
        "random prompts make answers that turn in circles, and acceptance soars",
        ("aerie.engines.bench:distinct_bigrams", "aerie.eagle3.decide:undecidable"),
        (f"{HERE}test_looping_answers_are_told_from_text", f"{E3}test_decide:test_what_the_run_cannot_say_is_said"),
    ),
    15: Caught(
        "98 % in training, 10 % served",
        ("aerie.eagle3.diagnose:diagnose",),
        (f"{HERE}test_trained_well_and_served_badly_is_integration",),
    ),
    16: Caught(
        "without a draft model's path the target is loaded a second time as its drafter",
        ("aerie.engines.sglang:Sglang",),
        (f"{HERE}test_drafting_always_names_the_drafter",),
    ),
    17: Caught(
        "memory in fragments: late failures, or states that are not finite",
        ("aerie.eagle3.samples:Samples", "aerie.eagle3.features:write_feature", "aerie.eagle3.compute:on_gpus"),
        (
            f"{E3}test_samples:test_states_that_are_not_finite_are_asked_for_again",
            f"{E3}test_specforge:test_a_broken_sample_is_refused",
            f"{HERE}test_expandable_segments_are_for_training_alone",
        ),
    ),
}


def test_all_seventeen_are_here():
    assert sorted(FAILURES) == list(range(1, 18))


@pytest.mark.parametrize("number", FAILURES)
def test_its_checks_and_tests_exist(number):
    one = FAILURES[number]
    assert one.checks
    assert one.tests
    for place in (*one.checks, *one.tests):
        module, name = place.split(":")
        assert inspect.isfunction(found := getattr(importlib.import_module(module), name)) or inspect.isclass(found)


@pytest.mark.parametrize("where", [{"norm_output": False}, {"eagle_config": {"norm_output": True}}], ids=["top", "in"])
def test_norm_output_is_refused(where):
    with pytest.raises(AerieError, match="expected no norm_output"):
        specforge.check_start(where, "drafter")
    specforge.check_start({"eagle_config": {"use_aux_hidden_state": True}}, "drafter")


PLAIN = ("fc.weight", "midlayer.self_attn.q_proj.weight", "norm.weight", "lm_head.weight", "d2t", "t2d")


@pytest.mark.parametrize(
    ("config", "engine", "version", "problems"),
    [
        ({}, "sglang", "0.5.9", ()),
        ({"fc_norm": True}, "sglang", "0.5.9", ("fc_norm is set, and sglang 0.5.9 does not read it",)),
        ({"fc_norm": True}, "sglang", "0.5.16", ()),
        (
            {"eagle_config": {"fc_norm": True}}, "sglang", "0.5.16",
            ("eagle_config.fc_norm is set, and sglang 0.5.16 does not read it",),
        ),
        (
            {"eagle_config": {"norm_before_fc": True}}, "sglang", "0.5.16",
            ("eagle_config.norm_before_fc is set, and sglang 0.5.16 does not read it",),
        ),
        ({"eagle_config": {"norm_before_fc": True}}, "sglang", "0.5.23", ()),
        (
            {"norm_before_residual": True}, "sglang", "0.5.23",
            ("norm_before_residual is set, and sglang 0.5.23 does not read it",),
        ),
        ({"norm_before_residual": True, "fc_norm": False}, "vllm", "0.32.0", ()),
        (
            {"fc_norm": True}, "vllm", "0.28.0",
            ("fc_norm is set, and no row of the capability table says whether vllm 0.28.0 reads it",),
        ),
    ],
)  # fmt: skip
def test_what_a_version_does_not_read_is_named(config, engine, version, problems):
    assert drafters.unread(config, PLAIN, engine, version) == problems


def test_a_tensor_without_its_key_is_named(tmp_path):
    header = json.dumps({"__metadata__": {}, "fc_norm.0.weight": {}, "fc.weight": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "config.json").write_text("{}")
    assert drafters.tensor_names(tmp_path) == ("fc_norm.0.weight", "fc.weight")
    with pytest.raises(AerieError, match=r"fc_norm\.0\.weight is among the weights, and fc_norm is not set"):
        drafters.require(tmp_path, "vllm", "0.32.0")
    (tmp_path / "config.json").write_text('{"fc_norm": true}')
    drafters.require(tmp_path, "vllm", "0.32.0")


@pytest.mark.parametrize(("version", "warned"), [("0.5.12", True), ("0.5.16", False)])
@pytest.mark.parametrize(("ids", "usable"), [([2, 30, 58], True), ([3, 31, 59], True), ([1, 29, 57], False)])
def test_aux_ids_that_engines_read_differently_are_refused_or_warned_of(ids, usable, version, warned):
    wish = capability.Wish(engine="sglang", version=version, arch="sm120", doing=frozenset({"eagle3"}))
    reasons = [reason for reason, _, _ in capability.can_serve(wish).warnings]
    assert any("read one too high" in reason for reason in reasons) == warned
    shape = {"draft_vocab_size": 32_000, "aux_layers": ids, "num_speculative_tokens": 3, "ttt_length": 7}
    if usable:
        assert Drafter(**shape).aux_layers == ids
    else:
        with pytest.raises(ValidationError, match="start at 2 or above"):
            Drafter(**shape)


def test_supervised_positions_of_a_six_token_answer():
    # Tokens 0 to 2 are the prompt, 3 to 8 the answer; the sample ends with token 7, for the last has no state.
    # Position t reads token t+1 and drafts token t+2: 2, the last of the prompt, reads the first of the answer and
    # drafts the second; 6 drafts the last. Of what is stored the trainer zeroes the last entry (process_data, read).
    stored = features.feature_mask([0, 0, 0, 1, 1, 1, 1, 1, 1])[:-1]
    counted = [position for position, one in enumerate([*stored[:-1], 0]) if one]
    assert counted == [2, 3, 4, 5, 6]
    assert [position + 2 for position in counted] == [4, 5, 6, 7, 8]  # all of the answer but its first


def row(mask):
    return {"id": "a", "input_ids": [5] * len(mask), "loss_mask": mask}


def test_a_mask_of_ones_is_refused():
    with pytest.raises(AerieError, match="zeros over the prompt"):
        features.check_mask(row([1, 1, 1, 1]))


def test_masks_of_zeros_are_refused():
    rows = [row([0, 0, 0, 0]), *[row([0, 0, 1, 1])] * 7]
    usable = [one for one in rows if sum(one["loss_mask"]) > 1]
    with pytest.raises(AerieError, match="1 of 8 answers of less than two tokens"):
        finetune.check_usable(len(usable), len(rows))
    finetune.check_usable(9, 10)


def test_only_generated_ids_are_supervised():
    with pytest.raises(AerieError, match="every generated token"):
        features.check_mask(row([0, 0, 1, 1, 0, 1]))


class Falls:
    """A tokenizer whose template renders a prompt in another way once an answer follows, as a fallback does."""

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize):
        return "<user>" if add_generation_prompt else "<|im_start|>user"

    def __call__(self, texts, *, add_special_tokens):
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def test_a_template_that_renders_otherwise_is_refused():
    with pytest.raises(AerieError, match="as the prompt alone ends"):
        teacher_forced(Falls(), [("question", "answer")])


PROMPT = Prompt(id="a", input_ids=(5, 6))
ROW = {"id": "a", "input_ids": [5, 6, 7, 2], "loss_mask": [0, 0, 1, 1], "states": "states/00000.safetensors"}


def kept(folder: Path, tokens: tuple[int, ...], cut: int = 0) -> list[str]:
    """Ids that are there after a synthesis kept states of these tokens, and lost the last bytes of the file."""
    states = States(
        dtype="F32", shape=(len(tokens), 4, 2), token_ids=tokens, numbers=struct.pack("<f", 1.0) * (len(tokens) * 8)
    )
    with Samples(folder, [PROMPT]) as samples, PassBy() as passing:
        samples.add(ROW, states, passing)
    file = folder / ROW["states"]
    file.write_bytes(file.read_bytes()[: file.stat().st_size - cut])
    with Samples(folder, [PROMPT]) as samples:
        return list(samples.there)


@pytest.mark.parametrize(
    ("tokens", "cut", "there"),
    [((5, 6, 7), 0, ["a"]), ((5, 6, 7, 0, 0), 0, []), ((5, 6, 7), 9, [])],
    ids=["own", "with a batch's padding", "half written"],
)
def test_states_with_padding_or_cut_short_are_asked_for_again(tmp_path, tokens, cut, there):
    assert kept(tmp_path, tokens, cut) == there


def served(*accepted: int, accuracy: tuple[float, ...]) -> str:
    finetuned = Acceptance(verify_steps=1000, proposed=3000, accepted=sum(accepted), accepted_by_position=accepted)
    baseline = Acceptance(verify_steps=1000, proposed=3000, accepted=300, accepted_by_position=(250, 40, 10))
    expectation = Expectation(tau_min=2.0, tau_ratio_min=1.0, tau_margin_min=0.2)
    verdict: str = diagnose(
        Seen(
            expectation=expectation,
            parity_limit=0.02,
            parity_mean=0.005,
            parity_max=0.04,
            parted=(),
            baseline=baseline,
            finetuned=finetuned,
            accuracy=accuracy,
        )
    )["verdict"]
    return verdict


def test_a_drafter_that_loses_its_later_positions_is_integration():
    assert served(750, 150, 20, accuracy=(0.78, 0.70, 0.64)) == "integration"


def test_trained_well_and_served_badly_is_integration():
    assert served(100, 10, 1, accuracy=(0.98, 0.97, 0.96)) == "integration"
    assert served(100, 10, 1, accuracy=(0.12, 0.10, 0.10)) == "training"


def test_looping_answers_are_told_from_text():
    words = [hash_ * 7919 % 4096 for hash_ in range(64)]
    assert bench.distinct_bigrams([words]) == 1.0
    assert bench.distinct_bigrams([[8, 9, 10, 11] * 16]) == pytest.approx(4 / 63)


ENGINE = Engine(name="sglang", max_model_len=4096, max_num_seqs=8, ready_timeout_s=60, port=0, gpus=Gpus())


def launched(mode: adapter.Mode) -> adapter.Launch:
    given = adapter.Served(
        python=Path("python"), model=Path("target"), engine=ENGINE, dtype="bfloat16", version="0.5.23", arch="sm120"
    )
    return Sglang().launch(given, mode)


def test_drafting_always_names_the_drafter():
    drafting = adapter.Drafter(path=Path("drafter"), tokens=3)
    for mode in (drafting, adapter.Forced(drafter=drafting, length=2.0, folder=Path("forced"))):
        flags = launched(mode).flags
        assert flags[flags.index("--speculative-draft-model-path") + 1] == "drafter"
    with pytest.raises(TypeError, match="path"):
        adapter.Drafter(tokens=3)


def test_expandable_segments_are_for_training_alone():
    assert compute.on_gpus(8).environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    # expandable_segments is for training: it conflicts with the PCIe all-reduce of serving (kernels of SGLang 0.5.21).
    variables = launched(adapter.Drafter(path=Path("drafter"), tokens=3)).variables
    assert [name for name in variables if "ALLOC_CONF" in name] == []
