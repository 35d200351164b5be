"""Measures on the host that serves, with the engine's own interpreter, whose environment has what this needs.

A spec on stdin, lines of progress on stderr, and at the end one line on stdout: what was measured, or the error.
"""

import base64
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.engines.benchmark.options import told_by
from aerie.engines.benchmark.running import measure
from aerie.engines.benchmark.wire import measured_to, spec_from
from aerie.errors import AerieError

__all__ = ["main", "packed", "unpacked"]


def main(arguments: Sequence[str]) -> int:
    """Measure once."""
    told = json.load(sys.stdin)
    try:
        key = Path(told["key_file"]).read_text().strip() if told["key_file"] else ""
        spec = spec_from(told["spec"], key)
        document = measured_to(measure(spec, told_by(lambda line: sys.stderr.write(f"{line}\n"))))
    except (AerieError, OSError) as error:
        seen = error.to_dict() if isinstance(error, AerieError) else {"where": "key", "seen": str(error)}
        document = {"error": {"expected": "a measurement", "remedy": "", **seen}}
    sys.stdout.write(packed(document) + "\n")
    return 0


def packed(document: dict[str, Any]) -> str:
    """As one line of text; arrivals of tokens are many and much alike."""
    return base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()


def unpacked(line: str) -> dict[str, Any]:
    """What `packed` packed. Raises ValueError or OSError for anything else."""
    document: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(line.strip(), validate=True)))
    return document
