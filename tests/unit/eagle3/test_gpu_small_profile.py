"""The profile that runs on one GPU: what it fits together with, and its plan."""

import math

import pytest

from aerie.eagle3 import planning
from aerie.eagle3.arithmetic import parameters
from aerie.eagle3.profile import Profile
from aerie.engines import capability
from aerie.engines.capability import Wish
from aerie.engines.values import fits_side_by_side
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
    servers = [small.engine] * (3 + len(small.cost.accept_lengths))
    assert not fits_side_by_side(servers), "two starts count the same memory"


def test_the_plan_counts_what_the_made_target_takes_on_its_gpu(small: Profile) -> None:
    of = {step: planning.budget(step, small, None) for step in ("environments", "target", "serve-base", "control")}
    count = parameters("mla", small.target)
    assert count > 100_000_000
    target, served = of["target"], of["serve-base"]
    assert target and served and of["environments"]
    assert target.disk_bytes == 2 * count
    assert target.gpu_bytes == 16 * count + 12 * small.target.batch * small.target.sequence * small.target.vocab_size
    assert served.gpu_bytes == math.ceil((2 * count + 32 * 1024 * 12 * 2304) / 0.4)
    assert (served.gpus, of["control"]) == (1, served)
    assert of["environments"].disk_bytes == 20_000_000_000
    tokens = small.synthesis.prompts * (48 + small.synthesis.max_tokens)
    synthesized, baseline = (planning.budget(step, small, None) for step in ("synthesize", "baseline-drafter"))
    assert synthesized and baseline and small.baseline.samples
    assert (synthesized.disk_bytes, synthesized.gpu_bytes) == (tokens * 4 * 1024 * 2, served.gpu_bytes)
    features = small.baseline.samples * small.target.sequence * (4 * 1024 * 2 + 16)
    assert baseline.disk_bytes == features + 4 * 14 * 1024 * (16 * 1024 + small.drafter.draft_vocab_size)


def test_given_environments_take_no_disk(small: Profile) -> None:
    there = {"engine": {"python": "/opt/python"}, "train": {"python": "/opt/python"}}
    given = planning.budget("environments", Profile.model_validate(small.model_dump() | {"environments": there}), None)
    assert given is not None and given.disk_bytes == 0


def test_every_step_of_its_plan_can_run(small: Profile) -> None:
    steps = [step.id for step in spec.load("eagle3").runbook.steps]
    assert {step: why for step in steps if (why := planning.obstacle(step, small))} == {}
