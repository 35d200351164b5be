"""The tests of tests/hosts, a process for each host, forked from this one.

A start of Python with all that the tests import takes longer than the tests: 1.2 s against 0.3 s. A process of its own
lets a host that hangs be given up, and several be tested at a time. It is begun before the host is read: it imports
pytest and collects the tests, and connects to the host, while this process waits for the host's snapshot. While the
tests run, this process in turn imports what results need.
"""

import gc
import json
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from .inventory import Host
from .paths import repository

if TYPE_CHECKING:
    import pytest

    from .verification import Requirement
    from .verify import Case

__all__ = ["Given", "HostTests", "Tested", "given_to", "prepare"]

ERROR_LINES = 12
CHUNK = 1 << 16
# What the project's own tests are run with is not for hosts: a warning of a library fails no host.
OPTIONS = (
    *("-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "-o", "filterwarnings=default"),
    *("--quiet", "--capture=no", "--tb=native"),
)
# Plugins that somebody may have installed are not looked for: it takes time, and hosts are not theirs. Of pytest's own
# those are left out that no test here uses and that take time at each test or at the end.
UNUSED = (
    "unraisableexception",
    "threadexception",
    "logging",
    "doctest",
    "unittest",
    "junitxml",
    "pastebin",
    "stepwise",
    "setuponly",
    "setupplan",
    "subtests",
    "faulthandler",
    "tmpdir",
    "legacypath",
    "monkeypatch",
    "recwarn",
)
PLUGINS = ("-p", "testinfra.plugin", *(word for name in UNUSED for word in ("-p", f"no:{name}")))


@dataclass(eq=False)  # pytest keeps its plugins in a set
class Given:
    """What the tests judge by, and what they found: a plugin of pytest, for the conftest of tests/hosts to find."""

    host: Host
    lock: str
    is_live: bool
    receive: Callable[[], "Case"]
    found: "list[Requirement]" = field(default_factory=list)

    @cached_property
    def case(self) -> "Case":
        """All of it. Waits until the host is read."""
        return self.receive()


def given_to(config: "pytest.Config") -> Given | None:
    """What this run of pytest was given by HostTests; None where a person started it."""
    return next((one for one in config.pluginmanager.get_plugins() if isinstance(one, Given)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What the tests of a host gave. error: why they could not all be run, "" when they were, whatever they found."""

    host: str
    requirements: "tuple[Requirement, ...]"
    error: str
    wall_s: float


@dataclass(slots=True, kw_only=True)
class _Process:
    """go: a pipe that tells the process that the case lies in `file`; answer: one that it writes what it found to."""

    host: str
    pid: int
    go: int
    answer: int
    file: IO[bytes]
    log: IO[bytes]
    started: float = 0.0
    received: bytearray = field(default_factory=bytearray)


class HostTests:
    """The tests of several hosts; at the end of the `with` no process is left.

    paths: of the test modules, below the repository. timeout_s: for the tests of a host, from when it is read.
    """

    def __init__(self, paths: Sequence[Path], *, timeout_s: float) -> None:
        self._paths, self._timeout_s = paths, timeout_s
        self._begun: dict[str, _Process] = {}
        self._running = selectors.DefaultSelector()

    def __enter__(self) -> "HostTests":
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self._begun.values(), *(key.data for key in self._running.get_map().values())):
            _end(process)
        self._running.close()
        gc.unfreeze()

    def begin(self, host: Host, lock: str, *, is_live: bool) -> None:
        """Begin with what can be done before the host is read. Forks: to be called before threads are started."""
        self._begun[host.name] = _start(host, lock, self._paths, is_live=is_live)

    def results(self, cases: Sequence["Case"], forks: int) -> Iterator[Tested]:
        """What each of the hosts gave, in the order in which they end; so many at a time.

        The first tests run once this has returned, before anything is taken from it.
        """
        waiting = list(cases)
        self._give_some(waiting, forks)
        return self._results(waiting, forks)

    def _results(self, waiting: list["Case"], forks: int) -> Iterator[Tested]:
        while self._running.get_map():
            yield from self._ended()
            self._give_some(waiting, forks)

    def _give_some(self, waiting: list["Case"], forks: int) -> None:
        while waiting and len(self._running.get_map()) < max(1, forks):
            self._give(waiting.pop(0))

    def _give(self, case: "Case") -> None:
        if case.host.name not in self._begun:
            self.begin(case.host, case.lock.name, is_live=case.is_live)
        process = self._begun.pop(case.host.name)
        pickle.dump(case, process.file)
        process.file.flush()
        process.started = time.monotonic()
        with suppress(BrokenPipeError):  # it has ended already: its answer ends too
            os.write(process.go, b"!")
        self._running.register(process.answer, selectors.EVENT_READ, process)

    def _ended(self) -> Iterator[Tested]:
        """Wait until a process has something to say, or none may go on; what those gave that came to their end."""
        processes: list[_Process] = [key.data for key in self._running.get_map().values()]
        left = min(process.started for process in processes) + self._timeout_s - time.monotonic()
        for key, _ in self._running.select(max(0.0, left)):
            part = os.read(key.fd, CHUNK)
            key.data.received.extend(part)
            if not part:
                self._running.unregister(key.fd)
                yield _tested(key.data, "")
        for process in processes:
            is_late = time.monotonic() > process.started + self._timeout_s
            if is_late and process.answer in self._running.get_map():
                self._running.unregister(process.answer)
                yield _tested(process, f"its tests did not end within {self._timeout_s:g} s")


def prepare() -> None:
    """Import what the tests need, for all processes that are begun afterwards."""
    import pytest
    import testinfra.plugin  # noqa: F401

    import aerie.findings

    assert pytest.main is not None
    aerie.findings.rows()


def _start(host: Host, lock: str, paths: Sequence[Path], *, is_live: bool) -> _Process:
    file, log = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
    (told, go), (answer, end) = os.pipe(), os.pipe()
    # Little of what is there is garbage; else both processes would soon look through all of it, 30 ms each.
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        os.close(go)  # so that the end of this program is the end of `told`
        given = Given(host=host, lock=lock, is_live=is_live, receive=lambda: _received(told, file))
        _be_the_tests(given, paths, end, log.fileno())
    os.close(told)
    os.close(end)
    return _Process(host=host.name, pid=pid, go=go, answer=answer, file=file, log=log)


def _received(told: int, file: IO[bytes]) -> "Case":
    if not os.read(told, 1):
        os._exit(0)  # the host could not be read, or the program has ended
    file.seek(0)
    case: Case = pickle.load(file)
    return case


def _be_the_tests(given: Given, paths: Sequence[Path], answer: int, log: int) -> NoReturn:
    """What the forked process does. It never comes back: this program's ends and locks are not its own."""
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        sys.stdin = open(os.devnull)  # noqa: SIM115
        os.chdir(repository())
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            del os.environ[name]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        prepare()
        import pytest

        code = int(pytest.main([*OPTIONS, *PLUGINS, *map(str, paths)], plugins=[given]))
        document = {"code": code, "requirements": [one.to_dict() for one in given.found]}
        with open(answer, "w") as pipe:
            json.dump(document, pipe)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def _end(process: _Process) -> None:
    os.close(process.go)
    os.close(process.answer)
    os.kill(process.pid, signal.SIGKILL)  # one that has said everything is past its work
    os.waitpid(process.pid, 0)
    process.file.close()
    process.log.close()


def _tested(process: _Process, error: str) -> Tested:
    """What came of a process, which is ended here."""
    from .verification import Requirement  # here: it is there since hosts were read, and not needed before

    process.log.seek(0)
    lines = [line for line in process.log.read().decode(errors="replace").splitlines() if line.strip()]
    _end(process)
    document: Mapping[str, Any] = {"code": -1, "requirements": []}
    if not error:
        try:
            document = json.loads(process.received)
        except ValueError:
            error = f"its tests broke off: {' | '.join(lines[-ERROR_LINES:])}"
        else:
            is_whole = document["code"] in (0, 1)
            error = "" if is_whole else f"pytest ended with {document['code']}: {' | '.join(lines[-ERROR_LINES:])}"
    return Tested(
        host=process.host,
        requirements=tuple(Requirement.from_dict(row) for row in document["requirements"]),
        error=error,
        wall_s=time.monotonic() - process.started,
    )
