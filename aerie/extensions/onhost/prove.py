"""On a host: does an installed extension work on each of its GPUs? Standard library only.

Three questions, each asked where the one before was answered well: do the libraries that the GPUs run hold device code
for them, does the package import in a fresh process, and do its kernels agree with plain torch, on every GPU.
"""

import fnmatch
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aerie.errors import AerieError, UsageError
from aerie.extensions.coverage import covers
from aerie.extensions.device_code import read
from aerie.extensions.onhost.asking import Seen, ask
from aerie.extensions.onhost.evidence import Gpu, Launch, Library, Proof, Request, Shortfall
from aerie.extensions.onhost.proofs import MODULES, Recipe

__all__ = ["main", "prove"]

IMPORT_S: Final = 300.0  # torch and 1 GB of libraries from a cold disk
LAUNCH_S: Final = 600.0
# What the environment has of a package, by its own Python: no file of it is imported for that.
LIST = """\
import importlib.metadata, json, platform, sys
try:
    found = importlib.metadata.distribution(sys.argv[1])
except importlib.metadata.PackageNotFoundError:
    found = None
files = [] if found is None else [(str(one), str(one.locate())) for one in found.files or ()]
version = None if found is None else found.version
print(json.dumps({"version": version, "files": files, "python": platform.python_version()}))
"""


def main(arguments: Sequence[str]) -> int:
    """`prove`: a request on stdin, its proof on stdout, or an "error" where nothing can be said; both as JSON."""
    assert arguments == ["prove"], arguments
    try:
        document = prove(Request.from_dict(json.load(sys.stdin))).to_dict()
    except AerieError as error:
        document = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


def prove(request: Request, module: str = "") -> Proof:
    """Everything that was seen; what is wrong stands in its shortfalls. module: of the recipe, else the package's own.

    Takes a minute or two, with 2 GB of the host's memory and 1 GB of the GPU's for each GPU, all of them side by side.
    Raises AerieError where the package is not installed or no GPU is named, UsageError where nobody wrote a recipe.
    """
    started = time.monotonic()
    module = module or _module(request.package)
    recipe: Recipe = importlib.import_module(module).RECIPE
    if not request.gpus:
        raise AerieError("proof", seen="no GPU", expected="one or more that NVML names", remedy="Look at the driver.")
    told = _installed(request)
    libraries, shortfalls = _device_code(told["files"], recipe, request.gpus)
    launches: list[Launch] = []
    torch = ""
    if not shortfalls:
        seen = ask(request.python, request.gpus[0].uuid, [module, "import"], IMPORT_S)
        torch, shortfalls = seen.last("torch") or "", list(_of_import(seen))
    if not shortfalls:
        with ThreadPoolExecutor(len(request.gpus)) as beside:
            asked = [beside.submit(ask, request.python, gpu.uuid, [module, "launch"], LAUNCH_S) for gpu in request.gpus]
        for gpu, one in zip(request.gpus, asked, strict=True):
            seen = one.result()
            launches += _launches(seen, gpu)
            shortfalls += _of_launches(seen, gpu, _places(told["files"], recipe, gpu))
    return Proof(
        package=request.package,
        version=told["version"],
        python=told["python"],
        torch=torch,
        gpus=request.gpus,
        libraries=tuple(libraries),
        launches=tuple(launches),
        shortfalls=tuple(shortfalls),
        wall_s=round(time.monotonic() - started, 3),
    )


def _module(package: str) -> str:
    if package not in MODULES:
        raise UsageError("package", seen=package, expected=f"one of {', '.join(MODULES)}", remedy="No other is proven.")
    return MODULES[package]


def _installed(request: Request) -> dict[str, Any]:
    argv = [request.python, "-I", "-c", LIST, request.package]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=IMPORT_S)
        told: dict[str, Any] = json.loads(done.stdout or "{}")
        reason = done.stderr.strip()[-300:]
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        told, reason = {}, str(error)
    if not told.get("version"):
        seen = reason or f"no {request.package} there"
        remedy = "./invoke build installs it; if it is there, its metadata is not: install it anew."
        raise AerieError(request.python, seen=seen, expected=f"{request.package} installed", remedy=remedy)
    return told


