"""The watchdog's own code as it is sent to a host, and what it is told there about a service's slot."""

from pathlib import Path

from aerie.engines.service.onhost.definition import CONFIGURATION, Service, Slot, unit_of
from aerie.engines.watchdog.spec import Limits, Spec
from aerie.remote.code import Code

__all__ = ["FOLDER", "WATCHDOG", "spec_of"]

FOLDER = Path("/var/lib/aerie/watchdog")
ON_CPU_S = 600.0  # no GPU tells that it computes, and a long prompt takes minutes there
WATCHDOG = Code(
    "aerie.engines.watchdog.main",
    (
        "errors.py", "runbook/step.py", "engines/__init__.py", "engines/capabilities.toml", "engines/watchdog/*.py",
        "engines/watchdog/*.toml",
    ),
)  # fmt: skip


def spec_of(service: Service, slot: Slot) -> Spec:
    """What its watchdog is to watch: the slot's unit, past the front, with the model's key."""
    return Spec(
        unit=unit_of(service.model, slot),
        url=f"http://127.0.0.1:{service.port_of(slot)}",
        model=service.model,
        folder=FOLDER / f"{service.model}-{slot}",
        gpus=tuple(range(service.gpus)),
        key_file=str(CONFIGURATION / service.model / "api-key"),
        limits=Limits() if service.gpus else Limits(decode_stall_s=ON_CPU_S),
    )
