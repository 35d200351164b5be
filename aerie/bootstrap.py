"""Makes the controller's `.venv` from hash-locked requirements, then becomes Invoke in it.

Standard library only: it runs before anything is installed, by whichever Python the launcher found. What only the
making needs is imported there: every start passes here, and most make nothing.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SetupFailed", "ensure_controller", "ensure_tools", "main"]

REPORT_EVERY_S = 5.0  # between plain lines of progress where there is no terminal
TAIL_LINES = 10

# Runs aerie's own Program, so that `invoke` in an activated environment is the launcher's twin. The first
# two lines are pip's way to a Python whose path may hold spaces, which a #! line cannot name.
SCRIPT = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys
sys.path.insert(0, {root!r})
from aerie.program import main
main()
"""


class SetupFailed(Exception):
    """The environment could not be made; the message says what was seen and what to do."""


class _Progress:
    """One line on stderr, rewritten on a terminal; elsewhere a plain line every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._said_at = self._began
        self.say("", force=True)

    def say(self, text: str, *, force: bool = False) -> None:
        line = f"aerie: {self._what}{text and ': '}{text}"
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{line}")
        elif force or time.monotonic() - self._said_at >= REPORT_EVERY_S:
            self._said_at = time.monotonic()
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def close(self, text: str) -> None:
        self.say(f"{text} after {time.monotonic() - self._began:.0f} s", force=True)
        if self._is_terminal:
            sys.stderr.write("\n")


def ensure_controller(root: Path) -> Path:
    """The Python of `root`/.venv, made or made anew unless it is whole and fits requirements/controller.txt.

    Waits while another process makes it. Raises SetupFailed.
    """
    requirements = root / "requirements" / "controller.txt"
    venv = root / ".venv"
    stamp = venv / "ready.json"
    if not _is_ready(stamp, requirements):
        with _lock(root) as lock:
            if not _is_ready(stamp, requirements):
                _make(venv, requirements, lock)
                _write_scripts(root, venv)
                _write_stamp(stamp, requirements)
    return venv / "bin" / "python"


def ensure_tools(root: Path) -> None:
    """Add what the tests need (requirements/test.txt) to `root`/.venv. Raises SetupFailed."""
    requirements = root / "requirements" / "test.txt"
    stamp = root / ".venv" / "tools.json"
    if not _is_ready(stamp, requirements):
        with _lock(root) as lock:
            if not _is_ready(stamp, requirements):
                _install(root / ".venv", requirements, lock, _Progress("adding test tools to .venv"))
                _write_scripts(root, root / ".venv")
                _write_stamp(stamp, requirements)


def main() -> None:
    """Make the environment where needed, then replace this process with Invoke in it."""
    root = Path(__file__).resolve().parent.parent
    # A kill must end as an interrupt does: pip is stopped and nothing half-made looks ready.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        python = ensure_controller(root)
    except SetupFailed as error:
        sys.exit(f"aerie: {error}")
    except KeyboardInterrupt:
        line = "\n" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{line}aerie: interrupted; the next start makes the environment anew\n")
        sys.exit(130)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if Path(sys.executable) == python:  # started by the launcher in the environment that it now turned out to be whole
        _become_invoke(root)
    os.execv(python, [str(python), str(root / ".venv" / "bin" / "invoke"), *sys.argv[1:]])


def _become_invoke(root: Path) -> None:
    """What the script .venv/bin/invoke does, without starting another Python."""
    sys.path.insert(0, str(root))
    sys.argv[0] = str(root / ".venv" / "bin" / "invoke")
    from aerie.program import main as invoke

    invoke()
    sys.exit()


def _wanted(requirements: Path) -> dict[str, str]:
    # The path belongs to it: an environment does not survive being moved or copied.
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return {"requirements": digest, "python": sys.version, "path": str(requirements)}


def _is_ready(stamp: Path, requirements: Path) -> bool:
    try:
        return bool(json.loads(stamp.read_text()) == _wanted(requirements))
    except (OSError, ValueError):
        return False


def _write_stamp(stamp: Path, requirements: Path) -> None:
    temporary = stamp.with_name(f".{stamp.name}.{os.getpid()}")
    temporary.write_text(json.dumps(_wanted(requirements)))
    temporary.replace(stamp)


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[int]:
    """Hold the right to change `root`/.venv; says so when it has to wait."""
    import fcntl

    with open(root / ".venv.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("aerie: another start is making .venv; waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _make(venv: Path, requirements: Path, lock: int) -> None:
    import shutil
    import subprocess

    if venv.is_symlink():  # to another checkout's, which stays as it is
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)
    # The base interpreter, since this one may be the environment that was just removed.
    base = getattr(sys, "_base_executable", sys.executable)
    # Debian splits venv and ensurepip off: `python -m venv` then fails half-way with a traceback.
    if subprocess.run([base, "-I", "-c", "import ensurepip, venv"], capture_output=True).returncode != 0:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupFailed(
            f"{base} lacks venv or ensurepip, expected both. Install them: apt install {version}-venv (or python3-venv)"
        )
    progress = _Progress("making .venv, about half a minute")
    _run([base, "-I", "-m", "venv", str(venv)], lock, progress)
    _install(venv, requirements, lock, progress)


def _install(venv: Path, requirements: Path, lock: int, progress: _Progress) -> None:
    # pip, not uv: it is here before anything is installed, and it reads the user's own pip configuration.
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-deps", "--require-hashes"]
    pip = [str(venv / "bin" / "python"), "-I", "-m", "pip", "install", *options]
    _run([*pip, "-r", str(requirements)], lock, progress)
    progress.close("done")


def _run(argv: list[str], lock: int, progress: _Progress) -> None:
    """Run `argv`, counting pip's packages; raises SetupFailed with its last lines."""
    import subprocess
    from collections import deque

    tail: deque[str] = deque(maxlen=TAIL_LINES)
    count = 0
    # The child holds the lock too: should this process be killed outright, the next start waits for the
    # orphan instead of making a second environment under it.
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, pass_fds=[lock]
    )
    try:
        assert child.stdout is not None, "stdout was asked for as a pipe"
        for line in child.stdout:
            tail.append(line.rstrip())
            if line.startswith("Collecting"):
                count += 1
                progress.say(f"{count} packages fetched")
            elif line.startswith("Installing collected"):
                progress.say(f"installing {count} packages", force=True)
        code = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if code != 0:
        progress.close(f"failed with {code}")
        raise SetupFailed(
            "the environment could not be made:\n  "
            + "\n  ".join(tail)
            + "\nCheck the network, the package index (pip config list) and the disk, then start again."
        )


def _write_scripts(root: Path, venv: Path) -> None:
    for name in ("invoke", "inv"):
        script = venv / "bin" / name
        temporary = script.with_name(f".{name}.{os.getpid()}")
        temporary.write_text(SCRIPT.format(python=venv / "bin" / "python", root=str(root)))
        temporary.chmod(0o755)
        temporary.replace(script)


if __name__ == "__main__":
    main()
