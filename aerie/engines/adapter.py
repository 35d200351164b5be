"""One interface to both engines: what is started, what is sent, how an answer and the counters read.

An adapter is pure: it starts no process and opens no connection. `server` starts what `launch` gives and knows it
ready when it has generated; `client` sends what `question` gives and reads what comes back by `answer`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from aerie.engines.acceptance import Acceptance
from aerie.engines.values import Engine
from aerie.errors import UsageError

__all__ = [
    "SERVED_NAME",
    "Adapter",
    "Answer",
    "Capture",
    "Drafter",
    "Forced",
    "LastState",
    "Launch",
    "Mode",
    "Progress",
    "Question",
    "Served",
    "adapter",
    "chat_rendering",
    "checked_length",
]

SERVED_NAME = "target"

# Nothing that the caller's shell happens to hold may change what is measured.
_NOT_INHERITED = (
    "PYTHON", "VLLM_", "SGLANG_", "SGL_", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "HF_", "TRANSFORMERS_",
    "LD_PRELOAD",
)  # fmt: skip
# But what an operator forbids on a host stays forbidden: multicast can take the GPUs of a shared host out of service.
_INHERITED = ("TORCH_SYMM_MEM_DISABLE_MULTICAST",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Serve with an EAGLE-3 drafter. tokens: drafts per verify step (k), in a chain."""

    path: Path
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Serve with a drafter whose acceptance is forced to a mean of `length`, 1 to tokens + 1. The text is worthless.

    folder: an empty folder of ours. Where the adapter `switches_forced`, one running server serves every length.
    """

    drafter: Drafter
    length: float
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Serve without drafting and write the hidden states of every request that asks for them to a file.

    layers: ids as the engine counts them, rising; the last one is the number of layers itself, which is the last state
    (Adapter.last_state). directory: of the files, and of what has an engine write them.
    """

    layers: tuple[int, ...]
    directory: Path


Mode = Drafter | Forced | Capture | None
"""None serves the target alone."""

LastState = Literal["before-norm", "after-norm"]
"""Whether the final norm is in the last state of a Capture server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is to be served. python: the interpreter of the engine's environment; version: of the engine in it.

    dtype: "bfloat16", or "float32" for a model without MLA on a CPU. arch: "sm90", "sm100", "sm120", or "cpu".
    trust_code: may the engine execute code that lies in the model's folder, as Kimi-K2.5's tokenizer?
    """

    python: Path
    model: Path
    engine: Engine
    dtype: str
    version: str
    arch: str = "cpu"
    trust_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to execute. flags: the part that is worth showing; host and port are added at the start.

    variables: what is set beyond the environment of whoever starts it. model: the name to ask for in requests.
    gpus: how many it takes.
    """

    program: tuple[str, ...]
    flags: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)
    model: str
    adapter: "Adapter" = field(repr=False)
    gpus: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The whole of it for a child of this process: the caller's, without what would change a measurement."""
        inherited = {
            key: value for key, value in os.environ.items() if key in _INHERITED or not key.startswith(_NOT_INHERITED)
        }
        return inherited | dict(self.variables)

    def argv(self, host: str, port: int) -> list[str]:
        """The whole command line."""
        return [*self.program, *self.flags, "--host", host, "--port", str(port)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One POST: the path on the server, and the body as JSON."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response, or one event of a stream.

    token_ids: tokens in it. total: tokens of the whole answer so far, where the engine says so; an event whose
    token_ids are as many repeats those before it. is_whole: it ended by itself. acceptance: of this request alone,
    where the engine says so. top: best next tokens with their log probabilities. error: what went wrong.
    states_file: of the hidden states, from the directory of Capture; it is whole when its .lock can be taken.
    """

    token_ids: tuple[int, ...] = ()
    total: int | None = None
    finish: str | None = None
    acceptance: Acceptance | None = None
    top: Mapping[int, float] = field(default_factory=dict)
    error: str | None = None
    states_file: Path | None = None

    def after(self, have: int) -> tuple[int, ...]:
        """The tokens that are new to someone who has `have` of them."""
        return self.token_ids[have:] if len(self.token_ids) == self.total else self.token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a server has done since its start and what it is at. None: the engine does not say.

    verify_steps counts every request's; warm-up and readiness are among all of them.
    """

    generated_tokens: int
    prompt_tokens: int
    running: int
    waiting: int
    verify_steps: int | None


class Adapter(Protocol):
    """What aerie asks of an engine. name: as in profiles and in the capability table.

    last_state: of what Capture gives out. polls_when_idle: does a server without requests take a core all the same?
    """

    name: str
    last_state: LastState
    polls_when_idle: bool

    def launch(self, served: Served, mode: Mode = None) -> Launch:
        """How to start one server. Reads the model's config.json; writes into the mode's folders alone.

        Raises UsageError for a model, type or mode that this engine is known to serve wrongly, or not at all.
        """

    def question(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0,
        seed: int | None = None,
        ignore_eos: bool = False,
        stream: bool = False,
        top: int = 0,
        states: bool = False,
    ) -> Question:
        """A completion by token ids. top: log probabilities of so many best tokens; states: of a Capture server."""

    def rendering(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Question:
        """For the token ids of a chat as its chat completions render it: `tokens` in the answer.

        options: what the chat template is given beside the messages.
        """

    def answer(self, event: Mapping[str, Any]) -> Answer:
        """Reads a response, or an event of its stream."""

    def counters(self, metrics: str) -> Acceptance | None:
        """Acceptance since the start from the text of /metrics; None where nothing drafts, or no counter says it."""

    def progress(self, metrics: str) -> Progress:
        """What was done so far, from the text of /metrics."""

    def switches_forced(self, engine: Engine) -> bool:
        """Can `switch_forced` change a running server, or is a server needed for every length?"""

    def switch_forced(self, forced: Forced, length: float) -> None:
        """Set the accept length of a running Forced server from its next verify step on."""


def chat_rendering(messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Question:
    """Adapter.rendering of both engines. SGLang takes messages there in 0.5.16 and 0.5.23, and text alone in 0.5.9."""
    body = {"model": SERVED_NAME, "messages": [dict(turn) for turn in messages], "chat_template_kwargs": dict(options)}
    return Question(path="/tokenize", body=body)


def adapter(name: str) -> Adapter:
    """The adapter of an engine: "vllm" or "sglang"."""
    from aerie.choice import unknown_name
    from aerie.engines import sglang, vllm

    known: dict[str, Adapter] = {one.name: one for one in (vllm.Vllm(), sglang.Sglang())}
    if name not in known:
        raise unknown_name("engine", name, known)
    return known[name]


def checked_length(forced: Forced) -> float:
    """Its length; raises UsageError unless a verify step of its drafter can have it."""
    most = forced.drafter.tokens + 1
    if not 1 <= forced.length <= most:
        raise UsageError(
            "forced accept length",
            seen=forced.length,
            expected=f"1 to {most}, drafts per step + 1",
            remedy="A verify step cannot accept more drafts than were made.",
        )
    return forced.length
