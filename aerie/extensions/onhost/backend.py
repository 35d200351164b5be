"""Asks a package's own build backend for its wheel: python backend.py OUT, in the source's folder (PEP 517).

Run by the Python that the wheel is for, which needs neither pip nor this package; what the backend imports must be
installed there, as for `pip wheel --no-build-isolation`. Its last line of output is the wheel's name.
"""

import importlib
import sys
import tomllib
from pathlib import Path

LEGACY = "setuptools.build_meta:__legacy__"  # what PEP 517 says for a source without a word on it


def main(out: str) -> None:
    """Writes the wheel to `out`."""
    file = Path("pyproject.toml")
    told = tomllib.loads(file.read_text()).get("build-system", {}) if file.exists() else {}
    sys.path[:0] = [str(Path(one).resolve()) for one in told.get("backend-path", [])]
    module, _, attributes = told.get("build-backend", LEGACY).partition(":")
    backend = importlib.import_module(module)
    for attribute in attributes.split(".") if attributes else ():
        backend = getattr(backend, attribute)
    sys.stdout.flush()
    name = backend.build_wheel(out)
    sys.stdout.write(f"\n{name}\n")


if __name__ == "__main__":
    main(sys.argv[1])
