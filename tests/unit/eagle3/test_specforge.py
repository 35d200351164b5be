"""What is handed to SpecForge and what is read from its log; the trainer itself is not started here."""

from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import features, specforge
from aerie.eagle3.compute import CPU, Launcher, on_gpus
from aerie.eagle3.curve import Curve
from aerie.eagle3.head import Head
from aerie.eagle3.specforge import Plan
from aerie.errors import AerieError

# As specforge 0.2.0 printed it, shortened.
LINE = (
    "step 40: {'acc_0': 0.5, 'acc_1': 0.25, 'acc_2': 0.125, 'ploss_0': 2.0, 'acc': 0.29, 'loss': 4.5,"
    " 'acceptance_rate_0': 0.4, 'grad_norm': 0.3, 'lr': 0.001}\n"
)


# Of its evaluation, as it printed it.
EVALUATED = (
    "step 40: {'eval/avg_loss': 2.5, 'eval/avg_acc': 0.5, 'eval/per_position_acc': [0.5, 0.4, 0.25],"
    " 'eval/simulated_acc_len': 0.75, 'eval/acceptance_rate_0': 0.3}\n"
)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "target": Head(lm_head="lm_head.weight", embedding="e", norm="n", files={}, config={}),
        "drafter_config": Path("drafter.json"),
        "vocab_map": Path("vocab_map.pt"),
        "features": Path("features"),
        "held_out": None,
        "start": None,
        "samples": 10,
        "epochs": 3,
        "max_steps": None,
        "batch": 4,
        "learning_rate": 1e-3,
        "ttt_length": 3,
        "max_length": 128,
        "dtype": "bfloat16",
    }
    return Plan(**values | changes)


def test_a_log_line_gives_step_loss_and_accuracy_by_position() -> None:
    curve = Curve()
    assert curve.read("Loading weights\n") is None
    assert curve.read(LINE) == 40
    assert curve.loss == [(40, 4.5)]
    assert curve.accuracy == [0.5, 0.25, 0.125]


def test_an_evaluation_gives_the_accuracy_on_held_out_samples() -> None:
    curve = Curve()
    for line in (LINE, EVALUATED, EVALUATED.replace("0.25]", "0.9]"), EVALUATED.replace("step 40", "step 80")):
        curve.read(line)
    assert (curve.loss, curve.accuracy) == ([(40, 4.5)], [0.5, 0.25, 0.125])
    assert curve.evaluated(80) == {"eval_accuracy": [0.5, 0.4, 0.25], "eval_tau": [(40, 1.75), (80, 1.75)]}
    curve.cut(50)
    assert curve.evaluated(80) == {"eval_accuracy": [], "eval_tau": [(40, 1.75)]}, "the last one is not there"


def test_reports_of_two_processes_in_one_line_are_read_alike() -> None:
    curve = Curve()
    assert curve.read(LINE.rstrip() + LINE) == 40
    assert curve.read("\n") is None
    assert curve.read(EVALUATED.rstrip() + LINE.replace("step 40", "step 41") + EVALUATED) == 41
    assert [step for step, _ in curve.loss] == [40, 41]
    assert curve.evaluations == [(40, [0.5, 0.4, 0.25])]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_ends_the_training(value: str) -> None:
    with pytest.raises(AerieError, match=r"trainer, step 40.*expected a finite loss"):
        Curve().read(LINE.replace("'loss': 4.5", f"'loss': {value}"))


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({}, 6), ({"samples": 12}, 9), ({"max_steps": 5}, 5), ({"max_steps": 50}, 6)],
    ids=["two samples dropped", "none dropped", "capped", "cap above"],
)
def test_steps_count_full_batches_only(changes: dict[str, Any], steps: int) -> None:
    assert specforge.steps_of(plan(**changes), CPU) == steps


@pytest.mark.parametrize(
    ("samples", "processes", "steps"), [(10, 2, 3), (9, 2, 3), (64, 8, 6)], ids=["even", "one twice", "eight"]
)
def test_every_process_takes_its_share_of_an_epoch(samples: int, processes: int, steps: int) -> None:
    assert specforge.steps_of(plan(samples=samples), on_gpus(processes)) == steps


def test_too_few_samples_for_the_processes_are_refused() -> None:
    with pytest.raises(AerieError, match="10 samples for 8 processes with a batch of 4 each"):
        specforge.steps_of(plan(), on_gpus(8))


