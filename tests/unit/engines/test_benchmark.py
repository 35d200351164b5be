"""The client of servers by address: what it measures of a server whose rate is known, and what it makes of that."""

import io
import json
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest

from aerie.engines.acceptance import Acceptance
from aerie.engines.bench import ClientLoad
from aerie.engines.benchmark import comparison, counters, document, energy, figures, onhost, options, prompts, wire
from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.endpoint import Endpoint, parse
from aerie.engines.benchmark.hosts import BENCH
from aerie.engines.benchmark.prompts import Question
from aerie.engines.benchmark.running import Level, Spec, Taken
from aerie.engines.benchmark.schema import BenchDocument
from aerie.errors import AerieError, UsageError
from aerie.paths import repository

QUESTIONS = tuple(Question(id=f"q{i}", text=f"question {i}") for i in range(4))
IDLE = ClientLoad(cpu_share=0.1, loop_lag_p99_ms=1.0)


@contextmanager
def serving(*arguments):
    script = repository() / "benchmarks" / "constant_rate.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script, *map(str, arguments)], **pipes) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


@pytest.fixture(scope="module")
def plain():
    with serving(60, 20) as url:
        yield Endpoint(name="plain", url=url)


@pytest.fixture(scope="module")
def drafted():
    with serving(60, 10, 4) as url:
        yield Endpoint(name="drafted", url=url)


def spec(*endpoints, **changes):
    usual = {"api": "chat", "questions": QUESTIONS, "max_tokens": 9, "concurrency": (1, 4), "repetitions": 1}
    return Spec(endpoints=endpoints, **(usual | changes))


def take(*endpoints, within=None, **changes):
    return document.take(spec(*endpoints, **changes), within or {}, lambda done, total, what: None)


def measured(slower):
    """Two servers whose tokens come every 20 and every 10 ms, or so many times slower."""
    with serving(60, 20 * slower) as plain, serving(60, 10 * slower, 4) as drafted:
        result = take(
            Endpoint(name="plain", url=plain), Endpoint(name="drafted", url=drafted), within={"tpot": 15.0 * slower}
        )
    off = [row.tpot_ms.median / {"plain": 20, "drafted": 10}[row.arm] / slower for row in result.rows]
    is_near = off == pytest.approx([1] * len(off), rel=0.25)
    return result, is_near and all(one.tpot.value == pytest.approx(0.5, rel=0.25) for one in result.comparisons)


def test_a_known_rate_is_measured_and_the_faster_server_told():
    # A busy machine delays answers by tens of milliseconds, in which a fast pace is lost, and a slow one is not.
    for slower in (1, 4, 16):
        result, is_near = measured(slower)
        if is_near:
            break
    rows = {(row.arm, row.concurrency): row for row in result.rows}
    assert set(rows) == {(arm, users) for arm in ("plain", "drafted") for users in (1, 4)}
    for (arm, users), row in rows.items():
        assert (row.requests, row.failed) == (8 if users == 4 else 4, 0)
        assert row.output_tokens == 9 * row.requests
        assert row.ttft_ms.median >= 60
        # The server's pace is fixed from the request on; a late first token shortens what is left by as much.
        assert row.tpot_ms.median == pytest.approx({"plain": 20, "drafted": 10}[arm] * slower, rel=0.25)
        assert row.is_counted
    assert rows["plain", 1].acceptance is None
    assert rows["drafted", 4].acceptance == Acceptance(
        verify_steps=16, proposed=48, accepted=48, accepted_by_position=(16, 16, 16)
    )
    assert rows["drafted", 1].tok_s_user.median > 1.5 * rows["plain", 1].tok_s_user.median
    for one in result.comparisons:
        assert (one.first, one.other, one.prompts, one.same_outputs) == ("plain", "drafted", 4, 1.0)
        assert one.tpot.is_clear and one.tpot.value == pytest.approx(0.5, rel=0.25)
    assert result.exit_code == 0


@pytest.mark.parametrize("api", ["completions", "native"])
def test_every_interface_counts_the_same_tokens(drafted, api):
    (row,) = take(drafted, api=api, concurrency=(2,)).rows
    assert (row.output_tokens, row.failed, row.is_counted) == (36, 0, True)
    assert row.acceptance.tau == 4.0


def test_without_counters_the_answers_are_added_up(drafted):
    result = take(drafted, api="native", concurrency=(2,))
    metas = [taken.answer.meta for level in result.levels for taken in level.taken]
    assert counters.acceptance("", "# SGLang: gauges alone\n", metas) == result.rows[0].acceptance
    assert counters.acceptance("", "", [{}, {"spec_verify_ct": 0}]) is None


