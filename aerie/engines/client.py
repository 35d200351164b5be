"""Requests to a server, by token ids in both directions; the engine's adapter knows the words."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aerie.engines import sse
from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import Answer, Launch, Question
from aerie.errors import AerieError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Asked", "Client", "Streamed", "connect", "crowd"]

_STALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """One streamed completion. Times are of time.monotonic(), seconds.

    first_tokens: tokens in the first chunk that held any; a drafter can make it more than 1.
    acceptance: of this request, where the engine tells it with the answer.
    """

    token_ids: tuple[int, ...]
    t_send: float
    t_first: float
    t_last: float
    first_tokens: int
    acceptance: Acceptance | None = None


class Asked(Protocol):
    """Whom a client asks: a server of this machine, one of another, or a router in front of some."""

    @property
    def url(self) -> str:
        """Without a trailing slash and without /v1."""

    @property
    def launch(self) -> Launch:
        """How it was started, with the adapter that knows its words."""

    def failure(self, seen: str) -> AerieError:
        """An error about it."""


class Client:
    """Completions and metrics of one server. Errors name the server and end with its log's last lines.

    stall_s: how long an answer may be silent.
    """

    def __init__(self, server: Asked, session: "aiohttp.ClientSession", stall_s: float) -> None:
        self.server, self._session, self._stall_s = server, session, stall_s

    async def stream(self, prompt: Sequence[int], *, max_tokens: int, ignore_eos: bool = False) -> Streamed:
        """Greedy, streamed, timed at the client."""
        adapter = self.server.launch.adapter
        question = adapter.question(prompt, max_tokens=max_tokens, ignore_eos=ignore_eos, stream=True)
        token_ids: list[int] = []
        acceptance = None
        t_send = time.monotonic()
        t_first = t_last = t_send
        first_tokens = 0
        try:
            with self._losses():
                async for now, event in sse.events(self._session, self.server.url + question.path, question.body):
                    answer = adapter.answer(event)
                    if answer.error:
                        raise self.server.failure(f"{answer.error[:300]} after {len(token_ids)} tokens")
                    acceptance = answer.acceptance or acceptance
                    if new := answer.after(len(token_ids)):
                        if not token_ids:
                            t_first, first_tokens = now, len(new)
                        token_ids += new
                        t_last = now
        except sse.BrokenStream as error:
            raise self.server.failure(f"{error} after {len(token_ids)} tokens") from error
        if not token_ids:
            raise self.server.failure("a stream without tokens")
        return Streamed(
            token_ids=tuple(token_ids),
            t_send=t_send,
            t_first=t_first,
            t_last=t_last,
            first_tokens=first_tokens,
            acceptance=acceptance,
        )

    async def ask(self, question: Question) -> Answer:
        """One answer as a whole."""
        with self._losses():
            async with self._session.post(self.server.url + question.path, json=question.body) as response:
                await self._check(response)
                answer = self.server.launch.adapter.answer(await response.json())
        if answer.error:
            raise self.server.failure(f"error in the answer: {answer.error[:300]}")
        return answer

    async def rendered(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> tuple[int, ...]:
        """Token ids of a chat as the server's own chat template renders it with these options."""
        question = self.server.launch.adapter.rendering(messages, options)
        with self._losses():
            async with self._session.post(self.server.url + question.path, json=question.body) as response:
                await self._check(response)
                return tuple((await response.json())["tokens"])

    async def top(self, tokens: Sequence[int], count: int) -> dict[int, float]:
        """Log probabilities of the `count` most likely next tokens, by token id."""
        return dict((await self.ask(self.server.launch.adapter.question(tokens, max_tokens=1, top=count))).top)

    async def metrics(self) -> str:
        """The text of /metrics."""
        with self._losses():
            async with self._session.get(f"{self.server.url}/metrics") as response:
                await self._check(response)
                return await response.text()

    async def _check(self, response: "aiohttp.ClientResponse") -> None:
        if response.status != 200:
            raise self.server.failure(f"HTTP {response.status}: {(await response.text())[:300]}")

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """A connection that is lost or falls silent is the server's failure."""
        import aiohttp

        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as error:
            what = f"no byte for {self._stall_s:g} s" if isinstance(error, TimeoutError) else repr(error)
            raise self.server.failure(f"a request that was not answered: {what}") from error


@asynccontextmanager
async def connect(server: Asked, stall_s: float = _STALL_S) -> AsyncIterator[Client]:
    """A client with its own connections. A request may take any time, but not be silent for `stall_s`.

    An answer that is asked for as a whole is silent until its last token.
    """
    async with sse.session(stall_s) as session:
        yield Client(server, session, stall_s)


async def crowd(size: int, user: Callable[[], Awaitable[None]]) -> None:
    """Let `size` users work side by side; the first error of any ends all and is raised."""
    try:
        async with asyncio.TaskGroup() as users:
            for _ in range(size):
                users.create_task(_run(user))
    except ExceptionGroup as group:
        ours, _ = group.split(AerieError)
        raise (ours or group).exceptions[0] from None


async def _run(user: Callable[[], Awaitable[None]]) -> None:
    await user()
