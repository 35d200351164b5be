"""The lock's table [weights]: what is read, and what a wrong one is told with line and key."""

from pathlib import Path

import pytest

from aerie import lock
from aerie.lock import toml
from aerie.runbook.yamlfile import SpecError

NAME = "debian13-cuda131"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TABLE = f"""
[weights]
path = "/srv/aerie/weights"
required = ["tiny-1.5"]
parallel = 16
port = 8378

[weights.models."tiny-1.5"]
source = "hub"
location = "aerie-lab/tiny"
revision = "{COMMIT}"
manifest_sha256 = ""

[weights.models.mirror]
source = "s3"
location = "https://store/models/tiny/"
"""
BASE = lock.path(NAME).read_text().partition("\n[weights]")[0]


@pytest.fixture
def load(tmp_path: Path):
    """Reads a lock whose table of weights is this text."""

    def load(table):
        (tmp_path / "locks").mkdir(exist_ok=True)
        (tmp_path / "locks" / "w.lock.toml").write_text(BASE.replace(f'name = "{NAME}"', 'name = "w"') + table)
        return lock.load("w", tmp_path)

    return load


def test_a_lock_names_models_with_source_revision_and_manifest(load):
    weights = load(TABLE).weights
    assert (weights.path, weights.required, weights.parallel, weights.port) == (
        "/srv/aerie/weights",
        ("tiny-1.5",),
        16,
        8378,
    )
    assert (weights.models["tiny-1.5"].revision, weights.models["mirror"].manifest_sha256) == (COMMIT, "")


def test_a_lock_without_models_has_the_defaults(load):
    assert load("").weights == lock.Weights()


def test_a_model_survives_being_written_out(load, tmp_path):
    loaded = load(TABLE)
    (tmp_path / "locks" / "w.lock.toml").write_text(toml.to_toml(loaded))
    assert lock.load("w", tmp_path) == loaded


def test_the_table_is_the_roles_variables(load):
    variables = lock.role_variables(load(TABLE))
    assert variables["weights_path"] == "/srv/aerie/weights"
    assert variables["weights_models"]["mirror"]["location"] == "https://store/models/tiny/"


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ('path = "/srv', 'path = "srv', "weights.path", "'srv/aerie/weights'"),
        ("parallel = 16", "parallel = 0", "weights.parallel", "0, expected"),
        ("port = 8378", "port = 70000", "weights.port", "70000, expected"),
        ('["tiny-1.5"]', '["tiny"]', "weights.required[0]", "a model of weights.models: tiny-1.5, mirror"),
        ('"tiny-1.5"]\nsource = "hub"', '"tiny-1.5"]\nsource = "ftp"', "weights.models.tiny-1.5.source", "'ftp'"),
        ("revision = ", "revison = ", "weights.models.tiny-1.5.revison", "an unknown key"),
        (COMMIT, "main", "weights.models.tiny-1.5.revision", "'main', expected"),
        (COMMIT, COMMIT.upper(), "weights.models.tiny-1.5.revision", "expected"),
        ('sha256 = ""', 'sha256 = "0"', "weights.models.tiny-1.5.manifest_sha256", "'0', expected"),
        ("aerie-lab/tiny", "tiny", "weights.models.tiny-1.5", "'tiny' of source 'hub', expected organization/name"),
        ("aerie-lab/tiny", "a/../tiny", "weights.models.tiny-1.5", "expected organization/name"),
        ("https://store/models/tiny/", "/tiny", "weights.models.mirror", "'/tiny' of source 's3', expected https"),
        ("https://store/models/tiny/", "https://store", "weights.models.mirror", "expected https://<server>/<bucket>"),
        ('source = "s3"', 'source = "http"\nrevision = "' + COMMIT + '"', "weights.models.mirror", "has no commits"),
        ('"s3"\nlocation = "https:', '"folder"\nlocation = "https:', "weights.models.mirror", "an absolute path"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_key(load, old, new, key, said):
    assert old in TABLE
    with pytest.raises(SpecError) as raised:
        load(TABLE.replace(old, new, 1))
    (problem,) = raised.value.problems
    assert problem.key == key
    assert said in str(problem)
    assert ":" in problem.where


def test_a_manifest_of_a_hub_needs_its_commit(load):
    with pytest.raises(SpecError, match="a manifest_sha256 without a revision"):
        load(TABLE.replace(COMMIT, "").replace('sha256 = ""', f'sha256 = "{"0" * 64}"'))
