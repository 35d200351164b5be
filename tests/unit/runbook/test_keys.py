"""What counts for a step's key and what does not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aerie.runbook import keys

STEP = '''"""A step."""
from {package} import helper
from {package}.helper import number
doc = "By hand."
def run(context):
    """Run."""
    import {package}.lazy
    return {{"x": 1}}
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "edited"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "__init__.py").write_text("")
    (folder / "step.py").write_text(STEP.format(package="edited"))
    (folder / "helper.py").write_text("import json\nnumber = 1\n")
    (folder / "lazy.py").write_text("from . import helper\n")
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "edited"]:
        del sys.modules[name]


def change(file: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("edit", "counts"),
    [
        (change("step.py", '"By hand."', '"By hand, slowly."'), False),
        (change("step.py", '"""Run."""', '"""Run it."""'), False),
        (change("step.py", '"""A step."""', "# A step.\n"), False),
        (change("step.py", '{"x": 1}', '{"x": 2}'), True),
        (change("helper.py", "number = 1", "number = 2"), True),
        (change("helper.py", "number = 1", "number  =  1  # one"), False),
        (change("lazy.py", "import helper", "import helper as other"), True),
    ],
    ids=["doc", "docstring", "module-docstring", "code", "imported", "layout", "imported-inside"],
)
def test_what_counts_as_code(package: Path, edit: Callable[[Path], None], counts: bool) -> None:
    before = keys.code_hash("edited.step")
    edit(package)
    assert (keys.code_hash("edited.step") != before) is counts


def test_changes_in_words() -> None:
    before = {
        "spec": {"needs": ["a"], "values": ["v"]}, "code": "1", "environment": "e",
        "values": {"finetune": {"epochs": 2, "lr": 1}},
    }  # fmt: skip
    now = {
        "spec": {"needs": ["a", "b"], "values": ["v"]}, "code": "2", "environment": "f",
        "values": {"finetune": {"epochs": 3, "lr": 1}},
    }  # fmt: skip
    assert keys.changes(before, now) == [
        'step changed: needs ["a"] → ["a", "b"]', "code changed", "environment changed",
        "values changed: finetune.epochs 2 → 3",
    ]  # fmt: skip


def test_the_output_does_not_depend_on_times_or_order() -> None:
    one = {"path": "a", "sha256": "1", "mtime_ns": 1, "inode": 1}
    two = {"path": "b", "sha256": "2", "mtime_ns": 2, "inode": 2}
    assert keys.output_of("e", [one, two]) == keys.output_of("e", [two, {**one, "mtime_ns": 9}])
    assert keys.output_of("e", [one]) != keys.output_of("e", [{**one, "sha256": "3"}])
