"""The inventory: what is read, and what a wrong name or file is told."""

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from aerie import inventory, lock
from aerie.errors import UsageError
from aerie.inventory import specs
from aerie.paths import repository, state_dir
from aerie.runbook.yamlfile import SpecError


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
    assert (hosts["localhost"].gpus.count, hosts["localhost"].lock) == (0, None)


def test_the_shipped_example_has_eight_hosts_of_eight_gpus_with_a_shipped_lock():
    hosts = inventory.select("gpu")
    assert [host.name for host in hosts] == [f"gpu{number:02d}" for number in range(1, 9)]
    assert {(host.lock, host.gpus.count, host.gpus.model) for host in hosts} == {
        ("ubuntu2404-cuda131", 8, "RTX PRO 6000 Blackwell")
    }
    assert lock.load(hosts[0].lock).name == hosts[0].lock


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
    ("name", "named"), [("gpu1", "gpu01"), ("localhots", "localhost"), ("zzz", "It has localhost, gpu01, gpu02")]
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


PATTERNS = """
all:
  children:
    gpu:
      hosts: {gpu01: , gpu02: , gpu03: , gpu10: }
    web:
      hosts: {web1: , web2: , gpu03: }
"""


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", "gpu01 gpu02 gpu03 gpu10 web1 web2"),
        ("gpu", "gpu01 gpu02 gpu03 gpu10"),
        ("web2,gpu01", "gpu01 web2"),
        ("web2:gpu01", "gpu01 web2"),
        ("gpu0*", "gpu01 gpu02 gpu03"),
        ("gpu[01:03]", "gpu01 gpu02 gpu03"),
        ("gpu[1:2]", "gpu02 gpu03"),  # no host is called gpu1: Ansible's slice of the group
        ("gpu[0]", "gpu01"),
        ("web[1:2]", "web1 web2"),
        ("all:!gpu[01:02]", "gpu03 gpu10 web1 web2"),
        ("gpu:&web", "gpu03"),
        ("!web", "gpu01 gpu02 gpu10"),
        ("~(gpu1|web).*", "gpu03 gpu10 web1 web2"),
    ],
)
def test_a_pattern_means_hosts_in_the_inventorys_order(written, pattern, names):
    assert [host.name for host in inventory.select(pattern, written(PATTERNS))] == names.split()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("gqu", "Did you mean gpu?"),
        ("gpu1", "Did you mean gpu10?"),
        ("web,gpu04", "'gpu04'"),
        ("all:!wbe", "Did you mean web?"),
        ("gpu[02:05]", "'gpu04, gpu05'"),
        ("gpu[7:8]", "'gpu[7:8]'"),
        ("gpu[01:02", "as many ] as ["),
        ("localhost", "It has gpu01"),
        ("web1:&web2", "a pattern that leaves a host"),
        ("@failed", "a host of this inventory that failed in the last run"),
    ],
)
def test_a_pattern_that_means_no_host_is_told_so(written, pattern, said, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        inventory.select(pattern, written(PATTERNS))
    assert raised.value.exit_code == 2


def test_ansible_says_nothing_of_its_own(written, capfd):
    with pytest.raises(UsageError):
        inventory.select("nothing*", written(PATTERNS))
    assert capfd.readouterr() == ("", "")


def test_an_ansible_cfg_of_the_operators_folder_does_not_count(tmp_path):
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = many\nhash_behaviour = merge\n")
    script = "from aerie import inventory; print(inventory.host('gpu01').address)"
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "192.0.2.11\n", "")


