"""The proof of extensions, proven on a real GPU: it passes for what works there, and names what does not.

    PYTHON tests/gpu/prove_extensions.py --out FILE [--installed PACKAGE=INTERPRETER …] [--only-installed]

PYTHON has a CUDA build of torch, setuptools, wheel and ninja; nvcc is found by CUDA_HOME or the path. The project's own
extension is built in each way that can go wrong and put into environments of its own, then proven as on any host.
--installed: real extensions, each in an environment that has it. Exit code 1 where a proof is not what it should be.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerie.extensions.onhost.evidence import Gpu, Proof, Request
from aerie.extensions.onhost.prove import prove

EXTENSION = Path(__file__).with_name("extension")
RECIPE = "tests.gpu.recipe"
OTHER = "sm_120"


@dataclass(frozen=True)
class Case:
    """A build of the extension, and the finding of its proof, "" for none. arch: what the proof takes the GPU for."""

    name: str
    code: str  # as nvcc's -gencode has it, "{arch}" for the GPU's own
    finding: str
    defines: str = ""
    arch: str = ""


CASES = (
    Case("as it should be", "arch=compute_{arch},code=sm_{arch}", ""),
    Case("for another card", "arch=compute_120,code=sm_120", "extensions.no-device-code"),
    Case("for another card, and launched", "arch=compute_120,code=sm_120", "extensions.kernel-failed", arch=OTHER),
    Case("PTX only", "arch=compute_{arch},code=compute_{arch}", "extensions.ptx-only"),
    Case("too much shared memory", "arch=compute_{arch},code=sm_{arch}", "extensions.kernel-failed", "K_STEP=480"),
    Case("a wrong result", "arch=compute_{arch},code=sm_{arch}", "extensions.wrong-result", "SCALE=1.01f"),
    Case("a part is missing", "arch=compute_{arch},code=sm_{arch}", "extensions.import-failed", "WITHOUT_A_PART"),
)


def gpus() -> tuple[Gpu, ...]:
    """By NVML, as the snapshot has them."""
    import pynvml

    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
        found.append(Gpu(uuid=uuid, name=name, arch=f"sm_{major}{minor}"))
    return tuple(found)


def build(work: Path, code: str, defines: str) -> Path:
    """The wheel of the extension for this -gencode, with these macros."""
    source, out = work / "source", work / "wheel"
    shutil.copytree(EXTENSION, source)
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(out), "."]
    environment = {**os.environ, "AERIE_PROOF_CODE": code, "AERIE_PROOF_DEFINES": defines, "MAX_JOBS": "2"}
    done = subprocess.run(argv, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{code} {defines}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return next(out.glob("*.whl"))


def environment_with(work: Path, wheel: Path) -> Path:
    """The interpreter of a new environment with the wheel, and with all that this one has."""
    folder = work / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages)
    # As .pth lines, not by --system-site-packages: this interpreter may be an environment's own.
    packages.joinpath("torch.pth").write_text("\n".join(sysconfig.get_path(one) for one in ("purelib", "platlib")))
    return folder / "bin" / "python"


def proven(case: Case, found: Sequence[Gpu], wheels: Mapping[tuple[str, str], Path], work: Path) -> Proof:
    """The proof of one case."""
    wheel = wheels[case.code, case.defines]
    place = work / case.name.replace(" ", "-").replace(",", "")
    place.mkdir()
    cards = tuple(Gpu(uuid=one.uuid, name=one.name, arch=case.arch or one.arch) for one in found)
    request = Request(package="aerie-proof", python=str(environment_with(place, wheel)), gpus=cards)
    return prove(request, RECIPE)


def main() -> int:
    """Build, prove, print, write; 0 where every proof is as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--installed", nargs="*", default=[])
    parser.add_argument("--only-installed", action="store_true")
    given = parser.parse_args()
    found = gpus()
    documents = [] if given.only_installed else own(found)
    for one in given.installed:
        package, _, python = one.partition("=")
        documents.append(told(package, "", prove(Request(package=package, python=python, gpus=found))))
    given.out.write_text(json.dumps(documents, indent=1) + "\n")
    return 0 if all(one["is_as_expected"] for one in documents) else 1


def own(found: Sequence[Gpu]) -> list[dict[str, Any]]:
    """The proofs of the project's own extension, built in each way."""
    number = found[0].arch.removeprefix("sm_")
    ways = list(dict.fromkeys((case.code, case.defines) for case in CASES))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(ways)) as beside:
        work = Path(folder)
        places = [work / str(index) for index in range(len(ways))]
        for place in places:
            place.mkdir()
        codes = [code.format(arch=number) for code, _ in ways]
        wheels = dict(zip(ways, beside.map(build, places, codes, [defines for _, defines in ways]), strict=True))
        return [told(case.name, case.finding, proven(case, found, wheels, work)) for case in CASES]


def told(name: str, expected: str, proof: Proof) -> dict[str, Any]:
    """Print a proof; as the file has it, with what it should have found."""
    is_good = tell(name, expected, proof)
    return {"case": name, "finding": expected, "is_as_expected": is_good, "proof": proof.to_dict()}


def tell(name: str, expected: str, proof: Proof) -> bool:
    """Print a proof; is it what it should be?"""
    seen = sorted({one.finding for one in proof.shortfalls})
    is_good = seen == ([expected] if expected else [])
    print(
        f"{'ok    ' if is_good else 'WRONG '} {name}: {', '.join(seen) or 'proven'} in {proof.wall_s:.1f} s", flush=True
    )
    for launch in proof.launches:
        print(f"         {launch.kernel}: error {launch.max_error}, at most {launch.tolerance}, {launch.wall_s} s")
    for short in proof.shortfalls:
        print(f"         {short.finding}: {short.seen}; expected {short.expected}")
        if not is_good:
            print("\n".join(f"           {line}" for line in short.stderr))
    return is_good


if __name__ == "__main__":
    sys.exit(main())
