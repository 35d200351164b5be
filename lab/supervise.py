"""The process beside one lab host: it makes the host's namespaces and network, boots it, and boots it again on reboot.

Run by itself, with one argument (the JSON of a `Spec`), and on the standard library alone: it starts in 20 ms.
All that it makes belongs to its namespaces, so killing the processes of the host's cgroup undoes everything.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
REBOOT = 133  # how systemd-nspawn ends when the host asked for a reboot


class Spec(TypedDict):
    """cgroups: folders to join; lower: the base image; folder: the host's own, with upper/, work/ and root/.

    binds: "source:path" of folders that the host sees, read-only.
    """

    name: str
    cgroups: list[str]
    lower: str
    folder: str
    bridge: str
    veth: str
    address: str
    gateway: str
    binds: list[str]


def main(spec: Spec) -> int:
    """0 once the host is on its way, in a process that stays; there, the last exit code of its systemd-nspawn."""
    for cgroup in spec["cgroups"]:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    if os.fork():  # whoever started this sees it end now, and knows the rest to be in the cgroups
        return 0
    os.setsid()
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare is there from Python 3.12 only
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    connect(spec, outside)
    mount(spec)
    while (code := boot(spec)) == REBOOT:
        continue
    return code


def connect(spec: Spec, outside: int) -> None:
    """A cable from this namespace to the bridge in the machine's."""
    enter = ["nsenter", f"--net=/proc/self/fd/{outside}", "--"]
    veth = spec["veth"]
    made = ["ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(os.getpid())]
    subprocess.run([*enter, *made], check=True, pass_fds=(outside,))
    subprocess.run([*enter, "ip", "link", "set", veth, "master", spec["bridge"], "up"], check=True, pass_fds=(outside,))
    for argv in (
        ["link", "set", "lo", "up"],
        ["address", "add", spec["address"], "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["route", "add", "default", "via", spec["gateway"]],
    ):
        subprocess.run(["ip", *argv], check=True)


def mount(spec: Spec) -> None:
    """The host's tree: its own layer over the base image, seen in this mount namespace only."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    folder = spec["folder"]
    layers = f"lowerdir={spec['lower']},upperdir={folder}/upper,workdir={folder}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, f"{folder}/root"], check=True)
    # systemd-nspawn keeps its locks under /run/systemd; the machine may have none, and is to have none afterwards.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/systemd").mkdir()


def boot(spec: Spec) -> int:
    """One boot of the host, until it stops or asks for a reboot."""
    # A time namespace per boot: uptime starts at 0, and what compares uptimes sees a reboot (pyinfra does).
    uptime_s = int(float(Path("/proc/uptime").read_text().split()[0]))
    argv = ["unshare", "--time", f"--boottime=-{uptime_s}", "--fork", "--"]
    argv += ["systemd-nspawn", "--quiet", f"--directory={spec['folder']}/root", f"--machine={spec['name']}"]
    argv += [f"--hostname={spec['name']}", "--keep-unit", "--register=no", "--resolv-conf=off", "--timezone=off"]
    argv += [f"--network-namespace-path=/proc/{os.getpid()}/ns/net", "--capability=CAP_NET_ADMIN", "--console=pipe"]
    argv += [f"--bind-ro={bind}" for bind in spec["binds"]]
    argv += ["--kill-signal=SIGRTMIN+3", "/usr/local/sbin/lab-init"]
    # The host may set net.* values: they are those of its own network namespace.
    environment = {**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
    return subprocess.run(argv, stdin=subprocess.DEVNULL, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
