"""A measurement as files: bench.json, every request in records.jsonl, and the page that shows them."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.best import Sweep
from aerie.engines.benchmark.comparison import Comparison, compare
from aerie.engines.benchmark.endpoint import Served
from aerie.engines.benchmark.figures import Limits, Row, rows
from aerie.engines.benchmark.running import Level, Measured, OnProgress, Spec, measure
from aerie.errors import UsageError
from aerie.runbook.step import write_atomic

__all__ = ["SCHEMA", "Result", "now", "read", "result_of", "take", "take_on", "write", "write_page"]

SCHEMA = "aerie.bench/1"

Page = Callable[[Mapping[str, Mapping[str, Any]]], str]
"""Makes the page of documents by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A measurement with what it came to. started_at: UTC, ISO 8601; sweep: None of servers that others started."""

    started_at: str
    spec: Spec
    within: Limits
    served: Mapping[str, Served]
    gpus: Mapping[str, tuple[int, ...]]
    levels: Sequence[Level]
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    sweep: Sweep | None = None

    @property
    def failed(self) -> int:
        """Requests that had an error."""
        return sum(row.failed for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 where a request failed: the others' figures are not those of this load."""
        return 1 if self.failed else 0

    def to_dict(self) -> dict[str, Any]:
        """What `bench --json` prints."""
        spec = self.spec
        return {
            "schema": SCHEMA,
            "started_at": self.started_at,
            "client": {"machine": platform.node(), "python": platform.python_version()},
            "api": spec.api,
            "prompts": len(spec.questions),
            "max_tokens": spec.max_tokens,
            "ignore_eos": spec.ignore_eos,
            "repetitions": spec.repetitions,
            "limits_ms": dict(self.within),
            "arms": {
                one.name: {
                    "url": one.url,
                    "gpus": list(self.gpus.get(one.name, ())),
                    **self.served[one.name].to_dict(),
                }
                for one in spec.endpoints
            },
            "rows": [row.to_dict() for row in self.rows],
            "comparisons": [one.to_dict() for one in self.comparisons],
            "sweep": self.sweep.to_dict() if self.sweep else None,
        }

    def records(self) -> list[dict[str, Any]]:
        """One entry for each request; times in seconds since the request was sent."""
        return [
            {
                "arm": level.arm,
                "temperature": level.temperature,
                "concurrency": level.concurrency,
                "repetition": level.repetition,
                "prompt": taken.question,
                **_record(taken.answer),
            }
            for level in self.levels
            for taken in level.taken
        ]


def take(spec: Spec, within: Limits, on_progress: OnProgress) -> Result:
    """Measure from here, and work out what it comes to."""
    started_at = now()
    return result_of(started_at, spec, within, measure(spec, on_progress))


def take_on(host: str, model: str, spec: Spec, within: Limits, inventory_file: Path | None) -> Result:
    """The same of the model that a host serves, measured there; spec's endpoints do not count."""
    from aerie.engines.benchmark.hosts import measure_on  # fabric takes its time to import

    started_at = now()
    asked, measured = measure_on(host, model, spec, inventory_file)
    return result_of(started_at, asked, within, measured)


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def result_of(started_at: str, spec: Spec, within: Limits, measured: Measured) -> Result:
    """What was measured, with what it comes to; the first arm is the one that the others are compared with."""
    served, gpus, levels = measured
    return Result(
        started_at=started_at,
        spec=spec,
        within=within,
        served=served,
        gpus=gpus,
        levels=levels,
        rows=rows(levels, gpus, within),
        comparisons=compare(levels),
    )


def write(result: Result, folder: Path, page: Page) -> list[Path]:
    """Leave bench.json, records.jsonl and bench.html in the folder; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document = result.to_dict()
    contents = {
        "bench.json": json.dumps(document, indent=1) + "\n",
        "records.jsonl": "".join(json.dumps(one) + "\n" for one in result.records()),
        "bench.html": page({folder.name: document}),
    }
    for name, content in contents.items():
        write_atomic(folder / name, content.encode())
    return [folder / name for name in contents]


def write_page(files: Sequence[str], out: Path, page: Page) -> Path:
    """One page of several documents, each `FILE` or `NAME=FILE`; an unnamed one is called by its folder."""
    documents = {}
    for text in files:
        name, separator, file = text.rpartition("=")
        document = read(Path(file))
        documents[name if separator else Path(file).resolve().parent.name] = document
    if len(documents) < max(1, len(files)):
        raise UsageError(
            "bench.page",
            seen=f"{len(files)} files, {len(documents)} names",
            expected="at least one, each with a name of its own",
            remedy="Give NAME=FILE.",
        )
    write_atomic(out, page(documents).encode())
    return out


def read(path: Path) -> dict[str, Any]:
    """A document that `write` left. Raises UsageError for another file."""
    try:
        document = json.loads(path.read_text())
        schema = document["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"{error!r}"
    else:
        if schema == SCHEMA:
            return dict(document)
        seen = schema
    raise UsageError(str(path), seen=seen, expected=SCHEMA, remedy="Give a bench.json that ./invoke bench wrote.")


def _record(answer: Answer) -> dict[str, Any]:
    if answer.error:
        return {"error": answer.error}
    return {
        "t_send_s": round(answer.t_send, 6),
        "ttft_s": round(answer.ttft_s, 6),
        "e2e_s": round(answer.e2e_s, 6),
        "arrivals": [[round(at - answer.t_send, 6), tokens] for at, tokens in answer.arrivals],
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "output_tokens": answer.output_tokens,
        "finish": answer.finish,
        "text_sha256": answer.text_sha256,
        "meta": dict(answer.meta),
    }