def test_code_on_a_host_measures_the_same(drafted, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(BENCH.packed)) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "key").write_text("secret\n")
    asked = spec(drafted, concurrency=(2,))
    told = json.dumps({"spec": wire.spec_to(asked), "key_file": str(tmp_path / "key")})
    command = [sys.executable, "-I", tmp_path]  # as there: nothing of this checkout is on the path
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=300, cwd="/")
    assert done.returncode == 0, done.stderr
    served, _, levels = measured = wire.measured_from(onhost.unpacked(done.stdout))
    assert served["drafted"].model == "constant"
    assert levels[0].acceptance.tau == 4.0 and [one.answer.output_tokens for one in levels[0].taken] == [9] * 4
    assert wire.measured_from(json.loads(json.dumps(wire.measured_to(measured)))) == measured
    assert "concurrency 2" in done.stderr and "secret" not in told
    refused = json.dumps({"spec": wire.spec_to(replace(asked, model="other")), "key_file": ""})
    done = subprocess.run(command, input=refused, capture_output=True, text=True, check=False, timeout=300, cwd="/")
    assert onhost.unpacked(done.stdout)["error"]["expected"] == "other"


def test_a_request_that_fails_is_counted_and_the_others_go_on(plain):
    bad = (Question(id="b", text="break"), Question(id="r", text="refuse"))
    result = take(plain, questions=(*QUESTIONS, *bad), concurrency=(2,))
    (row,) = result.rows
    assert (row.requests, row.failed, result.exit_code) == (6, 2, 1)
    assert {one["error"] for one in result.records() if "error" in one} == {
        "a stream cut off after 1 tokens",
        'HTTP 500: {"error": "no"} after 0 tokens',
    }
    assert row.output_tokens == 9 * 4


def test_a_server_that_fails_at_once_is_an_error(plain):
    with pytest.raises(AerieError, match="HTTP 500"):
        take(plain, questions=(Question(id="r", text="refuse"),))
    with pytest.raises(AerieError, match=r"server, http://127\.0\.0\.1:9"):
        take(Endpoint(name="server", url="http://127.0.0.1:9"))
    with pytest.raises(UsageError, match="'models constant', expected other"):
        take(plain, model="other")


def test_files_hold_every_request_and_are_read_again(drafted, tmp_path):
    result = take(drafted, concurrency=(2,), temperatures=(0.0, 1.0))
    pages = []
    paths = document.write(result, tmp_path, lambda documents: pages.append(documents) or "page")
    assert [path.name for path in paths] == ["bench.json", "records.jsonl", "bench.html"]
    told = document.read(tmp_path / "bench.json")
    assert told == result.to_dict() == pages[0][tmp_path.name]
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len(records) == 8 and {one["temperature"] for one in records} == {0.0, 1.0}
    assert [tokens for _, tokens in records[0]["arrivals"]] == [1, 5, 9]
    (tmp_path / "other.json").write_text('{"schema": "aerie.plan/1"}')
    with pytest.raises(UsageError, match=r"'aerie\.plan/1', expected aerie\.bench/1"):
        document.read(tmp_path / "other.json")


def test_a_document_is_as_its_schema_says(plain, drafted):
    documents = [
        take(plain, drafted, within={"tpot": 15.0}, concurrency=(2,)).to_dict(),
        take(
            plain, questions=(*QUESTIONS, Question(id="r", text="refuse")), temperatures=(1.0,), concurrency=(1,)
        ).to_dict(),
    ]
    assert documents[0]["rows"][1]["tau"] and documents[0]["comparisons"] and documents[1]["rows"][0]["failed"]
    for one in documents:
        read = BenchDocument.model_validate(one)
        assert read.model_dump(mode="json", by_alias=True) == json.loads(json.dumps(one))
    assert BenchDocument.model_fields["schema_"].annotation == Literal[document.SCHEMA]


def answer(ttft=0.1, per_token=0.01, tokens=11, text="same", **more):
    arrivals = tuple((10 + ttft + i * per_token, i + 1) for i in range(tokens))
    return Answer(t_send=10.0, arrivals=arrivals, output_tokens=tokens, is_counted=True, text_sha256=text, **more)


def level(arm="a", answers=None, **changes):
    taken = tuple(Taken(question=name, answer=one) for name, one in (answers or {"q": answer()}).items())
    usual = {"temperature": 0.0, "concurrency": 1, "repetition": 1, "wall_s": 2.0, "acceptance": None}
    return Level(arm=arm, taken=taken, **({**usual, "millijoules": {}, "load": IDLE} | changes))


def test_goodput_counts_requests_within_every_limit():
    answers = {"good": answer(), "slow-first": answer(ttft=0.6), "slow-tokens": answer(per_token=0.06)}
    answers["failed"] = Answer(t_send=0.0, error="no token")
    (row,) = figures.rows([level(answers=answers)], {}, figures.limits("ttft:500,tpot:50"))
    assert (row.good_share, row.good_rate, row.failed) == (0.25, 0.5, 1)
    assert figures.rows([level()], {}, {})[0].good_share is None


