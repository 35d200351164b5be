"""Requests to an engine on this host: a real generation, and the counter of its verify steps."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Final

from aerie.errors import AerieError

__all__ = ["NotYet", "counter", "generate", "running"]

# vLLM's CPU build dies of an illegal instruction when its first prompt is shorter than what the matrix library takes,
# and /health is green on servers that fail at the first verify step: so a prompt of 32 tokens, and several to answer.
PROMPT: Final = [1, *[3] * 31]
TIMEOUT_S: Final = 120.0
OPEN_REQUESTS: Final = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs", "sglang:num_queue_reqs",
)  # fmt: skip


class NotYet(Exception):
    """Nobody answers there, or not like an engine that is up."""


def generate(url: str, model: str, key: str, tokens: int, timeout_s: float = TIMEOUT_S) -> int:
    """Generate so many tokens, greedily; how many there were. url: without /v1.

    Raises NotYet while nobody listens, and AerieError where the engine refuses or gives something else.
    """
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = _post(f"{url}/v1/completions", body, key, timeout_s)
    try:
        made = int(answer["usage"]["completion_tokens"])
        finish = answer["choices"][0]["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError):
        made, finish = 0, str(answer)[:200]
    if made != tokens:
        raise _wrong(url, f"{made} tokens, ended by {finish}", f"{tokens} tokens")
    return made


def counter(url: str, name: str) -> float:
    """The counter's sum over its labels in /metrics. Raises AerieError where the engine has no such counter."""
    found = [line for line in _metrics(url).splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    if not found:
        raise _wrong(f"{url}/metrics", "no such counter", name)
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def running(url: str) -> float:
    """Requests that the engine works at or keeps waiting; 0 where it does not say."""
    starts = tuple(f"{name}{end}" for name in OPEN_REQUESTS for end in "{ ")
    lines = (line for line in _metrics(url).splitlines() if line.startswith(starts))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def _metrics(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
            return str(response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        raise _wrong(f"{url}/metrics", str(error), "the engine's metrics") from error


def _post(url: str, body: dict[str, Any], key: str, timeout_s: float) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code in (502, 503):  # SGLang while it warms up; the front while nobody is behind it
            raise NotYet(f"HTTP {error.code}") from error
        raise _wrong(url, f"HTTP {error.code}: {error.read(300).decode(errors='replace')}", "an answer") from error
    except TimeoutError as error:
        raise _wrong(url, f"no answer within {timeout_s:g} s", "a generation") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotYet(str(error)) from error
    return answer


def _wrong(where: str, seen: str, expected: str) -> AerieError:
    return AerieError(where, seen=seen, expected=expected, remedy="See the engine's log: journalctl -u of its unit.")