def _device_code(
    files: Sequence[Sequence[str]], recipe: Recipe, gpus: Sequence[Gpu]
) -> tuple[list[Library], list[Shortfall]]:
    architectures = sorted({gpu.arch for gpu in gpus})
    patterns = {arch: recipe.library(arch) for arch in architectures}
    found = list(_libraries(files, patterns))
    shortfalls = []
    for arch, pattern in patterns.items():
        mine = [one for one in found if fnmatch.fnmatchcase(one.path, pattern)]
        if not mine:
            seen = f"no {pattern} with device code among its files"
            shortfalls.append(Shortfall(finding="extensions.no-device-code", seen=seen, expected=f"SASS for {arch}"))
        for one in mine:
            state = one.states[arch]
            if state != "sass":
                finding = "extensions.ptx-only" if state == "ptx" else "extensions.no-device-code"
                seen = f"{one.path}: {', '.join(one.holds)}"
                shortfalls.append(Shortfall(finding=finding, seen=seen, expected=f"SASS for {arch}"))
    return found, shortfalls


def _libraries(files: Sequence[Sequence[str]], patterns: Mapping[str, str]) -> Iterator[Library]:
    for name, place in files:
        if ".so" not in os.path.basename(name) or not os.path.isfile(place):
            continue
        with open(place, "rb") as file:
            libraries = read(file, name)
        entries = [entry for library in libraries for entry in library.entries]
        if not entries:
            continue
        yield Library(
            path=name,
            holds=tuple(sorted({f"{entry.kind} {entry.arch}" for entry in entries})),
            states={arch: covers(entries, arch).state for arch in patterns},
            is_launched=any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.values()),
        )


def _places(files: Sequence[Sequence[str]], recipe: Recipe, gpu: Gpu) -> list[str]:
    """Where the libraries lie that this GPU runs."""
    pattern = recipe.library(gpu.arch)
    return [os.path.realpath(place) for name, place in files if fnmatch.fnmatchcase(name, pattern)]


def _of_import(seen: Seen) -> Iterator[Shortfall]:
    if seen.failure:
        what = seen.last("importing") or ("torch" if seen.last("torch") is None else "the recipe")
        expected = f"import {what} in a fresh process"
        yield Shortfall(finding="extensions.import-failed", seen=seen.failure, expected=expected, stderr=seen.stderr)


def _launches(seen: Seen, gpu: Gpu) -> Iterator[Launch]:
    for line in seen.lines:
        if "kernel" in line and "error" not in line:
            yield Launch(
                gpu=gpu.uuid,
                kernel=line["kernel"],
                max_error=line["max_error"],
                tolerance=line["tolerance"],
                wall_s=line["wall_s"],
            )


def _of_launches(seen: Seen, gpu: Gpu, places: Sequence[str]) -> Iterator[Shortfall]:
    where = f"{gpu.name} ({gpu.uuid})"
    loaded = {os.path.realpath(path) for path in seen.last("loaded") or ()}
    failed = next((f"{line['kernel']}: {line['error']}" for line in seen.lines if "error" in line), "")
    if not failed and seen.failure:
        failed = f"{seen.last('launching') or 'before the first kernel'}: {seen.failure}"
    if failed:
        finding = "extensions.kernel-failed"
        yield Shortfall(finding=finding, seen=f"{where}: {failed}", expected="it runs", stderr=seen.stderr)
    elif missing := sorted(set(places) - loaded):
        seen_there = f"{where}: {', '.join(missing)} is not loaded"
        yield Shortfall(finding="extensions.import-failed", seen=seen_there, expected="the library for this GPU loaded")
    for one in _launches(seen, gpu):
        if not one.is_right:
            error = "not a number" if one.max_error is None else f"{one.max_error:.3g}"
            yield Shortfall(
                finding="extensions.wrong-result",
                seen=f"{where}: {one.kernel}: error {error}",
                expected=f"{one.tolerance:g} of the greatest value at most",
            )
