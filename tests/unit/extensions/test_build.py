"""A build from its request to its result, with a real g++, ccache and control group under stand-ins of CUDA."""

import json
import os
import shutil
import signal
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.extensions.onhost.build import build
from aerie.extensions.onhost.request import Patch, Request, Result
from tests.unit.extensions import small_package as small
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("ccache") is None, reason="needs g++ and ccache"
)


def run(request: Request) -> Result:
    job = request.work.parent / "job"
    job.mkdir(parents=True, exist_ok=True)
    result = build(request, job)
    assert Result.parse((job / "outcome.json").read_text()) == result
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Result]:
    request = small.request(tmp_path_factory.mktemp("built"))
    return request, run(request)


def test_a_wheel_comes_of_it(built: tuple[Request, Result]) -> None:
    request, result = built
    assert result.error is None
    assert result.wheel == request.out / "small-1.0-py3-none-any.whl"
    assert (result.units_compiled, result.units_cached) == (4, 0)
    assert result.device_code == {"small/small.so": ()}
    with zipfile.ZipFile(result.wheel) as wheel:
        assert wheel.read("small/arch.txt") == b"12.0\n"
    assert result.cpu_s > 0
    assert 0 < result.peak_bytes <= request.budget_bytes
    assert sorted(path.name for path in request.work.iterdir()) == ["build.log", "tools"]


def test_the_limit_is_the_kernels(built: tuple[Request, Result]) -> None:
    _, result = built
    if os.geteuid() != 0:
        pytest.skip("only root may make a control group here")
    assert result.limited_by.endswith(("memory.limit_in_bytes", "memory.max"))
    assert not Path(result.limited_by).exists(), "the group is left behind"
    assert [note for note in result.notes if "limit" in note] == []


def test_the_second_build_comes_from_the_cache_in_another_folder_too(
    built: tuple[Request, Result], tmp_path: Path
) -> None:
    request, first = built
    again = run(replace(request, work=tmp_path / "elsewhere/work", out=tmp_path / "elsewhere/out"))
    assert (again.units_compiled, again.units_cached) == (0, 4)
    assert again.wheel_sha256 == first.wheel_sha256


def test_another_compiler_gets_nothing_from_the_cache(built: tuple[Request, Result], tmp_path: Path) -> None:
    request, _ = built
    other = small.cuda_home(tmp_path / "cuda")
    (other / "bin/nvcc").write_text(small.NVCC + "# another one\n")
    again = run(replace(request, cuda_home=other, work=tmp_path / "work", out=tmp_path / "out"))
    assert (again.units_compiled, again.units_cached) == (4, 0)


def test_a_poisoned_cache_is_found_out_and_compiled_anew(tmp_path: Path) -> None:
    request = small.request(tmp_path)
    first = run(request)
    entries = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name[-1] in "RM"]
    results = [path for path in entries if path.name.endswith("R")]
    assert results
    for path in results:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.chmod(0o644)
        path.write_bytes(content)
    again = run(request)
    assert (again.units_compiled, again.units_cached) == (4, 0)
    assert again.wheel_sha256 == first.wheel_sha256


def test_a_build_that_was_killed_goes_on_from_the_cache(tmp_path: Path) -> None:
    slow = "// slow\nint d() { return 4; }\n"
    request = small.request(tmp_path, small.sources(d=slow), jobs=1)
    (tmp_path / "request.json").write_text(json.dumps(request.to_dict()))
    running = subprocess.Popen(small.by_hand(tmp_path / "request.json", tmp_path / "job"))
    units = request.work / "tools/gate/units.jsonl"
    until("three compiled files", lambda: units.exists() and len(units.read_text().splitlines()) >= 3)
    running.kill()
    running.wait()
    result = run(request)
    assert result.error is None
    assert result.units_compiled + result.units_cached == 4
    assert result.units_cached >= 2  # of three that were compiled; the last may have been on its way into the cache


def test_a_stop_leaves_no_group_and_no_compiler(tmp_path: Path) -> None:
    request = small.request(tmp_path, small.sources(a="// slow\nint a() { return 4; }\n"), compiler_cache=None)
    (tmp_path / "request.json").write_text(json.dumps(request.to_dict()))
    running = subprocess.Popen(small.by_hand(tmp_path / "request.json", tmp_path / "job"))
    gate = request.work / "tools/gate/gate.json"
    until("a build with a gate", lambda: gate.exists() and gate.read_text())
    group = json.loads(gate.read_text())["group"]
    running.terminate()
    assert running.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not group or not Path(group).exists()


