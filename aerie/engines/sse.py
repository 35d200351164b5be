"""Streams of server-sent events, as the OpenAI interface and SGLang's own send them, timed as they come."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

__all__ = ["BrokenStream", "events", "session"]

CONNECT_S = 10.0
# Servers close a connection that was idle for 5 s (uvicorn, and so vLLM and SGLang); a request that meets the close on
# its way is lost. aiohttp would keep one for 15 s.
KEEP_S = 2.0


class BrokenStream(Exception):
    """The server refused the request, told of an error within the stream, or ended it early; the text says which."""


@asynccontextmanager
async def session(stall_s: float, headers: Mapping[str, str] | None = None) -> "AsyncIterator[aiohttp.ClientSession]":
    """A session with connections of its own. A request may take any time, but not be silent for `stall_s`."""
    import aiohttp  # here: in the trainer's environment, which has none, this module is imported all the same

    async with aiohttp.ClientSession(
        # The defaults hold 100 connections and 64 KiB a line, and end a request after 5 minutes: each has been
        # mistaken for the server's limit (vllm #39963: 44 for 486 tok/s).
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S),
        read_bufsize=4 * 2**20,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=stall_s),
        headers=headers,
    ) as opened:
        yield opened


async def events(
    opened: "aiohttp.ClientSession", url: str, body: Mapping[str, Any]
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Every event with the time.monotonic() at which it was read, until the server says that it is done.

    Raises BrokenStream, aiohttp.ClientError or TimeoutError.
    """
    is_whole = False
    async with opened.post(url, json=body) as response:
        if response.status != 200:
            raise BrokenStream(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            is_whole = is_whole or line.startswith(b"data: [DONE]")
            if line.startswith(b"data: {"):
                now = time.monotonic()
                event = json.loads(line[6:])
                if "error" in event:
                    raise BrokenStream(f"error in the stream: {str(event['error'])[:300]}")
                yield now, event
    if not is_whole:  # a killed server may close the connection as if it were done
        raise BrokenStream("a stream cut off")
