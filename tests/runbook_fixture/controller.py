"""A controller in a process of its own, to be killed by a test: one JSON line an event, the result as the last.

python -m tests.runbook_fixture.controller '{"do": "run", "runbook": "quick", …}'

dies_at: the kind of the event after which it is killed, before it does anything more; grace_s: in place of GRACE_S.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.runbook import events, jobs, runner


def main(request: dict[str, Any]) -> int:
    """Run or resume as asked."""
    do, dies_at = request.pop("do"), request.pop("dies_at", None)
    jobs.GRACE_S = request.pop("grace_s", jobs.GRACE_S)

    def say(event: events.Event) -> None:
        print(json.dumps(event.to_dict()), flush=True)
        if event.kind == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        if do == "run":
            directory = Path(request.pop("directory"))
            result = runner.run(**request, directory=directory, listener=say)
        else:
            result = runner.resume(request["run"], listener=say)
    except AerieError as error:
        print(json.dumps({"kind": "error", "type": type(error).__name__, "message": str(error)}))
        return error.exit_code
    print(json.dumps({"kind": "result", **result.to_dict()}))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
