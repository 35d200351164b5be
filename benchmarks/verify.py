"""What a verification costs: every layer of one host, against the same questions asked by testinfra's default backend.

    python benchmarks/verify.py INVENTORY HOST [REPETITIONS] [LATENCIES_MS]

Ours: `./invoke verify`, that is the probe, the tests and their questions to the host itself. The peer:
benchmarks/verify_peer.py, as many requirements, by single commands over testinfra's paramiko backend in one process,
with no snapshot to share. Both start from nothing: no connection is open, Python is started anew. Hosts are never at
0 ms, so each latency of LATENCIES_MS ("0,1,20") is measured too, by benchmarks/relay.py in front of the host.

2026-11-30, two cores shared with the lab host, medians of 5, at rest (load 0.6): 0.91 s against 5.86 s at 0 ms, ratio
6.4; 1.07 s against 6.71 s at 1 ms, 6.3; 1.43 s against 10.03 s at 20 ms, 7.0. Five was wanted. Ours takes 0.97 s of
processor time, so on busy cores the ratio falls: 2.3 to 3.0 at loads of 11 to 17. Earlier figures (4.6, 4.6, 6.4) were
taken where Python was kept from writing byte code: 0.3 s of each start was compiling.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import yaml  # noqa: E402  (the line above makes aerie importable)

from aerie import inventory  # noqa: E402
from aerie.inventory import Host  # noqa: E402


def main(path: Path, name: str, repetitions: int, latencies_ms: list[float]) -> None:
    """Measure both, in turns, so that other work on the machine meets them alike."""
    # Images of containers set it for their own build. With it Python compiles aerie and its tests at every start, as on
    # nobody's own machine; what the peer runs is compiled once, when it is installed.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    host = inventory.host(name, path)
    print(f"{repetitions} repetitions, Python {platform.python_version()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for latency_ms in latencies_ms:
        with _at(host, path, latency_ms) as source:
            _measure(inventory.host(name, source), source, repetitions, latency_ms)


def _measure(host: Host, path: Path, repetitions: int, latency_ms: float) -> None:
    sides: dict[str, Callable[[], int]] = {"aerie": lambda: _ours(path, host.name), "testinfra": lambda: _peer(host)}
    # The first round also makes what is made once: byte code, the script of the probe.
    asked = {label: ask() for label, ask in sides.items()}
    wall: dict[str, list[float]] = {label: [] for label in sides}
    processor: dict[str, list[float]] = {label: [] for label in sides}
    for _ in range(repetitions):
        for label, ask in sides.items():
            started, used = time.monotonic(), _processor_s()
            ask()
            wall[label].append(time.monotonic() - started)
            processor[label].append(_processor_s() - used)
    print(f"latency {latency_ms:g} ms")
    for label, values in wall.items():
        spread = f"({min(values):.2f} to {max(values):.2f})"
        spent = f"{statistics.median(processor[label]):.2f} s of processor here"
        print(f"  {label:10} {statistics.median(values):6.2f} s {spread:18} {spent}, {asked[label]} requirements")
    ratio = statistics.median(wall["testinfra"]) / statistics.median(wall["aerie"])
    print(f"  ratio testinfra to aerie {ratio:.1f}", flush=True)


def _processor_s() -> float:
    """Processor time of all that this process started and that has ended, the host's own aside."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _at(host: Host, path: Path, latency_ms: float) -> Iterator[Path]:
    """An inventory in which the host is as far away."""
    if not latency_ms:
        yield path
        return
    argv = [sys.executable, str(CHECKOUT / "benchmarks" / "relay.py"), host.address, str(host.port or 22)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen([*argv, f"{latency_ms:g}"], **pipes) as relay:
        port = int(relay.stdout.readline())
        known = Path(folder) / "known_hosts"
        scan = ["ssh-keyscan", "-p", str(host.port or 22), host.address]
        keys = subprocess.run(scan, capture_output=True, text=True, check=True).stdout
        known.write_text(keys.replace(host.address, f"[127.0.0.1]:{port}"))
        variables = {
            **host.variables,
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={known}",
        }
        (Path(folder) / "locks").symlink_to(path.parent / "locks")
        source = Path(folder) / "hosts.yml"
        source.write_text(yaml.safe_dump({"all": {"hosts": {host.name: variables}}}))
        yield source
        relay.stdin.close()


def _ours(path: Path, name: str) -> int:
    argv = [str(CHECKOUT / "invoke"), "verify", "--host", name, "--inventory", str(path), "--json"]
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
    lines = [f"HostName {host.address}", f"User {host.user or 'root'}", f"Port {host.port or 22}", *options]
    lines += [f"IdentityFile {key}"] if key else []
    return f"Host {host.name}\n" + "".join(f"    {line}\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    words = sys.argv[3:]
    main(
        Path(sys.argv[1]).absolute(),
        sys.argv[2],
        int(words[0]) if words else 3,
        [float(word) for word in words[1].split(",")] if len(words) > 1 else [0.0],
    )
