"""`invoke plan` from outside: exit codes, one document, errors before any host is reached."""

import json
from pathlib import Path

import pytest
from invoke import Collection

import tasks
from aerie.program import Program


@pytest.fixture(scope="module")
def inventory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inventory") / "hosts.yml"
    path.write_text("""\
all:
  vars: {aerie_lock: ubuntu2404-cuda131}
  hosts:
    here: {ansible_connection: local, aerie_gpus: {count: 64}}
    closed: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_user: nobody}
    open01: {ansible_host: 127.0.0.1, ansible_port: 1, aerie_lock: null}
""")
    return path


def run(*arguments: object) -> int:
    program = Program(namespace=Collection.from_module(tasks), name="aerie", binary="invoke")
    with pytest.raises(SystemExit) as end:
        program.run(["invoke", *map(str, arguments)])
    return int(end.value.code or 0)


def test_drift_is_3_and_one_document(inventory, capsys):
    # No machine that runs the tests has 64 GPUs.
    assert run("plan", "--host", "here", "--inventory", inventory, "--json") == 3
    printed = capsys.readouterr()
    assert printed.err == ""
    document = json.loads(printed.out)
    assert document["schema"] == "aerie.plan/1"
    (host,) = document["hosts"]
    missing = next(one for one in host["findings"] if one["id"] == "interconnect.gpu-missing")
    assert missing["expected"] == "64 of the inventory"
    assert host["judged"][0] == "base"


def test_a_host_that_does_not_answer_is_1_though_another_drifts(inventory, capsys):
    assert run("plan", "--host", "here,closed", "--inventory", inventory) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "closed  unreachable" in lines
    assert any("interconnect.gpu-missing" in line for line in lines)
    assert "1 unreachable" in lines[-2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "nowhere"), "nowhere"),
        (("--host", "open01"), "no lock"),
        (("--host", "here", "--fail-on", "info"), "fatal or warn"),
        (("--host", "here", "--forks", "many"), "many"),
        ((), "host"),
    ],
    ids=["unknown-host", "no-lock", "fail-on", "forks", "no-host"],
)
def test_usage_errors_are_2_and_reach_no_host(inventory, arguments, said, capsys):
    assert run("plan", *arguments, "--inventory", inventory) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err and "Traceback" not in printed.err