def test_what_every_process_logs_counts_once_and_what_is_trained_again_not_at_all() -> None:
    curve = Curve()
    for step in (40, 40, 80, 80):
        curve.read(LINE.replace("step 40", f"step {step}"))
    assert curve.loss == [(40, 4.5), (80, 4.5)]
    curve.cut(50)
    assert curve.loss == [(40, 4.5)]
    assert curve.read(LINE.replace("step 40", "step 80")) == 80


def test_the_mask_counts_where_the_token_that_is_read_was_generated() -> None:
    # Six tokens, two of them the prompt. SpecForge's position t reads token t+1 and drafts token t+2, so position 1,
    # the last of the prompt, reads the first generated token and must be trained to draft the second.
    assert features.feature_mask([0, 0, 1, 1, 1, 1]) == [0, 1, 1, 1, 1, 0]


def test_a_failed_process_shows_its_last_lines(tmp_path: Path) -> None:
    launcher = Launcher(module="aerie.no_such_module", environment={}, options={})
    with pytest.raises(AerieError, match=r"specforge export: 'exit status 1'.*\n.*No module named"):
        specforge.export(tmp_path, tmp_path, tmp_path, tmp_path, launcher, tmp_path / "log")
    assert "No module named" in (tmp_path / "log").read_text()


def test_the_drafter_has_the_shape_of_its_target() -> None:
    target = {
        "hidden_size": 192,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "vocab_size": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = specforge.draft_config(target, draft_vocab_size=1024, aux_layers=[2, 3, 4])
    assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"] == 192
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    # SpecForge 0.2.0 and SGLang disagree on what this key means.
    assert "norm_output" not in config


def test_eager_loss_is_the_cross_entropy_over_masked_positions() -> None:
    torch = pytest.importorskip("torch")
    from aerie.eagle3.specforge_cpu import eager_loss

    logits = torch.randn(2, 3, 5)
    target = torch.randn(2, 3, 5).softmax(-1)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).unsqueeze(-1)
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(0, 1), reduction="none")
    assert torch.allclose(eager_loss(logits, target, mask), (each * mask.flatten()).mean())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_targets_head_takes_states_of_the_trainings_dtype(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("specforge")
    from specforge.modeling.target.target_head import TargetHead

    from aerie.eagle3.specforge_cpu import _let_head_follow_states

    _let_head_follow_states()
    head = TargetHead.__new__(TargetHead)
    torch.nn.Module.__init__(head)
    head.fc = torch.nn.Linear(8, 16, bias=False).to(torch.bfloat16)  # as SpecForge 0.2.0 loads it
    states = torch.randn(2, 3, 8).to(getattr(torch, dtype))
    assert torch.equal(head(states), states @ head.fc.weight.to(states.dtype).T)


def test_the_last_state_is_stored_after_the_norm() -> None:
    torch = pytest.importorskip("torch")
    states, weight = torch.randn(3, 8), torch.rand(8)
    assert torch.allclose(
        features.after_norm(states, weight, 1e-6), torch.nn.functional.rms_norm(states, [8], weight, 1e-6)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_feature_has_the_shapes_that_specforge_reads(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    aux = torch.randn(3, 3, 8).to(torch.bfloat16)
    features.write_feature(
        tmp_path / "a.ckpt", input_ids=[5, 6, 7], loss_mask=[0, 1, 0], aux=aux, last=torch.randn(3, 8), dtype=dtype
    )
    stored = torch.load(tmp_path / "a.ckpt")
    assert {name: list(tensor.shape) for name, tensor in stored.items()} == {
        "input_ids": [3],
        "loss_mask": [3],
        "aux_hidden_state": [1, 3, 24],
        "hidden_state": [1, 3, 8],
    }
    assert {str(stored[name].dtype) for name in ("aux_hidden_state", "hidden_state")} == {f"torch.{dtype}"}
    assert torch.equal(stored["aux_hidden_state"][0, 1].bfloat16(), torch.cat([aux[1, 0], aux[1, 1], aux[1, 2]]))


@pytest.mark.parametrize(
    ("value", "positions", "message"),
    [("nan", 2, "not finite"), ("inf", 2, "not finite"), ("0", 3, "one state and one mask entry per token")],
)
def test_a_broken_sample_is_refused(tmp_path: Path, value: str, positions: int, message: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(AerieError, match=message):
        features.write_feature(
            tmp_path / "a.ckpt",
            input_ids=[5, 6],
            loss_mask=[0, 1],
            aux=torch.zeros(positions, 3, 8),
            last=torch.full((positions, 8), float(value)),
            dtype="bfloat16",
        )
    assert list(tmp_path.iterdir()) == []
