"""SGLang's launch arguments and answers, by version. Nothing of SGLang runs here."""

import json
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from aerie import paths
from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import Capture, Drafter, Forced, Progress, Served, adapter
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError, UsageError

SGLANG = adapter("sglang")
GPUS = Gpus(tensor_parallel=8, memory_fraction=0.9)
ENGINE = Engine(name="sglang", max_model_len=4096, max_num_seqs=16, ready_timeout_s=600, port=0, gpus=GPUS)
DRAFTER = Drafter(path=Path("/d"), tokens=3)


def launch(version="0.5.16", mode=None, arch="sm120", engine=ENGINE, **more):
    served = Served(
        python=Path("/env/bin/python"), model=Path("/m"), engine=engine, dtype="bfloat16", version=version, arch=arch,
        **more,
    )  # fmt: skip
    return SGLANG.launch(served, mode)


def value(server, flag):
    return server.flags[server.flags.index(flag) + 1]


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.9", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.20", "--cuda-graph-max-bs-decode"),  # the old name ends the start as an ambiguous prefix
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_the_flag_of_graphs_follows_the_version(version, flag):
    server = launch(version)
    assert [one for one in server.flags if one.startswith("--cuda-graph")] == [flag]
    assert value(server, flag) == "16"


def test_a_drafter_adds_its_flags_alone():
    plain, drafted = launch(), launch(mode=DRAFTER)
    assert drafted.flags[: len(plain.flags)] == plain.flags
    added = drafted.flags[len(plain.flags) :]
    assert dict(zip(added[::2], added[1::2], strict=True)) == {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "/d",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
        "--speculative-draft-attention-backend": "triton",
    }
    assert drafted.variables == plain.variables


@pytest.mark.parametrize(("version", "is_set"), [("0.5.9", True), ("0.5.10.post1", True), ("0.5.11", False)])
def test_overlap_is_asked_for_where_drafting_turns_it_off(version, is_set):
    assert ("SGLANG_ENABLE_SPEC_V2" in launch(version, DRAFTER).variables) is is_set
    assert "SGLANG_ENABLE_SPEC_V2" not in launch(version).variables


def test_vision_avoids_the_kernel_that_does_not_fit_on_sm120():
    assert value(launch(), "--mm-attention-backend") == "sdpa"
    assert "--mm-attention-backend" not in launch(arch="sm90").flags


def test_code_of_the_model_runs_where_it_is_trusted():
    assert "--trust-remote-code" in launch(trust_code=True).flags
    assert "--trust-remote-code" not in launch().flags


def test_a_sampling_backend_is_the_profiles_alone():
    engine = ENGINE.model_copy(update={"gpus": GPUS.model_copy(update={"sampling": "pytorch"})})
    assert value(launch(engine=engine), "--sampling-backend") == "pytorch"
    assert "--sampling-backend" not in launch().flags


def test_forced_differs_from_its_drafter_by_variables_alone(tmp_path):
    forced = launch(mode=Forced(drafter=DRAFTER, length=3.0, folder=tmp_path))
    drafted = launch(mode=DRAFTER)
    assert forced.flags == drafted.flags
    assert dict(forced.variables.items() - drafted.variables.items()) == {
        "SGLANG_SIMULATE_ACC_LEN": "3",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
    }


def test_a_running_server_keeps_its_forced_length(tmp_path):
    forced = Forced(drafter=DRAFTER, length=3.0, folder=tmp_path)
    assert not SGLANG.switches_forced(ENGINE)
    with pytest.raises(UsageError, match="Start another server"):
        SGLANG.switch_forced(forced, 2.0)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_capture_is_our_plugins_which_gets_the_layers_below_the_last(version, tmp_path):
    capture, plain = launch(version, Capture(layers=(2, 3, 4, 6), directory=tmp_path)), launch(version)
    assert capture.flags == (*plain.flags, "--enable-return-hidden-states")
    assert dict(capture.variables.items() - plain.variables.items()) == {
        "SGLANG_PLUGINS": "aerie_hidden_states",
        "AERIE_CAPTURE_FOLDER": str(tmp_path),
        "AERIE_CAPTURE_LAYERS": "2,3,4",
        "PYTHONPATH": f"{paths.repository()}:{tmp_path}",
    }
    (found,) = distributions(path=[str(tmp_path)])
    (entry,) = found.entry_points
    assert (entry.group, entry.name) == ("sglang.srt.plugins", "aerie_hidden_states")
    assert find_spec(entry.module) is not None


def test_capture_is_refused_where_the_plugin_was_not_made_for_it(tmp_path):
    with pytest.raises(UsageError, match=r"0\.5\.14.*Take SGLang 0\.5\.16 or newer"):
        launch("0.5.14", Capture(layers=(2, 3, 4, 6), directory=tmp_path))


def test_without_gpus_it_is_not_started():
    with pytest.raises(UsageError, match=r"set engine\.name to vllm"):
        launch(engine=ENGINE.model_copy(update={"gpus": None}))


def test_nothing_of_the_callers_shell_reaches_it(monkeypatch):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "4")
    monkeypatch.setenv("AERIE_JOB", "run-1/control")
    environment = launch(mode=DRAFTER).environment
    assert "SGLANG_SIMULATE_ACC_LEN" not in environment
    assert environment["AERIE_JOB"] == "run-1/control"


