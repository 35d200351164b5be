"""How many compilers at once: what measured figures give, on the hosts that people told of and on a thousand others."""

import random
import re

import pytest

from aerie.errors import UsageError
from aerie.extensions.sizing import GB, Capacity, Limit, size
from aerie.extensions.units import unit_memory, units

FLASH = unit_memory("flash-attn", version="2.8.3.post2", cuda="13.1", architectures=["12.0"])
SGL = unit_memory("sgl-kernel", version="0.3.21", cuda="13.1", architectures=["12.0"])
CGROUP = "/sys/fs/cgroup/build.slice/memory.max"


def host(processors, memory_gb, *, limit_gb=None, used_gb=0):
    limits = () if limit_gb is None else (Limit(where=CGROUP, limit_bytes=limit_gb * GB, used_bytes=used_gb * GB),)
    return Capacity(processors=processors, available_bytes=memory_gb * GB, limits=limits)


# The table of the measurements: sm_120 alone, and upstream's default of four architectures with four threads.
@pytest.mark.parametrize(
    ("processors", "memory_gb", "alone", "defaults"),
    [(2, 23, (2, 1), (1, 2)), (64, 256, (38, 1), (9, 4)), (128, 512, (73, 1), (19, 4))],
)
def test_flash_attn_as_it_was_measured(processors, memory_gb, alone, defaults):
    one = size(host(processors, memory_gb), FLASH)
    four = size(host(processors, memory_gb), FLASH, architectures=4, wanted_threads=4)
    assert (one.jobs, one.nvcc_threads) == alone
    assert (four.jobs, four.nvcc_threads) == defaults
    assert one.warnings == four.warnings == ()


@pytest.mark.parametrize(
    ("capacity", "jobs", "memory_gb", "decided"),
    [
        (host(128, 512), 73, 474.5, "flash-attn has 73 files to compile"),
        (host(96, 880), 73, 474.5, "flash-attn has 73 files to compile"),
        (host(128, 1500, limit_gb=64), 8, 52, "memory has room for 8"),
        (host(128, 1500, limit_gb=64, used_gb=30), 4, 26, "memory has room for 4"),
        (host(8, 16), 2, 13, "memory has room for 2"),
        (host(256, 24), 3, 19.5, "memory has room for 3"),
    ],
    ids=["the-story", "880-gb", "cgroup", "cgroup-in-use", "small", "many-processors"],
)
def test_128_jobs_come_out_as_what_memory_allows(capacity, jobs, memory_gb, decided):
    result = size(capacity, FLASH, wanted_jobs=128)
    assert (result.jobs, result.nvcc_threads, result.memory_bytes) == (jobs, 1, memory_gb * GB)
    assert result.memory_bytes <= result.budget_bytes
    assert result.reasons[0].startswith(f"{jobs} jobs: {decided} (")
    assert "128 were asked for" in result.reasons[0]
    assert result.warnings == ()


def test_the_host_of_96_processors_and_880_gb_keeps_a_quarter_where_upstream_took_all_of_it():
    # flash-attention#2493: 42 jobs of 4 threads for 6 architectures, and the host rebooted.
    result = size(host(96, 880), FLASH, architectures=6, wanted_jobs=42, wanted_threads=4)
    assert (result.jobs, result.nvcc_threads, result.memory_bytes) == (24, 4, 624 * GB)
    assert 42 * 4 * FLASH.bytes_per_thread > 880 * GB


def test_128_jobs_are_128_where_everything_allows_them():
    assert size(host(256, 3000), SGL, wanted_jobs=128).jobs == 128


def test_the_reasons_are_words():
    result = size(host(128, 1500, limit_gb=64, used_gb=4), FLASH, wanted_jobs=128, reserved_bytes=600 * GB)
    assert result.reasons == (
        "8 jobs: memory has room for 8 (flash-attn has 73 files to compile; 128 processors (affinity) carry 128; "
        "128 were asked for)",
        f"50.1 GiB for compilers: {CGROUP} allows 61.0 GiB, 3.8 GiB are used; 1430.5 GiB are available on the host, "
        "572.2 GiB of them reserved for running services; 7.2 GiB are kept free",
        "6.2 GiB per file and nvcc thread: measured for these versions",
    )


def test_what_services_may_still_take_comes_off_the_host_and_not_off_the_build_s_own_cgroup():
    assert size(host(64, 512), FLASH, reserved_bytes=400 * GB).jobs == 16  # (112 − 8) / 6.5
    assert size(host(64, 512, limit_gb=64), FLASH, reserved_bytes=400 * GB).jobs == 8
    assert size(host(64, 512, limit_gb=64), FLASH, reserved_bytes=500 * GB).jobs == 1  # 12 GB: the host's is less


@pytest.mark.parametrize(
    ("memory_gb", "threads", "warns"), [(40, 4, False), (16, 2, False), (9, 1, False), (8, 1, True), (0, 1, True)]
)
def test_a_file_that_is_too_large_gets_fewer_threads_first_and_then_a_warning(memory_gb, threads, warns):
    result = size(host(8, memory_gb), FLASH, architectures=4, wanted_threads=4)
    assert (result.jobs, result.nvcc_threads) == (1, threads)
    assert any("memory does not hold more for a single file" in reason for reason in result.reasons) is (threads < 4)
    assert [re.sub(r" may take .*", "", warning) for warning in result.warnings] == [
        "a single file of flash-attn"
    ] * warns


