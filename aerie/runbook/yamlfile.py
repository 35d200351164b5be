"""YAML with the line of every value, so that an error can say where it is."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aerie.choice import nearest
from aerie.errors import UsageError

if TYPE_CHECKING:
    import yaml

__all__ = ["Document", "Problem", "SpecError", "model_at", "parse", "validate"]

Keys = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. where: "runbooks/x/runbook.yml:12" or "--set a.b=c"; key: "steps[2].needs"."""

    where: str
    key: str
    seen: str
    expected: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.key}: {self.seen}, expected {self.expected}"
        return f"{text}. {self.remedy}" if self.remedy else text


class SpecError(UsageError):
    """Everything that is wrong with a runbook, its profile or the overrides, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(f"{first.where}: {first.key}", seen=first.seen, expected=first.expected, remedy=first.remedy)
        self.args = ("\n".join(str(problem) for problem in self.problems),)
        self.parts = tuple(
            UsageError(f"{one.where}: {one.key}", seen=one.seen, expected=one.expected, remedy=one.remedy)
            for one in self.problems
        )


@dataclass(slots=True)
class Document:
    """A parsed file: its plain data, and where each value and each key stands."""

    file: str
    data: Any = None
    places: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, path: Keys) -> str:
        """The place of the value at `path`, or of the nearest thing around it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, f"{self.file}:1")

    def problem(self, path: Keys, seen: str, expected: str, remedy: str = "") -> None:
        """Record that the value at `path` is wrong."""
        self.problems.append(
            Problem(where=self.where(path), key=dotted(path), seen=seen, expected=expected, remedy=remedy)
        )


def parse(file: Path, label: str) -> Document:
    """Read `file`; what is wrong with it as YAML is in `problems`. label: how messages call it."""
    import yaml  # here and below, for locks are documents too: 16 ms of every start

    document = Document(file=label)
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        document.problem((), f"byte {error.start} is not UTF-8", "text in UTF-8")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        document.places[()] = f"{label}:{mark.line + 1 if mark else 1}"
        document.problem((), str(getattr(error, "problem", None) or error), "YAML")
    else:
        if node is None:
            document.problem((), "an empty file", "a mapping")
        else:
            document.data = _value(node, (), document, ())
    return document


def _value(node: "yaml.Node", path: Keys, document: Document, around: tuple[int, ...]) -> Any:
    import yaml

    document.places.setdefault(path, f"{document.file}:{node.start_mark.line + 1}")
    if id(node) in around:
        document.problem(path, "an alias to what it stands in", "values that end")
        return None
    around = (*around, id(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document, around)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), document, around) for index, item in enumerate(node.value)]
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        document.problem(path, str(getattr(error, "problem", None) or error), "a plain value")
        return None


def _mapping(node: "yaml.MappingNode", path: Keys, document: Document, around: tuple[int, ...]) -> dict[str, Any]:
    import yaml

    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = f"{document.file}:{key_node.start_mark.line + 1}"
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        where = (*path, key)
        if key in result:
            first = document.places[where].rpartition(":")[2]
            document.problems.append(
                Problem(where=line, key=dotted(where), seen=f"again, first on line {first}", expected="each key once")
            )
            continue
        document.places[where] = line
        result[key] = _value(value_node, where, document, around)
    return result


def validate(model: type[Model], document: Document) -> Model | None:
    """The document's data as a `model`, or None with every reason added to its problems.

    Strict: "2" is no number and 1 no truth value, as YAML has types of its own.
    """
    if document.data is None:
        return None
    try:
        # By way of JSON, where strict mode takes lists for tuples.
        return model.model_validate_json(json.dumps(document.data, default=str), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _explain(model, detail, document)
        return None


def _explain(model: type[BaseModel], detail: ErrorDetails, document: Document) -> None:
    # Of a table's own key pydantic says (…, key, "[key]"): it stands where its value does.
    path = tuple(detail["loc"][:-1] if detail["loc"][-1:] == ("[key]",) else detail["loc"])
    if detail["type"] == "extra_forbidden":
        owner = model_at(model, path[:-1])
        allowed = sorted(field_names(owner)) if owner else []
        document.problem(path, "an unknown key", f"one of {', '.join(allowed)}", nearest(str(path[-1]), allowed))
    elif detail["type"] == "missing":
        document.problem(path, "nothing", "a value", "The key is required.")
    elif detail["type"] == "value_error":
        document.problem(path, *detail["msg"].removeprefix("Value error, ").partition(", expected ")[::2])
    else:
        expected = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        document.problem(path, repr(detail["input"]), expected)


def field_names(model: type[BaseModel]) -> list[str]:
    """The keys that a mapping for `model` may have."""
    return [info.alias or name for name, info in model.model_fields.items()]


def model_at(model: type[BaseModel], path: Keys) -> type[BaseModel] | None:
    """The model that describes the mapping at `path`; None where there is no such mapping."""
    for part in path:
        if isinstance(part, int):
            continue
        info = next((info for name, info in model.model_fields.items() if part in (name, info.alias)), None)
        inner = _model_in(info.annotation) if info else None
        if inner is None:
            return None
        model = inner
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def dotted(path: Keys) -> str:
    """("steps", 2, "needs") as steps[2].needs; the whole document as "document"."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "document"
