"""apt's configuration in both of its forms."""

import pytest

from aerie.probe import apt
from aerie.probe.reading import Later

KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"

ONE_LINE = f"""\
# deb http://archive.example/ubuntu noble main
deb http://archive.example/ubuntu noble main universe
deb-src http://archive.example/ubuntu noble main
deb [arch=amd64 signed-by={KEY}] https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/ /
"""

DEB822 = """\
Types: deb deb-src
URIs: http://archive.example/ubuntu http://mirror.example/ubuntu
Suites: noble
 noble-updates
Components: main
# a comment in the middle
Signed-By: /usr/share/keyrings/none.gpg

Types: deb
URIs: http://off.example/
Suites: noble
Enabled: no

Types: deb-src
URIs: http://source.example/
Suites: noble
"""


def test_sources_of_both_forms(tree):
    root = tree(
        {
            "/etc/apt/sources.list": ONE_LINE,
            "/etc/apt/sources.list.d/ubuntu.sources": DEB822,
            "/etc/apt/sources.list.d/ubuntu.sources.save": DEB822,
        }
    )
    found = apt.sources(root)
    assert [
        (source["file"].split("/")[-1], source["uri"], source["suites"], source["signed_by"]) for source in found
    ] == [
        ("sources.list", "http://archive.example/ubuntu", ["noble"], None),
        ("sources.list", "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/", ["/"], KEY),
        ("ubuntu.sources", "http://archive.example/ubuntu", ["noble", "noble-updates"], "/usr/share/keyrings/none.gpg"),
        ("ubuntu.sources", "http://mirror.example/ubuntu", ["noble", "noble-updates"], "/usr/share/keyrings/none.gpg"),
    ]
    assert found[0]["fingerprints"] == []
    assert found[1]["fingerprints"] == [KEY]
    assert found[2]["fingerprints"] == {"unknown": f"{root}/usr/share/keyrings/none.gpg: no such file"}


def config(text):
    return lambda: Later(lambda: text)


DUMP = """\
APT::Periodic "";
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "{on}";
Unattended-Upgrade "";
Unattended-Upgrade::Package-Blacklist "";
Unattended-Upgrade::Package-Blacklist:: "linux-";
Unattended-Upgrade::Package-Blacklist:: "libstdc\\+\\+6$";
"""


@pytest.mark.parametrize(("on", "is_enabled"), [("1", True), ("0", False)])
def test_unattended_upgrades(on, is_enabled):
    packages = {"unattended-upgrades": {"status": "ii"}}
    found = apt.unattended(packages, config(DUMP.format(on=on)))
    assert found == {"is_enabled": is_enabled, "blacklist": ["linux-", "libstdc\\+\\+6$"]}


def test_without_the_package_nothing_upgrades_unattended():
    assert apt.unattended({}, config(DUMP.format(on="1"))) is None
    assert apt.unattended({"unattended-upgrades": {"status": "rc"}}, config(DUMP.format(on="1"))) is None


# As the package of Ubuntu 24.04 has it.
UBUNTU_HOOK = """\
DPkg::Post-Invoke {"test -x /usr/lib/needrestart/apt-pinvoke && /usr/lib/needrestart/apt-pinvoke -m u || true"; };
"""


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({}, "i"),
        ({"/etc/apt/apt.conf.d/99needrestart": UBUNTU_HOOK}, "a"),
        (
            {
                "/etc/apt/apt.conf.d/99needrestart": UBUNTU_HOOK,
                "/etc/needrestart/needrestart.conf": "#$nrconf{restart} = 'i';\n",
                "/etc/needrestart/conf.d/aerie.conf": "$nrconf{restart} = 'l';\n",
            },
            "l",
        ),
        ({"/etc/needrestart/needrestart.conf": '  $nrconf{restart} = "a";\n'}, "a"),
    ],
    ids=["debian", "ubuntu", "told-to-list", "told-to-restart"],
)
def test_needrestart(tree, files, mode):
    assert apt.needrestart(tree({"/usr/sbin/needrestart": "", **files})) == mode


def test_needrestart_is_not_there(tree):
    assert apt.needrestart(tree({})) is None


def test_pins_that_name_nvidia(tree):
    root = tree(
        {
            "/etc/apt/preferences.d/nvidia-driver-pinning-590": "Package: *nvidia*\nPin: version 590.48.01-*\n",
            "/etc/apt/preferences.d/other": "Package: firefox\nPin: origin x\nPin-Priority: 1\n",
            "/etc/apt/preferences.d/aerie.x.pref": "Package: cuda-*\nPin: version *\n",
            "/etc/apt/preferences.d/ignored-590.48": "Package: nvidia-open\nPin: version *\n",
        }
    )
    assert apt.pin_files(root) == [
        "/etc/apt/preferences.d/aerie.x.pref",
        "/etc/apt/preferences.d/nvidia-driver-pinning-590",
    ]
