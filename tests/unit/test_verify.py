"""Verification: what hosts gave as values, as a screen, as JSON and JUnit, and how a run ends."""

import gc
import io
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from aerie import inventory, testing, verify
from aerie.errors import UsageError
from aerie.findings import Fix, Severity
from aerie.inventory import Host, Waiver
from aerie.report import verification as report
from aerie.verification import HostState, HostVerification, Outcome, Requirement, Shortfall, Verification
from tests.hosts.requirements import Compared, words_of
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import a_host, lock_with
from tests.waiting import until

ECC = {"gpus/3/ecc_uncorrected": 2}


def requirement(outcome: Outcome, severity: Severity = Severity.FATAL, host: str = "gpu01", **more) -> Requirement:
    short = Shortfall(seen="2", expected="0", remedy=f"./invoke provision --host {host} mends it.", fix=Fix.PROVISION)
    values = {"name": "it works", "test": "t::test_it_works", "layer": "driver", "finding": "driver.ecc-errors"}
    has_short = outcome in (Outcome.FAILED, Outcome.WAIVED)
    return Requirement(**values, severity=severity, outcome=outcome, shortfall=short if has_short else None, **more)


def verified(*requirements: Requirement, host: str = "gpu01", **more) -> HostVerification:
    return HostVerification(host=host, lock="a", requirements=requirements, **more)


PASSED = verified(requirement(Outcome.PASSED))
FATAL = verified(requirement(Outcome.FAILED))
WARN = verified(requirement(Outcome.FAILED, Severity.WARN))
SKIPPED = verified(requirement(Outcome.SKIPPED, reason="no GPUs"))
WAIVED = verified(requirement(Outcome.WAIVED, reason="ticket 1 (waived until 2026-12-31)"))
BROKEN = verified(requirement(Outcome.ERROR, reason="ssh: connection lost"))
DEAD = verified(error="host gpu02: no answer", is_reached=False, host="gpu02")


@pytest.mark.parametrize(
    ("hosts", "code", "code_on_warn"),
    [
        ((PASSED,), 0, 0),
        ((PASSED, SKIPPED, WAIVED), 0, 0),
        ((WARN,), 0, 3),
        ((PASSED, FATAL), 3, 3),
        ((FATAL, DEAD), 1, 1),
        ((FATAL, BROKEN), 1, 1),
    ],
    ids=["passed", "skipped-and-waived", "warn", "fatal", "unreachable-wins", "error-wins"],
)
def test_the_exit_code_is_that_of_the_worst_host(hosts, code, code_on_warn):
    found = Verification(hosts=hosts)
    assert (found.exit_code(), found.exit_code(Severity.WARN)) == (code, code_on_warn)


def test_hosts_that_are_not_verified_are_the_failed_ones():
    assert Verification(hosts=(PASSED, DEAD)).failed_hosts == ("gpu02",)
    assert [host.state for host in (PASSED, WARN, FATAL, BROKEN, DEAD)] == [
        HostState.VERIFIED, HostState.VERIFIED, HostState.FAILED, HostState.ERROR, HostState.UNREACHABLE,
    ]  # fmt: skip


def test_a_requirement_survives_json():
    for one in (*FATAL.requirements, *SKIPPED.requirements):
        assert Requirement.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize(
    ("compared", "words"),
    [
        (Compared(["libfoo"], "==", []), ("libfoo", "all is well")),
        (Compared({"GPU 3": 8}, "==", {}), ("GPU 3: 8", "all is well")),
        (Compared({"a": "1", "b": "2"}, "==", {"a": "2", "b": "2"}), ("a: 1, b: 2", "2")),
        (Compared("22.04", "in", ("24.04", "13")), ("22.04", "one of 24.04, 13")),
        (Compared(3, ">=", 4), ("3", "at least 4")),
        (Compared("a", "!=", "a"), ("a", "all is well")),
        (Compared(None, "is not", None), ("none", "all is well")),
        (Compared(False, "is", True), ("no", "yes")),
        (Compared([str(i) for i in range(9)], "==", []), ("0, 1, 2, 3, 4, 5 and 3 more", "all is well")),
    ],
)
def test_a_failed_comparison_in_words(compared, words):
    assert words_of(compared, "all is well") == words


def test_of_large_mappings_only_what_differs_is_told():
    have = {f"package{i}": "1" for i in range(9)} | {"package3": "0"}
    assert words_of(Compared(have, "==", dict.fromkeys(have, "1")), "x") == ("package3: 0", "1")


