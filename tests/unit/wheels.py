"""Wheels of a few lines and their hash-locked requirement, so that real pip and real uv install them in a moment."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

DEVICE_CODE = Path(__file__).parent / "extensions" / "device_code"
TAG = "py3-none-any"


def make_wheel(folder: Path, name: str = "tinything", version: str = "1.0") -> str:
    """Write the wheel into `folder`; returns its line for a locked requirements file."""
    wheel = pack(folder, name, version, {f"{name}.py": f"version = {version!r}\n".encode()})
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def pack(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], *, requires: str = "", tag: str = TAG
) -> Path:
    """Write a wheel with these files into `folder`. requires: a line Requires-Dist."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    held = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in held.items())
    held[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in held.items():
            archive.writestr(zipfile.ZipInfo(path), data)  # no clock: the hash is the same each time
    return wheel


def cuda_wheel(
    folder: Path, library: str = "targets.fatbin", *, name: str = "tinycuda", version: str = "1.0",
    requires: str = "", local: str = "", broken: bool = False,
) -> Path:  # fmt: skip
    """A wheel with a recorded library (extensions/device_code). broken: it does not import; local: "+cu13torch2.14"."""
    code = (DEVICE_CODE / library).read_bytes()
    text = b"raise ImportError('undefined symbol: _ZN3c10')\n" if broken else b"is_loaded = True\n"
    files = {f"{name}/__init__.py": text, f"{name}/ops.so": code}
    return pack(folder, name, f"{version}{local}", files, requires=requires)


def torch_wheel(folder: Path, version: str = "2.14.1", cuda: str = "13.0") -> Path:
    """What an extension asks of torch, without torch: its version, its CUDA and its ABI."""
    local = f"{version}+cu{cuda.replace('.', '')}"
    files = {
        "torch/__init__.py": (
            "from . import version\n"
            f"__version__ = {local!r}\n"
            "def compiled_with_cxx11_abi():\n"
            "    return True\n"
        ).encode(),
        "torch/version.py": f"__version__ = {local!r}\ncuda: str = {cuda!r}\n".encode(),
    }  # fmt: skip
    return pack(folder, "torch", version, files)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# Compiles its only file by the compiler that the build names, as torch's own build does, and takes its device code from
# where it lies: a real one needs CUDA.
BACKEND = """\
import base64, hashlib, os, pathlib, subprocess, zipfile

def build_wheel(out, config_settings=None, metadata_directory=None):
    here = pathlib.Path.cwd()
    argv = [os.environ["PYTORCH_NVCC"], "-O2", "-c", str(here / "ops.cu"), "-o", str(here / "ops.o")]
    subprocess.run(argv, check=True)
    info = "tinybuilt-1.0.dist-info"
    held = {
        "tinybuilt/__init__.py": b"is_loaded = True\\n",
        "tinybuilt/ops.so": (here / "ops.fatbin").read_bytes(),
        info + "/METADATA": b"Metadata-Version: 2.1\\nName: tinybuilt\\nVersion: 1.0\\n",
        info + "/WHEEL": b"Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows = "".join(f"{path},sha256={digest(data)},{len(data)}\\n" for path, data in held.items())
    held[info + "/RECORD"] = (rows + info + "/RECORD,,\\n").encode()
    name = "tinybuilt-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(out, name), "w") as wheel:
        for path, data in held.items():
            wheel.writestr(path, data)
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "tiny_backend"\nbackend-path = ["."]\n'


def cuda_source(folder: Path, library: str = "targets.fatbin") -> Path:
    """A source distribution, tinybuilt 1.0, whose build compiles one file and gives a wheel with this device code."""
    files = {
        "pyproject.toml": PYPROJECT.encode(),
        "tiny_backend.py": BACKEND.encode(),
        "ops.cu": b"int answer() { return 42; }\n",
        "ops.fatbin": (DEVICE_CODE / library).read_bytes(),
    }
    path = folder / "tinybuilt-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"tinybuilt-1.0/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path
