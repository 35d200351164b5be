"""systemctl's answers, recorded on systemd 257 (Debian 13)."""

import pytest

from aerie.probe import services
from aerie.probe.reading import Later, ProgramFailed

SHOW = """\
Id=ssh.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
ActiveEnterTimestamp=@1796019696

Id=nvidia-fabricmanager.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
ActiveEnterTimestamp=

Id=apt-daily.service
LoadState=loaded
ActiveState=inactive
UnitFileState=static
ActiveEnterTimestamp=
"""
FAILED = "aerie-acs.service loaded failed failed Clear ACS\nsystemd-modules-load.service loaded failed failed Load\n"
SYSTEMD = {"/proc/1/comm": "systemd\n"}


def test_units_that_exist(tree):
    assert services.services(Later(lambda: SHOW), tree(SYSTEMD)) == {
        "ssh": {"name": "ssh.service", "active": "active", "enabled": "enabled", "since": "2026-11-30T06:21:36Z"},
        "apt-daily": {"name": "apt-daily.service", "active": "inactive", "enabled": "static", "since": None},
    }


def test_failed_units(tree):
    assert services.failed_units(Later(lambda: FAILED), tree(SYSTEMD)) == [
        "aerie-acs.service",
        "systemd-modules-load.service",
    ]


def test_without_systemd_there_is_no_answer(tree):
    with pytest.raises(ProgramFailed, match="process 1 is bash"):
        services.services(Later(lambda: ""), tree({"/proc/1/comm": "bash\n"}))


def test_a_container_does_not_set_the_clock(tree):
    assert services.is_time_synchronized(tree({"/run/systemd/container": "docker\n"})) is None
