"""A change is held against the last good run of the service: what it accepts on fixed prompts, by prompt."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie import upgrade
from aerie.engines.acceptance import Acceptance
from aerie.engines.service import serving
from aerie.engines.service.onhost import definition, front, main, regression, state, switch, trial, units
from aerie.engines.service.onhost.definition import Service, Weights
from aerie.engines.service.onhost.regression import Run
from aerie.errors import AerieError
from aerie.provision import HostOutcome, Outcome, State
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import served

SPECULATION = json.dumps({"method": "eagle3", "model": "/d", "num_speculative_tokens": 3})
FLAGS = {
    "vllm": ("--max-model-len", "256", "--speculative-config", SPECULATION),
    "sglang": ("--context-length", "256", "--speculative-num-steps", "3"),
}
PIN = "a" * 64


def counted(tau: float, k: int = 3, steps: int = 40) -> Acceptance:
    """A prompt's counts of about this τ."""
    accepted = round((tau - 1) * steps)
    by_position = []
    for _ in range(k):
        by_position.append(min(steps, -(-accepted // (k - len(by_position)))))
        accepted -= by_position[-1]
    kept = tuple(sorted(by_position, reverse=True))
    return Acceptance(verify_steps=steps, proposed=k * steps, accepted=sum(kept), accepted_by_position=kept)


def run(tau: float, *, count: int = 24, k: int = 3, **identity: str | int) -> Run:
    """A run whose prompts differ from each other by far more than drafters do."""
    known: dict[str, str | int] = {"model": "m", "drafter": "d1", "engine": "vllm", "version": "1", "k": k}
    prompts = {f"p{i}": counted(tau + 0.4 * (-1) ** i, k) for i in range(count)}
    return Run(at="2026-11-30T12:00:00Z", identity=known | identity, prompts=prompts)


@pytest.mark.parametrize(
    ("before", "now", "fell"),
    [
        (run(2.5), run(2.5, version="2"), False),
        (run(2.5), run(2.3, version="2"), True),
        (run(2.5), run(2.7, version="2"), False),
        (run(2.5, count=8), run(2.0, count=8), False),  # too few prompts to prove it
    ],
    ids=["the-same", "less", "more", "too-few"],
)
def test_only_a_fall_that_the_prompts_prove_is_one(before: Run, now: Run, fell: bool) -> None:
    assert regression.judge(now, [before]).fell is fell


def test_a_fall_that_some_prompts_show_alone_is_left_open() -> None:
    before = run(2.5)
    now = replace(before, prompts={**before.prompts, "p0": counted(1.5), "p1": counted(1.2)})
    verdict = regression.judge(now, [before])
    assert verdict.ratio is not None and verdict.ratio.value < 1
    assert not verdict.fell


def test_what_changed_is_said_and_a_run_of_the_same_identity_goes_before_the_last_one() -> None:
    newest, own = run(2.9, drafter="d2"), run(2.5)
    assert regression.judge(run(2.5, drafter="d3"), [newest, own]).changed == ("drafter d2 → d3",)
    back = regression.judge(run(2.5), [newest, own])
    assert (back.reference, back.changed, back.fell) == (own, (), False)


def test_another_k_is_compared_by_the_positions_that_both_drafted() -> None:
    full = {f"p{i}": counted(3.0, k=3) for i in range(24)}
    longer = Run(at="", identity={"k": 3}, prompts=full)
    shorter = Run(at="", identity={"k": 2}, prompts={name: one.up_to(2) for name, one in full.items()})
    verdict = regression.judge(shorter, [longer])
    assert verdict.ratio is not None and verdict.ratio.value == 1
    assert verdict.changed == ("k 3 → 2",)


def test_the_words_have_both_lengths_the_interval_and_the_positions() -> None:
    words = regression.judge(run(2.0, version="2"), [run(2.5)]).words
    assert words.startswith("τ 2.500 → 2.000, ratio 0.800, 0.7")
    assert "of 24 prompts); accepted by position 0.5" in words and words.endswith("changed: version 1 → 2")
    assert regression.judge(run(2.0), []).words == "τ 2.000 over 24 prompts, no run to compare with"


class Engine:
    """An engine's server whose verify steps each accept `accepts` of 3 drafts, and which knows a chat template."""

    def __init__(self, accepts: int = 2) -> None:
        self.accepts, self.has_template, self.others = accepts, True, 0
        self.steps, self.tokens, self.asked = 0, 0, []  # type: ignore[var-annotated]
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self, body: str, code: int = 200) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self) -> None:
                self.answer(engine.metrics())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer, code = engine.reply(self.path, asked)
                self.answer(json.dumps(answer), code)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self.server.server_address[1]

    def metrics(self) -> str:
        by_position = [self.steps if position < self.accepts else 0 for position in range(3)]
        rows = {
            "generation_tokens_total": self.tokens,
            "spec_decode_num_drafts_total": self.steps,
            "spec_decode_num_draft_tokens_total": 3 * self.steps,
            "spec_decode_num_accepted_tokens_total": sum(by_position),
        }
        lines = [f'vllm:{name}{{engine="0"}} {value}.0' for name, value in rows.items()]
        per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{per_position}{{engine="0",position="{at}"}} {value}.0' for at, value in enumerate(by_position)]
        return "\n".join(lines) + "\n"

    def reply(self, path: str, asked: dict[str, Any]) -> tuple[dict[str, Any], int]:
        self.asked.append((path, asked))
        if path == "/tokenize":
            if "messages" in asked and not self.has_template:
                return {"error": "no chat template"}, 400
            text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
            return {"tokens": [1, *text.encode()] if "messages" in asked else [*text.encode()]}, 200
        made = asked.get("max_tokens") or asked["sampling_params"]["max_new_tokens"]
        steps = (made - 1) // (self.accepts + 1)
        self.steps += steps
        self.tokens += made + self.others
        if path == "/generate":
            histogram = [0] * self.accepts + [steps]
            counts = {"spec_num_correct_drafts": steps * self.accepts, "spec_num_proposed_drafts": 3 * steps}
            meta = {"spec_verify_ct": steps, **counts, "spec_correct_drafts_histogram": histogram}
            return {"output_ids": [], "meta_info": meta}, 200
        return {"usage": {"completion_tokens": made}, "choices": [{"finish_reason": "length"}]}, 200


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.server.shutdown()
    made.server.server_close()


def service(engine: Engine, name: str = "vllm", drafter: str = "d1") -> Service:
    weights = tuple(Weights(model=one, folder=f"/srv/{one}", manifest_sha256=PIN) for one in ("tiny", drafter) if one)
    return Service(
        model="tiny", engine=name, version="1.0", program=("/opt/python", "-m", name, *FLAGS[name]), environment={},
        key="environment", weights=weights, gpus=8, draft_counter="", front=f"127.0.0.1:{engine.port}",
        port=engine.port, beside_bytes=0, ready_timeout_s=60,
    )  # fmt: skip


def measured(engine: Engine, name: str = "vllm") -> Run:
    return trial.measure(service(engine, name), f"http://127.0.0.1:{engine.port}", "secret")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_both_engines_tell_it_by_prompt_in_the_one_definition(engine: Engine, name: str) -> None:
    found = measured(engine, name)
    assert len(found.prompts) == trial.COUNT
    assert (found.total.tau, found.total.by_position[:3]) == (3.0, (1.0, 1.0, 0.0)[: len(found.total.by_position)])
    assert found.identity["k"] == 3 and found.identity["drafter"] == f"d1 {PIN[:12]}"
    generations = [asked for path, asked in engine.asked if path != "/tokenize"]
    assert {asked.get("temperature", asked.get("sampling_params", {}).get("temperature")) for asked in generations} == {
        0
    }


def test_prompts_are_rendered_for_a_chat_by_the_engine_and_plain_without_a_template(engine: Engine) -> None:
    measured(engine)
    assert {asked["prompt"][0] for path, asked in engine.asked if path == "/v1/completions"} == {1}
    engine.has_template, engine.asked = False, []
    measured(engine)
    assert 1 not in {asked["prompt"][0] for path, asked in engine.asked if path == "/v1/completions"}


def test_counts_that_hold_other_peoples_answers_are_left_out(engine: Engine) -> None:
    engine.others = 5
    with pytest.raises(AerieError, match="no verify step in 24 answers"):
        measured(engine)
    assert len(measured(engine, "sglang").prompts) == trial.COUNT  # it tells of each answer alone


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Any:
    """Changes tiny to a drafter, on a host whose units only take notice and whose both slots lead to the engine."""
    for module in (definition, switch):
        monkeypatch.setattr(module, "CONFIGURATION", tmp_path / "etc")
    for module in (state, regression):
        monkeypatch.setattr(module, "STATE", tmp_path / "var")
    monkeypatch.setattr(front, "FOLDER", tmp_path / "etc/front.d")
    (tmp_path / "etc/front.d").mkdir(parents=True)
    (tmp_path / "etc/tiny").mkdir()
    (tmp_path / "etc/tiny/api-key").write_text("secret\n")
    for name in ("start", "stop", "systemctl", "enable"):
        monkeypatch.setattr(units, name, lambda *words, **more: "")

    def make(drafter: str, *, accept_fall: bool = False, is_tried: bool = True) -> state.Change:
        live = state.read("tiny").live
        to = definition.other(live) if live else "blue"
        wanted = replace(service(engine, drafter=drafter), port=engine.port - (to == "green"))
        (tmp_path / f"etc/tiny/{to}.json").write_text(json.dumps(wanted.to_dict()))
        how = {"accept_fall": accept_fall, "is_tried": is_tried}
        return switch.Switch(model="tiny", to=to, say=lambda phase: None, **how).run()

    return make


def test_a_drafter_whose_acceptance_fell_is_kept_out_with_the_finding(change: Any, engine: Engine) -> None:
    first = change("d1")
    assert first.outcome == "switched" and "no run to compare with" in first.acceptance["words"]
    engine.accepts = 1
    kept = change("d2")
    assert kept.outcome == "kept"
    for part in ("engine.acceptance-fell: τ 3.000 → 2.000", "drafter d1 aaaaaaaaaaaa → d2", "--accept-fall"):
        assert part in kept.why
    assert state.read("tiny").live == "blue"
    assert [one.total.tau for one in regression.good_runs("tiny")] == [3.0]  # still what the next one is held against


def test_a_fall_that_is_meant_is_served_and_is_the_next_reference(change: Any, engine: Engine) -> None:
    change("d1")
    engine.accepts = 1
    meant = change("d2", accept_fall=True)
    assert (meant.outcome, meant.acceptance["fell"], meant.acceptance["tau_before"]) == ("switched", True, 3.0)
    assert state.read("tiny").last == meant
    again = change("d3")
    assert (again.outcome, again.acceptance["tau_before"]) == ("switched", 2.0)


def test_who_is_served_only_to_be_measured_is_not_tried_and_no_reference(change: Any, engine: Engine) -> None:
    change("d1")
    engine.accepts, engine.asked = 1, []
    untried = change("d2", is_tried=False)
    assert (untried.outcome, untried.acceptance) == ("switched", None)
    assert [path for path, _ in engine.asked if path == "/tokenize"] == []
    assert [one.total.tau for one in regression.good_runs("tiny")] == [3.0]


def test_without_a_drafter_nothing_is_held_against_anything(change: Any, engine: Engine) -> None:
    assert change("").acceptance is None
    assert [path for path, _ in engine.asked if path == "/tokenize"] == []


def test_what_serves_is_judged_where_it_runs_and_a_fall_is_no_new_reference(change: Any, engine: Engine) -> None:
    change("d1")
    told = main._judge("tiny")
    assert told is not None and (told["fell"], told["tau_before"], told["changed"]) == (False, 3.0, [])
    engine.accepts = 1
    told = main._judge("tiny")
    assert told is not None and (told["fell"], told["tau"]) == (True, 2.0)
    assert [one.total.tau for one in regression.good_runs("tiny")] == [3.0]


@pytest.mark.parametrize(("fell", "failed"), [(True, ("gpu01",)), (False, ())])
def test_an_upgrade_after_which_less_is_accepted_failed_on_that_host(
    monkeypatch: pytest.MonkeyPatch, fell: bool, failed: tuple[str, ...]
) -> None:
    done = HostOutcome(host="gpu01", state=State.DONE, layers={}, changed=1, rebooted=True)
    outcome = Outcome(hosts=(done,), wall_s=1.0, folder=None, verification=None)
    monkeypatch.setattr(upgrade.provision, "apply", lambda prepared, **options: outcome)
    monkeypatch.setattr(upgrade.inventory, "record_lock", lambda host, lock, path: Path(host))

    def judge(host: str, model: str, path: Path) -> serving.Judged:
        return serving.Judged(host=host, model=model, acceptance={"fell": fell, "words": "τ"})

    monkeypatch.setattr(serving, "judge", judge)
    prepared: Any = SimpleNamespace(
        snapshots={"gpu01": snapshot_with(served())},
        inventory=Path("hosts.yml"),
        locks={"gpu01": SimpleNamespace(name="next")},
    )
    upgraded = upgrade.upgrade(prepared)
    assert (upgraded.failed, upgraded.exit_code) == (failed, int(fell))
    assert [one.model for one in upgraded.judged] == [one["model"] for one in served()["engine/services"]]
    assert bool(upgraded.recorded) is not fell
