"""The programs that move bytes, one process per file: aria2, the hub's own client, rsync, dd for a local folder, and
piece.py for what a peer has.

Each command continues the partial file where it ends, but the hub's client, which cannot (1.18 and later).
"""

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from aerie.weights.onhost import hub_client, piece
from aerie.weights.onhost.address import Address
from aerie.weights.onhost.children import Ended

__all__ = [
    "RSYNC",
    "Command",
    "Fault",
    "aria2",
    "available",
    "control_file",
    "copy",
    "fault",
    "hub",
    "hub_folder",
    "piece_of",
    "rsync",
]

RSYNC: Final = {"RSYNC_RSH": "ssh -o BatchMode=yes"}  # by --rsh, an rsync:// address would go over ssh as well
_HUB_URL: Final = re.compile(r"(?P<endpoint>https?://[^/]+)/(?P<repository>.+)/resolve/(?P<revision>[0-9a-f]{40})/")
_STATUS: Final = re.compile(r"\bstatus=(\d{3})\b")
_LOCAL: Final = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error",
                 "File too large", "Permission denied (os error", "Not enough disk space")  # fmt: skip
_ARIA2_LOCAL: Final = (9, 15, 16, 17, 18)  # disk full, or the part could not be opened, made or written: aria2c(1)
_NO_RESUME: Final = {"aria2": 8, "piece": piece.NO_RANGE}
_LESS: Final = ("404", "416")
PIECE_BYTES: Final = 2 << 30  # at once from one peer; then another may have more of it, or more time


class Fault(StrEnum):
    """What a failed transfer calls for."""

    AGAIN = "again"  # later, or from elsewhere
    NO_RESUME = "no-resume"  # this source cannot continue a partial file
    RESTART = "restart"  # the partial file is no beginning of the file
    LESS = "less"  # the peer has less of it than it said: it began anew, or is ahead no more
    HOST = "host"  # nothing will help but a change on this host


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start a program. grows: the file or folder whose bytes tell that it moves. Secrets are in stdin only."""

    name: str
    argv: tuple[str, ...]
    grows: Path
    stdin: bytes = b""
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def available(wanted: tuple[str, ...], hub_python: Path) -> tuple[str, ...]:
    """Those of the wanted backends that this host has, in their order."""
    found = {"aria2": shutil.which("aria2c") is not None, "hub": os.access(hub_python, os.X_OK)}
    return tuple(name for name in wanted if found[name])


def aria2(address: Address, part: Path, size: int, stall_s: float) -> Command:
    """One connection that appends to `part`, whose size is therefore what has arrived."""
    options = {
        "no-conf": "true", "no-netrc": "true",
        "split": "1", "max-connection-per-server": "1",  # more gain nothing where many files run side by side
        "continue": "true", "always-resume": "true", "auto-file-renaming": "false",
        # The size of the part is the record of what is there; a control file would lag behind it after a kill -9.
        "auto-save-interval": "0", "file-allocation": "none",
        "max-tries": "1", "connect-timeout": str(min(30, _seconds(stall_s))),
        "timeout": str(min(600, _seconds(stall_s))),
        "follow-torrent": "false", "follow-metalink": "false", "enable-dht": "false",
        "async-dns": "false",  # the system's resolver, as for the request that led here
        "user-agent": "aerie", "show-console-readout": "false", "summary-interval": "0",
        "download-result": "hide", "console-log-level": "error", "enable-color": "false",
        "stop-with-process": str(os.getpid()),
    }  # fmt: skip
    # Told the size, by a metalink, aria2 asks at once for the range that is missing. Else it asks for the whole first,
    # or by HEAD; but a metalink takes no header, and no "&" in a name (1.36 makes "&#38;" of it).
    if address.token or "&" in part.name:
        how = "input-file"
        header = f"  header=Authorization: Bearer {address.token}\n" if address.token else ""
        order = f"{address.url}\n  out=./{part.name}\n  use-head={str(address.answers_head).lower()}\n{header}"
    else:
        how = "metalink-file"
        file = f'<file name="{html.escape(part.name)}"><size>{size}</size><url>{html.escape(address.url)}</url></file>'
        order = f'<metalink xmlns="urn:ietf:params:xml:ns:metalink">{file}</metalink>'
    argv = ("aria2c", *(f"--{name}={value}" for name, value in options.items()), f"--{how}=-")
    return Command(name="aria2", argv=argv, stdin=order.encode(), folder=part.parent, grows=part)


def control_file(part: Path) -> Path:
    """What aria2 leaves beside a part that it could not finish: it tells less than the part's size, and later lies."""
    return part.with_name(f"{part.name}.aria2")