@pytest.fixture(scope="module")
def found() -> Verification:
    """gpu01 as it ought to be, gpu02 with memory errors of which nobody knows, gpu03 with errors that are waived,
    gpu04 whose waiver is over, gpu05 that refuses connections."""
    waivers = [Waiver.model_validate({"finding": "driver.ecc-errors", "reason": "ticket 4711", "expires": day})
               for day in ("2999-12-31", "2020-01-01")]  # fmt: skip
    hosts: list[Host] = [
        a_host(),
        a_host(name="gpu02"),
        a_host(name="gpu03", waivers=(waivers[0],)),
        a_host(name="gpu04", waivers=(waivers[1],)),
        a_host(name="gpu05", address="127.0.0.1", port=1),
    ]
    snapshots = {host.name: snapshot_with(ECC) for host in hosts[1:4]} | {"gpu01": snapshot_with({})}
    locks = {host.name: lock_with({}) for host in hosts}
    seen: list[str] = []
    result = verify.run(
        hosts,
        locks=locks,
        layers=["driver", "storage"],
        snapshots=snapshots,
        forks=2,
        is_live=False,
        listener=lambda host: seen.append(host.host),
    )
    assert sorted(seen) == [host.name for host in hosts]
    return result


def test_each_host_is_reported_as_itself(found):
    assert [host.state for host in found.hosts] == ["verified", "failed", "verified", "failed", "unreachable"]
    assert found.exit_code() == 1
    assert found.failed_hosts == ("gpu02", "gpu04", "gpu05")
    assert {one.layer for one in found.hosts[0].requirements} == {"driver", "storage"}


def test_a_failed_requirement_says_what_was_seen_and_what_to_do(found):
    (one,) = found.hosts[1].with_outcome(Outcome.FAILED)
    assert (one.finding, one.layer, one.severity) == ("driver.ecc-errors", "driver", Severity.FATAL)
    assert one.name == "no GPU has uncorrected memory errors"
    assert one.test == "tests/hosts/test_driver.py::test_no_gpu_has_uncorrected_memory_errors"
    assert one.shortfall is not None
    assert one.shortfall.seen == "GPU 3 (0000:65:00.0): 2"
    assert one.shortfall.remedy.startswith("Stop what uses the GPU and reboot gpu02;")
    assert one.shortfall.fix is Fix.PERSON


def test_a_waived_finding_is_waived_not_passed_and_counts_again_when_the_waiver_is_over(found):
    (waived,) = found.hosts[2].with_outcome(Outcome.WAIVED)
    assert waived.reason == "ticket 4711 (waived until 2999-12-31)"
    (over,) = found.hosts[3].with_outcome(Outcome.FAILED)
    assert over.reason == "its waiver expired on 2020-01-01"


def test_a_dead_host_is_one_line_and_nothing_else_of_it_is_run(found):
    dead = found.hosts[4]
    assert dead.requirements == () and "refuses connections" in dead.error and "\n" not in dead.error


def test_what_needs_the_host_itself_is_skipped_with_a_reason_on_a_recorded_snapshot(found):
    skipped = {one.name: one.reason for one in found.hosts[0].with_outcome(Outcome.SKIPPED)}
    assert skipped["the persistence daemon runs and starts at boot"] == (
        "asks the host itself, and this is a recorded snapshot"
    )


