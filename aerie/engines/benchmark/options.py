"""What was asked for on a command line, as a measurement's spec."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aerie.choice import unknown_name
from aerie.engines.benchmark import endpoint, prompts
from aerie.engines.benchmark.running import OnProgress, Spec
from aerie.errors import UsageError
from aerie.paths import state_dir

__all__ = ["folder", "spec", "told_by"]

EVERY_S = 30.0


def spec(
    *,
    urls: Sequence[str],
    host: str,
    against: str,
    api: str,
    model: str,
    file: Path | None,
    limit: int,
    max_tokens: int,
    ignore_eos: bool,
    temperatures: str,
    concurrency: str,
    repetitions: int,
    key_file: Path | None,
) -> Spec:
    """The spec; `against` becomes the first arm. file: of prompts, else the packaged ones. With
    `host` it has no endpoint yet.

    Raises UsageError for what cannot be meant.
    """
    if api not in endpoint.APIS:
        raise unknown_name("--api", api, endpoint.APIS)
    if host and (urls or against or not model):
        raise UsageError(
            "--host",
            seen="with --url or --against" if urls or against else "without --model",
            expected="--host and --model alone",
            remedy="Give --model with the name that ./invoke serve has for it.",
        )
    _at_least("--repetitions", repetitions, 1)
    _at_least("--max-tokens", max_tokens, 2)  # a single token has no time per token
    return Spec(
        endpoints=() if host else _endpoints(urls, against, key_file),
        api=next(one for one in endpoint.APIS if one == api),
        questions=prompts.read(file or prompts.PACKAGED, limit),
        max_tokens=max_tokens,
        temperatures=_numbers("--temperature", temperatures, 0),
        concurrency=tuple(int(level) for level in _numbers("--concurrency", concurrency, 1)),
        repetitions=repetitions,
        ignore_eos=ignore_eos,
        model=model,
    )


def folder(started_at: str) -> Path:
    """Where a measurement's files go unless somebody names a folder."""
    return state_dir() / "bench" / started_at.replace(":", "").replace("-", "")


def told_by(tell: Callable[[str], object]) -> OnProgress:
    """Progress as a line at each new level, and every half minute within one."""
    last_what, last_at = "", 0.0

    def on_progress(done: int, total: int, what: str) -> None:
        nonlocal last_what, last_at
        now = time.monotonic()
        if what != last_what or now - last_at > EVERY_S:
            last_what, last_at = what, now
            tell(f"{done} of {total} requests  {what}")

    return on_progress


def _endpoints(urls: Sequence[str], against: str, key_file: Path | None) -> tuple[endpoint.Endpoint, ...]:
    given = [*filter(None, [against]), *urls]
    if not urls:
        raise UsageError("--url", seen="none", expected="where a server answers", remedy="Give --url http://HOST:PORT.")
    key = _key(key_file) if key_file else ""
    defaults = ["against", *_letters(len(urls))] if against else _letters(len(urls))
    found = [endpoint.parse(text, name, key) for text, name in zip(given, defaults, strict=True)]
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise UsageError("--url", seen=names, expected="a name of its own for each", remedy="Give NAME=http://….")
    return tuple(found)


def _letters(count: int) -> list[str]:
    return ["server"] if count == 1 else [f"server-{number}" for number in range(1, count + 1)]


def _key(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError("--key-file", seen=str(error), expected="a file with the server's key", remedy="") from error


def _numbers(option: str, text: str, least: float) -> tuple[float, ...]:
    try:
        found: tuple[float, ...] = tuple(sorted({float(part) for part in text.split(",")}))
        if all(number >= least for number in found):
            return found
    except ValueError:
        pass
    raise UsageError(option, seen=text, expected=f"numbers of at least {least}, as 1,4,16", remedy="")


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(option, seen=value, expected=f"at least {least}", remedy="")
