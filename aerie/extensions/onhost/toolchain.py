"""The compilers of a build, checked before it starts, and the variables by which a package's own build finds them."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.errors import AerieError
from aerie.extensions.onhost import gate
from aerie.extensions.onhost.enclosure import Enclosure
from aerie.extensions.onhost.request import Request

__all__ = ["Toolchain", "check", "variables"]

TIMEOUT_S: Final = 120
# torch's own, read without importing it, which would take seconds and hundreds of MB.
READ_TORCH: Final = """\
import importlib.util, json, pathlib, runpy
found = importlib.util.find_spec("torch")
said = runpy.run_path(str(pathlib.Path(found.origin).with_name("version.py"))) if found else {}
print(json.dumps([said.get("__version__", ""), said.get("cuda") or ""]))
"""
TRIAL: Final = "__global__ void trial(float *x) { *x = 1; }\n"
# What a package reads its architectures from, where that is not torch's variable; its own documentation says so. Of
# the names that no option may have (request.py).
ARCHITECTURES: Final = {"flash-attn": ("FLASH_ATTN_CUDA_ARCHS", ";")}
PARTS: Final = ("bin/nvcc", "bin/ptxas", "bin/fatbinary", "bin/cudafe++", "nvvm/bin/cicc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """nvcc: "13.1.115"; torch: "2.11.0+cu130"; host_compiler: a path, with host_version, the first line that it says.

    identity: sha256 of what compiles, so that a cache never mixes what two compilers made.
    ccache: a path, None where no cache is asked for.
    """

    nvcc: str
    torch: str
    host_compiler: str
    host_version: str
    identity: str
    ccache: str | None


def check(request: Request) -> Toolchain:
    """The compilers of this request. Raises AerieError for what would end the build, or what it builds, later."""
    nvcc = _nvcc(request.cuda_home)
    torch, cuda = _torch(request.python)
    if nvcc.split(".")[0] != cuda.split(".")[0]:
        raise AerieError(
            str(request.cuda_home / "bin/nvcc"), seen=f"CUDA {nvcc}", expected=f"major version of torch's CUDA, {cuda}",
            remedy=f"Build with a toolkit of CUDA {cuda.split('.')[0]}, or for an environment with another torch.",
        )  # fmt: skip
    host_compiler = _found("g++", "the host compiler of nvcc", "Install it: apt-get install g++")
    host_version = _run([host_compiler, "--version"]).stdout.splitlines()[0]
    _try(request, host_compiler, host_version)
    return Toolchain(
        nvcc=nvcc,
        torch=torch,
        host_compiler=host_compiler,
        host_version=host_version,
        identity=_identity(request.cuda_home, host_version),
        ccache=_found("ccache", "the compiler cache that is asked for", "Install it: apt-get install ccache")
        if request.compiler_cache
        else None,
    )


def variables(request: Request, toolchain: Toolchain, enclosure: Enclosure, tools: Path) -> dict[str, str]:
    """The environment of the build. tools: an empty folder, which gets what stands in front of compilers."""
    numbers = [one.replace(".", "") for one in request.architectures]
    own, separator = ARCHITECTURES.get(request.package, ("", ""))
    home = request.cuda_home
    found = {
        "PATH": os.pathsep.join([str(request.python.parent), str(home / "bin"), os.environ.get("PATH", os.defpath)]),
        "HOME": os.environ.get("HOME", "/root"),
        "LC_ALL": "C.UTF-8",  # messages are read here
        "TMPDIR": str(request.work / "tmp"),
        "CUDA_HOME": str(home),
        "CUDA_PATH": str(home),
        # Since CUDA 13 these headers are in a folder of their own. nvcc looks there, the host's compiler does not.
        "CPLUS_INCLUDE_PATH": str(home / "include/cccl"),
        "LIBRARY_PATH": f"{home / 'lib64'}{os.pathsep}{home / 'lib64/stubs'}",
        "TORCH_CUDA_ARCH_LIST": ";".join(request.architectures),
        "MAX_JOBS": str(request.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(request.jobs),
        "NVCC_THREADS": str(request.nvcc_threads),
        **_in_front(request, toolchain, enclosure, tools),
        **request.options,
    }
    if own:
        found[own] = separator.join(numbers)
    return found


def _in_front(request: Request, toolchain: Toolchain, enclosure: Enclosure, tools: Path) -> dict[str, str]:
    """Scripts that a build takes for its compilers: the cache first, then the gate, for what the cache has not."""
    state = tools / "gate"
    (state / "permits").mkdir(parents=True)
    group = enclosure.group
    told = {
        "budget_bytes": request.budget_bytes,
        "unit_bytes": request.unit_bytes or request.budget_bytes // request.jobs,
        "group": str(group.folder) if group else "",
        "is_unified": bool(group and group.is_unified),
        "pressure": enclosure.pressure,
    }
    (state / "gate.json").write_text(json.dumps(told))
    gated = _script(tools / "gated", [sys.executable, "-I", "-S", gate.__file__])
    first = [toolchain.ccache] if toolchain.ccache else [str(gated)]
    nvcc = _script(tools / "nvcc", [*first, str(request.cuda_home / "bin/nvcc")])
    cxx = _script(tools / "g++", [*first, toolchain.host_compiler])
    launcher = _script(tools / "launch", first)
    found = {"AERIE_GATE": str(state), "PYTORCH_NVCC": str(nvcc), "CXX": str(cxx)}
    found |= {f"CMAKE_{language}_COMPILER_LAUNCHER": str(launcher) for language in ("CUDA", "CXX")}
    if toolchain.ccache:
        found |= {
            "CCACHE_DIR": str(request.compiler_cache),
            "CCACHE_PREFIX": str(gated),
            "CCACHE_COMPILERCHECK": f"string:{toolchain.identity}",
            # Another build has another folder: paths below it count from it, and the folder itself does not count.
            "CCACHE_BASEDIR": str(request.work),
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_SLOPPINESS": "include_file_mtime,include_file_ctime,time_macros",
            "CCACHE_STATSLOG": str(tools / "cache.log"),
        }
    return found


def _script(path: Path, argv: Sequence[str]) -> Path:
    quoted = " ".join("'" + one.replace("'", "'\\''") + "'" for one in argv)
    path.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    path.chmod(0o755)
    return path


def _nvcc(cuda_home: Path) -> str:
    nvcc = cuda_home / "bin/nvcc"
    if not os.access(nvcc, os.X_OK):
        raise AerieError(
            str(nvcc), seen="no such program", expected="the compiler of CUDA",
            remedy="Install the host's CUDA: ./invoke provision --host H --layer cuda",
        )  # fmt: skip
    said = _run([str(nvcc), "--version"])
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
    if version is None:
        raise AerieError(
            str(nvcc), seen=(said.stdout + said.stderr).strip()[-300:], expected="a version such as V13.1.115",
            remedy="Install the host's CUDA again.",
        )  # fmt: skip
    return version[1]


def _torch(python: Path) -> tuple[str, str]:
    """(version, its CUDA) of the environment's torch."""
    try:
        said = _run([str(python), "-I", "-c", READ_TORCH])
        torch, cuda = json.loads(said.stdout)
    except (OSError, ValueError) as error:
        raise AerieError(
            str(python), seen=str(error), expected="the Python of an environment with torch",
            remedy="Make the environment: ./invoke provision --host H --layer python",
        ) from error  # fmt: skip
    if not cuda:
        raise AerieError(
            str(python), seen=f"torch {torch} without CUDA" if torch else "no torch", expected="torch with CUDA",
            remedy="Lock a CUDA build of torch for this environment.",
        )  # fmt: skip
    return torch, cuda