def test_hosts_that_failed_can_be_named(written, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = written(PATTERNS)
    inventory.record_failed(["web2", "gpu02", "gone", "web2"])
    assert json.loads((state_dir() / "hosts" / "failed.json").read_text()) == ["gone", "gpu02", "web2"]
    assert [host.name for host in inventory.select("@failed", path)] == ["gpu02", "web2"]
    assert [host.name for host in inventory.select("web:!@failed", path)] == ["gpu03", "web1"]
    inventory.record_failed([])
    with pytest.raises(UsageError, match="No such host is recorded"):
        inventory.select("@failed", path)


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_host_vars_win_over_group_vars_and_templates_are_filled_in(written, tmp_path):
    path = written("all: {children: {gpu: {hosts: {a: {number: 7}, b: }}}}")
    put(
        tmp_path,
        group_vars__all="storage_path: /all\nnet: 192.0.2",
        group_vars__gpu='storage_path: /gpu\nansible_host: "{{ net }}.{{ number | default(9) }}"\nansible_port: 2222',
        host_vars__b__main="storage_path: /b",
    )
    a, b = inventory.hosts(path).values()
    assert (a.variables["storage_path"], a.address, a.port) == ("/gpu", "192.0.2.7", 2222)
    assert (b.variables["storage_path"], b.address, b.groups) == ("/b", "192.0.2.9", ("gpu",))


def test_variables_are_plain_values_and_ansibles_magic_ones_are_not_among_them(written):
    path = written("all: {hosts: {a: {n: 1, list: [x, {y: 2.5}], day: 2027-01-02, ok: true, none: , 7: z}}}")
    variables = inventory.host("a", path).variables
    assert variables == {"n": 1, "list": ["x", {"y": 2.5}], "day": "2027-01-02", "ok": True, "none": None, "7": "z"}
    assert {type(value) for value in variables.values()} == {int, list, str, bool, type(None)}
    assert type(variables["list"][1]["y"]) is float


def test_foreign_variables_are_left_alone(written, tmp_path):
    path = written("all: {hosts: {a: }}")
    put(tmp_path, host_vars__a="other_thing: \"{{ lookup('file', '/nowhere') }}\"\ncudart: 1")
    assert inventory.host("a", path).variables["other_thing"] == "{{ lookup('file', '/nowhere') }}"


GPUS = """
aerie_lock: ubuntu2404-cuda131
aerie_gpus:
  count: 2
  model: RTX PRO 6000
  bus_ids: ["00000000:05:00.0", "0000:C6:00.0"]
  serials: ["1320000000001", "1320000000002"]
  power_limit_w: 450
aerie_waivers:
  - finding: storage.readahead-low
    reason: a network file system decides it
    expires: 2027-03-31
"""


def test_what_a_host_ought_to_have_is_read(written, tmp_path):
    path = written("all: {hosts: {a: }}")
    put(tmp_path, host_vars__a=GPUS)
    host = inventory.host("a", path)
    assert host.gpus.bus_ids == ("0000:05:00.0", "0000:c6:00.0")  # as the kernel writes them
    assert (host.lock, host.gpus.count, host.gpus.power_limit_w) == ("ubuntu2404-cuda131", 2, 450)
    (waiver,) = host.waivers
    assert (waiver.finding, waiver.expires) == ("storage.readahead-low", date(2027, 3, 31))
    assert waiver.holds_on(date(2027, 3, 31))
    assert not waiver.holds_on(date(2027, 4, 1))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("aerie_gpu: {count: 8}", 1, "aerie_gpu: an unknown variable, expected one of aerie_lock, aerie_gpus"),
        ("aerie_gpu: {count: 8}", 1, "Did you mean aerie_gpus?"),
        ("aerie_gpus: {count: '8'}", 1, "aerie_gpus.count: '8', expected integer"),
        ("aerie_gpus:\n  cuont: 8", 2, "aerie_gpus.cuont: an unknown key, expected one of bus_ids, count"),
        ("aerie_gpus:\n  count: 8\n  bus_ids: ['0000:05:00.0']", 1, "1 different bus_ids, expected none or as many"),
        ("aerie_gpus:\n  count: 1\n  bus_ids: ['05:00.0']", 3, "aerie_gpus.bus_ids[0]: '05:00.0', expected"),
        ("aerie_gpus: 8", 1, "aerie_gpus: 8, expected"),
        ("aerie_lock: 5", 1, "aerie_lock: 5, expected string"),
        ("aerie_waivers:\n  - finding: storage.free-low\n    reason: x", 2, "aerie_waivers[0].expires: nothing"),
        ("aerie_waivers:\n- {finding: storage.free-low, reason: ' ', expires: 2027-01-01}", 2, "an empty reason"),
        (
            "aerie_waivers:\n- {finding: storage.free-low, reason: x, expires: soon}",
            2,
            "aerie_waivers[0].expires: 'soon'",
        ),
        ("aerie_waivers:\n- {finding: a_b, reason: x, expires: 2027-01-01}", 2, "aerie_waivers[0].finding: 'a_b'"),
        (
            "aerie_waivers:\n- {finding: storage.fre-low, reason: x, expires: 2027-01-01}",
            2,
            "Did you mean storage.free-low",
        ),
        ("x: 1\nstorage_paht: /data", 2, "storage_paht: an unknown variable, expected a variable of the role storage."),
        ("storage_paht: /data", 1, "Did you mean storage_path?"),
        ("storage_min_free_gb: '700'", 1, "storage_min_free_gb: '700', expected integer"),
        ("storage_filesystem: btrfs", 1, "storage_filesystem: 'btrfs', expected 'ext4' or 'xfs'"),
        ("driver_version: '590'", 1, "driver_version: '590', expected"),
        ("driver_version: 590.48", 1, "driver_version: 590.48, expected string"),
        ('storage_path: "{{ nowhere }}"', 1, "storage_path: 'nowhere' is undefined, expected a template"),
        ("storage_path: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6231", 1, "storage_path: a vaulted value, expected"),
        ("a: [", 2, "expected an Ansible inventory"),
    ],
)
def test_a_wrong_variable_is_named_with_file_line_and_key(written, tmp_path, text, line, said):
    path = written("all: {hosts: {a: , b: }}")
    put(tmp_path, group_vars__all=text)
    with pytest.raises(UsageError) as raised:
        inventory.hosts(path)
    assert f"{tmp_path}/group_vars/all.yml:{line}: " in str(raised.value)
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1  # once, though two hosts have it


