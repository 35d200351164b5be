"""Target and drafter staged instead of made: from a folder, by the same staging as on any host."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import baseline_drafter, serving, staged, target
from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import Context, Input
from tests.unit import recorded

SIZE = {"hidden_size": 64, "layers": 5, "steps": 2, "learning_rate": 1e-3}
TARGET = {"shape": "llama", "vocab_size": 512, "sequence": 64, "batch": 2, "threads": 1, "seed": 0}
CORPUS = {"max_response_chars": 100, "held_out": 8}
MADE = {"staged": None}
PREFLIGHT = {
    "shape": {"name": "llama", "reason": "asked for"},
    "arithmetic": {"dtype": "float32", "reason": "asked for"},
    "device": {"type": "cpu", "reason": "asked for"},
}
LOCK = "debian13-cuda131"
FILES = ("prompts.train.jsonl", "prompts.held.jsonl", "generic.jsonl")


def context(folder: Path, step: str, **values: Any) -> Context:
    for name in ("out", "scratch"):
        (folder / name).mkdir(parents=True)
    return Context(
        run="r",
        step=step,
        attempt=1,
        values=values,
        inputs={"preflight": Input(path=folder, evidence=PREFLIGHT)},
        out=folder / "out",
        scratch=folder / "scratch",
        kept=folder / "kept",
        interpreters={},
        progress_file=folder / "progress.json",
    )


def pin(inventory: Path, **folders: Path) -> None:
    """A lock whose models are these folders, and their manifests."""
    from aerie.lock import WeightsModel
    from aerie.weights.manifest import digest, dump
    from aerie.weights.sources import read

    lines = [(repository() / "inventory" / "locks" / f"{LOCK}.lock.toml").read_text()]
    lines.append(f'[weights]\npath = "{inventory / "staged"}"\n')
    (inventory / "manifests").mkdir(parents=True)
    (inventory / "locks").mkdir()
    for name, folder in folders.items():
        manifest = read(name, WeightsModel(source="folder", location=str(folder)), endpoint="", say=print)
        (inventory / "manifests" / f"{name}.manifest.json").write_bytes(dump(manifest))
        lines.append(f'[weights.models.{name}]\nsource = "folder"\nlocation = "{folder}"\n')
        lines.append(f'manifest_sha256 = "{digest(manifest)}"\n')
    (inventory / "locks" / f"{LOCK}.lock.toml").write_text("".join(lines))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a target that was trained for two steps, and a drafter's beside them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("made")
    target.run(context(folder, "target", target={**TARGET, "mla": SIZE, "llama": SIZE}, corpus=CORPUS, baseline=MADE))
    drafter = folder / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps({"vocab_size": 8, "draft_vocab_size": 3}))
    marked = torch.tensor([False, True, False, False, True, True, False, False])
    save_file({"d2t": torch.tensor([1, 3, 3]), "t2d": marked}, drafter / "model.safetensors")
    return folder


def test_a_staged_target_gives_the_same_prompts_as_the_one_that_was_made(made: Path, tmp_path: Path) -> None:
    pin(tmp_path / "inventory", tiny=made / "out" / "model")
    chosen = {"lock": LOCK, "model": "tiny", "inventory": str(tmp_path / "inventory")}
    values = {**TARGET, "mla": SIZE, "llama": SIZE, "staged": chosen}
    step = context(tmp_path / "step", "target", target=values, corpus=CORPUS, baseline=MADE)
    evidence = target.run(step)
    for name in FILES:
        assert (step.out / name).read_bytes() == (made / "out" / name).read_bytes()
    assert not (step.out / "model").exists()
    folder = staged.folder(Input(path=step.out, evidence=evidence), "model")
    for file in (made / "out" / "model").iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()
    assert (evidence["layers"], evidence["hidden_size"]) == (5, 64)
    assert target.stale(evidence) is None

    with open(folder / "model.safetensors", "r+b") as file:
        file.write(b"x")
    assert target.stale(evidence) == f"{folder / 'model.safetensors'} is unverified"


def test_a_staged_drafter_brings_its_own_vocabulary(made: Path, tmp_path: Path) -> None:
    import torch

    pin(tmp_path / "inventory", drafter=made / "drafter")
    chosen = {"lock": LOCK, "model": "drafter", "inventory": str(tmp_path / "inventory")}
    baseline = {"samples": 1, "steps": 1, "batch": 1, "learning_rate": 1e-3, "staged": chosen}
    step = context(tmp_path / "step", "baseline-drafter", baseline=baseline)
    evidence = baseline_drafter.run(step)
    assert evidence["vocab"] == {"target": 8, "draft": 3}
    mapping = torch.load(step.out / "vocab_map.pt")
    assert mapping["d2t"].tolist() == [1, 3, 3]
    assert mapping["t2d"].nonzero().flatten().tolist() == [1, 4, 5]


@pytest.mark.parametrize(
    ("tensors", "seen"),
    [
        ({"d2t": [1, 3]}, "2 entries, ids 1 to 4"),
        ({"d2t": [1, 0, 3]}, "3 entries, ids 1 to 5"),
        ({"d2t": [1, 3, 6]}, "3 entries, ids 1 to 8"),
        ({"d2t": [1, 3, 3], "t2d": [1, 0, 0, 0, 1, 1, 0, 0]}, "marks other ids than d2t leads to"),
    ],
    ids=["too few", "not rising", "outside", "t2d differs"],
)
def test_a_map_that_is_none_is_refused(tmp_path: Path, tensors: dict[str, list[int]], seen: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 8, "draft_vocab_size": 3}))
    save_file({name: torch.tensor(values) for name, values in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(AerieError) as error:
        staged.vocabulary_map(tmp_path)
    assert error.value.seen == seen


def test_a_manifest_that_the_lock_pins_by_now_is_another(made: Path, tmp_path: Path) -> None:
    pin(tmp_path / "first", drafter=made / "drafter")
    chosen = {"lock": LOCK, "model": "drafter", "inventory": str(tmp_path / "first")}
    baseline = {"samples": 1, "steps": 1, "batch": 1, "learning_rate": 1e-3, "staged": chosen}
    evidence = baseline_drafter.run(context(tmp_path / "step", "baseline-drafter", baseline=baseline))
    assert baseline_drafter.stale(evidence) is None

    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    pin(tmp_path / "second", drafter=other)
    for kind in ("locks", "manifests"):
        (tmp_path / "first" / kind).rename(tmp_path / f"{kind}.before")
        (tmp_path / "second" / kind).rename(tmp_path / "first" / kind)
    said = baseline_drafter.stale(evidence)
    assert said is not None
    assert said.startswith(f"lock {LOCK} pins another manifest of drafter by now, ")


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "made"])
def test_the_weights_that_a_load_is_judged_by_are_the_targets_own(is_staged: bool, tmp_path: Path) -> None:
    folder = tmp_path / "weights" if is_staged else tmp_path / "target" / "out" / "model"
    folder.mkdir(parents=True)
    (folder / "model-1.safetensors").write_bytes(bytes(5000))
    evidence = {"staged": {"folder": str(folder)} if is_staged else None}
    given = recorded.context("serve-base", {"target": evidence}, tmp_path / "out")
    assert serving.Weights.of(given).size_bytes == 5000
