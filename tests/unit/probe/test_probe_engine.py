"""Services of engines, read on a host."""

import json
import os
from collections.abc import Callable

import pytest

from aerie.probe import engine

Tree = Callable[[dict[str, str | bytes]], str]
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            unlimited            unlimited            bytes
Max open files            4096                 524288               files
Max locked memory         8388608              8388608              bytes
"""
SLOT = json.dumps({"engine": "vllm", "version": "0.33.0", "front": "127.0.0.1:8000"})
SHOWN = """\
Id=aerie-engine-tiny-blue.service
ActiveState=active
Result=success
NRestarts=2
MainPID=10

Id=aerie-front.service
ActiveState=active
"""


@pytest.fixture
def served(tree: Tree) -> Tree:
    def write(more: dict[str, str | bytes]) -> str:
        return tree({"/etc/aerie/engine/tiny/blue.json": SLOT, "/etc/aerie/engine/tiny/api-key": "secret", **more})

    return write


def test_a_service_is_its_unit_its_limits_and_its_key(served: Tree) -> None:
    root = served({"/proc/10/limits": LIMITS})
    os.chmod(f"{root}/etc/aerie/engine/tiny/api-key", 0o640)
    found = engine.service("tiny", "blue", engine.parse(SHOWN)["aerie-engine-tiny-blue.service"], "active", root)
    assert found == {
        "model": "tiny", "unit": "aerie-engine-tiny-blue.service", "engine": "vllm", "version": "0.33.0",
        "address": "127.0.0.1:8000", "active": "active", "result": "success", "restarts": 2, "front_active": "active",
        "limits": {"stack": None, "nofile": 4096, "memlock": 8388608}, "key_mode": f"640 {os.getuid()}",
    }  # fmt: skip


def test_a_unit_without_a_process_has_no_limits(served: Tree) -> None:
    found = engine.service("tiny", "blue", {"ActiveState": "failed", "MainPID": "0"}, "", served({}))
    assert (found["active"], found["limits"], found["restarts"]) == ("failed", None, 0)


@pytest.mark.parametrize("files", [{}, {"/var/lib/aerie/engine/tiny.json": '{"model": "tiny", "live": null}'}])
def test_where_nothing_is_to_be_served_nothing_is_asked(tree: Tree, files: dict[str, str | bytes]) -> None:
    assert engine.services(tree(files)) == []
