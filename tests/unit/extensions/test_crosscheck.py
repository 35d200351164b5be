"""Device code as cuobjdump lists it beside our own reading. What the program said of each file was recorded."""

import shlex
from pathlib import Path

import pytest

from aerie.extensions import crosscheck

FILES = Path(__file__).parent / "device_code"
# By cuobjdump 12.8.55 --list-elf --list-ptx, 2026-11-30; without a file's lines it says "No PTX file found …", exit 0.
SAID = {
    "targets.fatbin": """\
ELF file    1: targets.1.sm_120.cubin
ELF file    2: targets.2.sm_120.cubin
ELF file    3: targets.3.sm_120.cubin
PTX file    1: targets.1.sm_120.ptx
PTX file    2: targets.2.sm_120a.ptx
PTX file    3: targets.3.sm_120.ptx
ELF file    4: targets.4.sm_90.cubin
PTX file    4: targets.4.sm_90a.ptx
""",
    "rdc.so": "ELF file    1: rdc.1.sm_90.cubin\n",
    "units.a": "\nmember /x/units.a:a_unit.o:\nELF file    1: units.1.sm_90.cubin\nPTX file    1: units.1.sm_90.ptx\n",
}


def program(folder: Path, said: str, code: int = 0, error: str = "") -> Path:
    path = folder / "bin" / "cuobjdump"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(said)}\nprintf %s {shlex.quote(error)} >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """The recorded files, and a library of this host without device code."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in (*SAID, "host.so"):
        source = Path("/bin/true") if name == "host.so" else FILES / name
        (folder / name).write_bytes(source.read_bytes())
    return folder


@pytest.mark.parametrize("name", SAID)
def test_both_readings_agree(name: str, libraries: Path, tmp_path: Path) -> None:
    assert list(crosscheck.differences(program(tmp_path, SAID[name]), libraries, [name])) == []


def test_a_library_without_device_code_is_so_for_both(libraries: Path, tmp_path: Path) -> None:
    tool = program(tmp_path, "", 255, "cuobjdump info    : File 'host.so' does not contain device code\n")
    assert list(crosscheck.differences(tool, libraries, ["host.so"])) == []
    (said,) = crosscheck.differences(tool, libraries, ["rdc.so"])
    assert said == f"rdc.so: aerie reads 1 sass sm_90, {tool} lists no device code"


@pytest.mark.parametrize(
    ("said", "code", "error", "words"),
    [
        (SAID["targets.fatbin"].replace("sm_120.cubin", "sm_100.cubin", 1), 0, "", "1 sass sm_100, 2 sass sm_120"),
        (SAID["targets.fatbin"] + "ELF file    5: targets.5.sm_86.cubin\n", 0, "", "1 sass sm_86"),
        ("", 0, "", "lists no device code"),
        (
            "",
            1,
            "cuobjdump fatal   : Unknown option",
            "not compared with cuobjdump: cuobjdump fatal   : Unknown option",
        ),
        ("", 9, "", "not compared with cuobjdump: exit 9"),
    ],
    ids=["another-architecture", "one-more", "nothing", "refused", "killed"],
)
def test_what_differs_is_told_with_both_readings(libraries, tmp_path, said, code, error, words) -> None:
    (told,) = crosscheck.differences(program(tmp_path, said, code, error), libraries, ["targets.fatbin"])
    assert told.startswith("targets.fatbin: ") and words in told
    if not code:
        assert "aerie reads 3 ptx sm_120, 1 ptx sm_90, 3 sass sm_120, 1 sass sm_90" in told


def test_the_program_is_that_of_the_toolkit_then_the_one_on_path(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert crosscheck.find(tmp_path) is None
    own = program(tmp_path, "")
    assert crosscheck.find(tmp_path) == own
    monkeypatch.setenv("PATH", str(own.parent))
    assert crosscheck.find(tmp_path / "nowhere") == own