def test_energy_and_gpus_are_those_of_the_arm():
    levels = [level(millijoules={2: 1500, 3: 700}), level(repetition=2, millijoules={2: 1500, 3: 700})]
    (row,) = figures.rows(levels, {"a": (2, 3)}, {})
    assert row.joules_per_token == pytest.approx(4.4 / 22)
    assert row.tok_s_gpu == pytest.approx(11 / 2 / 2)
    assert figures.rows([level()], {}, {})[0].to_dict()["joules_per_token"] is None


def test_counters_of_repetitions_add_up():
    counts = [
        Acceptance(verify_steps=n, proposed=n, accepted=a, accepted_by_position=(a,)) for n, a in ((10, 5), (30, 27))
    ]
    (row,) = figures.rows([level(acceptance=one, repetition=i) for i, one in enumerate(counts)], {}, {})
    assert row.to_dict()["tau"] == 1.8  # a mean of the two would be 1.7
    without_steps = Acceptance(verify_steps=0, proposed=0, accepted=0, accepted_by_position=())
    assert figures.rows([level(acceptance=without_steps)], {}, {})[0].to_dict()["tau"] is None


def test_a_client_that_was_bound_once_is_told():
    busy = ClientLoad(cpu_share=0.9, loop_lag_p99_ms=1.0)
    (row,) = figures.rows([level(), level(repetition=2, load=busy)], {}, {})
    assert row.is_client_bound and row.client_cpu_share == 0.9


def test_answers_that_were_held_back_and_came_in_one_piece_have_no_time_per_token():
    burst = Answer(t_send=0, arrivals=tuple((0.2 + i * 1e-5, i + 1) for i in range(9)), output_tokens=9)
    steady = Answer(t_send=0, arrivals=tuple((0.2 + i * 0.02, i + 1) for i in range(9)), output_tokens=9)
    one_chunk = Answer(t_send=0, arrivals=((0.2, 9),), output_tokens=9)
    (row,) = figures.rows([level(answers={"burst": burst, "steady": steady, "one": one_chunk})], {}, {})
    assert (row.bursts, row.to_dict()["bursts"]) == (1, 1)
    assert row.tpot_ms.count == 1 and row.tpot_ms.median == pytest.approx(20)
    assert row.tok_s_user.median == pytest.approx(50)
    (row,) = figures.rows([level(answers={"burst": burst})], {}, {})
    assert (row.bursts, row.tpot_ms, row.tok_s_user) == (1, None, None)
    assert row.e2e_ms.median == pytest.approx(200.08)


def test_prompts_are_compared_with_themselves():
    slow = {f"q{i}": answer(per_token=0.01 * (i + 1)) for i in range(20)}
    fast = {name: replace(one, arrivals=shrunk(one.arrivals, 0.8)) for name, one in slow.items()}
    (faster,) = comparison.compare([level("a", slow), level("b", fast)])
    assert faster.tpot.value == pytest.approx(0.8)  # though the prompts differ twentyfold
    assert faster.tpot.is_clear and faster.tpot.high - faster.tpot.low < 1e-6
    (equal,) = comparison.compare([level("a", slow), level("b", slow)])
    assert (equal.tpot.value, equal.tpot.is_clear, equal.same_outputs) == (1.0, False, 1.0)
    (again,) = comparison.compare([level("a", slow), level("b", fast)])
    assert again == faster


def shrunk(arrivals, share):
    first = arrivals[0][0]
    return tuple((first + share * (at - first), tokens) for at, tokens in arrivals)


def test_noise_widens_the_interval_and_few_prompts_are_told():
    ours = {f"q{i}": answer() for i in range(6)}
    theirs = {f"q{i}": answer(per_token=0.01 * (0.7 if i % 2 else 1.4)) for i in range(6)}
    (one,) = comparison.compare([level("a", ours), level("b", theirs | {"q0": answer(text="other")})])
    assert not one.tpot.is_clear and one.tpot.low < 0.9 and one.tpot.high > 1.1
    assert one.to_dict()["few"] is True
    assert one.same_outputs == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"prompt": "hi", "id": "x"}, Question(id="x", text="hi")),
        ({"instruction": "do"}, Question(id="file-1", text="do")),
        ({"input_ids": [1, 2]}, Question(id="file-1", input_ids=(1, 2))),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            Question(id="file-1", messages=(("user", "a"),)),
        ),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
            Question(id="file-1", messages=(("system", "s"), ("user", "u"))),
        ),
    ],
    ids=["prompt", "instruction", "token-ids", "sharegpt", "messages"],
)
def test_prompts_of_every_shape(tmp_path, entry, expected):
    file = tmp_path / "file.jsonl"
    file.write_text(json.dumps(entry) + "\n")
    assert prompts.read(file) == (expected,)
    file.write_text(json.dumps([entry, {"conversations": [{"from": "gpt", "value": "b"}]}]))
    assert prompts.read(file) == (expected,)


