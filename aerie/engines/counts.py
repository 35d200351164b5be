"""Acceptance as engines tell it: SGLang with each answer, vLLM in /metrics. Standard library alone: hosts ask too."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from aerie.engines.acceptance import Acceptance, by_histogram
from aerie.errors import AerieError

__all__ = ["meta_names", "of_meta_info", "of_metrics", "verify_steps"]

TABLE: Final = Path(__file__).with_name("capabilities.toml")
VERIFY_STEPS: Final = "vllm:spec_decode_num_drafts_total"
PROPOSED: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
SAMPLE: Final = re.compile(r"^(vllm:spec_decode_\w+_total)(?:\{(.*)\})? ([0-9.eE+]+)(?: \d+)?$", re.MULTILINE)
POSITION: Final = re.compile(r'\bposition="(\d+)"')


@cache
def meta_names() -> tuple[tuple[str, str, str], ...]:
    """Names of SGLang's counts per request: accepted, proposed, histogram; the newest first."""
    rows = tomllib.loads(TABLE.read_text())["name"]
    found = dict.fromkeys(row["value"] for row in rows if (row["engine"], row["thing"]) == ("sglang", "meta.counts"))
    return tuple((accepted, proposed, histogram) for accepted, proposed, histogram in map(str.split, reversed(found)))


def of_meta_info(meta: Mapping[str, Any]) -> Acceptance | None:
    """Acceptance of one request from its meta_info, whichever names the version uses; None where nothing drafted.

    The names are told by their presence, for 0.5.12 to 0.5.20 write two sets. spec_accept_length is not read: it is
    tokens / steps, which counts the token of the prompt's own pass too.
    """
    steps = meta.get("spec_verify_ct")
    if not steps:
        return None
    for accepted, proposed, histogram in meta_names():
        if accepted in meta and proposed in meta:
            counts = meta.get(histogram) or ()
            return by_histogram(counts, verify_steps=steps, proposed=meta[proposed], accepted=meta[accepted])
    raise AerieError(
        "SGLang meta_info",
        seen=sorted(key for key in meta if key.startswith("spec_")),
        expected=f"one of {', '.join(names[0] for names in meta_names())}",
        remedy="This version names its counts anew: add the names to aerie/engines/capabilities.toml.",
    )


def of_metrics(metrics: str) -> Acceptance | None:
    """Acceptance since the start, summed over vLLM's engine processes; None where it has no such counters.

    The names are the same from 0.15.1 to 0.33.
    """
    totals, by_position = _samples(metrics)
    if not totals:
        return None
    return Acceptance(
        verify_steps=totals[VERIFY_STEPS],
        proposed=totals[PROPOSED],
        accepted=totals[ACCEPTED],
        accepted_by_position=tuple(by_position[position] for position in sorted(by_position)),
    )


def verify_steps(metrics: str) -> int | None:
    """vLLM's verify steps since the start; None where it does not count them."""
    return _samples(metrics)[0].get(VERIFY_STEPS)


def _samples(metrics: str) -> tuple[dict[str, int], dict[int, int]]:
    totals: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for name, labels, value in SAMPLE.findall(metrics):
        if name == BY_POSITION:
            position = int(POSITION.findall(labels)[0])
            by_position[position] = by_position.get(position, 0) + int(float(value))
        else:
            totals[name] = totals.get(name, 0) + int(float(value))
    return totals, by_position
