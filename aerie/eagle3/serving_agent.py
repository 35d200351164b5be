"""On a host that serves along: its server, so long as the first host is heard of."""

import contextlib
import fcntl
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from aerie.eagle3.heard import SILENCE_S, Heard, own_address
from aerie.engines import server
from aerie.engines.adapter import Launch, adapter
from aerie.errors import AerieError
from aerie.runbook.step import Json, write_atomic

__all__ = ["serve", "told"]

_POLL_S = 1.0
_BEAT_S = 5.0


def told(launch: Launch) -> dict[str, Json]:
    """A launch as JSON, for the hosts that are to start the same."""
    return {
        "program": launch.program,
        "flags": launch.flags,
        "variables": dict(launch.variables),
        "model": launch.model,
        "engine": launch.adapter.name,
        "gpus": launch.gpus,
    }


def serve(folder: Path, rank: int) -> int:
    """Exit status of this host's server, 0 when the first host ended it; written to <rank>.ended.json too.

    It listens on the address from which this host reaches the first one, and on no other.
    """
    job = json.loads((folder / "job.json").read_bytes())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ended: dict[str, Json] = {"exit_status": 128 + signal.SIGTERM, "tail": ["ended by a signal"]}
    try:
        _serve(job, folder, rank)
    except _OverError:
        ended = {"exit_status": 0, "tail": []}
    except AerieError as error:
        ended = {"exit_status": 1, "tail": str(error).splitlines()}
    finally:
        with contextlib.suppress(FileNotFoundError):  # the first host has not waited
            write_atomic(folder / f"{rank}.ended.json", json.dumps(ended).encode())
    return int(ended["exit_status"])


class _OverError(Exception):
    """The first host is done, or was not heard of for too long."""


class _Look:
    """To be called every second or so: says that this host is there, and raises _OverError when the first one is not.

    It is heard of from the start, however late a network file system shows its file.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._heard, self._own = Heard(folder / "alive"), folder / f"{rank}.alive"
        self._beats, self._began = 0, time.monotonic()

    def __call__(self) -> None:
        if not self._heard.is_alive(SILENCE_S):
            raise _OverError
        if time.monotonic() >= self._began + self._beats * _BEAT_S:
            self._beats += 1
            try:
                write_atomic(self._own, str(self._beats).encode(), durable=False)
            except FileNotFoundError as error:  # the folder went meanwhile
                raise _OverError from error


def _serve(job: Mapping[str, Json], folder: Path, rank: int) -> None:
    """Serve until _OverError; raises AerieError when the server ends."""
    look = _Look(folder, rank)
    look()
    with (
        _after_the_last(job["locks"][rank - 1], look),
        server.serve(
            {str(rank): _launch(job["launch"])},
            port=0,
            logs=folder,
            ready_timeout_s=job["ready_timeout_s"],
            on_wait=lambda ready, note: look(),
            host=own_address(job["address"]),
        ) as started,
    ):
        (one,) = started.values()
        ready = {"url": one.url, "start_s": one.start_s, "log": str(one.log)}
        write_atomic(folder / f"{rank}.ready.json", json.dumps(ready).encode())
        while True:
            one.check()
            look()
            time.sleep(_POLL_S)


def _launch(told: Mapping[str, Json]) -> Launch:
    return Launch(
        program=tuple(told["program"]),
        flags=tuple(told["flags"]),
        variables=told["variables"],
        model=told["model"],
        adapter=adapter(told["engine"]),
        gpus=told["gpus"],
    )


@contextlib.contextmanager
def _after_the_last(name: str, look: Callable[[], None]) -> Iterator[None]:
    """Once the server of an attempt that was killed has ended on this host: it may hold the GPUs a while longer."""
    path = Path(tempfile.gettempdir()) / f"aerie-{os.getuid()}-{name}"  # of this host, where the rest is shared
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                look()
                time.sleep(_POLL_S)
        yield