@pytest.mark.parametrize(
    ("change", "where", "seen"),
    [
        ({"cuda_home": "none"}, "none/bin/nvcc", "no such program"),
        ({"cuda_home": "twelve"}, "twelve/bin/nvcc", "CUDA 12.9.86"),
        ({"cuda_home": "strict"}, "g++", "g++"),
        ({"python": "cpu/bin/python"}, "cpu/bin/python", "torch 2.13.0+cpu without CUDA"),
    ],
    ids=["no-nvcc", "another-major", "host-compiler-too-new", "torch-without-cuda"],
)
def test_compilers_that_do_not_fit_are_refused_before_anything_is_compiled(
    tmp_path: Path, change: dict[str, str], where: str, seen: str
) -> None:
    request = small.request(tmp_path)
    small.cuda_home(tmp_path / "twelve", version="12.9.86")
    small.cuda_home(tmp_path / "strict", refuses_host_compiler=True)
    small.environment(tmp_path / "cpu", torch="2.13.0+cpu", cuda=None)
    error = run(replace(request, **{key: tmp_path / value for key, value in change.items()})).failure  # type: ignore[arg-type]
    assert error is not None
    assert error.where.endswith(where)
    assert seen in str(error.seen)
    assert not (request.work / "build.log").exists()


def test_a_host_compiler_that_is_too_new_is_told_the_newest_allowed(tmp_path: Path) -> None:
    request = small.request(tmp_path, cuda_home=small.cuda_home(tmp_path / "strict", refuses_host_compiler=True))
    error = run(request).failure
    assert error is not None
    assert error.expected == "g++ 15 or older"


def test_the_first_compile_error_is_told_with_its_file(tmp_path: Path) -> None:
    wrong = small.sources(b="int b() { return nothing; }\n", d="int d() { return neither; }\n")
    result = run(small.request(tmp_path, wrong, jobs=1))
    assert result.wheel is None
    assert result.failure is not None
    assert result.failure.where.endswith("b.cu:1")
    assert "nothing" in str(result.failure.seen)


def test_another_source_is_refused(tmp_path: Path) -> None:
    request = small.request(tmp_path)
    with open(request.source.path, "ab") as file:
        file.write(b"x")
    error = run(request).failure
    assert error is not None
    assert error.expected == request.source.sha256
    assert not (request.work / "src").exists()


def test_patches_are_applied(tmp_path: Path) -> None:
    text = "--- a/common.h\n+++ b/common.h\n@@ -1 +1 @@\n-#define COMMON 7\n+#define COMMON undefined_name\n"
    error = run(small.request(tmp_path, patches=(Patch(name="break.patch", text=text),), jobs=1)).failure
    assert error is not None
    assert "undefined_name" in str(error.seen)


def test_a_patch_for_another_source_ends_the_build_before_it_compiles(tmp_path: Path) -> None:
    text = "--- a/common.h\n+++ b/common.h\n@@ -1 +1 @@\n-#define COMMON 8\n+#define COMMON 9\n"
    error = run(small.request(tmp_path, patches=(Patch(name="old.patch", text=text),))).failure
    assert error is not None
    assert error.where == "patch old.patch"
    assert error.seen == "common.h:1: #define COMMON 7"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    big = f"const char a[] = {{{','.join(['1'] * 10)}}};\nchar more[4 << 20] = {{1}};\nint a_() {{ return 1; }}\n"
    request = small.request(tmp_path, small.sources(a=big), compiler_cache=None)
    (tmp_path / "request.json").write_text(json.dumps(request.to_dict()))
    request.work.mkdir()
    mount = f'mount -t tmpfs -o size=2m small {request.work} && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", mount, "sh", *small.by_hand(tmp_path / "request.json", tmp_path / "job")]
    subprocess.run(argv, check=False)
    error = Result.parse((tmp_path / "job/outcome.json").read_text()).failure
    assert error is not None
    assert "No space left on device" in str(error.seen)
    assert "Free some" in error.remedy


@pytest.mark.parametrize("has_ninja", [True, False])
def test_files_that_may_be_compiled_one_by_one_are_told(tmp_path: Path, has_ninja: bool) -> None:
    request = small.request(tmp_path)
    ninja = request.python.parent / "ninja"
    if has_ninja:
        ninja.symlink_to("/bin/true")
    elif shutil.which("ninja"):
        pytest.skip("ninja is on PATH here, so every environment has it")
    assert any("ninja" in note for note in run(request).notes) is not has_ninja
