"""Manifests: one text for one manifest, and every document that must not be believed."""

import hashlib
import json
import subprocess
import sys

import pytest

from aerie.errors import AerieError
from aerie.paths import repository
from aerie.weights.manifest import File, Manifest, Source, digest, dump, hasher, parse, to_dict

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ZEROS = "0" * 64
HUB = Source(kind="hub", location="aerie-lab/tiny", revision=COMMIT)
TINY = Manifest(
    model="tiny",
    source=HUB,
    files=(
        File(path="model.safetensors", size=12, sha256=hashlib.sha256(b"hello world\n").hexdigest()),
        File(path="config.json", size=3, git_sha1="0967ef424bce6791893e9a57bb952f80fd536e93"),
        File(path="a/ü.txt", size=0, sha256=hashlib.sha256(b"").hexdigest()),
    ),
)
TEXT = """\
{"schema": "aerie.manifest/1",
"model": "tiny",
"source": {"kind": "hub", "location": "aerie-lab/tiny", "revision": "0123456789abcdef0123456789abcdef01234567"},
"files": [
{"path": "a/\\u00fc.txt", "size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
{"path": "config.json", "size": 3, "git_sha1": "0967ef424bce6791893e9a57bb952f80fd536e93"},
{"path": "model.safetensors", "size": 12, "sha256": "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447"}
]}
"""


def document(**changes):
    """A right document but for these keys; None leaves a key out."""
    table = json.loads(TEXT) | changes
    return json.dumps({key: value for key, value in table.items() if value is not None})


def with_file(**file):
    return document(files=[{"path": "x", "size": 1, "sha256": ZEROS} | file])


def test_the_canonical_text_and_its_digest_never_change():
    assert dump(TINY).decode() == TEXT
    assert digest(TINY) == hashlib.sha256(TEXT.encode()).hexdigest()
    assert digest(TINY) == "7c8a70a36c5ec7ffc8838257660e7390024f0937770170db36412803a1729c5b"


def test_a_manifest_comes_back_from_its_text_however_that_is_written():
    assert parse(TEXT) == TINY
    untidy = json.dumps(to_dict(TINY) | {"files": to_dict(TINY)["files"][::-1]}, indent=8, ensure_ascii=False)
    assert digest(parse(untidy)) == digest(TINY)
    assert parse(untidy.encode()) == TINY


def test_a_manifest_tells_the_bytes_of_all_files():
    assert TINY.size_bytes == 15


@pytest.mark.parametrize(("index", "content"), [(0, b""), (1, b"{}\n"), (2, b"hello world\n")])
def test_the_hash_of_each_kind_is_gits_or_sha256sums(index, content):
    file = TINY.files[index]
    counted = hasher(file)
    counted.update(content)
    assert (counted.hexdigest(), len(content)) == (file.hash, file.size)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "a relative path"),
        (7, "a relative path"),
        ("/etc/passwd", "relative to the model's folder"),
        ("../outside", "'..'"),
        ("a/../../outside", "'..'"),
        ("a/..", "'..'"),
        ("./a", "'.'"),
        ("a//b", "no empty part"),
        ("a/", "no empty part"),
        ("a\\b", "no backslash"),
        ("a\0b", "no control character"),
        ("a\nb", "no control character"),
        (".aerie/verified.json", "not in .aerie"),
        (".aerie", "not in .aerie"),
        ("a/" + "ü" * 121, "at most 240 bytes"),
        ("\ud800", "UTF-8"),
    ],
)
def test_a_path_that_is_no_place_in_the_models_folder_is_refused(path, expected):
    with pytest.raises(AerieError, match=expected) as raised:
        parse(with_file(path=path))
    assert raised.value.seen == path or str(path).startswith(str(raised.value.seen)[:100])


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", "document", "JSON"),
        ("{", "document", "JSON"),
        ("[" * 100_000, "document", "JSON"),
        (TEXT.replace('"size": 12', '"size": NaN'), "document", "JSON"),
        (TEXT.replace('"size": 12', '"size": 12, "size": 13'), "document", "each key once"),
        (b"\xff\xfe{}", "document", "JSON"),
        ("[]", "document", "a table with"),
        (document(schema=None), "document", "schema too"),
        (document(more=1), "document", "only schema"),
        (document(schema="aerie.manifest/2"), "schema", "aerie.manifest/1"),
        (document(model="../x"), "model", "a name"),
        (document(model=""), "model", "a name"),
        (document(model="Kimi"), "model", "lower-case"),
        (document(model=3), "model", "a name"),
        (document(source="hub"), "source", "a table with"),
        (document(source={"kind": "ftp", "location": "x", "revision": ""}), "source.kind", "one of hub"),
        (document(source={"kind": "hub", "location": "a/b", "revision": "main"}), "source.revision", "40 hexadecimal"),
        (document(source={"kind": "hub", "location": "a/b", "revision": ""}), "source.revision", "the commit"),
        (document(source={"kind": "http", "location": "http://x/", "revision": COMMIT}), "source.revision", '""'),
        (document(source={"kind": "http", "location": "", "revision": ""}), "source.location", "where"),
        (document(source={"kind": "http", "location": "a\nb", "revision": ""}), "source.location", "where"),
        (document(files={}), "files", "a list"),
        (document(files=[]), "files", "at least one"),
        (document(files=["x"]), "files[0]", "a table with"),
        (with_file(size=None), "x: size", "bytes"),
        (with_file(size=-1), "x: size", "bytes"),
        (with_file(size=True), "x: size", "bytes"),
        (with_file(size=1.0), "x: size", "bytes"),
        (with_file(size="1"), "x: size", "bytes"),
        (with_file(size=1 << 70), "x: size", "bytes"),
        (with_file(mode=420), "files[0]", "only path"),
        (with_file(sha256=None), "x: hash", "exactly one"),
        (with_file(git_sha1="0" * 40), "x: hash", "exactly one"),
        (with_file(sha256="0" * 63), "x: sha256", "64 lower-case"),
        (with_file(sha256="A" * 64), "x: sha256", "64 lower-case"),
        (with_file(sha256=0), "x: sha256", "64 lower-case"),
        (with_file(sha256=None, git_sha1=ZEROS), "x: git_sha1", "40 lower-case"),
    ],
)
def test_a_wrong_document_is_refused_with_place_and_expectation(text, where, expected):
    with pytest.raises(AerieError) as raised:
        parse(text)
    assert raised.value.where == f"manifest: {where}"
    assert expected in raised.value.expected
    assert "weights.manifest" in raised.value.remedy


@pytest.mark.parametrize(
    ("paths", "expected"), [(["a", "a"], "each path once"), (["a", "a/b"], "not both"), (["b", "a/b/c", "a/b"], "both")]
)
def test_two_files_of_one_place_are_refused(paths, expected):
    rows = [{"path": path, "size": 1, "sha256": ZEROS} for path in paths]
    with pytest.raises(AerieError, match=expected):
        parse(document(files=rows))


def test_it_needs_nothing_but_the_standard_library():
    run = [sys.executable, "-I", "-S", "-c"]
    code = f"import sys; sys.path.insert(0, {str(repository())!r}); import aerie.weights.manifest"
    assert subprocess.run([*run, code], check=False, capture_output=True, text=True, timeout=60).stderr == ""
