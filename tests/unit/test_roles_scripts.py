"""The small programs and templates of roles, run for real: kernels, boot loader words, apt's locks."""

import fcntl
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from jinja2 import Environment, StrictUndefined

from aerie.paths import repository

ROLES = repository() / "roles"


def module(role: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{role}_{name}", ROLES / role / "files" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


read_kernel = module("kernel", "read_kernel")
wait_for_apt = module("base", "wait_for_apt")


@pytest.mark.parametrize(
    ("words", "line", "wrong"),
    [
        (["iommu=pt"], "ro quiet iommu=pt", []),
        (["iommu=pt"], "ro quiet", ["iommu=pt"]),
        (["iommu=pt"], "ro iommu=off iommu=pt", ["iommu=pt"]),
        (["iommu=pt"], "ro amd_iommu=on iommu=pt", []),
        (["nokaslr"], "ro nokaslr", []),
        (["nokaslr"], "ro nokaslrx", ["nokaslr"]),
        (["console=tty0", "console=ttyS0"], "console=tty0 console=ttyS0", []),
    ],
    ids=["there", "missing", "contradicted", "another-key", "bare", "bare-missing", "one-key-twice"],
)
def test_words_of_the_command_line(words: list[str], line: str, wrong: list[str]) -> None:
    assert read_kernel.wrong(words, line) == wrong


@pytest.mark.parametrize(
    ("release", "series", "fits"),
    [
        ("6.8.0-31-generic", ["6.8"], True),
        ("6.80.0-1-generic", ["6.8"], False),
        ("6.17.0-20-generic", ["6.8", "6.17"], True),
        ("6.12.48+deb13-amd64", ["6.1"], False),
        ("6.12.48+deb13-amd64", [], True),
    ],
)
def test_series_of_a_release(release: str, series: list[str], fits: bool) -> None:
    assert read_kernel.is_of(release, series) is fits


def host(root: Path, *releases: str, headers: tuple[str, ...] = (), grub: str | None = None) -> Path:
    """The files of a host that boots these kernels."""
    for folder in ("boot/grub", "proc/sys/kernel", "usr/sbin", "etc/modprobe.d"):
        (root / folder).mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.8.0-31-generic\n")
    (root / "proc/cmdline").write_text("root=/dev/sda1 ro\n")
    (root / "proc/modules").write_text("nouveau 2 0 - Live 0x0\nsnd_hda 1 0 - Live 0x0\n")
    for release in releases:
        (root / f"boot/vmlinuz-{release}").touch()
        (root / f"boot/initrd.img-{release}").touch()
    for release in headers:
        (root / f"lib/modules/{release}/build").mkdir(parents=True)
    if grub is not None:
        (root / "usr/sbin/update-grub").touch()
        (root / "boot/grub/grub.cfg").write_text(grub)
    return root


WANTED = {"cmdline": ["iommu=pt"], "series": ["6.17"], "blacklist": ["nouveau"]}


def test_the_newest_kernel_boots_next(tmp_path: Path) -> None:
    grub = "menuentry {\n\tlinux\t/vmlinuz-6.17.0-20-generic root=/dev/sda1 ro iommu=pt\n}\n"
    root = host(tmp_path, "6.8.0-9-generic", "6.17.0-20-generic", "6.8.0-31-generic", "6.18.0-1-generic.old",
                headers=("6.8.0-31-generic",), grub=grub)  # fmt: skip
    state = read_kernel.read(WANTED, root)
    assert [kernel["release"] for kernel in state["installed"]] == [
        "6.8.0-9-generic",
        "6.8.0-31-generic",
        "6.17.0-20-generic",
    ]
    assert [kernel["release"] for kernel in state["installed"] if kernel["has_headers"]] == ["6.8.0-31-generic"]
    assert (state["running"], state["next"]) == ("6.8.0-31-generic", "6.17.0-20-generic")
    assert (state["is_series"], state["is_next_series"]) == (False, True)
    assert (state["cmdline_wrong"], state["next_cmdline_wrong"]) == (["iommu=pt"], [])
    assert state["loaded"] == ["nouveau"]


def test_a_container_has_no_kernel_of_its_own(tmp_path: Path) -> None:
    state = read_kernel.read(WANTED, host(tmp_path))
    assert (state["installed"], state["next"], state["has_grub"]) == ([], "6.8.0-31-generic", False)
    assert state["next_cmdline_wrong"] == []


def test_grub_that_never_wrote_its_file_lacks_every_word(tmp_path: Path) -> None:
    root = host(tmp_path, "6.8.0-31-generic", grub="")
    (root / "boot/grub/grub.cfg").unlink()
    assert read_kernel.read(WANTED, root)["next_cmdline_wrong"] == ["iommu=pt"]


def test_an_initramfs_older_than_the_blacklist_is_stale(tmp_path: Path) -> None:
    root = host(tmp_path, "6.8.0-31-generic", "6.17.0-20-generic")
    assert (
        len(read_kernel.read(WANTED, root)["stale_initramfs"]) == 2
    )  # no blacklist yet: both are older than what comes
    (root / read_kernel.BLACKLIST).touch()
    os.utime(root / read_kernel.BLACKLIST, (1000, 1000))
    os.utime(root / "boot/initrd.img-6.8.0-31-generic", (999, 999))
    assert read_kernel.read(WANTED, root)["stale_initramfs"] == ["initrd.img-6.8.0-31-generic"]


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        (("", "quiet splash"), ["iommu=pt"], "iommu=pt quiet splash"),
        (("iommu=off console=ttyS0", "quiet iommu=soft"), ["iommu=pt"], "console=ttyS0 iommu=pt quiet"),
        (("amd_iommu=on", ""), ["iommu=pt", "pci=realloc"], "amd_iommu=on iommu=pt pci=realloc "),
        (("nokaslr", ""), ["nokaslr"], "nokaslr "),
        (("console=tty0 console=ttyS0", ""), ["console=tty0", "console=ttyS0"], "console=tty0 console=ttyS0 "),
    ],
    ids=["added", "replaced", "other-keys-stay", "not-twice", "one-key-twice"],
)
def test_update_grub_reads_the_words(tmp_path: Path, before: tuple[str, str], words: list[str], after: str) -> None:
    template = (ROLES / "kernel/templates/etc/default/grub.d/90-aerie.cfg.j2").read_text()
    environment = Environment(undefined=StrictUndefined)
    environment.filters["quote"] = lambda value: f"'{value}'"
    (tmp_path / "aerie.cfg").write_text(environment.from_string(template).render(kernel_cmdline=words))
    script = f"""
        set -eu
        GRUB_CMDLINE_LINUX='{before[0]}' GRUB_CMDLINE_LINUX_DEFAULT='{before[1]}'
        . {tmp_path}/aerie.cfg
        echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"
    """
    said = subprocess.run(["sh", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True).stdout
    assert said == f"{after}\n"


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    input()
"""


def test_apts_lock_is_waited_for_and_its_holder_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock-frontend"
    assert wait_for_apt.holder(str(lock)) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        name = Path(f"/proc/{other.pid}/comm").read_text().strip()
        assert wait_for_apt.holder(str(lock)) == f"{name} (pid {other.pid}) holds {lock}"
        monkeypatch.setattr(wait_for_apt, "LOCKS", (str(lock),))
        monkeypatch.setattr(sys, "argv", ["wait_for_apt", "0"])
        assert wait_for_apt.main() == 1
        other.stdin.write("\n")
    assert wait_for_apt.holder(str(lock)) is None
    assert wait_for_apt.main() == 0


def test_a_lock_that_this_program_holds_itself_is_no_obstacle(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert wait_for_apt.holder(str(tmp_path / "lock")) is None