def screen(found: Verification) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    console.print(report.verification_view(found, "lab/hosts.yml"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_screen_tells_hosts_failures_skips_and_the_next_command(found):
    text = screen(found)
    lines = [line.rstrip() for line in text.splitlines()]
    assert "FATAL  driver.ecc-errors  gpu02: no GPU has uncorrected memory errors" in lines
    assert any(line.split()[:1] == ["gpu05"] and line.endswith("UNREACHABLE") for line in lines)
    assert "waived  gpu03: driver.ecc-errors, no GPU has uncorrected memory errors: ticket 4711" in text
    assert "skipped  asks the host itself, and this is a recorded snapshot (driver 3, storage 1; gpu[01:04])" in text
    assert lines[-2].startswith("5 hosts: 2 verified, 2 failed, 1 unreachable; ")
    assert lines[-1] == "next: ./invoke verify --host @failed --inventory lab/hosts.yml   after the remedies above"


def test_the_screen_names_provision_where_a_role_mends_it():
    assert screen(Verification(hosts=(FATAL,))).splitlines()[-1].startswith("next: ./invoke provision --host 'gpu01'")
    assert screen(Verification(hosts=(PASSED,))).splitlines()[-1].startswith("next: nothing to do")


def test_hosts_that_miss_the_same_are_told_once():
    names = [f"gpu0{number}" for number in range(1, 5)]
    hosts = tuple(verified(requirement(Outcome.FAILED, host=name), host=name) for name in names)
    text = screen(Verification(hosts=hosts))
    assert text.count("driver.ecc-errors") == 1
    assert "./invoke provision --host gpu[01:04] mends it." in text


def test_of_many_hosts_those_that_failed_are_in_the_table():
    hosts = (*(replace(PASSED, host=f"gpu{number:03}") for number in range(100)), FATAL)
    text = screen(Verification(hosts=hosts))
    assert "and 81 more" in text and "FAILED" in text.partition("and 81 more")[0]


def test_json_is_one_document_of_this_schema(found):
    document = json.loads(json.dumps(found.to_dict()))
    assert document["schema"] == "aerie.verify/1"
    assert [host["state"] for host in document["hosts"]] == ["verified", "failed", "verified", "failed", "unreachable"]
    failed = next(one for one in document["hosts"][1]["requirements"] if one["outcome"] == "failed")
    assert {"finding", "severity", "seen", "expected", "remedy", "fix", "layer", "name", "reason"} <= set(failed)
    assert document["hosts"][1]["counts"]["failed"] == 1


def test_junit_has_a_suite_per_host_with_the_host_as_its_hostname(found):
    root = ElementTree.fromstring(report.junit(found))
    assert [suite.get("hostname") for suite in root] == ["gpu01", "gpu02", "gpu03", "gpu04", "gpu05"]
    case = next(case for case in root[1] if case.find("failure") is not None)
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties["finding"] == "driver.ecc-errors" and properties["seen"] == "GPU 3 (0000:65:00.0): 2"
    assert {"expected", "remedy"} <= set(properties)
    assert [suite.get("errors") for suite in root] == ["0", "0", "0", "0", "1"]
    assert [len(suite) for suite in root] == [int(suite.get("tests", "-1")) for suite in root]


def test_an_unknown_layer_names_the_nearest():
    with pytest.raises(UsageError) as error:
        verify.run([], locks={}, layers=["drivers"])
    assert error.value.remedy == "Did you mean driver?"


def test_a_snapshot_is_of_one_host_and_a_file(tmp_path):
    with pytest.raises(UsageError, match="8 hosts"):
        verify.verify("gpu", recorded=tmp_path / "x.json")
    with pytest.raises(UsageError, match="No such file"):
        verify.verify("gpu01", recorded=tmp_path / "x.json")


def test_a_host_without_a_lock_is_a_usage_error():
    with pytest.raises(UsageError, match="no lock"):
        inventory.lock_of(a_host(lock=None))


def case_of_gpu01() -> verify.Case:
    return verify.Case(
        host=a_host(), lock=lock_with({}), snapshot=snapshot_with({}), today=date(2026, 11, 30), is_live=False
    )


def outcome_of(tmp_path: Path, text: str) -> testing.Tested:
    """What a module of tests in place of a layer's gives."""
    module = tmp_path / "test_driver.py"
    module.write_text(text)
    with testing.HostTests([module], timeout_s=600) as tests:
        (one,) = tests.results([case_of_gpu01()], forks=1)
    return one


def test_tests_that_were_begun_for_a_host_that_is_never_read_are_ended(tmp_path):
    module, pid = tmp_path / "test_driver.py", tmp_path / "pid"
    module.write_text(f"import os, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
                      "def test_x(case): pass\n")  # fmt: skip
    with testing.HostTests([module], timeout_s=60) as tests:
        tests.begin(a_host(), "a", is_live=False)
        assert gc.get_freeze_count() > 0
        until("the process of the tests", lambda: pid.exists() and pid.read_text())
    assert not Path("/proc", pid.read_text()).exists()
    assert gc.get_freeze_count() == 0  # a program that goes on frees its garbage again


def test_a_process_that_breaks_off_is_an_error_of_that_host(tmp_path):
    one = outcome_of(tmp_path, "import os\nprint('half a word', flush=True)\nos._exit(9)\n")
    assert (one.requirements, one.error) == ((), "its tests broke off: half a word")


def test_tests_that_cannot_be_collected_are_an_error_of_that_host(tmp_path):
    one = outcome_of(tmp_path, "import no_such_module\n")
    assert one.error.startswith("pytest ended with 2: ") and "no_such_module" in one.error


def test_tests_that_do_not_end_are_given_up_and_ended(tmp_path):
    module, pid = tmp_path / "test_driver.py", tmp_path / "pid"
    module.write_text(f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
                      "time.sleep(600)\n")  # fmt: skip
    with testing.HostTests([module], timeout_s=0.5) as tests:
        tests.begin(a_host(), "a", is_live=False)
        until("the process of the tests", lambda: pid.exists() and pid.read_text())
        (one,) = tests.results([case_of_gpu01()], forks=1)
    assert one.error == "its tests did not end within 0.5 s"
    assert not Path("/proc", pid.read_text()).exists()
