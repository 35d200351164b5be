import os
from pathlib import Path

import pytest

from aerie.engines.adapter import Drafter, Forced, adapter
from aerie.engines.vllm_cpu.forced import ForcedLength
from aerie.errors import UsageError


def set_length(folder, length):
    server = Forced(drafter=Drafter(path=Path("/d"), tokens=3), length=1.0, folder=folder)
    adapter("vllm").switch_forced(server, length)


@pytest.mark.parametrize(
    ("length", "drafts"),
    [
        (1.0, [0, 0, 0, 0]),
        (2.0, [1, 1, 1, 1]),
        (3.0, [2, 2, 2, 2]),
        (2.5, [1, 2, 1, 2]),
        (1.25, [0, 0, 0, 1]),
    ],
)
def test_the_mean_is_forced_and_each_step_is_determined(tmp_path, length, drafts):
    set_length(tmp_path, length)
    forced = ForcedLength(str(tmp_path / "length"))
    assert [forced.next() for _ in drafts] == drafts


def test_tenths_do_not_drift(tmp_path):
    set_length(tmp_path, 1.1)
    forced = ForcedLength(str(tmp_path / "length"))
    assert sum(forced.next() for _ in range(1000)) == 100


def test_a_new_length_counts_from_the_next_step_on(tmp_path):
    path = tmp_path / "length"
    set_length(tmp_path, 2.9)
    forced = ForcedLength(str(path))
    assert forced.next() == 1
    set_length(tmp_path, 3.0)
    os.utime(path, ns=(1, 1))  # an older stamp is a change as well
    assert [forced.next(), forced.next()] == [2, 2]


def test_a_length_that_no_step_can_have_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"4\.5, expected 1 to 4"):
        set_length(tmp_path, 4.5)
    assert not (tmp_path / "length").exists()
