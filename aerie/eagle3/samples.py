"""Samples of a synthesis on their way: a row and a state file each, so that a kill costs only what was open."""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aerie.engines.bench import Prompt
from aerie.engines.states import States, pack, read_kept
from aerie.errors import AerieError
from aerie.pagecache import PassBy
from aerie.runbook.step import write_atomic

__all__ = ["Samples", "has_begun"]

ROWS = "rows.jsonl"


def has_begun(folder: Path) -> bool:
    """Did an attempt leave samples in the folder, whole or not?"""
    file = folder / ROWS
    return file.exists() and file.stat().st_size > 0


class Samples:
    """The samples in a folder: states/NNNNN.safetensors, and a line for each in rows.jsonl, written after its states.

    `there` holds the rows whose states are whole and of the row's own tokens, by the prompt's id; what is not is asked
    for again. One writer at a time, within its `with`; any of its threads may add.
    """

    def __init__(self, folder: Path, prompts: Sequence[Prompt]) -> None:
        self._folder = folder
        (folder / "states").mkdir(exist_ok=True)
        self._asked = {prompt.id: list(prompt.input_ids) for prompt in prompts}
        rows = self._rows()
        with ThreadPoolExecutor() as pool:  # decoding and hashing leave the interpreter to others
            whole = pool.map(self._is_whole, rows)
            self.there: dict[str, dict[str, Any]] = {
                row["id"]: row for row, is_so in zip(rows, whole, strict=True) if is_so
            }
        # What was cut short is left out of the file too: the line after it would be lost with it.
        lines = "".join(json.dumps(row) + "\n" for row in self.there.values())
        write_atomic(folder / ROWS, lines.encode())
        self._file = os.open(folder / ROWS, os.O_WRONLY | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def add(self, row: Mapping[str, Any], states: States, passing: PassBy) -> int:
        """Keep a sample; bytes of its state file."""
        path = self._folder / row["states"]
        write_atomic(path, pack(states), durable=False)  # `passing` puts it on the disk, many at a time
        size: int = path.stat().st_size
        passing.done(path)
        os.write(self._file, (json.dumps(row) + "\n").encode())  # one write: threads do not mix their lines
        self.there[row["id"]] = dict(row)
        return size

    def move_states(self, folder: Path) -> None:
        """All state files, to where they are evidence."""
        os.rename(self._folder / "states", folder)

    def _rows(self) -> list[dict[str, Any]]:
        try:
            lines = (self._folder / ROWS).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:  # cut short by a kill
                continue
        return rows

    def _is_whole(self, row: Mapping[str, Any]) -> bool:
        prompt = self._asked.get(row["id"])
        if prompt is None or row["input_ids"][: len(prompt)] != prompt:
            return False
        try:
            states = read_kept(self._folder / row["states"])
        except AerieError:  # of a machine that lost its power before they were on the disk
            return False
        return list(states.token_ids) == row["input_ids"][:-1] and states.is_finite
