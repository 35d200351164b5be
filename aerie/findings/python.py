"""What differs in a host's Python: the system's own, and the environments that aerie makes."""

from collections.abc import Iterator

from .case import Case, known, version
from .model import Finding

__all__ = ["judge"]


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer python."""
    python, lock = case.snapshot.python, case.lock.python
    if version(python.system) < version(lock.version):
        yield case.finding("python.too-old", seen=python.system, expected=f"{lock.version} or newer")
    wanted = {one.name: one.sha256 for one in lock.environments}
    missing = [name for name in wanted if name not in python.environments]
    if missing:
        yield case.finding(
            "python.environment-missing", seen=f"without {', '.join(missing)}", expected=", ".join(wanted)
        )
    drifted = {
        name: found
        for name, environment in python.environments.items()
        if name in wanted and (found := known(environment.requirements_sha256)) not in (None, wanted[name])
    }
    if drifted:
        yield case.finding(
            "python.environment-drift",
            seen=", ".join(f"{name} of {str(found)[:12]}" for name, found in drifted.items()),
            expected=", ".join(f"{name} of {wanted[name][:12]}" for name in drifted),
        )
