"""The task that serves models as services of hosts."""

import sys
from typing import Any

from invoke import Context, Exit, task

from aerie.errors import UsageError
from aerie.program import ask, end_with

from .screen import INVENTORY, JSON, console_on, optional_path, show

__all__ = ["serve"]


@task(
    auto_shortflags=False,
    help={
        "host": "name in the inventory",
        "model": "name of a model of the lock",
        "engine": "vllm or sglang",
        "drafter": "name of a model of the lock: its EAGLE-3 drafter",
        "draft_tokens": "drafts per verify step with --drafter; left out, the lock's draft_tokens",
        "accept_fall": "serve it also where less of its drafts is accepted than in the last good run",
        "plan": "only show what would be done (so does invoke --dry)",
        "status": "show what serves the model",
        "judge": "hold what is accepted of its drafts against the last good run",
        "stop": "stop what serves it, at boot too",
        "rollback": "go back to what served it before",
        "inventory": INVENTORY,
        "yes": "do not ask",
        "no_input": "never ask: without --yes nothing is changed",
        "json": JSON,
    },
)
def serve(
    c: Context,
    host: str,
    model: str,
    engine: str = "",
    drafter: str = "",
    draft_tokens: int = -1,  # an int, so that a word is refused; no number is drafted by that one
    accept_fall: bool = False,
    plan: bool = False,
    status: bool = False,
    judge: bool = False,
    stop: bool = False,
    rollback: bool = False,
    inventory: str = "",
    yes: bool = False,
    no_input: bool = False,
    json: bool = False,
) -> None:
    """Serve a model on a host as a service; a change that fails leaves what was there serving."""
    from aerie.engines.service import planning, serving

    _one_of(engine=engine, status=status, judge=judge, stop=stop, rollback=rollback)
    where: dict[str, Any] = {"inventory_file": optional_path(inventory)}
    only_plan = plan or c.config.run.dry
    if status or (stop and only_plan):
        _end(serving.status(host, model, **where), json=json)
    if judge:
        _judge(host, model, where, json=json)
    if stop:
        _stop(host, model, where, yes=yes, no_input=no_input, json=json)
    if rollback:
        prepared = planning.prepare_rollback(host, model, **where)
    else:
        where |= {
            "drafter": drafter,
            "draft_tokens": None if draft_tokens == -1 else draft_tokens,
            "accept_fall": accept_fall,
        }
        prepared = planning.prepare(host, model, engine, **where)
    _change(prepared, only_plan=only_plan, yes=yes, no_input=no_input, json=json)


def _one_of(**given: Any) -> None:
    if sum(map(bool, given.values())) != 1:
        seen = ", ".join(f"--{name}" for name, value in given.items() if value) or "none of them"
        remedy = "Name the engine that is to serve, or ask for one of the others."
        raise UsageError(
            "serve", seen=seen, expected="one of --engine, --status, --judge, --stop, --rollback", remedy=remedy
        )


def _end(status: Any, *, json: bool) -> None:
    from aerie.report import serving as views

    show(views.status_view(status), status.to_dict(), json=json)
    raise Exit(code=0 if status.is_serving else 1)


def _judge(host: str, model: str, where: dict[str, Any], *, json: bool) -> None:
    from aerie.engines.service import serving
    from aerie.report import serving as views

    judged = serving.judge(host, model, **where)
    show(views.judged_view(judged), judged.to_dict(), json=json)
    raise Exit(code=1 if judged.fell else 0)


def _stop(host: str, model: str, where: dict[str, Any], *, yes: bool, no_input: bool, json: bool) -> None:
    from aerie.engines.service import serving
    from aerie.report import serving as views

    if not yes:
        ask(f"Stop what serves {model} on {host}?", no_input=no_input)
    stopped = serving.stop(host, model, **where)
    show(views.status_view(stopped), stopped.to_dict(), json=json)
    raise Exit(code=0)


def _change(prepared: Any, *, only_plan: bool, yes: bool, no_input: bool, json: bool) -> None:
    from aerie.engines.service import serving
    from aerie.report import serving as views

    plan = prepared.plan
    if only_plan or plan.exit_code:
        show(views.plan_view(plan), plan.to_dict(), json=json)
        raise Exit(code=plan.exit_code)
    console_on(sys.stderr if json else sys.stdout).print(views.plan_view(plan))
    if plan.action in ("start", "change") and not yes:  # a change at work was agreed to
        ask(f"Serve {plan.model} on {plan.host} by {plan.wanted.words}?", no_input=no_input)
    outcome = serving.serve(prepared, views.phases(console_on(sys.stderr)))
    show(views.outcome_view(outcome), outcome.to_dict(), json=json)
    end_with(outcome.exit_code)
