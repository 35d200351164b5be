"""What a slot's unit calls: `gates` before the engine starts, `run` to become it, `ready` until it generates."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from aerie.errors import AerieError
from aerie.weights.onhost import warm

from . import asking, gates
from .definition import Slot, parse

__all__ = ["check_gates", "run", "wait_ready"]

PROBE_S: Final = 120
POLL_S: Final = 0.5
READY_TOKENS: Final = 6


def check_gates(slot_file: Path, probe: Path) -> int:
    """0 where the engine may start; else 1, and each reason in a line for the journal. Warms the weights.

    probe: the script whose output is the host's snapshot. Runs as root: it counts pages and asks NVML.
    """
    service = parse(json.loads(slot_file.read_bytes()))
    stops = gates.judge(service, _snapshot(probe))
    for one in stops:
        _say(f"{one.finding}: {one.seen}, expected {one.expected}. {one.remedy}")
    if stops:
        return 1
    for weights in service.weights:
        files = _files(Path(weights.folder))
        done = warm.warm(Path(weights.folder), files)
        share = done.resident_bytes / done.size_bytes if done.size_bytes else 1.0
        why = f"; {done.reason}, so the load reads the rest from the disk" if done.reason else ""
        _say(f"weights of {weights.model}: {share:.0%} of {done.size_bytes / 1e9:.2f} GB in memory{why}")
    return 0


def run(slot_file: Path, slot: Slot) -> NoReturn:
    """Become the engine. Its key goes from the credential into its environment or a file of its own, never argv."""
    service = parse(json.loads(slot_file.read_bytes()))
    key = _key()
    environment = {**os.environ, **service.environment}
    argv = [*service.program, "--host", "127.0.0.1", "--port", str(service.port_of(slot))]
    if service.key == "environment":
        environment["VLLM_API_KEY"] = key
    else:
        file = Path(os.environ["RUNTIME_DIRECTORY"], "key.yaml")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as out:
            out.write(f"api-key: {json.dumps(key)}\n")
        argv += ["--config", str(file)]
    os.execve(argv[0], argv, environment)


def wait_ready(slot_file: Path, slot: Slot) -> int:
    """0 as soon as the engine generated; 1 when its process ended before. How long is the unit's TimeoutStartSec."""
    service = parse(json.loads(slot_file.read_bytes()))
    url, key, began = f"http://127.0.0.1:{service.port_of(slot)}", _key(), time.monotonic()
    while os.path.exists(f"/proc/{os.environ['MAINPID']}"):
        try:
            asking.generate(url, service.model, key, READY_TOKENS)
        except asking.NotYet:
            time.sleep(POLL_S)
            continue
        except AerieError as error:
            _say(f"engine.no-answer: {error}")
            return 1
        _say(f"ready after {time.monotonic() - began:.1f} s: generated {READY_TOKENS} tokens")
        return 0
    _say("engine.service-failed: the engine ended before it generated")
    return 1


def _key() -> str:
    """The key, as systemd gives it to the unit's programs."""
    return Path(os.environ["CREDENTIALS_DIRECTORY"], "api-key").read_text().strip()


def _snapshot(probe: Path) -> Mapping[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(probe)], capture_output=True, text=True, check=False, timeout=PROBE_S
    )
    if done.returncode != 0:
        raise AerieError(str(probe), seen=done.stderr.strip()[-300:], expected="a snapshot", remedy="Run it by hand.")
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def _files(folder: Path) -> dict[str, int]:
    """The model's files by path below `folder`, with their sizes, as its manifest has them."""
    manifest = json.loads((folder / ".aerie" / "manifest.json").read_bytes())
    return {row["path"]: row["size"] for row in manifest["files"]}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
