"""apt: its sources and their keys, unattended upgrades, needrestart, pins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Callable

from .openpgp import fingerprints
from .reading import Later, join, names, optional, program, reading, text

__all__ = ["config", "keys", "needrestart", "pin_files", "sources", "unattended"]

ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)")
RESTART = re.compile(r"^\s*\$nrconf\{['\"]?restart['\"]?\}\s*=\s*['\"](\w)['\"]", re.MULTILINE)
CONFIG = re.compile(r'^(?P<key>[\w:/.+-]+) "(?P<value>.*)";$')
NVIDIA = re.compile(r"^(?:Package|Pin):.*(?:nvidia|cuda)", re.MULTILINE | re.IGNORECASE)


def sources(root: str = "/") -> list[dict[str, Any]]:
    """The snapshot's AptSource of every binary source that is switched on, one for each address."""
    folder = join(root, "/etc/apt/sources.list.d")
    files = [join(root, "/etc/apt/sources.list")] + [os.path.join(folder, name) for name in names(folder)]
    found = []
    for file in files:
        document = optional(file)
        if document is None:
            continue
        path = "/" + os.path.relpath(file, root)
        if file.endswith(".list"):
            found += [_source(root, path, *entry) for entry in _one_line(document)]
        elif file.endswith(".sources"):
            found += [_source(root, path, *entry) for entry in _deb822(document)]
    return found


def keys(root: str = "/") -> list[str]:
    """Fingerprints of the keys that apt trusts for every source."""
    folder = join(root, "/etc/apt/trusted.gpg.d")
    files = [join(root, "/etc/apt/trusted.gpg")]
    files += [os.path.join(folder, name) for name in names(folder) if name.endswith((".gpg", ".asc"))]
    found: list[str] = []
    for file in files:
        if os.path.exists(file):
            found += [key for key in _keys_of(file) if key not in found]
    return found


def config() -> Later:
    """apt's whole configuration, as `apt-config dump` has it."""
    return program("apt-config", "dump")


def unattended(packages: dict[str, dict[str, Any]], dump: Callable[[], Later] = config) -> dict[str, Any] | None:
    """The snapshot's Unattended from apt's configuration; None where unattended-upgrades is not installed."""
    if packages.get("unattended-upgrades", {"status": "un"})["status"][1] != "i":
        return None
    matches = [match for match in map(CONFIG.match, dump().get().splitlines()) if match]
    settings = [(match["key"], match["value"]) for match in matches]
    value = dict(settings)
    is_enabled = all(
        value.get(f"APT::Periodic::{name}", default) not in ("0", "")
        for name, default in (("Enable", "1"), ("Unattended-Upgrade", "0"))
    )
    blacklist = [setting for key, setting in settings if key == "Unattended-Upgrade::Package-Blacklist::"]
    return {"is_enabled": is_enabled, "blacklist": blacklist}


def needrestart(root: str = "/") -> str | None:
    """What needrestart does with services: "l" lists them, "i" asks, "a" restarts; None where it is not installed."""
    if not os.path.exists(join(root, "/usr/sbin/needrestart")):
        return None
    folder = join(root, "/etc/needrestart/conf.d")
    documents = [optional(join(root, "/etc/needrestart/needrestart.conf")) or ""]
    documents += [text(os.path.join(folder, name)) for name in names(folder) if name.endswith(".conf")]
    said = [match for document in documents for match in RESTART.findall(document)]
    if said:
        return str(said[-1])
    # Ubuntu's hook calls it with "-m u": unless told otherwise it restarts services when nobody is there to ask.
    hook = optional(join(root, "/etc/apt/apt.conf.d/99needrestart")) or ""
    return "a" if re.search(r"apt-pinvoke.*-m\s+u", hook) else "i"


def pin_files(root: str = "/") -> list[str]:
    """Files of apt's preferences that name packages of NVIDIA."""
    folder = join(root, "/etc/apt/preferences.d")
    files = [join(root, "/etc/apt/preferences")]
    # apt reads no others: "nvidia-driver-pinning-590.48.01" would have the ending ".01".
    files += [os.path.join(folder, name) for name in names(folder) if re.fullmatch(r"[\w-]+|[\w.-]+\.pref", name)]
    return ["/" + os.path.relpath(file, root) for file in files if NVIDIA.search(optional(file) or "")]


def _source(root: str, file: str, uri: str, suites: list[str], signed_by: str | None, inline: str) -> dict[str, Any]:
    keyring: Any = []
    if inline:
        keyring = reading(fingerprints, inline.encode())
    elif signed_by:
        keyring = reading(_named_keys, root, re.split(r"[,\s]+", signed_by))
    return {"file": file, "uri": uri, "suites": suites, "signed_by": signed_by, "fingerprints": keyring}


def _one_line(document: str) -> Iterator[tuple[str, list[str], str | None, str]]:
    for line in document.splitlines():
        match = ONE_LINE.match(line.strip())
        if match:
            options = dict(word.split("=", 1) for word in (match["options"] or "").split() if "=" in word)
            yield match["uri"], [match["suite"]], options.get("signed-by"), ""


def _deb822(document: str) -> Iterator[tuple[str, list[str], str | None, str]]:
    for block in re.split(r"\n\s*\n", document):
        fields = _fields(block)
        is_off = fields.get("enabled", "yes").lower() in ("no", "false", "0", "off")
        if is_off or "deb" not in fields.get("types", "").split():
            continue
        signed_by = fields.get("signed-by", "").strip()
        inline = signed_by if "BEGIN PGP" in signed_by else ""
        for uri in fields.get("uris", "").split():
            yield uri, fields.get("suites", "").split(), "in the file" if inline else signed_by or None, inline


def _fields(block: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in block.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t") and key:
            # " ." stands for an empty line, which the armor of an inline key needs.
            fields[key] += "\n" + ("" if line.strip() == "." else line.strip())
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _named_keys(root: str, words: list[str]) -> list[str]:
    """Signed-By names keyrings by their paths, or keys by their fingerprints."""
    found: list[str] = []
    for word in words:
        found += _keys_of(join(root, word)) if word.startswith("/") else [word.strip("!").upper()]
    return found


def _keys_of(path: str) -> list[str]:
    with open(path, "rb") as file:
        return fingerprints(file.read())
