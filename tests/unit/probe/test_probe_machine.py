"""The machine: what contains it, its system, its processors and settings."""

import pytest

from aerie.probe import machine, sysctl

UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.4 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nID=ubuntu\n'
DEBIAN = 'NAME="Debian GNU/Linux"\nVERSION_ID="13"\nVERSION_CODENAME=trixie\nID=debian\n# a comment = no\n'


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"/etc/os-release": UBUNTU}, ("ubuntu", "24.04", "noble")),
        ({"/usr/lib/os-release": DEBIAN}, ("debian", "13", "trixie")),
        ({}, ("", "", "")),
    ],
    ids=["ubuntu", "debian", "none"],
)
def test_the_system(tree, document, found):
    values = machine.system(tree(document))
    assert (values["id"], values["version_id"], values["codename"]) == found


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"/run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/1/environ": "PATH=/bin\0container=lxc\0"}, "lxc"),
        ({"/proc/1/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0"}, "container-other"),
        ({"/proc/1/environ": "HOME=/\0TERM=linux\0"}, None),
    ],
    ids=["nspawn", "docker", "podman", "told", "kubernetes", "machine"],
)
def test_what_contains_it(tree, files, word):
    assert machine.container(tree(files)) == word


def test_governors_of_all_processors(tree):
    policy = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"
    assert machine.governors(tree({policy.format(0): "performance\n", policy.format(1): "schedutil\n"})) == [
        "performance",
        "schedutil",
    ]


def test_a_machine_without_a_choice_of_governors(tree):
    assert machine.governors(tree({})) is None


def test_settings_that_can_be_set(tree, tmp_path):
    root = tree(
        {
            "/proc/sys/vm/swappiness": "60\n",
            "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "/proc/sys/net/ipv4/conf/eth0/forwarding": "1\n",
            "/proc/sys/kernel/ns_last_pid": "4711\n",
            "/proc/sys/kernel/version": "#1 SMP\n",
            "/proc/sys/vm/drop_caches": "0\n",
        }
    )
    (tmp_path / "proc/sys/kernel/version").chmod(0o444)
    (tmp_path / "proc/sys/vm/drop_caches").chmod(0o200)
    assert sysctl.settings(root) == {"net.ipv4.tcp_rmem": "4096 131072 6291456", "vm.swappiness": "60"}
