"""Environments: made once, named by content, never half-made; with real uv on a wheel of a few lines."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aerie import environments
from aerie.errors import AerieError, UsageError
from aerie.paths import repository
from tests.unit.wheels import make_wheel
from tests.waiting import PATIENCE_S


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with requirements/tiny.txt, a cache of its own, and pip told where the wheel is."""
    root = tmp_path / "a checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "tiny.txt").write_text(make_wheel(tmp_path / "wheels"))
    monkeypatch.setattr(environments, "repository", lambda: root)
    monkeypatch.setattr(environments, "PYTHON", f"{sys.version_info.major}.{sys.version_info.minor}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return root


def test_it_is_made_once_and_then_found(checkout):
    assert environments.find("tiny") is None
    made = environments.ensure("tiny")
    assert made.packages == {"tinything": "1.0"}
    assert made.path.name == f"tiny-{made.hash[:12]}"
    shown = subprocess.run([made.python, "-c", "import tinything; print(tinything.version)"], capture_output=True)
    assert shown.stdout == b"1.0\n"
    stamp = (made.path / "ready.json").stat().st_mtime_ns
    assert environments.ensure("tiny") == made == environments.find("tiny")
    assert (made.path / "ready.json").stat().st_mtime_ns == stamp


def test_another_lock_is_another_environment_and_the_old_one_stays(checkout):
    first = environments.ensure("tiny")
    lock = checkout / "requirements" / "tiny.txt"
    lock.write_text("# changed\n" + lock.read_text())
    assert environments.find("tiny") is None
    second = environments.ensure("tiny")
    assert second.path != first.path
    assert first.python.exists()


def test_an_unfinished_one_is_wiped_and_made_anew(checkout):
    made = environments.ensure("tiny")
    (made.path / "ready.json").unlink()
    (made.path / "left over").touch()
    assert environments.find("tiny") is None
    assert environments.ensure("tiny") == made
    assert not (made.path / "left over").exists()


def test_one_whose_python_was_removed_is_not_found(checkout):
    made = environments.ensure("tiny")
    made.python.unlink()
    made.python.symlink_to("/nowhere/python")
    assert environments.find("tiny") is None


def test_a_wrong_hash_is_refused_and_leaves_nothing_ready(checkout):
    (checkout / "requirements" / "tiny.txt").write_text(f"tinything==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(AerieError, match="tinything") as raised:
        environments.ensure("tiny")
    assert "hash" in str(raised.value.seen).lower()
    assert environments.find("tiny") is None


def test_a_missing_torch_is_named_with_the_remedy(checkout):
    (checkout / "requirements" / "tiny.txt").write_text(f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n")
    with pytest.raises(AerieError) as raised:
        environments.ensure("tiny")
    assert "torch" in str(raised.value.seen)
    assert "find-links" in raised.value.remedy


def test_two_at_once_make_one(checkout):
    results: list[environments.Environment] = []
    one_waits = threading.Event()

    def note(done: int, total: int, told: str) -> None:
        if told.startswith("waiting for another process"):
            one_waits.set()
        else:
            assert one_waits.wait(PATIENCE_S), told  # who makes it goes on when the other one has found it at work

    threads = [threading.Thread(target=lambda: results.append(environments.ensure("tiny", note))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * PATIENCE_S)
    assert results[0] == results[1]
    assert one_waits.is_set()


def test_ctrl_c_ends_the_installer_and_leaves_nothing_ready(checkout, tmp_path, monkeypatch):
    slow = tmp_path / "uv"
    slow.write_text(f'#!/bin/sh\nif [ "$1" = venv ]; then exit 0; fi\necho $$ > "{tmp_path}/pid"\nexec sleep 6000\n')
    slow.chmod(0o755)
    monkeypatch.setattr(environments, "_uv", lambda: str(slow))
    counts: list[tuple[int, int]] = []

    def interrupt(done: int, total: int, note: str) -> None:
        counts.append((done, total))
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        environments.ensure("tiny", interrupt)
    assert time.monotonic() - started < 600
    assert counts[-1] == (0, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert environments.find("tiny") is None


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(UsageError, match="engine") as raised:
        environments.locked_hash("motor")
    assert "train" in raised.value.expected


@pytest.mark.parametrize("name", ["engine", "train", "sglang", "train-gpu"])
def test_the_lock_is_for_the_python_that_is_asked_for(name):
    head = (repository() / "requirements" / f"{name}.txt").read_text()[:500]
    assert f"--python-version {environments.PYTHON} " in head


@pytest.mark.parametrize(
    ("settings", "arguments", "variables"),
    [
        ("", [], {}),
        ("global.find-links='/a'", ["--find-links", "/a"], {}),
        ("global.extra-index-url='\\nfile:///a\\nfile:///b'", ["--extra-index-url", "file:///a"] * 1, {}),
        (":env:.find-links='/env'\nglobal.find-links='/global'", ["--find-links", "/env"], {}),
        ("global.index-url='https://a/simple'\ninstall.index-url='https://b/simple'", ["--index-url"], {}),
        ("global.no-index='true'", ["--no-index"], {}),
        ("global.trusted-host='a b'", ["--allow-insecure-host", "a", "--allow-insecure-host", "b"], {}),
        (
            "global.cert='/c.pem'\n:env:.default-timeout='180'\nglobal.proxy='http://p:1'",
            [],
            {"SSL_CERT_FILE": "/c.pem", "UV_HTTP_TIMEOUT": "180", "ALL_PROXY": "http://p:1"},
        ),
        ("freeze.find-links='/other-command'\ngarbage", [], {}),
    ],
)
def test_pips_settings_become_uvs(settings, arguments, variables):
    seen = environments.uv_options(settings)
    assert (seen[0][: len(arguments)], seen[1]) == (arguments, variables)


def test_install_settings_win_over_global_ones_and_all_urls_are_kept():
    arguments, _ = environments.uv_options("install.index-url='https://b'\nglobal.index-url='https://a'")
    assert arguments == ["--index-url", "https://b"]
    arguments, _ = environments.uv_options("global.extra-index-url='\\nfile:///a\\nfile:///b'")
    assert arguments == ["--extra-index-url", "file:///a", "--extra-index-url", "file:///b"]


def test_the_stamp_names_its_schema(checkout):
    made = environments.ensure("tiny")
    assert json.loads((made.path / "ready.json").read_text())["schema"] == "aerie.environment/1"


def an_interpreter(path, answer):
    """A program that answers as a Python would that is asked for its packages."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    path.chmod(0o755)
    return str(path)


def installed(version=(3, 12, 3), **packages):
    return json.dumps({"python": version, "prefix": "/opt/image", "packages": packages})


def test_a_python_that_is_given_is_asked_for_its_packages():
    found = environments.given(sys.executable)
    assert (str(found.python), found.path) == (sys.executable, Path(sys.prefix))
    assert found.packages["pydantic-core"] == importlib.metadata.version("pydantic_core")


def test_one_that_is_given_is_told_by_what_is_installed_and_not_by_its_place(tmp_path):
    answers = [installed(torch="2.11.0", My_Kernel="1"), installed(**{"torch": "2.11.0", "my-kernel": "1"})]
    answers += [installed(torch="2.11.1", my_kernel="1"), installed((3, 12, 4), torch="2.11.0", my_kernel="1")]
    found = [environments.given(an_interpreter(tmp_path / f"{i}", answer)) for i, answer in enumerate(answers)]
    assert found[0].packages == {"torch": "2.11.0", "my-kernel": "1"}
    assert len({one.hash for one in found[:2]}) == 1
    assert len({one.hash for one in found}) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [(installed((3, 9, 2)), "3.9.2, expected a Python 3.11 or newer"), ("Segmentation fault", "no answer")],
    ids=["too-old", "no-python"],
)
def test_what_cannot_run_a_step_is_refused_when_it_is_given(tmp_path, answer, said):
    with pytest.raises(UsageError) as refused:
        environments.given(an_interpreter(tmp_path / "python", answer))
    assert said in str(refused.value).replace("'", "")


def test_a_given_python_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"interpreter /nowhere/python.*No such file.*absolute path"):
        environments.given("/nowhere/python")
