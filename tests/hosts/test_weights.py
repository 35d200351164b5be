"""The models on a host: all that the lock requires, whole, and still what was verified."""

import pytest

from aerie.lock import Lock
from aerie.snapshot import Snapshot, StagedModel
from aerie.verify import Case
from aerie.weights.document import target
from tests.hosts.reading import known


@pytest.fixture
def staged(snapshot: Snapshot, lock: Lock) -> dict[str, StagedModel]:
    """By name, the models of the lock that lie where the lock's manifests say, verified or not."""
    places = {name: target(lock.weights.path, name, one.manifest_sha256) for name, one in lock.weights.models.items()}
    found = snapshot.weights.staged
    return {name: known(found[place]) for name, place in places.items() if place in found}


@pytest.fixture
def elsewhere(snapshot: Snapshot, lock: Lock, staged: dict[str, StagedModel]) -> dict[str, str | None]:
    """By name, the manifest by which the host holds a model that the lock requires by another."""
    models = [one for one in snapshot.weights.staged.values() if isinstance(one, StagedModel) and one.verified_at]
    wanted = [name for name in lock.weights.required if name not in staged]
    return {one.model: one.manifest_sha256 for one in models if one.model in wanted}


@pytest.fixture
def verified(staged: dict[str, StagedModel], lock: Lock) -> dict[str, StagedModel]:
    """Those that were verified to the end by the lock's manifest; skips the test where there is none."""
    pins = {name: one.manifest_sha256 for name, one in lock.weights.models.items()}
    found = {name: one for name, one in staged.items() if one.verified_at and one.manifest_sha256 == pins[name]}
    if not found:
        pytest.skip("no model of the lock is staged")
    return found


@pytest.fixture
def deep(case: Case) -> Case:
    """The host, where its files may be read to the end; skips the test elsewhere."""
    if not case.is_live:
        pytest.skip("asks the host itself, and this is a recorded snapshot")
    if not case.is_deep:
        pytest.skip("reads every byte: only with --deep")
    return case


@pytest.mark.finding("weights.tools-missing")
def test_what_staging_needs_is_there(snapshot: Snapshot, lock: Lock) -> None:
    if not lock.weights.models:
        pytest.skip("the lock has no models")
    assert [name for name, is_there in snapshot.weights.tools.items() if not is_there] == []


@pytest.mark.finding("weights.not-staged")
def test_every_required_model_is_staged(
    staged: dict[str, StagedModel], elsewhere: dict[str, str | None], lock: Lock
) -> None:
    wanted = [name for name in lock.weights.required if name not in elsewhere]
    assert [name for name in wanted if name not in staged or not staged[name].verified_at] == []


@pytest.mark.finding("weights.manifest-mismatch")
def test_every_staged_model_has_the_locked_manifest(
    staged: dict[str, StagedModel], elsewhere: dict[str, str | None], lock: Lock
) -> None:
    pins = {name: one.manifest_sha256 for name, one in lock.weights.models.items()}
    manifests = {name: one.manifest_sha256 for name, one in staged.items() if one.verified_at} | elsewhere
    assert {name: sha256 for name, sha256 in manifests.items() if sha256 != pins[name]} == {}


@pytest.mark.finding("weights.incomplete")
def test_every_file_of_a_staged_model_is_there_and_verified(verified: dict[str, StagedModel]) -> None:
    absent = {name: [*model.missing, *model.unverified] for name, model in verified.items()}
    assert {name: paths for name, paths in absent.items() if paths} == {}


@pytest.mark.finding("weights.changed")
def test_no_file_changed_since_it_was_verified(verified: dict[str, StagedModel]) -> None:
    assert {name: dict(model.changed) for name, model in verified.items() if model.changed} == {}


@pytest.mark.finding("weights.corrupt")
def test_the_content_of_every_file_is_as_the_manifest_says(verified: dict[str, StagedModel], deep: Case) -> None:
    from aerie.weights import checking  # here: it opens connections, which only this test needs

    wrong = {name: checking.deep(deep.host, name, deep.lock.weights) for name in verified}
    assert {name: dict(files) for name, files in wrong.items() if files} == {}


@pytest.mark.finding("weights.extra-files")
def test_no_other_files_lie_among_those_of_a_model(verified: dict[str, StagedModel]) -> None:
    assert {name: list(model.extra) for name, model in verified.items() if model.extra} == {}


@pytest.mark.finding("weights.partials-left")
def test_no_part_of_a_file_is_left_lying(staged: dict[str, StagedModel]) -> None:
    assert {name: dict(model.parts) for name, model in staged.items() if model.parts and not model.is_busy} == {}