# Of one request with 4 draft tokens (k = 3) and 100 verify steps that accepted 0, 1, 2, 3 drafts 20, 20, 20, 40 times:
# τ 2.8, rate 0.60, of which SGLang up to 0.5.10 shows 0.70 as gauge. Written from tokenizer_manager.py of each wheel.
OLD = {"spec_accept_token_num": 180, "spec_draft_token_num": 300, "spec_accept_histogram": [20, 20, 20, 40]}
THIRD = {"spec_accepted_drafts": 180, "spec_proposed_drafts": 300, "spec_accept_histogram": [20, 20, 20, 40]}
NEW = {
    "spec_num_correct_drafts": 180,
    "spec_num_proposed_drafts": 300,
    "spec_correct_drafts_histogram": [20, 20, 20, 40],
}
RATES = {"spec_accept_rate": 0.6, "spec_accept_length": 2.81, "spec_verify_ct": 100}
GENERATIONS = [
    pytest.param(RATES | OLD, id="0.5.9-0.5.10"),
    pytest.param(RATES | THIRD, id="0.5.11"),
    pytest.param(RATES | NEW | THIRD, id="0.5.12-0.5.20"),
    pytest.param(RATES | NEW, id="0.5.21-0.5.23"),
]


def answered(meta, **more):
    meta = {"id": "r", "finish_reason": {"type": "length", "length": 4}, "completion_tokens": 4} | meta
    return SGLANG.answer({"text": "", "output_ids": [5, 6, 7, 8], "meta_info": meta} | more)


@pytest.mark.parametrize("meta", GENERATIONS)
def test_every_naming_of_counts_gives_the_one_definition(meta):
    acceptance = answered(meta).acceptance
    assert acceptance == Acceptance(verify_steps=100, proposed=300, accepted=180, accepted_by_position=(80, 60, 40))
    assert (acceptance.tau, acceptance.rate) == (2.8, 0.6)  # not spec_accept_length: it counts the prompt's token


def test_a_histogram_cut_after_its_last_entry():
    # 0.5.16 on an H200, forced to 3.0: 192 steps for 576 tokens, each with 2 drafts right of 3.
    meta = {"spec_verify_ct": 192, "spec_num_correct_drafts": 384, "spec_num_proposed_drafts": 576}
    acceptance = answered(meta | {"spec_correct_drafts_histogram": [0, 0, 192]}).acceptance
    assert (acceptance.tau, acceptance.by_position) == (3.0, (1.0, 1.0))


def test_without_a_drafter_there_is_no_acceptance():
    assert answered({}).acceptance is None


def test_new_names_are_an_error_and_not_a_zero():
    with pytest.raises(AerieError, match=r"spec_hits.*names its counts anew"):
        answered({"spec_verify_ct": 3, "spec_hits": 4})


def test_a_histogram_of_other_steps_is_refused():
    with pytest.raises(AerieError, match="a histogram of 100 verify steps"):
        answered(RATES | NEW | {"spec_correct_drafts_histogram": [20, 20]})


def test_a_stream_repeats_or_adds_its_tokens():
    events = [([5], 1), ([5, 6, 7], 3), ([8], 4)]  # two of a server that repeats, one of one that adds
    have = []
    for ids, total in events:
        answer = SGLANG.answer({"output_ids": ids, "meta_info": {"finish_reason": None, "completion_tokens": total}})
        have += answer.after(len(have))
    assert have == [5, 6, 7, 8]


def test_log_probabilities_by_token():
    answer = answered({"output_top_logprobs": [[[-0.25, 7, None], [-1.5, 9, None]]]})
    assert answer.top == {7: -0.25, 9: -1.5}


def test_an_aborted_request_is_an_error():
    meta = {"finish_reason": {"type": "abort", "message": "out of memory"}}
    assert SGLANG.answer({"output_ids": [], "meta_info": meta}).error == "out of memory"


@pytest.mark.parametrize(
    ("meta", "file"),
    [
        ({"id": "7f", "hidden_states": []}, Path("7f.safetensors")),
        ({"id": "7f", "hidden_states": [[[1.0, 2.0]], [5.0, 6.0]]}, None),  # SGLang's own way: the plugin is not there
        ({"id": "7f"}, None),
    ],
    ids=["plugin", "no-plugin", "not-asked"],
)
def test_states_are_in_the_file_of_the_request(meta, file):
    assert answered(meta).states_file == file


METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="target"} 3.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="target"} 1.0
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{model_name="target"} 0.7
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="target"} 40.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="target"} 3200.0
"""
VERIFY = """\
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="target"} 1065.0
"""


@pytest.mark.parametrize(
    ("text", "verify_steps"), [(METRICS, None), (METRICS + VERIFY, 1065)], ids=["0.5.12", "0.5.13"]
)
def test_progress_by_version(text, verify_steps):
    assert SGLANG.progress(text) == Progress(
        generated_tokens=3200, prompt_tokens=40, running=3, waiting=1, verify_steps=verify_steps
    )
    assert SGLANG.counters(text) is None  # gauges are means of the last interval


def test_questions_are_token_ids():
    question = SGLANG.question([1, 2], max_tokens=6, ignore_eos=True, top=20)
    assert question.path == "/generate"
    assert json.loads(json.dumps(question.body)) == {
        "input_ids": [1, 2],
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
        "stream": False,
        "return_logprob": True,
        "top_logprobs_num": 20,
    }
