"""Plays on hosts: ansible-runner with what a play is doing as a value that a screen can draw.

Logs and events of every play stay in <state>/hosts/plays/<id>/.
"""

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
import yaml

from .errors import AerieError
from .paths import repository, state_dir
from .runbook import interrupts
from .runbook.step import write_atomic

__all__ = ["Cell", "Grid", "HostInput", "HostResult", "Listener", "PlayResult", "inventory_of", "play"]

ERROR_LINES = 12
SOCKETS = "aerie-ssh-"
LEFT_S = 3600
STOPPED = (
    "stopped before its end, for more hosts failed than --max-fail-percentage lets; nothing is wrong with this one"
)
REBOOT = "reboot"  # the column after the layers


class Cell(StrEnum):
    """State of one layer on one host."""

    PENDING = "pending"
    RUNNING = "running"
    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"


@dataclass(slots=True)
class _Row:
    cells: dict[str, Cell]
    task: str = ""
    error: str = ""
    is_unreachable: bool = False
    has_rebooted: bool = False
    changed: int = 0
    ended_at: float = 0.0
    reasons: tuple[str, ...] = ()
    play: str = ""  # of the playbook, the last one that it took part in


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInput:
    """What a play is told of one host. group: has the group_variables, which lose to the inventory's own."""

    host: str
    layers: tuple[str, ...]
    group: str
    group_variables: Mapping[str, Any]
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """How the play ended on one host. changed: tasks that changed something.

    cells: by layer, and "reboot" where there was one; reboot_reasons: those given and those that roles added.
    """

    host: str
    state: str  # "ok", "failed", "unreachable"
    cells: Mapping[str, Cell]
    changed: int
    has_rebooted: bool
    reboot_reasons: tuple[str, ...]
    error: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON documents have it."""
        return {
            "host": self.host,
            "state": self.state,
            "layers": {layer: str(cell) for layer, cell in self.cells.items()},
            "changed": self.changed,
            "rebooted": self.has_rebooted,
            "reboot_reasons": list(self.reboot_reasons),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayResult:
    """folder: logs and events of the play."""

    id: str
    hosts: tuple[HostResult, ...]
    wall_s: float
    folder: Path


@dataclass(slots=True)
class Grid:
    """Host x layer, kept up to date from Ansible's events while a play runs. started: time.monotonic()."""

    rows: dict[str, _Row]
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, hosts: Sequence[HostInput]) -> "Grid":
        """Every layer pending."""
        rows = {}
        for one in hosts:
            reasons = tuple(one.variables.get("aerie_reboot_reasons", ()))
            rows[one.host] = _Row(dict.fromkeys(one.layers, Cell.PENDING), reasons=reasons)
        return cls(rows)

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take in one event of ansible-runner; those of other kinds change nothing."""
        data = event.get("event_data") or {}
        row = self.rows.get(data.get("host", ""))
        if row is None:
            return
        kind, layer = event["event"], _layer(data)
        row.play = str(data.get("play", row.play))
        if kind == "runner_on_start":
            row.task = str(data.get("task", ""))
            if layer == REBOOT or row.cells.get(layer) is Cell.PENDING:
                self._end_running(row, layer)
                row.cells[layer] = Cell.RUNNING
        elif kind == "runner_on_ok":
            self._ok(row, layer, data)
        elif kind == "runner_on_failed" and not data.get("ignore_errors"):
            self._failed(row, layer, data)
        elif kind == "runner_on_unreachable":
            row.is_unreachable = True
            self._failed(row, layer, data)

    def finish(self, last_play: str = "") -> None:
        """The playbook has ended: what still runs on a host that did not fail is ok.

        last_play: where hosts failed, the playbook's last one; a host that never came there was stopped with them.
        """
        for row in self.rows.values():
            if not row.error and last_play not in ("", row.play):
                row.error = STOPPED
                row.cells = {layer: Cell.PENDING if cell is Cell.RUNNING else cell for layer, cell in row.cells.items()}
            elif not row.error:
                self._end_running(row, "")

    def results(self) -> tuple[HostResult, ...]:
        """One a host, in the order given."""
        return tuple(
            HostResult(
                host=host,
                state="unreachable" if row.is_unreachable else "failed" if row.error else "ok",
                cells=dict(row.cells),
                changed=row.changed,
                has_rebooted=row.has_rebooted,
                reboot_reasons=row.reasons,
                error=row.error,
            )
            for host, row in self.rows.items()
        )

    def _ok(self, row: _Row, layer: str, data: Mapping[str, Any]) -> None:
        result = data.get("res") or {}
        facts = result.get("ansible_facts") or {}
        row.reasons = tuple(facts.get("aerie_reboot_reasons", row.reasons))
        if data.get("task_action") in ("ansible.builtin.reboot", "reboot") and result.get("rebooted"):
            row.has_rebooted = True
            row.cells[REBOOT] = Cell.CHANGED
        elif result.get("changed"):
            row.changed += 1
            if layer in row.cells:
                row.cells[layer] = Cell.CHANGED
        row.ended_at = time.monotonic()

    def _failed(self, row: _Row, layer: str, data: Mapping[str, Any]) -> None:
        # A host that was rebooted and did not come back in time.
        row.has_rebooted = row.has_rebooted or (layer == REBOOT and bool((data.get("res") or {}).get("rebooted")))
        row.error = f"{data.get('task', 'a task')}: {_message(data.get('res') or {})}"
        if layer in row.cells:
            row.cells[layer] = Cell.FAILED

    def _end_running(self, row: _Row, besides: str) -> None:
        for name, cell in row.cells.items():
            if cell is Cell.RUNNING and name != besides:
                row.cells[name] = Cell.OK


Listener = Callable[[Grid], None]


def play(
    playbook: str,
    hosts: Sequence[HostInput],
    *,
    inventory: Path,
    variables: Mapping[str, Any],
    forks: int,
    listener: Listener = lambda grid: None,
    check: bool = False,
    watch: Callable[[Mapping[str, Any]], None] = lambda event: None,
) -> PlayResult:
    """Run playbooks/<playbook>.yml on these hosts and wait for its end.

    variables: for all hosts, over everything else. check: change nothing, and have events tell what would be written
    into files. watch is called with each event of ansible-runner, listener with what it made of the grid. A host that
    fails does not end the play for the others.
    Raises AerieError when Ansible itself could not run, and Interrupted after Ctrl-C or SIGTERM, which end it.
    """
    path, folder = repository() / "playbooks" / f"{playbook}.yml", _folder()
    own = folder / "inventory" / "aerie.yml"
    write_atomic(own, yaml.safe_dump(inventory_of(hosts), sort_keys=False).encode())
    grid = Grid.of(hosts)

    def on_event(event: Mapping[str, Any]) -> bool:
        grid.feed(event)
        watch(event)
        listener(grid)
        return True

    options = {
        "inventory": [str(inventory), str(own)],
        "limit": ",".join(grid.rows),
        "extravars": dict(variables),
        "forks": forks,
        "cmdline": "--check --diff" if check else None,
    }
    runner = _run(path, folder, options, on_event=on_event, meanwhile=lambda: listener(grid))
    grid.finish("" if runner.rc == 0 else _last_play(path))
    listener(grid)
    _require_answers(runner, grid, folder)
    return PlayResult(id=folder.name, hosts=grid.results(), wall_s=time.monotonic() - grid.started, folder=folder)


def _run(
    playbook: Path,
    folder: Path,
    options: Mapping[str, Any],
    *,
    on_event: Callable[[Mapping[str, Any]], bool],
    meanwhile: Callable[[], None],
) -> Any:
    """What ansible-runner says of the playbook once it ended. meanwhile: called several times a second.

    Raises Interrupted when it was ended by Ctrl-C or SIGTERM.
    """
    import ansible_runner

    started: list[psutil.Process] = []

    def is_stopped() -> bool:
        # Ansible's workers have sessions of their own: they would outlive the playbook that is stopped.
        if interrupted.count and not started:
            started.extend(psutil.Process().children(recursive=True))
        return interrupted.count > 0

    with _sockets() as sockets, interrupts.catch() as interrupted:
        thread, runner = ansible_runner.run_async(
            private_data_dir=str(folder),
            project_dir=str(repository()),
            playbook=str(playbook),
            envvars=_environment(sockets),
            ident="play",
            quiet=True,
            suppress_env_files=True,
            event_handler=on_event,
            cancel_callback=is_stopped,
            **options,
        )
        while thread.is_alive():
            thread.join(0.2)
            meanwhile()
    if interrupted.count:
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        said = f"interrupted; the same command goes on where this one stopped. Ansible's output is in {folder}"
        raise interrupts.Interrupted(said, interrupted.exit_code)
    return runner


def _last_play(playbook: Path) -> str:
    return str(yaml.safe_load(playbook.read_text())[-1]["name"])


def _folder() -> Path:
    """A new folder for the logs and events of a play; its name is the play's."""
    folder = state_dir() / "hosts" / "plays" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    (folder / "inventory").mkdir(parents=True, mode=0o700)
    return folder


