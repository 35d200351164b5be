"""Manifests from real http: what hubs, web servers, buckets and folders have, and what they say when they are wrong."""

import hashlib
import http.server
import json
import os
import threading
from typing import ClassVar

import pytest

import lab.hub
from aerie.errors import AerieError
from aerie.lock import WeightsModel
from aerie.weights import sources
from aerie.weights.manifest import File

MODEL = lab.hub.model(shards=2, shard_bytes=50_000)
SHARD = "model-00001-of-00002.safetensors"
NAME = "aerie-lab/tiny"
SHA256 = {path: hashlib.sha256(data).hexdigest() for path, data in MODEL.items()}
WHOLE = tuple(File(path=path, size=len(MODEL[path]), sha256=SHA256[path]) for path in sorted(MODEL))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with lab.hub.serve(tmp_path_factory.mktemp("hub"), page=3) as served:
        served.first = served.add(NAME, MODEL | {"old.json": b"{}"})
        served.revision = served.add(NAME, MODEL)
        served.add("aerie-lab/gated", MODEL, "gated")
        served.add("aerie-lab/private", MODEL, "private")
        yield served


@pytest.fixture
def hub(served, monkeypatch, tmp_path):
    """The served hub with nothing wrong, and a home without a token."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    served.mend()
    return served


@pytest.fixture
def ask(hub):
    """Reads the manifest of a source on the hub."""

    def ask(source, location, revision="", say=lambda line: None):
        model = WeightsModel(source=source, location=location, revision=revision)
        return sources.read("tiny", model, endpoint=hub.url, say=say)

    return ask


@pytest.fixture
def with_token(tmp_path):
    """Gives the controller this token, in its file."""

    def put(token):
        (tmp_path / "token").write_text(token)

    return put


def test_a_hubs_manifest_has_every_page_and_the_hash_of_each_kind(ask, hub):
    found = ask("hub", NAME, hub.revision)
    assert (found.source.location, found.source.revision) == (NAME, hub.revision)
    assert [(file.path, file.size) for file in found.files] == [(path, len(MODEL[path])) for path in sorted(MODEL)]
    assert {file.path: file.sha256 for file in found.files if file.sha256} == {
        path: SHA256[path] for path in MODEL if path.endswith(".safetensors")
    }
    small = next(file for file in found.files if file.path == "config.json")
    blob = b"blob %d\0" % len(MODEL["config.json"]) + MODEL["config.json"]
    assert small.git_sha1 == hashlib.sha1(blob).hexdigest()
    pages = [row for row in hub.requests() if "/tree/" in row["path"]]
    assert len(pages) >= 3


def test_without_a_revision_the_newest_is_taken_and_named(ask, hub):
    assert ask("hub", NAME).source.revision == hub.revision
    assert [file.path for file in ask("hub", NAME, hub.first).files] == sorted([*MODEL, "old.json"])


@pytest.mark.parametrize(
    ("name", "revision", "token", "seen", "expected", "remedy"),
    [
        ("aerie-lab/none", "", "", "401", "a repository that you may read", "HF_TOKEN_PATH"),
        ("aerie-lab/none", "", lab.hub.MEMBER, "404", "a repository that you may read", "location"),
        ("aerie-lab/private", "", "", "401", "a repository that you may read", "HF_TOKEN_PATH"),
        ("aerie-lab/private", "", lab.hub.STRANGER, "404", "a repository that you may read", "weights.token_file"),
        (NAME, "0" * 40, "", "404", "a commit of the repository", "revision"),
        (NAME, "", "hf_wrong", "401 Invalid credentials", "a token that the hub takes", "mode 0600"),
    ],
)
def test_what_a_hub_refuses_is_told_with_the_remedy(ask, with_token, name, revision, token, seen, expected, remedy):
    if token:
        with_token(token)
    with pytest.raises(AerieError) as raised:
        ask("hub", name, revision)
    assert name in raised.value.where
    assert raised.value.seen.startswith(seen)
    assert (raised.value.expected, remedy in raised.value.remedy) == (expected, True)


def test_a_closed_gate_hides_no_listing_and_a_private_one_opens_for_its_token(ask, with_token):
    assert len(ask("hub", "aerie-lab/gated").files) == len(MODEL)
    with_token(lab.hub.MEMBER)
    assert len(ask("hub", "aerie-lab/private").files) == len(MODEL)


@pytest.mark.parametrize(
    ("kind", "expected", "remedy"),
    [
        ("401", "a token that the hub takes", "HF_TOKEN_PATH"),
        ("403", "a token that the hub takes", "HF_TOKEN_PATH"),
        ("429", "fewer requests than the hub allows", "Wait"),
        ("500", "the repository's files", "Try again"),
    ],
)
def test_what_a_hub_says_of_its_own_is_told_with_the_remedy(ask, hub, kind, expected, remedy):
    hub.fault(kind, "/api/models/*/revision/*")
    with pytest.raises(AerieError) as raised:
        ask("hub", NAME, hub.revision)
    assert (raised.value.seen[:3], raised.value.expected) == (kind, expected)
    assert remedy in raised.value.remedy


def test_a_hub_that_is_busy_for_a_moment_is_asked_again(ask, hub):
    hub.fault("429", "/api/models/*/tree/*", times=1, retry_after="0")
    assert len(ask("hub", NAME, hub.revision).files) == len(MODEL)


def test_a_hub_that_gives_another_revision_is_not_believed(ask, hub):
    hub.fault("wrong-revision", "/api/*")
    with pytest.raises(AerieError, match="does not honour revisions") as raised:
        ask("hub", NAME, hub.first)
    assert (raised.value.seen, raised.value.expected) == (f"commit {hub.revision}", hub.first)


def test_a_listing_that_leaves_the_models_folder_is_refused(ask, hub):
    hub.add("aerie-lab/evil", MODEL)
    index = hub.folder / "repositories/aerie-lab/evil/index.json"
    document = json.loads(index.read_text())
    entries = document["revisions"][document["head"]]
    entries["../../etc/cron.d/evil"] = entries[SHARD]
    index.write_text(json.dumps(document))
    with pytest.raises(AerieError, match=r"no empty part, '\.' or '\.\.'"):
        ask("hub", "aerie-lab/evil")


def test_what_is_no_hub_is_said_to_be_none(ask, hub):
    with pytest.raises(AerieError, match="a hub's answer"):
        sources.read("tiny", WeightsModel(source="hub", location=NAME), endpoint="http://127.0.0.1:9")
    with pytest.raises(AerieError) as raised:
        sources.read("tiny", WeightsModel(source="hub", location=NAME), endpoint=hub.store_url)
    assert raised.value.seen.startswith("403")


def test_a_web_folders_manifest_is_that_of_its_checksums(ask, hub):
    said = []
    found = ask("http", hub.files_url(NAME, hub.revision), say=said.append)
    assert (found.files, said) == (WHOLE, [])
    assert not [row for row in hub.requests()[-50:] if row["method"] == "GET" and row["path"].endswith(SHARD)]


@pytest.mark.parametrize("kind", ["403", "404"])
@pytest.mark.parametrize("source", ["http", "s3"])
def test_without_checksums_every_file_is_read_once(ask, hub, source, kind):
    hub.fault(kind, "*SHA256SUMS")
    said = []
    location = (hub.files_url if source == "http" else hub.bucket_url)(NAME, hub.revision)
    before = len(hub.requests())
    assert ask(source, location, say=said.append).files == WHOLE
    assert (len(said), said[0].split(" without")[0]) == (len(MODEL) + 1, f"{len(MODEL)} files")
    read = [row["path"] for row in hub.requests()[before:] if row["bytes"] and row["path"].endswith(".safetensors")]
    assert len(read) == len(set(read)) == 2


def test_a_bucket_is_listed_page_by_page(ask, hub):
    before = len(hub.requests())
    assert ask("s3", hub.bucket_url(NAME, hub.revision).rstrip("/")).files == WHOLE
    assert len([row for row in hub.requests()[before:] if row["path"] == f"/{lab.hub.BUCKET}"]) >= 3


def test_a_file_that_was_renamed_upstream_gives_another_manifest(ask, hub):
    renamed = {("renamed.json" if path == "config.json" else path): data for path, data in MODEL.items()}
    revision = hub.add("aerie-lab/renamed", renamed)
    found = ask("http", hub.files_url("aerie-lab/renamed", revision))
    assert {file.path for file in found.files} ^ set(MODEL) == {"renamed.json", "config.json"}
    assert found.files != WHOLE


def test_a_file_that_ends_early_is_not_believed(ask, hub):
    hub.fault("404", "*SHA256SUMS")
    hub.fault("cut", SHARD)
    with pytest.raises(AerieError, match=r"a whole answer|as was said before"):
        ask("http", hub.files_url(NAME, hub.revision))


def test_a_server_that_is_busy_for_a_moment_is_asked_again_and_a_broken_one_not_for_ever(ask, hub):
    hub.fault("503", "*SHA256SUMS", times=2, retry_after="0")
    assert ask("http", hub.files_url(NAME, hub.revision)).files == WHOLE
    hub.mend()
    hub.fault("500", "*SHA256SUMS", retry_after="0")
    before = len(hub.requests())
    with pytest.raises(AerieError, match="500"):
        ask("http", hub.files_url(NAME, hub.revision))
    assert len(hub.requests()) - before == 4


@pytest.mark.parametrize(
    ("source", "where", "seen"),
    [
        ("http", "/files/aerie-lab/none/", "404"),
        ("http", "/files/aerie-lab/tiny/{revision}/config.json", "404"),
        ("s3", "/lab-bucket/aerie-lab/none/", "no key below it"),
        ("s3", "/other/aerie-lab/", "404"),
        ("s3", "/files/{name}/{revision}/", "404"),
    ],
)
def test_a_wrong_address_is_told(ask, hub, source, where, seen):
    with pytest.raises(AerieError) as raised:
        ask(source, hub.url + where.format(name=NAME, revision=hub.revision))
    assert str(raised.value.seen).startswith(seen)
    assert "[weights.models]" in raised.value.remedy


def test_nobody_at_the_address_is_told(ask):
    with pytest.raises(AerieError, match="refused"):
        ask("http", "http://127.0.0.1:9/models/")


@pytest.fixture
def pages():
    """A web server that answers with these bodies by path, and its address."""

    class Pages(http.server.BaseHTTPRequestHandler):
        bodies: ClassVar[dict[str, tuple[str, bytes]]] = {}

        def do_GET(self):
            kind, body = self.bodies.get(self.path, ("", None))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Pages.bodies, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        Pages.bodies.clear()


def test_an_index_page_leads_to_files_below_it_alone(ask, pages):
    bodies, url = pages
    index = (
        b'<a href="?C=N;O=D">Name</a><a href="/m/">up</a><a href="../">up</a><A HREF="a%20b.json">a</A>'
        b'<a href="http://elsewhere/x">x</a><a href="/m/k/c.bin">c</a><a href="sub/">s</a><a href="sub/d.bin">d</a>'
        b'<a href="#top">t</a><a name="x">n</a>'
    )
    bodies |= {"/m/k/": ("text/html", index), "/m/k/a%20b.json": ("", b"{}"), "/m/k/c.bin": ("", b"c")}
    bodies |= {"/m/k/sub/": ("text/html", b'<a href="d.bin">d</a>'), "/m/k/sub/d.bin": ("", b"dd")}
    found = ask("http", f"{url}/m/k")
    assert [(file.path, file.size) for file in found.files] == [("a b.json", 2), ("c.bin", 1), ("sub/d.bin", 2)]


@pytest.mark.parametrize(
    ("bodies", "source", "said"),
    [
        ({"/b/m/SHA256SUMS": ("", b"no sums")}, "http", "sha256sum's lines"),
        ({"/b/m/SHA256SUMS": ("", b"\xff\xfe")}, "http", "not UTF-8"),
        ({"/b/m/SHA256SUMS": ("", b"0" * 64 + b"  gone.bin\n")}, "http", "404"),
        ({"/b/m/": ("application/json", b"[]")}, "http", "an index page in HTML"),
        ({"/b/m/": ("text/html", b"<p>empty</p>")}, "http", "an index without files"),
        (
            {"/b/m/SHA256SUMS": ("", b""), "/b/m/": ("text/html", b'<a href="SHA256SUMS">s</a>')},
            "http",
            "an index without files",
        ),
        ({"/b": ("", b"<html>")}, "s3", "a listing below the prefix"),
        ({"/b": ("", b"<html></html>")}, "s3", "<html>"),
        ({"/b": ("", b"<!DOCTYPE a><ListBucketResult/>")}, "s3", "a document type"),
        (
            {"/b": ("", b"<ListBucketResult><Contents><Key>z/x</Key></Contents></ListBucketResult>")},
            "s3",
            "the key 'z/x'",
        ),
        ({"/b": ("", b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")}, "s3", "its next one"),
        (
            {
                "/b": (
                    "",
                    b"<ListBucketResult><IsTruncated>true</IsTruncated>"
                    b"<NextContinuationToken>1</NextContinuationToken></ListBucketResult>",
                )
            },
            "s3",
            "its next one",
        ),
        (
            {
                "/b": (
                    "",
                    b"<ListBucketResult><Contents><Key>m/a</Key><Size>1</Size></Contents></ListBucketResult>",
                ),
                "/b/m/SHA256SUMS": ("", b"0" * 64 + b"  gone.bin\n"),
            },
            "s3",
            "gone.bin",
        ),
    ],
)
def test_an_index_that_cannot_be_is_refused(ask, pages, bodies, source, said):
    known, url = pages
    known |= {path: body for path, body in bodies.items() if path != "/b"}
    if "/b" in bodies:  # whatever is asked of the bucket
        query = "list-type=2&prefix=m%2F&encoding-type=url"
        known |= {f"/b?{query}": bodies["/b"], f"/b?{query}&continuation-token=1": bodies["/b"]}
    with pytest.raises(AerieError) as raised:
        ask(source, f"{url}/b/m/")
    assert said in str(raised.value)


@pytest.fixture
def folder(tmp_path):
    lab.hub.write_model(tmp_path / "model", shards=2, shard_bytes=50_000)
    return tmp_path / "model"


def test_a_folders_manifest_has_every_file_but_aeries_own(ask, folder):
    (folder / ".aerie").mkdir()
    (folder / ".aerie/verified.json").write_text("{}")
    os.symlink(folder / "config.json", folder / "link.json")
    found = ask("folder", str(folder))
    linked = File(path="link.json", size=len(MODEL["config.json"]), sha256=SHA256["config.json"])
    assert found.files == tuple(sorted((*WHOLE, linked), key=lambda file: file.path))


@pytest.mark.parametrize("wrong", ["gone", "empty", "broken-link", "folder-link", "pipe"])
def test_a_folder_that_is_no_model_is_refused(ask, folder, tmp_path, wrong):
    if wrong == "gone":
        folder = tmp_path / "none"
    elif wrong == "empty":
        folder = tmp_path / "empty"
        folder.mkdir()
    elif wrong == "broken-link":
        os.symlink("none", folder / "x")
    elif wrong == "folder-link":
        os.symlink(folder / "tokenizer", folder / "x")
    else:
        os.mkfifo(folder / "x")
    with pytest.raises(AerieError) as raised:
        ask("folder", str(folder))
    assert raised.value.where.startswith(str(folder))
