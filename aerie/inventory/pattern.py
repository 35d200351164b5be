"""Which hosts a pattern means: Ansible's patterns, ranges of names, and @failed."""

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from aerie.choice import nearest
from aerie.errors import UsageError
from aerie.paths import repository

from .failed import failed
from .host import Host
from .kept import KeptInventory, NotKept, keep, kept
from .source import Inventory, absolute, open_inventory

__all__ = ["folder", "host", "hosts", "select"]

_RANGE = re.compile(r"(?P<head>[^\[\]]*)\[(?P<first>\d+):(?P<last>\d+)\](?P<tail>[^\[\]]*)")


def select(pattern: str, path: Path | None = None) -> tuple[Host, ...]:
    """The hosts that `pattern` means, in the inventory's order; at least one.

    Terms are joined by "," or ":"; "!x" takes away, "&x" keeps the common ones. A term is a host, a group, a pattern
    of Ansible's, @failed (hosts that failed in the last run), or a range of names: gpu[01:08] is gpu01 to gpu08.
    (To Ansible alone it would be the second to ninth host of the group gpu; that holds where no host has such a name.)
    path: of the inventory. Raises UsageError for a term that means no host, SpecError for wrong variables.
    """
    return _hosts(path, lambda inventory: _select(inventory, pattern))


def hosts(path: Path | None = None) -> dict[str, Host]:
    """Every host by name, in the inventory's order. Raises UsageError or SpecError with all that is wrong."""
    return {host.name: host for host in _hosts(path, lambda inventory: inventory.names())}


def host(name: str, path: Path | None = None) -> Host:
    """The host of that name, not a pattern. Raises UsageError that names the nearest known ones."""

    def named(inventory: Inventory | KeptInventory) -> list[str]:
        if name not in inventory.names():
            raise _unknown(inventory, name, groups=False)
        return [name]

    return _hosts(path, named)[0]


def folder(path: Path | None = None) -> Path:
    """The folder of the inventory at `path`: group_vars/, host_vars/ and locks/ lie in it."""
    source = path or repository() / "inventory" / "hosts.yml"
    return source if source.is_dir() else source.parent


def _hosts(path: Path | None, choose: Callable[[Inventory | KeptInventory], list[str]]) -> tuple[Host, ...]:
    """The chosen hosts, as they are kept or else as Ansible reads them."""
    source = absolute(path)
    before = kept(source)
    if before is not None:
        with contextlib.suppress(NotKept):
            return before.read(choose(before))
    from .variables import read_hosts

    inventory = open_inventory(path)
    found = tuple(read_hosts(inventory, choose(inventory)))
    keep(source, inventory.names(), {name: inventory.members(name) for name in inventory.group_names()}, found)
    return found


def _select(inventory: Inventory | KeptInventory, pattern: str) -> list[str]:
    chosen = _evaluate(inventory, pattern)
    if not chosen:
        raise UsageError("host", seen=pattern, expected="a pattern that leaves a host", remedy=_known(inventory))
    return [name for name in inventory.names() if name in chosen]


def _evaluate(inventory: Inventory | KeptInventory, pattern: str) -> set[str]:
    if pattern.count("[") != pattern.count("]"):
        raise UsageError("host", seen=pattern, expected="as many ] as [", remedy="A range is written gpu[01:08].")
    terms = inventory.terms(pattern)
    added = [term for term in terms if term[0] not in "!&"]
    chosen = set().union(*(_resolve(inventory, term) for term in added or ["all"]))
    # As Ansible: what is taken away is so wherever it stands in the pattern.
    for term in terms:
        if term.startswith("&"):
            chosen &= _resolve(inventory, term[1:])
    for term in terms:
        if term.startswith("!"):
            chosen -= _resolve(inventory, term[1:])
    return chosen


def _resolve(inventory: Inventory | KeptInventory, term: str) -> set[str]:
    known = inventory.names()
    if term == "@failed":
        return _failed(known)
    if (names := _range(term)) and not names.isdisjoint(known):
        if missing := sorted(names.difference(known)):
            raise _unknown(inventory, ", ".join(missing), groups=False)
        return names
    found = inventory.matching(term)
    if not found & set(known):  # "localhost" is found though no inventory names it
        raise _unknown(inventory, term, groups=True)
    return found


def _range(term: str) -> set[str]:
    match = _RANGE.fullmatch(term)
    if match is None:
        return set()
    width = len(match["first"]) if match["first"].startswith("0") else 0
    numbers = range(int(match["first"]), int(match["last"]) + 1)
    return {f"{match['head']}{number:0{width}d}{match['tail']}" for number in numbers}


def _failed(known: Iterable[str]) -> set[str]:
    if names := set(failed()).intersection(known):
        return names
    raise UsageError(
        "host",
        seen="@failed",
        expected="a host of this inventory that failed in the last run",
        remedy="No such host is recorded. Name hosts or groups instead.",
    )


def _unknown(inventory: Inventory | KeptInventory, name: str, *, groups: bool) -> UsageError:
    known = [*inventory.names(), *(inventory.group_names() if groups else ())]
    expected = "a host, a group or a pattern of the inventory" if groups else "a host of the inventory"
    hint = nearest(name.partition(",")[0], known)
    file = inventory.path.name
    return UsageError("host", seen=name, expected=expected, remedy=f"{hint or _known(inventory)} Or add it to {file}.")


def _known(inventory: Inventory | KeptInventory) -> str:
    names = inventory.names()
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"It has {', '.join(names[:12])}{more}." if names else "It names no host."
