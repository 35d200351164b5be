"""A plan in a file is applied only where it still is the plan."""

import json
from dataclasses import replace

import pytest

from aerie import saved_plan
from aerie.errors import AerieError, UsageError
from aerie.plan import HostState, Plan, unjudged
from tests.unit.findings.examples import EXAMPLES, a_host, lock_with, snapshot_of
from tests.unit.test_plan import TODAY, host_plan

DRIFT = next(example for example in EXAMPLES if example.id == "storage.readahead-low")


def plan_of(example=DRIFT, lock=None) -> Plan:
    wanted = lock_with(lock or example.lock)
    return Plan(hosts=(host_plan(a_host(**example.host), wanted, snapshot_of(example), TODAY),))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of().to_dict()))
    return path


def test_the_same_plan_holds_whatever_runs_meanwhile(file):
    (host,) = plan_of().hosts
    saved_plan.require_same(Plan(hosts=(replace(host, stops=("sglang.service: since now",)),)), file)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (plan_of(next(one for one in EXAMPLES if one.id == "engine.user-missing")), "engine.user-missing is new"),
        (plan_of(lock={"base": {"nofile": 2048}}), "has another content"),
        (Plan(hosts=(unjudged("gpu01", "x", HostState.UNREACHABLE, "no answer"),)), "unreachable now: no answer"),
    ],
    ids=["another-finding", "another-lock", "unreachable"],
)
def test_another_plan_is_stale_and_the_host_and_the_difference_are_named(now, said, file):
    with pytest.raises(AerieError, match="is stale") as raised:
        saved_plan.require_same(now, file)
    assert said in str(raised.value.seen) and str(raised.value.seen).startswith("gpu01: ")
    assert "Nothing was changed" in raised.value.remedy


def test_a_plan_of_other_hosts_and_what_is_no_plan_are_usage(file, tmp_path):
    (host,) = plan_of().hosts
    with pytest.raises(UsageError, match="a plan of gpu01"):
        saved_plan.require_same(Plan(hosts=(replace(host, host="gpu02"),)), file)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="Field required"):
        saved_plan.require_same(plan_of(), tmp_path / "x.json")
    with pytest.raises(UsageError, match="No such file"):
        saved_plan.require_same(plan_of(), tmp_path / "y.json")