def test_a_file_without_prompts_is_an_error(tmp_path):
    (tmp_path / "file.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(UsageError, match="no prompt"):
        prompts.read(tmp_path / "file.jsonl")
    (tmp_path / "file.jsonl").write_text("not json\n")
    with pytest.raises(UsageError, match="a file of JSON lines"):
        prompts.read(tmp_path / "file.jsonl")


def test_packaged_prompts_are_enough_for_sixteen_users():
    found = prompts.read(prompts.PACKAGED)
    assert len(found) == len({one.id for one in found}) == len({one.text for one in found}) == 32


def test_interfaces_take_the_prompts_that_they_can():
    text, ids = Question(id="t", text="hi"), Question(id="i", input_ids=(1,))
    said = Question(id="m", messages=(("user", "hi"),))
    assert prompts.fitting([text, said], "chat") == (Question(id="t", messages=(("user", "hi"),)), said)
    assert prompts.fitting([text, ids], "native") == (text, ids)
    for questions, api in (([ids], "chat"), ([said], "native"), ([said], "completions")):
        with pytest.raises(UsageError, match="--api"):
            prompts.fitting(questions, api)


def test_few_prompts_are_repeated_for_many_users():
    assert [one.id for one in prompts.repeated(QUESTIONS, 6)] == ["q0", "q1", "q2", "q3", "q0", "q1"]
    assert prompts.repeated(QUESTIONS, 2) == QUESTIONS


def asked(**changes):
    usual = {
        "urls": ["http://gpu01:8000/v1"], "host": "", "against": "", "api": "chat", "model": "",
        "file": None, "limit": 0,
        "max_tokens": 64, "ignore_eos": False, "temperatures": "0", "concurrency": "4,1,4", "repetitions": 1,
        "key_file": None,
    }  # fmt: skip
    return options.spec(**(usual | changes))


def test_a_command_line_becomes_a_spec(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    made = asked(against="http://gpu02:8000", temperatures="1,0", key_file=tmp_path / "key")
    assert [(one.name, one.url, one.key) for one in made.endpoints] == [
        ("against", "http://gpu02:8000", "secret"),
        ("server", "http://gpu01:8000", "secret"),
    ]
    assert (made.temperatures, made.concurrency, len(made.questions)) == ((0.0, 1.0), (1, 4), 32)
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"urls": []}, "--url"),
        ({"urls": ["gpu01:8000"]}, "http://HOST:PORT"),
        ({"urls": ["a=http://x:1", "a=http://y:1"]}, "a name of its own"),
        ({"api": "chats"}, "chat"),
        ({"concurrency": "1,0"}, "--concurrency"),
        ({"temperatures": "warm"}, "--temperature"),
        ({"max_tokens": 1}, "--max-tokens"),
        ({"host": "gpu01"}, "with --url"),
        ({"host": "gpu01", "urls": []}, "without --model"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_meant_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        asked(**changes)


@pytest.mark.parametrize("text", ["itl:5", "ttft", "ttft:fast"])
def test_a_limit_has_a_known_name_and_a_number(text):
    with pytest.raises(UsageError, match="--goodput"):
        figures.limits(text)


def test_a_name_may_stand_before_the_address():
    assert parse("k3=http://h:1/", "x") == Endpoint(name="k3", url="http://h:1")
    assert parse("http://h:1/?a=b", "x").name == "x"


class Nvml:
    """Four cards; process 7 computes on the last two. The first has no energy counter."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 4

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=7)] if handle >= 2 else []

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if handle == 0:
            raise self.NVMLError
        return 1000 * handle


def test_energy_is_that_of_the_servers_gpus(monkeypatch):
    meter = energy.Meter(Nvml())
    monkeypatch.setattr(energy, "_tree_at", lambda port: {7, 8} if port == 8000 else {9} if port == 9000 else set())
    assert meter.gpus_of("http://127.0.0.1:8000") == (2, 3)
    assert meter.gpus_of("http://localhost:9000") == (0, 1, 2, 3)  # NVML has other names for its processes
    assert meter.gpus_of("http://127.0.0.1:7000") == meter.gpus_of("http://gpu01:8000") == ()
    assert meter.millijoules((0, 2, 3)) == {2: 2000, 3: 3000}


def test_without_pynvml_there_is_no_meter(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as in the environment of an engine for CPUs
    with energy.opened() as meter:
        assert meter is None
