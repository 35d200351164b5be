"""Running the machine's own programs, and saying plainly which of them are missing."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from aerie.errors import AerieError

__all__ = ["require_machine", "run"]

# program → the Debian and Ubuntu package that has it
PROGRAMS: Mapping[str, str] = {
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "gcc": "gcc libc6-dev",
    "gpg": "gnupg",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}


def require_machine() -> None:
    """Raises AerieError unless this is root on a machine that has the programs the lab needs."""
    if os.geteuid() != 0:
        raise AerieError(
            "lab", seen=f"uid {os.geteuid()}", expected="root (mounts, namespaces, a bridge)", remedy="Run it as root."
        )
    missing = sorted(program for program in PROGRAMS if shutil.which(program) is None)
    if missing:
        packages = " ".join(sorted({PROGRAMS[program] for program in missing}))
        raise AerieError(
            "lab",
            seen=f"no {', '.join(missing)}",
            expected="the programs that make hosts",
            remedy=f"Run: apt-get install --no-install-recommends {packages}",
        )


def run(argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30) -> str:
    """What the program wrote to stdout. Raises AerieError with its last lines when it fails or takes too long."""
    command = shlex.join(argv)
    remedy = "Run it by hand to see more."
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise AerieError(command, seen=f"no end after {timeout_s:g} s", expected="an end", remedy=remedy) from error
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-10:])
        raise AerieError(command, seen=f"exit {done.returncode}: {tail}", expected="exit 0", remedy=remedy)
    return done.stdout
