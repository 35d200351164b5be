"""Kernels: the running one, the one that boots next, what they load and what they must not load."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from .machine import container
from .reading import ProgramFailed, join, names, optional, program, reading, text

__all__ = ["installed", "kernel", "modprobe_lines", "next_release", "order"]

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SIGNING_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")


def kernel(root: str = "/") -> dict[str, Any]:
    """The snapshot's `kernel`."""
    release = text(join(root, "/proc/sys/kernel/osrelease")).strip()
    cmdline = text(join(root, "/proc/cmdline")).strip()
    following = reading(next_release, release, root)
    lines = modprobe_lines(root)
    return {
        "release": release,
        "next_release": following,
        "installed": installed(root),
        "headers": _headers(root),
        "cmdline": cmdline,
        "next_cmdline": reading(_next_cmdline, following, cmdline, root),
        "loaded_modules": loaded_modules(root),
        "blacklisted_modules": _blacklisted(lines, cmdline),
        "secure_boot": reading(_secure_boot, root),
        "is_signing_key_enrolled": reading(_is_key_enrolled, root),
    }


def order(release: str) -> list[tuple[int, int | str]]:
    """Sorts releases as the boot loader does: numbers by value."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|[a-z]+", release.lower())]


def installed(root: str = "/") -> list[str]:
    """Releases with an image in /boot, oldest first."""
    found = [name[len("vmlinuz-") :] for name in names(join(root, "/boot")) if name.startswith("vmlinuz-")]
    return sorted((name for name in found if not name.endswith((".old", ".signed"))), key=order)


def next_release(release: str, root: str = "/") -> str:
    """The release that boots next. Raises ProgramFailed where that cannot be told."""
    images = installed(root)
    if not images:
        if container(root):
            return release  # the kernel of the machine around this container
        raise ProgramFailed("no kernel image in /boot")
    default = _grub(root).get("GRUB_DEFAULT", "0")
    saved = re.search(r"^next_entry=(.+)$", optional(join(root, "/boot/grub/grubenv")) or "", re.MULTILINE)
    if saved:
        default = saved[1]
    elif default == "saved":
        entry = re.search(r"^saved_entry=(.+)$", optional(join(root, "/boot/grub/grubenv")) or "", re.MULTILINE)
        default = entry[1] if entry else "0"
    if default == "0":
        return images[-1]
    # An entry's title or id ends in the release it boots: "gnulinux-advanced-X>gnulinux-6.8.0-31-generic-advanced-X".
    named = [image for image in images if re.search(rf"(?<![\w.]){re.escape(image)}(?![\w.])", default.split(">")[-1])]
    if len(named) != 1:
        raise ProgramFailed(f"the boot loader's default is {default!r}")
    return named[0]


def loaded_modules(root: str = "/") -> list[str]:
    """Names of the modules in the running kernel."""
    listed = optional(join(root, "/proc/modules"))
    if listed is not None:
        return sorted(line.split()[0] for line in listed.splitlines() if line)
    # A kernel without loadable modules has no such file; /sys/module would name its built-in parts too.
    folder = join(root, "/sys/module")
    return [name for name in names(folder) if os.path.exists(os.path.join(folder, name, "initstate"))]


def modprobe_lines(root: str = "/") -> list[list[str]]:
    """The words of every line of modprobe.d. A file in /etc hides one of the same name in /usr/lib."""
    files: dict[str, str] = {}
    for folder in ("/lib/modprobe.d", "/usr/lib/modprobe.d", "/run/modprobe.d", "/etc/modprobe.d"):
        for name in names(join(root, folder)):
            if name.endswith(".conf"):
                files[name] = os.path.join(join(root, folder), name)
    lines = [line for _, file in sorted(files.items()) for line in (optional(file) or "").splitlines()]
    return [words for words in map(str.split, lines) if words and not words[0].startswith("#")]


def _headers(root: str) -> list[str]:
    folder = join(root, "/lib/modules")
    found = [name for name in names(folder) if os.path.isdir(os.path.join(folder, name, "build"))]
    return sorted(found, key=order)


def _blacklisted(lines: list[list[str]], cmdline: str) -> list[str]:
    found = {words[1].replace("-", "_") for words in lines if words[0] == "blacklist" and len(words) > 1}
    for word in cmdline.split():
        key, _, value = word.partition("=")
        if key in ("modprobe.blacklist", "module_blacklist"):
            found |= {name.replace("-", "_") for name in value.split(",")}
    return sorted(found)


def _grub(root: str) -> dict[str, str]:
    """The assignments of /etc/default/grub and grub.d, with earlier ones put into later ones as the shell would."""
    folder = join(root, "/etc/default/grub.d")
    files = [join(root, "/etc/default/grub")]
    files += [os.path.join(folder, name) for name in names(folder) if name.endswith(".cfg")]
    found: dict[str, str] = {}
    for file in files:
        for line in (optional(file) or "").splitlines():
            match = re.match(r"\s*(?:export\s+)?(GRUB_\w+)=(.*)", line)
            if match:
                try:
                    value = "".join(shlex.split(match[2], comments=True))
                except ValueError:
                    continue  # a value over several lines
                found[match[1]] = re.sub(r"\$\{?(\w+)\}?", lambda name: found.get(name[1], ""), value)
    return found


def _next_cmdline(release: Any, cmdline: str, root: str) -> str:
    config = optional(join(root, "/boot/grub/grub.cfg"))
    if config is not None and isinstance(release, str):
        # The first entry of that release; recovery entries come behind it.
        entry = re.search(rf"^\s*linux\S*\s+\S*vmlinuz-{re.escape(release)}[ \t]*(.*)$", config, re.MULTILINE)
        if entry:
            return entry[1].strip()
    settings = _grub(root)
    if settings:
        keys = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
        return " ".join(" ".join(settings.get(key, "") for key in keys).split())
    if container(root):
        return cmdline  # the machine around this container decides
    raise ProgramFailed("no configuration of GRUB, and aerie knows no other boot loader")


def _secure_boot(root: str) -> bool | None:
    if not os.path.isdir(join(root, "/sys/firmware/efi")):
        return None
    with open(join(root, SECURE_BOOT), "rb") as file:
        return file.read()[-1:] == b"\x01"  # four bytes of attributes come before the value


def _is_key_enrolled(root: str) -> bool | None:
    keys = [join(root, key) for key in SIGNING_KEYS if os.path.exists(join(root, key))]
    if not keys or not os.path.isdir(join(root, "/sys/firmware/efi")):
        return None
    # Exit 1 is "is already enrolled" in some versions, so the words decide.
    said = program("mokutil", "--test-key", keys[0], good=(0, 1)).get()
    if "is already enrolled" in said:
        return True
    if "is not enrolled" in said:
        return False
    raise ProgramFailed(f"mokutil --test-key: {said}")
