"""A build by hand, as the job of ./invoke build runs it: python3 -m aerie.extensions.onhost REQUEST FOLDER

REQUEST is a file with the document aerie.build/1; FOLDER gets progress.json and outcome.json. The result is
printed too.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.errors import AerieError
from aerie.extensions.onhost.build import build
from aerie.extensions.onhost.request import Request, Result

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 where no wheel came of it."""
    request, folder = (Path(one) for one in arguments)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = build(Request.parse(request.read_bytes()), folder)
    except AerieError as error:
        result = Result(error=error.to_dict())
    sys.stdout.write(json.dumps(result.to_dict()) + "\n")
    return 0 if result.error is None else 1
