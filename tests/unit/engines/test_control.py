"""The control experiment with stand-ins for SGLang: side by side, one after the other, and of a second engine."""

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.eagle3 import control, control_second, experiment, serving
from aerie.eagle3 import second as second_engine
from aerie.eagle3.measured import Control
from aerie.engines import gpu_arch, gpu_memory
from aerie.engines.server import serve
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError
from aerie.paths import repository

STAND_IN = str(Path(__file__).with_name("sglang_stand_in.py"))
CPU = Engine(name="vllm", max_model_len=512, max_num_seqs=8, ready_timeout_s=120, port=0)
NAMES = ("base", "baseline", "finetuned", "forced-2.0", "forced-3.0")
ALONE = (("baseline",), ("finetuned",), ("forced-2.0",), ("forced-3.0",), ("base",))


def sharing(fraction):
    return CPU.model_copy(update={"name": "sglang", "gpus": Gpus(memory_fraction=fraction)})


@pytest.mark.parametrize(
    ("engine", "names", "groups"),
    [
        (CPU, NAMES, (NAMES,)),
        (sharing(0.2), NAMES, (NAMES,)),
        (sharing(0.21), NAMES, ALONE),
        (sharing(0.9), NAMES, ALONE),
        (sharing(0.9), ("base",), (("base",),)),
        (sharing(0.3333333333333334), NAMES[:3], (NAMES[:3],)),
    ],
    ids=["cpu", "all-fit", "one-too-many", "one-fits", "one-alone", "thirds"],
)
def test_servers_run_side_by_side_where_their_shares_fit(engine, names, groups):
    assert experiment.groups(dict.fromkeys(names, engine)) == groups


