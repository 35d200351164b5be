"""One host to be judged: its lock, its snapshot and what the inventory says of its GPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aerie.lock import Lock
from aerie.snapshot import Gpu, Package, Snapshot, Unknown

from . import catalogue
from .model import Finding, Fix, Severity

if TYPE_CHECKING:
    from aerie.inventory import Gpus

__all__ = ["Case", "address", "known", "of_gpus", "version"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """host: its name in the inventory, for remedies."""

    host: str
    lock: Lock
    snapshot: Snapshot
    gpus: "Gpus"

    def finding(
        self,
        id: str,  # noqa: A002
        *,
        seen: str,
        expected: str,
        fix: Fix | None = None,
        severity: Severity | None = None,
        needs_reboot: bool | None = None,
        **words: str,
    ) -> Finding:
        """As catalogue.make; the lock's severity for this id goes before every other."""
        set_by_lock = self.lock.severity.get(id)
        return catalogue.make(
            id,
            seen=seen,
            expected=expected,
            fix=fix,
            severity=Severity(set_by_lock) if set_by_lock else severity,
            needs_reboot=needs_reboot,
            host=self.host,
            **words,
        )

    @property
    def has_gpus(self) -> bool:
        """Does the inventory say that the host has GPUs?"""
        return self.gpus.count > 0

    @property
    def packages(self) -> Mapping[str, Package]:
        """Packages that are there, be they configured or not; none where they could not be read."""
        found = known(self.snapshot.base.packages) or {}
        return {name: package for name, package in found.items() if package.status[1:2] in tuple("iFUHWt")}

    @property
    def next_release(self) -> str:
        """The kernel that boots next; the newest installed one where the boot loader's choice is unknown."""
        kernel = self.snapshot.kernel
        return known(kernel.next_release) or (kernel.installed[-1] if kernel.installed else kernel.release)


def known(value: "T | Unknown") -> "T | None":
    """The value, or None where it could not be read (base.unknown tells of that)."""
    return None if isinstance(value, Unknown) else value


def address(bus_id: str) -> str:
    """A PCI address as the kernel writes it: "0000:05:00.0" of NVML's "00000000:05:00.0"."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version, to compare: (590, 48, 1) of "590.48.01"."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def of_gpus(values: Mapping[int, str], gpus: Iterable[Gpu]) -> str:
    """Values of GPUs by index in words: "all 8 GPUs: off", or "GPU 3 (0000:85:00.0): x8; GPU 5 …"."""
    by_index = {gpu.index: gpu for gpu in gpus}
    if len(by_index) > 1 and len(values) == len(by_index) and len(set(values.values())) == 1:
        return f"all {len(by_index)} GPUs: {next(iter(values.values()))}"
    return "; ".join(f"GPU {index} ({address(by_index[index].bus_id)}): {text}" for index, text in values.items())
