"""Python as the host has it, and the environments that aerie made."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import Any

from .machine import python_version
from .reading import join, names, program, reading, text

__all__ = ["environments", "python"]

FOLDER = "/opt/aerie/environments"


def python(root: str = "/") -> dict[str, Any]:
    """The snapshot's `python`."""
    version = _system(root)
    series = ".".join(version.split(".")[:2])
    # Debian and Ubuntu keep ensurepip back in a package of its own, and without it `python3 -m venv` fails.
    has_venv = os.path.isdir(join(root, f"/usr/lib/python{series}/ensurepip"))
    return {"system": version, "has_venv": has_venv, "environments": environments(root)}


def environments(root: str = "/") -> dict[str, dict[str, Any]]:
    """The snapshot's Environment of every one, by name."""
    folder = join(root, FOLDER)
    found = {}
    for name in names(folder):
        path = os.path.join(folder, name)
        if os.path.exists(os.path.join(path, "pyvenv.cfg")):
            found[name] = {
                "name": name,
                "path": f"{FOLDER}/{name}",
                "python": reading(_version, os.path.join(path, "pyvenv.cfg")),
                "requirements_sha256": reading(_sha256, os.path.join(path, "requirements.txt")),
            }
    return found


def _system(root: str) -> str:
    host = join(root, "/usr/bin/python3")
    if root != "/" or os.path.realpath(sys.executable or "") == os.path.realpath(host):
        return python_version()
    if not os.path.exists(host):
        return ""
    return str(program(host, "-I", "-c", "import platform; print(platform.python_version())").get().strip())


def _version(path: str) -> str:
    match = re.search(r"^version(?:_info)?\s*=\s*([\d.]+)", text(path), re.MULTILINE)
    if match is None:
        raise ValueError(f"{path}: no version")
    return match[1].rstrip(".")


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
