"""CUDA toolkits, and what a shell and the dynamic linker find of them."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

from .reading import Later, ProgramFailed, join, optional, program, reading

__all__ = ["compat", "cuda", "toolkits"]

RELEASE = re.compile(r", V(\d+(?:\.\d+)+)")


def cuda(path: str, linker: Later, root: str = "/") -> dict[str, Any]:
    """The snapshot's `cuda`. path: PATH of a non-login shell of the host's user; linker: `ldconfig -p`."""
    link = join(root, "/usr/local/cuda")
    return {
        "toolkits": toolkits(root),
        "default_path": "/" + os.path.relpath(os.path.realpath(link), root) if os.path.exists(link) else None,
        "nvcc_in_path": _which("nvcc", path),
        "compat_in_ld_path": reading(lambda: compat(linker.get())),
    }


def toolkits(root: str = "/") -> list[dict[str, Any]]:
    """The snapshot's Toolkit of every one under /usr/local and /opt."""
    paths = glob.glob(join(root, "/usr/local/cuda-*")) + glob.glob(join(root, "/opt/cuda-*"))
    # cuda-13 is a link of update-alternatives to one of them.
    folders = sorted(path for path in paths if os.path.isdir(path) and not os.path.islink(path))
    compilers = {folder: os.path.join(folder, "bin", "nvcc") for folder in folders}
    asked = {folder: program(nvcc, "--version") for folder, nvcc in compilers.items() if os.path.exists(nvcc)}
    return [
        {
            "path": "/" + os.path.relpath(folder, root),
            "version": _version(optional(os.path.join(folder, "version.json"))),
            "nvcc": _release(asked[folder]) if folder in asked else None,
        }
        for folder in folders
    ]


def compat(listing: str) -> str | None:
    """The forward-compatibility libcuda in `ldconfig -p`; None where the driver's own is what programs get."""
    paths = [line.rpartition(" => ")[2].strip() for line in listing.splitlines() if "libcuda.so.1 " in line]
    return next((path for path in paths if "/compat/" in path), None)


def _which(program_name: str, path: str) -> str | None:
    files = (os.path.join(folder, program_name) for folder in path.split(":") if folder)
    return next((file for file in files if os.path.isfile(file) and os.access(file, os.X_OK)), None)


def _version(document: str | None) -> str | None:
    try:
        return str(json.loads(document or "")["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _release(said: Later) -> str | None:
    try:
        match = RELEASE.search(said.get())
    except (ProgramFailed, TimeoutError, OSError):
        return None  # a compiler that does not start is none
    return match[1] if match else None
