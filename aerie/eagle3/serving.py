"""What the serving steps share: prompts, servers with progress, and the engine as evidence."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from aerie.eagle3 import staged
from aerie.eagle3.environments import engine_version
from aerie.eagle3.profile import Engine
from aerie.engines import gpu_arch
from aerie.engines.adapter import Launch, Mode, Served, adapter
from aerie.engines.bench import Prompt
from aerie.engines.server import Server, serve
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json
from aerie.weights import load
from aerie.weights.onhost.residency import resident_bytes

__all__ = ["Installed", "Weights", "arch", "engine_evidence", "read_prompts", "servers", "started"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The target's weights before a server loads them: bytes in all, and how many of them the page cache holds."""

    size_bytes: int
    resident_bytes: int

    @classmethod
    def of(cls, context: Context) -> "Weights":
        """Of the run's target, now."""
        files = sorted(staged.folder(context.inputs["target"], "model").glob("*.safetensors"))
        return cls(
            size_bytes=sum(file.stat().st_size for file in files), resident_bytes=sum(map(resident_bytes, files))
        )

    def loaded_by(self, server: Server) -> dict[str, Json]:
        """How a server that is ready took them in: the load's figures with the verdict on them, as evidence."""
        total = server.watch.total()
        done = load.Load(
            size_bytes=self.size_bytes,
            seconds=load.seconds_in_log(server.log.read_text(errors="replace")),
            major_faults=total.major_faults,
            read_bytes=total.read_bytes,
            resident_bytes=self.resident_bytes,
        )
        return asdict(done) | asdict(load.judge(done))


def read_prompts(path: Path, limit: int) -> tuple[Prompt, ...]:
    """The first `limit` prompts of a JSON-lines file of {"id", "input_ids"}; raises if there are fewer."""
    with open(path) as file:
        rows = [json.loads(line) for line, _ in zip(file, range(limit), strict=False)]
    if len(rows) < limit:
        raise AerieError(
            path.name,
            seen=f"{len(rows)} prompts",
            expected=f"at least {limit}",
            remedy="Lower the profile's number of prompts, or raise corpus.held_out.",
        )
    return tuple(Prompt(id=row["id"], input_ids=tuple(row["input_ids"])) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An engine that can be started: how it serves, the interpreter of its environment, the version in it."""

    engine: Engine
    python: Path
    version: str

    @classmethod
    def of(cls, context: Context, engine: Engine) -> "Installed":
        """The profile's engine, in the environment of step `environments`."""
        return cls(engine=engine, python=_python(context), version=engine_evidence(context, engine)["version"])

    def launch(self, context: Context, mode: Mode) -> Launch:
        """How to start it on the run's target. Raises UsageError for what this engine is known to serve wrongly."""
        target = context.inputs["target"]
        served = Served(
            python=self.python,
            model=staged.folder(target, "model"),
            engine=self.engine,
            dtype=context.inputs["preflight"].evidence["arithmetic"]["dtype"],
            version=self.version,
            arch=arch(self.engine),
            trust_code=bool(target.evidence.get("trust_code")),
        )
        return adapter(self.engine.name).launch(served, mode)


@contextlib.contextmanager
def servers(context: Context, engine: Engine, modes: Mapping[str, Mode]) -> Iterator[dict[str, Server]]:
    """Servers of the target, one for each mode, all ready; their logs become artifacts (logs/<name>.log)."""
    installed = Installed.of(context, engine)
    with started(context, engine, {name: installed.launch(context, mode) for name, mode in modes.items()}) as ready:
        yield ready


@contextlib.contextmanager
def started(context: Context, engine: Engine, launches: Mapping[str, Launch]) -> Iterator[dict[str, Server]]:
    """As `servers`, of what may be several engines. engine: whose port and patience count."""
    logs = context.out / "logs"
    logs.mkdir(exist_ok=True)  # a step may have its servers one after the other

    def on_wait(ready: int, note: str) -> None:
        context.progress(ready, len(launches), unit="servers ready", note=note)

    with serve(launches, port=engine.port, logs=logs, ready_timeout_s=engine.ready_timeout_s, on_wait=on_wait) as ready:
        yield ready


def arch(engine: Engine) -> str:
    """What it serves on, as the capability table calls it. Raises AerieError for GPUs without rows there."""
    return gpu_arch.here() if engine.gpus else "cpu"


def engine_evidence(context: Context, engine: Engine) -> dict[str, str]:
    """The engine's name and the version that is installed in its environment."""
    version = engine_version(engine.name, context.inputs["environments"].evidence["engine"]["packages"])
    if version is None:
        raise AerieError(
            "engine environment",
            seen=f"no {engine.name}",
            expected="the engine of the profile",
            remedy="Set environments.engine of the profile to one that has it.",
        )
    return {"name": engine.name, "version": version}


def _python(context: Context) -> Path:
    if "engine" not in context.interpreters:
        raise AerieError(
            "engine environment", seen="none", expected="an interpreter", remedy="Run the step environments first."
        )
    return context.interpreters["engine"]