def hub_folder(part: Path) -> Path:
    """Where the hub's client works; what it leaves there it cannot use again."""
    return part.with_name(f"{part.name}.hub")


def hub(url: str, token: str, path: str, part: Path, python: Path, stall_s: float) -> Command | None:
    """The hub's client in an environment of its own, None where `url` is not a hub's; the file comes to `part`."""
    match = _HUB_URL.fullmatch(url)
    if match is None:
        return None
    folder = hub_folder(part)
    order = {**match.groupdict(), "path": path, "folder": str(folder), "part": str(part), "token": token}
    return Command(
        name="hub", argv=(str(python), "-I", hub_client.__file__), stdin=json.dumps(order).encode(), grows=folder,
        environment={
            "HF_HOME": str(folder / "home"),  # its caches, all removed with the folder
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_XET_CLIENT_READ_TIMEOUT": f"{_seconds(stall_s)}s",
        },
    )  # fmt: skip


def copy(folder: str, path: str, part: Path, have: int) -> Command:
    """Continue `part` from the file in a folder of this host."""
    argv = ("dd", f"if={folder}{path}", f"of={part}", "bs=16M", "iflag=skip_bytes", f"skip={have}",
            "oflag=seek_bytes", f"seek={have}", "conv=notrunc", "status=none")  # fmt: skip
    return Command(name="copy", argv=argv, grows=part)


def rsync(url: str, path: str, part: Path) -> Command:
    """Continue `part` over ssh or from an rsync server."""
    argv = ("rsync", "--append", "--copy-links", "--protect-args", "--", f"{url}{path}", str(part))
    return Command(name="rsync", argv=argv, grows=part, environment=RSYNC)


def piece_of(urls: Sequence[str], part: Path, have: int, size: int, stall_s: float) -> Command:
    """Continue `part` from what a peer has at the first of these addresses that has something."""
    argv = (sys.executable, "-I", "-S", piece.__file__, part, have, PIECE_BYTES, size, stall_s, *urls)
    return Command(name="piece", argv=tuple(map(str, argv)), grows=part)


def fault(name: str, ended: Ended) -> tuple[Fault, str]:
    """What a backend's failure calls for, and its reason in one line without addresses: those may be signed."""
    code = ended.exit_code
    if code < 0:
        return Fault.AGAIN, f"{name} was killed by signal {-code}"
    lines = [line for line in ended.output.splitlines() if line.strip() and "log file" not in line]
    if name != "rsync":  # whose first line says it, and the last one only its exit code
        lines = [line for line in reversed(lines) if "rror" in line] or lines
    reason = re.sub(r"\S+://\S+", "<address>", (lines or [f"exit code {code}"])[0].strip())[-300:]
    if any(text in ended.output for text in _LOCAL) or (name == "aria2" and code in _ARIA2_LOCAL):
        return Fault.HOST, reason
    if code == _NO_RESUME.get(name):
        return Fault.NO_RESUME, "the server does not continue a partial file"
    status = _STATUS.findall(ended.output)
    if name == "piece" and status and status[-1] in _LESS:
        return Fault.LESS, f"HTTP {status[-1]}: it has less than it said"
    if "416" in status:
        return Fault.RESTART, "HTTP 416"
    return Fault.AGAIN, f"HTTP {status[-1]}" if status else reason


def _seconds(stall_s: float) -> int:
    return max(1, round(stall_s))
