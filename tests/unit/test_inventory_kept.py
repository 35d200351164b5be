"""The inventory kept from last time: the same answers without Ansible, and never an old one."""

from pathlib import Path

import pytest

from aerie import inventory
from aerie.errors import UsageError
from aerie.inventory import pattern

TEXT = """
all:
  children:
    gpu:
      hosts:
        gpu01: {ansible_host: 192.0.2.1, aerie_gpus: {count: 8}}
        gpu02: {ansible_port: 2222, aerie_waivers: [{finding: driver.ecc-errors, reason: why, expires: 2027-03-31}]}
    other:
      hosts:
        gpu03: {storage_path: /data}
  vars: {aerie_lock: lab}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "inventory" / "hosts.yml"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


@pytest.fixture
def no_ansible(monkeypatch: pytest.MonkeyPatch):
    """From here on Ansible is not to be asked."""

    def forbid() -> None:
        def asked(path: Path | None) -> None:
            raise AssertionError("Ansible was asked")

        monkeypatch.setattr(pattern, "open_inventory", asked)

    return forbid


@pytest.mark.parametrize(
    "words", ["all", "gpu", "gpu01", "gpu03,gpu01", "gpu[01:02]", "all,!gpu01", "gpu,&gpu02", "other", "gpu[01:03]"]
)
def test_a_kept_inventory_gives_the_same_hosts_without_ansible(path, no_ansible, words):
    inventory.hosts(path)
    before = inventory.select(words, path)
    no_ansible()
    assert inventory.select(words, path) == before


def test_a_host_that_was_not_read_yet_and_a_pattern_of_ansibles_are_asked_of_ansible(path, no_ansible):
    inventory.host("gpu01", path)
    assert [one.name for one in inventory.select("gpu*", path)] == ["gpu01", "gpu02", "gpu03"]
    assert inventory.host("gpu03", path).variables["storage_path"] == "/data"
    no_ansible()
    assert [one.name for one in inventory.select("gpu03,gpu01", path)] == ["gpu01", "gpu03"]


@pytest.mark.parametrize("error", ["gpu04", "gpu[03:04]", "nothing"])
def test_a_wrong_name_is_told_as_ever(path, error):
    with pytest.raises(UsageError) as fresh:
        inventory.select(error, path)
    inventory.hosts(path)
    with pytest.raises(UsageError) as kept:
        inventory.select(error, path)
    assert str(kept.value) == str(fresh.value)


def test_a_changed_file_is_read_anew(path):
    inventory.hosts(path)
    path.write_text(TEXT.replace("192.0.2.1", "192.0.2.9"))
    assert inventory.host("gpu01", path).address == "192.0.2.9"
    group = path.parent / "group_vars" / "gpu" / "main.yml"
    group.parent.mkdir(parents=True)
    group.write_text("ansible_user: somebody\n")
    assert inventory.host("gpu01", path).user == "somebody"
    inventory.record_lock("gpu01", "lab-next", path)
    assert inventory.host("gpu01", path).lock == "lab-next"
    (path.parent / "host_vars" / "gpu01" / "lock.yml").unlink()
    assert inventory.host("gpu01", path).lock == "lab"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('ansible_user: \'{{ lookup("env", "WHO") }}\'', "a template"),
        ("ansible_become_password: abc", "a password"),
        ("hub_token: abc", "a token"),
        ("x: !vault |\n    $ANSIBLE_VAULT;1.1;AES256\n    00", "vaulted"),
    ],
)
def test_what_may_change_or_is_secret_is_not_kept(path, tmp_path, monkeypatch, line, reason):
    monkeypatch.setenv("WHO", "first")
    variables = path.parent / "group_vars" / "all.yml"
    variables.parent.mkdir()
    variables.write_text(f"{line}\n")
    inventory.hosts(path)
    assert not list((tmp_path / "cache").rglob("*.json")), reason


def test_a_damaged_file_of_what_was_kept_is_read_anew(path, tmp_path):
    before = inventory.hosts(path)
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text(file.read_text()[:100])
    assert inventory.hosts(path) == before
    assert len(file.read_text()) > 100
