"""Cards of a running host: the driver it comes up with, and the scenario it is given."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from aerie.errors import AerieError

from . import scenario
from .host import LabHost
from .repository import Repository
from .scenario import Scenario

__all__ = ["apply", "install_driver"]

# What a host with a driver comes up with: that of the lock `lab`.
DRIVER, TOOLKIT = "590.44.01", "13.1.0"
INSTALL = "rm -rf /run/lab/debs; mkdir /run/lab/debs; tar -xC /run/lab/debs; dpkg --install /run/lab/debs/*.deb"
LOAD = "rm -f /run/reboot-required*; lab-gpu load; systemctl restart nvidia-persistenced; lab-gpu apply"


def install_driver(host: LabHost, repository: Repository) -> None:
    """Driver and toolkit from packages, loaded as after a reboot."""
    _install(host, repository.archives(DRIVER, TOOLKIT))
    _do(host, ["sh", "-ec", LOAD])


def apply(host: LabHost, chosen: Scenario, repository: Repository) -> None:
    """Make this the host's scenario, at once. The driver stays as it was loaded."""
    extra = {name for other in scenario.names() for name in scenario.load(other).packages}
    others = sorted(extra - set(chosen.packages))
    if others:
        _do(host, ["dpkg", "--purge", *others])
    if chosen.packages:
        _install(host, [repository.archive(name, DRIVER) for name in chosen.packages])
    _do(host, ["tee", "/etc/lab/scenario.json", "/etc/lab/until-reboot"], stdin=chosen.document().encode())
    _do(host, ["lab-gpu", "apply"])


def _install(host: LabHost, archives: Iterable[Path]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for archive in archives:
            tar.add(archive, archive.name)
    _do(host, ["sh", "-ec", INSTALL], stdin=packed.getvalue())


def _do(host: LabHost, argv: list[str], *, stdin: bytes = b"") -> None:
    done = host.ssh(argv, stdin=stdin, timeout_s=120)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.decode(errors="replace").strip().splitlines()[-10:])
        raise AerieError(
            f"{host.name}: {argv[0]}",
            seen=f"exit {done.returncode}: {tail}",
            expected="exit 0",
            remedy="Run invoke lab.down, then lab.up again.",
        )
