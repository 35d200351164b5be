"""Units of processes, and where they listen."""

import pytest

from aerie.probe import processes


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/aerie-engine.service\n", "aerie-engine.service"),
        ("0::/system.slice/docker-3f2a.scope/inner\n", "docker-3f2a.scope"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n", "train.service"),
        ("12:cpuset:/\n1:name=systemd:/system.slice/sglang.service\n0::/\n", "sglang.service"),
        ("0::/\n", None),
        ("", None),
    ],
    ids=["service", "container", "login", "user-manager", "user-service", "version-1", "outside", "ended"],
)
def test_the_unit_of_a_process(cgroup, unit):
    assert processes.unit_in(cgroup) == unit


# As /proc/net/tcp and tcp6 have them: 0.0.0.0:30000 and 127.0.0.1:8000 listen, one connection does not.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
   2: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4714 1 0
"""


def test_listening_sockets():
    assert processes.sockets(TCP) == {"4711": "0.0.0.0:30000", "4712": "127.0.0.1:8000"}
    assert processes.sockets(TCP6) == {"4714": "[::1]:8080"}


def test_only_the_sockets_of_these_processes(tree):
    root = tree(
        {
            "/proc/net/tcp": TCP,
            "/proc/10/fd/3": "-> socket:[4711]",
            "/proc/10/fd/4": "-> /dev/null",
            "/proc/11/fd/3": "-> socket:[4712]",
            "/proc/10/cgroup": "0::/system.slice/aerie-engine.service\n",
            "/proc/11/cgroup": "0::/system.slice/ssh.service\n",
            "/proc/self/cgroup": "0::/system.slice/aerie-none.service\n",
        }
    )
    found = processes.pids_by_unit("aerie-", root)
    assert found == {10: "aerie-engine.service"}
    assert processes.listening(found, root) == ["0.0.0.0:30000"]
