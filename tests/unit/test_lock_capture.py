"""Locks from hosts, locks as text, and what differs between two."""

import pytest

from aerie import lock
from aerie.capture import capture, requirements, write_new
from aerie.errors import AerieError, UsageError
from aerie.lock.difference import Change, changes
from aerie.lock.toml import to_toml
from tests.snapshots import GONE, healthy, snapshot_with

NAME = "ubuntu2404-cuda131"


@pytest.mark.parametrize("name", lock.names())
def test_a_lock_as_text_is_the_same_lock(name, tmp_path):
    loaded = lock.load(name)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{name}.lock.toml").write_text(to_toml(loaded, ["one", "two"]))
    assert lock.load(name, tmp_path) == loaded


def test_every_kind_of_value_survives_as_text(tmp_path):
    awkward = lock.with_variables(
        lock.load(NAME),
        {
            "base_sysctl": {"vm.max_map_count": "1048576", 'with "quotes"': "tab\there\x7f"},
            "driver_packages": {"nvidia-open": "0" * 64},
            "kernel_cmdline": [],
        },
    ).model_copy(update={"severity": {"storage.free-low": "fatal"}})
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{NAME}.lock.toml").write_text(to_toml(awkward))
    assert lock.load(NAME, tmp_path) == awkward


def test_a_host_that_matches_its_lock_captured_like_it_gives_that_lock_again():
    like = lock.load(NAME)
    captured = capture(healthy(), "again", like=like)
    different = {change.key for change in changes(like, captured.lock)}
    # The host has its limits, one state of the IOMMU, and the packages that came with those of the lock.
    assert {key.partition("[")[0] for key in different} == {"interconnect.iommu", "cuda.packages"}
    assert {(one.name, one.version) for one in like.cuda.packages} < {
        (one.name, one.version) for one in captured.lock.cuda.packages
    }
    assert captured.notes == ()


def test_a_host_captured_without_a_lock_to_go_by_tells_versions_flavour_and_toolkit():
    captured = capture(healthy(), "gpu01").lock
    assert (captured.driver.version, captured.driver.flavour) == ("590.48.01", "open")
    assert captured.driver.repository == lock.load(NAME).driver.repository
    assert (captured.cuda.release, captured.cuda.nvcc, captured.cuda.min_driver) == ("13.1.1", "13.1.115", "590.48.01")
    assert (captured.kernel.series, captured.kernel.image) == (("6.8",), "linux-image-generic")
    assert (captured.kernel.headers, captured.kernel.cmdline) == ("linux-headers-generic", ("iommu=pt",))
    assert captured.interconnect.iommu == ("pt",)


def test_what_the_host_does_not_tell_is_said_and_comes_from_elsewhere(tmp_path):
    unread = {"unknown": "needs root"}
    captured = capture(snapshot_with({"base/session_limits": unread, "interconnect/p2p": unread}), "gpu01")
    assert captured.notes == (
        "base.memlock, nofile, stack: needs root; taken from the default",
        "interconnect.p2p: needs root; taken from the default",
    )
    file = write_new(captured, tmp_path)
    assert file.read_text().startswith("# base.memlock, nofile, stack: needs root; taken from the default\n# inter")
    assert lock.load("gpu01", tmp_path) == captured.lock


def test_environments_are_captured_by_the_checkouts_requirement_files():
    known = requirements()
    sha256, path = next((sha256, path) for sha256, path in known.items() if path == "requirements/train.txt")
    made = {"name": "train", "path": "/opt/aerie/environments/train", "python": "3.12.3", "requirements_sha256": sha256}
    other = {**made, "name": "own", "requirements_sha256": "0" * 64}
    host = snapshot_with({"python/environments/train": made, "python/environments/own": other})
    captured = capture(host, "gpu01", requirements=known)
    assert [(one.name, one.requirements) for one in captured.lock.python.environments] == [("train", path)]
    assert captured.notes == (f"python.environments: own left out, no file of requirements/ has sha256 {'0' * 64}",)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"driver/loaded_version": None}, "library 590.48.01"),
        ({"driver/loaded_version": "580.95.05"}, "loaded 580.95.05, library 590.48.01"),
        ({"cuda/default_path": None}, "no toolkit with a compiler"),
        ({"cuda/toolkits/0/nvcc": None}, "no toolkit with a compiler"),
        ({"os/version_id": "22.04"}, "ubuntu-22.04"),
        ({"machine/arch": "riscv64"}, "riscv64"),
        ({"base/packages": {"unknown": "dpkg-query: exit 2"}}, "dpkg-query: exit 2"),
    ],
)
def test_a_host_that_is_no_example_is_refused(state, said):
    if "driver/loaded_version" in state and state["driver/loaded_version"] is None:
        state = {**state, "driver/loaded_flavour": None}
    with pytest.raises(AerieError, match=said) as raised:
        capture(snapshot_with(state), "gpu01")
    assert raised.value.where.startswith("lock.capture: ")


def test_a_toolkit_that_is_not_there_comes_from_the_lock_to_go_by():
    captured = capture(snapshot_with({"cuda/toolkits/0": GONE}), "gpu01", like=lock.load(NAME))
    assert captured.lock.cuda == lock.load(NAME).cuda
    assert captured.notes == (f"cuda: the host has none; taken from the lock {NAME}",)


def test_a_lock_is_never_overwritten(tmp_path):
    captured = capture(healthy(), "gpu01")
    file = write_new(captured, tmp_path)
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"gpu01\.lock\.toml, which exists"):
        write_new(capture(healthy(), "gpu01", like=lock.load(NAME)), tmp_path)
    assert file.read_bytes() == before


def test_the_difference_of_two_locks_is_every_value_that_differs():
    old, new = lock.load(NAME), lock.load("ubuntu2404-cuda131-r595")
    assert changes(old, old) == ()
    assert changes(old, new)[0] == Change(key="kernel.series", before=["6.8"], after=["6.17"])
    assert [change.key for change in changes(old, new)] == [
        "kernel.series",
        "kernel.image",
        "kernel.headers",
        "driver.version",
    ]


def test_packages_are_compared_by_name_and_one_that_is_gone_has_no_value():
    old = lock.load(NAME)
    rows = [{"name": one.name, "version": one.version} for one in old.cuda.packages]
    rows[0]["version"] = "13.1.116-1"
    new = lock.with_variables(old, {"cuda_packages": [rows[0], *rows[2:]]})
    assert changes(old, new) == (
        Change(key="cuda.packages[cuda-nvcc-13-1].version", before="13.1.115-1", after="13.1.116-1"),
        Change(key=f"cuda.packages[{rows[1]['name']}].version", before=rows[1]["version"], after=None),
    )
