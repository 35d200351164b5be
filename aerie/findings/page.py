"""docs/findings.md, made from the catalogue and the table of Xids."""

import re
from collections.abc import Iterator

from aerie.layers import LAYERS

from . import xid
from .catalogue import Row, rows
from .model import Fix

__all__ = ["text"]

HEAD = """\
# Findings

<!-- Made by ./invoke docs from aerie/findings/catalogue.toml and xid.toml; edit those. -->

A finding is one difference between a host and its lock, or one broken state. Its id never changes: search for it, waive
it, test for it. `./invoke plan --host gpu01` shows what was seen, what was expected and the remedy; `--json` has the
same as one document. A cause leaves out its consequences, so most broken states are one finding.

| severity | meaning | `plan` exits with |
|---|---|---|
| fatal | The host cannot do its work, or will lose the ability to. | 3 |
| warn | It works, slower or at a risk. | 0; 3 with `--fail-on warn` |
| info | To know. | 0 |

What mends it: **provision** runs the layer's role, **stage** and **build** are commands of those names, **reboot** is
enough because what is on disk is right, **person** is
beyond aerie. "then reboot" takes effect at the next boot; a plan has at most one reboot, whatever its reasons. While a
finding that *refuses* is a person's to mend, provision changes nothing on that host.

A lock gives a finding another severity (`[severity]`), the inventory waives one on a host until a day, with a reason:

    aerie_waivers:
      - finding: storage.readahead-low
        reason: a network file system decides it; ticket 4711
        expires: 2027-03-31

A host to which the inventory gives no GPUs (`aerie_gpus`, count 0) has no findings of driver, interconnect, cuda and
extensions.
"""

OTHERWISE = {
    Fix.PROVISION: "Where provision mends it: ",
    Fix.STAGE: "Where staging mends it: ",
    Fix.BUILD: "Where a build mends it: ",
    Fix.REBOOT: "Where a reboot is enough: ",
    Fix.PERSON: "Where a person must: ",
}
WORDS = {"when": "", "how": "", "action": "As the table below says."}


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for layer in LAYERS:
        mine = [row for row in rows().values() if row.layer == layer]
        if mine:
            parts.append(f"## {layer}\n\n" + "\n".join(line for row in mine for line in _row(row)))
    parts.append("\n".join(_xids()))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _row(row: Row) -> Iterator[str]:
    how = [f"{row.severity}", f"{row.fix}" + (", then reboot" if row.needs_reboot else "")]
    how += ["refuses"] if row.refuses else []
    yield f"### {row.id}\n"
    yield f"{row.title} ({'; '.join(how)})\n"
    for fix in Fix:
        if fix in row.remedies:
            yield f"- {'' if fix is row.fix else OTHERWISE[fix]}{_shown(row.remedies[fix])}"
    yield f"- Seen: {row.source}.\n"


def _shown(remedy: str) -> str:
    """The remedy's text with its words in capitals."""
    return re.sub(r"\{(\w+)\}", lambda word: WORDS.get(word[1], word[1].upper()), remedy)


def _xids() -> Iterator[str]:
    yield "## What to do about an Xid\n"
    yield "`driver.xid` has the severity and the remedy of the worst code since boot; a code not listed is a warning."
    yield "One that asks for a GPU reset is a warning too where NVML's own recovery action (field 230) asks for none.\n"
    yield "| code | meaning | severity | what to do |"
    yield "|---|---|---|---|"
    for action in xid.actions().values():
        for code, name in sorted(action.codes.items()):
            yield f"| {code} | {name} | {action.severity} | {_shown(action.text)} |"
