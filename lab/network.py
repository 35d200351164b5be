"""The lab's network on this machine: one bridge with NAT, and a record on the bridge of whose it is.

The record is the bridge's alias, so it lives and dies with the bridge: no file can go stale, and `down` needs none.
"""

import ipaddress
import json
import re
from pathlib import Path

from aerie.errors import AerieError

from .command import run

__all__ = [
    "BRIDGE",
    "GATEWAY",
    "NETWORK",
    "STORE",
    "address_of",
    "claim",
    "release",
    "require_mine",
    "unplug",
    "veth_of",
    "veths",
]

BRIDGE = "aerie-lab"
TABLE = "aerie_lab"
NETWORK = ipaddress.ip_network("10.77.0.0/24")
GATEWAY = NETWORK[1]
STORE = NETWORK[2]  # the machine too, under another name, for what must not be the same host
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def address_of(number: int) -> str:
    """lab01 is .11, so that .1 to .10 stay for the machine and what it serves to its hosts."""
    return str(NETWORK[10 + number])


def veth_of(name: str) -> str:
    """The machine's end of a host's cable; at most 15 characters, which is the kernel's limit."""
    return f"aerie-{name}"


def veths() -> set[str]:
    """The cables that are there, whatever became of their hosts."""
    return {link["ifname"] for link in _links() if re.fullmatch(r"aerie-lab\d\d", link["ifname"])}


def require_mine(state: Path) -> None:
    """Raises AerieError when the bridge belongs to a lab with another state folder."""
    found = _holder()
    if found not in (None, "", str(state)):
        raise AerieError(
            f"bridge {BRIDGE}",
            seen=f"the lab of {found}",
            expected=f"no lab, or the one of {state}",
            remedy=f"Take the other lab down first: XDG_STATE_HOME={Path(str(found)).parent.parent} invoke lab.down",
        )


def claim(state: Path) -> None:
    """Make the bridge, its NAT and forwarding; nothing changes where they are this lab's already."""
    require_mine(state)
    if _record() is None:
        _require_free_network()
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    if _holder() != str(state):
        record = json.dumps({"state": str(state), "ip_forward": FORWARD.read_text().strip()})
        run(["ip", "link", "set", BRIDGE, "alias", record])
    for address in (GATEWAY, STORE):
        run(["ip", "address", "replace", f"{address}/{NETWORK.prefixlen}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    FORWARD.write_text("1")
    run(
        ["nft", "-f", "-"],
        stdin=f"""
add table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ip saddr {NETWORK} oifname != "{BRIDGE}" masquerade
    }}
}}
""",
    )


def unplug(name: str) -> None:
    """Remove a host's cable. It would vanish with the dead host's namespace, but later, and block the next start."""
    _delete_link(veth_of(name))


def release() -> None:
    """Remove cables, bridge and NAT, and put forwarding back as it was; whatever of them is there."""
    for veth in sorted(veths()):
        _delete_link(veth)
    # Adding before deleting makes the deletion of a missing table no error.
    run(["nft", "-f", "-"], stdin=f"add table ip {TABLE}\ndelete table ip {TABLE}\n")
    record = _record()
    if record is not None:
        if "ip_forward" in record:
            FORWARD.write_text(record["ip_forward"])
        _delete_link(BRIDGE)


def _delete_link(name: str) -> None:
    try:
        run(["ip", "link", "delete", name])
    except AerieError:
        if any(link["ifname"] == name for link in _links()):  # otherwise its namespace took it along just now
            raise


def _links() -> list[dict[str, str]]:
    links: list[dict[str, str]] = json.loads(run(["ip", "-json", "link", "show"]) or "[]")
    return links


def _holder() -> str | None:
    """The state folder of the lab that has the bridge; "" when the bridge does not say; None without a bridge."""
    record = _record()
    return None if record is None else str(record.get("state", ""))


def _record() -> dict[str, str] | None:
    """What the bridge's alias says; {} when it says nothing (its maker died in between); None without a bridge."""
    for link in _links():
        if link["ifname"] == BRIDGE:
            try:
                record: dict[str, str] = json.loads(link.get("ifalias", "{}"))
            except ValueError:
                return {}
            return record
    return None


def _require_free_network() -> None:
    for route in json.loads(run(["ip", "-json", "-4", "route", "show"]) or "[]"):
        if route["dst"] != "default" and NETWORK.overlaps(ipaddress.ip_network(route["dst"], strict=False)):
            raise AerieError(
                "lab network",
                seen=f"a route to {route['dst']} by {route.get('dev', 'a gateway')}",
                expected=f"{NETWORK} unused on this machine",
                remedy="Use a machine without that network.",
            )
