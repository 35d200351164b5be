"""The lock's [extensions]: what it may hold, and what is refused with file, line and key."""

from pathlib import Path

import pytest

from aerie import lock
from aerie.lock.toml import to_toml
from aerie.runbook.yamlfile import SpecError

NAME = "ubuntu2404-cuda131"
TEXT = lock.path(NAME).read_text()
WHEEL = '[[extensions.packages.wheels]]\nname = "sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl"'
SOURCE = "[extensions.packages.source]"


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """The shipped lock with these changes, beside an inventory."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "locks").mkdir()
    (folder / "locks" / f"{NAME}.lock.toml").write_text(text)
    return folder


@pytest.mark.parametrize("name", lock.names())
def test_every_shipped_lock_can_be_written_and_read_back(name, tmp_path):
    loaded = lock.load(name)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{name}.lock.toml").write_text(to_toml(loaded))
    assert lock.load(name, tmp_path) == loaded


def test_the_shipped_packages_are_flash_attn_from_source_and_sglangs_kernels_as_a_wheel():
    packages = {one.name: one for one in lock.load(NAME).extensions.packages}
    flash, kernels = packages["flash-attn"], packages["sglang-kernel"]
    assert (flash.version, flash.from_, flash.environment) == ("2.8.3.post2", "source", "train")
    assert flash.options == {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
    assert (kernels.from_, [one.name for one in kernels.wheels]) == ("auto", [WHEEL.split('"')[1]])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('from = "source"', 'from = "wheel"', "from 'wheel' without wheels"),
        ("[extensions.packages.source]", "[extensions.packages.sauce]", "sauce"),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'MAX_JOBS = "128"', "options.MAX_JOBS: MAX_JOBS, expected none of"),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'CUDA_HOME = "/usr/local/cuda"', "options.CUDA_HOME: CUDA_HOME"),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'CXX = "clang++"', "options.CXX: CXX"),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'CCACHE_DIR = "/tmp"', "options.CCACHE_DIR: CCACHE_DIR"),
        ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'lower = "1"', "lower"),
        (SOURCE, f'{SOURCE}\nfolder = "../kernels"', "packages[0].source.folder: '../kernels'"),
        (SOURCE, f'{SOURCE}\nfolder = "/kernels"', "packages[0].source.folder: '/kernels'"),
        (SOURCE, f'{SOURCE}\nfolder = "kernels/"', "packages[0].source.folder: 'kernels/'"),
        ('name = "sglang-kernel"', 'name = "flash-attn"', "each name once"),
        ('version = "2.8.3.post2"', 'version = "latest"', "latest"),
        ('.whl"\nsha256 = "043c', '.whl"\nsha256 = "43c', "sha256"),
        ('"cxx20.patch"', '"nowhere.patch"', "nowhere.patch"),
        ('"cxx20.patch"', '"../x.patch"', "../x.patch"),
        (WHEEL, '[[extensions.packages.wheels]]\nname = "sglang_kernel.tar.gz"', "sglang_kernel.tar.gz"),
        ("required = []               #", 'required = ["flash-atn"]  #', "'flash-atn'"),
        ("required = []               #", 'required = ["flash-attn"]  #', "environment 'train'"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_stands(old, new, said, tmp_path):
    with pytest.raises(SpecError) as raised:
        lock.load(NAME, written(tmp_path, (old, new)))
    assert said in str(raised.value)
    assert f"{NAME}.lock.toml:" in str(raised.value)


def test_a_source_may_name_the_folder_with_its_package(tmp_path):
    folder = written(tmp_path, (SOURCE, f'{SOURCE}\nfolder = "sgl-kernel/python_3.x"'))
    source = lock.load(NAME, folder).extensions.packages[0].source
    assert source is not None and source.folder == "sgl-kernel/python_3.x"


def test_an_option_that_the_builder_sets_is_refused_on_its_own_line(tmp_path):
    changes = ('FLASH_ATTENTION_FORCE_BUILD = "TRUE"', 'FLASH_ATTENTION_FORCE_BUILD = "TRUE", CXX = "clang++"')
    line = 1 + TEXT[: TEXT.index(changes[0])].count("\n")
    with pytest.raises(SpecError, match=rf"{NAME}.lock.toml:{line}: extensions.packages\[0\].options.CXX: "):
        lock.load(NAME, written(tmp_path, changes))


def test_a_package_without_wheel_and_source_is_refused(tmp_path):
    start = TEXT.index(WHEEL)
    end = TEXT.index("\n\n", start)
    with pytest.raises(SpecError, match="neither wheels nor a source"):
        lock.load(NAME, written(tmp_path, (TEXT[start:end], "")))


def test_a_difference_between_locks_names_the_wheel(tmp_path):
    from aerie.lock import difference

    before = lock.load(NAME)
    after = lock.load(NAME, written(tmp_path, ('sha256 = "043c', 'sha256 = "143c')))
    (change,) = difference.changes(before, after)
    assert change.key == f"extensions.packages[sglang-kernel].wheels[{WHEEL.split(chr(34))[1]}].sha256"
