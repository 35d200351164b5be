"""Wheels judged by their names: names that projects really gave, each against environments that it fits and does not.

The names are from PyPI (sglang-kernel, sgl-kernel), the releases of sgl-project/whl, Dao-AILab/flash-attention and
mjun0812/flash-attention-prebuild-wheels, Luosuu/flash-attention3-wheels, and issues there that name them (2023-2026).
"""

import os
import platform
import sys
from dataclasses import replace

import pytest
from packaging.tags import sys_tags

from aerie.extensions.wheels import Target, match

# Ubuntu 24.04 with sglang 0.5.23's torch, and the same with what came before.
NOW = Target(python="3.12", torch="2.14.1+cu130", cuda="13.0", cxx11_abi=True, machine="x86_64", glibc=(2, 39))
TORCH_2_11 = replace(NOW, torch="2.11.0+cu130")
TORCH_2_9 = replace(NOW, torch="2.9.1+cu128", cuda="12.8")
ARM = replace(TORCH_2_11, machine="aarch64", glibc=(2, 35))

FITTING = [
    ("sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl", NOW, ("cuda", "torch", "cxx11_abi")),
    ("sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl", TORCH_2_9, ("cuda", "torch", "cxx11_abi")),
    ("sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl", NOW, ("torch", "cxx11_abi")),
    ("sgl_kernel-0.3.21%2Bcu130-cp310-abi3-manylinux2014_x86_64.whl", NOW, ("torch", "cxx11_abi")),
    ("sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_aarch64.whl", ARM, ("torch", "cxx11_abi")),
    ("sgl_kernel-0.3.2+cu128-cp39-abi3-manylinux2014_x86_64.whl", TORCH_2_9, ("torch", "cxx11_abi")),
    ("flash_attn-2.8.3+cu13torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", TORCH_2_11, ()),
    ("flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", TORCH_2_9, ()),
    ("flash_attn-2.8.3+cu130torch2.11-cp312-cp312-manylinux_2_34_aarch64.whl", ARM, ("cxx11_abi",)),
    (
        "flash_attn-2.8.3+cu130torch2.10-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        replace(NOW, torch="2.10.0+cu130"),
        ("cxx11_abi",),
    ),
    ("flash_attn_4-4.0.0b36-py3-none-any.whl", NOW, ("cuda", "torch", "cxx11_abi")),
]


@pytest.mark.parametrize(("name", "target", "unsaid"), FITTING, ids=[name for name, _, _ in FITTING])
def test_a_wheel_that_fits_and_what_its_name_leaves_open(name, target, unsaid):
    result = match(name, target)
    assert result.reasons == ()
    assert result.fits
    assert result.unsaid == unsaid


