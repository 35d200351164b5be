"""The page of measurements: one file that loads nothing, from one document or several, with what is doubtful on top."""

import html
import os
import re
import sys
from copy import deepcopy
from xml.etree import ElementTree

import pytest

from aerie.report import bench, bench_page, sweeps
from aerie.report.console import open_console

QUANTILES = {"count": 8, "mean": 11.0, "median": 10.0, "p90": 12.0, "p95": 13.0, "p99": 14.0}


def row(arm, users, **changes):
    rate = {"median": 100.0 * users, "min": 90.0 * users, "max": 110.0 * users}
    return {
        "arm": arm, "temperature": 0.0, "concurrency": users, "repetitions": 2, "requests": 8, "failed": 0,
        "first_error": "", "output_tokens": 800, "gpus": 2, "bursts": 0, "is_counted": True, "request_rate": rate,
        "tok_s": rate, "tok_s_user": rate, "tok_s_gpu": 50.0 * users, "ttft_ms": QUANTILES, "tpot_ms": QUANTILES,
        "itl_ms": QUANTILES, "e2e_ms": QUANTILES, "good_share": 0.75, "good_rate": 3.0, "joules_per_token": 0.5,
        "cached_share": 0.0, "tau": 2.5, "accept_rate": 0.5, "accept_by_position": [0.8, 0.5, 0.2],
        "counters": {"verify_steps": 10, "proposed": 30, "accepted": 15, "accepted_by_position": [8, 5, 2]},
        "client": {"cpu_share": 0.1, "loop_lag_p99_ms": 1.0, "bound": False}, **changes,
    }  # fmt: skip


@pytest.fixture
def told():
    arm = {"url": "http://gpu01:8000", "gpus": [0, 1], "model": "target", "engine": "vllm", "version": "0.32.0"}
    ratio = {"ratio": 0.8, "low": 0.75, "high": 0.85, "clear": True}
    compared = {
        "first": "plain", "other": "drafted", "temperature": 0.0, "concurrency": 1, "prompts": 6, "few": True,
        "ttft": ratio, "tpot": ratio, "e2e": None, "same_outputs": 1.0,
    }  # fmt: skip
    return {
        "schema": "aerie.bench/1", "started_at": "2026-11-30T12:00:00Z", "client": {"machine": "vm", "python": "3.11"},
        "api": "chat", "prompts": 6, "max_tokens": 64, "ignore_eos": True, "repetitions": 2,
        "limits_ms": {"ttft": 500.0},
        "arms": {"plain": {**arm, "arguments": {}}, "drafted": {**arm, "arguments": {"attention_backend": "triton"}}},
        "rows": [row(name, users) for name in ("plain", "drafted") for users in (1, 4)],
        "comparisons": [compared],
    }  # fmt: skip


def test_it_loads_nothing_and_its_plots_are_xml(told):
    text = bench_page.page({"one": told})
    assert not re.search(r"<(script|link|img|iframe)|@import|url\(|src=", text)
    plots = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(plots) == 5  # trade-off, goodput, two latencies, acceptance
    for plot in plots:
        tree = ElementTree.fromstring(plot)
        said = {child.attrib["id"]: child.text for child in tree if "id" in child.attrib}
        assert all(said[name] for name in tree.attrib["aria-labelledby"].split())
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "None" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)


def test_throughput_is_per_gpu_where_all_gpus_are_known(told):
    assert "tok/s per GPU against tok/s per user" in bench_page.page({"one": told})
    told["rows"][0]["tok_s_gpu"] = None
    assert "tok/s of all users against tok/s per user" in bench_page.page({"one": told})


def test_several_documents_share_one_page(told):
    text = bench_page.page({"before": told, "after": deepcopy(told)})
    assert all(f"{name}: {arm}</th>" in text for name in ("before", "after") for arm in ("plain", "drafted"))
    assert "<td>before: plain</td>" in text and "<td>after: plain</td>" in text  # what each was compared with


