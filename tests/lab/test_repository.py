"""The lab's package repository behaves as NVIDIA's does with apt, dpkg and dkms, and goes wrong as repositories do."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.errors import UsageError
from lab import LabHost

pytestmark = pytest.mark.lab

Said = Callable[..., str]
URI = "http://10.77.0.1:8077/compute/cuda/repos/debian13/x86_64/"
SOURCE = f"""\
Types: deb
URIs: {URI}
Suites: /
Signed-By: /usr/share/keyrings/cuda-archive-keyring.gpg
"""
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--allow-downgrades")
# Only this source: the tests need no other archive, and are to run without one.
UPDATE = (*APT, "update", "-o", "APT::Update::Error-Mode=any", "-o", "Dir::Etc::sourcelist=sources.list.d/lab.sources",
          "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0")  # fmt: skip


@pytest.fixture(scope="module")
def bare_home(lab_home: Path) -> Iterator[None]:
    """A lab whose lab01 has cards, no driver, and the repository as a source."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        (host,) = lab.up(1, gpus="bare")
        fetch = f"curl -sSfo /usr/share/keyrings/cuda-archive-keyring.gpg {URI}cuda-archive-keyring.gpg"
        assert host.ssh(["sh", "-ec", fetch]).returncode == 0
        assert host.ssh(["tee", "/etc/apt/sources.list.d/lab.sources"], stdin=SOURCE.encode()).returncode == 0
        yield
        lab.down()


@pytest.fixture
def host(bare_home: None, own_lab: Path) -> LabHost:
    """lab01."""
    return lab.up(1)[0]


def _version(host: LabHost, package: str) -> str:
    done = host.ssh(["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Version}", package])
    return done.stdout.decode()