@contextmanager
def _sockets() -> Iterator[str]:
    """A folder for the connections that stay open, gone afterwards."""
    # They are this play's alone: one left by another inventory may lead to another host of the same address, whose key
    # nobody would check again. Short, because a socket's path has at most 108 characters.
    for left in Path(tempfile.gettempdir()).glob(f"{SOCKETS}*"):
        # Of a controller that was killed: empty, once its connections have ended by themselves.
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.rmdir()
    folder = tempfile.mkdtemp(prefix=SOCKETS)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(sockets: str) -> dict[str, str]:
    # ansible-playbook lies beside this Python, on PATH or not; it wants a UTF-8 locale.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        "ANSIBLE_CONFIG": str(repository() / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner would turn it off, over what the configuration says
        "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
        "LC_ALL": "C.UTF-8",
        "PATH": path,
    }


def inventory_of(hosts: Sequence[HostInput]) -> dict[str, Any]:
    """What a play is told of these hosts, as an inventory beside the user's own."""
    # A group's variables in an inventory file lose to group_vars and host_vars, and win over a role's defaults:
    # that is a lock's place. What the plan says of a host is the host's own.
    groups: dict[str, Any] = {}
    for one in hosts:
        group = groups.setdefault(one.group, {"vars": dict(one.group_variables), "hosts": {}})
        group["hosts"][one.host] = {**one.variables, "aerie_layers": list(one.layers)}
    return {"all": {"children": groups}}


