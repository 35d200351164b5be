"""A runbook's README, made from the runbook, the steps' own `doc` and the profile's model: never written by hand."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from aerie.runbook.spec import Loaded, Step, module, values_of

__all__ = ["path", "readme"]

Schema = Mapping[str, Any]


def readme(loaded: Loaded) -> str:
    """The README's text for one runbook with one profile's numbers; the same input gives the same bytes."""
    runbook = loaded.runbook
    schema = type(loaded.values).model_json_schema(by_alias=True)
    lines = [
        f"<!-- Made by `./invoke docs` from runbook.yml, the steps' code and profile {loaded.profile}: edit those. -->",
        f"# {runbook.name}: {runbook.title}",
        "",
        "```",
        f"./invoke runbook {runbook.name}            # run it, or go on with it; results that still hold are reused",
        f"./invoke runbook {runbook.name} --plan     # what would run and why; changes nothing",
        "./invoke report latest             # the numbers and the decision of the newest run",
        "```",
        "",
        f"Profiles: {', '.join(_profiles(loaded))}; {runbook.default_profile} unless `--profile` says otherwise. "
        f"The numbers below are those of {loaded.profile}.",
        "",
        "Every step leaves `evidence.json` (plain JSON, hashed) and its files in `out/`, in its own folder of the run.",
        "A gate reads evidence only: the run goes on, or stops until someone approves with a reason or the result is",
        "another one.",
        "",
        "## The order",
        "",
        "| | step | what | needs | gate |",
        "|---|---|---|---|---|",
    ]
    for number, step in enumerate(runbook.steps, 1):
        gate = "yes" if hasattr(module(step), "gate") else "–"
        lines.append(f"| {number} | [{step.id}](#{step.id}) | {step.title} | {', '.join(step.needs) or '–'} | {gate} |")
    for step in runbook.steps:
        lines += ["", *_section(step, loaded, schema)]
    return "\n".join(lines) + "\n"


def path(loaded: Loaded) -> Path:
    """Where the README lies."""
    return loaded.directory / loaded.runbook.name / "README.md"


def _section(step: Step, loaded: Loaded, schema: Schema) -> Iterator[str]:
    code = module(step)
    yield f"## {step.id}"
    yield ""
    yield f"**{step.title}.**"
    yield ""
    yield str(code.doc).strip()
    yield ""
    yield f"- needs: {', '.join(step.needs) or 'nothing'}"
    yield f"- runs in: the {step.environment} environment, at most {step.timeout_s:g} s{_more(loaded)}{_watched(step)}"
    if step.disk_bytes:
        yield f"- may write: {step.disk_bytes / 1e6:,.0f} MB"
    gate = getattr(code, "gate", None)
    if gate is not None:
        yield f"- gate: {_first_line(gate.__doc__)}"
    if step.approval:
        yield f"- waits for a person: {step.approval}"
    yield f"- evidence: `{step.id}/<attempt>/evidence.json`: {_first_line(code.run.__doc__)}"
    rows = list(_rows(step, loaded.values, schema))
    if rows:
        yield ""
        yield " ".join(_abouts(step, schema))
        yield ""
        yield f"| value | {loaded.profile} | allowed | meaning |"
        yield "|---|---|---|---|"
        yield from rows


def _more(loaded: Loaded) -> str:
    return ", or three times what is planned" if loaded.runbook.planning else ""


def _watched(step: Step) -> str:
    stall = f", stopped after {step.stall_s:g} s without progress" if step.stall_s else ""
    return stall + (f", {step.retries} retr{'y' if step.retries == 1 else 'ies'}" if step.retries else "")


def _abouts(step: Step, schema: Schema) -> Iterator[str]:
    """What each group of values is for, as the model's own docstring says."""
    yield "Values that it reads."
    for where in step.values:
        if "properties" in (field := _find(where, schema)):
            yield f"`{where}`: {' '.join(field.get('description', '').split())}"


def _rows(step: Step, values: BaseModel, schema: Schema) -> Iterator[str]:
    for where, value in values_of(values, step.values).items():
        yield from _flat(where, value, _find(where, schema), schema)


def _find(where: str, schema: Schema) -> Schema:
    at = schema
    for part in where.split("."):
        at = _resolved(at["properties"][part], schema)
    return at


def _flat(where: str, value: Any, at: Schema, schema: Schema) -> Iterator[str]:
    field = _resolved(at, schema)
    if "properties" in field and value is not None:
        for name, inner in field["properties"].items():
            yield from _flat(f"{where}.{name}", value[name], inner, schema)
    else:
        meaning = field.get("description", "")
        yield f"| `{where}` | {_shown(value)} | {_allowed(field, schema)} | {meaning} |"


def _resolved(at: Schema, schema: Schema) -> Schema:
    given = [one for one in at.get("anyOf", ()) if one.get("type") != "null"]
    if len(given) == 1:  # what may be left out: as it is where it is given
        inner = _resolved(given[0], schema)
        return {**inner, "description": at.get("description") or inner.get("description", "")}
    reference = at.get("$ref")
    if reference is None:
        return at
    found: Schema = schema["$defs"][reference.rsplit("/", 1)[-1]]
    return found


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _allowed(field: Schema, schema: Schema) -> str:
    """A field's type and range, from its JSON schema: "integer, at least 64, at most 4096, multiple of 32"."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    if field.get("type") == "array":
        return f"list of {_allowed(_resolved(field['items'], schema), schema)}{_length(field)}"
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "multipleOf": "multiple of",
    }
    bounds = [f"{word} {field[key]:g}" for key, word in words.items() if key in field]
    return ", ".join([str(field.get("type", "any")), *bounds])


def _length(field: Schema) -> str:
    least, most = field.get("minItems"), field.get("maxItems")
    if least is not None and least == most:
        return f"; {least} of them"
    return f"; at least {least}" if least else ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]


def _profiles(loaded: Loaded) -> list[str]:
    return sorted(file.stem for file in (loaded.directory / loaded.runbook.name / "profiles").glob("*.yml"))
