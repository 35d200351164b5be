"""Options, values and reports of the tests that ask whether a host is what its lock says: docs/verification.md.

pytest tests/hosts --hosts=ssh://gpu01,ssh://gpu02     hosts of the inventory, or addresses
pytest tests/hosts --hosts=ansible://gpu               a pattern of the inventory
pytest tests/hosts --snapshot FILE --lock NAME         a recorded snapshot; no host is asked
"""

import json
from collections import defaultdict
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path

import pytest
from testinfra.host import Host as Connection

from aerie.errors import AerieError
from aerie.gpus.proof import Proof
from aerie.inventory import Gpus
from aerie.lock import Lock
from aerie.snapshot import Gpu, PciGpu, Snapshot, Unknown
from aerie.testing import given_to
from aerie.verification import Outcome, Requirement
from aerie.verify import Case
from tests.hosts.connections import Connections
from tests.hosts.requirements import Compared, name_of, words_of
from tests.hosts.subjects import Subject, subjects

SUBJECTS = pytest.StashKey[list[Subject]]()
COMPARED = pytest.StashKey[Compared | None]()
CONNECTIONS = pytest.StashKey[Connections]()
FOUND = pytest.StashKey[defaultdict[str, list[Requirement]]]()
ERROR_LENGTH = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    """What says which hosts are meant, beside testinfra's --hosts, and by which locks."""
    group = parser.getgroup("aerie")
    group.addoption("--lock", help="name of the lock, instead of the inventory's aerie_lock")
    group.addoption("--inventory", type=Path, help="an Ansible inventory (inventory/hosts.yml)")
    group.addoption("--snapshot", type=Path, help="judge this recorded snapshot; no host is asked")
    group.addoption(
        "--deep", action="store_true", help="read every byte of the weights on the hosts, and prove their GPUs"
    )
    group.addoption("--results", type=Path, help="write every requirement and its outcome there, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Reads which hosts are meant. Raises UsageError where these tests are asked for and no host is."""
    config.stash[FOUND] = defaultdict(list)
    try:
        config.stash[SUBJECTS] = subjects(config)
    except AerieError as error:
        raise pytest.UsageError(str(error)) from error
    here = Path(__file__).parent
    asked = [arg for arg in config.args if Path(arg.partition("::")[0]).resolve().is_relative_to(here)]
    if asked and not config.stash[SUBJECTS]:
        raise pytest.UsageError("no host: name some by --hosts=ssh://NAME,…, or give --snapshot FILE")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begins to connect to the host of `verify`, so that its tests find the connection open."""
    connections = session.config.stash[CONNECTIONS] = Connections()
    session.config.add_cleanup(connections.close)
    given = given_to(session.config)
    if given and given.is_live and not given.host.is_local:
        connections.open_early(given.host)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs for each host, one host after the other."""
    if "_subject" in metafunc.fixturenames:
        all_ = metafunc.config.stash[SUBJECTS]
        metafunc.parametrize("_subject", all_, ids=[one.host.name for one in all_], indirect=True, scope="session")


@pytest.fixture(scope="session")
def _subject(request: pytest.FixtureRequest) -> Subject:
    subject: Subject = request.param
    return subject


@pytest.fixture
def case(_subject: Subject) -> Case:
    """Host, lock and snapshot, read once. A host that cannot be read is one error; its other tests are not run."""
    if isinstance(_subject.case, Case):
        return _subject.case
    if _subject.is_told:
        pytest.skip(f"{_subject.host.name} could not be read")
    _subject.is_told = True
    pytest.fail(str(_subject.case), pytrace=False)


@pytest.fixture
def snapshot(case: Case) -> Snapshot:
    """What the host is."""
    return case.snapshot


@pytest.fixture
def lock(case: Case) -> Lock:
    """What the host must be, the inventory's variables for it included."""
    return case.lock


@pytest.fixture
def expected_gpus(case: Case) -> Gpus:
    """The GPUs that the inventory gives the host."""
    return case.host.gpus


@pytest.fixture
def needs_gpus(expected_gpus: Gpus) -> None:
    """Skips the test on hosts that have no GPUs by the inventory."""
    if expected_gpus.count == 0:
        pytest.skip("the inventory gives the host no GPUs")


@pytest.fixture
def gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs that NVML shows; skips the test where NVML does not answer: the driver's own tests fail then."""
    if isinstance(snapshot.gpus, Unknown):
        pytest.skip(f"NVML does not answer: {snapshot.driver.nvml_error or snapshot.gpus.unknown}")
    return snapshot.gpus


@pytest.fixture
def pci_gpus(snapshot: Snapshot) -> tuple[PciGpu, ...]:
    """The GPUs on the bus."""
    if isinstance(snapshot.pci_gpus, Unknown):
        pytest.skip(f"not read: {snapshot.pci_gpus.unknown}")
    return snapshot.pci_gpus


@pytest.fixture
def proof(needs_gpus: None, case: Case, _proofs: dict[str, Proof]) -> Proof:
    """What the host's GPUs did when they were tried, once for all tests; skips the test where they may not be."""
    if not case.is_live:
        pytest.skip("asks the host itself, and this is a recorded snapshot")
    if not case.is_deep:
        pytest.skip("runs kernels on the GPUs: only with --deep")
    from aerie.gpus import proving  # here: it brings the controller's ssh client along, 60 ms that no other test needs

    if case.host.name not in _proofs:
        _proofs[case.host.name] = proving.prove(case.host, python=proving.interpreter(case.lock))
    return _proofs[case.host.name]


@pytest.fixture(scope="session")
def _proofs() -> dict[str, Proof]:
    return {}


@pytest.fixture(scope="session")
def _connections(request: pytest.FixtureRequest) -> Connections:
    return request.config.stash[CONNECTIONS]


@pytest.fixture
def host(case: Case, _connections: Connections) -> Connection:
    """The host itself, to be asked by testinfra."""
    if not case.is_live:
        pytest.skip("asks the host itself, and this is a recorded snapshot")
    return _connections.to(case.host)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> None:
    """Keeps the two sides of the comparison that failed: they are what was seen and what was expected."""
    config.stash[COMPARED] = Compared(left, op, right)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns pytest's report into a requirement: finding, seen, expected, remedy; waived where the inventory says so."""
    report = yield
    compared, item.config.stash[COMPARED] = item.config.stash.get(COMPARED, None), None
    if call.when == "teardown" or (call.when == "setup" and report.passed):
        return report
    subject: Subject = item.callspec.params["_subject"]  # type: ignore[attr-defined]
    one = _requirement(item, call, report, subject, compared)
    item.config.stash[FOUND][subject.host.name].append(one)
    item.user_properties += one.properties()  # of the teardown's report, which is when JUnit files take them
    if one.shortfall:
        report.longrepr = _text(one)
    if one.outcome is Outcome.WAIVED:
        report.outcome, report.wasxfail = "skipped", one.reason
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Gives the requirements to `verify` where it asked, and writes them where --results says."""
    file, found = session.config.getoption("--results", None), session.config.stash[FOUND]
    if file:
        file.write_text(json.dumps({host: [one.to_dict() for one in all_] for host, all_ in found.items()}))
    if given := given_to(session.config):
        given.found = found[given.host.name]


def _requirement(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    report: pytest.TestReport,
    subject: Subject,
    compared: Compared | None,
) -> Requirement:
    assert isinstance(item, pytest.Function)
    name, finding = name_of(item.originalname), item.get_closest_marker("finding").args[0]
    outcome, reason, short = Outcome.PASSED, "", None
    if report.skipped:
        outcome, reason = Outcome.SKIPPED, _skip_reason(report)
    elif report.failed and call.when == "call" and call.excinfo.errisinstance(AssertionError):
        outcome, reason = _failed_or_waived(subject, finding)
        seen, expected = words_of(compared, name) if compared else (str(call.excinfo.value).split("\n")[0], name)
        short = subject.judgement.shortfall(finding, seen, expected)
    elif report.failed:
        outcome, reason = Outcome.ERROR, " ".join(str(call.excinfo.value).split())[:ERROR_LENGTH]
    return Requirement(
        name=name,
        test=f"{item.location[0]}::{item.originalname}",
        layer=item.path.stem.removeprefix("test_"),
        finding=finding,
        severity=subject.judgement.severity(finding),
        outcome=outcome,
        reason=reason,
        shortfall=short,
        wall_s=report.duration,
    )


def _failed_or_waived(subject: Subject, finding: str) -> tuple[Outcome, str]:
    waivers = [waiver for waiver in subject.host.waivers if waiver.finding == finding]
    for waiver in waivers:
        if waiver.holds_on(subject.today):
            return Outcome.WAIVED, f"{waiver.reason} (waived until {waiver.expires})"
    return Outcome.FAILED, "".join(f"its waiver expired on {waiver.expires}" for waiver in waivers[-1:])


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _text(one: Requirement) -> str:
    """What pytest shows of a failed test."""
    assert one.shortfall is not None
    rows = [("finding", one.finding), *asdict(one.shortfall).items(), ("note", one.reason)]
    return "\n".join(f"{key:9} {value}" for key, value in rows if value and key != "fix")
