"""A runbook and its profile, read from YAML and checked as a whole before anything runs."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from aerie.choice import nearest
from aerie.errors import UsageError
from aerie.paths import repository
from aerie.runbook.yamlfile import (
    Document,
    Problem,
    SpecError,
    field_names,
    model_at,
    parse,
    validate,
)

__all__ = ["Loaded", "Runbook", "Step", "load", "module", "nest", "values_of"]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
Seconds = Annotated[float, Field(gt=0)]


class Step(BaseModel):
    """One step of a runbook, as written. stall_s None: nobody watches its progress; disk_bytes: what it may write.

    approval: what a person must confirm after the step, "" for nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Name
    title: Annotated[str, Field(min_length=1)]
    module: Annotated[str, Field(min_length=1)]
    environment: Literal["controller", "train", "engine"] = "controller"
    needs: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    timeout_s: Seconds
    stall_s: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    backoff_s: Annotated[float, Field(ge=0)] = 5
    disk_bytes: Annotated[int, Field(ge=0)] = 0
    approval: str = ""


class Runbook(BaseModel):
    """A list of steps, and the class that says which values they may have.

    planning: the module that says what steps take and which cannot run (aerie/runbook/budget.py), "" for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Annotated[Literal["aerie.runbook/1"], Field(alias="schema")]
    name: Name
    title: Annotated[str, Field(min_length=1)]
    profile: Annotated[str, Field(pattern=r"^[\w.]+:\w+$", description="module:Class")]
    default_profile: Name
    planning: Annotated[str, Field(pattern=r"^[\w.]*$")] = ""
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A runbook with one profile, both valid. overrides: the `a.b=c` texts that were applied over the profile."""

    runbook: Runbook
    profile: str
    values: BaseModel
    overrides: tuple[str, ...]
    directory: Path


def load(
    name: str, profile: str | None = None, *, overrides: Sequence[str] = (), directory: Path | None = None
) -> Loaded:
    """The runbook `name` with its default or the named profile, and `a.b=value` overrides on top of it.

    directory: where runbooks lie, `runbooks/` of the checkout unless given. Imports every step's module.
    Raises UsageError for an unknown runbook or profile, and SpecError with everything that is wrong in them.
    """
    directory = (directory or repository() / "runbooks").resolve()
    file = _known(directory, name, "runbook", "*/runbook.yml", lambda path: path.parent.name)
    document = parse(file, _label(file))
    runbook = validate(Runbook, document)
    model = None
    if runbook is not None:
        model = _profile_class(runbook, document)
        _check(runbook, model, name, document)
    problems = document.problems
    values = None
    chosen = profile or (runbook.default_profile if runbook else None)
    if chosen is not None:
        chosen_file = _known(file.parent / "profiles", chosen, "profile", "*.yml", lambda path: path.stem)
        given = parse(chosen_file, _label(chosen_file))
        for text in overrides:
            _override(given, text)
        values = validate(model, given) if model is not None else None
        problems += given.problems
    if problems or runbook is None or values is None or chosen is None:
        raise SpecError(problems)
    return Loaded(runbook=runbook, profile=chosen, values=values, overrides=tuple(overrides), directory=directory)


def module(step: Step) -> ModuleType:
    """The step's code, as the controller sees it."""
    return importlib.import_module(step.module)


