"""The probe as one script for a bare `python3 -I -S -`: made on the controller, never sent itself."""

import base64
import hashlib
import importlib.util
import itertools
import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.paths import cache_dir
from aerie.runbook.step import write_atomic

if TYPE_CHECKING:
    import ast

__all__ = ["script", "trimmed"]

FOLDER = Path(__file__).resolve().parent
TYPING = re.compile(r"^from typing import .*\n", re.MULTILINE)
NVML_NAME = re.compile(r"\bpynvml\.(\w+)")

# Modules come as source: compiled code would fit one version of Python only. What is imported here and in the modules
# is chosen for its time too: base85 takes 20 ms to decode, importlib.util and shutil 5 ms each to import.
LOADER = """\
import sys
if sys.version_info < (3, 9):
    sys.exit("python3 on the host is " + sys.version.split()[0] + "; the probe needs 3.9")
import binascii, importlib.machinery, json, zlib
SOURCES = json.loads(zlib.decompress(binascii.a2b_base64("{sources}")))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in ("aerie", "aerie.probe"))
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
    """The script, some 40 kB. It takes PATH and the session's limits as arguments and prints one JSON document.

    Trimming pynvml takes a fifth of a second, so the script is kept in the user's cache, by the hash of its sources.
    """
    files = {
        f"aerie.probe.{path.stem}": path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "bundle")
    }
    # Types are for readers: nothing evaluates them there, and importing `typing` takes 5 ms.
    sources = {name: TYPING.sub("", path.read_text()) for name, path in sorted(files.items())}
    sources |= {"aerie": "", "aerie.probe": (FOLDER / "__init__.py").read_text()}
    library = _pynvml()
    kept = cache_dir() / "probe" / f"{_digest(json.dumps(sources), library, Path(__file__).read_text())}.py"
    try:
        return kept.read_bytes()
    except OSError:
        pass  # not made yet, or no home to keep it in
    sources["pynvml"] = trimmed(library, set(NVML_NAME.findall(sources["aerie.probe.nvml"])))
    packed = base64.b64encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()
    made = LOADER.replace("{sources}", packed).encode()
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(kept, made)
    except OSError:
        pass
    return made


def _pynvml() -> str:
    # Read, not imported: importing it takes 50 ms, and nothing here runs it.
    found = importlib.util.find_spec("pynvml")
    assert found is not None and found.origin is not None, "pynvml is in requirements/controller.txt"
    return Path(found.origin).read_text()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def trimmed(source: str, wanted: set[str]) -> str:
    """The module with what `wanted` needs and no more, its licence at the head.

    The host compiles it at every probe: 0.15 s for the whole of pynvml, a tenth of that for the part in use.
    """
    import ast

    statements = ast.parse(source).body
    defined = {name: number for number, statement in enumerate(statements) for name in _defines(statement)}
    # Imports and calls are kept: one makes an exception's class of every NVML_ERROR_… that the module has.
    kept = {number for number, statement in enumerate(statements) if not _defines(statement)}
    kept |= {number for name, number in defined.items() if name.startswith("NVML_ERROR_")}
    open_names = set(wanted) | {name for number in kept for name in _uses(statements[number])}
    while open_names:
        more = {defined[name] for name in open_names if name in defined} - kept
        kept |= more
        open_names = {name for number in more for name in _uses(statements[number])}
    licence = "".join(itertools.takewhile(lambda line: line.startswith("#"), source.splitlines(keepends=True)))
    return licence + ast.unparse(ast.Module(body=[statements[number] for number in sorted(kept)], type_ignores=[]))


def _defines(statement: "ast.stmt") -> list[str]:
    import ast

    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _uses(statement: "ast.stmt") -> set[str]:
    import ast

    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
