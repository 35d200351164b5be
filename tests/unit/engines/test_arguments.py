"""Launch arguments against the parser of an engine that is installed: a process, and a package in SGLang's place."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.engines.service import planning, serving
from aerie.engines.service.code import SERVICE as CODE
from aerie.engines.service.onhost import main, parsing
from aerie.engines.service.onhost.definition import Service
from aerie.errors import AerieError, UsageError
from tests.unit.engines.test_service import SERVICE, status

SERVER_ARGS = """
import os, pathlib
pathlib.Path(os.environ["HOME"], "cache").write_text("what an import leaves")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp-size", type=int)
"""


@pytest.fixture
def slot(tmp_path: Path) -> Callable[..., Service]:
    """Makes a service of an engine that takes --model-path and --tp-size alone."""
    package = tmp_path / "packages" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "server_args.py").write_text(SERVER_ARGS)

    def make(*flags: str, packages: Path = package.parents[1]) -> Service:
        return replace(
            SERVICE,
            engine="sglang",
            version="0.5.16",
            program=(sys.executable, "-P", "-m", "sglang.launch_server", "--model-path", "/m", *flags),
            environment={"PYTHONPATH": str(packages)},
        )

    return make


def answer(service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the host answers to the controller."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([service.to_dict()])))
    main.main(["arguments"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_host_asks_the_installed_parser(
    slot: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert answer(slot("--tp-size", "8"), monkeypatch, capsys) == {"problems": [None]}
    of_another = answer(slot("--cuda-graph-max-bs", "8"), monkeypatch, capsys)
    assert "unrecognized arguments: --cuda-graph-max-bs 8" in of_another["problems"][0]
    assert "argument --tp-size" in answer(slot("--tp-size", "all"), monkeypatch, capsys)["problems"][0]
    assert not list(tmp_path.rglob("__pycache__"))  # root asks: nothing of its own stays in the environment
    assert not list(tmp_path.rglob("cache"))


def test_an_engine_that_cannot_be_imported_is_told(
    slot: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = answer(slot(packages=tmp_path / "none"), monkeypatch, capsys)
    assert "No module named 'sglang'" in said["error"]["seen"]
    said = answer(replace(slot(), program=("/no/python", "--model-path", "/m")), monkeypatch, capsys)
    assert "/no/python" in said["error"]["seen"]


def prepared(service: Service) -> planning.Prepared:
    plan = planning.plan_of(status(), service, ())
    return planning.Prepared(plan=plan, inventory=Path(), host=SimpleNamespace(name="gpu01"), lock=None)  # type: ignore[arg-type]


def test_a_refusal_comes_before_the_slot_is_touched_and_names_flag_and_version(
    slot: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked: list[str] = []

    def ask(_host: object, arguments: list[str], *, stdin: bytes = b"", **_more: object) -> dict[str, Any]:
        asked.append(arguments[0])
        return {"problems": parsing.problems(json.loads(stdin))}

    monkeypatch.setattr(serving, "SERVICE", SimpleNamespace(ask=ask))
    monkeypatch.setattr(serving, "fill", lambda prepared: asked.append("fill"))
    with pytest.raises(UsageError, match=r"sglang 0\.5\.16.*--cuda-graph-max-bs"):
        serving.serve(prepared(slot("--cuda-graph-max-bs", "8")))
    assert asked == ["arguments"]


def test_what_the_host_could_not_ask_is_an_error(slot: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    error = AerieError("sglang's argument parser", seen="x", expected="y", remedy="z").to_dict()
    monkeypatch.setattr(serving, "SERVICE", SimpleNamespace(ask=lambda *_given, **_more: {"error": error}))
    with pytest.raises(AerieError, match="argument parser"):
        serving.check_arguments(SimpleNamespace(name="gpu01"), [slot()])  # type: ignore[arg-type]


def test_the_code_for_hosts_has_all_that_it_imports(tmp_path: Path) -> None:
    for name, content in CODE.files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path), "arguments"],
        input="[{}]",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "service document" in json.loads(done.stdout)["error"]["where"]
