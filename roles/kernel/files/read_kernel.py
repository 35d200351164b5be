"""Prints what the role decides by, as one JSON object. Argument: JSON with cmdline, series and blacklist of the role.

running, next: releases; next is the newest with an image in /boot, else what runs.
installed: [{"release", "has_headers"}], oldest first; empty in a container.
is_series, is_next_series: is that release of one of the series?
cmdline_wrong: words that are missing or contradicted now.
next_cmdline_wrong: the same of GRUB's default entry; none without GRUB.
loaded: blacklisted modules that are loaded. stale_initramfs: images older than the blacklist.
has_grub, has_initramfs: are there the programs that write their files?
"""

import json
import re
import sys
from pathlib import Path

BLACKLIST = "etc/modprobe.d/90-aerie-blacklist.conf"


def age(release: str) -> list[tuple[int, int, str]]:
    """A key that sorts releases by version: 6.8.0-9 before 6.8.0-31."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|\D+", release)]


def is_of(release: str, series: list[str]) -> bool:
    """6.8.0-31-generic is of 6.8, 6.80 is not; every release is of no series at all."""
    return not series or any(re.match(re.escape(one) + r"(?!\d)", release) for one in series)


def wrong(words: list[str], line: str) -> list[str]:
    """Those of words that the command line lacks, or whose key has a value there that is none of them."""
    there = line.split()

    def is_contradicted(word: str) -> bool:
        key, equals, _ = word.partition("=")
        return bool(equals) and any(other.startswith(f"{key}=") and other not in words for other in there)

    return [word for word in words if word not in there or is_contradicted(word)]


def next_cmdline(root: Path) -> str:
    """The command line of the first entry of grub.cfg, which is the default one; empty before GRUB wrote any."""
    try:
        text = (root / "boot/grub/grub.cfg").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^\s*linux(?:efi|16)?\s+\S+(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def stale_initramfs(root: Path) -> list[str]:
    """Names of initramfs images made before the blacklist was last written."""
    try:
        written = (root / BLACKLIST).stat().st_mtime
    except OSError:
        written = float("inf")  # not there yet: every image is older than what comes
    return sorted(file.name for file in (root / "boot").glob("initrd.img-*") if file.stat().st_mtime < written)


def read(wanted: dict[str, list[str]], root: Path = Path("/")) -> dict[str, object]:
    """What the head of this file lists, of the host whose files lie below root."""
    running = (root / "proc/sys/kernel/osrelease").read_text().strip()
    modules = root / "proc/modules"  # not there on a kernel that loads none
    loaded = {line.split()[0] for line in modules.read_text().splitlines()} if modules.exists() else set()
    # vmlinuz-6.8.0-31-generic, but neither vmlinuz-….old nor what dpkg is just unpacking.
    images = [file.name.removeprefix("vmlinuz-") for file in (root / "boot").glob("vmlinuz-*[!~]")]
    releases = sorted((one for one in images if not one.endswith((".old", ".dpkg-new", ".dpkg-tmp"))), key=age)
    following = releases[-1] if releases else running
    has_grub = (root / "usr/sbin/update-grub").exists()
    return {
        "running": running,
        "next": following,
        "installed": [
            {"release": one, "has_headers": (root / "lib/modules" / one / "build").is_dir()} for one in releases
        ],
        "is_series": is_of(running, wanted["series"]),
        "is_next_series": is_of(following, wanted["series"]),
        "cmdline_wrong": wrong(wanted["cmdline"], (root / "proc/cmdline").read_text()),
        "next_cmdline_wrong": wrong(wanted["cmdline"], next_cmdline(root)) if has_grub else [],
        "loaded": [module for module in wanted["blacklist"] if module.replace("-", "_") in loaded],
        "stale_initramfs": stale_initramfs(root),
        "has_grub": has_grub,
        "has_initramfs": (root / "usr/sbin/update-initramfs").exists(),
    }


if __name__ == "__main__":
    json.dump(read(json.loads(sys.argv[1])), sys.stdout)