def test_engines_share_the_gpus_by_what_each_takes():
    engines = {"reference": sharing(0.5), "base": sharing(0.3)}
    assert experiment.groups(engines) == (("reference", "base"),)
    assert experiment.groups(engines | {"baseline": sharing(0.3)}) == (("reference",), ("baseline",), ("base",))


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A context of the step, and the groups of servers that were started for it, in turn."""
    monkeypatch.setattr(gpu_memory, "used_bytes", dict)
    monkeypatch.setattr(serving, "engine_evidence", lambda context, engine: {"name": "sglang", "version": "0.5.16"})
    monkeypatch.setattr(gpu_arch, "here", lambda: "sm90")
    groups = []

    @contextlib.contextmanager
    def started(context, engine, launches):
        groups.append(tuple(launches))
        program = (sys.executable, STAND_IN, "0.5.16", str(tmp_path / "pids"))
        stand_ins = {name: replace(one, program=program) for name, one in launches.items()}
        with serve(stand_ins, port=0, logs=tmp_path, ready_timeout_s=120, on_wait=lambda ready, note: None) as ready:
            yield ready

    monkeypatch.setattr(serving, "started", started)
    (tmp_path / "out").mkdir()
    (tmp_path / "kept").mkdir()
    for name, config in (("model", {"architectures": ["KimiK25ForConditionalGeneration"]}), ("drafter", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    prompts = [{"id": f"p{number}", "input_ids": [3] * (4 + number)} for number in range(2)]
    (tmp_path / "prompts.held.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    values = {
        "drafter": {"aux_layers": [2, 3, 4], "num_speculative_tokens": 3, "draft_vocab_size": 64, "ttt_length": 3},
        "bench": {"prompts": 2, "max_tokens": 13, "repetitions": 2, "concurrency": [1]},
        "cost": {"accept_lengths": [2.0, 3.0], "prompts": 1},
    }
    card = json.loads((repository() / "tests" / "hosts_data" / "h200.json").read_text())["gpus"][0] | {"held_bytes": 0}
    gpus = {"driver": "580.159.04", "error": None, "cards": [card]}
    made = SimpleNamespace(path=tmp_path, evidence={"arithmetic": {"dtype": "bfloat16"}, "gpus": gpus})
    context = SimpleNamespace(
        values=values,
        inputs=dict.fromkeys(("preflight", "target", "baseline-drafter", "export"), made),
        interpreters={"engine": Path(sys.executable)},
        out=tmp_path / "out",
        scratch=tmp_path,
        kept=tmp_path / "kept",
        progress=lambda *_given, **_more: None,
    )
    return context, groups


@pytest.mark.parametrize(("fraction", "started"), [(0.9, ALONE), (0.2, (NAMES,))], ids=["alone", "side-by-side"])
def test_every_server_is_measured_either_way(step, fraction, started):
    context, groups = step
    context.values["engine"] = sharing(fraction).model_dump()
    evidence = control.run(context)
    assert tuple(groups) == started
    arms = evidence["arms"]
    assert evidence["engine"]["arch"] == "sm90"
    assert set(arms) == {*NAMES, "base-fixed"}
    assert {name: len(arm["runs"]) for name, arm in arms.items()} == dict.fromkeys(arms, 2)
    taus = {
        name: {1 + run["counters"]["accepted"] / run["counters"]["verify_steps"] for run in arm["runs"]}
        for name, arm in arms.items()
        if name.startswith("f")
    }
    assert taus == {"finetuned": {3.0}, "forced-2.0": {2.0}, "forced-3.0": {3.0}}
    assert evidence["model"] == "kimi-k2.5"
    # Both drafters answered the same prompts, and this engine tells what each was worth.
    assert {name: set(counts) for name, counts in evidence["by_prompt"].items()} == {
        "baseline": {"p0", "p1"},
        "finetuned": {"p0", "p1"},
    }
    # In what order it was, so that nobody takes minutes apart for neighbours.
    assert sorted(name for row in evidence["order"] for name in row) == sorted([*arms, *arms])
    assert len(evidence["order"]) == 2 * len(groups)
    assert evidence["divergences"] == []
    assert all(evidence["outputs_same_across_repetitions"].values())
    assert {file.name for file in context.out.iterdir()} == {f"records.{name}.jsonl" for name in arms}


def broken_at(context, place):
    """The attempt fails as soon as so many requests are done in the run of this note."""

    def progress(done, *_given, note="", **_more):
        if place in note:
            raise AerieError("engine server", seen="gone", expected="an answer", remedy="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "progress", progress)
        with pytest.raises(AerieError):
            control.run(context)


@pytest.mark.parametrize(
    ("fraction", "place", "kept", "again"),
    [
        (0.2, "forced-2.0, concurrency 1, repetition 2", 6, (NAMES,)),
        (0.2, "baseline, concurrency 1, repetition 1", 0, (NAMES,)),
        (0.9, "forced-3.0, concurrency 1, repetition 2", 7, ALONE[3:]),
        (0.9, "base-fixed, concurrency 1, repetition 2", 10, ALONE[4:]),
    ],
)
def test_an_attempt_goes_on_after_the_last_whole_repetition(step, fraction, place, kept, again):
    context, groups = step
    context.values["engine"] = sharing(fraction).model_dump()
    broken_at(context, place)
    groups.clear()
    sent = []
    context.progress = lambda done, *_given, note="", **_more: sent.append(note)
    evidence = control.run(context)
    assert tuple(groups) == again and evidence["runs_of_earlier_attempts"] == kept
    assert {name: len(arm["runs"]) for name, arm in evidence["arms"].items()} == dict.fromkeys(
        (*NAMES, "base-fixed"), 2
    )
    assert len({note for note in sent if "repetition" in note}) == 12 - kept
    assert evidence["arms"]["baseline"]["runs"][0]["tokens"] == evidence["arms"]["base"]["runs"][1]["tokens"]
    assert all(evidence["outputs_same_across_repetitions"].values())
    # What was measured twice is what was measured once: the next attempt would only write it down.
    groups.clear()
    repeated = control.run(context)
    assert groups == [] and repeated["arms"] == evidence["arms"] and repeated["order"] == evidence["order"]
    assert repeated["by_prompt"] == evidence["by_prompt"]


def test_a_drafter_that_the_engine_would_half_read_starts_no_server(step):
    context, groups = step
    context.values["engine"] = sharing(0.2).model_dump()
    (context.scratch / "drafter" / "config.json").write_text('{"eagle_config": {"norm_before_fc": true}}')
    with pytest.raises(AerieError, match=r"eagle_config\.norm_before_fc is set, and sglang 0\.5\.16 does not read it"):
        control.run(context)
    assert groups == []


@pytest.fixture
def second(step, monkeypatch):
    """The step with a second engine, SGLang too, of a version whose environment is there."""
    context, groups = step
    versions = {"sglang": "0.5.16"}
    monkeypatch.setattr(
        second_engine,
        "environments",
        lambda chosen: SimpleNamespace(
            ensure=lambda name, progress: SimpleNamespace(
                python=Path(sys.executable), path=Path("/env"), hash="1f", packages=versions
            ),
            hash=lambda name: "1f",
        ),
    )
    context.values["engine"] = sharing(0.2).model_dump()
    context.values["second"] = {"engine": sharing(0.15).model_dump(), "environment": {"python": "/env/bin/python"}}
    return context, groups, versions


def test_a_second_engine_is_measured_beside_the_firsts_plain_server(second):
    context, groups, _ = second
    evidence = control_second.run(context)
    assert groups == [("base", "baseline", "finetuned", "forced-2.0", "forced-3.0", "reference")]
    assert (evidence["asked"], evidence["ran"]) == (True, True)
    assert set(evidence["arms"]) == {*NAMES, "base-fixed", "reference"}
    flags = {name: evidence["arms"][name]["flags"] for name in ("base", "reference")}
    share = {name: told[told.index("--mem-fraction-static") + 1] for name, told in flags.items()}
    assert share == {"base": "0.15", "reference": "0.2"}  # each as its own engine is served
    judged = Control.from_dict(evidence)
    assert [len(judged.speedups(arm, over="reference")) for arm in ("base", "finetuned")] == [2, 2]
    assert control_second.stale(evidence) is None
    assert control_second.stale(evidence | {"environment": evidence["environment"] | {"hash": "2e"}}) == (
        "the packages of the second engine have changed"
    )


def test_a_second_engine_that_cannot_serve_this_is_told_and_not_started(second):
    context, groups, versions = second
    versions["sglang"] = "0.5.8"
    evidence = control_second.run(context)
    assert (evidence["asked"], evidence["ran"], groups) == (True, False, [])
    assert "sglang 0.5.8 on sm90: 0.5.8 does not know Kimi-K2.5" in evidence["why"]
    assert evidence["engine"] == {"name": "sglang", "version": "0.5.8"}


def test_an_environment_without_the_second_engine_is_an_error(second):
    context, groups, versions = second
    del versions["sglang"]
    with pytest.raises(AerieError, match="no sglang in /env"):
        control_second.run(context)
    assert groups == []


def test_without_a_second_engine_nothing_is_done(step):
    context, groups = step
    context.values["second"] = None
    assert control_second.run(context) == {"asked": False} and groups == []
    assert control_second.stale({"asked": False}) is None
