"""What an experiment has measured, kept after each repetition: a later attempt of the step goes on from there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.engines.bench import ClientLoad, Run
from aerie.runbook.step import Json, write_atomic

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["KeptRuns"]

_SCHEMA = "aerie.eagle3.kept-runs/1"


class KeptRuns:
    """Of one group of servers, in files of a folder that is the step's own for the same inputs and values.

    Each repetition is whole: its arms ran one after the other, and are compared among themselves alone.
    """

    def __init__(self, folder: Path, group: int) -> None:
        self._folder, self._group = folder, group

    def add(self, repetition: int, runs: Sequence[Run], load: ClientLoad) -> None:
        """A repetition that is done. load: of the client in this attempt so far."""
        told = {
            "schema": _SCHEMA,
            "runs": _runs().dump_python(list(runs), mode="json"),
            "client": {"cpu_share": load.cpu_share, "loop_lag_p99_ms": load.loop_lag_p99_ms},
        }
        write_atomic(self._file(str(repetition)), json.dumps(told).encode())

    def repetitions(self) -> list[tuple[list[Run], ClientLoad]]:
        """Those that are done, from the first on without a gap."""
        found: list[tuple[list[Run], ClientLoad]] = []
        while (file := self._file(str(len(found) + 1))).exists():
            told = json.loads(file.read_bytes())
            found.append((_runs().validate_python(told["runs"]), ClientLoad(**told["client"])))
        return found

    def end(self, told: Mapping[str, Json]) -> None:
        """All of the group is done. told: what the evidence says of its servers beside their runs."""
        write_atomic(self._file("end"), json.dumps(told).encode())

    def ended(self) -> Mapping[str, Json] | None:
        """What `end` was told; None while the group is not done."""
        file = self._file("end")
        found: Mapping[str, Json] | None = json.loads(file.read_bytes()) if file.exists() else None
        return found

    def _file(self, what: str) -> Path:
        return self._folder / f"group-{self._group}.{what}.json"


def _runs() -> "TypeAdapter[list[Run]]":
    from pydantic import TypeAdapter  # here: code that only looks at an experiment need not pay its import

    return TypeAdapter(list[Run])
