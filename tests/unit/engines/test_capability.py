"""The capability table: facts of the engines' wheels as exact values."""

import json

import pytest

from aerie.engines import capability
from aerie.engines.capability import Wish, can_serve, default_backend, names, require, survey, table
from aerie.engines.counts import of_meta_info
from aerie.errors import UsageError
from aerie.report import engines as report

EAGLE3 = frozenset({"eagle3"})


def wish(engine, version, arch="sm120", model="kimi-k2.5", doing=EAGLE3, **more):
    return Wish(engine=engine, version=version, arch=arch, model=model, doing=doing, **more)


@pytest.mark.parametrize(
    ("engine", "version", "can_run"),
    [
        ("vllm", "0.15.1", False),
        ("vllm", "0.16.0", False),
        ("vllm", "0.17.0", False),
        ("vllm", "0.18.0", True),
        ("vllm", "0.33.0", True),
        ("sglang", "0.5.8", False),
        ("sglang", "0.5.9", False),
        ("sglang", "0.5.10.post1", True),
        ("sglang", "0.5.23", True),
    ],
)
def test_who_drafts_for_kimi(engine, version, can_run):
    assert can_serve(wish(engine, version)).can_run is can_run


@pytest.mark.parametrize(
    ("engine", "version", "why"),
    [
        ("vllm", "0.16.0", "does not have kimi_k2 (ValueError)"),
        ("sglang", "0.5.9", "none of the three methods"),
        ("sglang", "0.5.8", "106,496 bytes of shared memory"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(engine, version, why):
    verdict = can_serve(wish(engine, version))
    assert any(why in reason for reason, _, _ in verdict.reasons)
    assert all(remedy.startswith("Take ") and source for _, remedy, source in verdict.reasons)
    with pytest.raises(UsageError, match=rf"{engine} {version} on sm120"):
        require(wish(engine, version))


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.17.0"), ("sglang", "0.5.9")])
def test_without_a_drafter_they_serve_it(engine, version):
    assert can_serve(wish(engine, version, doing=frozenset())).can_run


@pytest.mark.parametrize(
    ("version", "arch", "warns"),
    [("0.30.0", "sm120", True), ("0.31.0", "sm120", False), ("0.30.0", "sm90", False)],
)
def test_vllm_verified_by_prefill_on_sm120(version, arch, warns):
    warnings = can_serve(wish("vllm", version, arch)).warnings
    assert any("verify step runs as a prefill" in reason for reason, _, _ in warnings) is warns


@pytest.mark.parametrize(
    ("version", "offset"),
    [("0.5.9", "1"), ("0.5.12.post1", "1"), ("0.5.13", "0"), ("0.5.13.post1", "0"), ("0.5.23", "0")],
)
def test_aux_layer_ids_were_one_off(version, offset):
    assert names("sglang", version)["aux.offset"] == offset
    warnings = can_serve(wish("sglang", version)).warnings
    assert any("read one too high" in reason for reason, _, _ in warnings) is (offset == "1")


@pytest.mark.parametrize(
    ("arch", "backend", "doing", "can_run"),
    [
        ("sm120", "trtllm_mla", EAGLE3, False),
        ("sm120", "trtllm_mla", frozenset(), True),
        ("sm100", "trtllm_mla", EAGLE3, True),
        ("sm120", "triton", EAGLE3, True),
        ("sm120", "flashinfer", EAGLE3, True),
        ("sm120", "fa3", frozenset(), False),
        ("sm90", "fa3", EAGLE3, True),
        ("sm120", "flashmla", EAGLE3, False),
        ("sm120", "cutlass_mla", EAGLE3, False),
    ],
)
def test_attention_backends_of_sglang(arch, backend, doing, can_run):
    verdict = can_serve(wish("sglang", "0.5.23", arch, doing=doing, attention=backend))
    assert verdict.can_run is can_run
    if not can_run:
        assert verdict.reasons[-1][0].startswith(f"attention backend {backend}: ")
        assert "triton" in verdict.reasons[-1][1]


def test_trtllm_mla_is_refused_for_its_queries():
    (reason, remedy, _) = can_serve(wish("sglang", "0.5.23", attention="trtllm_mla")).reasons[-1]
    assert "raises for more than one query a request" in reason
    assert remedy == "Take triton or flashinfer."


@pytest.mark.parametrize(
    ("version", "flag"), [("0.5.13", "--cuda-graph-max-bs"), ("0.5.14", "--cuda-graph-max-bs-decode")]
)
def test_flags_over_time(version, flag):
    assert names("sglang", version)["flag.graph-batch"] == flag


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ("0.5.10.post1", "spec_accept_token_num"),
        ("0.5.11", "spec_accepted_drafts"),
        ("0.5.12", "spec_num_correct_drafts"),
        ("0.5.23", "spec_num_correct_drafts"),
    ],
)
def test_every_row_of_names_is_read(version, accepted):
    accepted_name, proposed, histogram = names("sglang", version)["meta.counts"].split()
    assert accepted_name == accepted
    meta = {"spec_verify_ct": 2, accepted_name: 3, proposed: 6, histogram: [0, 1, 1]}
    assert of_meta_info(meta).tau == 2.5


def test_defaults_that_aerie_passes():
    assert default_backend("sglang", "0.5.23", "mm-attention", "sm120") == "sdpa"
    assert default_backend("sglang", "0.5.23", "mm-attention", "sm90") == ""
    assert default_backend("sglang", "0.5.16", "draft", "sm90") == "triton"


@pytest.mark.parametrize("bad", [wish("tgi", "1"), wish("vllm", "0.33.0", arch="sm75")], ids=["engine", "arch"])
def test_unknown_words_are_usage_errors(bad):
    with pytest.raises(UsageError, match="expected one of"):
        can_serve(bad)


def test_a_version_that_nobody_read_is_said_to_be_unknown():
    assert not can_serve(wish("vllm", "0.99.0")).is_known
    assert can_serve(wish("vllm", "0.33.0")).is_known


def test_every_row_has_a_source_and_every_release_a_verdict():
    whole = table()
    rows = (*whole.releases, *whole.rules, *whole.backends, *whole.names, *whole.hangs, *whole.routers)
    assert [row for row in rows if not row.source] == []
    assert len({rule.id for rule in whole.rules}) == len(whole.rules)
    assert {arch for row in (*whole.rules, *whole.backends, *whole.hangs) for arch in row.archs} <= set(
        capability.ARCHS
    )


def test_the_survey_shows_the_newest_first_as_one_document():
    found = survey("kimi-k2.5", "sm120", "vllm")
    assert [one.plain.wish.version for one in found][:2] == ["0.33.0", "0.32.0"]
    assert [one.word for one in found if one.plain.wish.version in ("0.17.0", "0.18.1")] == ["eagle3", "plain"]
    document = json.loads(json.dumps(report.survey_document(found, "kimi-k2.5", "sm120")))
    assert document["releases"][0]["can"] == "eagle3"
    assert {row["engine"] for row in document["backends"]} == {"vllm"}
    with pytest.raises(UsageError, match=r"Did you mean kimi-k2\.5"):
        survey("kimi-k2", "sm120")
