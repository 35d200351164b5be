"""The first provision of a host: `./invoke provision` against the same play by ansible-playbook with pipelining.

    python benchmarks/first_provision.py INVENTORY AERIES PLAINS

AERIES and PLAINS: comma lists of fresh hosts that want the same, as many of one as of the other (`lab.up 2 --gpus bare`
gives a pair); taken in turns. The peer gets the layers that aerie's plan found, the same variables and this project's
ansible.cfg; finding them out is not in its time. aerie's time is the whole command: plan, play, reboot, verification.

2026-11-30, one pair of lab hosts on two cores with other work (load 4 to 7): aerie 164.8 s, 1.4 s of it verification;
plain 172.3 s; ratio 1.05.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import yaml  # noqa: E402  (the line above makes aerie importable)

from aerie import apply, provision  # noqa: E402

TOOLS = Path(sys.executable).parent


def main(source: Path, aeries: list[str], plains: list[str]) -> None:
    """Measure each host once."""
    mine, verifications, theirs = [], [], []
    for name, other in zip(aeries, plains, strict=True):
        seconds, verifying = _aerie(source, name)
        mine.append(seconds)
        verifications.append(verifying)
        theirs.append(_plain(source, other))
        print(f"{name} by aerie {mine[-1]:.1f} s, {verifying:.1f} s of it verification; {other} by ansible-playbook "
              f"{theirs[-1]:.1f} s", flush=True)  # fmt: skip
    whole, peer = statistics.median(mine), statistics.median(theirs)
    print(f"ratio ansible-playbook to aerie {peer / whole:.2f}, to aerie without its verification "
          f"{peer / (whole - statistics.median(verifications)):.2f}")  # fmt: skip


def _aerie(source: Path, name: str) -> tuple[float, float]:
    began = time.monotonic()
    argv = [CHECKOUT / "invoke", "provision", "--yes", "--json", "--host", name, "--inventory", source]
    output = _run([str(word) for word in argv], {})
    seconds = time.monotonic() - began
    return seconds, json.loads(output.strip().splitlines()[-1])["verification"]["wall_s"]


def _plain(source: Path, name: str) -> float:
    prepared = provision.prepare(name, inventory_file=source)
    told = [provision.host_input(prepared, host, may_reboot=True) for host in prepared.plan.hosts]
    with tempfile.TemporaryDirectory() as scratch:
        own = Path(scratch) / "hosts.yml"
        own.write_text(yaml.safe_dump(apply.inventory_of(told)))
        argv = [TOOLS / "ansible-playbook", "-i", source, "-i", own, "--limit", name]
        began = time.monotonic()
        _run([*map(str, argv), str(CHECKOUT / "playbooks" / "provision.yml")],
             {"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "ANSIBLE_SSH_CONTROL_PATH_DIR": scratch})  # fmt: skip
        return time.monotonic() - began


def _run(argv: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        argv, env={**os.environ, "LC_ALL": "C.UTF-8", **environment}, cwd=CHECKOUT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{argv[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).absolute(), sys.argv[2].split(","), sys.argv[3].split(","))
