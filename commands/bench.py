"""Tasks that measure servers."""

import sys
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from aerie.program import ask, end_with

from .screen import INVENTORY, JSON, console_on, optional_path, show

__all__ = ["collection"]


@task(
    name="run",
    default=True,
    auto_shortflags=False,
    iterable=["url"],
    help={
        "url": "where a server answers: http://HOST:PORT, or NAME=http://…; given several times, they are compared",
        "host": "measure the model that this host serves, on the host: --model names it; instead of --url",
        "against": "one more server, which the others are compared with",
        "api": "chat, completions, or native (SGLang's /generate)",
        "model": "the name to ask for; default the first that the server has",
        "prompts": "JSON lines (prompt, messages, input_ids) or ShareGPT; default the packaged ones",
        "limit": "the first so many prompts; 0 is all",
        "max_tokens": "tokens an answer may have",
        "ignore_eos": "every answer has all of them",
        "temperature": "one, or several as 0,1",
        "concurrency": "users at the same time, one after the other",
        "repetitions": "how often each level is measured",
        "goodput": "what a good request may take in ms, as ttft:500,tpot:50,e2e:10000",
        "key_file": "file with the server's API key",
        "inventory": INVENTORY,
        "out": "folder for bench.json, records.jsonl and bench.html; default one in the state directory",
        "json": JSON,
    },
)
def bench(
    c: Context,
    url: list[str],
    host: str = "",
    against: str = "",
    api: str = "chat",
    model: str = "",
    prompts: str = "",
    limit: int = 0,
    max_tokens: int = 256,
    ignore_eos: bool = False,
    temperature: str = "0",
    concurrency: str = "1,4,16",
    repetitions: int = 3,
    goodput: str = "",
    key_file: str = "",
    inventory: str = "",
    out: str = "",
    json: bool = False,
) -> None:
    """Measure a server, or several against each other: rates, latencies, acceptance, energy. 1: a request failed."""
    from aerie.engines.benchmark import document, figures, options

    spec = options.spec(
        urls=url, host=host, against=against, api=api, model=model, file=optional_path(prompts), limit=limit,
        max_tokens=max_tokens, ignore_eos=ignore_eos, temperatures=temperature, concurrency=concurrency,
        repetitions=repetitions, key_file=optional_path(key_file),
    )  # fmt: skip
    within = figures.limits(goodput)
    if host:
        result = document.take_on(host, model, spec, within, optional_path(inventory))
    else:
        result = document.take(spec, within, options.told_by(console_on(sys.stderr).print))
    _leave(result, optional_path(out), json=json)
    end_with(result.exit_code)


@task(
    name="page",
    auto_shortflags=False,
    iterable=["file"],
    help={"file": "a bench.json, or NAME=FILE; given several times", "out": "the page to write"},
)
def bench_page(c: Context, file: list[str], out: str = "bench.html") -> None:
    """Write one page of several measurements."""
    from aerie.engines.benchmark import document
    from aerie.report import bench_page

    path = document.write_page(file, Path(out), bench_page.page)
    console_on(sys.stdout).print(f"written {path}")


@task(
    name="sweep",
    auto_shortflags=False,
    help={
        "host": "name in the inventory",
        "model": "the model, by the name that ./invoke serve has for it; it must serve",
        "draft_tokens": "numbers of draft tokens to measure, as 0,1,2,3,5; 0 is without a drafter",
        "drafter": "its EAGLE-3 drafter, where what serves now has none",
        "api": "chat, completions, or native (SGLang's /generate)",
        "prompts": "JSON lines (prompt, messages, input_ids) or ShareGPT; default the packaged ones",
        "limit": "the first so many prompts; 0 is all",
        "max_tokens": "tokens an answer may have",
        "ignore_eos": "every answer has all of them",
        "temperature": "one, or several as 0,1",
        "concurrency": "users at the same time, one after the other",
        "repetitions": "how often each level is measured",
        "plan": "only show what would be done (so does invoke --dry)",
        "inventory": INVENTORY,
        "yes": "do not ask",
        "no_input": "never ask: without --yes nothing is changed",
        "out": "folder for bench.json, records.jsonl and bench.html; default one in the state directory",
        "json": JSON,
    },
)
def bench_sweep(
    c: Context,
    host: str,
    model: str,
    draft_tokens: str,
    drafter: str = "",
    api: str = "chat",
    prompts: str = "",
    limit: int = 0,
    max_tokens: int = 256,
    ignore_eos: bool = False,
    temperature: str = "0",
    concurrency: str = "1,16",
    repetitions: int = 3,
    plan: bool = False,
    inventory: str = "",
    yes: bool = False,
    no_input: bool = False,
    out: str = "",
    json: bool = False,
) -> None:
    """Find the fastest number of draft tokens: serve each, measure it, go back. 1: one did not come up or answer."""
    from aerie.engines.benchmark import options
    from aerie.engines.service import variants
    from aerie.report import sweeps

    spec = options.spec(
        urls=(), host=host, against="", api=api, model=model, file=optional_path(prompts), limit=limit,
        max_tokens=max_tokens, ignore_eos=ignore_eos, temperatures=temperature, concurrency=concurrency,
        repetitions=repetitions, key_file=None,
    )  # fmt: skip
    wanted = variants.tokens_of(draft_tokens)
    planned = variants.prepare(host, model, wanted, drafter=drafter, inventory_file=optional_path(inventory))
    if plan or c.config.run.dry or planned.exit_code:
        show(sweeps.plan_view(planned, spec), planned.to_dict(), json=json)
        raise Exit(code=planned.exit_code)
    console_on(sys.stderr if json else sys.stdout).print(sweeps.plan_view(planned, spec))
    if not yes:
        ask(f"Change what serves {model} on {host} {len(planned.services) + 1} times?", no_input=no_input)
    _sweep(planned, spec, optional_path(out), json=json)


def _sweep(planned: Any, spec: Any, out: Path | None, *, json: bool) -> None:
    from aerie.engines.benchmark import sweeping
    from aerie.report import serving

    result, exit_code = sweeping.take(planned, spec, serving.phases(console_on(sys.stderr)))
    _leave(result, out, json=json)
    end_with(exit_code)


def _leave(result: Any, out: Path | None, *, json: bool) -> None:
    """Write a measurement's files and show it."""
    from aerie.engines.benchmark import document, options
    from aerie.report import bench as views
    from aerie.report import bench_page

    paths = document.write(result, out or options.folder(result.started_at), bench_page.page)
    show(views.view(result.to_dict(), paths), result.to_dict(), json=json)


collection = Collection("bench", bench, bench_page, bench_sweep)
