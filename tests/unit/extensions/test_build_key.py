"""The wheel store's key: the same for the same build, another for any other, and never another by accident."""

import hashlib
from dataclasses import replace

import pytest

from aerie.extensions.build_key import BuildKey

KEY = BuildKey(
    package="flash-attn",
    version="2.8.3.post2",
    source_sha256="ab" * 32,
    options={"FLASH_ATTN_CUDA_ARCHS": "120", "FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
    python="3.12",
    torch="2.14.1+cu130",
    cuda="13.1",
    cxx11_abi=True,
    architectures=("12.0",),
    platform="manylinux_2_39_x86_64",
)


def test_the_key_is_what_it_was():
    # A store that was filled before is found again only while this holds; another format needs another schema.
    assert KEY.text == (
        '{"architectures":["12.0"],"cuda":"13.1","cxx11_abi":true,'
        '"options":{"FLASH_ATTENTION_FORCE_BUILD":"TRUE","FLASH_ATTN_CUDA_ARCHS":"120"},'
        '"package":"flash-attn","platform":"manylinux_2_39_x86_64","python":"3.12","schema":"aerie.build-key/1",'
        f'"source_sha256":"{"ab" * 32}","torch":"2.14.1+cu130","version":"2.8.3.post2"}}'
    )
    assert KEY.digest == "14dde7fd904d29e46eca8fa032a728151b63ed45e9751e688a5e98dce8351905"
    assert KEY.digest == hashlib.sha256(KEY.text.encode()).hexdigest()


@pytest.mark.parametrize(
    "same",
    [
        {"options": dict(reversed(KEY.options.items()))},
        {"architectures": ("12.0", "12.0")},
    ],
    ids=["order-of-options", "architecture-twice"],
)
def test_what_is_no_matter(same):
    assert replace(KEY, **same).digest == KEY.digest


def test_the_order_of_architectures_is_no_matter():
    assert replace(KEY, architectures=("9.0", "12.0")).digest == replace(KEY, architectures=("12.0", "9.0")).digest


CHANGES = {
    "package": "flash-attn-x",
    "version": "2.8.3.post1",
    "source_sha256": "ba" * 32,
    "options": {"FLASH_ATTN_CUDA_ARCHS": "120"},
    "python": "3.11",
    "torch": "2.14.0+cu130",
    "cuda": "13.0",
    "cxx11_abi": False,
    "architectures": ("9.0",),
    "platform": "manylinux_2_36_x86_64",
}


def test_every_part_counts():
    assert set(CHANGES) == set(BuildKey.__dataclass_fields__)
    digests = {replace(KEY, **{name: value}).digest for name, value in CHANGES.items()} | {KEY.digest}
    assert len(digests) == len(CHANGES) + 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"source_sha256": "AB" * 32}, "64 hex digits"),
        ({"source_sha256": "ab" * 20}, "64 hex digits"),
        ({"architectures": ()}, "at least one architecture"),
        ({"options": {"MAX_JOBS": "20", "NVCC_THREADS": "1"}}, "MAX_JOBS, NVCC_THREADS: the size of a build"),
    ],
)
def test_what_cannot_be_a_key(bad, message):
    with pytest.raises(ValueError, match=message):
        replace(KEY, **bad)
