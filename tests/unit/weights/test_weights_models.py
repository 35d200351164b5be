"""Models of a lock and their manifests: what is loaded, what is made, and what is never taken for the right one."""

import json
import shutil
import subprocess

import pytest

import lab.hub
from aerie import lock
from aerie.errors import AerieError, UsageError
from aerie.paths import repository
from aerie.runbook.yamlfile import SpecError
from aerie.weights import models
from aerie.weights.manifest import File, Manifest, Source, digest, dump

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = lab.hub.model(shards=1, shard_bytes=1000)
NAME = "aerie-lab/tiny"
BASE = lock.path("debian13-cuda131").read_text().partition("\n[weights]")[0]
TINY = Manifest(
    model="tiny",
    source=Source(kind="hub", location=NAME, revision=COMMIT),
    files=(File(path="config.json", size=2, sha256="0" * 64),),
)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch, tmp_path):
    """Whoever runs the tests keeps the own token of a real hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def inventory(tmp_path):
    """Writes locks and manifests into an inventory's folder, which it gives."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "hosts.yml").write_text("all: {hosts: {localhost: {ansible_connection: local}}}\n")

    def write(manifest=None, *, name="one", hub="", table=None, **changes):
        keys = {"source": "hub", "location": NAME, "revision": COMMIT, "manifest_sha256": digest(TINY)} | changes
        lines = [f'{key} = "{value}"' for key, value in keys.items()]
        text = "\n".join([f'\n[weights]\nhub = "{hub}"', "[weights.models.tiny]", *lines]) if table is None else table
        named = BASE.replace('name = "debian13-cuda131"', f'name = "{name}"')
        (tmp_path / f"locks/{name}.lock.toml").write_text(f"{named}{text}\n")
        if manifest is not None:
            (tmp_path / "manifests/tiny.manifest.json").write_bytes(manifest)
        return tmp_path

    return write


def load(folder, name="tiny"):
    return models.load(lock.load("one", folder), name, folder)


def test_a_manifest_is_the_one_that_the_lock_names(inventory):
    assert load(inventory(dump(TINY))) == TINY


@pytest.mark.parametrize(
    ("manifest", "changes", "seen", "expected"),
    [
        (None, {}, "no manifest", "tiny.manifest.json in "),
        (dump(TINY), {"manifest_sha256": ""}, "no manifest_sha256", "the digest"),
        (dump(TINY), {"manifest_sha256": "1" * 64}, digest(TINY), "1" * 64),
        (dump(TINY)[:-5], {}, "Expecting", "JSON"),
        (dump(TINY), {"revision": "f" * 40}, COMMIT, "f" * 40),
        (dump(TINY), {"location": "aerie-lab/other"}, NAME, "aerie-lab/other"),
        (dump(TINY), {"source": "s3", "location": "https://a/b/c", "revision": ""}, "hub", "s3"),
        (dump(TINY).replace(b'"size": 2', b'"size": 3'), {}, "", digest(TINY)),
    ],
    ids=["no-file", "no-digest", "other-digest", "cut", "revision", "location", "source", "edited"],
)
def test_another_manifest_is_refused_with_the_command_that_makes_it(inventory, manifest, changes, seen, expected):
    with pytest.raises(AerieError) as raised:
        load(inventory(manifest, **changes))
    assert str(raised.value.seen).startswith(seen)
    assert expected in raised.value.expected
    assert raised.value.remedy == "Run ./invoke weights.manifest --model tiny --lock one."


def test_a_model_that_the_lock_does_not_have_is_told_the_nearest(inventory):
    with pytest.raises(UsageError, match=r"one of tiny. Did you mean tiny\?"):
        load(inventory(), "tini")
    with pytest.raises(UsageError, match="has none"):
        load(inventory(table=""), "tiny")


@pytest.mark.parametrize("name", [name for name in lock.names() if name.startswith("ubuntu")])
def test_the_shipped_locks_name_the_model_and_its_drafters_and_every_pinned_manifest_is_there(name):
    loaded = lock.load(name)
    assert loaded.weights.models["kimi-k2.5"].location == "moonshotai/Kimi-K2.5"
    drafters = [model for model in loaded.weights.models if "eagle3" in model]
    assert len(drafters) == 5
    for model, table in loaded.weights.models.items():
        if table.manifest_sha256:
            assert models.load(loaded, model).model == model


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with lab.hub.serve(tmp_path_factory.mktemp("hub")) as served:
        served.revision = served.add(NAME, MODEL)
        yield served


