"""A controller in a process of its own, to be killed by a test: one JSON line an event, the result as the last.

python -m tests.runbook_fixture.controller '{"do": "run", "runbook": "quick", …}'
"""

import json
import sys
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.runbook import events, runner


def main(request: dict[str, Any]) -> int:
    """Run or resume as asked."""
    do = request.pop("do")
    try:
        if do == "run":
            directory = Path(request.pop("directory"))
            result = runner.run(**request, directory=directory, listener=_say)
        else:
            result = runner.resume(request["run"], listener=_say)
    except AerieError as error:
        print(json.dumps({"kind": "error", "type": type(error).__name__, "message": str(error)}))
        return error.exit_code
    print(json.dumps({"kind": "result", **result.to_dict()}))
    return result.exit_code


def _say(event: events.Event) -> None:
    print(json.dumps(event.to_dict()), flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
