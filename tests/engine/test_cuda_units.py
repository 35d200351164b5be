"""Real units of flash-attn, compiled for sm_120 by nvcc 13.1 from wheels, within a limit that the kernel enforces."""

from dataclasses import replace
from pathlib import Path

import cuda_units
import pytest

from aerie.extensions import capacity, cuda_home
from aerie.extensions.onhost.build import build
from aerie.extensions.onhost.request import Request, Result
from aerie.extensions.sizing import size
from aerie.extensions.units import unit_memory

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    folder = tmp_path_factory.mktemp("units")
    python = cuda_units.environment(folder / "env")
    memory = unit_memory("flash-attn", version=cuda_units.FLASH, cuda="13.1", architectures=["12.0"])
    sizing = size(capacity.read(), memory, wanted_jobs=2)
    return Request(
        package="flash-attn",
        version=cuda_units.FLASH,
        source=cuda_units.source(folder, python),
        python=python,
        cuda_home=cuda_home.ensure(),
        architectures=("12.0",),
        jobs=sizing.jobs,
        nvcc_threads=sizing.nvcc_threads,
        budget_bytes=min(sizing.budget_bytes, 14_000_000_000),
        unit_bytes=memory.bytes_per_thread,
        work=folder / "work",
        out=folder / "out",
        compiler_cache=folder / "cache",  # an empty one: the first build compiles
    )


def built(request: Request, folder: Path) -> Result:
    folder.mkdir()
    result = build(request, folder)
    assert result.failure is None, result.failure
    print(
        f"{result.units_compiled} compiled, {result.units_cached} cached: {result.wall_s:.1f} s, "
        f"CPU {result.cpu_s:.1f} s, "
        f"peak {result.peak_bytes / 1e9:.2f} of {request.budget_bytes / 1e9:.2f} GB ({result.limited_by})"
    )
    return result


def test_a_unit_of_each_kind_compiles_for_sm_120_alone_and_the_second_time_comes_from_the_cache(
    request_: Request, tmp_path: Path
) -> None:
    first = built(request_, tmp_path / "first")
    assert first.device_code == {f"{unit}.o": ("sm_120",) for unit in cuda_units.UNITS}
    assert (first.units_compiled, first.units_cached) == (3, 0)
    assert first.limited_by, "nothing enforced the budget"
    assert first.peak_bytes <= request_.budget_bytes
    again = built(replace(request_, work=tmp_path / "work"), tmp_path / "second")
    assert (again.units_compiled, again.units_cached) == (0, 3)
    assert again.device_code == first.device_code
    assert first.wall_s / again.wall_s >= 10
