"""What serves a model on a host, as the host says in one question."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.inventory import Host

from .code import SERVICE
from .onhost.definition import Service, Slot, parse, unit_of

__all__ = ["Status", "job_folder", "look"]

SCHEMA = "aerie.serve-status/1"
JOBS = "/var/lib/aerie/jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """state: as the host keeps it; services, units: by slot, of those that are filled.

    units: systemd's properties by name; front: "active" where it runs; job: of a change, "running" or not.
    engines: in the environment that was asked about, with versions; configs: config.json by folder, None without one.
    """

    host: str
    model: str
    state: Mapping[str, Any]
    services: Mapping[Slot, Service]
    units: Mapping[Slot, Mapping[str, str]]
    front: str
    job: str
    engines: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any] | None]

    @property
    def live(self) -> Slot | None:
        """The slot that serves."""
        found: Slot | None = self.state["live"]
        return found

    @property
    def previous(self) -> Slot | None:
        """The slot for the way back."""
        found: Slot | None = self.state["previous"]
        return found

    @property
    def is_serving(self) -> bool:
        """Did the live slot's engine generate, does it run, and is the front before it?"""
        active = self.units.get(self.live, {}).get("ActiveState") == "active" if self.live else False
        return active and self.front == "active"

    @property
    def url(self) -> str:
        """Where clients reach it, "" while nothing serves it."""
        return f"http://{self.services[self.live].front}/v1" if self.live else ""

    def to_dict(self) -> dict[str, Any]:
        """The document of `serve --status --json`."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "model": self.model,
            "serving": self.is_serving,
            "url": self.url,
            "state": dict(self.state),
            "slots": {
                slot: {"service": one.to_dict(), "unit": unit_of(self.model, slot), **self.units[slot]}
                for slot, one in self.services.items()
            },
            "front": self.front,
            "job": self.job,
        }


def look(host: Host, model: str, environment: str = "", folders: Sequence[str] = ()) -> Status:
    """Ask the host; changes nothing. environment, folders: what else to read there.

    Raises as remote.run does.
    """
    asked = {"model": model, "environment": environment, "folders": list(folders), "job": job_folder(model)}
    said = SERVICE.ask(host, ["look"], stdin=json.dumps(asked).encode())
    filled = {slot: one for slot, one in said["slots"].items() if one["service"]}
    return Status(
        host=host.name,
        model=model,
        state=said["state"],
        services={slot: parse(one["service"]) for slot, one in filled.items()},
        units={slot: one["unit"] for slot, one in filled.items()},
        front=said["front"],
        job=said["job"],
        engines=said["engines"],
        configs=said["configs"],
    )


def job_folder(model: str) -> str:
    """The folder on the host of a change of what serves the model."""
    return f"{JOBS}/serve-{model}"
