import os

import pytest

from aerie.engines.vllm import write_forced_length
from aerie.engines.vllm_cpu.forced import ForcedLength


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
    write_forced_length(tmp_path / "length", length)
    forced = ForcedLength(str(tmp_path / "length"))
    assert [forced.next() for _ in drafts] == drafts


def test_tenths_do_not_drift(tmp_path):
    write_forced_length(tmp_path / "length", 1.1)
    forced = ForcedLength(str(tmp_path / "length"))
    assert sum(forced.next() for _ in range(1000)) == 100


def test_a_new_length_counts_from_the_next_step_on(tmp_path):
    path = tmp_path / "length"
    write_forced_length(path, 2.9)
    forced = ForcedLength(str(path))
    assert forced.next() == 1
    write_forced_length(path, 3.0)
    os.utime(path, ns=(1, 1))  # an older stamp is a change as well
    assert [forced.next(), forced.next()] == [2, 2]
