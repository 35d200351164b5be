"""What the probe tells of CUDA extensions: from records and the status of files, never from what is in them."""

import json
import os
from pathlib import Path

import pytest

from aerie.probe.extensions import extensions

CODE = [[3, "sass sm_120"]]


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The environment serve with a torch, tinycuda by a record, and flash-attn by other hands."""
    folder = tmp_path / "opt/aerie/environments/serve"
    put(folder / "pyvenv.cfg")
    site = folder / "lib/python3.12/site-packages"
    put(site / "torch/version.py", "__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    for info in ("tinycuda-1.0+cu13", "flash_attn-2.8.3"):
        put(site / f"{info}.dist-info/METADATA")
    status = os.stat(put(site / "tinycuda/ops.so", "code"))
    row = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino, "code": CODE}
    plain = {**row, "code": []}
    record = {"torch": "2.14.1+cu130", "wheel_sha256": "d" * 64}
    libraries = {"tinycuda/ops.so": row, "tinycuda/gone.so": plain}
    put(folder / "aerie-extensions/tinycuda.json", json.dumps({**record, "libraries": libraries}))
    return tmp_path


def by_package(root: Path) -> dict[str, dict[str, object]]:
    return {row["package"]: row for row in extensions(str(root))["installed"]}


def test_a_bare_host_has_none(tmp_path):
    assert extensions(str(tmp_path)) == {"torch": {}, "installed": [], "store": {}}


def test_torch_is_what_its_own_file_says(home):
    assert extensions(str(home))["torch"] == {"serve": {"version": "2.14.1+cu130", "cuda": "13.0"}}


def test_a_recorded_extension_is_told_with_its_code_and_what_changed(home):
    row = by_package(home)["tinycuda"]
    assert (row["version"], row["environment"], row["torch"]) == ("1.0+cu13", "serve", "2.14.1+cu130")
    assert row["libraries"] == {"tinycuda/ops.so": CODE}
    assert row["changed"] == ["tinycuda/gone.so"]
    (library,) = home.rglob("ops.so")
    library.write_text("edoc")
    assert by_package(home)["tinycuda"]["changed"] == ["tinycuda/gone.so", "tinycuda/ops.so"]


def test_one_that_other_hands_installed_has_no_record(home):
    row = by_package(home)["flash-attn"]
    assert (row["version"], row["torch"], row["wheel_sha256"], row["libraries"]) == ("2.8.3", None, None, {})


def test_a_torn_record_proves_nothing(home):
    (record,) = home.rglob("tinycuda.json")
    record.write_text('{"torch": ')
    assert "tinycuda" in by_package(home) and by_package(home)["tinycuda"]["wheel_sha256"] is None


def test_stores_are_found_and_their_damage_is_told(home):
    told = {"package": "p", "version": "1", "how": "built", "size_bytes": 5}
    statement = json.dumps({"subject": [{"name": "p.whl"}], "predicate": told})
    stores = [home / "var/lib/aerie/wheels", home / "srv/store"]
    put(home / "var/lib/aerie/jobs/extension-p-1/spec.json", json.dumps({"store": "/srv/store"}))
    for digest, place, wheel in (("a", 0, "12345"), ("b", 1, "123"), ("c", 1, None), ("d", 0, "12345")):
        put(stores[place] / digest / "receipt.json", "{}" if digest == "d" else statement)
        if wheel is not None:
            put(stores[place] / digest / "p.whl", wheel)
    put(stores[0] / ".new-x/receipt.json", statement)
    found = extensions(str(home))["store"]
    assert {digest: row["damage"] for digest, row in found.items()} == {
        "a": "", "b": "3 bytes of 5", "c": "no wheel beside its receipt", "d": "no receipt that can be read",
    }  # fmt: skip
    assert found["a"] == {"package": "p", "version": "1", "name": "p.whl", "how": "built", "damage": ""}
