"""What others need to use the hosts: a key, host keys, an ssh configuration, an inventory with its locks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from aerie.runbook.step import write_atomic

from .command import run
from .host import LabHost
from .scenario import cards

__all__ = ["lab_key", "make_key", "write_access", "write_locks"]

LOCKS = Path(__file__).resolve().parent / "locks"


def lab_key(state: Path) -> Path:
    """The private key that opens every host of this lab, made on first use."""
    return make_key(state / "id_ed25519")


def make_key(path: Path) -> Path:
    """`path`, an ed25519 private key without passphrase; the public one lies beside it."""
    if not path.with_name(f"{path.name}.pub").exists():
        path.unlink(missing_ok=True)  # half a pair: its maker was killed
        path.parent.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "aerie-lab", "-f", str(path)])
    return path


def write_access(state: Path, hosts: Iterable[tuple[LabHost, str]]) -> None:
    """known_hosts, ssh_config and inventory/hosts.yml for these hosts, each given with its public host key."""
    rows = list(hosts)
    known = "".join(f"{host.name},{host.address} {' '.join(key.split()[:2])}\n" for host, key in rows)
    _write(state / "known_hosts", known)
    _write(state / "ssh_config", "".join(_ssh_block(state, host) for host, _ in rows))
    group = {"hosts": {host.name: _inventory_row(state, host) for host, _ in rows}, "vars": {"aerie_lock": "lab"}}
    inventory = {"all": {"children": {"lab": group}}}
    _write(state / "inventory/hosts.yml", yaml.safe_dump(inventory, sort_keys=False))


def write_locks(state: Path, words: Mapping[str, str]) -> None:
    """The lab's locks beside its inventory, with these words in place of @WORD@."""
    for file in sorted(LOCKS.glob("*.lock.toml")):
        text = file.read_text()
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        _write(state / "inventory/locks" / file.name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(), durable=False)


def _ssh_block(state: Path, host: LabHost) -> str:
    return f"""\
Host {host.name} {host.address}
    HostName {host.address}
    HostKeyAlias {host.name}
    User root
    IdentityFile "{state}/id_ed25519"
    IdentitiesOnly yes
    UserKnownHostsFile "{state}/known_hosts"
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 5

"""


def _inventory_row(state: Path, host: LabHost) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ansible_host": host.address,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(state / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile='{state}/known_hosts' -o StrictHostKeyChecking=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    if host.has_gpus:
        plugged = list(cards().values())
        row["aerie_gpus"] = {
            "count": len(plugged),
            "model": plugged[0]["name"],
            "bus_ids": [card["bus_id"] for card in plugged],
            "serials": [card["serial"] for card in plugged],
            "power_limit_w": plugged[0]["power_limit_default_mw"] // 1000,
        }
    return row
