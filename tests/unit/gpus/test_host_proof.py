"""The tests of tests/hosts on proofs of GPUs: a sound host passes them all, and each fault fails its own."""

import pytest

from aerie.gpus.proof import Collective, Gpu, Latency, Pair, Proof, Rank
from aerie.inventory import Gpus
from tests.hosts import test_driver, test_interconnect

LATE = "no answer within 120 s"


def gpu(index, **changes):
    return Gpu(**{"index": index, "bus_id": f"0000:{index:02x}:00.0", "words": 131072, **changes})


def pair(source, to, **changes):
    sound = {"can_access": True, "words": 100, "copy_gb_s": 25.0, "read_wrong_words": 0, "read_gb_s": 11.0}
    return Pair(source=source, to=to, **{**sound, **changes})


def rank(number, **changes):
    sound = {"uuid": f"GPU-{number}", "nccl": "2.28.9", "torch": "2.11.0+cu130", "bus_gb_s": 30.0, "wrong": 0}
    return Rank(rank=number, latency=(Latency(bytes=16384, us=24.0),), **{**sound, **changes})


def reduced(*ranks, error=""):
    return Collective(world=2, ranks=ranks, error=error, is_stuck=False)


def a_proof(**changes):
    sound = {"start_error": "", "gpus": (gpu(0), gpu(1)), "pairs": (pair(0, 1), pair(1, 0))}
    return Proof(**{**sound, "collective": reduced(rank(0), rank(1)), **changes})


def failed(proof, count=2):
    """Findings whose tests fail on this proof."""
    gpus = Gpus(count=count)
    arguments = {"proof": proof, "expected_gpus": gpus, "pairs": proof.pairs, "collective": proof.collective}
    found = set()
    for test in (
        test_driver.test_every_gpu_runs_a_kernel,
        test_driver.test_every_gpu_writes_what_it_is_told_to,
        test_interconnect.test_every_gpu_copies_from_every_other,
        test_interconnect.test_data_arrives_at_other_gpus_as_it_was,
        test_interconnect.test_an_all_reduce_over_all_gpus_ends,
        test_interconnect.test_an_all_reduce_over_all_gpus_gives_the_sum,
    ):
        names = test.__code__.co_varnames[: test.__code__.co_argcount]
        try:
            test(**{name: arguments[name] for name in names})
        except AssertionError:
            found.add(next(mark.args[0] for mark in test.pytestmark if mark.name == "finding"))
    return found


def test_a_sound_host_passes():
    assert failed(a_proof()) == set()


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"start_error": "cuInit: CUDA_ERROR_NOT_INITIALIZED (3)"}, "driver.kernel-failed"),
        ({"gpus": (gpu(0), gpu(1, error="cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)"))}, "driver.kernel-failed"),
        ({"gpus": (gpu(0), gpu(1, error=LATE, is_stuck=True))}, "driver.kernel-failed"),
        ({"gpus": (gpu(0),)}, "driver.kernel-failed"),
        ({"gpus": (gpu(0), gpu(1, wrong_words=131072))}, "driver.wrong-data"),
        ({"pairs": (pair(0, 1), pair(1, 0, error=LATE))}, "interconnect.peer-failed"),
        ({"pairs": (pair(0, 1, copy_wrong_words=100), pair(1, 0))}, "interconnect.peer-wrong-data"),
        ({"pairs": (pair(0, 1, read_wrong_words=1), pair(1, 0))}, "interconnect.peer-wrong-data"),
        ({"collective": reduced(error=LATE)}, "interconnect.collective-failed"),
        ({"collective": reduced(rank(0), rank(1, wrong=4096))}, "interconnect.collective-wrong-data"),
    ],
    ids=[
        *("no-start", "launch-fails", "gpu-hangs", "gpu-unseen", "zeros-of-a-kernel", "pair-hangs", "zeros-of-a-copy"),
        *("zeros-of-a-read", "nccl-hangs", "wrong-sum"),
    ],
)
def test_a_fault_fails_the_test_of_its_finding_and_no_other(changes, finding):
    assert failed(a_proof(**changes)) == {finding}
