"""A runbook's README: from the runbook, the steps and the profile's model, the same every time."""

import re
import shutil

import pytest
import yaml

from aerie.runbook import readme
from aerie.runbook.spec import load
from tests.unit import recorded

JUDGING = ("cost", "lossless", "diagnose", "decide", "report")


@pytest.fixture
def loaded(tmp_path):
    """The eagle3 runbook with the measuring steps' code replaced: it imports nothing of theirs."""
    runbook = yaml.safe_load((recorded.RUNBOOK / "runbook.yml").read_text())
    for step in runbook["steps"]:
        if step["id"] not in JUDGING:
            step["module"] = "tests.unit.report.replay"
    shutil.copytree(recorded.RUNBOOK / "profiles", tmp_path / "eagle3" / "profiles")
    (tmp_path / "eagle3" / "runbook.yml").write_text(yaml.safe_dump(runbook))
    return load("eagle3", directory=tmp_path)


@pytest.fixture
def text(loaded):
    return readme.readme(loaded)


def section(text, step):
    return text.split(f"\n## {step}\n")[1].split("\n## ")[0]


def test_it_is_the_same_every_time(loaded, text):
    assert readme.readme(loaded) == text
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_every_step_has_its_section_in_order(loaded, text):
    ids = [step.id for step in loaded.runbook.steps]
    assert re.findall(r"^## (.+)$", text, re.M) == ["The order", *ids]
    assert re.findall(r"^\| \d+ \| \[([\w-]+)\]\(#\1\)", text, re.M) == ids


def test_values_have_number_range_and_meaning(text):
    parity = section(text, "parity")
    assert "| `parity.max_mean_rel` | 0.02 | number, above 0, below 1 | relative error, mean over positions" in parity
    assert "`parity`: Hidden states of the engine against transformers in fp32." in parity
    assert "| `drafter.aux_layers` | 2, 3, 4 | list of integer; 3 of them |" in section(text, "finetune")
    assert "| `target.shape` | auto | `auto`, `mla`, `llama` |" in section(text, "preflight")
    assert "| `bench.concurrency` | 1, 8 | list of integer, at least 1; at least 1 |" in section(text, "control")


def test_gates_limits_and_doc_are_told(text):
    lossless = section(text, "lossless")
    assert "- gate: Stop where outputs part so often, or so far, that the verify path must be wrong." in lossless
    assert "Speculation must not change what a greedy decode says." in lossless
    assert "stopped after 300 s without progress, 1 retry" in section(text, "parity")


def test_the_decision_table_is_in_it(text):
    assert "| parity-mean | mean relative error of the hidden states" in section(text, "diagnose")


def test_it_lies_beside_the_runbook(loaded):
    assert readme.path(loaded) == loaded.directory / "eagle3" / "README.md"
