"""A control group with a hard limit of memory around a build: what outgrows it ends the build, never the host.

Where systemd runs, it is a scope of its own; elsewhere a group below this process's. Who may not make one is told so
in a note, and the build goes on with what watches memory alone (gate.py).
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.extensions.cgroups import Group, groups
from aerie.extensions.onhost import clearing

__all__ = ["Enclosure", "enclose"]

ROOT: Final = Path("/")
WAIT_S: Final = 10.0
POLL_S: Final = 0.02
# What is started enters by itself, before it becomes what it is: nothing of it ever runs outside.
ENTER: Final = 'echo 0 >"$1/cgroup.procs" && shift && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """group: with the limit, None where none could be made; note: then why, else ""."""

    group: Group | None = None
    note: str = ""

    @property
    def limited_by(self) -> str:
        """The file with the limit, "" where there is none."""
        return self.group.where(_limit(self.group)) if self.group else ""

    def argv(self, argv: Sequence[str]) -> list[str]:
        """What starts the program inside."""
        return ["sh", "-c", ENTER, "sh", str(self.group.folder), *argv] if self.group else list(argv)

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that the group held, cached files with it; None where no kernel counts it."""
        if self.group is None:
            return None
        peak = self.group.read("memory.peak" if self.group.is_unified else "memory.max_usage_in_bytes")
        return int(peak) if peak else None

    @property
    def pressure(self) -> str:
        """The file that tells how long something waited for memory: version 1 of groups has none of its own."""
        own = self.group.folder / "memory.pressure" if self.group else None
        return str(own) if own and own.exists() else "/proc/pressure/memory"

    @property
    def killed(self) -> int:
        """How many processes the kernel ended here for want of memory."""
        if self.group is None:
            return 0
        return self.group.numbers("memory.events" if self.group.is_unified else "memory.oom_control").get("oom_kill", 0)


@contextmanager
def enclose(budget_bytes: int, name: str, *, root: Path = ROOT) -> Iterator[Enclosure]:
    """An empty enclosure for the time of the `with`; what is left in it at the end is killed. root: "/" on a host."""
    if (root / "run/systemd/system").is_dir():
        with _scope(budget_bytes, name, root) as enclosure:
            yield enclosure
        return
    try:
        own, is_top = _own(root)
    except LookupError as error:
        yield Enclosure(note=_note(str(error)))
        return
    try:
        enclosure = _limited(_below(own, name, is_top=is_top), budget_bytes)
    except (OSError, LookupError) as error:
        clearing.give_back(own)
        yield Enclosure(note=_note(str(error)))
        return
    try:
        yield enclosure
    finally:
        assert enclosure.group is not None, "a limit has a group"
        _remove(enclosure.group)
        clearing.give_back(own)


def _limited(group: Group, budget_bytes: int) -> Enclosure:
    try:
        (group.folder / _limit(group)).write_text(str(budget_bytes))
        swap = group.folder / ("memory.swap.max" if group.is_unified else "memory.memsw.limit_in_bytes")
        if swap.exists():  # a build that swaps makes a host as slow as one that is out of memory
            swap.write_text("0" if group.is_unified else str(budget_bytes))
    except OSError:
        _remove(group)
        raise
    return Enclosure(group=group)


def _limit(group: Group) -> str:
    return "memory.max" if group.is_unified else "memory.limit_in_bytes"


def _own(root: Path) -> tuple[Group, bool]:
    """This process's innermost group that counts memory, and whether none above it can be seen. Or LookupError."""
    found = [group for group in groups(root, "memory") if _counts_memory(group)]
    # Where another build has cleared the group, this process is in its leaf, which stays one.
    own = next((group for group in found if group.folder.name != clearing.LEAF), None)
    if own is None:
        raise LookupError("no control group of this process counts memory")
    return own, own == [group for group in found if group.is_unified == own.is_unified][-1]


def _below(own: Group, name: str, *, is_top: bool) -> Group:
    """A new group below this one. OSError or LookupError where memory is not handed down to it."""
    group = Group(is_unified=own.is_unified, folder=own.folder / name, root=own.root)
    with clearing.locked(own):
        if group.folder.exists():  # of a build that was killed outright
            _remove(group)
        if own.is_unified:
            clearing.hand_down(own, is_containers=is_top)
        group.folder.mkdir()
    return group


def _counts_memory(group: Group) -> bool:
    return not group.is_unified or "memory" in (group.read("cgroup.controllers") or "").split()


@contextmanager
def _scope(budget_bytes: int, name: str, root: Path) -> Iterator[Enclosure]:
    """A scope of systemd, held open by a process that waits for the end of its input."""
    wanted = [f"MemoryMax={budget_bytes}", "MemorySwapMax=0", "MemoryAccounting=yes", *_oom_policy(), *_bound(root)]
    argv = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={name}"]
    argv += [*(f"--property={one}" for one in wanted), "cat"]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert holder.stdin is not None and holder.stderr is not None
    try:
        group = _group_of(holder, name, root)
        if group is None:
            holder.kill()
            yield Enclosure(
                note=_note(holder.stderr.read().decode(errors="replace").strip() or "systemd-run gave none")
            )
        else:
            yield Enclosure(group=group)
            _empty(group)
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stderr.close()


def _oom_policy() -> list[str]:
    """A compiler that the kernel ends is run again, so the scope must outlive it. Before 253 every scope did."""
    said = subprocess.run(["systemd-run", "--version"], check=False, capture_output=True, text=True).stdout.split()
    return ["OOMPolicy=continue"] if len(said) > 1 and said[1].isdigit() and int(said[1]) >= 253 else []


def _bound(root: Path) -> list[str]:
    """To the service that this process is the job of: when that is killed, its compilers are, though not inside it."""
    own = next(groups(root, "name=systemd"), None)
    return [f"BindsTo={own.folder.name}", f"After={own.folder.name}"] if own and own.folder.suffix == ".service" else []


def _group_of(holder: "subprocess.Popen[bytes]", name: str, root: Path) -> Group | None:
    deadline = time.monotonic() + WAIT_S
    while holder.poll() is None and time.monotonic() < deadline:
        for group in groups(root, "memory", pid=holder.pid):
            if group.folder.name == f"{name}.scope" and (group.folder / _limit(group)).exists():
                return group
        time.sleep(POLL_S)
    return None


def _remove(group: Group) -> None:
    """Kill what is in the group, and remove it: busy while a process is on its way in or not quite gone."""
    deadline = time.monotonic() + WAIT_S
    while group.folder.exists() and time.monotonic() < deadline:
        _empty(group)
        with suppress(OSError):
            group.folder.rmdir()
        time.sleep(POLL_S)


def _empty(group: Group) -> None:
    """Kill what is in the group, but for a holder of systemd's, until nothing is left."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        pids = [int(pid) for pid in (group.read("cgroup.procs") or "").split()]
        left = [pid for pid in pids if not _is_holder(pid)]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(POLL_S)


def _is_holder(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0"
    except OSError:
        return True  # gone


def _note(why: str) -> str:
    return (
        f"No limit of memory could be set around the build ({why}): it is watched only, and could outgrow its budget."
    )
