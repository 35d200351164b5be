"""A Python environment of a host as extensions see it: Python, torch, packages with CUDA code.

Standard library only.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerie.errors import AerieError

__all__ = ["FOLDER", "Environment", "find"]

FOLDER: Final = Path("/opt/aerie/environments")
ASK_S: Final = 120.0  # importing torch from a cold disk takes most of a minute
_ASK: Final = """\
import json, sys, sysconfig, platform
try:
    import torch
    found = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    found["cxx11_abi"] = bool(torch.compiled_with_cxx11_abi())
except Exception as error:
    found = {"no_torch": f"{type(error).__name__}: {error}"}
threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
found |= {"python": "%d.%d" % sys.version_info[:2] + threads, "machine": platform.machine(),
          "glibc": [int(part) for part in platform.libc_ver()[1].split(".")[:2]], "site": sysconfig.get_path("platlib")}
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is there. path: with all links followed, so that a new one under the name is another."""

    name: str
    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def records(self) -> Path:
        """The folder with a record of each extension that was installed."""
        return self.path / "aerie-extensions"

    def run(
        self, arguments: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Its interpreter with these arguments, isolated from the caller's variables and folder."""
        # HOME: what a library looks for at import (a cache folder) is then where nobody else's files are.
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
        kept |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return subprocess.run(
            [str(self.python), "-I", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd="/",
            env={**kept, "HOME": "/root", "LC_ALL": "C.UTF-8", **(variables or {})},
        )

    def facts(self) -> dict[str, Any]:
        """{"python", "machine", "glibc", "site"} with {"torch", "cuda", "cxx11_abi"} or {"no_torch": why}.

        Starts its interpreter, which imports torch: some seconds. Raises AerieError where it does not start.
        """
        try:
            done = self.run(["-c", _ASK], ASK_S)
            found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            raise AerieError(
                f"environment {self.name}",
                seen=str(error),
                expected=f"a Python that starts: {self.python}",
                remedy="Make it anew: ./invoke provision --host HOST --layers python",
            ) from error
        return found

    def version_of(self, package: str) -> str | None:
        """The installed version of a package, None where it is not installed."""
        info = self.info_of(package)
        return info.name.removesuffix(".dist-info").rpartition("-")[2] if info else None

    def info_of(self, package: str) -> Path | None:
        """The folder *.dist-info of an installed package."""
        wanted = _normal(package)
        for info in sorted(self.path.glob("lib/python*/site-packages/*.dist-info")):
            if _normal(info.name.removesuffix(".dist-info").rpartition("-")[0]) == wanted:
                return info
        return None


def find(name: str, folder: Path = FOLDER) -> Environment | None:
    """The environment of that name, None where there is none."""
    path = folder / name
    return Environment(name=name, path=path.resolve()) if (path / "pyvenv.cfg").is_file() else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