def test_what_is_doubtful_is_on_top_and_failures_first(told):
    told["rows"][0]["client"] = {"cpu_share": 0.9, "loop_lag_p99_ms": 1.0, "bound": True}
    told["rows"][1] |= {"cached_share": 0.9, "is_counted": False}
    told["rows"][2] |= {"bursts": 7, "tpot_ms": None, "tok_s_user": None}
    told["rows"][3] |= {"failed": 1, "first_error": "HTTP 500: <b>no</b>"}
    text = bench_page.page({"one": told})
    doubts = re.findall(r"<li>(.*?)</li>", text)
    assert [re.search(r"failed|client-bound|prefix cache|does not count|in one piece", one)[0] for one in doubts] == [
        "failed", "client-bound", "prefix cache", "does not count", "in one piece",
    ]  # fmt: skip
    assert "&lt;b&gt;no" in doubts[0]
    assert text.index("Doubtful") < text.index("Rates and latencies")


@pytest.fixture
def swept(told):
    """As of bench.sweep: k3 serves; alone k3 is the best and proven, of 4 users k1 is, and k3 may be as good."""
    ratio = {"ratio": 1.4, "low": 1.3, "high": 1.5, "clear": True}
    choice = {
        "temperature": 0.0, "concurrency": 1, "best": "k3", "smallest": "k0", "over_smallest": ratio, "next": "k1",
        "over_next": ratio, "tied": [], "clear": True,
    }  # fmt: skip
    drift = {**told["comparisons"][0], "e2e_token": told["comparisons"][0]["ttft"], "first": "k3", "other": "k3-again"}
    settings = {name: f"./invoke serve … {name}" for name in ("k0", "k1", "k3")}
    told["sweep"] = {
        "host": "gpu01", "model": "kimi", "drafter": "d1", "order": ["k3", "k0", "k1", "k3-again"], "present": "k3",
        "again": "k3-again", "drift": [drift], "way_back": "./invoke serve … --rollback", "ended": "", "left": "",
        "choices": [choice, {**choice, "concurrency": 4, "best": "k1", "next": "k3", "tied": ["k3"], "clear": False}],
        "settings": settings,
    }  # fmt: skip
    return told


def test_a_sweep_names_the_best_its_command_and_what_is_doubtful(swept, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    open_console(sys.stdout, os.environ).print(bench.view(swept, []))
    shown, page = capsys.readouterr().out, html.unescape(bench_page.page({"one": swept}))
    for text in (shown, page):
        for part in (
            "as fast (1.300–1.500) as k0, 1.400 times as fast (1.300–1.500) as the next, k1: more than noise",
            "k3 serves already",
            "as the next, k3; within noise: k3",
            "k3 serves, and is not proven to be slower; k1: ./invoke serve … k1",
            "one after the other (k3, k0, k1, k3-again): a slow minute of the machine falls on one of them",
            "drift of the machine, temperature 0, concurrency 1: k3 took 0.800 (0.750–0.850) of its time per token",
        ):
            assert part in text, part
    assert 'draft_tokens = 1 in [engine.models."kimi"] of the lock' in shown
    assert "Number of draft tokens: kimi on gpu01, drafter d1" in page and "arms take turns" not in page


def test_a_sweep_that_did_not_get_back_says_so_first(swept):
    swept["sweep"] |= {"left": "did not start", "ended": "no room", "drift": []}
    doubts = re.findall(r"<li>(.*?)</li>", bench_page.page({"one": swept}))
    assert doubts[0].startswith("what served before (k3) does not serve: did not start → ./invoke serve … --rollback")
    assert doubts[1] == "ended early: no room" and "was not measured" in doubts[3]
    assert sweeps.advice(swept["sweep"], swept["sweep"]["choices"][0]) == "./invoke serve … k3"


def test_a_measurement_that_failed_whole_has_a_page(told):
    nothing = dict.fromkeys(
        ("request_rate", "tok_s", "tok_s_user", "tok_s_gpu", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "tau",
         "good_rate", "good_share", "joules_per_token", "cached_share", "accept_rate", "accept_by_position", "counters")
    )  # fmt: skip
    told["rows"] = [row("plain", 1, failed=8, first_error="no token", **nothing)]
    text = bench_page.page({"one": told})
    assert "8 of 8 requests failed" in text and "<svg" not in text


def test_the_screen_has_figures_ratios_and_paths(told, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    told["rows"][0] |= {"failed": 1, "first_error": "no token"}
    open_console(sys.stdout, os.environ).print(bench.view(told, ["/x/bench.html"]))
    text = capsys.readouterr().out
    assert all(part in text for part in ("2.500", "50.0%", "0.800 (0.750–0.850)", "6, too few", "/x/bench.html"))
    assert "failed  plain, temperature 0, concurrency 1: 1 of 8 requests; first: no token" in text
