"""Proving that an installed extension works on its host's GPUs, from the controller."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerie.errors import AerieError
from aerie.extensions.onhost.evidence import Gpu, Proof, Request, Shortfall
from aerie.remote.code import Code

if TYPE_CHECKING:
    from aerie import snapshot
    from aerie.inventory import Host

__all__ = ["CODE", "Gpu", "Proof", "Shortfall", "prove"]

CODE = Code(
    "aerie.extensions.onhost.prove",
    (
        "errors.py", "extensions/__init__.py", "extensions/_*.py", "extensions/coverage.py",
        "extensions/device_code.py", "extensions/onhost/__init__.py", "extensions/onhost/asking.py",
        "extensions/onhost/evidence.py", "extensions/onhost/launch.py", "extensions/onhost/prove.py",
        "extensions/onhost/proofs/*.py", "gpus/__init__.py", "gpus/onhost/__init__.py", "gpus/onhost/ending.py",
    ),
)  # fmt: skip
TIMEOUT_S = 1200.0  # of an import and of the launches, which the host ends itself, and of reading a large library


def prove(host: "Host", *, package: str, python: str, gpus: Sequence["snapshot.Gpu"]) -> Proof:
    """What the host saw of the package's device code, of its import, and of its kernels on every one of the GPUs.

    python: the interpreter of the package's environment on the host. gpus: of the host's snapshot, by NVML; those that
    NVML cannot reach are left out. Raises as remote.run does, and AerieError where nothing can be said: the package is
    not installed, no GPU answers, or nobody wrote how to prove it.
    """
    able = tuple(Gpu(uuid=one.uuid, name=one.name, arch=_arch(one.compute_capability)) for one in gpus if not one.error)
    request = json.dumps(Request(package=package, python=python, gpus=able).to_dict()).encode()
    answer = CODE.ask(host, ["prove"], stdin=request, timeout_s=TIMEOUT_S)
    if error := answer.get("error"):
        where = f"host {host.name}: {error['where']}"
        raise AerieError(where, seen=error["seen"], expected=error["expected"], remedy=error["remedy"])
    return Proof.from_dict(answer)


def _arch(compute_capability: str) -> str:
    """ "sm_120" of "12.0"."""
    return f"sm_{compute_capability.replace('.', '')}"