def _try(request: Request, host_compiler: str, host_version: str) -> None:
    """Compile a line: nvcc itself knows best which host compilers and architectures it takes."""
    folder = request.work / "trial"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.cu").write_text(TRIAL)
    codes = [
        f"-gencode=arch=compute_{one},code=sm_{one}" for one in (a.replace(".", "") for a in request.architectures)
    ]
    nvcc = str(request.cuda_home / "bin/nvcc")
    said = _run([nvcc, "-ccbin", host_compiler, *codes, "-c", "trial.cu", "-o", "trial.o"], cwd=folder)
    shutil.rmtree(folder)
    if said.returncode == 0:
        return
    text = said.stdout + said.stderr
    if "unsupported GNU version" in text or "unsupported host compiler" in text.lower():
        allowed = re.search(r"gcc versions later than (\d+)", text)
        taken = f"g++ {allowed[1]} or older" if allowed else "one that nvcc takes"
        raise AerieError(
            host_compiler, seen=host_version, expected=taken,
            remedy="Install an older g++ and let /usr/bin/g++ be it.",
        )  # fmt: skip
    lines = [line for line in text.splitlines() if "error" in line or "fatal" in line] or text.splitlines()
    raise AerieError(
        nvcc, seen=lines[0][:300] if lines else f"exit {said.returncode}",
        expected=f"a compiler that works for {', '.join(request.architectures)}",
        remedy=f"Try it: {nvcc} {' '.join(codes)} -c a.cu",
    )  # fmt: skip


def _identity(cuda_home: Path, host_version: str) -> str:
    digest = hashlib.sha256(host_version.encode())
    for part in PARTS:
        if (path := cuda_home / part).exists():
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _found(program: str, what: str, remedy: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise AerieError(program, seen="not on PATH", expected=what, remedy=remedy)
    return path


def _run(argv: Sequence[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        argv, cwd=cwd, env=environment, check=False, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
    )
