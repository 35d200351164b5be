"""The script that goes to a host: whole, small, and right for every Python that hosts have."""

import ast
import json
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import pynvml
import pytest

from aerie import snapshot
from aerie.probe import bundle
from aerie.probe.reading import Later, ProgramFailed, reading

FOLDER = Path(bundle.__file__).parent
SENT = sorted(path for path in FOLDER.glob("*.py") if path.name != "bundle.py")


@pytest.mark.parametrize("path", SENT, ids=lambda path: path.stem)
def test_every_module_is_right_for_python_3_9(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body) or not any(
        isinstance(node, ast.FunctionDef) for node in tree.body
    ), "annotations as X | None need this import"


@pytest.mark.parametrize("path", SENT, ids=lambda path: path.stem)
def test_modules_import_the_standard_library_and_pynvml_alone(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names <= {"pynvml"}


def run(*arguments, python=sys.executable):
    argv = [python, "-I", "-S", "-", *arguments]
    return subprocess.run(argv, input=bundle.script(), capture_output=True, check=False, timeout=60, cwd="/")


def test_it_gives_a_snapshot_of_this_machine():
    done = run("/usr/bin:/bin", "8192", "1024", "unlimited")
    assert (done.returncode, done.stderr) == (0, b"")
    found = snapshot.parse(done.stdout)
    assert found.base.session_limits == snapshot.Limits(memlock=8192 * 1024, nofile=1024, stack=None)
    assert found.kernel.release == Path("/proc/sys/kernel/osrelease").read_text().strip()
    document = json.loads(done.stdout)
    document["schema"] = "aerie.snapshot/0"
    assert set(document) == set(snapshot.Snapshot.__dataclass_fields__)


def test_it_gives_a_snapshot_on_the_system_s_python():
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("needs /usr/bin/python3")
    assert snapshot.parse(run("/usr/bin:/bin", "1", "1", "1", python=python).stdout).python.system != ""


def test_without_the_session_s_limits_they_are_unknown():
    found = snapshot.parse(run("/usr/bin").stdout)
    assert isinstance(found.base.session_limits, snapshot.Unknown)


def test_pynvml_is_trimmed_to_what_is_called(monkeypatch):
    source = Path(pynvml.__file__).read_text()
    wanted = set(bundle.NVML_NAME.findall((FOLDER / "nvml.py").read_text()))
    assert "nvmlDeviceGetAddressingMode" in wanted
    trimmed = bundle.trimmed(source, wanted)
    ast.parse(trimmed, feature_version=(3, 9))
    assert len(trimmed) < len(source) / 5
    assert "Redistributions of source code must retain the above copyright" in trimmed
    module = types.ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    exec(compile(trimmed, "pynvml", "exec"), module.__dict__)
    assert [name for name in wanted if not hasattr(module, name)] == []
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    used = {name for function in functions for name in function.__code__.co_names if "nvml" in name.lower()}
    # Names that a function assigns by `global`, or asks of an object, need no definition.
    assert [name for name in used if hasattr(pynvml, name) and not hasattr(module, name)] == []


def test_the_script_is_small():
    assert len(bundle.script()) < 64 << 10


def broken(error):
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "x", "/etc/y"), "/etc/y: no such file"),
        (ValueError("odd\nlines"), "broken: ValueError: odd lines"),
        (TimeoutError("statvfs: no answer within 0.3 s"), "statvfs: no answer within 0.3 s"),
        (ProgramFailed("modinfo: exit 1 Invalid argument"), "modinfo: exit 1 Invalid argument"),
    ],
    ids=["missing", "unexpected", "slow", "program"],
)
def test_a_reading_that_fails_says_why(error, words):
    assert reading(broken, error) == {"unknown": words}


def test_a_reading_that_hangs_does_not_hold_the_others():
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"wait: no answer within 0\.01 s"):
        Later(release.wait).get(0.01)
    release.set()
