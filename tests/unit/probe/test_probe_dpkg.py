"""dpkg's database, in the form that dpkg 1.22 writes."""

import subprocess
import sys

import pytest

from aerie.probe import dpkg

STATUS = """\
Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.22.6ubuntu6.5
Maintainer: Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>

Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 2.39-0ubuntu8.6
Description: GNU C Library
 Package: is only a word here
Maintainer: Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>

Package: libc6
Status: install ok installed
Architecture: i386
Version: 2.39-0ubuntu8.6

Package: nvidia-dkms-open
Status: install ok half-configured
Architecture: amd64
Version: 590.48.01-1ubuntu1
Maintainer: NVIDIA Corporation <cudatools@nvidia.com>

Package: nvidia-open
Status: hold ok installed
Architecture: amd64
Version: 590.48.01-1ubuntu1
Maintainer: NVIDIA Corporation <cudatools@nvidia.com>

Package: nvidia-driver-535
Status: deinstall ok config-files
Architecture: amd64
Version: 535.247.01-0ubuntu1

Package: lost
Status: install reinstreq half-installed
Architecture: all
Version: 1
"""


def test_rows_are_told_apart(tree):
    rows = dpkg.rows(tree({"/var/lib/dpkg/status": STATUS}))
    assert {name: row["status"] for name, row in rows.items()} == {
        "dpkg": "ii",
        "libc6": "ii",
        "libc6:i386": "ii",
        "nvidia-dkms-open": "iF",
        "nvidia-open": "ii",
        "nvidia-driver-535": "rc",
        "lost": "iHR",
    }
    assert rows["nvidia-open"] == {
        "version": "590.48.01-1ubuntu1",
        "status": "ii",
        "maintainer": "NVIDIA Corporation <cudatools@nvidia.com>",
        "is_held": True,
    }
    assert dpkg.broken(rows) == ["lost", "nvidia-dkms-open"]
    assert "nvidia-driver-535" not in dpkg.installed(rows)


def test_what_dpkg_has_not_merged_yet_counts(tree):
    update = (
        "Package: nvidia-dkms-open\nStatus: install ok installed\nArchitecture: amd64\nVersion: 590.48.01-1ubuntu1\n"
    )
    root = tree(
        {"/var/lib/dpkg/status": STATUS, "/var/lib/dpkg/updates/0001": update, "/var/lib/dpkg/updates/tmp.i": ""}
    )
    assert dpkg.broken(dpkg.rows(root)) == ["lost"]


HOLD = """\
import fcntl, os, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lock", ["/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock"])
def test_the_holder_of_a_lock_is_named(tree, lock):
    root = tree({lock: ""})
    assert dpkg.lock_holder(root) is None
    argv = [sys.executable, "-c", HOLD, root + lock]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        found = dpkg.lock_holder(root)
        holder.stdin.close()
    assert found == f"python3 (pid {holder.pid})" or found == f"python (pid {holder.pid})"
    assert dpkg.lock_holder(root) is None