NOT_FITTING = [
    (
        "flash_attn-2.8.3+cu13torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        NOW,
        ["built with torch 2.11, the environment has 2.14.1+cu130"],
    ),
    (
        "flash_attn-2.8.3+cu12torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        replace(NOW, torch="2.10.0+cu130"),
        ["built with CUDA 12, torch brings 13.0"],
    ),
    (
        "flash_attn-2.8.3+cu13torch2.9cxx11abiFALSE-cp312-cp312-linux_x86_64.whl",
        replace(NOW, torch="2.9.1+cu130"),
        ["built for the C++ ABI before C++11, torch has C++11 ABI"],
    ),
    (
        "flash_attn-2.8.3+cu130torch2.14-cp312-cp312-win_amd64.whl",
        NOW,
        ["for win_amd64, the host is linux x86_64 with glibc 2.39"],
    ),
    (
        "flash_attn-2.8.3+cu130torch2.9.1cxx11abiTRUE-cp312-cp312-win_amd64.whl",
        replace(NOW, torch="2.9.0+cu130"),
        [
            "for win_amd64, the host is linux x86_64 with glibc 2.39",
            "built with torch 2.9.1, the environment has 2.9.0+cu130",
        ],
    ),
    (
        "causal_conv1d-1.5.4+cu13torch25.08cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",  # for a vendor's container
        NOW,
        ["built with torch 25.08, the environment has 2.14.1+cu130"],
    ),
    (
        "flash_attn-2.8.4+cu129torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        replace(NOW, torch="2.10.0+cu128", cuda="12.8"),
        ["built with CUDA 12.9, newer than 12.8 that torch brings"],
    ),
    (
        "sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl",
        TORCH_2_9,
        ["built with CUDA 13.0, torch brings 12.8"],
    ),
    (
        "sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl",
        replace(NOW, python="3.9"),
        ["for Python cp310-abi3, the environment has 3.9"],
    ),
    (
        "sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl",
        replace(NOW, python="3.13t"),
        ["for Python cp310-abi3, the environment has 3.13t"],
    ),
    (
        "flash_attn-2.8.3+cu130torch2.11-cp312-cp312-manylinux_2_34_aarch64.whl",
        replace(ARM, glibc=(2, 31)),
        ["for manylinux_2_34_aarch64, the host is linux aarch64 with glibc 2.31"],
    ),
    (
        "flash_attn-2.2.1+cu118torch2.0cxx11abiFALSE-cp310-cp310-linux_x86_64.whl",
        ARM,
        [
            "for Python cp310-cp310, the environment has 3.12",
            "for linux_x86_64, the host is linux aarch64 with glibc 2.35",
            "built with CUDA 11.8, torch brings 13.0",
            "built with torch 2.0, the environment has 2.11.0+cu130",
            "built for the C++ ABI before C++11, torch has C++11 ABI",
        ],
    ),
]


@pytest.mark.parametrize(
    ("name", "target", "reasons"),
    NOT_FITTING,
    ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(NOT_FITTING)],
)
def test_every_reason_that_speaks_against_a_wheel_is_named(name, target, reasons):
    result = match(name, target)
    assert list(result.reasons) == reasons
    assert not result.fits


@pytest.mark.parametrize(
    ("name", "torch", "cuda"),
    [
        ("flash_attn-2.5.8+cu122torch2.3cxx11abiFALSE-cp312-cp312-linux_x86_64.whl", "2.3.1", "12.2"),
        ("flash_attn-2.5.8+cu122torch2.3cxx11abiFALSE-cp312-cp312-linux_x86_64.whl", "2.3.1", "12.4"),
    ],
)
def test_an_older_minor_version_of_cuda_runs_with_a_newer_one(name, torch, cuda):
    assert match(name, replace(NOW, torch=torch, cuda=cuda, cxx11_abi=False)).reasons == ()


def test_torch_2_1_is_not_2_14():
    # A name made up for what a comparison of texts would let pass.
    name = "flash_attn-2.8.3+cu13torch2.1cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    assert match(name, NOW).reasons == ("built with torch 2.1, the environment has 2.14.1+cu130",)


@pytest.mark.parametrize(
    "name", ["flash_attn-2.8.3.post2.tar.gz", "sgl_kernel-0.3.21-py3.12-linux-x86_64.egg", "README.md", "", "a.whl"]
)
def test_what_is_no_wheel_does_not_fit(name):
    result = match(name, NOW)
    assert not result.fits
    assert [reason.startswith("not the name of a wheel: ") for reason in result.reasons] == [True]


def test_the_tags_of_a_target_are_those_of_pip_on_such_a_host():
    # This interpreter, asked itself, takes the same wheels: one per tag that packaging says it supports on Linux.
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    assert libc is not None
    major, minor = (int(part) for part in libc.split()[1].split("."))
    here = replace(
        NOW,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        glibc=(major, minor),
    )
    tags = list(sys_tags())
    refused = [tag for tag in tags if not match(f"thing-1.0-{tag}.whl", here).fits]
    assert refused == []
    assert len(tags) > 500
    beyond = [
        f"cp{sys.version_info.major}{sys.version_info.minor + 1}-none-any",
        f"py3-none-manylinux_{major}_{minor + 1}_{here.machine}",
        f"py3-none-musllinux_1_2_{here.machine}",
        f"pp{sys.version_info.major}{sys.version_info.minor}-none-any",
    ]
    assert [tag for tag in beyond if match(f"thing-1.0-{tag}.whl", here).fits] == []
