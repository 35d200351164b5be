"""Handing memory down from a control group of version 2 that holds processes, as a container's own one does.

The kernel refuses that (EBUSY) but for the tree's root: groups with controllers have their processes in leaves. So they
go into a leaf, beside which a build's group can be made, and come back when no build is left. They stay below their
group all the time, with its limits; what a container's runtime starts there meanwhile goes where the first process is
(runc and crun do so when the group itself refuses).

Moved are processes of a container's own group, for all in it is this container's, and elsewhere those of this session
only: the group of a host may hold services that somebody else counts there. Only root does it.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aerie.extensions.cgroups import Group

__all__ = ["LEAF", "give_back", "hand_down", "locked", "write"]

LEAF: Final = "aerie-processes"
WAIT_S: Final = 10.0  # for processes that start others while they are moved


def write(file: Path, text: str) -> None:
    """Tell the kernel. A single write, for each is one request."""
    file.write_text(text)


@contextmanager
def locked(own: Group) -> Iterator[None]:
    """One build at a time makes its group here, or gives processes back."""
    folder = os.open(own.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def hand_down(own: Group, *, is_containers: bool) -> None:
    """Groups below this one get memory limits. is_containers: it is the top of all that this process can see.

    Raises OSError where the kernel refuses, LookupError where processes would have to be moved that must not be.
    """
    if "memory" in (own.read("cgroup.subtree_control") or "").split():
        return
    control = own.folder / "cgroup.subtree_control"
    try:
        write(control, "+memory")
        return
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    if reason := _unmovable(own, is_containers):
        raise LookupError(f"{own.where('cgroup.procs')} is not empty, and {reason}")
    (own.folder / LEAF).mkdir(exist_ok=True)
    _move(own.folder, own.folder / LEAF)
    write(control, "+memory")


def give_back(own: Group) -> None:
    """Undo hand_down where it moved processes and no other group is left beside them; else nothing."""
    leaf = own.folder / LEAF
    if not leaf.is_dir():
        return
    # What the kernel refuses leaves processes where they are as well off as before.
    with suppress(OSError), locked(own):
        if any(one.is_dir() and one != leaf for one in own.folder.iterdir()):
            return
        write(own.folder / "cgroup.subtree_control", "-memory")
        _move(leaf, own.folder)
        leaf.rmdir()


def _unmovable(own: Group, is_containers: bool) -> str:
    """Why its processes must stay, "" where they need not."""
    if os.geteuid() != 0:
        return "only root may move what is in it"
    pids = [int(pid) for pid in (own.read("cgroup.procs") or "").split()]
    if 0 in pids:  # as version 2 shows those that this process cannot see
        return "holds processes of another container"
    if is_containers:
        return ""
    strangers = sum(not _is_of_session(pid) for pid in pids)
    return f"{strangers} of its {len(pids)} processes are of other sessions" if strangers else ""


def _is_of_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:  # gone
        return True


def _move(source: Path, target: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while pids := (source / "cgroup.procs").read_text().split():
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, f"{len(pids)} processes do not leave", str(source / "cgroup.procs"))
        for pid in pids:
            with suppress(ProcessLookupError):
                write(target / "cgroup.procs", pid)
