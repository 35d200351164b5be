"""The card's name in the capability table, from compute capabilities and from NVML."""

import sys
from types import SimpleNamespace

import pytest

from aerie.eagle3 import serving
from aerie.engines import capability, gpu_arch
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError

CPU = Engine(name="vllm", max_model_len=512, max_num_seqs=8, ready_timeout_s=120, port=0)


@pytest.fixture
def cards(monkeypatch):
    """Puts cards with these compute capabilities in NVML's place; None: no driver."""

    def put(pairs):
        class NVMLError(Exception):
            pass

        def init():
            if pairs is None:
                raise NVMLError

        library = SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=init,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: len(pairs),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetCudaComputeCapability=lambda index: pairs[index],
        )
        monkeypatch.setitem(sys.modules, "pynvml", library)

    return put


@pytest.mark.parametrize(("pair", "name"), [((9, 0), "sm90"), ((10, 0), "sm100"), ((12, 0), "sm120")])
def test_a_step_on_gpus_takes_the_rows_of_its_cards(cards, pair, name):
    cards([pair] * 8)
    assert serving.arch(CPU.model_copy(update={"gpus": Gpus()})) == name
    assert name in capability.ARCHS


@pytest.mark.parametrize(
    ("pairs", "seen"),
    [([(8, 0)], "8.0"), ([(9, 0), (12, 0)], "12.0, 9.0"), ([], "none that NVML shows"), (None, "none that NVML shows")],
    ids=["without-rows", "two-kinds", "no-card", "no-driver"],
)
def test_other_cards_are_refused(cards, pairs, seen):
    cards(pairs)
    with pytest.raises(AerieError) as raised:
        gpu_arch.here()
    assert raised.value.seen == seen


def test_a_processor_needs_no_driver(cards):
    cards(None)
    assert serving.arch(CPU) == "cpu"
