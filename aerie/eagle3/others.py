"""`python -m aerie.eagle3.others hello|join|serve SPEC`: hosts that work along, asked or started; by the controller.

It runs in the controller's environment, which alone reaches hosts, and prints one JSON document: by host the answer,
or the error in its four parts.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aerie import inventory, remote
from aerie.errors import AerieError
from aerie.inventory import Host
from aerie.runbook.step import Json

__all__ = ["main"]

_ASK_S = 180.0  # importing torch from a network file system takes its time
_AWAY = 'setsid -f "$@" </dev/null >/dev/null 2>&1'  # it goes on after the connection


def main(arguments: Sequence[str]) -> int:
    """0, whatever the hosts answered."""
    verb, spec = arguments[0], json.loads(Path(arguments[1]).read_bytes())
    source = Path(spec["inventory"]) if spec["inventory"] else None
    with ThreadPoolExecutor(max_workers=16) as pool:
        asked = [pool.submit(_one, verb, spec, name, rank, source) for rank, name in enumerate(spec["hosts"], start=1)]
        answers = {name: one.result() for name, one in zip(spec["hosts"], asked, strict=True)}
    sys.stdout.write(json.dumps(answers) + "\n")
    return 0


def _one(verb: str, spec: Mapping[str, Any], name: str, rank: int, source: Path | None) -> dict[str, Json]:
    try:
        host = inventory.host(name, source)
        agent = ["env", f"PYTHONPATH={spec['repository']}", spec["python"], "-m", "aerie.eagle3.agent", verb]
        if verb == "hello":
            return {"answer": _answer(host, [*agent, spec["folder"], spec["address"]])}
        remote.run(host, ["sh", "-c", _AWAY, "sh", *agent, spec["folder"], str(rank)])
    except AerieError as error:
        return {"error": error.to_dict()}
    return {"answer": None}


def _answer(host: Host, argv: Sequence[str]) -> dict[str, Json]:
    result = remote.run(host, argv, timeout_s=_ASK_S)
    try:
        answer: dict[str, Json] = json.loads(result.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise AerieError(
            f"host {host.name}",
            seen=result.tail or f"exit {result.exit_code}",
            expected=f"the environment and the code of this host at the same paths: {argv[2]}",
            remedy="Share the checkout and ~/.cache/aerie with it, or make them there: ./invoke runbook eagle3 "
            "--until environments with this profile.",
        ) from None
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
