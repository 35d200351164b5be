"""Which file from whom: a host alone, among peers, and when others do not do their share."""

import pytest

from aerie.weights.onhost.schedule import Choice, Source, choose

PATHS = [f"model-{number:05d}-of-00008.safetensors" for number in range(1, 9)]
ALL = frozenset(PATHS)
SEEDER = Source(name="seeder", have=ALL, size=8)
ORIGIN = Source(name="hub", is_origin=True)


def ask(missing, sources, *, position=1, hosts=3, may_use_origin=False, is_quiet=False):
    return choose(
        PATHS, missing, sources, position=position, hosts=hosts, may_use_origin=may_use_origin, is_quiet=is_quiet
    )


def test_a_host_alone_takes_one_after_the_other_from_the_origin():
    assert ask(PATHS[2:], [ORIGIN], position=0, hosts=1, may_use_origin=True) == Choice(PATHS[2], "hub")


def test_of_several_origins_the_first_is_asked_until_it_fails():
    alone = {"position": 0, "hosts": 1, "may_use_origin": True}
    disk = Source(name="disk", is_origin=True, active=3)
    assert ask(PATHS, [disk, ORIGIN], **alone) == Choice(PATHS[0], "disk")
    failing = Source(name="disk", is_origin=True, failures=1)
    assert ask(PATHS, [failing, ORIGIN], **alone) == Choice(PATHS[0], "hub")


def test_nothing_missing_is_nothing_to_do():
    assert ask([], [ORIGIN], may_use_origin=True) is None


def test_the_origin_is_for_those_who_may_use_it():
    assert ask(PATHS, [ORIGIN]) is None


@pytest.mark.parametrize("position", [1, 2])
def test_each_host_begins_with_files_of_its_own_at_the_seeder(position):
    assert ask(PATHS, [Source(name="seeder", have=ALL)], position=position) == Choice(PATHS[position - 1], "seeder")


def test_all_files_of_a_seeder_have_one_owner():
    owners = {
        path: [p for p in (1, 2, 3) if ask([path], [Source(name="seeder", have=ALL)], position=p, hosts=4)]
        for path in PATHS
    }
    assert [len(hosts) for hosts in owners.values()] == [1] * len(PATHS)


def test_what_another_host_has_does_not_come_from_the_seeder():
    sources = [SEEDER, Source(name="b", have=frozenset({PATHS[1]}), size=1)]
    assert ask([PATHS[1]], sources) == Choice(PATHS[1], "b")
    busy = [sources[0], Source(name="b", have=frozenset({PATHS[1]}), active=1)]
    assert ask([PATHS[1]], busy) is None


def test_one_transfer_at_a_time_from_a_peer():
    assert ask(PATHS, [Source(name="seeder", have=ALL, active=1)]) is None


def test_the_files_of_a_dead_owner_are_fetched_when_nothing_moves_any_more():
    seeder = Source(name="seeder", have=ALL)
    assert ask([PATHS[1]], [seeder]) is None
    assert ask([PATHS[1]], [seeder], is_quiet=True) == Choice(PATHS[1], "seeder")


def test_a_source_that_gave_a_broken_file_is_asked_last():
    broken = Source(name="b", have=ALL, avoid=frozenset({PATHS[0]}))
    good = Source(name="c", have=ALL)
    assert ask([PATHS[0]], [broken, good]) == Choice(PATHS[0], "c")
    assert ask([PATHS[0]], [broken]) == Choice(PATHS[0], "b")


@pytest.mark.parametrize("position", [1, 2])
def test_after_a_broken_file_the_seeder_may_be_asked_by_whoever_needs_it(position):
    few = frozenset({PATHS[0]})
    sources = [Source(name="b", have=few, avoid=few, size=1), SEEDER]
    assert ask([PATHS[0]], sources, position=position) == Choice(PATHS[0], "seeder")


def test_a_source_that_failed_is_asked_after_one_that_did_not():
    sources = [Source(name="b", have=ALL, failures=2), Source(name="c", have=ALL, failures=1)]
    assert ask([PATHS[0]], sources) == Choice(PATHS[0], "c")


def test_a_peer_with_nothing_has_nothing():
    assert ask(PATHS, [Source(name="b", have=frozenset())], is_quiet=True) is None


def test_of_a_file_that_its_owner_has_begun_the_others_take_the_beginning_from_there():
    begun = Source(name="b", have=frozenset({PATHS[1]}), size=0.1)
    assert ask([PATHS[1]], [SEEDER]) is None
    assert ask([PATHS[1]], [SEEDER, begun]) == Choice(PATHS[1], "b")
