"""The requirements of tests/hosts as an operator writes them with testinfra alone: one command or more per test.

Run by benchmarks/verify.py on testinfra's default backend, paramiko. Each row is the requirement of one test of ours on
a host with GPUs; what is expected is what the host has, so that both sides pass.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

Check = Callable[[Any], Any]


def out(command: str) -> Check:
    return lambda host: host.run(command).stdout.strip()


def smi(field: str) -> Check:
    return out(f"nvidia-smi --query-gpu={field} --format=csv,noheader,nounits")


def sysctl(key: str) -> Check:
    return lambda host: host.sysctl(key)


def package(name: str) -> Check:
    return lambda host: host.package(name).is_installed


def exists(path: str) -> Check:
    return lambda host: host.file(path).exists


CHECKS: dict[str, Check] = {
    "base: system": lambda host: (host.system_info.distribution, host.system_info.release, host.system_info.arch),
    "base: packages clean": out("dpkg --audit"),
    "base: apt lock": out("fuser /var/lib/dpkg/lock-frontend"),
    "base: tools": package("jq"),
    "base: sources": out("cat /etc/apt/sources.list /etc/apt/sources.list.d/*"),
    "base: stale key": out(
        "apt-key list 2>/dev/null; gpg --show-keys /usr/share/keyrings/*.gpg /etc/apt/keyrings/* 2>&1"
    ),
    "base: unattended upgrades": out("apt-config dump Unattended-Upgrade"),
    "base: needrestart": out("cat /etc/needrestart/needrestart.conf /etc/needrestart/conf.d/*"),
    "base: limits": out("ulimit -l; ulimit -n; ulimit -s"),
    "base: map count": sysctl("vm.max_map_count"),
    "base: swappiness": sysctl("vm.swappiness"),
    "base: governor": out("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"),
    "base: time": out("timedatectl show --property=NTPSynchronized"),
    "base: failed units": out("systemctl --failed --no-legend"),
    "kernel: running": out("uname -r"),
    "kernel: next": out("ls -t /boot/vmlinuz-*"),
    "kernel: headers": lambda host: host.file(f"/lib/modules/{host.check_output('uname -r')}/build").exists,
    "kernel: command line": lambda host: host.file("/proc/cmdline").content_string.split(),
    "kernel: boot loader": out("cat /etc/default/grub /etc/default/grub.d/*"),
    "kernel: nouveau loaded": out("lsmod"),
    "kernel: nouveau blacklisted": out("cat /etc/modprobe.d/* /usr/lib/modprobe.d/*"),
    "kernel: secure boot": out("mokutil --sb-state"),
    "driver: installed": package("nvidia-open"),
    "driver: loaded": exists("/proc/driver/nvidia/version"),
    "driver: package version": lambda host: host.run("dpkg-query -W 'nvidia-*' 'libnvidia-*'").stdout,
    "driver: library version": out(
        "ldconfig -p | grep libnvidia-ml; readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    ),
    "driver: loaded version": lambda host: host.file("/proc/driver/nvidia/version").content_string,
    "driver: flavour": out("modinfo -F license nvidia"),
    "driver: runfile": exists("/usr/bin/nvidia-uninstall"),
    "driver: one flavour": out("dpkg-query -W 'nvidia-dkms*' 'nvidia-kernel*'"),
    "driver: one origin": out("dpkg-query -W -f '${Package} ${Maintainer}\\n' 'nvidia-*' 'libnvidia-*'"),
    "driver: pin": out("grep -l nvidia /etc/apt/preferences.d/*"),
    "driver: module for the next kernel": out("dkms status"),
    "driver: initramfs": out("lsinitramfs /boot/initrd.img-$(uname -r) | grep nvidia"),
    "driver: repository": out("grep -rh URIs /etc/apt/sources.list.d"),
    "driver: repository key": out("grep -rh Signed-By /etc/apt/sources.list.d"),
    "driver: fabric manager": package("nvidia-fabricmanager"),
    "driver: daemon": out("systemctl show --property=ActiveState,UnitFileState nvidia-persistenced"),
    "driver: hmm now": out("cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm"),
    "driver: hmm at boot": out("grep -rh uvm_disable_hmm /etc/modprobe.d"),
    "driver: nvml": out("nvidia-smi -L"),
    "driver: every card": out("lspci -Dn -d 10de:"),
    "driver: cards that answer": smi("pci.bus_id"),
    "driver: persistence": smi("persistence_mode"),
    "driver: addressing mode": out("nvidia-smi -q | grep -i 'addressing mode'"),
    "driver: ecc": smi("ecc.mode.current"),
    "driver: ecc pending": smi("ecc.mode.pending"),
    "driver: ecc errors": smi("ecc.errors.uncorrected.aggregate.total"),
    "driver: remap pending": out("nvidia-smi -q -d ROW_REMAPPER"),
    "driver: remap failed": out("nvidia-smi -q -d ROW_REMAPPER | grep -i failure"),
    "driver: mig": smi("mig.mode.current"),
    "driver: mig pending": smi("mig.mode.pending"),
    "driver: recovery": out("nvidia-smi -q | grep -i 'recovery action'"),
    "driver: power": smi("power.limit"),
    "driver: slowdown": smi("clocks_throttle_reasons.active"),
    "driver: xid": out("journalctl -k -b --no-pager | grep Xid"),
    "interconnect: count": out("lspci -Dn -d 10de: | wc -l"),
    "interconnect: model": smi("name"),
    "interconnect: bar1": out("nvidia-smi -q -d MEMORY"),
    "interconnect: width": smi("pcie.link.width.current"),
    "interconnect: generation": smi("pcie.link.gen.max"),
    "interconnect: acs": out("lspci -vv | grep ACSCtl"),
    "interconnect: iommu": out("cat /sys/kernel/iommu_groups/*/type"),
    "interconnect: p2p": out("nvidia-smi topo -p2p r"),
    "interconnect: page faults": out("journalctl -k -b --no-pager | grep IO_PAGE_FAULT"),
    "cuda: installed": exists("/usr/local/cuda-13.1/bin/nvcc"),
    "cuda: compiler": out("/usr/local/cuda-13.1/bin/nvcc --version"),
    "cuda: packages": out("dpkg-query -W 'cuda-*-13-1' 'lib*-13-1'"),
    "cuda: in the path": lambda host: host.exists("nvcc"),
    "cuda: answers": out("nvcc --version"),
    "cuda: meta package": package("cuda"),
    "cuda: compat": out("ldconfig -p | grep libcuda"),
    "cuda: driver": smi("driver_version"),
    "python: version": out("python3 --version"),
    "python: environments": out("ls /opt/aerie/environments"),
    "python: requirements": out("sha256sum /opt/aerie/environments/*/requirements.txt"),
    "storage: folder": lambda host: host.file("/srv/aerie").is_directory,
    "storage: mount": out("findmnt --target /srv/aerie --noheadings --output TARGET"),
    "storage: space": out("df --output=avail /srv/aerie"),
    "engine: user": lambda host: host.user("aerie").exists,
    "engine: shell": out("getent passwd aerie"),
    "engine: sockets": out("ss -Hltnp"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_requirement(name: str, host: Any) -> None:
    value = CHECKS[name](host)
    with open(os.environ["AERIE_PEER_VALUES"], "a") as file:  # so that nothing is asked for nothing
        file.write(f"{name}: {value!r}\n")
    assert value is not None
