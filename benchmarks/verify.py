"""What a verification costs: every layer of one host, against the same questions asked by testinfra's default backend.

    python benchmarks/verify.py INVENTORY HOST [REPETITIONS]

Ours: `aerie.verify.verify`, that is the probe, one pytest process and the questions to the host itself by OpenSSH.
The peer: benchmarks/verify_peer.py, as many requirements, by single commands over testinfra's paramiko backend in one
process, with no snapshot to share. Both start from nothing: no connection is open, Python is started anew.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie import inventory  # noqa: E402  (the line above makes it importable)
from aerie.inventory import Host  # noqa: E402


def main(path: Path, name: str, repetitions: int) -> None:
    """Measure both, in turns, so that other work on the machine meets them alike."""
    host = inventory.host(name, path)
    mine, theirs, asked = [], [], {}
    for _ in range(repetitions):
        started = time.monotonic()
        asked["aerie"] = _ours(path, name)
        mine.append(time.monotonic() - started)
        started = time.monotonic()
        asked["testinfra"] = _peer(host)
        theirs.append(time.monotonic() - started)
    print(f"{repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for label, values in (("aerie", mine), ("testinfra", theirs)):
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{label:10} {statistics.median(values):6.2f} s {spread:18} {asked[label]} requirements")
    print(f"ratio testinfra to aerie {statistics.median(theirs) / statistics.median(mine):.1f}")


def _ours(path: Path, name: str) -> int:
    argv = [sys.executable, "-m", "aerie.program", "verify", "--host", name, "--inventory", str(path), "--json"]
    argv = [str(CHECKOUT / "invoke"), *argv[3:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    host = json.loads(done.stdout)["hosts"][0]
    if host["state"] in ("unreachable", "error"):
        sys.exit(f"{name}: {host['error']}")
    counts: dict[str, int] = host["counts"]
    return sum(counts.values()) - counts["skipped"]


def _peer(host: Host) -> int:
    """Requirements that testinfra asked; host keys are checked as ours are."""
    with tempfile.TemporaryDirectory() as folder:
        config, values = Path(folder) / "ssh_config", Path(folder) / "values"
        config.write_text(_ssh_config(host))
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
        argv += ["--quiet", "--tb=line", "benchmarks/verify_peer.py", f"--hosts={host.name}", f"--ssh-config={config}"]
        environment = {**os.environ, "AERIE_PEER_VALUES": str(values)}
        done = subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout[-2000:])
        return len({line.partition(": '")[0] for line in values.read_text().splitlines()})


def _ssh_config(host: Host) -> str:
    variables = host.variables
    words = str(variables.get("ansible_ssh_common_args", "")).replace("'", "").split("-o ")
    options = [word.strip().replace("=", " ", 1) for word in words if word.strip()]
    key = variables.get("ansible_ssh_private_key_file")
    lines = [f"HostName {host.address}", f"User {host.user or 'root'}", *options]
    lines += [f"IdentityFile {key}"] if key else []
    return f"Host {host.name}\n" + "".join(f"    {line}\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3)
