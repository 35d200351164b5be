"""lock.show, lock.diff and lock.capture as they are typed."""

import json
import shutil
from pathlib import Path

import pytest
from invoke import Collection

import tasks
from aerie import lock, remote
from aerie.paths import repository
from aerie.program import Program
from tests.snapshots import healthy

NAME, NEXT = "ubuntu2404-cuda131", "ubuntu2404-cuda131-r595"


def run(*arguments: str) -> int:
    program = Program(namespace=Collection.from_module(tasks), name="aerie", binary="invoke")
    try:
        program.run(["invoke", *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped inventory whose hosts are as the healthy snapshot says."""
    monkeypatch.setattr(remote, "probe", lambda host: healthy())
    shutil.copytree(repository() / "inventory", tmp_path / "inventory")
    return tmp_path / "inventory" / "hosts.yml"


def test_show_has_every_value_and_json_is_the_lock(capsys):
    assert run("lock.show", NAME) == 0
    shown = capsys.readouterr().out
    assert "590.48.01" in shown and "cuda-nvcc-13-1 13.1.115-1" in shown and "/srv/aerie" in shown
    assert run("lock.show", NAME, "--json") == 0
    assert lock.Lock.model_validate(json.loads(capsys.readouterr().out)) == lock.load(NAME)


def test_show_for_a_host_has_what_its_inventory_changes(inventory, capsys):
    (inventory.parent / "host_vars" / "gpu02.yml").write_text("storage_path: /data\n")
    assert run("lock.show", NAME, "--host", "gpu02", "--json", "--inventory", str(inventory)) == 0
    assert json.loads(capsys.readouterr().out)["storage"]["path"] == "/data"


def test_diff_names_what_differs(capsys):
    assert run("lock.diff", NAME, NEXT, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["before"], document["after"]) == ("aerie.lock-diff/1", NAME, NEXT)
    assert {"key": "driver.version", "before": "590.48.01", "after": "595.58.03"} in document["changes"]
    assert run("lock.diff", NAME, NAME) == 0
    assert capsys.readouterr().out == f"{NAME} and {NAME} say the same\n"


@pytest.mark.parametrize("arguments", [["lock.show", "ubuntu2404-cuda13"], ["lock.diff", NAME, "ubuntu2404-cuda13"]])
def test_an_unknown_lock_is_usage(arguments, capsys):
    assert run(*arguments) == 2
    assert "Did you mean ubuntu2404-cuda131" in capsys.readouterr().err


def test_capture_writes_and_prints_a_lock_and_does_not_overwrite_it(inventory, capsys):
    arguments = ["lock.capture", "--host", "gpu01", "--name", "mine", "--inventory", str(inventory)]
    assert run(*arguments, "--check") == 0
    file = inventory.parent / "locks" / "mine.lock.toml"
    assert not file.exists()
    capsys.readouterr()
    assert run(*arguments) == 0
    printed = capsys.readouterr()
    assert file.read_text() == printed.out
    assert printed.err == f"written {file}\n"
    assert lock.load("mine", inventory.parent).driver == lock.load(NAME).driver
    assert run(*arguments) == 2
    assert file.read_text() == printed.out
