"""Builds on a host with a real systemd: a scope with a hard limit around each, which outlives a compiler it ends."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import lab
from aerie import inventory
from aerie.extensions.onhost.request import Request, Result, Source
from aerie.extensions.shipping import HOSTJOB
from aerie.remote.code import Code
from tests.unit.extensions import small_package as small

pytestmark = pytest.mark.lab

Said = Callable[..., str]
MB = 1 << 20
# Compilers that take memory as real ones do: "// 300" on a line takes 300 MB for half a second.
COMPILER = """\
#!/usr/bin/python3
import pathlib, sys, time
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.1, V13.1.115"); sys.exit()
held = b""
for name in sys.argv:
    if name.endswith(".cu"):
        for line in pathlib.Path(name).read_text().splitlines():
            if line.startswith("// "):
                held = b"x" * (int(line[3:]) << 20)
                time.sleep(4 if len(held) > 200 << 20 else 0.5)  # two of the large ones meet on a busy host too
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"object")
"""
BY_HAND = Code("aerie.extensions.onhost.main", HOSTJOB.patterns)
FOLDER = "/var/lib/aerie-test/builds"
MAKE = f"""\
set -e
rm -rf {FOLDER}; mkdir -p {FOLDER}/cuda/bin {FOLDER}/env/bin {FOLDER}/env/torch
tar -xzC {FOLDER}
for one in {FOLDER}/cuda/bin/nvcc /usr/local/bin/g++; do install -m 755 {FOLDER}/compiler $one; done
cat >{FOLDER}/env/bin/python <<'END'
#!/bin/sh
test "$1" = -I && shift
PYTHONPATH={FOLDER}/env exec python3 "$@"
END
chmod 755 {FOLDER}/env/bin/python
touch {FOLDER}/env/torch/__init__.py
printf '__version__ = "2.11.0+cu130"\\ncuda = "13.0"\\n' >{FOLDER}/env/torch/version.py
"""


class Builds:
    """Builds of the small package on lab01."""

    def __init__(self, host: lab.LabHost, folder: Path) -> None:
        self.lab_host, self.folder = host, folder
        self.host = inventory.host(host.name, host.inventory)

    def run(self, *sizes_mb: int) -> Result:
        """Build files that take so much each, within 400 MB, where 150 MB are expected of each."""
        return Result.from_dict(BY_HAND.ask(self.host, self.prepare(*sizes_mb)))

    def prepare(self, *sizes_mb: int) -> list[str]:
        """Put all of it on the host; the arguments of a build by hand."""
        source = small.archive(self.folder, {f"{index}.cu": f"// {size}\n" for index, size in enumerate(sizes_mb)})
        request = Request(
            package="small", version="1.0", source=Source(path=Path(FOLDER, "source"), sha256=source.sha256),
            python=Path(FOLDER, "env/bin/python"), cuda_home=Path(FOLDER, "cuda"), architectures=("12.0",),
            jobs=4, nvcc_threads=1, budget_bytes=400 * MB, unit_bytes=150 * MB,
            work=Path(FOLDER, "work"), out=Path(FOLDER, "out"),
        )  # fmt: skip
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            files = {"compiler": COMPILER.encode(), "request.json": json.dumps(request.to_dict()).encode()}
            for name, content in {**files, "source": source.path.read_bytes()}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        done = self.lab_host.ssh(["sh", "-c", MAKE], stdin=packed.getvalue())
        assert done.returncode == 0, done.stderr
        return [f"{FOLDER}/request.json", f"{FOLDER}/job"]


@pytest.fixture
def builds(lab_host: lab.LabHost, tmp_path: Path) -> Builds:
    return Builds(lab_host, tmp_path)


def test_a_build_stays_within_the_limit_of_its_scope(builds: Builds, said: Said) -> None:
    result = builds.run(120, 120, 120, 120, 120)
    assert result.limited_by.endswith((".scope/memory.max", ".scope/memory.limit_in_bytes"))
    assert 200 * MB < result.peak_bytes <= 400 * MB
    assert (result.units_compiled, result.units_again) == (5, 0)
    assert result.held_back_s > 0.5
    assert said(builds.lab_host, "systemctl", "list-units", "--plain", "--no-legend", "aerie-build-*") == ""
    assert said(builds.lab_host, "sha256sum", str(result.wheel)).startswith(result.wheel_sha256)


def test_a_file_that_takes_more_than_was_measured_is_compiled_alone(builds: Builds) -> None:
    result = builds.run(250, 250)
    assert result.units_again >= 1
    assert result.units_compiled == 2


def test_a_file_that_exceeds_the_budget_ends_the_build_and_nothing_else(builds: Builds, said: Said) -> None:
    before = said(builds.lab_host, "systemctl", "show", "--property=MainPID", "ssh")
    error = builds.run(600).failure
    assert error is not None
    assert error.where == "memory"
    assert said(builds.lab_host, "systemctl", "show", "--property=MainPID", "ssh") == before
    assert said(builds.lab_host, "systemctl", "list-units", "--plain", "--no-legend", "aerie-build-*") == ""


def test_a_job_that_is_killed_takes_its_compilers_along(
    builds: Builds, said: Said, eventually: Callable[[str, Callable[[], bool]], None]
) -> None:
    builds.run(10)  # so that the code is there
    argv = [
        "python3",
        "-I",
        "-S",
        BY_HAND.folder,
        *builds.prepare(*[10] * 800),
    ]  # 100 s of compiling, where nobody ends it
    said(builds.lab_host, "systemd-run", "--collect", "--unit=aerie-test-job", *argv)

    def scopes() -> str:
        return said(builds.lab_host, "systemctl", "list-units", "--plain", "--no-legend", "aerie-build-*")

    eventually("the build has its scope", lambda: "running" in scopes())
    eventually("it compiles", lambda: builds.lab_host.ssh(["pgrep", "-f", "cuda/bin/nvcc"]).returncode == 0)
    said(builds.lab_host, "systemctl", "kill", "--signal=KILL", "aerie-test-job")
    eventually("its scope is gone", lambda: scopes() == "")
    assert builds.lab_host.ssh(["pgrep", "-f", "cuda/bin/nvcc"]).returncode == 1