@pytest.mark.parametrize(
    ("architectures", "wanted", "threads", "reason"),
    [
        (1, 32, 1, "nvcc threads 32 → 1: each works on an architecture of its own"),
        (6, 6, 4, "nvcc threads 6 → 4: no more than processors"),
    ],
)
def test_threads_that_do_nothing_are_not_counted(architectures, wanted, threads, reason):
    result = size(host(4, 512), SGL, architectures=architectures, wanted_threads=wanted)
    assert result.nvcc_threads == threads
    assert reason in result.reasons


def random_case(seed):
    draw = random.Random(seed)
    memory = int(2 ** draw.uniform(28, 42))  # 256 MB to 4 TB
    limits = tuple(
        Limit(where=CGROUP, limit_bytes=int(2 ** draw.uniform(28, 42)), used_bytes=int(2 ** draw.uniform(0, 40)))
        for _ in range(draw.choice([0, 0, 1, 2]))
    )
    capacity = Capacity(processors=draw.randint(1, 384), available_bytes=memory, limits=limits)
    wishes = {
        "architectures": draw.randint(1, 7),
        "wanted_jobs": draw.choice([None, 1, 20, 128, 1000]),
        "wanted_threads": draw.choice([1, 2, 4, 32]),
        "reserved_bytes": draw.choice([0, 0, memory // 2, 2 * memory]),
    }
    return capacity, draw.choice(units()), wishes


def test_a_thousand_hosts_never_over_what_they_have_and_never_one_job_too_few():
    warned = 0
    for seed in range(1000):
        capacity, unit, wishes = random_case(seed)
        result = size(capacity, unit, **wishes)
        # Without the rule's own margins: what there is.
        has = min(
            [capacity.available_bytes - wishes["reserved_bytes"]]
            + [limit.limit_bytes - limit.used_bytes for limit in capacity.limits]
        )
        per_job = result.nvcc_threads * unit.bytes_per_thread
        assert result.jobs >= 1, seed
        assert result.nvcc_threads in range(1, min(wishes["wanted_threads"], wishes["architectures"]) + 1), seed
        assert result.memory_bytes == result.jobs * per_job, seed
        assert result.jobs <= (wishes["wanted_jobs"] or 1000), seed
        assert result.jobs * result.nvcc_threads <= capacity.processors, seed
        if result.warnings:
            warned += 1
            assert (result.jobs, result.nvcc_threads) == (1, 1), seed
            assert result.memory_bytes > has - 8 * GB, seed
        else:
            assert result.memory_bytes <= has - 2 * GB, seed
            assert result.memory_bytes <= result.budget_bytes, seed
        more = result.jobs + 1
        assert (
            more * per_job > has - max(2 * GB, min(8 * GB, has / 8))
            or more * result.nvcc_threads > capacity.processors
            or more > (wishes["wanted_jobs"] or 10_000)
            or more > (unit.units or 10_000)
        ), seed
    assert 100 < warned < 900  # both kinds of host were met


def test_more_memory_never_gives_fewer_jobs():
    jobs = [size(host(384, memory_gb), SGL).jobs for memory_gb in range(2048)]
    assert jobs == sorted(jobs)
    assert jobs[-1] > 100


@pytest.mark.parametrize(
    "wishes", [{"wanted_jobs": 0}, {"wanted_threads": 0}, {"architectures": 0}, {"reserved_bytes": -1}]
)
def test_wishes_below_one_are_a_caller_s_mistake(wishes):
    with pytest.raises(ValueError, match=r"at least 1|reserved"):
        size(host(8, 64), FLASH, **wishes)


@pytest.mark.parametrize(
    ("version", "cuda", "architectures", "basis"),
    [
        ("2.8.3.post2", "13.1", ["12.0"], "measured"),
        ("2.8.3.post2", "13.1", ["12.0", "9.0"], "estimate"),
        ("2.8.3.post2", "13.0", ["12.0"], "estimate"),
        ("2.8.4rc1", "13.1", ["12.0"], "estimate"),
    ],
)
def test_only_what_was_measured_is_called_so(version, cuda, architectures, basis):
    assert unit_memory("flash_attn", version=version, cuda=cuda, architectures=architectures).basis == basis


def test_every_row_has_a_source_and_every_package_ends_with_a_row_for_all_versions():
    assert [row for row in units() if not row.source or row.basis not in ("measured", "estimate")] == []
    last = {row.package: row for row in units()}
    assert [row for row in last.values() if row.versions or row.cuda or row.architectures] == []


def test_a_package_that_nobody_measured_and_a_version_that_is_none():
    with pytest.raises(UsageError, match="Did you mean flash-attn"):
        unit_memory("flash-atn", version="2.8.3", cuda="13.1", architectures=["12.0"])
    with pytest.raises(UsageError, match="main"):
        unit_memory("flash-attn", version="main", cuda="13.1", architectures=["12.0"])
