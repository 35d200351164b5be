"""The probe as one script for a bare `python3 -I -`: made on the controller, never sent itself."""

import base64
import json
import zlib
from functools import cache
from pathlib import Path

import pynvml

__all__ = ["script"]

FOLDER = Path(__file__).resolve().parent

# Modules come as source: compiled code would fit one version of Python only.
LOADER = """\
import base64, importlib.abc, importlib.util, json, sys, zlib
SOURCES = json.loads(zlib.decompress(base64.b85decode("{sources}")))
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name in ("aerie", "aerie.probe"))
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], "<aerie: " + module.__name__ + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
from aerie.probe.main import main
main()
"""


@cache
def script() -> bytes:
    """The script, some 90 kB. It takes PATH and the session's limits as arguments and prints one JSON document."""
    files = {
        f"aerie.probe.{path.stem}": path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "bundle")
    }
    files |= {"aerie.probe": FOLDER / "__init__.py", "pynvml": Path(pynvml.__file__)}
    sources = {name: path.read_text() for name, path in sorted(files.items())} | {"aerie": ""}
    packed = base64.b85encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()
    return LOADER.format(sources=packed).encode()
