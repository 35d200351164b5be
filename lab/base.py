"""The base image that every host lies on: built once by mmdebstrap, kept in the user's cache, never written again."""

import difflib
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import AerieError, UsageError
from aerie.paths import cache_dir

from .command import run

__all__ = ["base_image", "suite_of"]

# What hosts are in production comes first; an older Debian stands in where its archive is all there is.
SUITES = (("Ubuntu", "noble", "main,universe"), ("Debian", "trixie", "main"), ("Debian", "bookworm", "main"))

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-apt", "iproute2", "iputils-ping", "procps",
    "kmod", "sudo", "ca-certificates", "gnupg", "curl", "less", "pciutils", "initramfs-tools", "systemd-journal-remote",
)  # fmt: skip

# https to package indexes may go through a proxy that only this machine's own certificates vouch for.
CERTIFICATES = Path("/usr/local/share/ca-certificates")

BUILD_TIMEOUT_S = 1800  # 28 s was measured on 2 quiet cores beside a near mirror, 125 s under load


@dataclass(frozen=True, slots=True)
class _Recipe:
    """mirror: the archive's address as this machine's apt has it; keyring: the keys that signed it."""

    suite: str
    components: str
    mirror: str
    keyring: Path

    def argv(self, folder: Path) -> list[str]:
        certificates = sorted(str(path) for path in CERTIFICATES.glob("*.crt"))
        return [
            "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
            f"--keyring={self.keyring}", f"--components={self.components}", f"--include={','.join(PACKAGES)}",
            "--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\"",
            *(f"--dpkgopt=path-exclude=/usr/share/{tree}/*" for tree in ("man", "doc", "locale")),
            "--dpkgopt=force-unsafe-io",  # no fsync per file, here and on the hosts: they are disposable
            "--skip=cleanup/apt/lists",  # a host's first apt-get update then only asks what is new
            *([f"--customize-hook=copy-in {' '.join(certificates)} {CERTIFICATES}"] if certificates else []),
            "--customize-hook=chroot \"$1\" update-ca-certificates",
            "--customize-hook=chroot \"$1\" systemctl enable ssh",
            # The lab gives a host its address; waiting for a network manager would only delay the boot.
            "--customize-hook=chroot \"$1\" systemctl mask systemd-networkd-wait-online.service",
            "--customize-hook=rm -f \"$1\"/etc/ssh/ssh_host_* \"$1\"/etc/resolv.conf \"$1\"/var/lib/dbus/machine-id",
            self.suite, str(folder), self.mirror,
        ]  # fmt: skip

    def path(self) -> Path:
        """base-<suite>-<hash>: another recipe, mirror or certificate is another image."""
        told = json.dumps(self.argv(Path("ROOT"))).encode()
        told += b"".join(path.read_bytes() for path in sorted(CERTIFICATES.glob("*.crt")))
        return cache_dir() / "lab" / f"base-{self.suite}-{hashlib.sha256(told).hexdigest()[:12]}"


def base_image(say: Callable[[str], None], wanted: str = "") -> Path:
    """The folder of the base image, built now when it is not there yet. `say` gets a line per stage of a build.

    wanted: a suite of SUITES; "": the first one whose archive this machine reaches.
    Raises UsageError for another suite, and AerieError with every reason when no archive is in reach.
    """
    if wanted and wanted not in (known := [suite for _, suite, _ in SUITES]):
        near = difflib.get_close_matches(wanted, known, n=1)
        remedy = f"Did you mean {near[0]}?" if near else "Leave it out for the first one in reach."
        raise UsageError("lab base image", seen=wanted, expected=f"one of {', '.join(known)}", remedy=remedy)
    refused = []
    mirrors = _mirrors()
    for origin, suite, components in SUITES:
        if wanted not in ("", suite):
            continue
        mirror = mirrors.get(origin)
        if mirror is None:
            refused.append(f"{suite}: no {origin} archive in this machine's apt sources")
            continue
        recipe = _Recipe(suite, components, mirror, Path(f"/usr/share/keyrings/{origin.lower()}-archive-keyring.gpg"))
        if recipe.path().is_dir():  # before any look at the network: later hosts come up without it
            return recipe.path()
        if not recipe.keyring.is_file():
            refused.append(f"{suite}: no {recipe.keyring}")
        elif not _reachable(mirror, suite):
            refused.append(f"{suite}: not at {mirror}")
        else:
            return _build(recipe, say)
    raise AerieError(
        "lab base image",
        seen="; ".join(refused),
        expected="one of these archives, with its keyring, through this machine's apt",
        remedy="Run apt-get update, and look at apt-get indextargets.",
    )


def suite_of(image: Path) -> str:
    """The suite of a base image: "trixie" for base-trixie-<hash>."""
    return image.name.split("-")[1]


def _mirrors() -> dict[str, str]:
    """Where this machine's apt gets main archives from, by origin ("Debian", "Ubuntu")."""
    told = run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"])
    rows = [row.split("|", 2) for row in told.splitlines()]
    return {
        origin: address for origin, label, address in rows if origin == label
    }  # security archives have other labels


def _reachable(mirror: str, suite: str) -> bool:
    """True when apt, with this machine's configuration (proxies too), can read the suite's release file."""
    with tempfile.TemporaryDirectory() as folder:
        argv = ["/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15"]
        # root, because apt's own user may not write to a folder that is root's.
        argv += ["-o", "APT::Sandbox::User=root", "download-file", f"{mirror}dists/{suite}/InRelease"]
        done = subprocess.run([*argv, f"{folder}/InRelease"], capture_output=True, check=False, timeout=60)
        return done.returncode == 0


def _build(recipe: _Recipe, say: Callable[[str], None]) -> Path:
    final = recipe.path()
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.partial")
    with _locked(final.with_name(f".{final.name}.lock"), say) as lock:
        if final.is_dir():
            return final
        _remove(partial)
        say(f"building {final}")
        # A mount namespace of its own: what mmdebstrap mounts cannot outlive it, so removing `partial` is safe.
        _stream(["unshare", "--mount", "--", *recipe.argv(partial)], lock, say)
        (partial / "etc/machine-id").write_text("")  # empty: each host draws its own at its first boot
        os.replace(partial, final)
    return final


def _stream(argv: Sequence[str], lock: int, say: Callable[[str], None]) -> None:
    """Run the build, telling its stages. The child holds the lock too: a killed lab never leaves two builds at once."""
    tail: deque[str] = deque(maxlen=10)
    with subprocess.Popen(
        ["timeout", str(BUILD_TIMEOUT_S), *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", pass_fds=(lock,),
    ) as build:  # fmt: skip
        assert build.stdout is not None
        for line in build.stdout:
            tail.append(line.rstrip())
            if line.startswith("I: ") and "hook" not in line:
                say(line[3:].rstrip())
    if build.returncode != 0:
        raise AerieError(
            "lab base image",
            seen=f"mmdebstrap exit {build.returncode}: " + "\n".join(tail),
            expected="exit 0",
            remedy="Mend what its last lines say, then run it again.",
        )


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[int]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the same base image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    run(["rm", "-rf", "--one-file-system", str(folder)], timeout_s=120)
