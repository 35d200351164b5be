"""The store of wheels and the installation from it: whole or not there, refused when damaged, with real pip."""

import json
import shutil
import sys
import venv
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.extensions import contents, environment, install, receipt, store
from aerie.extensions.environment import Environment
from aerie.extensions.store import Damaged, Entry
from tests.unit import wheels

DIGEST = "c" * 64


def stored(folder: Path, wheel: Path, digest: str = DIGEST, package: str = "tinycuda") -> Entry:
    told = receipt.of_wheel(wheel, package=package, version="1.0", origin={"uri": "", "sha256": "a" * 64})
    return store.add(folder, digest, wheel, told)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return stored(tmp_path / "store", wheels.cuda_wheel(tmp_path))


def test_what_is_put_there_is_found_with_its_receipt_and_what_was_read(entry, tmp_path):
    found = store.find(tmp_path / "store", DIGEST)
    assert found == entry
    found.check()
    statement = json.loads((entry.wheel.parent / store.RECEIPT).read_bytes())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "tinycuda-1.0-py3-none-any.whl", "digest": {"sha256": entry.sha256}}]
    assert (statement["predicateType"], statement["predicate"]["how"]) == ("urn:aerie:wheel:1", "fetched")
    assert "sass sm_120" in found.contents.architectures
    assert store.find(tmp_path / "store", "d" * 64) is None
    assert store.entries(tmp_path / "nowhere") == ()


def test_a_wheel_of_another_content_than_its_receipt_is_not_taken(tmp_path):
    wheel = wheels.cuda_wheel(tmp_path)
    told = receipt.of_wheel(wheel, package="tinycuda", version="1.0", origin={"uri": "", "sha256": "a" * 64})
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match="Nothing is installed from it"):
        store.add(tmp_path / "store", DIGEST, wheel, told)
    assert list((tmp_path / "store").iterdir()) == []


def test_damage_is_told_by_size_at_once_and_by_hash_when_it_is_read(entry, tmp_path):
    data = bytearray(entry.wheel.read_bytes())
    data[99] ^= 1
    entry.wheel.write_bytes(data)
    found = store.find(tmp_path / "store", DIGEST)
    assert found is not None
    with pytest.raises(Damaged, match=f"expected {entry.sha256}"):
        found.check()
    entry.wheel.write_bytes(b"short")
    with pytest.raises(Damaged, match="'5 bytes', expected"):
        store.find(tmp_path / "store", DIGEST)
    entry.wheel.unlink()
    (broken,) = store.entries(tmp_path / "store")
    assert isinstance(broken, Damaged) and "no such file" in str(broken)


@pytest.mark.parametrize("text", ["", "{}", '{"subject": [{"name": "../x.whl"}]}', "[]"])
def test_a_receipt_that_is_none_is_damage(entry, tmp_path, text):
    (entry.wheel.parent / store.RECEIPT).write_text(text)
    with pytest.raises(Damaged, match="expected a receipt"):
        store.find(tmp_path / "store", DIGEST)


def test_a_good_entry_is_kept_and_a_damaged_one_replaced(entry, tmp_path):
    inode = entry.wheel.stat().st_ino
    assert stored(tmp_path / "store", tmp_path / entry.wheel.name).wheel.stat().st_ino == inode
    entry.wheel.write_bytes(b"short")
    again = stored(tmp_path / "store", tmp_path / entry.wheel.name)
    again.check()
    assert [path.name for path in (tmp_path / "store").iterdir()] == [DIGEST]


def test_what_is_set_aside_is_no_entry_any_more(entry, tmp_path):
    store.set_aside(tmp_path / "store", DIGEST)
    assert store.entries(tmp_path / "store") == ()
    assert len(list((tmp_path / "store").rglob("*.whl"))) == 1  # to be looked at


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A real environment with the torch that says its version."""
    folder = tmp_path_factory.mktemp("environments")
    venv.EnvBuilder(with_pip=True, symlinks=True).create(folder / "serve")
    found = environment.find("serve", folder)
    assert found is not None
    torch = wheels.torch_wheel(folder)
    assert found.run(["-m", "pip", "install", "--quiet", "--no-index", str(torch)], 100).returncode == 0
    return found


def bring(entry: Entry, made: Environment, capability: str = "12.0", module: str = "tinycuda") -> dict[str, object]:
    return install.install(entry, made, module=module, torch="2.14.1+cu130", capabilities=[capability])


def test_an_environment_says_what_wheels_are_matched_with(made, tmp_path):
    facts = made.facts()
    assert (facts["torch"], facts["cuda"], facts["cxx11_abi"]) == ("2.14.1+cu130", "13.0", True)
    assert facts["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}" and len(facts["glibc"]) == 2
    assert environment.find("nothing", made.path.parent) is None


def test_an_installation_leaves_a_record_that_later_looks_compare_with(entry, made):
    record = bring(entry, made)
    assert install.record_of(made, "tinycuda") == record
    assert made.version_of("tinycuda") == "1.0"
    library = record["libraries"]["tinycuda/ops.so"]
    held = contents.parse({"libraries": {"tinycuda/ops.so": library["code"]}, "torch": ""})
    assert contents.against(held, ["12.0"]) == ()
    assert install.changed(made, record) == []
    assert record["cross_check"] is None
    (file,) = made.path.glob("lib/python*/site-packages/tinycuda/ops.so")
    shutil.copy(file, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)
    assert install.changed(made, record) == ["tinycuda/ops.so"]


def test_what_cuobjdump_lists_otherwise_is_in_the_record_and_does_not_decide(entry, made, tmp_path):
    tool = tmp_path / "cuobjdump"
    tool.write_text("#!/bin/sh\necho 'ELF file    1: ops.1.sm_86.cubin'\n")
    tool.chmod(0o755)
    record = install.install(
        entry, made, module="tinycuda", torch="2.14.1+cu130", capabilities=["12.0"], cuobjdump=tool
    )
    assert record["cross_check"]["by"] == str(tool)
    (said,) = record["cross_check"]["differences"]
    assert said.startswith("tinycuda/ops.so: aerie reads ") and said.endswith(f"{tool} lists 1 sass sm_86")
    assert install.record_of(made, "tinycuda") == record


def test_what_has_no_code_for_the_card_is_taken_out_again(entry, made):
    with pytest.raises(AerieError, match="no code for sm_100"):
        bring(entry, made, "10.0")
    assert made.version_of("tinycuda") is None and install.record_of(made, "tinycuda") is None


def test_what_does_not_import_is_taken_out_again(made, tmp_path):
    broken = stored(
        tmp_path / "store", wheels.cuda_wheel(tmp_path, name="tinybroken", broken=True), package="tinybroken"
    )
    with pytest.raises(AerieError, match="undefined symbol: _ZN3c10"):
        bring(broken, made, module="tinybroken")
    assert made.version_of("tinybroken") is None


def test_a_damaged_wheel_is_not_installed(entry, made):
    entry.wheel.write_bytes(entry.wheel.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged):
        bring(entry, made)
