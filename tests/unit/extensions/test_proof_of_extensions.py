"""Proving an extension: real processes of a real environment, with a GPU that does what each case needs."""

import importlib
import io
import json
import subprocess
import sys
import tarfile
import types
import venv
from pathlib import Path

import pytest

from aerie.errors import AerieError, UsageError
from aerie.extensions import applying, proof
from aerie.extensions.onhost import prove as proving
from aerie.extensions.onhost.evidence import Gpu, Launch, Proof, Request, Shortfall
from aerie.extensions.onhost.proofs import MODULES
from aerie.findings.catalogue import rows
from aerie.findings.model import Fix
from aerie.report.extensions import outcome_view
from tests.hosts import test_extensions
from tests.snapshots import healthy

FILES = Path(__file__).parent / "device_code"
RECIPE = "tests.unit.extensions.proof_recipe"
H200 = Gpu(uuid="GPU-1", name="NVIDIA H200", arch="sm_90")
# The library is mapped, as the loader would, for it is code for GPUs alone; `copy` is another one of the same content.
THING = """\
import mmap, os, signal, sys, time
DOES = os.environ.get("AERIE_TEST_DOES", "")
if DOES == "undefined symbol":
    raise ImportError("undefined symbol: _ZN2at4_ops5zeros4callE")
if DOES == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if DOES != "another copy":
    with open(os.path.join(os.path.dirname(__file__), "kernels.so"), "rb") as file:
        kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("libraries say things on stdout")
def double(numbers):
    if DOES == "refused":
        raise RuntimeError("CUDA error: out of resources\\nCUDA kernel errors might be reported later")
    if DOES == "hang":
        time.sleep(60)
    if DOES == "crash":
        print("terminate called", file=sys.stderr, flush=True)
        os.abort()
    if DOES == "short":
        return numbers[:1]
    last = {"half": 1.0, "not a number": float("nan"), "rounded": 2.001}.get(DOES, 2.0)
    return [2 * numbers[0], last * numbers[1]]
"""
# As much of torch as a comparison takes: this one's GPU is an H200.
TORCH = """\
import types
__version__ = "2.11.0+cu130"
class Numbers(list):
    shape = property(lambda self: (len(self),))
    detach = float = lambda self: self
    def __sub__(self, other): return Numbers(one - two for one, two in zip(self, other, strict=True))
    def isfinite(self): return Numbers(one - one == 0 for one in self)
    def all(self): return all(self)
    def abs(self): return Numbers(abs(one) for one in self)
    def max(self): return max(self)
def full(*shape, **options): pass
cuda = types.SimpleNamespace(
    get_device_capability=lambda: (9, 0), get_device_name=lambda: "a GPU", synchronize=lambda: None
)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the package `thing`, which has code for sm_90."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "torch.py").write_text(TORCH)
    (packages / "thing").mkdir()
    (packages / "thing/__init__.py").write_text(THING)
    (packages / "thing/kernels.so").write_bytes((FILES / "rdc.so").read_bytes())
    (packages / "thing/other.so").write_bytes((FILES / "targets.fatbin").read_bytes())
    (packages / "thing-1.2.dist-info").mkdir()
    (packages / "thing-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.2\n")
    (packages / "thing-1.2.dist-info/RECORD").write_text("thing/__init__.py,,\nthing/kernels.so,,\nthing/other.so,,\n")
    return folder


def proven(environment, does="", gpus=(H200,)):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AERIE_TEST_DOES", does)
        patch.setenv("PYTHONPATH", "/nowhere")  # of whoever proves, and none of the environment's
        request = Request(package="thing", python=str(environment / "bin/python"), gpus=gpus)
        return proving.prove(request, RECIPE)


def test_what_works_is_proven_on_every_gpu_with_all_that_was_seen(environment):
    second = Gpu(uuid="GPU-2", name="NVIDIA H200", arch="sm_90")
    found = proven(environment, does="rounded", gpus=(H200, second))
    assert found.is_proven, found.shortfalls
    assert (found.version, found.torch) == ("1.2", "2.11.0+cu130")
    assert [(one.path, one.states, one.is_launched) for one in found.libraries] == [
        ("thing/kernels.so", {"sm_90": "sass"}, True),
        ("thing/other.so", {"sm_90": "sass"}, False),
    ]
    assert found.libraries[0].holds == ("ptx sm_90", "sass sm_90")
    assert [(one.gpu, one.kernel) for one in found.launches] == [
        ("GPU-1", "double, 2 numbers"), ("GPU-2", "double, 2 numbers"),
    ]  # fmt: skip
    assert found.launches[0].max_error == pytest.approx(0.004 / 8)
    assert Proof.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("does", "finding", "seen"),
    [
        ("undefined symbol", "import-failed", "ImportError: undefined symbol: _ZN2at4_ops5zeros4callE"),
        ("segfault", "import-failed", "ended by signal 11 (Segmentation fault)"),
        ("another copy", "import-failed", "NVIDIA H200 (GPU-1): {thing}/kernels.so is not loaded"),
        (
            "refused",
            "kernel-failed",
            "NVIDIA H200 (GPU-1): double, 2 numbers: RuntimeError: CUDA error: out of resources",
        ),
        ("crash", "kernel-failed", "NVIDIA H200 (GPU-1): double, 2 numbers: ended by signal 6 (Aborted)"),
        ("hang", "kernel-failed", "NVIDIA H200 (GPU-1): double, 2 numbers: no end after 1 s"),
        ("short", "kernel-failed", "NVIDIA H200 (GPU-1): double, 2 numbers: ValueError: results of shape [(1,)]"),
        ("half", "wrong-result", "NVIDIA H200 (GPU-1): double, 2 numbers: error 0.5"),
        ("not a number", "wrong-result", "NVIDIA H200 (GPU-1): double, 2 numbers: error not a number"),
    ],
)
def test_each_fault_is_its_own_finding(environment, monkeypatch, does, finding, seen):
    if does == "hang":
        monkeypatch.setattr(proving, "LAUNCH_S", 1.0)
    (short,) = proven(environment, does).shortfalls
    thing = next(environment.glob("lib/python3*/site-packages/thing"))
    assert (short.finding, short.seen) == (f"extensions.{finding}", seen.format(thing=thing))
    if does in ("undefined symbol", "crash"):
        assert short.stderr[-1] in (short.seen, "terminate called")


def test_code_for_another_card_is_told_before_anything_is_imported(environment):
    pro = Gpu(uuid="GPU-1", name="NVIDIA RTX PRO 6000", arch="sm_120")
    found = proven(environment, does="segfault", gpus=(pro,))
    # Its PTX is input of the device linker: no driver compiles it.
    seen = "thing/kernels.so: ptx sm_90, sass sm_90"
    short = Shortfall(finding="extensions.no-device-code", seen=seen, expected="SASS for sm_120")
    assert (found.shortfalls, found.launches, found.torch) == ((short,), (), "")


def test_ptx_alone_is_not_device_code(environment):
    library = next(environment.glob("lib/python3*/site-packages/thing/kernels.so"))
    sound = library.read_bytes()
    library.write_bytes((FILES / "ptx-only.fatbin").read_bytes())
    try:
        (short,) = proven(environment).shortfalls
    finally:
        library.write_bytes(sound)
    assert (short.finding, short.seen) == ("extensions.ptx-only", "thing/kernels.so: ptx sm_90")


def test_a_package_without_its_library_has_no_device_code(environment):
    library = next(environment.glob("lib/python3*/site-packages/thing/kernels.so"))
    record = next(environment.glob("lib/python3*/site-packages/thing-1.2.dist-info/RECORD"))
    text = record.read_text()
    record.write_text(text.replace("thing/kernels.so,,\n", ""))
    try:
        (short,) = proven(environment).shortfalls
    finally:
        record.write_text(text)
    assert (short.finding, short.seen) == (
        "extensions.no-device-code", f"no thing/{library.name} with device code among its files",
    )  # fmt: skip


def test_nothing_is_said_of_what_is_not_there(environment, tmp_path):
    python = str(environment / "bin/python")
    with pytest.raises(AerieError, match="no flash-attn there"):
        proving.prove(Request(package="flash-attn", python=python, gpus=(H200,)))
    with pytest.raises(AerieError, match="No such file"):
        proving.prove(Request(package="flash-attn", python=str(tmp_path / "python"), gpus=(H200,)))
    with pytest.raises(AerieError, match="no GPU"):
        proving.prove(Request(package="flash-attn", python=python, gpus=()))
    with pytest.raises(UsageError, match="xformers"):
        proving.prove(Request(package="xformers", python=python, gpus=(H200,)))


def test_what_is_sent_to_a_host_is_enough_to_answer_there(environment, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(proof.CODE.packed)) as packed:
        packed.extractall(tmp_path, filter="data")
    asked = json.dumps(Request(package="flash-attn", python=str(environment / "bin/python"), gpus=(H200,)).to_dict())
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path), "prove"], input=asked, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["error"]["seen"] == "no flash-attn there"
    assert all((tmp_path / f"{module.replace('.', '/')}.py").exists() for module in MODULES.values())


def test_recipes_are_read_without_torch_and_launch_from_a_library_of_each_card():
    for module in MODULES.values():
        recipe = importlib.import_module(module).RECIPE
        assert "torch" not in sys.modules
        assert recipe.kernels and all(0 < kernel.tolerance < 0.05 for kernel in recipe.kernels)
        assert len({kernel.name for kernel in recipe.kernels}) == len(recipe.kernels)
    libraries = {arch: recipe.library(arch) for arch in ("sm_90", "sm_100", "sm_120")}
    assert libraries["sm_90"] != libraries["sm_100"] == libraries["sm_120"]


def of(*shortfalls, **changes):
    launch = Launch(gpu="GPU-1", kernel="double", max_error=0.0, tolerance=0.01, wall_s=1.0)
    sound = {"package": "thing", "version": "1.2", "python": "3.12.3", "torch": "2.11.0", "gpus": (H200,)}
    sound |= {"libraries": (), "launches": (launch,), "wall_s": 20.0}
    return Proof(**{**sound, **changes}, shortfalls=shortfalls)


TESTS = (
    test_extensions.test_every_extension_imports_in_a_fresh_process,
    test_extensions.test_the_kernels_of_every_extension_run_on_every_gpu,
    test_extensions.test_the_kernels_of_every_extension_agree_with_plain_torch,
)


def failed(found):
    """Findings whose tests of tests/hosts fail on this proof."""
    ids = set()
    for test in TESTS:
        try:
            test({"thing": found})
        except AssertionError:
            ids.add(next(mark.args[0] for mark in test.pytestmark if mark.name == "finding"))
    return ids


def test_a_proven_extension_passes_the_tests_of_its_host():
    assert failed(of()) == set()


@pytest.mark.parametrize("finding", ["extensions.import-failed", "extensions.kernel-failed", "extensions.wrong-result"])
def test_a_shortfall_fails_the_test_of_its_finding_and_no_other(finding):
    assert failed(of(Shortfall(finding=finding, seen="this", expected="that"))) == {finding}


def test_what_fails_to_import_is_mended_by_the_build_that_its_remedy_names():
    row = rows()["extensions.import-failed"]
    assert (row.fix, list(row.remedies)) == (Fix.BUILD, [Fix.BUILD])
    assert "./invoke build" in row.remedies[Fix.BUILD]


def built(package, found, monkeypatch, probed):
    """The end of `invoke build` for a package that was installed a moment ago."""
    asked = []
    monkeypatch.setattr(applying.remote, "probe_all", lambda hosts: {"gpu01": probed})
    monkeypatch.setattr(applying.proof, "prove", lambda host, **what: asked.append(what) or found)
    row = types.SimpleNamespace(host="gpu01", package=types.SimpleNamespace(name=package, environment="serve"))
    done = applying.HostResult(
        host="gpu01", package=package, version="1.2", state=applying.State.DONE, action="install", wheel="it.whl"
    )
    return applying._proven(row, done, lambda row, note: None), asked


def test_a_build_ends_with_the_proof_on_every_gpu_of_the_host(monkeypatch):
    result, (asked,) = built("flash-attn", of(), monkeypatch, healthy())
    assert (result.state, result.proof) == ("done", of().to_dict())
    assert asked["python"] == "/opt/aerie/environments/serve/bin/python"
    assert asked["gpus"] == healthy().gpus
    view = str(outcome_view(applying.Outcome(results=(result,), wall_s=1.0)).renderables[0])
    assert "1 launches agree with plain torch, GPUs: 1" in view


def test_a_build_whose_proof_fails_has_failed(monkeypatch):
    short = Shortfall(finding="extensions.wrong-result", seen="error 0.5", expected="0.01 at most")
    result, _ = built("flash-attn", of(short), monkeypatch, healthy())
    assert (result.state, result.error) == (
        "failed", "installed, but extensions.wrong-result: error 0.5, expected 0.01 at most",
    )  # fmt: skip


def test_a_build_of_what_nobody_wrote_a_proof_of_ends_without(monkeypatch):
    result, asked = built("xformers", of(), monkeypatch, healthy())
    assert (result.state, result.proof, asked) == ("done", None, [])
