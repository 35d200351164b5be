"""A real run of the judging steps over recorded measurements: jobs, journal, evidence files, report."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from aerie.errors import AerieError
from aerie.report import of_run
from aerie.runbook import runner
from tests.unit import recorded

JUDGING = ("engines", "cost", "lossless", "diagnose", "decide", "report")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The eagle3 runbook, run once, with every measuring step replaced by its recorded evidence."""
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        runbook = yaml.safe_load((recorded.RUNBOOK / "runbook.yml").read_text())
        for step in runbook["steps"]:
            if step["id"] not in JUDGING:
                step |= {"module": "tests.unit.report.replay", "environment": "controller", "disk_bytes": 0}
        folder = root / "runbooks" / "eagle3"
        shutil.copytree(recorded.RUNBOOK / "profiles", folder / "profiles")
        (folder / "runbook.yml").write_text(yaml.safe_dump(runbook))
        result = runner.run("eagle3", directory=root / "runbooks")
        assert (result.state, result.reasons) == ("done", ())
        yield runner.record(result.run)


@pytest.fixture(scope="module")
def report(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    built = of_run.build(finished, folder)
    of_run.write(built, folder)
    return built, folder


def test_it_has_the_decision_and_the_journals_times(report, finished):
    summary = report[0].summary
    assert (summary["run"], summary["profile"], summary["state"]) == (finished.summary.run, "tiny", "done")
    assert summary["decision"]["choice"] == "serve"
    assert [step["state"] for step in summary["steps"]] == ["done"] * 18
    assert all(step["wall_s"] > 0 and step["started_at"].endswith("Z") for step in summary["steps"])
    assert summary["wall_s"] > 0


def test_values_are_those_that_the_steps_were_given(report):
    values, profile = report[0].summary["values"], recorded.values()
    assert values["bench"] == profile["bench"]
    assert values["parity"] == profile["parity"]


def test_links_lead_to_files_with_the_hash_that_is_shown(report):
    built, folder = report
    for one in built.summary["evidence"].values():
        assert hashlib.sha256((folder / one["path"]).read_bytes()).hexdigest() == one["sha256"]
    linked = set(re.findall(r'href="([^"]+)"', built.page))
    assert [link for link in linked if not (folder / link).exists()] == []


def test_both_files_are_written_whole(report):
    built, folder = report
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(built.summary))
    assert (folder / "report.html").read_text() == built.page


def test_the_steps_own_page_links_to_its_inputs(finished):
    (step,) = (step for step in finished.steps if step.id == "report")
    page = (Path(step.folder) / "out" / "report.html").read_text()
    out = Path(step.folder) / "out"
    links = set(re.findall(r'href="([^"]+)"', page)) - {"report.json"}
    assert len(links) == 15
    assert [link for link in links if not (out / link).exists()] == []


def test_changed_evidence_makes_no_report(finished, tmp_path):
    (step,) = (step for step in finished.steps if step.id == "parity")
    file = Path(step.folder) / "evidence.json"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"0.0058", b"0.0001"))
    try:
        with pytest.raises(AerieError, match="evidence of step parity"):
            of_run.build(finished, tmp_path)
    finally:
        file.write_bytes(before)
