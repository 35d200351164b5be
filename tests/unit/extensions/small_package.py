"""A package with four sources that builds in a second, and compilers for it that stand in for CUDA's on g++."""

import io
import os
import sys
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from aerie.extensions.onhost.request import Request, Source

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "small_backend"\nbackend-path = ["."]\n'
# Compiles as torch's own build does: by the compilers that the environment names, so many at a time, absolute paths.
BACKEND = """\
import concurrent.futures, os, pathlib, subprocess, sys, zipfile

def build_wheel(out, config_settings=None, metadata_directory=None):
    here = pathlib.Path.cwd()
    (here / "objects").mkdir()
    def compile(source):
        made = here / "objects" / (source.stem + ".o")
        argv = [os.environ["PYTORCH_NVCC"], "-O2", "-fPIC", f"-I{here}", "-c", str(source), "-o", str(made)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        sys.stdout.write(("FAILED: " if done.returncode else "") + source.name + "\\n" + done.stdout)
        sys.stdout.flush()
        done.check_returncode()
        return str(made)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ["MAX_JOBS"])) as pool:
        objects = list(pool.map(compile, sorted(here.glob("*.cu"))))
    subprocess.run([os.environ["CXX"], "-shared", *objects, "-o", "small.so"], check=True)
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(out, name), "w") as wheel:
        for member, text in (("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n"),
                             ("small/arch.txt", os.environ["TORCH_CUDA_ARCH_LIST"] + "\\n")):
            wheel.writestr(zipfile.ZipInfo(member), text)
        wheel.writestr(zipfile.ZipInfo("small/small.so"), pathlib.Path("small.so").read_bytes())
    return name
"""
# What nvcc says of itself and of a g++ that is too new is its own text (13.1.115). A line "// slow" takes two seconds.
NVCC = """\
#!/bin/sh
here=$(dirname "$0")
for one; do
    case $one in
        --version|-V) echo "Cuda compilation tools, release 13.1, V$(cat "$here/version")"; exit ;;
        *.cu) source=$one ;;
    esac
done
if [ -e "$here/refuses" ]; then
    echo "In file included from $here/../include/cuda_runtime.h:82," >&2
    echo "143:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not supported!" >&2
    exit 1
fi
for one; do
    shift
    case $one in
        -gencode*|-ccbin) ;;
        */g++|*/gcc) ;;
        *) set -- "$@" "$one" ;;
    esac
done
if [ -n "$source" ] && grep -q '^// slow' "$source"; then sleep 2; fi
exec g++ -x c++ -D__global__= "$@"
"""


def sources(**changed: str) -> dict[str, str]:
    """Four files to compile, or others in their place."""
    plain = {f"{name}.cu": f'#include "common.h"\nint {name}() {{ return COMMON; }}\n' for name in ("a", "b", "c", "d")}
    return {"common.h": "#define COMMON 7\n", **plain, **{f"{name}.cu": text for name, text in changed.items()}}


def archive(folder: Path, files: dict[str, str]) -> Source:
    """A source distribution of these files."""
    path = folder / "small-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"pyproject.toml": PYPROJECT, "small_backend.py": BACKEND, **files}.items():
            entry = tarfile.TarInfo(f"small-1.0/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return Source(path=path, sha256=sha256(path.read_bytes()).hexdigest())


def environment(folder: Path, *, torch: str = "2.11.0+cu130", cuda: str | None = "13.0") -> Path:
    """The Python of an environment whose torch says this of itself."""
    import venv

    venv.EnvBuilder(symlinks=True).create(folder)
    package = next(folder.glob("lib/python3*/site-packages")) / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported for its version')\n")
    (package / "version.py").write_text(
        f"from typing import Optional\n__version__ = {torch!r}\ncuda: Optional[str] = {cuda!r}\n"
    )
    return folder / "bin/python"


def cuda_home(folder: Path, *, version: str = "13.1.115", refuses_host_compiler: bool = False) -> Path:
    """A toolkit of this version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/version").write_text(version)
    (folder / "bin/nvcc").write_text(NVCC)
    (folder / "bin/nvcc").chmod(0o755)
    if refuses_host_compiler:
        (folder / "bin/refuses").touch()
    return folder


def request(folder: Path, files: dict[str, str] | None = None, **changed: object) -> Request:
    """A request to build it in this folder, with a cache in the same."""
    made = Request(
        package="small",
        version="1.0",
        source=archive(folder, sources() if files is None else files),
        python=environment(folder / "env"),
        cuda_home=cuda_home(folder / "cuda"),
        architectures=("12.0",),
        jobs=2,
        nvcc_threads=1,
        budget_bytes=1 << 30,
        unit_bytes=100 << 20,
        work=folder / "work",
        out=folder / "out",
        compiler_cache=folder / "cache",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def by_hand(request_file: Path, job: Path) -> list[str]:
    """What runs the build in a process of its own."""
    code = f"import sys; sys.path.insert(0, {os.getcwd()!r})\nfrom aerie.extensions.onhost.main import main\n"
    return [sys.executable, "-I", "-S", "-c", f"{code}sys.exit(main(sys.argv[1:]))", str(request_file), str(job)]