def test_what_is_made_and_written_is_what_is_loaded(inventory, hub):
    folder = inventory(hub=hub.url, revision="", manifest_sha256="")
    made = models.make("tiny", folder=folder)
    assert (made.path, made.path.exists(), made.lock) == (folder / "manifests/tiny.manifest.json", False, "one")
    models.write(made)
    sha256 = digest(made.manifest)
    assert made.lock_lines == (f'[weights.models."tiny"]\nrevision = "{hub.revision}"\nmanifest_sha256 = "{sha256}"')
    assert load(inventory(hub=hub.url, revision=hub.revision, manifest_sha256=sha256)) == made.manifest
    assert models.make("tiny", folder=folder).manifest == made.manifest


def test_what_changed_under_its_digest_is_named_and_refused(inventory, tmp_path):
    place = tmp_path / "model"
    lab.hub.write_model(place, shards=1, shard_bytes=1000)
    where = {"source": "folder", "location": str(place), "revision": ""}
    made = models.make("tiny", folder=inventory(manifest_sha256="", **where))
    models.write(made)
    folder = inventory(manifest_sha256=digest(made.manifest), **where)
    (place / "config.json").rename(place / "renamed.json")
    (place / "README.md").write_text("another")
    with pytest.raises(AerieError, match='set manifest_sha256 = ""') as raised:
        models.make("tiny", folder=folder)
    assert raised.value.seen == "changed README.md; gone config.json; new renamed.json"
    assert load(folder) == made.manifest
    shutil.rmtree(folder / "manifests")
    with pytest.raises(AerieError, match="a manifest with the digest"):
        models.make("tiny", folder=folder)


def test_locks_that_agree_on_a_model_need_not_be_named(inventory, hub):
    inventory(hub=hub.url, revision="", manifest_sha256="")
    folder = inventory(name="two", hub=hub.url, revision="", manifest_sha256="")
    assert models.make("tiny", folder=folder).lock == "one"
    inventory(name="two", hub=hub.url, revision=hub.revision, manifest_sha256="")
    with pytest.raises(UsageError, match="tiny differs in one, two"):
        models.make("tiny", folder=folder)
    assert models.make("tiny", "two", folder).lock == "two"


def test_a_model_of_no_lock_and_a_lock_of_no_name_are_usage_errors(inventory):
    with pytest.raises(UsageError, match="kimi-k25-eagle3"):
        models.make("kimi", folder=inventory())
    with pytest.raises(UsageError, match="ubuntu2404-cuda131"):
        models.make("tiny", "ubuntu", folder=inventory())
    with pytest.raises(SpecError):
        models.make("tiny", "one", folder=inventory(revision="main"))


def test_the_task_prints_the_lines_for_the_lock_alone_on_stdout(inventory, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    folder = inventory(revision="", manifest_sha256="")

    def invoke(*words):
        argv = ["./invoke", "weights.manifest", "--inventory", str(folder / "hosts.yml"), *words]
        return subprocess.run(argv, cwd=repository(), check=False, capture_output=True, text=True, timeout=120)

    checked = invoke("--model", "tiny", "--check", "--json")
    document = json.loads(checked.stdout)
    file = folder / "manifests/tiny.manifest.json"
    assert (checked.returncode, file.exists()) == (0, False)
    assert (document["schema"], document["revision"], document["files"]) == (models.SCHEMA, hub.revision, len(MODEL))
    made = invoke("--model", "tiny")
    assert made.stdout == (
        f'[weights.models."tiny"]\nrevision = "{hub.revision}"\nmanifest_sha256 = "{document["manifest_sha256"]}"\n'
    )
    assert " ".join(made.stderr.split()).endswith("7 files, 0.000 GB; in lock one:")
    assert file.exists()
    wrong = invoke("--model", "tini")
    assert (wrong.returncode, "Did you mean tiny?" in wrong.stderr, wrong.stdout) == (2, True, "")