def values_of(values: BaseModel, paths: Sequence[str]) -> dict[str, Any]:
    """The profile values at the dotted `paths`, as JSON types, by path."""
    plain = values.model_dump(mode="json")
    result = {}
    for path in paths:
        value: Any = plain
        for part in path.split("."):
            value = value[part]
        result[path] = value
    return result


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted path as the nested mapping that they came from: {"a.b": 1} as {"a": {"b": 1}}."""
    result: dict[str, Any] = {}
    for path in sorted(values, key=lambda path: path.count(".")):  # "a" before "a.b", which it contains
        *above, last = path.split(".")
        inner = result
        for part in above:
            inner = inner.setdefault(part, {})
        inner.setdefault(last, values[path])
    return result


def _known(directory: Path, name: str, what: str, pattern: str, name_of: Any) -> Path:
    files = {name_of(path): path for path in sorted(directory.glob(pattern))}
    if name not in files:
        known = ", ".join(files) or f"none in {directory}"
        raise UsageError(f"{what} {name}", seen=name, expected=f"one of {known}", remedy=nearest(name, files))
    return files[name]


def _label(file: Path) -> str:
    try:
        return str(file.relative_to(repository()))
    except ValueError:
        return str(file)


def _profile_class(runbook: Runbook, document: Document) -> type[BaseModel] | None:
    where, name = runbook.profile.split(":")
    try:
        found = getattr(importlib.import_module(where), name)
    except Exception as error:
        document.problem(("profile",), f"{runbook.profile} ({_said(error)})", "module:Class that can be imported")
        return None
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        document.problem(("profile",), runbook.profile, "a pydantic model")
        return None
    return found


def _check(runbook: Runbook, model: type[BaseModel] | None, name: str, document: Document) -> None:
    """What the schema alone cannot say: names that refer to each other, code that must be there."""
    if runbook.name != name:
        document.problem(("name",), runbook.name, f"{name}, the name of its folder")
    if runbook.planning:
        _check_planning(runbook.planning, document)
    earlier: list[str] = []
    for index, step in enumerate(runbook.steps):
        here = ("steps", index)
        if step.id in earlier:
            document.problem((*here, "id"), step.id, "an id that no other step has")
        for position, need in enumerate(step.needs):
            if need not in earlier:
                known = ", ".join(earlier) or "none, as this is the first step"
                document.problem((*here, "needs", position), need, f"an earlier step: {known}", nearest(need, earlier))
        for position, path in enumerate(step.values):
            if model is not None:
                _check_value_path(model, path, (*here, "values", position), document)
        _check_module(step, (*here, "module"), document)
        earlier.append(step.id)


def _check_value_path(model: type[BaseModel], path: str, at: tuple[str | int, ...], document: Document) -> None:
    *above, last = path.split(".")
    for depth in range(len(above) + 1):
        owner = model_at(model, tuple(above[:depth]))
        part = [*above, last][depth]
        known = field_names(owner) if owner else []
        if part not in known:
            inside = ".".join(above[:depth]) or "the profile"
            expected = f"a value of {inside}: {', '.join(known)}" if known else f"nothing inside {inside}"
            document.problem(at, path, expected, nearest(part, known))
            return


def _check_planning(name: str, document: Document) -> None:
    try:
        found = importlib.import_module(name)
    except Exception as error:
        document.problem(("planning",), f"{name} ({_said(error)})", "a module that can be imported")
        return
    if not all(callable(getattr(found, function, None)) for function in ("budget", "obstacle")):
        document.problem(("planning",), name, "a module with the functions `budget` and `obstacle`")


def _check_module(step: Step, at: tuple[str | int, ...], document: Document) -> None:
    try:
        found = module(step)
    except Exception as error:
        # A step's module is a user's code: whatever it raises at import is something to report, with its line.
        document.problem(at, f"{step.module} ({_said(error)})", "a module that imports without heavy libraries")
        return
    if not isinstance(getattr(found, "doc", None), str) or not callable(getattr(found, "run", None)):
        document.problem(at, step.module, "a module with `doc`, a text, and `run`, a function")


def _override(document: Document, text: str) -> None:
    """Apply one `a.b=value`, the value read as YAML."""
    where = f"--set {text}"
    path, equals, raw = text.partition("=")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        equals = ""
    if not equals or not all(path.split(".")):
        seen = repr(text)
        document.problems.append(Problem(where=where, key="--set", seen=seen, expected="a.b=value, the value in YAML"))
        return
    if not isinstance(document.data, dict):
        return
    *above, last = path.split(".")
    inner = document.data
    for depth, part in enumerate(above):
        inner = inner.setdefault(part, {})
        document.places[tuple(above[: depth + 1])] = document.places.get(tuple(above[: depth + 1]), where)
        if not isinstance(inner, dict):
            seen = repr(inner)
            document.problems.append(Problem(where=where, key=path, seen=seen, expected=f"{part} to be a mapping"))
            return
    inner[last] = value
    document.places[tuple(path.split("."))] = where


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
