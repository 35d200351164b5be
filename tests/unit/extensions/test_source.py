"""Sources by their hash, and patches that fit them exactly or not at all."""

import io
import tarfile
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from aerie.errors import AerieError
from aerie.extensions.onhost.request import Patch, Source
from aerie.extensions.onhost.source import apply, unpack
from aerie.paths import repository

TEXT = "".join(f"line {number}\n" for number in range(1, 11))
TWO_HUNKS = """\
Why this is so, in words.

--- a/sub/file.txt\t2026-11-30
+++ b/sub/file.txt\t2026-11-30
@@ -2,3 +2,4 @@
 line 2
-line 3
+line three
+and more
 line 4
@@ -9,2 +10 @@
 line 9
-line 10
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file.txt").write_text(TEXT)
    return tmp_path


def test_every_hunk_is_applied(folder: Path) -> None:
    assert apply(Patch(name="two.patch", text=TWO_HUNKS), folder) == ("sub/file.txt",)
    lines = (folder / "sub/file.txt").read_text().splitlines()
    assert lines == ["line 1", "line 2", "line three", "and more", *(f"line {number}" for number in range(4, 10))]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (TWO_HUNKS.replace("line 9", "line nine"), "sub/file.txt:9: line 9"),
        (TWO_HUNKS.replace("@@ -9,2", "@@ -12,2"), "sub/file.txt:12: the file's end"),
        (TWO_HUNKS.replace("sub/file", "sub/none"), "no file sub/none.txt in the source"),
        (TWO_HUNKS.replace("b/sub", "b/../sub").replace("a/sub", "a/../sub"), "no file ../sub/file.txt in the source"),
        ("nothing but words\n", "no changes"),
    ],
    ids=["a-line-differs", "past-the-end", "no-such-file", "outside", "no-diff"],
)
def test_a_patch_that_does_not_fit_changes_nothing(folder: Path, text: str, seen: str) -> None:
    with pytest.raises(AerieError) as error:
        apply(Patch(name="two.patch", text=text), folder)
    assert error.value.where == "patch two.patch"
    assert error.value.seen == seen
    assert (folder / "sub/file.txt").read_text() == TEXT


NEW_FILE = """\
Why this file.

--- /dev/null
+++ b/sub/new.txt
@@ -0,0 +1,2 @@
+one
+two
"""


def test_a_patch_makes_a_file_where_there_is_none(folder: Path) -> None:
    assert apply(Patch(name="new.patch", text=NEW_FILE), folder) == ("sub/new.txt",)
    assert (folder / "sub/new.txt").read_text() == "one\ntwo\n"
    with pytest.raises(AerieError, match=r"sub/new.txt in the source already"):
        apply(Patch(name="new.patch", text=NEW_FILE), folder)
    with pytest.raises(AerieError, match=r"no file ../new.txt in the source"):
        apply(Patch(name="new.patch", text=NEW_FILE.replace("b/sub", "b/..")), folder)


def test_a_patch_that_is_applied_already_does_not_fit(folder: Path) -> None:
    apply(Patch(name="two.patch", text=TWO_HUNKS), folder)
    with pytest.raises(AerieError, match="line three"):
        apply(Patch(name="two.patch", text=TWO_HUNKS), folder)


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_is_unpacked_where_its_hash_is_right(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x-1.0.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x-1.0/a.cu", "int a;\n")
    else:
        with tarfile.open(path, "w:gz") as tar:
            entry = tarfile.TarInfo("x-1.0/a.cu")
            entry.size = 7
            tar.addfile(entry, io.BytesIO(b"int a;\n"))
    digest = sha256(path.read_bytes()).hexdigest()
    top = unpack(Source(path=path, sha256=digest), tmp_path / "src")
    assert top == tmp_path / "src/x-1.0"
    assert (top / "a.cu").read_text() == "int a;\n"
    with pytest.raises(AerieError) as error:
        unpack(Source(path=path, sha256="0" * 64), tmp_path / "other")
    assert error.value.seen == f"sha256 {digest}"
    assert not (tmp_path / "other").exists()


def archive(folder: Path, *names: str) -> Source:
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, "")
    return Source(path=path, sha256=sha256(path.read_bytes()).hexdigest())


def test_a_package_in_a_folder_of_its_repository_is_built_there(tmp_path: Path) -> None:
    source = archive(tmp_path, "x-1/README.md", "x-1/kernels/pyproject.toml", "x-1/kernels/a.cu")
    found = unpack(replace(source, folder="kernels"), tmp_path / "src")
    assert found == tmp_path / "src/x-1/kernels"
    assert apply(Patch(name="new.patch", text=NEW_FILE.replace("b/sub/", "b/")), found) == ("new.txt",)


@pytest.mark.parametrize("folder", ["kernel", "kernels/a.cu"])
def test_a_folder_that_the_archive_does_not_have_is_told_with_those_that_it_has(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("x-1/kernels/pyproject.toml", "x-1/kernels/a.cu"):
            tar.addfile(tarfile.TarInfo(name))
    source = Source(path=path, sha256=sha256(path.read_bytes()).hexdigest(), folder=folder)
    with pytest.raises(AerieError, match=f"no folder {folder} in x-1, packages in: kernels"):
        unpack(source, tmp_path / "src")


def test_a_link_out_of_the_archive_is_no_folder_of_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("x-1/outside")
        link.type, link.linkname = tarfile.SYMTYPE, ".."
        tar.addfile(link)
    digest = sha256((tmp_path / "x.tar").read_bytes()).hexdigest()
    with pytest.raises(AerieError, match="no folder outside in x-1, packages in: none"):
        unpack(Source(path=tmp_path / "x.tar", sha256=digest, folder="outside"), tmp_path / "src")


def test_an_archive_without_one_top_folder_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/1", "")
        archive.writestr("b/2", "")
    digest = sha256((tmp_path / "x.zip").read_bytes()).hexdigest()
    with pytest.raises(AerieError, match="a, b at the top"):
        unpack(Source(path=tmp_path / "x.zip", sha256=digest), tmp_path / "src")


def test_every_shipped_patch_says_why_before_it_changes_anything() -> None:
    shipped = sorted((repository() / "roles/extensions/files/patches").glob("*/*/*.patch"))
    assert shipped
    for path in shipped:
        why, mark, _ = path.read_text().partition("\n--- ")
        assert mark, f"{path}: no diff"
        assert len(why.split()) > 10, f"{path}: no reason"
