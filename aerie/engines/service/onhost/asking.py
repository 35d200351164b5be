"""Requests to an engine on this host: a real generation, tokens of a text, and its counters."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Final

from aerie.errors import AerieError

__all__ = ["NotYet", "counter", "generate", "metrics", "post", "running", "tokens", "total"]

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
    answer = post(f"{url}/v1/completions", body, key, timeout_s)
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
    text = metrics(url)
    if not _samples(text, (name,)):
        raise _wrong(f"{url}/metrics", "no such counter", name)
    return total(text, name)


def running(url: str) -> float:
    """Requests that the engine works at or keeps waiting; 0 where it does not say."""
    return total(metrics(url), *OPEN_REQUESTS)


def tokens(url: str, model: str, key: str, text: str) -> list[int]:
    """The ids of a user's message as the engine renders it for a chat; of the plain text where it has no template.

    Raises as generate does.
    """
    chat = {"model": model, "messages": [{"role": "user", "content": text}]}
    try:
        answer = post(f"{url}/tokenize", chat, key)
    except AerieError:  # no chat template, or SGLang up to 0.5.9, which takes text only
        answer = post(f"{url}/tokenize", {"model": model, "prompt": text}, key)
    return [int(token) for token in answer["tokens"]]


def total(text: str, *names: str) -> float:
    """The sum of these counters over their labels in the text of /metrics; 0 where it has none of them."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in _samples(text, names))


def _samples(text: str, names: tuple[str, ...]) -> list[str]:
    starts = tuple(f"{name}{end}" for name in names for end in "{ ")
    return [line for line in text.splitlines() if line.startswith(starts)]


def metrics(url: str) -> str:
    """The text of /metrics. Raises AerieError where the engine gives none."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
            return str(response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        raise _wrong(f"{url}/metrics", str(error), "the engine's metrics") from error


def post(url: str, body: dict[str, Any], key: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The answer to a request with the key. Raises as generate does."""
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
