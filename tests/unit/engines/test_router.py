"""How the engines' own routers are started; tests/engine has vLLM's at work."""

from pathlib import Path

import pytest

from aerie.engines import router

URLS = ["http://127.0.0.1:8000", "http://10.0.0.2:8000"]


@pytest.mark.parametrize(
    ("engine", "module", "path"),
    [
        ("vllm", "vllm_router.launch_router", "/v1/completions"),
        ("sglang", "sglang_router.launch_router", "/generate"),
    ],
)
def test_each_engine_has_its_own_router_which_listens_here_alone(engine: str, module: str, path: str) -> None:
    launch = router.launch(engine, Path("/e/bin/python"), URLS, 9000)
    argv = launch.argv("127.0.0.1", 8100)
    assert argv[:4] == ["/e/bin/python", "-P", "-m", module]
    assert argv[5:7] == URLS
    hosts = [argv[at + 1] for at, word in enumerate(argv) if word.endswith("host")]
    assert hosts == ["127.0.0.1", "127.0.0.1"]
    assert launch.adapter.question([3], max_tokens=1).path == path
    assert launch.gpus == 0
