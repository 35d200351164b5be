"""Services in words."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from aerie.engines.service.onhost.definition import Service
from aerie.engines.service.planning import plan_of
from aerie.engines.service.serving import Outcome
from aerie.engines.service.status import Status
from aerie.report import serving as views

SERVICE = Service(
    model="tiny", engine="vllm", version="0.33.0", program=("python",), environment={}, key="environment", weights=(),
    gpus=8, draft_counter="", front="127.0.0.1:8000", port=8001, beside_bytes=0, ready_timeout_s=600,
)  # fmt: skip
KEPT = {
    "at": "2026-11-30T14:00:00Z", "outcome": "kept", "to": "green: x", "before": "y", "why": "no drafter", "seconds": 9,
}  # fmt: skip


def status(*, active: str = "active", last: Any = None, restarts: str = "0") -> Status:
    return Status(
        host="gpu01",
        model="tiny",
        state={"live": "blue", "previous": None, "last": last},
        services={"blue": SERVICE},
        units={"blue": {"ActiveState": active, "NRestarts": restarts}},
        front="active",
        job="none",
        engines={},
        configs={},
    )


@pytest.fixture
def shown() -> Callable[[Any], str]:
    def text(view: Any) -> str:
        console = Console(file=io.StringIO(), width=160)
        console.print(view)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    return text


def test_a_refused_plan_ends_with_every_reason(shown: Callable[[Any], str]) -> None:
    text = shown(
        views.plan_view(plan_of(status(active="failed"), SERVICE, ("weights.changed: a", "engine.gpus-busy: b")))
    )
    assert "refused; nothing was started" in text
    assert text.rstrip().endswith("REFUSED weights.changed: a\nREFUSED engine.gpus-busy: b")


def test_on_gpus_the_plan_says_that_the_one_that_serves_stops_first(shown: Callable[[Any], str]) -> None:
    text = shown(views.plan_view(plan_of(status(active="failed"), SERVICE, ())))
    assert "the one that serves stops first" in text and "8 GPUs" in text


def test_the_status_names_the_address_the_log_and_restarts(shown: Callable[[Any], str]) -> None:
    text = shown(views.status_view(status(restarts="2")))
    assert text.startswith("tiny on gpu01 serves at http://127.0.0.1:8000/v1")
    assert "restarted 2 times" in text and "journalctl -u aerie-engine-tiny-blue.service" in text


def test_a_change_that_failed_says_what_serves_and_why(shown: Callable[[Any], str]) -> None:
    outcome = Outcome(host="gpu01", model="tiny", change=KEPT, status=status(last=KEPT), wall_s=9)
    assert outcome.exit_code == 1
    text = shown(views.outcome_view(outcome))
    assert text.startswith("FAILED; what served before serves on\n") and "because    no drafter" in text


def test_a_phase_is_told_once_until_half_a_minute_has_gone() -> None:
    console = Console(file=io.StringIO(), width=80)
    tell = views.phases(console)
    for seconds in (0.0, 1.0, 2.0):
        tell("starting blue", seconds)
    tell("trying blue", 3.0)
    assert console.file.getvalue() == "    0 s  starting blue\n    3 s  trying blue\n"  # type: ignore[attr-defined]
