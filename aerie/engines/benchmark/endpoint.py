"""A server to be measured, by its address: which interface it has, what it serves, and its counters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from aerie.errors import AerieError, UsageError

__all__ = ["APIS", "Api", "Endpoint", "Served", "headers", "look", "metrics", "parse"]

Api = Literal["chat", "completions", "native"]
"""chat and completions: of the OpenAI interface. native: SGLang's /generate, whose meta_info counts each request."""
APIS: tuple[Api, ...] = ("chat", "completions", "native")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.+-]*)=(.+)")
_SECONDS = aiohttp.ClientTimeout(total=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server answers. url: without a trailing slash and without /v1. key: sent as a bearer token."""

    name: str
    url: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server says of itself. Empty where it does not tell."""

    model: str
    engine: str
    version: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, beside every number that was measured there."""
        return {
            "model": self.model,
            "engine": self.engine,
            "version": self.version,
            "arguments": dict(sorted(self.arguments.items())),
        }


def parse(text: str, default_name: str, key: str = "") -> Endpoint:
    """An endpoint from `URL` or `NAME=URL`. Raises UsageError for what is no http address."""
    named = _NAMED.fullmatch(text)
    name, url = (named[1], named[2]) if named and "://" not in named[1] else (default_name, text)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            "--url",
            seen=text,
            expected="http://HOST:PORT, or NAME=http://HOST:PORT",
            remedy="Give the address that the engine listens on.",
        )
    return Endpoint(name=name, url=url.rstrip("/").removesuffix("/v1"), key=key)


def headers(endpoint: Endpoint) -> dict[str, str]:
    """What every request to it carries."""
    return {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}


async def look(session: aiohttp.ClientSession, endpoint: Endpoint, model: str = "") -> Served:
    """Ask what it serves. model: the one to be measured; without it the first that the server names.

    Raises AerieError where nothing answers, or the model is not served.
    """
    listed = await _json(session, endpoint, "/v1/models", is_needed=True)
    served = [str(one["id"]) for one in (listed or {}).get("data", []) if "id" in one]
    if not served or (model and model not in served):
        raise UsageError(
            f"{endpoint.name}, {endpoint.url}",
            seen=f"models {', '.join(served) or 'none'}",
            expected=model or "at least one model",
            remedy="Give --model with a name that the server has.",
        )
    if told := await _json(session, endpoint, "/server_info") or await _json(session, endpoint, "/get_server_info"):
        arguments = {key: value for key, value in told.items() if _is_plain(value) and not _is_secret(key)}
        return Served(
            model=model or served[0], engine="sglang", version=str(told.get("version", "")), arguments=arguments
        )
    version = await _json(session, endpoint, "/version")
    owners = {str(one.get("owned_by", "")) for one in (listed or {}).get("data", [])}
    engine = "vllm" if "vllm" in owners else ""
    return Served(model=model or served[0], engine=engine, version=str((version or {}).get("version", "")))


async def metrics(session: aiohttp.ClientSession, endpoint: Endpoint) -> str:
    """The text of /metrics; empty where the server has none (SGLang without --enable-metrics)."""
    try:
        async with session.get(f"{endpoint.url}/metrics", timeout=_SECONDS) as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _silent(endpoint, error) from error


async def _json(
    session: aiohttp.ClientSession, endpoint: Endpoint, path: str, *, is_needed: bool = False
) -> dict[str, Any] | None:
    try:
        async with session.get(f"{endpoint.url}{path}", timeout=_SECONDS) as response:
            if response.status == 200:
                answer = await response.json(content_type=None)
                return answer if isinstance(answer, dict) else None
            if is_needed:
                raise AerieError(
                    f"{endpoint.name}, {endpoint.url}{path}",
                    seen=f"HTTP {response.status}: {(await response.text())[:300]}",
                    expected="200",
                    remedy="Give --key-file with the key of the server." if response.status in (401, 403) else "",
                )
            return None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _silent(endpoint, error) from error
    except ValueError:
        return None


def _silent(endpoint: Endpoint, error: Exception) -> AerieError:
    return AerieError(
        f"{endpoint.name}, {endpoint.url}",
        seen=str(error) or type(error).__name__,
        expected="an engine that answers",
        remedy="Start it, or give its address with --url.",
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool)) and len(str(value)) <= 500


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in ("key", "token_file", "password", "secret", "launch_command"))
