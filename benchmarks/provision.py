"""A host that matches its lock: `provision` against the same roles by ansible-playbook, and against pyinfra.

    python benchmarks/provision.py INVENTORY HOST [REPETITIONS]

INVENTORY and HOST: a provisioned host, for example of the lab. Interleaved, so that other work meets all alike:
  aerie      ./invoke provision --yes: one probe, no play, verification
  plan       ./invoke plan: the probe alone
  ansible    the roles of playbooks/provision.yml for every layer of the host, by ansible-playbook with its defaults
  pipelined  the same, with this project's ansible.cfg
  pyinfra    the equivalent checks (packages, files, settings, account, units) written for pyinfra 3, facts by ssh
2026-11-30, a lab host on two busy cores: ansible / aerie 25.7 and pipelined / aerie 18.9 (one run, before starts were
made faster); pyinfra / aerie 1.25 (medians of 3 afterwards, 12.0 s against 9.6 s at load 16).
Prints seconds (median, range) and the ratios. pyinfra comes into an environment of its own below the user's cache.
"""

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import yaml  # noqa: E402  (the line above makes aerie importable)

from aerie import apply, inventory, lock  # noqa: E402
from aerie.layers import LAYERS  # noqa: E402
from aerie.paths import cache_dir, repository  # noqa: E402

TOOLS = Path(sys.executable).parent
PYINFRA = "pyinfra==3.10.0"


def main(source: Path, name: str, repetitions: int) -> None:
    """Measure every variant `repetitions` times, one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        variants = _variants(source, name, Path(scratch))
        for run in variants.values():
            run()  # what is made once (byte code, connections, pyinfra's own cache) is no one's merit
        seconds: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(repetitions):
            for variant, run in variants.items():
                began = time.monotonic()
                run()
                seconds[variant].append(time.monotonic() - began)
    medians = {variant: statistics.median(values) for variant, values in seconds.items()}
    for variant, values in seconds.items():
        print(f"{variant:10} {medians[variant]:6.2f} s ({min(values):.2f} to {max(values):.2f}, {len(values)} runs)")
    for variant in ("ansible", "pipelined", "pyinfra"):
        print(f"{variant} / aerie: {medians[variant] / medians['aerie']:.1f}")


def _variants(source: Path, name: str, scratch: Path) -> dict[str, Callable[[], None]]:
    host = inventory.host(name, source)
    locked = inventory.lock_of(host, None, source)
    layers = tuple(layer for layer in LAYERS if (repository() / "roles" / layer).is_dir())
    told = apply.HostInput(
        host=name,
        layers=layers,
        group="benchmark",
        group_variables=lock.role_variables(locked),
        variables={"aerie_may_reboot": False, **_left_behind(locked.name, source)},
    )
    (scratch / "hosts.yml").write_text(yaml.safe_dump(apply.inventory_of([told])))
    (scratch / "empty.cfg").write_text("")
    play = [TOOLS / "ansible-playbook", "-i", source, "-i", scratch / "hosts.yml", "--limit", name]
    play += ["--tags", "all", CHECKOUT / "playbooks" / "provision.yml"]
    given = ["--host", name, "--inventory", source]
    defaults = {"ANSIBLE_CONFIG": str(scratch / "empty.cfg"), "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles")}
    variables = host.variables
    known_hosts = _option(str(variables.get("ansible_ssh_common_args", "")), "UserKnownHostsFile")
    peer = {
        "PEER_ADDRESS": host.address,
        "PEER_USER": host.user or "root",
        "PEER_KEY": str(variables.get("ansible_ssh_private_key_file", "")),
        "PEER_KNOWN_HOSTS": known_hosts,
        "PEER_LOCK": locked.model_dump_json(by_alias=True),
    }
    deploy = CHECKOUT / "benchmarks" / "pyinfra"
    pyinfra = [_pyinfra(), "--yes", deploy / "inventory.py", deploy / "deploy.py"]
    return {
        "aerie": lambda: _run([TOOLS / "invoke", "provision", "--yes", *given], {}),
        "plan": lambda: _run([TOOLS / "invoke", "plan", *given], {}),
        "ansible": lambda: _run(play, defaults),
        "pipelined": lambda: _run(play, {"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")}),
        "pyinfra": lambda: _run(pyinfra, peer),
    }


def _left_behind(name: str, source: Path) -> dict[str, object]:
    """What the play writes on the host at its end: the host must match its lock afterwards too."""
    text = lock.path(name, inventory.folder(source)).read_text()
    receipt = {
        "lock": name,
        "lock_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "applied_at": "2026-01-01T00:00:00Z",
        "previous_lock": None,
        "layers": [],
    }
    return {"aerie_lock_text": text, "aerie_receipt": receipt}


def _option(arguments: str, name: str) -> str:
    import shlex

    words = [word.removeprefix("-o") for word in shlex.split(arguments)]
    return next((word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")), "~/.ssh/known_hosts")


def _pyinfra() -> Path:
    """pyinfra's command, installed by uv on first use."""
    folder = cache_dir() / "benchmarks" / PYINFRA.replace("==", "-")
    if not (folder / "bin" / "pyinfra").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([TOOLS / "uv", "venv", "--quiet", "--python", sys.executable, folder], {})
        _run([TOOLS / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", PYINFRA], {})
    return folder / "bin" / "pyinfra"


def _run(argv: list[str | Path], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        argv, env={**os.environ, "LC_ALL": "C.UTF-8", **environment}, cwd=CHECKOUT, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{argv[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3)
