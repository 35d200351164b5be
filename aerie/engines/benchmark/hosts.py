"""Measuring a model that a host serves, on that host: the network between is not what is asked about."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from aerie import inventory
from aerie.engines.benchmark import onhost, wire
from aerie.engines.benchmark.endpoint import Endpoint
from aerie.engines.benchmark.running import Measured, Spec
from aerie.engines.service import serving
from aerie.engines.service.onhost.definition import CONFIGURATION
from aerie.errors import AerieError
from aerie.inventory import Host
from aerie.remote.code import Code
from aerie.remote.running import run_shell

__all__ = ["BENCH", "measure_on"]

TIMEOUT_S = 6 * 3600.0
CAP_BYTES = 256 << 20
BENCH = Code(
    "aerie.engines.benchmark.onhost",
    (
        "choice.py", "errors.py", "paths.py", "runbook/step.py", "weights/__init__.py", "weights/load.py",
        "engines/*.py", "engines/*.toml", "engines/benchmark/*.py",
    ),
)  # fmt: skip


def measure_on(
    host: str, model: str, spec: Spec, inventory_file: Path | None = None, arm: str = ""
) -> tuple[Spec, Measured]:
    """The spec with the engine that serves `model` there as its only endpoint, and what was measured of it.

    arm: the endpoint's name, default the model's. It waits as long as the measurement takes. Raises AerieError where
    nothing serves the model, or measuring fails.
    """
    status = serving.status(host, model, inventory_file)
    if not status.is_serving or status.live is None:
        raise AerieError(
            f"host {host}: {model}",
            seen="not served",
            expected="a slot that serves it",
            remedy=f"./invoke serve --host {host} --model {model}",
        )
    service = status.services[status.live]
    url = f"http://127.0.0.1:{service.port_of(status.live)}"  # past the front, as the watchdog asks
    asked = replace(spec, endpoints=(Endpoint(name=arm or model, url=url),), model=model)
    key_file = str(CONFIGURATION / model / "api-key")
    told = {"spec": wire.spec_to(asked), "key_file": key_file}
    named = inventory.host(host, inventory_file or inventory.folder(None) / "hosts.yml")
    return asked, wire.measured_from(_run(named, service.program[0], json.dumps(told).encode()))


def _run(host: Host, python: str, told: bytes) -> dict[str, object]:
    BENCH.bring(host)
    command = shlex.join([python, "-I", BENCH.folder])
    result = run_shell(host, command, stdin=told, timeout_s=TIMEOUT_S, sudo=True, cap_bytes=CAP_BYTES)
    try:
        document = onhost.unpacked(result.stdout.strip().splitlines()[-1])
    except (ValueError, OSError, IndexError):
        raise AerieError(
            f"host {host.name}: measuring",
            seen=result.tail or f"exit {result.exit_code}",
            expected="a measurement",
            remedy=f"The engine's environment must have aiohttp, psutil, pydantic and prometheus_client: {python}",
        ) from None
    if "error" in document:
        raise AerieError(**document["error"])
    return document
