"""The inventory: what is read, and what a wrong name or file is told."""

import re
from pathlib import Path

import pytest

from aerie import inventory
from aerie.errors import UsageError


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "hosts.yml"
        path.write_text(text)
        return path

    return write


def test_the_shipped_example_has_a_local_host_and_a_gpu_host():
    hosts = inventory.hosts()
    assert hosts["localhost"].is_local
    assert (hosts["gpu01"].address, hosts["gpu01"].user, hosts["gpu01"].connection) == ("192.0.2.11", "ubuntu", "ssh")


def test_group_variables_reach_hosts_of_children_and_a_hosts_own_win(written):
    path = written("""
all:
  vars: {ansible_user: everyone}
  children:
    gpu:
      vars: {ansible_connection: paramiko}
      hosts:
        a:
        b: {ansible_user: own, ansible_host: 192.0.2.1}
""")
    a, b = inventory.host("a", path), inventory.host("b", path)
    assert (a.user, a.address, a.connection) == ("everyone", "a", "paramiko")
    assert (b.user, b.address) == ("own", "192.0.2.1")


def test_a_host_in_two_groups_is_one_host(written):
    path = written("all: {children: {x: {hosts: {a: {ansible_user: me}}}, y: {hosts: {a: }}}}")
    assert [(host.name, host.user) for host in inventory.hosts(path).values()] == [("a", "me")]


def test_localhost_is_local_unless_the_inventory_says_otherwise(written):
    assert inventory.host("localhost", written("all: {hosts: {localhost: }}")).is_local
    assert not inventory.host("localhost", written("all: {hosts: {localhost: {ansible_connection: ssh}}}")).is_local


@pytest.mark.parametrize(
    ("name", "named"), [("gpu1", "gpu01"), ("localhots", "localhost"), ("zzz", "localhost, gpu01")]
)
def test_an_unknown_host_is_told_the_nearest(name, named):
    with pytest.raises(UsageError, match=named) as raised:
        inventory.host(name)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "hosts.yml:1: document: a list, expected a mapping of groups"),
        (
            "all:\n  host: {a: }",
            "hosts.yml:2: all.host: an unknown key, expected one of children, hosts, vars. Did you",
        ),
        ("all:\n  hosts: [a]", "hosts.yml:2: all.hosts: a list"),
        ("all:\n  hosts:\n    a: b", "hosts.yml:3: all.hosts.a: a str"),
        ("all:\n  hosts: {a: \n", "hosts.yml:3: 'YAML parsing failed"),
        ("all:\n  hosts: {a: , b: , a: }", "hosts.yml:2: \"YAML parsing failed: Found duplicate mapping key 'a'"),
    ],
    ids=["a-list", "misspelt-key", "hosts-as-list", "host-as-text", "no-yaml", "twice"],
)
def test_a_broken_file_is_named_with_what_is_wrong(written, text, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        inventory.hosts(written(text))


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        inventory.hosts(tmp_path / "none.yml")


def test_a_remote_host_is_refused_for_runbooks_with_the_way_out():
    inventory.require_local(inventory.host("localhost"))
    with pytest.raises(UsageError, match="Log in to gpu01"):
        inventory.require_local(inventory.host("gpu01"))
