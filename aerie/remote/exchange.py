"""One program over an open channel or on this machine: stdin in, both outputs out, within a time and a size."""

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Result", "TooMuch", "TooSlow", "locally", "nothing", "over"]

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a program left. exit_code: -1 when a signal ended it."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """The last 10 lines of what it complained about, else of what it printed."""
        return "\n".join((self.stderr.strip() or self.stdout.strip()).splitlines()[-10:])


class TooSlow(Exception):
    """The program did not end in time."""


class TooMuch(Exception):
    """The program printed more than is read."""


def nothing() -> None:
    """What is done meanwhile unless something else is."""


def over(
    channel: Any,
    command: str,
    stdin: bytes,
    timeout_s: float,
    cap_bytes: int,
    meanwhile: Callable[[], None] = nothing,
) -> Result:
    """Run `command` in the host's shell over a fresh channel of paramiko. Raises TooSlow, TooMuch, SSHException.

    meanwhile: called once the program has its input, while the host works.
    """
    end = time.monotonic() + timeout_s
    channel.settimeout(timeout_s)
    channel.exec_command(command)
    complaints = _Reader(channel.recv_stderr, cap_bytes)
    sender = threading.Thread(target=_send, args=(channel, stdin), daemon=True)
    sender.start()
    output = _Reader(channel.recv, cap_bytes)
    try:
        sender.join(max(0.0, end - time.monotonic()))
        meanwhile()
        for reader in (output, complaints):
            reader.join(max(0.0, end - time.monotonic()))
        if not channel.status_event.wait(max(0.0, end - time.monotonic())):
            raise TooSlow
    finally:
        channel.close()
    return Result(exit_code=channel.recv_exit_status(), stdout=output.text, stderr=complaints.text)


def locally(argv: Sequence[str], stdin: bytes, timeout_s: float, cap_bytes: int) -> Result:
    """Run the program on this machine. Raises TooSlow, TooMuch; exit 127 when there is no such program."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=timeout_s)
    except FileNotFoundError:
        return Result(exit_code=127, stdout="", stderr=f"{argv[0]}: not found")
    except subprocess.TimeoutExpired as error:
        raise TooSlow from error
    if max(len(done.stdout), len(done.stderr)) > cap_bytes:
        raise TooMuch
    return Result(exit_code=max(done.returncode, -1), stdout=_text(done.stdout), stderr=_text(done.stderr))


class _Reader:
    """Reads a stream to its end in a thread of its own, so that a full other one cannot block both sides."""

    def __init__(self, read: Callable[[int], bytes], cap_bytes: int) -> None:
        self._data = bytearray()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(read, cap_bytes), daemon=True)
        self._thread.start()

    def _run(self, read: Callable[[int], bytes], cap_bytes: int) -> None:
        try:
            while part := read(CHUNK):
                self._data += part
                if len(self._data) > cap_bytes:
                    raise TooMuch
        except TimeoutError:
            self._failure = TooSlow()
        except Exception as error:
            self._failure = error

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise TooSlow

    @property
    def text(self) -> str:
        return _text(self._data)


def _send(channel: Any, stdin: bytes) -> None:
    try:
        channel.sendall(stdin)
        channel.shutdown_write()
    except OSError:
        pass  # the program ended without reading all of it: its exit code says more


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")
