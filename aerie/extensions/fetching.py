"""Bringing a locked file onto this host: from the package index, a web server or a folder. Standard library only."""

import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from aerie.errors import AerieError
from aerie.extensions.environment import Environment
from aerie.extensions.store import sha256_of

__all__ = ["fetch"]

TIMEOUT_S: Final = 60.0
DOWNLOAD_S: Final = 3600.0
# pip asks a source for its metadata, and this project's own asks for a compiler then unless it is told not to.
QUIET: Final = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}


def fetch(
    kind: Literal["wheel", "source"],
    *,
    uri: str,
    sha256: str,
    name: str,
    package: str,
    version: str,
    environment: Environment,
    into: Path,
) -> Path:
    """The file, in the folder `into`, its hash checked. uri: "" is the index that the environment's pip uses.

    name: of a wheel; a source keeps the name that it has where it lies. Raises AerieError, and leaves no file.
    """
    into.mkdir(parents=True, exist_ok=True)
    if uri:
        file = into / (name or uri.rstrip("/").rpartition("/")[2])
        _copy(uri, file)
    else:
        file = _download(kind, f"{package}=={version}", sha256, environment, into)
    if (seen := sha256_of(file)) != sha256:
        file.unlink()
        raise AerieError(
            uri or file.name,
            seen=f"sha256 {seen}",
            expected=sha256,
            remedy="It is not the file that was locked. Find out why before you lock another hash.",
        )
    return file


def _copy(uri: str, file: Path) -> None:
    part = file.with_name(f".{file.name}.part")
    try:
        if uri.startswith("/"):
            shutil.copyfile(uri, part)
        else:
            with urllib.request.urlopen(uri, timeout=TIMEOUT_S) as answer, open(part, "wb") as out:
                shutil.copyfileobj(answer, out, 1 << 20)
    except OSError as error:  # urllib's errors are such
        part.unlink(missing_ok=True)
        raise AerieError(
            uri, seen=str(error), expected="the locked file", remedy="Check the address and this host's network."
        ) from error
    part.rename(file)


def _download(kind: str, requirement: str, sha256: str, environment: Environment, into: Path) -> Path:
    file = into / "requirement.txt"
    file.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    made = into / "download"
    shutil.rmtree(made, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--require-hashes", "--no-cache-dir", "--disable-pip-version-check"]
    options += ["--only-binary", ":all:"] if kind == "wheel" else ["--no-binary", ":all:", "--no-build-isolation"]
    argv = ["-m", "pip", "download", *options, "--dest", str(made), "--requirement", str(file)]
    done = environment.run(argv, DOWNLOAD_S, QUIET)
    found = sorted(made.iterdir()) if made.is_dir() else []
    if done.returncode != 0 or len(found) != 1:
        raise AerieError(
            f"{requirement} ({kind})",
            seen=_last(done.stderr.splitlines()) or f"{len(found)} files",
            expected=f"the file of sha256 {sha256} from the package index",
            remedy="Check pip's configuration there, or give the file's address in the lock: uri beside its sha256.",
        )
    return found[0].rename(into / found[0].name)


def _last(lines: Sequence[str]) -> str:
    return "\n".join([line for line in lines if line.strip()][-6:])
