"""The documents of a build: what is wrong in one is named, and nothing is lost on the way."""

import json
from pathlib import Path

import pytest

from aerie.errors import UsageError
from aerie.extensions.onhost.enclosure import Enclosure
from aerie.extensions.onhost.request import Patch, Request, Result, Source, is_own
from aerie.extensions.onhost.toolchain import Toolchain, variables

REQUEST = Request(
    package="flash-attn",
    version="2.8.3.post2",
    source=Source(path=Path("/src/flash_attn.tar.gz"), sha256="a" * 64),
    python=Path("/env/bin/python"),
    cuda_home=Path("/usr/local/cuda-13.1"),
    architectures=("12.0",),
    jobs=2,
    nvcc_threads=1,
    budget_bytes=14_000_000_000,
    work=Path("/work"),
    out=Path("/out"),
    patches=(Patch(name="one.patch", text="--- a/x\n"),),
    options={"FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
    compiler_cache=Path("/cache"),
)


def test_a_request_comes_through_json() -> None:
    assert Request.parse(json.dumps(REQUEST.to_dict())) == REQUEST


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"jobs": 0}, "jobs"),
        ({"jobs": True}, "jobs"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"architectures": []}, "architectures"),
        ({"architectures": ["sm_120"]}, "architectures"),
        ({"work": "work"}, "work"),
        ({"source": {"path": "/a", "sha256": "12"}}, "source.sha256"),
        ({"source": {"path": "/a"}}, "source"),
        ({"source": {"path": "/a", "sha256": "a" * 64, "folder": "../a"}}, "source.folder"),
        ({"source": {"path": "/a", "sha256": "a" * 64, "folder": "/a"}}, "source.folder"),
        ({"options": {"MAX_JOBS": "128"}}, "options"),
        ({"options": {"CCACHE_DIR": "/tmp"}}, "options"),
        ({"options": {"A": 1}}, "options"),
        ({"patches": [{"name": "x"}]}, "patches[0]"),
        ({"budget": 1}, "document"),
        ({"schema": "aerie.build/2"}, "schema"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_what_is_wrong_is_named(change: dict[str, object], where: str) -> None:
    with pytest.raises(UsageError) as error:
        Request.parse(json.dumps({**REQUEST.to_dict(), **change}))
    assert where in error.value.where


def test_no_option_can_name_what_the_builder_sets_and_others_reach_the_build(tmp_path: Path) -> None:
    tools = Toolchain(
        nvcc="13.1.115", torch="2.11.0+cu130", host_compiler="/usr/bin/g++", host_version="g++ 13", identity="x",
        ccache="/usr/bin/ccache",
    )  # fmt: skip
    found = variables(REQUEST, tools, Enclosure(), tmp_path)
    assert [name for name in found if not is_own(name)] == list(REQUEST.options)
    assert found["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"


def test_a_result_comes_through_json() -> None:
    result = Result(
        wheel=Path("/out/x.whl"), wheel_sha256="b" * 64, wall_s=2.0, peak_bytes=3, limited_by="/sys/fs/cgroup/x",
        device_code={"x.so": ("sm_120",)}, notes=("A note.",),
    )  # fmt: skip
    assert Result.parse(json.dumps(result.to_dict())) == result
    assert result.failure is None


def test_a_failed_build_tells_its_error_as_one() -> None:
    told = {"where": "a.cu:3", "seen": "error", "expected": "code that compiles", "remedy": "Mend it."}
    failed = Result.parse(json.dumps(Result(error=told).to_dict()))
    assert failed.wheel is None
    assert failed.failure is not None
    assert failed.failure.to_dict() == told