def test_all_wrong_variables_are_said_at_once_and_only_those_of_the_hosts_asked_for(written, tmp_path):
    path = written("all: {hosts: {a: {aerie_lock: 1}, b: {aerie_lock: 2, engine_user: 3}, c: }}")
    with pytest.raises(SpecError) as raised:
        inventory.hosts(path)
    assert [problem.key for problem in raised.value.problems] == ["aerie_lock", "aerie_lock", "engine_user"]
    assert inventory.host("c", path).lock is None


SPEC = {
    "kinds": {"type": "list", "elements": "str", "choices": ["a", "b"]},
    "table": {"type": "dict", "options": {"n": {"type": "int", "required": True}, "on": {"type": "bool"}}},
    "rows": {"type": "list", "elements": "dict", "options": {"path": {"type": "path"}}},
    "size": {"type": "float"},
    "any": {"type": "raw"},
}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kinds", ["a"], None),
        ("kinds", "a", "kinds: 'a', expected list"),
        ("kinds", ["a", "c"], "kinds: 'c', expected one of a, b"),
        ("table", {"n": 1, "on": False}, None),
        ("table", {"n": True}, "table.n: True, expected int"),
        ("table", {"on": True}, "table.n: nothing"),
        ("table", {"n": 1, "no": 1}, "table.no: an unknown key, expected one of n, on. Did you mean n?"),
        ("rows", [{"path": "/x"}, {"path": 1}], "rows[1].path: 1, expected path"),
        ("size", 1, None),
        ("size", "1", "size: '1', expected float"),
        ("any", object, None),
    ],
)
def test_a_variable_is_what_its_roles_specification_says(name, value, said):
    document = specs.Document(file="f")
    specs.check((name,), SPEC[name], value, document)
    assert "".join(str(problem).removeprefix("f:1: ") for problem in document.problems).startswith(said or "")
    assert bool(document.problems) == (said is not None)


def test_a_file_that_a_folder_hides_is_an_error(written, tmp_path):
    path = written("all: {hosts: {a: }}")
    put(tmp_path, host_vars__a="x: 1", host_vars__a__main="y: 1")
    with pytest.raises(UsageError, match=r"Ansible reads the folder only. Move it to .*host_vars/a/main\.yml"):
        inventory.hosts(path)


def test_the_lock_of_a_host_after_an_upgrade_is_written_beside_its_own_variables(written, tmp_path):
    path = written("all: {hosts: {a: , b: }, vars: {aerie_lock: old}}")
    put(tmp_path, host_vars__a__main="storage_path: /a")
    file = inventory.record_lock("a", "new", path)
    assert file == tmp_path / "host_vars" / "a" / "lock.yml"
    assert [(host.name, host.lock) for host in inventory.hosts(path).values()] == [("a", "new"), ("b", "old")]
    inventory.record_lock("a", "newer", path)
    assert inventory.host("a", path).lock == "newer"


def test_a_lock_that_would_have_no_effect_is_refused_beforehand(written, tmp_path):
    path = written("all: {hosts: {a: , b: }}")
    put(tmp_path, host_vars__a__main="x: 1\naerie_lock: mine", host_vars__b="x: 1")
    with pytest.raises(UsageError, match=r"main\.yml:2: 'aerie_lock'.*Remove it here"):
        inventory.record_lock("a", "new", path)
    with pytest.raises(UsageError, match=r"host_vars/b\.yml: 'a file'.*Move it to"):
        inventory.record_lock("b", "new", path)
    assert not (tmp_path / "host_vars" / "b").exists()


def test_other_kinds_of_inventory_are_ansibles_business(tmp_path):
    ini = tmp_path / "hosts.ini"
    ini.write_text("[gpu]\ngpu[01:03] aerie_lock=lab\n[gpu:vars]\nansible_user=me\n")
    assert [(host.name, host.user, host.lock) for host in inventory.select("gpu[02:03]", ini)] == [
        ("gpu02", "me", "lab"),
        ("gpu03", "me", "lab"),
    ]
    folder = tmp_path / "several"
    put(folder, one="all: {hosts: {a: }}", two="all: {hosts: {b: }}", group_vars__all="ansible_user: both")
    assert [(host.name, host.user) for host in inventory.select("all", folder)] == [("a", "both"), ("b", "both")]
    assert (inventory.folder(folder), inventory.folder(ini)) == (folder, tmp_path)


def test_a_file_that_no_plugin_reads_is_refused(tmp_path):
    (tmp_path / "hosts.txt").write_text("{ this is: [nothing")
    with pytest.raises(UsageError, match="expected an Ansible inventory"):
        inventory.hosts(tmp_path / "hosts.txt")
