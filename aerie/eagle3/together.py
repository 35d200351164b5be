"""Several hosts that train together, seen from the first: they are asked, started, held at it, and ended with it."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.eagle3 import agent
from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import Context, Json, write_atomic

__all__ = ["Group", "Together", "check", "of", "trained"]

_BEAT_S = 2.0
_LOOK_S = 0.5
_LAST_S = 60.0  # for the others' ends, after the first host's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The hosts beside this one, by their names in the inventory (its path, "" for the checkout's), and this one's
    address, on which they reach it. controller: the Python that reaches hosts; train: the one that trains on each.
    """

    hosts: tuple[str, ...]
    address: str
    inventory: str
    controller: Path
    train: Path


def of(context: Context) -> Together | None:
    """Those of the values finetune.hosts, finetune.address and finetune.inventory; None for none."""
    values = context.values["finetune"]
    if not values["hosts"]:
        return None
    return Together(
        hosts=tuple(values["hosts"]),
        address=values["address"],
        inventory=values["inventory"],
        controller=context.interpreters["controller"],
        train=context.interpreters["train"],
    )


def check(together: Together, kept: Path, gpus: int, needed: Sequence[Path] = ()) -> dict[str, Json]:
    """What each other host has. kept: a folder that every host sees at the same path; needed: what it must have there
    too, besides.

    Raises AerieError for a host that does not, cannot be reached, has other code or packages, or fewer GPUs.
    """
    with _folder(kept, needed) as folder:
        return _check(together, folder, gpus)


@dataclass(slots=True, kw_only=True)
class Group:
    """A training at work on several hosts. command, environment: of this host's part."""

    folder: Path
    hosts: Sequence[str]
    command: Sequence[str]
    environment: Mapping[str, str]

    def failed(self) -> AerieError | None:
        """Why another host's part ended with something else than 0, with its last lines; None for none."""
        for rank, name in enumerate(self.hosts, start=1):
            ended = self._ended(rank)
            if ended and ended["exit_status"] != 0:
                return AerieError(
                    f"host {name}: its part of the training",
                    seen=f"exit status {ended['exit_status']}",
                    expected="0",
                    remedy="Its last lines:\n" + "\n".join(ended["tail"]),
                )
        return None

    def _ended(self, rank: int) -> Json:
        try:
            return json.loads((self.folder / f"{rank}.ended.json").read_bytes())
        except FileNotFoundError:
            return None

    def wait(self, seconds: float) -> None:
        """Until all other parts have ended, so long at the most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(self._ended(rank) for rank in range(1, len(self.hosts) + 1)):
            time.sleep(_LOOK_S)


@contextlib.contextmanager
def trained(
    together: Together,
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
    with _folder(kept, needed) as folder:
        _check(together, folder, gpus_each)
        job = {
            "hosts": 1 + len(together.hosts),
            "processes_each": processes_each,
            "address": together.address,
            "port": _free_port(together.address),
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
        }
        write_atomic(folder / "job.json", json.dumps(job).encode())
        group = Group(
            folder=folder,
            hosts=together.hosts,
            command=agent.command(job, 0),
            environment=agent.environment(job),
        )
        try:
            with _alive(folder / "alive"):
                _ask("join", together, folder)
                yield group
                group.wait(_LAST_S)
        finally:
            group.wait(_LAST_S)  # for those that end because this one did


@contextlib.contextmanager
def _folder(kept: Path, needed: Sequence[Path]) -> Iterator[Path]:
    """One of its own with a marker; gone at the end, so that an agent that comes late finds no job, and one of an
    attempt that was killed ends.
    """
    shutil.rmtree(kept / "hosts", ignore_errors=True)
    folder = kept / "hosts" / secrets.token_hex(8)
    folder.mkdir(parents=True)
    try:
        write_atomic(folder / "needed.json", json.dumps([str(path) for path in needed]).encode())
        (folder / "marker").write_text(secrets.token_hex(8))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alive(file: Path) -> Iterator[None]:
    """The file says another number every two seconds, and is gone at the end."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(_BEAT_S):
            count += 1
            write_atomic(file, str(count).encode(), durable=False)

    write_atomic(file, b"0")
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        file.unlink(missing_ok=True)


def _check(together: Together, folder: Path, gpus: int) -> dict[str, Json]:
    here = _here(together, folder)
    answers = _ask("hello", together, folder)
    for name, seen in answers.items():
        if seen["marker"] != here["marker"]:
            raise AerieError(
                f"host {name}: {folder}",
                seen="another folder, or none",
                expected="this host's, at the same path",
                remedy="Keep the state of runs where all hosts see it: XDG_STATE_HOME on a shared file system.",
            )
        if seen["missing"]:
            raise AerieError(
                f"host {name}: {seen['missing'][0]}",
                seen="nothing there",
                expected="what this host has there",
                remedy="Stage target and drafter on it too: ./invoke stage --host "
                f"{name} --model MODEL, or keep the weights on a shared file system.",
            )
        for what in ("code", "packages"):
            if seen[what] != here[what]:
                raise AerieError(
                    f"host {name}: {what}",
                    seen=seen[what],
                    expected=f"{here[what]}, as here",
                    remedy="Share the checkout and ~/.cache/aerie with it, or bring both to the same state.",
                )
        if seen["gpus"] < gpus:
            raise AerieError(
                f"host {name}: GPUs",
                seen=seen["gpus"],
                expected=f"{gpus} or more, engine.gpus.tensor_parallel",
                remedy="Leave the host out of finetune.hosts.",
            )
        if not seen["interface"]:
            raise AerieError(
                f"host {name}",
                seen=f"no interface on which it reaches {together.address}",
                expected="one, finetune.address",
                remedy="Give the address of this host in a network that the others have too.",
            )
    return answers


def _here(together: Together, folder: Path) -> Json:
    """What this host's own agent says."""
    argv = [str(together.train), "-m", "aerie.eagle3.agent", "hello", str(folder), together.address]
    done = subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AerieError(
            f"{together.train}",
            seen=done.stderr[-2000:],
            expected="the environment train, with torch and specforge",
            remedy="Look at environments.train of the profile.",
        )
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository())}


def _ask(verb: str, together: Together, folder: Path) -> dict[str, Json]:
    """By host, what its agent answers. Raises the first host's AerieError."""
    spec = {
        "hosts": together.hosts,
        "inventory": together.inventory,
        "address": together.address,
        "python": str(together.train),
        "repository": str(repository()),
        "folder": str(folder),
    }
    write_atomic(file := folder / "spec.json", json.dumps(spec).encode())
    done = subprocess.run(
        [together.controller, "-m", "aerie.eagle3.others", verb, file],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise AerieError(
            f"hosts {', '.join(together.hosts)}", seen=done.stderr[-2000:], expected="them to be asked", remedy=""
        )
    answers = json.loads(done.stdout)
    for answer in answers.values():
        if error := answer.get("error"):
            raise AerieError(error["where"], seen=error["seen"], expected=error["expected"], remedy=error["remedy"])
    return {name: answer["answer"] for name, answer in answers.items()}


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, 0), family=family) as listener:
            port: int = listener.getsockname()[1]
    except OSError as error:
        raise AerieError(
            f"finetune.address {address}",
            seen=error.strerror or str(error),
            expected="an address of this host, which listens on it",
            remedy="`ip address` lists them: take the one in the network of the other hosts.",
        ) from error
    return port
