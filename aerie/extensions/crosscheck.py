"""A second reading of device code, by cuobjdump where the host has it: a difference is told, and never settled here.

What this project reads decides (device_code.py); cuobjdump is NVIDIA's own word on the same file, so whoever sees
them differ should trust neither until it is known why. Compared are counts by kind and number: cuobjdump shows no
suffix of a cubin (sm_120a is listed as sm_120), and before CUDA 12.9 none of a family's PTX either. Standard library
only.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from aerie.extensions.device_code import read

__all__ = ["differences", "find"]

LIST_S: Final = 600.0  # 17 s for each GB of a library (cuobjdump 12.8, one core that others used, 2026-11-30)
# "ELF file    1: ops.1.sm_120.cubin", "PTX file    2: ops.2.sm_90a.ptx"
_ROW: Final = re.compile(r"(ELF|PTX) file\s+\d+: .*\.(sm_\d+)[af]?\.(?:cubin|ptx)")
_KINDS: Final = {"ELF": "sass", "PTX": "ptx"}
_NOTHING: Final = "does not contain device code"  # with exit code 255


def find(cuda_home: Path) -> Path | None:
    """The cuobjdump of this toolkit, else the one on PATH; None where there is neither."""
    places = os.pathsep.join([str(cuda_home / "bin"), os.environ.get("PATH", os.defpath)])
    found = shutil.which("cuobjdump", path=places)
    return Path(found) if found else None


def differences(tool: Path, folder: Path, names: Iterable[str]) -> Iterator[str]:
    """A sentence for each library below the folder that cuobjdump lists otherwise, or does not list; none is good.

    Raises AerieError where a library cannot be read here.
    """
    for name in names:
        with open(folder / name, "rb") as file:
            entries = [entry for library in read(file, name) for entry in library.entries]
        # cuobjdump lists input of the device linker only where nothing was linked, and NVVM IR never.
        judged = [entry for entry in entries if not entry.is_relocatable] or entries
        own = Counter(f"{one.kind} {one.arch.rstrip('af')}" for one in judged if one.kind != "other")
        listed = _listed(tool, folder / name)
        if isinstance(listed, str):
            yield f"{name}: not compared with cuobjdump: {listed}"
        elif listed != own:
            yield f"{name}: aerie reads {_words(own)}, {tool} lists {_words(listed)}"


def _listed(tool: Path, library: Path) -> Counter[str] | str:
    """Images by kind and number, or why cuobjdump does not say."""
    argv = [str(tool), "--list-elf", "--list-ptx", str(library)]
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, errors="replace", timeout=LIST_S,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode and _NOTHING not in done.stdout + done.stderr:
        return (done.stderr or done.stdout).strip()[-300:] or f"exit {done.returncode}"
    return Counter(f"{_KINDS[row[1]]} {row[2]}" for line in done.stdout.splitlines() if (row := _ROW.match(line)))


def _words(images: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(images.items())) or "no device code"
