"""Policy for every test: what needs the engine or a lab may be skipped by hand, never in CI."""

import os
from collections.abc import Generator

import pytest

DEMANDING = ("engine", "lab")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of a demanding test into a failure when CI=true: green must mean that it ran."""
    report = yield
    is_demanding = any(item.get_closest_marker(name) for name in DEMANDING)
    if report.skipped and is_demanding and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: may not be skipped in CI. {reason}"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `engine` where the environments are not made; in CI such a test makes them itself."""
    if item.get_closest_marker("engine") and os.environ.get("CI") != "true":
        from aerie import environments

        missing = [name for name in ("engine", "train") if environments.find(name) is None]
        if missing:
            pytest.skip(f"environments {', '.join(missing)} are not made: ./invoke runbook eagle3 --only environments")
