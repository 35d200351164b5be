from dataclasses import replace

import pytest

from aerie.engines import bench
from aerie.engines.acceptance import Acceptance
from aerie.engines.bench import ClientLoad, Record, Run
from aerie.engines.client import Streamed
from aerie.engines.intervals import percentile


def record(tokens, t_send, t_first, t_last, first_tokens=1, prompt="p"):
    return Record(
        repetition=1,
        concurrency=1,
        prompt=prompt,
        streamed=Streamed(
            token_ids=tuple(range(tokens)), t_send=t_send, t_first=t_first, t_last=t_last, first_tokens=first_tokens
        ),
    )


def run(*records, acceptance=None):
    return Run(arm="base", repetition=1, concurrency=1, records=records, acceptance=acceptance)


def test_decoding_leaves_out_the_first_token():
    figures = bench.summarize(run(record(11, 0.0, 0.5, 1.5), record(21, 1.5, 1.75, 2.75)))
    assert figures["tok_s_user"] == 15.0  # (10 + 20) tokens in (1 + 1) s
    assert figures["tok_s"] == round(32 / 2.75, 3)
    assert figures["ttft_ms"] == {"median": 375.0, "p95": 500.0}
    assert figures["tpot_ms"] == {"median": 75.0, "p95": 100.0}
    assert (figures["tokens"], figures["wall_s"], figures["prompts"]) == (32, 2.75, 2)


def test_time_per_token_is_not_time_per_chunk():
    # Four chunks of 4 tokens after a first chunk of 4, 0.1 s apart: 25 ms a token, though 100 ms between chunks.
    figures = bench.summarize(run(record(20, 0.0, 0.2, 0.6, first_tokens=4)))
    assert figures["tpot_ms"] == {"median": 25.0, "p95": 25.0}
    assert figures["tok_s_user"] == 40.0


@pytest.mark.parametrize(("tokens", "first"), [(1, 1), (3, 3)], ids=["one-token", "all-in-one-chunk"])
def test_a_request_without_decoding_counts_in_ttft_alone(tokens, first):
    lone = record(tokens, 0.0, 0.25, 0.25, first_tokens=first)
    figures = bench.summarize(run(lone))
    assert figures["tok_s_user"] is None
    assert figures["tpot_ms"] is None
    assert figures["ttft_ms"]["median"] == 250.0
    together = bench.summarize(run(lone, record(11, 0.0, 0.5, 1.5)))
    assert together["tok_s_user"] == 10.0
    assert together["tokens"] == 11 + tokens


def test_concurrent_requests_share_the_wall():
    figures = bench.summarize(run(record(11, 0.0, 0.5, 1.5), record(11, 0.5, 1.0, 2.0)))
    assert figures["tok_s"] == 11.0
    assert figures["tok_s_user"] == 10.0


def test_counters_are_kept_as_counts():
    acceptance = Acceptance(verify_steps=2, proposed=6, accepted=3, accepted_by_position=(2, 1, 0))
    assert bench.summarize(run(record(3, 0, 1, 2), acceptance=acceptance))["counters"] == {
        "verify_steps": 2,
        "proposed": 6,
        "accepted": 3,
        "accepted_by_position": [2, 1, 0],
    }
    assert bench.summarize(run(record(3, 0, 1, 2)))["counters"] is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([5.0], 0.95, 5.0), ([3.0, 1.0, 2.0], 0.5, 2.0), (list(range(1, 21)), 0.95, 19), (list(range(1, 101)), 0.99, 99)],
)
def test_percentile_is_a_value_that_was_measured(values, share, expected):
    assert percentile(values, share) == expected


def test_order_rotates_between_repetitions():
    assert [bench.order(["a", "b", "c"], repetition) for repetition in (1, 2, 3, 4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


@pytest.mark.parametrize(
    ("cpu", "lag_ms", "is_bound"), [(0.7, 5.0, False), (0.71, 0.0, True), (0.0, 5.1, True)], ids=["at", "cpu", "lag"]
)
def test_client_is_bound_above_either_threshold(cpu, lag_ms, is_bound):
    assert ClientLoad(cpu_share=cpu, loop_lag_p99_ms=lag_ms).is_bound is is_bound


def test_a_row_of_records():
    assert record(2, 10.0, 10.25, 10.5, prompt="held-1").to_dict() == {
        "repetition": 1,
        "concurrency": 1,
        "prompt": "held-1",
        "token_ids": [0, 1],
        "first_tokens": 1,
        "t_send_s": 10.0,
        "ttft_s": 0.25,
        "wall_s": 0.5,
    }


def test_acceptance_by_prompt_is_summed_over_the_runs():
    one = Acceptance(verify_steps=2, proposed=6, accepted=3, accepted_by_position=(2, 1, 0))
    told = [replace(row, streamed=replace(row.streamed, acceptance=one)) for row in (record(3, 0, 1, 2, prompt="a"),)]
    assert bench.by_prompt([run(*told), run(*told)]) == {"a": one + one}
    assert bench.by_prompt([run(record(3, 0, 1, 2))]) == {}


@pytest.mark.parametrize(
    ("answers", "share"),
    [([range(40)], 1.0), ([[1, 2] * 20], 2 / 39), ([[5]], None), ([[1, 1, 1], range(9), range(5)], 1.0)],
    ids=["text", "a loop of two", "one token", "median"],
)
def test_distinct_bigrams_tell_text_from_loops(answers, share):
    assert bench.distinct_bigrams(answers) == share
