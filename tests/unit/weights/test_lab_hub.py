"""The lab's hub is one: what clients rely on, and every way in which it goes wrong on demand."""

import hashlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import pytest

import lab.hub
from aerie.errors import UsageError
from tests.ports import kept
from tests.waiting import PATIENCE_S, until

MODEL = lab.hub.model(shards=2, shard_bytes=100_000)
SHARD = "model-00001-of-00002.safetensors"
NAME = "aerie-lab/tiny"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with lab.hub.serve(tmp_path_factory.mktemp("hub"), page=3) as served:
        served.revision = served.add(NAME, MODEL)
        served.add("aerie-lab/gated", MODEL, "gated")
        served.add("aerie-lab/private", MODEL, "private")
        yield served


@pytest.fixture
def hub(served):
    served.mend()
    return served


def ask(url, *, method="GET", token="", silence_s=PATIENCE_S, **headers):
    """(status, headers, body) of one request, redirects not followed; the body that came where it was cut short."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request(method, path, headers=headers | ({"Authorization": f"Bearer {token}"} if token else {}))
    sock = connection.sock
    answer = connection.getresponse()
    sock.settimeout(silence_s)
    try:
        body = answer.read()
    except http.client.IncompleteRead as error:
        body = error.partial
    except TimeoutError:
        body = None
    connection.close()
    return answer.status, answer.headers, body


def resolve(hub, path=SHARD, name=NAME, revision="main", **how):
    return ask(f"{hub.url}/{name}/resolve/{revision}/{urllib.parse.quote(path)}", **how)


def content(hub, path=SHARD, **how):
    """The answer of the store for a file."""
    return ask(resolve(hub, path)[1]["Location"], **how)


def test_a_listing_comes_in_pages_with_the_hashes_of_both_kinds(hub):
    url, rows = f"{hub.url}/api/models/{NAME}/tree/{hub.revision}?recursive=true", []
    while url:
        status, headers, body = ask(url)
        rows += json.loads(body)
        url = headers["Link"].partition("<")[2].partition(">")[0] if headers["Link"] else None
    assert status == 200
    files = {row["path"]: row for row in rows if row["type"] == "file"}
    assert sorted(files) == sorted(MODEL)
    assert {path: row["size"] for path, row in files.items()} == {path: len(data) for path, data in MODEL.items()}
    assert files[SHARD]["lfs"]["oid"] == hashlib.sha256(MODEL[SHARD]).hexdigest()
    assert [row["path"] for row in rows if row["type"] == "directory"] == ["tokenizer"]
    small = b"blob %d\0" % len(MODEL["config.json"]) + MODEL["config.json"]
    assert (files["config.json"]["oid"], "lfs" in files["config.json"]) == (hashlib.sha1(small).hexdigest(), False)


def test_the_same_contents_have_the_same_revision_and_earlier_ones_stay(hub, tmp_path):
    lab.hub.write_model(tmp_path / "model", shards=2, shard_bytes=100_000)
    first = hub.add("aerie-lab/changed", tmp_path / "model")
    second = hub.add("aerie-lab/changed", MODEL | {"config.json": b"{}"})
    assert first == hub.add("aerie-lab/changed", MODEL) != second
    assert resolve(hub, "config.json", "aerie-lab/changed", second)[2] == b"{}"
    assert resolve(hub, "config.json", "aerie-lab/changed", first)[2] == MODEL["config.json"]
    status, headers, _ = resolve(hub, "config.json", "aerie-lab/changed", "0" * 40)
    assert (status, headers["X-Error-Code"]) == (404, "RevisionNotFound")


def test_a_large_file_redirects_to_another_host_that_takes_no_token(hub):
    status, headers, _ = resolve(hub, token=lab.hub.MEMBER)
    assert (status, headers["X-Repo-Commit"]) == (302, hub.revision)
    assert headers["Location"].startswith(hub.store_url)
    assert content(hub)[2] == MODEL[SHARD]
    assert content(hub, token=lab.hub.MEMBER)[0] == 400
    assert ask(headers["Location"].replace("Signature=", "Signature=0"))[0] == 403


@pytest.mark.parametrize(
    ("wanted", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=99990-", 206, slice(99990, None)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=5-4", 416, slice(0, 0)),
        ("bytes=200000-", 416, slice(0, 0)),
        ("bytes=-", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
    ],
)
def test_ranges(hub, wanted, status, part):
    found = content(hub, Range=wanted)
    assert (found[0], found[2]) == (status, MODEL[SHARD][part])


@pytest.mark.parametrize(
    ("name", "token", "status", "code"),
    [
        ("aerie-lab/gated", "", 401, "GatedRepo"),
        ("aerie-lab/gated", lab.hub.STRANGER, 403, "GatedRepo"),
        ("aerie-lab/gated", lab.hub.MEMBER, 302, None),
        ("aerie-lab/gated", "hf_wrong", 401, None),
        ("aerie-lab/private", "", 401, "RepoNotFound"),
        ("aerie-lab/private", lab.hub.STRANGER, 404, "RepoNotFound"),
        ("aerie-lab/private", lab.hub.MEMBER, 302, None),
        ("aerie-lab/none", "", 401, "RepoNotFound"),
        ("aerie-lab/none", lab.hub.MEMBER, 404, "RepoNotFound"),
    ],
)
def test_who_may_have_a_file(hub, name, token, status, code):
    found = resolve(hub, name=name, token=token)
    assert (found[0], found[1]["X-Error-Code"]) == (status, code)


def test_a_revision_is_a_plain_folder_and_keys_of_a_bucket_too(hub):
    base = hub.files_url(NAME, hub.revision)
    index = ask(base)[2].decode()
    assert 'href="tokenizer/"' in index and 'href="chat%20template%20%C3%BC.jinja"' in index
    sums = dict(reversed(line.split("  ", 1)) for line in ask(f"{base}SHA256SUMS")[2].decode().splitlines())
    assert sums == {path: hashlib.sha256(data).hexdigest() for path, data in MODEL.items()}
    assert ask(f"{hub.bucket_url(NAME, hub.revision)}config.json")[2] == MODEL["config.json"]
    page = ask(f"{hub.url}/{lab.hub.BUCKET}?list-type=2&prefix={NAME}/")[2].decode()
    assert page.count("<Key>") == 3 and "<NextContinuationToken>3<" in page


@pytest.mark.parametrize("kind", ["401", "403", "404", "416", "429", "500", "503"])
def test_a_status_on_demand_for_the_files_of_a_pattern(hub, kind):
    hub.fault(kind, "*.safetensors", times=1, retry_after="7")
    assert resolve(hub, "config.json")[0] == 200
    status, headers, _ = resolve(hub)
    assert (status, headers["Retry-After"]) == (int(kind), "7")
    assert resolve(hub)[0] == 302


def test_a_pattern_of_the_request_reaches_listings_and_the_store(hub):
    hub.fault("503", "/api/*")
    hub.fault("500", f"/{NAME}/{hub.revision}/*")
    assert ask(f"{hub.url}/api/models/{NAME}")[0] == 503
    assert (resolve(hub)[0], content(hub)[0]) == (302, 500)


def test_half_an_answer_then_nothing_or_the_end(hub):
    hub.fault("stall", SHARD)
    assert content(hub, silence_s=0.5)[2] is None
    before = len(hub.requests())
    with ThreadPoolExecutor(max_workers=1) as pool:
        stalled = pool.submit(content, hub)
        until("both requests", lambda: len(hub.requests()) >= before + 2, hub.requests)  # for the address, to the store
        hub.mend()
        assert stalled.result()[2] == MODEL[SHARD][: len(MODEL[SHARD]) // 2]
    hub.fault("cut", SHARD, at=1000)
    assert content(hub)[2] == MODEL[SHARD][:1000]


def test_wrong_contents_keep_their_names(hub):
    hub.fault("truncated", SHARD, at=70_000)
    assert content(hub)[2] == MODEL[SHARD][:70_000]
    hub.mend()
    hub.fault("flipped", SHARD, at=5)
    assert content(hub, Range="bytes=6-")[2] == MODEL[SHARD][6:]
    wrong = content(hub)[2]
    assert [index for index, (a, b) in enumerate(zip(wrong, MODEL[SHARD], strict=True)) if a != b] == [5]


def test_a_server_without_ranges_and_a_slow_one(hub):
    hub.fault("no-range", SHARD)
    status, headers, body = content(hub, Range="bytes=5-")
    assert (status, headers["Accept-Ranges"], len(body)) == (200, None, len(MODEL[SHARD]))
    hub.mend()
    hub.fault("slow", SHARD, rate_bytes_s=1 << 20)
    assert content(hub)[2] == MODEL[SHARD]


def test_another_revision_than_was_asked_for(hub):
    first = hub.add("aerie-lab/moved", MODEL)
    head = hub.add("aerie-lab/moved", MODEL | {"config.json": b"{}"})
    hub.fault("wrong-revision", "config.json", times=1)
    found = [resolve(hub, "config.json", "aerie-lab/moved", first) for _ in range(2)]
    assert [(headers["X-Repo-Commit"], body) for _, headers, body in found] == [
        (head, b"{}"),
        (first, MODEL["config.json"]),
    ]


def test_the_client_of_hubs_takes_it_for_one(hub, tmp_path):
    huggingface_hub.snapshot_download("aerie-lab/gated", local_dir=tmp_path, endpoint=hub.url, token=lab.hub.MEMBER)
    assert {path: (tmp_path / path).read_bytes() for path in MODEL} == MODEL
    with pytest.raises(huggingface_hub.errors.GatedRepoError):
        huggingface_hub.hf_hub_download(
            "aerie-lab/gated", "config.json", cache_dir=tmp_path, endpoint=hub.url, token=lab.hub.STRANGER
        )


def test_signed_addresses_expire_by_time_and_on_demand(hub, tmp_path):
    hub.fault("expired", SHARD, times=1)
    assert [content(hub)[0], content(hub)[0]] == [403, 200]
    with lab.hub.serve(tmp_path, expires_s=0) as short:
        short.add(NAME, MODEL)
        assert b"expired" in content(short)[2]


def test_a_hub_that_is_gone_comes_back_where_it_was_and_tells_what_was_asked(hub):
    url = hub.url
    hub.stop()
    with kept(hub.spec.hub, hub.spec.store):
        with pytest.raises(ConnectionRefusedError):
            resolve(hub)
        hub.start()
    assert (hub.url, resolve(hub, token=lab.hub.MEMBER)[0]) == (url, 302)
    last = hub.requests()[-1]
    assert (last["server"], last["method"], last["status"], last["token"]) == ("hub", "GET", 302, True)
    assert last["path"].endswith(SHARD)


def test_an_unknown_fault_is_told_the_known_ones(hub):
    with pytest.raises(UsageError, match="stall"):
        hub.fault("explode")
