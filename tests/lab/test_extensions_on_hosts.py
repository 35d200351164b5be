"""CUDA extensions on two hosts with cards: wheels read before they are installed, one build for both, and faults.

The cards are stand-ins and so are the compilers; pip, the store, jobs under systemd and device code are real.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lab
from lab import LabHost
from roles import applied
from tests.unit import wheels
from tests.unit.extensions.small_package import NVCC

pytestmark = [pytest.mark.lab, pytest.mark.slow]  # environments, pip and jobs on two hosts: some minutes

SERVE = "/opt/aerie/environments/serve"
STORE = "/var/lib/aerie/wheels"
TOOLS = ["ccache", "python3-venv"]
# What a build asks of g++: its version, and objects. The real one is a hundred megabytes of packages.
GXX = """\
#!/bin/sh
case $1 in --version) echo "g++ (stand-in) 14.2.0"; exit ;; esac
while [ $# -gt 0 ]; do case $1 in -o) : >"$2"; shift ;; esac; shift; done
"""
Call = Callable[..., tuple[int, dict[str, Any]]]
Said = Callable[..., str]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {
        "torch": wheels.torch_wheel(folder),
        "good": wheels.cuda_wheel(folder),
        "other-torch": wheels.cuda_wheel(folder, local="+cu13torch2.13"),
        "other-card": wheels.cuda_wheel(folder, "rdc.so", local="+cu13torch2.14"),
        "broken": wheels.cuda_wheel(folder, name="tinybroken", broken=True),
        "source": wheels.cuda_source(folder),
    }


@pytest.fixture(scope="module")
def hosts(lab_home: Path, files: dict[str, Path]) -> tuple[LabHost, ...]:
    """Two hosts with an environment that has a torch, the files, and on lab01 compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        both = lab.up(2, gpus="healthy8")
    write_lock(both[0], files)
    return both


@pytest.fixture(scope="module")
def ready(hosts: tuple[LabHost, ...], files: dict[str, Path]) -> tuple[LabHost, ...]:
    for host in hosts:
        packages = f"apt-get update -q && apt-get install -y -q --no-install-recommends {' '.join(TOOLS)}"
        assert host.ssh(["sh", "-ec", packages], timeout_s=300).returncode == 0
        for file in files.values():
            host.ssh(["sh", "-c", f"mkdir -p /srv/files && cat >'/srv/files/{file.name}'"], stdin=file.read_bytes())
        script = f"python3 -m venv {SERVE} && {SERVE}/bin/pip install -q --no-index /srv/files/torch-*.whl"
        assert host.ssh(["sh", "-ec", script], timeout_s=300).returncode == 0
    for path, text in (("/usr/local/cuda-13.1/bin/nvcc", NVCC), ("/usr/local/bin/g++", GXX)):
        hosts[0].ssh(
            ["sh", "-c", f"mkdir -p $(dirname {path}) && cat >{path} && chmod 755 {path}"], stdin=text.encode()
        )
    hosts[0].ssh(["sh", "-c", "echo 13.1.80 >/usr/local/cuda-13.1/bin/version"])
    return hosts


def write_lock(host: LabHost, files: dict[str, Path], source_sha256: str = "") -> None:
    """The lab's lock with these packages, in the place of those that it had."""
    lock = host.inventory.parent / "locks/lab.lock.toml"

    def wheel(name: str) -> str:
        file = files[name]
        return f'{{ name = "{file.name}", uri = "/srv/files/{file.name}", sha256 = "{sha256(file)}" }}'

    def package(name: str, *more: str) -> str:
        rows = (f'name = "{name}"', 'version = "1.0"', 'environment = "serve"', f'module = "{name}"', *more)
        return "\n".join(("[[extensions.packages]]", *rows, ""))

    source = f'{{ uri = "/srv/files/{files["source"].name}", sha256 = "{source_sha256 or sha256(files["source"])}" }}'
    parts = (
        package("tinycuda", f"wheels = [{wheel('other-torch')}, {wheel('other-card')}, {wheel('good')}]"),
        package("onlyother", f"wheels = [{wheel('other-card')}]").replace(
            'module = "onlyother"', 'module = "tinycuda"'
        ),
        package("tinybroken", f"wheels = [{wheel('broken')}]"),
        package("tinybuilt", f"source = {source}"),
    )
    lock.write_text(lock.read_text().partition("\n[[extensions.packages]]")[0] + "\n" + "\n".join(parts))


def build(call: Call, host: LabHost, package: str, *more: str, on: str = "lab01") -> tuple[int, dict[str, Any]]:
    cache = {"XDG_CACHE_HOME": str(host.state.parent / "cache")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cache.items():
            patch.setenv(name, value)
        return call(host, "build", "--host", on, "--package", package, *more)


def test_the_role_can_be_checked_on_a_bare_host_and_changes_nothing_twice(hosts: tuple[LabHost, ...]) -> None:
    checked = applied(hosts[0], "extensions", check=True, extensions_tools=TOOLS)
    assert (checked.state, checked.error) == ("ok", "")
    first = applied(hosts[0], "extensions", extensions_tools=TOOLS)
    assert (first.state, first.error) == ("ok", "")
    again = applied(hosts[0], "extensions", extensions_tools=TOOLS)
    assert (again.state, again.error, again.changed) == ("ok", "", 0)


def test_only_a_wheel_for_this_torch_and_with_code_for_the_cards_is_installed(
    ready: tuple[LabHost, ...], call: Call, said: Said
) -> None:
    code, plan = build(call, ready[0], "tinycuda", "--plan", on="lab01,lab02")
    assert (code, plan["schema"], [row["action"] for row in plan["rows"]]) == (0, "aerie.build-plan/1", ["install"] * 2)
    assert [why for why in plan["rows"][0]["reasons"] if "built with torch 2.13, the environment has 2.14.1" in why]
    code, outcome = build(call, ready[0], "tinycuda", "--yes", on="lab01,lab02")
    assert code == 0, outcome
    assert {row["wheel"] for row in outcome["results"]} == {"tinycuda-1.0-py3-none-any.whl"}
    assert said(ready[1], f"{SERVE}/bin/python", "-c", "import tinycuda; print(tinycuda.is_loaded)") == "True"
    code, again = build(call, ready[0], "tinycuda", "--yes", on="lab01,lab02")
    assert (code, [row["state"] for row in again["results"]]) == (0, ["unchanged", "unchanged"])


def test_code_for_everything_but_this_card_is_caught_before_it_is_installed(
    ready: tuple[LabHost, ...], call: Call, said: Said
) -> None:
    code, outcome = build(call, ready[1], "onlyother", "--yes", on="lab02")
    (row,) = outcome["results"]
    assert (code, row["state"]) == (1, "failed")
    assert "tinycuda/ops.so has no code for sm_120: sass sm_90" in row["error"]
    code, plan = build(call, ready[1], "onlyother", "--plan", on="lab02")
    assert (code, plan["rows"][0]["action"]) == (1, "refused")  # read once, and remembered


def test_what_does_not_import_is_taken_out_again(ready: tuple[LabHost, ...], call: Call, said: Said) -> None:
    code, outcome = build(call, ready[0], "tinybroken", "--yes")
    assert code == 1 and "undefined symbol: _ZN3c10" in outcome["results"][0]["error"]
    assert "tinybroken" not in said(ready[0], f"{SERVE}/bin/pip", "list")


def test_a_source_of_another_hash_is_not_built(ready: tuple[LabHost, ...], call: Call, files: dict[str, Path]) -> None:
    write_lock(ready[0], files, source_sha256="0" * 64)
    try:
        code, outcome = build(call, ready[0], "tinybuilt", "--yes")
        assert code == 1 and f"sha256 {sha256(files['source'])}" in outcome["results"][0]["error"]
    finally:
        write_lock(ready[0], files)


def test_what_one_host_built_the_other_installs(ready: tuple[LabHost, ...], call: Call, said: Said) -> None:
    code, plan = build(call, ready[0], "tinybuilt", "--plan", on="lab01,lab02")
    assert (code, [row["action"] for row in plan["rows"]]) == (0, ["build", "after"])
    made = plan["rows"][0]["build"]
    assert made["jobs"] >= 1 and made["memory_bytes"] > 0 and made["reasons"]
    code, outcome = build(call, ready[0], "tinybuilt", "--yes", on="lab01,lab02")
    assert code == 0, outcome
    first, second = outcome["results"]
    assert first["build"]["units_compiled"] >= 1 and second["build"] is None
    assert first["wheel_sha256"] == second["wheel_sha256"]
    receipt = json.loads(said(ready[1], "sh", "-c", f"cat {STORE}/{plan['rows'][0]['build']['digest']}/receipt.json"))
    assert receipt["subject"][0]["digest"]["sha256"] == first["wheel_sha256"]
    assert (receipt["predicate"]["how"], receipt["predicate"]["host"]) == ("built", "lab01")


def test_a_poisoned_entry_of_the_store_is_refused_and_made_anew(
    ready: tuple[LabHost, ...], call: Call, said: Said
) -> None:
    wheel = said(ready[0], "sh", "-c", f"ls {STORE}/*/tinycuda-1.0-py3-none-any.whl")
    said(ready[0], "sh", "-c", f"printf x | dd of={wheel} bs=1 seek=99 conv=notrunc status=none")  # of the same size
    said(ready[0], f"{SERVE}/bin/pip", "uninstall", "-q", "-y", "tinycuda")
    code, outcome = build(call, ready[0], "tinycuda", "--yes")
    (row,) = outcome["results"]
    assert (code, row["state"]) == (0, "done"), row
    assert f"{wheel}: 'sha256 " in row["replaced"]
    assert said(ready[0], "sha256sum", wheel).split()[0] == row["wheel_sha256"]


def test_the_plan_tells_what_changed_and_the_store_that_lacks_its_wheel(
    ready: tuple[LabHost, ...], call: Call, said: Said
) -> None:
    def found() -> dict[str, str]:
        _, plan = call(ready[0], "plan", "--host", "lab01")
        return {one["id"]: one["seen"] for one in plan["hosts"][0]["findings"] if one["layer"] == "extensions"}

    assert found() == {}
    said(ready[0], "sh", "-c", f"truncate -s 7 {STORE}/*/tinybuilt-1.0-py3-none-any.whl")
    said(ready[0], "sh", "-c", f"echo | tee -a {SERVE}/lib/python3*/site-packages/tinycuda/ops.so")
    assert found() == {
        "extensions.changed": "tinycuda: tinycuda/ops.so written or gone since",
        "extensions.store-damaged": f"tinybuilt-1.0-py3-none-any.whl: 7 bytes of {size_of(ready[0], said)}",
    }


def size_of(host: LabHost, said: Said) -> int:
    receipt = json.loads(said(host, "sh", "-c", f"cat $(grep -l tinybuilt {STORE}/*/receipt.json)"))
    return int(receipt["predicate"]["size_bytes"])
