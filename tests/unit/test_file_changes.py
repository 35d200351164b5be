"""Diffs of files: from what Ansible's tasks tell, to a screen that tells equal hosts once."""

import io

import pytest
from rich.console import Console

from aerie.file_changes import FileChange, FileChanges, changes_of
from aerie.report.file_changes import file_changes_view

PATH = "/etc/sysctl.d/90-aerie.conf"
DIFF = {"before": "a = 1\nb = 1\n", "after": "a = 1\nb = 2\n"}
CHANGE = "@@ -1,2 +1,2 @@\n a = 1\n-b = 1\n+b = 2"


def event(role: str = "base", **result: object) -> dict[str, object]:
    return {"host": "gpu01", "role": role, "res": result}


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (event(dest=PATH, diff=[DIFF]), [PATH]),
        (event(results=[{"dest": PATH, "diff": [DIFF]}, {"dest": "/b", "diff": []}]), [PATH]),
        (event(diff=DIFF, invocation={"dest": PATH}), [PATH]),
        (event(dest=PATH, diff=[{"before": {"mode": "0600"}, "after": {"mode": "0644"}}]), []),
        (event(dest=PATH, diff=[{"before": "x\n", "after": "x\n"}]), []),
        (event(role="", dest="/var/lib/aerie/receipt.json", diff=[DIFF]), []),
        (event(rc=0), []),
    ],
    ids=["template", "loop", "one-mapping", "mode-only", "the-same", "receipt", "command"],
)
def test_contents_of_files_are_taken_from_what_tasks_tell(data, paths):
    assert [(one.path, one.diff) for one in changes_of(data)] == [(path, CHANGE) for path in paths]


def test_hosts_with_the_same_change_are_told_once_and_a_host_that_failed_is_told():
    changes = [FileChange(host=host, path=PATH, diff=CHANGE) for host in ("gpu01", "gpu02")]
    changes.append(FileChange(host="gpu03", path="/etc/new", diff="@@ -0,0 +1 @@\n+[x]"))
    stream = io.StringIO()
    view = file_changes_view(FileChanges(changes=tuple(changes), errors={"gpu04": "Stop if: no"}))
    Console(file=stream, width=100, soft_wrap=True).print(view)
    assert stream.getvalue().splitlines() == [
        f"gpu[01:02]  {PATH}", *(f"  {line}" for line in CHANGE.splitlines()),
        "gpu03  /etc/new", "  @@ -0,0 +1 @@", "  +[x]",
        "gpu04  not all of its files are known", "  Stop if: no",
        "3 files would change; what programs write (an initramfs, packages) is not shown",
    ]  # fmt: skip
