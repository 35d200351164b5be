"""A training on several hosts, seen from the first: theirs begins with this one's, and ends with it."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.eagle3 import agent, together
from aerie.eagle3.together import Parts, Together
from aerie.engines.server import free_port
from aerie.errors import AerieError
from aerie.runbook.step import write_atomic

__all__ = ["Group", "trained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Parts):
    """A training at work on several hosts. command, environment: of this host's part."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def failed(self) -> AerieError | None:
        """Why another host's part ended with something else than 0, with its last lines; None for none."""
        for rank, name in enumerate(self.hosts, start=1):
            ended = self.ended(rank)
            if ended and ended["exit_status"] != 0:
                return AerieError(
                    f"host {name}: its part of the training",
                    seen=f"exit status {ended['exit_status']}",
                    expected="0",
                    remedy="Its last lines:\n" + "\n".join(ended["tail"]),
                )
        return None


@contextlib.contextmanager
def trained(
    others: Together,
    kept: Path,
    *,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    needed: Sequence[Path],
    processes_each: int,
    gpus_each: int,
) -> Iterator[Group]:
    """The other hosts at work on `module` with these arguments; at its end they are too.

    kept, gpus_each: as in check, which it begins with. needed: what every host must have at the same path besides.
    """
    with together.folder_of(others, kept, needed) as folder:
        _, failures = together.able(others, folder, gpus_each)
        together.refuse(failures)
        job = {
            "hosts": 1 + len(others.hosts),
            "processes_each": processes_each,
            "address": others.address,
            "port": _free_port(others.address),
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
        }
        write_atomic(folder / "job.json", json.dumps(job).encode())
        group = Group(
            folder=folder,
            hosts=others.hosts,
            command=agent.command(job, 0),
            environment=agent.environment(job),
        )
        try:
            with together.alive(folder / "alive"):
                _, failures = together.ask("join", others, folder)
                together.refuse(failures)
                yield group
                group.wait()
        finally:
            group.wait()  # for those that end because this one did


def _free_port(address: str) -> int:
    try:
        return free_port(address)
    except OSError as error:
        raise AerieError(
            f"hosts.address {address}",
            seen=error.strerror or str(error),
            expected="an address of this host, which listens on it",
            remedy="`ip address` lists them: take the one in the network of the other hosts.",
        ) from error
