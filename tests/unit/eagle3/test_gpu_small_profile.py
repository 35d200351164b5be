"""The profile that runs on one GPU: what it fits together with, and its plan."""

import pytest

from aerie.eagle3.profile import Profile
from aerie.engines import capability
from aerie.engines.capability import Wish
from aerie.runbook import spec


@pytest.fixture(scope="module")
def small() -> Profile:
    values = spec.load("eagle3", "gpu-small").values
    assert isinstance(values, Profile)
    return values


@pytest.mark.parametrize("arch", ["sm90", "sm120"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_sglang_takes_its_backends_on_these_cards(small: Profile, version: str, arch: str) -> None:
    gpus = small.engine.gpus
    assert gpus is not None
    wish = Wish(
        engine=small.engine.name, version=version, arch=arch, model="deepseek-v3",
        doing=frozenset({"eagle3", "forced", "capture"}), attention=gpus.attention, moe=gpus.moe,
    )  # fmt: skip
    assert capability.can_serve(wish).reasons == ()


def test_its_values_fit_each_other(small: Profile) -> None:
    assert small.engine.max_num_seqs >= max(small.synthesis.concurrency, *small.bench.concurrency)
    assert small.corpus.held_out >= max(small.bench.prompts, small.cost.prompts)
    assert not small.engine.fits_side_by_side(3 + len(small.cost.accept_lengths)), "two starts count the same memory"
