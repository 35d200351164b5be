"""./invoke, with the real launcher and real pip on a copy of the checkout that needs one tiny package only."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aerie import bootstrap
from tests.unit.wheels import make_wheel

ROOT = Path(bootstrap.__file__).resolve().parent.parent

# Stands in for aerie.program: says how it was called and ends with the code that it is told.
PROGRAM = """\
import sys

import tinything


def main():
    print(tinything.version, sys.argv[1:])
    sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


def make_checkout(folder: Path) -> Path:
    (folder / "aerie").mkdir(parents=True)
    (folder / "requirements").mkdir()
    shutil.copy(ROOT / "invoke", folder / "invoke")
    shutil.copy(ROOT / "aerie" / "bootstrap.py", folder / "aerie" / "bootstrap.py")
    (folder / "aerie" / "__init__.py").touch()
    (folder / "aerie" / "program.py").write_text(PROGRAM)
    line = make_wheel(folder / "wheels")
    (folder / "requirements" / "controller.txt").write_text(line)
    return folder


def environment(checkout: Path, **changes: str) -> dict[str, str]:
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": (checkout / "wheels").as_uri(), **changes}


def start(checkout: Path, *arguments: str, **options) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(checkout / "invoke"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(checkout),
        **options,
    )


def invoke(checkout: Path, *arguments: str, **options) -> "subprocess.CompletedProcess[str]":
    process = start(checkout, *arguments, **options)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A checkout whose environment is made, in a folder with a space."""
    folder = make_checkout(tmp_path_factory.mktemp("with space") / "a checkout")
    first = invoke(folder, "0", cwd="/")
    assert (first.returncode, first.stdout) == (0, "1.0 ['0']\n"), first.stderr
    assert "making .venv" in first.stderr
    return folder


def test_a_later_start_makes_nothing_and_passes_arguments_and_exit_code(checkout):
    again = invoke(checkout, "5", "two words", cwd="/")
    assert (again.returncode, again.stdout, again.stderr) == (5, "1.0 ['5', 'two words']\n", "")


@pytest.mark.parametrize("name", ["invoke", "inv"])
def test_invoke_in_the_activated_environment_is_the_same(checkout, name):
    script = f'. "{checkout}/.venv/bin/activate" && {name} 4'
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd="/", check=False)
    assert (result.returncode, result.stdout) == (4, "1.0 ['4']\n")


def test_the_launcher_works_through_a_link(checkout, tmp_path):
    (tmp_path / "link").symlink_to(checkout / "invoke")
    result = subprocess.run([str(tmp_path / "link"), "0"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_checkout_that_was_moved_gets_a_new_environment(checkout, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(checkout, moved, symlinks=True)
    result = invoke(moved, "0")
    assert (result.returncode, "making .venv" in result.stderr) == (0, True), result.stderr


def test_a_link_to_another_checkouts_environment_is_replaced_and_that_one_stays(checkout, tmp_path):
    linked = make_checkout(tmp_path / "linked")
    (linked / ".venv").symlink_to(checkout / ".venv")
    assert invoke(linked, "0").stdout == "1.0 ['0']\n"
    assert not (linked / ".venv").is_symlink()
    assert invoke(checkout, "0").returncode == 0


def test_two_starts_at_once_make_one_environment(tmp_path):
    folder = make_checkout(tmp_path / "twice")
    with open(folder / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a third start does, until both wait for it
        pair = [start(folder, "0"), start(folder, "0")]
        first = [process.stderr.readline() for process in pair if process.stderr]
    ends = [process.communicate(timeout=600) for process in pair]
    assert first == ["aerie: another start is making .venv; waiting for it\n"] * 2
    assert [process.returncode for process in pair] == [0, 0], ends
    assert sorted("about half" in err for _, err in ends) == [False, True], ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "kill"])
def test_an_interrupted_start_leaves_nothing_that_looks_ready(tmp_path, number):
    folder = make_checkout(tmp_path / "broken-off")
    # What a shell puts into the background ignores Ctrl-C, this test run perhaps; a kill counts there too.
    ctrl_c = signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN
    process = start(folder, "0", preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c))
    assert process.stderr is not None
    assert "making .venv" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, "interrupted" in err) == (130, True), err
    assert not (folder / ".venv" / "ready.json").exists()
    assert invoke(folder, "0").returncode == 0


def test_a_start_after_kill_9_waits_for_the_orphan_and_makes_it_anew(tmp_path):
    folder = make_checkout(tmp_path / "killed")
    process = start(folder, "0")
    assert process.stderr is not None
    assert "making .venv" in process.stderr.readline()
    time.sleep(0.3)  # into the run of `python -m venv`, which takes seconds
    process.kill()
    process.communicate(timeout=300)
    again = invoke(folder, "0")
    assert (again.returncode, again.stdout) == (0, "1.0 ['0']\n"), again.stderr


def test_a_wrong_hash_is_refused_with_pips_words_and_a_remedy(tmp_path):
    folder = make_checkout(tmp_path / "wrong-hash")
    (folder / "requirements" / "controller.txt").write_text(f"tinything==1.0 --hash=sha256:{'0' * 64}\n")
    result = invoke(folder, "0")
    assert (result.returncode, result.stdout) == (1, "")
    assert "DO NOT MATCH THE HASHES" in result.stderr
    assert "pip config list" in result.stderr
    assert not (folder / ".venv" / "ready.json").exists()


def test_a_python_without_ensurepip_is_told_the_package(tmp_path, monkeypatch):
    folder = make_checkout(tmp_path / "debian")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")  # what `import ensurepip` does on Debian without python3-venv
    python.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(python))
    with pytest.raises(bootstrap.SetupFailed, match=r"lacks venv or ensurepip.*apt install python3\.\d+-venv"):
        bootstrap.ensure_controller(folder)


def test_without_a_recent_python_the_remedy_is_named(tmp_path):
    folder = make_checkout(tmp_path / "old")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink"):
        (tools / name).symlink_to(shutil.which(name) or name)
    old = tools / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.10"\nexit 1\n')
    old.chmod(0o755)
    command = [str(folder / "invoke"), "0"]
    result = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tools)}, check=False)
    assert result.returncode == 1
    assert "Python 3.8.10" in result.stderr
    assert "3.11" in result.stderr
    assert "apt install" in result.stderr


def test_listing_the_tasks_loads_none_of_the_heavy_libraries():
    # 0.2 s of CPU without them; each of these alone costs 20 to 500 ms.
    heavy = {"aiohttp", "ansible_runner", "fabric", "jinja2", "prometheus_client", "psutil", "pydantic", "rich"}
    script = "import sys, tasks; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(heavy & set(result.stdout.split())) == []
