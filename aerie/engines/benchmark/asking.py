"""One request, streamed and timed at the client, through whichever interface the server has."""

import hashlib
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from aerie.engines import sse
from aerie.engines.benchmark.endpoint import Api, Endpoint
from aerie.engines.benchmark.prompts import Question

__all__ = ["Answer", "Sampling", "ask", "body"]

PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "native": "/generate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are made. ignore_eos: all have max_tokens tokens (vLLM and SGLang know it, others may refuse)."""

    max_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Times are of time.monotonic(), seconds.

    arrivals: when tokens came, and how many there were by then; a drafter makes steps of more than 1.
    is_counted: the server counted the tokens of every chunk; else each chunk is taken for one token.
    cached_tokens: of the prompt, from the server's prefix cache; None where it does not tell.
    meta: SGLang's meta_info at the end, or vLLM's metrics of the request. error: what failed; empty where nothing did.
    """

    t_send: float
    arrivals: tuple[tuple[float, int], ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    is_counted: bool = False
    finish: str = ""
    text_sha256: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From sending to the first token."""
        return self.arrivals[0][0] - self.t_send

    @property
    def e2e_s(self) -> float:
        """From sending to the last token."""
        return self.arrivals[-1][0] - self.t_send

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.arrivals[-1][0] - self.arrivals[0][0]

    @property
    def decoded(self) -> int:
        """Tokens after the first chunk; those of the first chunk are the prompt's time."""
        return self.output_tokens - self.arrivals[0][1]

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between one arrival of tokens and the next."""
        times = [at for at, _ in self.arrivals]
        return tuple(later - at for at, later in itertools.pairwise(times))


def body(question: Question, api: Api, model: str, sampling: Sampling) -> dict[str, Any]:
    """What is sent. Usage with every chunk, for a chunk may hold several tokens, and reasoning is not in `content`."""
    if api == "native":
        prompt = {"input_ids": list(question.input_ids)} if question.input_ids else {"text": question.text}
        wanted = {"max_new_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        ignore = {"ignore_eos": True} if sampling.ignore_eos else {}
        return {**prompt, "sampling_params": {**wanted, **ignore}, "stream": True}
    if api == "chat":
        said: dict[str, Any] = {"messages": [{"role": role, "content": text} for role, text in question.messages]}
    else:
        said = {"prompt": list(question.input_ids) or question.text}
    return {
        "model": model,
        **said,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        **({"ignore_eos": True} if sampling.ignore_eos else {}),
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def ask(session: aiohttp.ClientSession, endpoint: Endpoint, api: Api, request: Mapping[str, Any]) -> Answer:
    """Send and read to the end. A request that fails is an Answer with an error: the others go on."""
    reading = _Native() if api == "native" else _OpenAI()
    t_send = time.monotonic()
    try:
        async for now, event in sse.events(session, f"{endpoint.url}{PATHS[api]}", request):
            reading.take(now, event)
    except sse.BrokenStream as error:
        return Answer(t_send=t_send, error=f"{error} after {reading.tokens} tokens")
    except TimeoutError:
        return Answer(t_send=t_send, error=f"silence after {reading.tokens} tokens")
    except aiohttp.ClientError as error:
        return Answer(t_send=t_send, error=f"{error!r} after {reading.tokens} tokens")
    if not reading.arrivals:
        return Answer(t_send=t_send, error="no token")
    return reading.answer(t_send)


class _Reading:
    """Tokens as they come."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self.tokens = 0
        self.is_counted = False
        self.finish = ""
        self.text = hashlib.sha256()
        self.meta: dict[str, Any] = {}
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None

    def arrive(self, now: float, counted: int | None, has_text: bool) -> None:
        """Tokens came, if the server's count rose; where it has none, if there was text."""
        if counted is not None:
            self.is_counted = True
            if counted > self.tokens:
                self.tokens = counted
                self.arrivals.append((now, counted))
        elif has_text and not self.is_counted:
            self.tokens += 1
            self.arrivals.append((now, self.tokens))

    def answer(self, t_send: float) -> Answer:
        return Answer(
            t_send=t_send,
            arrivals=tuple(self.arrivals),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.tokens,
            is_counted=self.is_counted,
            finish=self.finish,
            text_sha256=self.text.hexdigest(),
            meta=self.meta,
        )


class _OpenAI(_Reading):
    def take(self, now: float, event: Mapping[str, Any]) -> None:
        new = ""
        for choice in event.get("choices") or ():
            said = choice.get("delta") or choice
            new += "".join(str(said.get(key) or "") for key in ("reasoning_content", "reasoning", "content", "text"))
            self.finish = choice.get("finish_reason") or self.finish
        self.text.update(new.encode())
        usage = event.get("usage") or {}
        counted = usage.get("completion_tokens")
        # The usage of the last event alone, of a server that counts no chunks, is a total and not an arrival.
        is_total = not event.get("choices") and not self.is_counted and bool(self.arrivals)
        if is_total and counted is not None:
            self.tokens = counted
        else:
            self.arrive(now, counted, bool(new))
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", self.cached_tokens)
        told = (event.get("metrics") or {}).get("speculative_decoding")
        details = (event.get("sglext") or {}).get("spec_tokens_details")
        self.meta |= told or details or {}


class _Native(_Reading):
    def __init__(self) -> None:
        super().__init__()
        self.so_far = ""

    def take(self, now: float, event: Mapping[str, Any]) -> None:
        meta, text = event.get("meta_info") or {}, str(event.get("text") or "")
        self.arrive(now, meta.get("completion_tokens"), bool(text))
        # The text so far, unless the server was told to stream only what is new.
        new = text.removeprefix(self.so_far)
        self.so_far = text if text.startswith(self.so_far) else self.so_far + text
        self.text.update(new.encode())
        reason = meta.get("finish_reason")
        self.finish = str(reason.get("type", "")) if isinstance(reason, Mapping) else self.finish
        self.prompt_tokens = meta.get("prompt_tokens", self.prompt_tokens)
        self.cached_tokens = meta.get("cached_tokens", self.cached_tokens)
        self.meta = {key: value for key, value in meta.items() if key.startswith("spec_")}
