"""Looks at the service: processes, health page, counters, GPUs, log; and asks it to generate where nobody else does."""

import importlib
import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerie.engines.watchdog import patterns, proc
from aerie.engines.watchdog.observation import Gpu, Observation
from aerie.engines.watchdog.service import Service, State
from aerie.engines.watchdog.spec import Spec

__all__ = ["Observer", "gpus", "library"]

LOG_LINES = 400
HEALTH_S = 5.0
PROMPT, TOKENS = "The quick brown fox jumps over the lazy dog, and then", 4


class Observer:
    """Keeps what one look needs of those before it."""

    def __init__(self, spec: Spec, service: Service, nvml: Any = None) -> None:
        self.spec, self.service, self.nvml = spec, service, nvml
        self._start = ""
        self._tokens: float | None = None
        self._generated: bool | None = None
        self._asked_at = float("-inf")
        self._log_lines, self._last_log = 0, [""]

    def look(self) -> tuple[State, Observation]:
        """Now. A new start of the service forgets what was known of the one before."""
        state = self.service.state()
        if state.start != self._start:
            self._start, self._tokens, self._generated, self._asked_at = state.start, None, None, float("-inf")
        log = self.service.log(LOG_LINES)
        self._log_lines += patterns.telling(_new(self._last_log, log))
        self._last_log = log or [""]
        answers = state.unit == "active" and self._get("/health") is not None
        tokens, running = self._counters() if answers else (None, None)
        if answers:
            self._ask(tokens, running)
        self._tokens = tokens if tokens is not None else self._tokens
        return state, Observation(
            at=time.monotonic(),
            unit=state.unit,
            processes=proc.processes(state.pids),
            answers=answers,
            tokens=tokens,
            running=running,
            generated=self._generated,
            gpus=gpus(self.nvml, self.spec.gpus),
            log_lines=self._log_lines,
            log_hits=patterns.hits(log),
        )

    def _counters(self) -> tuple[float | None, float | None]:
        text = self._get("/metrics") or ""
        tokens, running = (patterns.counter(text, patterns.metric_names(what)) for what in ("tokens", "running"))
        return tokens, running

    def _ask(self, tokens: float | None, running: float | None) -> None:
        """A request of our own, when no other's tokens prove that it generates."""
        if tokens is not None and self._tokens is not None and tokens > self._tokens:
            self._generated = None
            return
        now = time.monotonic()
        if running or now - self._asked_at < self.spec.limits.probe_every_s:
            return
        self._asked_at = now
        body = {"model": self.spec.model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        request = self._request("/v1/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=self.spec.limits.probe_timeout_s) as response:
                response.read()
            self._generated = True
        except urllib.error.HTTPError as error:
            self._generated = False if error.code >= 500 else None  # 4xx: it is we who ask wrongly
        except (OSError, ValueError):
            self._generated = False

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self._request(path), timeout=HEALTH_S) as response:
                return str(response.read().decode(errors="replace"))
        except (OSError, ValueError):
            return None

    def _request(self, path: str, body: bytes | None = None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self.spec.key_file:
            with suppress(OSError):
                headers["Authorization"] = f"Bearer {Path(self.spec.key_file).read_text().strip()}"
        return urllib.request.Request(self.spec.url + path, body, headers)


def library() -> Any:
    """pynvml with NVML open, or None where either is missing; the engine's environment has pynvml on a GPU host."""
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
    except Exception:  # the module, the library, the driver: each with errors of its own
        return None
    return pynvml


def gpus(nvml: Any, indexes: tuple[int, ...]) -> tuple[Gpu, ...] | None:
    """The GPUs by NVML; None where it does not answer for one of them."""
    if nvml is None:
        return None
    try:
        return tuple(_gpu(nvml, index) for index in indexes)
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        utilisation=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        power_limit_w=nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        used_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        pids=tuple(one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def _new(before: list[str], now: list[str]) -> list[str]:
    """The lines after the last one that was seen; all where it has scrolled out of reach."""
    last = before[-1]
    for place in range(len(now) - 1, -1, -1):
        if now[place] == last:
            return now[place + 1 :]
    return now
