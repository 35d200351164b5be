"""Applies roles to a lab host: one by aerie's own playbook, or several as they are; for tests."""

import base64
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie import apply
from aerie.lock import load, role_variables
from aerie.paths import repository
from lab import LabHost

__all__ = ["Played", "applied", "limits", "played", "state_of"]

RECEIPT = {
    "lock": "test",
    "lock_sha256": "0" * 64,
    "applied_at": "2026-01-01T00:00:00Z",
    "previous_lock": None,
    "layers": [],
}
# Another lab's host may have had the same address a moment ago, and an open connection to it would be used again.
CONNECTIONS = tempfile.TemporaryDirectory(prefix="aerie-cp-")

PLAY = """\
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: Apply a layer
      ansible.builtin.include_role:
        name: "{{ aerie_layer }}"
      loop: "{{ aerie_layers }}"
      loop_control:
        loop_var: aerie_layer
    - name: Say the reasons
      ansible.builtin.debug:
        msg: "REASONS={{ aerie_reboot_reasons | default([]) | to_json | b64encode }}"
"""


@dataclass(frozen=True, slots=True)
class Played:
    """How a play ended. changed: tasks that changed something; reasons: for a reboot; text: the end of what it said."""

    ok: bool
    changed: int
    reasons: list[str]
    text: str


def played(host: LabHost, lock: str, *layers: str, check: bool = False, **differences: Any) -> Played:
    """Layers of a lock of the lab's, with these variables instead of the lock's, by plain Ansible; it never reboots."""
    variables = {**role_variables(load(lock, host.inventory.parent)), **differences, "aerie_layers": layers}
    root = repository()
    environment = {**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment |= {"ANSIBLE_ROLES_PATH": str(root / "roles"), "ANSIBLE_SSH_CONTROL_PATH_DIR": CONNECTIONS.name}
    with tempfile.TemporaryDirectory() as folder:
        book, given = Path(folder, "play.yml"), Path(folder, "given.json")
        book.write_text(PLAY)
        given.write_text(json.dumps(variables))
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(host.inventory), "--limit", host.name]
        argv += [str(book), "-e", f"@{given}", *(["--check"] if check else [])]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, env=environment)
    text = done.stdout + done.stderr
    recap, reasons = re.search(r"changed=(\d+)", text), re.search(r"REASONS=([\w+/=]+)", text)
    assert recap is not None, text
    told = json.loads(base64.b64decode(reasons[1])) if reasons else []
    return Played(done.returncode == 0, int(recap[1]), told, text[-6000:])


def applied(host: LabHost, layer: str, *, check: bool = False, **variables: Any) -> apply.HostResult:
    """How a play of this one layer ended, with these variables of the role; it never reboots."""
    given = apply.HostInput(
        host=host.name,
        layers=(layer,),
        group="test",
        group_variables={},
        variables={"aerie_receipt": RECEIPT, **variables},
    )
    common = {"aerie_may_reboot": False, "aerie_lock_text": "", "ansible_control_path_dir": CONNECTIONS.name}
    played = apply.play("provision", [given], inventory=host.inventory, variables=common, forks=1, check=check)
    return played.hosts[0]


def state_of(host: LabHost) -> dict[str, str]:
    """What "nothing was changed" is about: packages, apt's configuration, modules' options, units."""
    folders = "/etc/apt /etc/modprobe.d /etc/systemd/system /usr/local"
    questions = {
        "packages": "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n'",
        "files": f"find {folders} -type f -exec sha256sum {{}} + && find {folders} -type l",
        "audit": "dpkg --audit",
    }
    found = {}
    for name, question in questions.items():
        done = host.ssh(["sh", "-ec", question])
        assert done.returncode == 0, done.stderr
        found[name] = done.stdout.decode()
    return found


def limits() -> dict[str, int]:
    """base_memlock and base_nofile that a host on this machine can have: no more than the machine's own hard limits."""
    memlock, nofile = (resource.getrlimit(which)[1] for which in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE))
    return {"base_memlock": memlock, "base_nofile": min(nofile, 1_048_576) if nofile > 0 else 1_048_576}
