"""The engines' own routers, in front of servers of one target on several hosts. Nothing here starts a process.

Each speaks its engine's words alone (tried with both in front of HTTP servers that repeat what they got, 2026-12-01):
sglang-router 0.3.2 passes /generate on whole and refuses /v1/completions with token ids; vllm-router 0.1.17 passes
/v1/completions on with kv_transfer_params and return_token_ids, and loses sampling_seed and top_logprobs_num of
/generate. Both read a request and write it anew, and pass the answer on as it came.
"""

from collections.abc import Sequence
from pathlib import Path

from aerie.engines.adapter import SERVED_NAME, Launch, adapter

__all__ = ["PACKAGES", "launch"]

PACKAGES = {"vllm": "vllm-router", "sglang": "sglang-router"}
_MODULES = {"vllm": "vllm_router.launch_router", "sglang": "sglang_router.launch_router"}
_QUIET = {"vllm": "warning", "sglang": "warn"}  # below it each request has two lines
# An operator's proxy for the world knows no servers of ours. Both routers take NO_PROXY=* for the name of a host.
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")

_FLAGS = (
    # The server with the fewest open requests, as soon as two differ. Of 100 requests a server eight times as fast got
    # 84 by vLLM's router and 88 by SGLang's; round_robin gave 50, so that the slow one decided when all is done, and so
    # did sglang-router's power_of_two, which asks servers for their load instead of counting what is open. What the
    # policy is named after never happens here: no two prompts are the same, and the servers keep no prefixes.
    *("--policy", "cache_aware", "--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0"),
    # An answer may take its time: what hangs is found by the step's progress, and a request that the router gave up
    # would be computed twice.
    *("--request-timeout-secs", "86400"),
    # A dead server's requests go to another at once. Two refused ones keep the next ones away from it, before its
    # health is asked again; a prompt that kills its server kills at most four of them.
    *("--retry-max-retries", "4"),
    *("--cb-failure-threshold", "2", "--cb-success-threshold", "1", "--cb-timeout-duration-secs", "30"),
    # A busy server answers late, and must not be taken for a dead one: 3 x 30 s.
    *("--health-check-interval-secs", "10", "--health-check-timeout-secs", "30"),
    *("--health-failure-threshold", "3", "--health-success-threshold", "1"),
)


def launch(engine: str, python: Path, workers: Sequence[str], metrics_port: int) -> Launch:
    """How to start the router of an engine in front of these servers (their URLs), on this machine alone.

    python: the interpreter of the engine's environment; metrics_port: one that is free, for the router insists on it.
    """
    variables = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"} | dict.fromkeys(_PROXIES, "")
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port))
    quiet = ("--log-level", _QUIET[engine])
    return Launch(
        program=(str(python), "-P", "-m", _MODULES[engine]),
        flags=("--worker-urls", *workers, *_FLAGS, *metrics, *quiet),
        variables=variables,
        model=SERVED_NAME,
        adapter=adapter(engine),
    )
