"""The text of a /metrics page, parsed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["families"]


def families(text: str) -> "Iterator[Metric]":
    """The metric families of a page in Prometheus's text format. Raises ValueError for another text."""
    # Here: adapters are imported where nothing is measured too, in the trainer's environment, which has no parser.
    from prometheus_client.parser import text_string_to_metric_families

    yield from text_string_to_metric_families(text)
