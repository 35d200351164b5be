"""The hub on the lab's gateway: hosts fetch from it what the lab's locks and manifests say; it goes wrong by a word."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import lab
from aerie import lock
from aerie.errors import UsageError
from aerie.weights import manifest, models
from lab import LabHost

pytestmark = pytest.mark.lab

SHARD = "model-00001-of-00008.safetensors"


def test_a_host_fetches_what_the_locks_manifest_says(
    lab_host: LabHost, own_lab: Path, said: Callable[..., str]
) -> None:
    weights = lock.load("lab", own_lab / "inventory").weights
    assert sorted(weights.models) == ["drafter", "gated", "mirror", "tiny"]
    texts = {name: (own_lab / f"inventory/manifests/{name}.manifest.json").read_bytes() for name in weights.models}
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    assert digests == {name: model.manifest_sha256 for name, model in weights.models.items()}
    tiny = weights.models["tiny"]
    url = f"{weights.hub}/{tiny.location}/resolve/{tiny.revision}/{SHARD}"
    seen = said(lab_host, "sh", "-ec", f"curl -sSfL {url} | sha256sum").split()[0]
    assert seen == next(file.sha256 for file in manifest.parse(texts["tiny"]).files if file.path == SHARD)
    mirrored = said(lab_host, "sh", "-ec", f"curl -sSf {weights.models['mirror'].location}{SHARD} | sha256sum")
    assert mirrored.split()[0] == seen


def test_manifests_made_from_the_hub_are_those_that_the_locks_name(
    lab_host: LabHost, own_lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nonexistent/token")  # nobody's own one
    monkeypatch.delenv("HF_TOKEN", raising=False)
    weights = lock.load("lab", own_lab / "inventory").weights
    for name in ("tiny", "gated", "mirror"):
        made = models.make(name, folder=own_lab / "inventory")
        assert manifest.digest(made.manifest) == weights.models[name].manifest_sha256
        assert models.load(lock.load(made.lock, own_lab / "inventory"), name, own_lab / "inventory") == made.manifest


def test_the_hub_goes_wrong_by_a_word_and_stays_so_until_mended(lab_host: LabHost, own_lab: Path) -> None:
    url = f"http://10.77.0.1:8079/aerie-lab/tiny/resolve/main/{SHARD}"

    def status() -> bytes:
        done = lab_host.ssh(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10", url])
        return done.stdout

    lab.hub_mode("503", path="*.safetensors", times=1)
    assert [status(), status()] == [b"503", b"302"]
    lab.hub_mode("gone")
    lab.up(1)
    assert status() == b"000"
    with pytest.raises(UsageError, match="stall"):
        lab.hub_mode("explode")
    lab.hub_mode("normal")
    assert status() == b"302"
