"""A step for lab hosts: does what its value `does` says."""

import subprocess
import time

from aerie.runbook.step import Context

doc = "Only tests run it."


def run(context: Context) -> dict[str, object]:
    """What `does` says: "end" at once, "wait" for FOLDER/out/go, "hide" a process and wait, "stubbornly" the same."""
    does = context.values["does"]
    if does in ("hide", "stubbornly"):
        # Another session, no environment: neither its parent, nor its group, nor a marker tells whose it is.
        ears = "trap '' TERM;" if does == "stubbornly" else ""
        script = f"{ears} while :; do sleep 0.1; done"
        hidden = subprocess.Popen(["setsid", "env", "--ignore-environment", "/usr/bin/sh", "-c", script])
        (context.out / "hidden").write_text(str(hidden.pid))
    (context.out / "ready").touch()
    while does != "end" and not (context.out / "go").exists():
        time.sleep(0.05)
    return {"answer": 42}
