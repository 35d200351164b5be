"""Proving the GPUs of this machine: the code that hosts are sent, run from where it lies."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.paths import repository

__all__ = ["LIMIT_S", "PARTS", "prove"]

LIMIT_S = 120.0  # for each part; NCCL's first meeting of 8 GPUs takes some 20 s, a compile in the driver under one
PARTS = 12  # a count, a kernel for each of eight GPUs, the pairs, the collective, and one for its end
MAIN = """\
import sys
sys.path.insert(0, {root!r})
from aerie.gpus.onhost.main import main
sys.exit(main(sys.argv[1:]))
"""


def prove(folder: Path, *, uuids: Sequence[str], python: str, limit_s: float = LIMIT_S) -> Mapping[str, Any]:
    """The proof of the GPUs with these UUIDs, for proof.parse: kernels, pairs and, with a python, the collective.

    folder: for the program; python: an interpreter that has torch, "" for none. Where CUDA_VISIBLE_DEVICES is set
    already it stays so. Raises AerieError where the code itself does not run.
    """
    program = folder / "prove.py"  # it starts itself again for every part
    program.write_text(MAIN.format(root=str(repository())))
    request = {"python": python, "limit_s": limit_s, "is_collective": bool(python)}
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(program), "prove"],
        input=json.dumps(request).encode(),
        env={"CUDA_VISIBLE_DEVICES": ",".join(uuids), **os.environ},
        capture_output=True,
        check=False,
        timeout=PARTS * limit_s,
    )
    if ended.returncode:
        raise AerieError(
            "the proof of the GPUs",
            seen=ended.stderr.decode(errors="replace")[-500:] or f"exit code {ended.returncode}",
            expected="an answer, whatever the GPUs do",
            remedy="This is a fault of aerie: report it.",
        )
    document: Mapping[str, Any] = json.loads(ended.stdout)
    return document