def _require_answers(runner: Any, grid: Grid, folder: Path) -> None:
    """Raises AerieError when no host was even tried: a playbook or inventory that Ansible does not take."""
    if runner.rc == 0 or any(row.error or row.ended_at for row in grid.rows.values()):
        return
    output = (folder / "artifacts" / "play" / "stdout").read_text(errors="replace")
    raise AerieError(
        "ansible-playbook",
        seen="\n".join([f"exit {runner.rc}", *output.strip().splitlines()[-ERROR_LINES:]]),
        expected="a play on every host",
        remedy=f"Its whole output is {folder}/artifacts/play/stdout.",
    )


def _layer(data: Mapping[str, Any]) -> str:
    if data.get("task_action") in ("ansible.builtin.reboot", "reboot"):
        return REBOOT
    return str(data.get("role") or "")


def _message(result: Mapping[str, Any]) -> str:
    """What a failed task says, at most ERROR_LINES lines: its message, and the end of what its program wrote."""
    failed = [one for one in result.get("results", ()) if isinstance(one, Mapping) and one.get("failed")]
    parts = [str(one.get("msg", "")) for one in failed] or [str(result.get("msg", ""))]
    parts += [str(result[key]) for key in ("stderr", "module_stderr") if result.get(key)]
    stdout = str(result.get("stdout", ""))
    if not result.get("stderr"):
        parts.append(stdout)
    elif (start := stdout.find("dpkg: error")) >= 0:  # apt's stderr says only that dpkg failed
        parts.append(stdout[start:])
    lines = [line for part in parts for line in part.strip().splitlines() if line.strip()]
    if len(lines) > ERROR_LINES:
        lines = [lines[0], f"… {len(lines) - ERROR_LINES} lines …", *lines[2 - ERROR_LINES :]]
    return "\n".join(lines) or "failed without a message"
