"""SpecForge's processes: one here, several under torchrun, or several on each of several hosts."""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from aerie.eagle3.compute import Launcher
from aerie.eagle3.training_along import Group, trained
from aerie.errors import AerieError

__all__ = ["run"]

_LOG_LINES = 40  # of a failed process, in the error: torchrun's own summary of one has twenty
_LOOK_S = 2.0  # after the other hosts


def run(
    arguments: Sequence[str],
    log: Path,
    launcher: Launcher,
    on_line: Callable[[str], None],
    needed: Sequence[Path] = (),
) -> None:
    """Run SpecForge's command line; its output goes on in `log`. Other hosts take part in "train" alone.

    on_line: is given every line; what it raises ends all processes, those of other hosts too, and is raised here.
    needed: what it reads beside the log's folder.
    Raises AerieError where it, or another host's part of it, ends with something else than 0.
    """
    variables = {"HF_HUB_OFFLINE": "1", **launcher.environment}
    if launcher.together is None or arguments[0] != "train":
        _run(arguments[0], _command(arguments, launcher), variables, log, on_line, None)
        return
    with trained(
        launcher.together,
        log.parent,
        module=launcher.module,
        arguments=arguments,
        environment={"OMP_NUM_THREADS": "1", **variables},
        needed=needed,
        processes_each=launcher.processes_each,
        gpus_each=launcher.processes_each if launcher.is_on_gpus else 0,
    ) as group:
        _run(arguments[0], group.command, group.environment, log, on_line, group)


def _command(arguments: Sequence[str], launcher: Launcher) -> list[str]:
    command = [sys.executable, "-m"]
    if arguments[0] == "train" and launcher.processes > 1:
        # Not by SpecForge itself, which always starts its own module: on CPUs that is another one.
        command += ["torch.distributed.run", "--standalone", f"--nproc_per_node={launcher.processes}", "-m"]
    return [*command, launcher.module, *arguments]


def _run(
    verb: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None],
    group: Group | None,
) -> None:
    # Unbuffered, a line and its end are two writes, and the lines of several processes mix. The trainer flushes them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    last: deque[str] = deque(maxlen=_LOG_LINES)
    with (
        open(log, "a", encoding="utf-8", buffering=1) as file,  # what is acted on has to be found there again
        subprocess.Popen(
            command,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
        _watched(group, process) as failures,
    ):
        assert process.stdout is not None
        file.write(f"$ {shlex.join(command)}\n")
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line.rstrip())
                on_line(line)
        except BaseException:
            process.terminate()  # torchrun ends its processes then
            raise
    if failures:
        raise failures[0]
    if process.returncode != 0:
        raise AerieError(
            f"specforge {verb}",
            seen=f"exit status {process.returncode}",
            expected="0",
            remedy=f"Its log is {log}; the last lines:\n" + "\n".join(last),
        )


@contextlib.contextmanager
def _watched(group: Group | None, process: "subprocess.Popen[str]") -> Iterator[list[AerieError]]:
    """What failed on other hosts while the process worked; it is then ended, for it would wait for them in vain."""
    failures: list[AerieError] = []
    over = threading.Event()

    def watch(group: Group) -> None:
        while not over.wait(_LOOK_S):
            if process.poll() is None and (failure := group.failed()):
                failures.append(failure)
                process.terminate()
                return

    if group is None:
        yield failures
        return
    thread = threading.Thread(target=watch, args=(group,), daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        over.set()
        thread.join()
