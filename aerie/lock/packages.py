"""Names of NVIDIA's driver packages."""

from dataclasses import dataclass

__all__ = ["SUFFIX_ENDS", "DriverPackages", "driver_packages"]

# NVIDIA's repository names packages by branch up to 580 (nvidia-open-580); from 590 on the names are bare and a
# pinning package chooses the version (Driver Installation Guide, "Recent Updates"; NVIDIA's Ansible role, PR #89).
SUFFIX_ENDS = 590


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPackages:
    """pinning: to install before the others, None where the names carry the branch. packages: what pulls the rest in.

    Versions are never made up here: apt's own list says which deb revision ("-1ubuntu1") carries the driver version.
    """

    pinning: str | None
    packages: tuple[str, ...]


def driver_packages(version: str, flavour: str, os_id: str) -> DriverPackages:
    """The packages of the driver `version` ("590.48.01") in this flavour ("open", "closed").

    os_id: "ubuntu" or "debian", whose names of these packages are the same. Raises ValueError for any other word.
    """
    if flavour not in ("open", "closed") or os_id not in ("ubuntu", "debian"):
        raise ValueError(f"no driver packages known of flavour {flavour!r} on {os_id!r}")
    branch = int(version.split(".")[0])
    name = "nvidia-open" if flavour == "open" else "cuda-drivers"
    if branch < SUFFIX_ENDS:
        return DriverPackages(pinning=None, packages=(f"{name}-{branch}",))
    return DriverPackages(pinning=f"nvidia-driver-pinning-{version}", packages=(name,))
