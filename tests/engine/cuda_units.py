"""Real compiling units of flash-attn with the headers of a CUDA torch: what compiling them needs, and no more.

A whole torch with CUDA takes 5.5 GB; its headers 40 MB. Both files are locked by hash, and what is taken from them is
kept in the user's cache under it.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from hashlib import sha256
from pathlib import Path

from aerie.extensions.onhost.request import Patch, Source
from aerie.extensions.onhost.source import apply, unpack
from aerie.paths import cache_dir, repository

TORCH, TORCH_SHA256 = "2.14.1", "305a61f61f35f128579f299c5bd33d475f6a01c6307336139632e30856c4854d"  # CPython 3.11
FLASH, FLASH_SHA256 = "2.8.3.post2", "d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b"
PATCHES = repository() / "roles/extensions/files/patches/flash-attn" / FLASH
# One of each kind. The head size changes neither what they are made of nor, much, what memory they take.
UNITS = (
    "flash_bwd_hdim32_bf16_causal_sm80",
    "flash_fwd_hdim32_bf16_causal_sm80",
    "flash_fwd_split_hdim32_bf16_causal_sm80",
)
# The package's own switches for what a library can do without. They halve the time, and not the memory.
SWITCHES = tuple(f"-DFLASHATTENTION_DISABLE_{name}" for name in ("DROPOUT", "ALIBI", "SOFTCAP", "LOCAL", "UNEVEN_K"))
# pip asks a source for its metadata before it hands it over, and setup.py imports these for that.
ASKED_FOR = {
    "torch/__init__.py": f"__version__ = {TORCH!r}\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "from setuptools.command.build_ext import build_ext as BuildExtension\n"
    "CppExtension = CUDAExtension = CUDA_HOME = ROCM_HOME = None\nIS_HIP_EXTENSION = False\n",
    "wheel/__init__.py": "",
    "wheel/bdist_wheel.py": "from setuptools import Command as bdist_wheel\n",
}
# As torch's BuildExtension calls nvcc for such a file; -std, -O and what else matters are the package's own flags.
BACKEND = """\
import concurrent.futures, json, os, pathlib, subprocess, zipfile

def build_wheel(out, config_settings=None, metadata_directory=None):
    told = json.loads(pathlib.Path("units.json").read_text())
    def compile(unit):
        argv = [os.environ["PYTORCH_NVCC"], *told["flags"], "-c", f"csrc/flash_attn/src/{unit}.cu", "-o", f"{unit}.o"]
        subprocess.run(argv, check=True)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ["MAX_JOBS"])) as pool:
        list(pool.map(compile, told["units"]))
    name = "units-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(out, name), "w") as wheel:
        for unit in told["units"]:
            wheel.write(f"{unit}.o")
    return name
"""


def environment(folder: Path) -> Path:
    """The Python of an environment with torch's version and headers, and nothing of torch that could be imported."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (next(folder.glob("lib/python3*/site-packages")) / "torch").symlink_to(_headers() / "torch")
    return folder / "bin/python"


def source(folder: Path, python: Path, units: tuple[str, ...] = UNITS) -> Source:
    """An archive of flash-attn's kernels, patched as the lock says, that builds these units to objects.

    The flags are those of its setup.py, and SWITCHES, which stand there as comments to be switched on.
    """
    patched = unpack(Source(path=_sdist(), sha256=FLASH_SHA256), folder / "unpacked")
    for path in sorted(PATCHES.glob("*.patch")):
        apply(Patch(name=path.name, text=path.read_text()), patched)
    torch = next(python.parent.parent.glob("lib/python3*/site-packages/torch")).resolve()
    includes = ["csrc/flash_attn", "csrc/flash_attn/src", "csrc/cutlass/include"]
    includes += [str(torch / "include"), str(torch / "include/torch/csrc/api/include"), sysconfig.get_path("include")]
    setup = (patched / "setup.py").read_text()
    assert [one for one in SWITCHES if f'# "{one}"' not in setup] == []
    flags = [*(f"-I{one}" for one in includes), "--compiler-options", "'-fPIC'", *_flags(setup), *SWITCHES]
    flags += ["-gencode", "arch=compute_120,code=sm_120", "--threads", "1"]
    (patched / "units.json").write_text(json.dumps({"flags": flags, "units": units}))
    (patched / "units_backend.py").write_text(BACKEND)
    (patched / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "units_backend"\nbackend-path = ["."]\n'
    )
    packed = folder / "units.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
        for name in ("units.json", "units_backend.py", "pyproject.toml", "csrc/flash_attn", "csrc/cutlass/include"):
            tar.add(patched / name, f"units/{name}")
    return Source(path=packed, sha256=sha256(packed.read_bytes()).hexdigest())


def _flags(setup: str) -> list[str]:
    """nvcc_flags of the first branch, for CUDA, as they are with this torch."""
    lists = [
        node for node in ast.walk(ast.parse(setup)) if isinstance(node, ast.Assign) and _name(node) == "nvcc_flags"
    ]
    standard = "-std=c++20"  # what the patch chooses for TORCH
    return [standard if isinstance(one, ast.Name) else ast.literal_eval(one) for one in lists[0].value.elts]


def _name(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


def _headers() -> Path:
    folder = cache_dir() / "headers" / f"torch-{TORCH_SHA256[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as scratch:
            wheel = _download(Path(scratch), f"torch=={TORCH}", TORCH_SHA256, ["--only-binary", ":all:"])
            with zipfile.ZipFile(wheel) as archive:
                wanted = ("torch/include/", "torch/version.py", "torch/__init__.py")
                names = [name for name in archive.namelist() if name.startswith(wanted)]
                archive.extractall(Path(scratch, "made"), names)
            os.rename(Path(scratch, "made"), folder)
    return folder


def _sdist() -> Path:
    file = cache_dir() / "sources" / f"flash-attn-{FLASH_SHA256[:12]}.tar.gz"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=_made(file.parent)) as scratch:
            for name, text in ASKED_FOR.items():
                path = Path(scratch, "asked", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            options = ["--no-binary", ":all:", "--no-build-isolation"]
            shutil.move(_download(Path(scratch), f"flash-attn=={FLASH}", FLASH_SHA256, options), file)
    return file


def _download(scratch: Path, requirement: str, digest: str, options: list[str]) -> Path:
    (scratch / "requirements.txt").write_text(f"{requirement} --hash=sha256:{digest}\n")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--no-cache-dir"]
    argv += [*options, "--dest", str(scratch / "got"), "--requirement", str(scratch / "requirements.txt")]
    variables = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "PYTHONPATH": str(scratch / "asked")}
    done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = (scratch / "got").iterdir()
    return file


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