def _smi(host: LabHost) -> tuple[int, list[str]]:
    done = host.ssh(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return done.returncode, sorted(set(done.stdout.decode().splitlines()))


def test_a_driver_goes_in_up_and_back_by_its_pin(host: LabHost, said: Said, reboot: Callable[..., None]) -> None:
    said(host, *UPDATE)
    said(host, *APT, "install", "nvidia-driver-pinning-590.44.01", timeout_s=120)
    said(host, *APT, "install", "nvidia-open", timeout_s=120)
    assert _version(host, "nvidia-dkms-open") == "ii 590.44.01-1ubuntu1"
    assert _smi(host)[0] == 9  # not loaded before the reboot
    assert "nvidia-dkms-open" in said(host, "cat", "/run/reboot-required.pkgs")
    reboot(host)
    assert _smi(host) == (0, ["590.44.01"])
    assert "persistence_mode" in said(host, "nvidia-smi", "--query-gpu=persistence_mode", "--format=csv")
    assert set(said(host, "nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader").split()) == {"Enabled"}
    assert said(host, "modinfo", "-F", "license", "nvidia") == "Dual MIT/GPL"

    said(host, *APT, "install", "nvidia-driver-pinning-590.48.01", timeout_s=120)
    assert _version(host, "nvidia-driver-pinning-590.44.01")[:2] in ("", "un", "rc")
    said(host, *APT, "dist-upgrade", timeout_s=120)
    assert _version(host, "libnvidia-compute") == "ii 590.48.01-1ubuntu1"
    assert _smi(host)[0] == 18  # library and module differ
    reboot(host)
    assert _smi(host) == (0, ["590.48.01"])

    said(host, *APT, "install", "nvidia-driver-pinning-590.44.01", timeout_s=120)
    said(host, *APT, "dist-upgrade", timeout_s=120)
    reboot(host)
    assert _smi(host) == (0, ["590.44.01"])


def test_a_module_that_does_not_build_leaves_packages_half_configured(host: LabHost, said: Said) -> None:
    said(host, *UPDATE)
    said(host, *APT, "install", "nvidia-driver-pinning-590.48.01", timeout_s=120)
    said(host, "touch", "/etc/lab/dkms-fail")
    done = host.ssh([*APT, "dist-upgrade"], timeout_s=120)
    assert b"Bad return status for module build" in done.stdout + done.stderr
    assert _version(host, "nvidia-dkms-open").startswith("iF ")
    assert "vm_flags_set" in said(host, "cat", "/var/lib/dkms/nvidia/590.48.01/build/make.log")
    said(host, "rm", "/etc/lab/dkms-fail")
    said(host, "dpkg", "--configure", "-a", timeout_s=120)
    assert said(host, "dpkg", "--audit") == ""
    assert "nvidia/590.48.01" in said(host, "dkms", "status")


def test_a_driver_that_builds_and_does_not_load_shows_after_the_reboot(
    host: LabHost, said: Said, reboot: Callable[..., None]
) -> None:
    said(host, *UPDATE)
    said(host, *APT, "install", "nvidia-driver-pinning-595.10.02", timeout_s=120)
    said(host, *APT, "install", "nvidia-open", timeout_s=120)
    said(host, *APT, "dist-upgrade", timeout_s=120)
    assert "nvidia/595.10.02" in said(host, "dkms", "status")
    reboot(host)
    assert _smi(host)[0] == 9


def test_both_flavours_exclude_each_other_and_580_has_its_suffix(host: LabHost, said: Said) -> None:
    said(host, *UPDATE)
    said(host, *APT, "install", "nvidia-open", timeout_s=120)
    said(host, *APT, "install", "cuda-drivers", timeout_s=120)
    assert _version(host, "nvidia-open")[:2] != "ii"
    assert said(host, "modinfo", "-F", "license", "nvidia") == "NVIDIA"
    said(host, *APT, "install", "nvidia-open-580", timeout_s=120)
    assert _version(host, "nvidia-dkms-580-open") == "ii 580.105.08-1ubuntu1"
    assert said(host, "modinfo", "-F", "version", "nvidia") == "580.105.08"
    absent = host.ssh(["apt-cache", "show", "nvidia-open-590"])
    assert absent.returncode == 100


def test_the_toolkit_tells_its_full_version_and_default(host: LabHost, said: Said) -> None:
    said(host, *UPDATE)
    said(host, *APT, "install", "cuda-toolkit-13-1=13.1.1-1", timeout_s=120)
    assert "release 13.1, V13.1.115" in said(host, "/usr/local/cuda/bin/nvcc", "--version")
    said(host, *APT, "install", "cuda-toolkit-13-1=13.1.0-1", timeout_s=120)
    # Its parts are wanted in this version or a newer one: going back by the metapackage changes nothing.
    assert "V13.1.115" in said(host, "/usr/local/cuda/bin/nvcc", "--version")


BROKEN: list[tuple[str, tuple[str, ...]]] = [
    ("gone", ("Could not connect", "Connection failed", "Unable to connect")),
    ("bad-hash", ("Hash Sum mismatch", "unexpected size")),
    ("rotated-key", ("Missing key", "NO_PUBKEY")),
]


@pytest.mark.parametrize(("mode", "words"), BROKEN, ids=[row[0] for row in BROKEN])
def test_apt_refuses_a_repository_that_went_wrong(mode: str, words: tuple[str, ...], host: LabHost, said: Said) -> None:
    host.ssh(["sh", "-c", "rm -rf /var/lib/apt/lists/*10.77*"])
    lab.repository_mode(mode)
    try:
        done = host.ssh([*UPDATE], timeout_s=120)
    finally:
        lab.repository_mode("normal")
    told = (done.stdout + done.stderr).decode()
    assert done.returncode != 0
    assert any(word in told for word in words), told
    said(host, *UPDATE)


def test_a_stale_index_names_packages_that_are_not_there(host: LabHost, said: Said) -> None:
    said(host, *UPDATE)
    said(host, "apt-get", "clean")
    lab.repository_mode("stale")
    try:
        said(host, *UPDATE)
        done = host.ssh([*APT, "install", "--download-only", "nvidia-driver-pinning-590"], timeout_s=120)
    finally:
        lab.repository_mode("normal")
    assert done.returncode == 100
    assert b"404" in done.stderr


def test_an_unknown_mode_is_refused(host: LabHost) -> None:
    with pytest.raises(UsageError, match="rotated-key"):
        lab.repository_mode("rotten")


def test_the_locks_key_is_the_repositorys(host: LabHost, said: Said, own_lab: Path) -> None:
    import tomllib

    for name in ("lab", "lab-next", "lab-broken"):
        lock: dict[str, Any] = tomllib.loads((own_lab / f"inventory/locks/{name}.lock.toml").read_text())
        repository = lock["driver"]["repository"]
        fetched = subprocess.run(["curl", "-sSf", repository["key_uri"]], capture_output=True, check=True).stdout
        sums = subprocess.run(["sha256sum"], input=fetched, capture_output=True, check=True).stdout.decode()
        assert sums.split()[0] == repository["key_sha256"]
        listed = subprocess.run(["gpg", "--show-keys", "--with-colons"], input=fetched, capture_output=True, check=True)
        assert repository["key_fingerprint"].encode() in listed.stdout
        # Every package that a lock names is there in that version.
        for package in lock["cuda"]["packages"]:
            assert package["version"] in said(host, "apt-cache", "madison", package["name"])
