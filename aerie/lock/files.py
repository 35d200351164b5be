"""Reading inventory/locks/<name>.lock.toml."""

import hashlib
from pathlib import Path

from aerie.choice import nearest
from aerie.errors import UsageError
from aerie.paths import repository, shown
from aerie.runbook.yamlfile import Document, SpecError, validate
from aerie.tomlfile import parse

from .model import Lock, PythonEnvironment
from .repositories import of_system, tree_of

__all__ = ["load", "names", "path"]

SUFFIX = ".lock.toml"


def load(name: str, folder: Path | None = None) -> Lock:
    """The lock of that name. folder: of the inventory, whose locks/ is looked into before the repository's.

    Raises UsageError for an unknown name, and SpecError with everything that is wrong in the file.
    """
    file = path(name, folder)
    document = parse(file, shown(file))
    lock = validate(Lock, document)
    if lock is not None:
        _check(lock, name, document)
    if lock is None or document.problems:
        raise SpecError(document.problems)
    return lock


def path(name: str, folder: Path | None = None) -> Path:
    """The file of the lock of that name. Raises UsageError that names the nearest known one."""
    known = names(folder)
    if name in known:  # so that "../x" is no lock
        return next(file for locks in _folders(folder) if (file := locks / f"{name}{SUFFIX}").is_file())
    raise UsageError(
        "lock",
        seen=name,
        expected=f"one of {', '.join(known) or 'none: there is no lock'}",
        remedy=nearest(name, known) or f"Write {shown(_folders(folder)[0] / (name + SUFFIX))}.",
    )


def names(folder: Path | None = None) -> list[str]:
    """The names of all locks that `load` would find."""
    files = [file for locks in _folders(folder) for file in locks.glob(f"*{SUFFIX}")]
    return sorted({file.name.removesuffix(SUFFIX) for file in files})


def _folders(folder: Path | None) -> list[Path]:
    shipped = repository() / "inventory" / "locks"
    return [shipped] if folder is None else [folder / "locks", shipped]


def _check(lock: Lock, name: str, document: Document) -> None:
    """What the model cannot see: names outside of the file, and values that contradict each other."""
    if lock.name != name:
        document.problem(("name",), repr(lock.name), f"{name!r}, as the file is called")
    if not getattr(lock.cuda, "packages" if lock.cuda.source == "apt" else "wheels"):
        wanted = "packages" if lock.cuda.source == "apt" else "wheels"
        document.problem(("cuda", "source"), f"{lock.cuda.source!r} without {wanted}", f"cuda.{wanted}")
    for index, required in enumerate(lock.weights.required):
        if required not in lock.weights.models:
            known = ", ".join(lock.weights.models) or "none: the lock has no model"
            document.problem(("weights", "required", index), repr(required), f"a model of weights.models: {known}")
    _check_extensions(lock, document)
    _check_repository(lock, document)
    for finding in lock.severity:
        from aerie.findings.catalogue import check_id  # here, for findings are made of locks

        check_id(("severity", finding), finding, document)
    for index, environment in enumerate(lock.python.environments):
        _check_environment(index, environment, document)


def _check_extensions(lock: Lock, document: Document) -> None:
    packages = {one.name: one for one in lock.extensions.packages}
    environments = [one.name for one in lock.python.environments]
    for index, name in enumerate(lock.extensions.required):
        where = ("extensions", "required", index)
        if name not in packages:
            known = ", ".join(packages) or "none: the lock has no extension"
            document.problem(where, repr(name), f"a package of extensions.packages: {known}")
        elif packages[name].environment not in environments:
            expected = f"one of python.environments: {', '.join(environments) or 'none'}"
            document.problem(where, f"{name!r} of environment {packages[name].environment!r}", expected)
    for index, package in enumerate(lock.extensions.packages):
        folder = repository() / "roles" / "extensions" / "files" / "patches" / package.name / package.version
        for position, patch in enumerate(package.patches):
            if not (folder / patch).is_file():
                document.problem(
                    ("extensions", "packages", index, "patches", position), repr(patch), f"a file in {shown(folder)}"
                )


def _check_repository(lock: Lock, document: Document) -> None:
    """NVIDIA's own repositories: the tree must be the distribution's, and so must its key."""
    repository, tree = lock.driver.repository, tree_of(lock.driver.repository.uri)
    if tree is None:
        return
    for system in lock.systems:
        own = of_system(system, lock.arch)
        if own is None or own.tree != tree:
            expected = f"{own.repository.uri} for {system}" if own else f"a repository for {system} on {lock.arch}"
            document.problem(("driver", "repository", "uri"), tree, expected)
        elif own.key_fingerprint != repository.key_fingerprint:
            document.problem(
                ("driver", "repository", "key_fingerprint"), repository.key_fingerprint, own.key_fingerprint
            )


def _check_environment(index: int, environment: PythonEnvironment, document: Document) -> None:
    where = ("python", "environments", index)
    file = repository() / environment.requirements
    if not file.is_file():
        document.problem((*where, "requirements"), environment.requirements, "a file of the checkout")
    elif (seen := hashlib.sha256(file.read_bytes()).hexdigest()) != environment.sha256:
        expected = f"{seen}, which {environment.requirements} has"
        document.problem((*where, "sha256"), environment.sha256, expected, "Put it in after looking at what changed.")
