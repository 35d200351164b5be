"""What roles/<layer>/meta/argument_specs.yml allows, checked without a play and strictly: "8" is no number."""

from functools import cache
from typing import Any

import yaml

from aerie.choice import nearest
from aerie.paths import repository
from aerie.runbook.yamlfile import Document, Keys

__all__ = ["check", "options"]

TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "path": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}


@cache
def options(layer: str) -> dict[str, dict[str, Any]]:
    """The public variables of a layer's role, of all its entry points; none where there is no such role yet."""
    file = repository() / "roles" / layer / "meta" / "argument_specs.yml"
    if not file.is_file():
        return {}
    entries = (yaml.safe_load(file.read_text()) or {}).get("argument_specs") or {}
    return {name: spec for entry in entries.values() for name, spec in (entry.get("options") or {}).items()}


def check(path: Keys, spec: dict[str, Any], value: Any, document: Document) -> None:
    """Add to the document's problems what the value at `path` has against the specification of an option."""
    wanted = str(spec.get("type", "str"))
    kinds = TYPES.get(wanted)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        document.problem(path, repr(value), wanted)
        return
    if "choices" in spec:
        unfit = [one for one in (value if isinstance(value, list) else [value]) if one not in spec["choices"]]
        if unfit:
            document.problem(path, repr(unfit[0]), f"one of {', '.join(map(str, spec['choices']))}")
    if isinstance(value, list) and "elements" in spec:
        element = {"type": spec["elements"], "options": spec.get("options")}
        for index, item in enumerate(value):
            check((*path, index), element, item, document)
    elif isinstance(value, dict) and spec.get("options"):
        _check_table(path, spec["options"], value, document)


def _check_table(path: Keys, known: dict[str, dict[str, Any]], value: dict[str, Any], document: Document) -> None:
    for key, inner in value.items():
        if key in known:
            check((*path, key), known[key], inner, document)
        else:
            document.problem((*path, key), "an unknown key", f"one of {', '.join(known)}", nearest(key, known))
    for key, spec in known.items():
        if spec.get("required") and key not in value:
            document.problem((*path, key), "nothing", "a value", "The key is required.")
