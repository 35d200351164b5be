"""The control experiment where its servers do not fit side by side: stand-ins for SGLang, one after the other."""

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.eagle3 import control, serving
from aerie.engines import gpu_arch, gpu_memory
from aerie.engines.adapter import Served, adapter
from aerie.engines.server import serve
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError

STAND_IN = str(Path(__file__).with_name("sglang_stand_in.py"))
CPU = Engine(name="vllm", max_model_len=512, max_num_seqs=8, ready_timeout_s=20, port=0)
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
    assert control.groups(engine, names) == groups


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A context of the step, and the groups of servers that were started for it, in turn."""
    monkeypatch.setattr(gpu_memory, "used_bytes", dict)
    monkeypatch.setattr(serving, "engine_evidence", lambda context, engine: {"name": "sglang", "version": "0.5.16"})
    monkeypatch.setattr(gpu_arch, "here", lambda: "sm90")
    groups = []

    @contextlib.contextmanager
    def servers(context, engine, modes):
        groups.append(tuple(modes))
        made = {
            name: adapter("sglang").launch(
                Served(
                    python=Path(sys.executable),
                    model=tmp_path,
                    engine=engine,
                    dtype="bfloat16",
                    version="0.5.16",
                    arch="sm90",
                ),
                mode,
            )
            for name, mode in modes.items()
        }
        program = (sys.executable, STAND_IN, "0.5.16", str(tmp_path / "pids"))
        launches = {name: replace(one, program=program) for name, one in made.items()}
        with serve(launches, port=0, logs=tmp_path, ready_timeout_s=20, on_wait=lambda ready, note: None) as started:
            yield started

    monkeypatch.setattr(serving, "servers", servers)
    (tmp_path / "out").mkdir()
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
    made = SimpleNamespace(path=tmp_path, evidence={})
    context = SimpleNamespace(
        values=values,
        inputs={"target": made, "baseline-drafter": made, "export": made},
        out=tmp_path / "out",
        scratch=tmp_path,
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


def test_a_drafter_that_the_engine_would_half_read_starts_no_server(step):
    context, groups = step
    context.values["engine"] = sharing(0.2).model_dump()
    (context.scratch / "drafter" / "config.json").write_text('{"eagle_config": {"norm_before_fc": true}}')
    with pytest.raises(AerieError, match=r"eagle_config\.norm_before_fc is set, and sglang 0\.5\.16 does not read it"):
        control.run(context)
    assert groups == []
