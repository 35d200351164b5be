"""What differs in the models that a host holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aerie.snapshot import StagedModel
from aerie.weights.document import target

from .case import Case, known
from .model import Finding, Severity

__all__ = ["judge"]

SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model of the lock on this host. there: what lies at the target; other: verified by another manifest."""

    name: str
    pin: str
    is_required: bool
    there: StagedModel | None
    other: StagedModel | None


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer weights. A model that is there and not required counts as a warning."""
    lock = case.lock.weights
    missing = [name for name, is_there in case.snapshot.weights.tools.items() if not is_there]
    if lock.models and missing:
        yield case.finding("weights.tools-missing", seen=f"no {', '.join(missing)}", expected="all of them")
    models = list(_models(case))
    for id_, seen, expected in (
        ("weights.not-staged", _not_staged, "staged and verified"),
        ("weights.manifest-mismatch", _mismatch, "the lock's manifest"),
        ("weights.incomplete", _incomplete, "every file there, and verified"),
        ("weights.changed", _changed, "the files that were verified"),
        ("weights.extra-files", _extra, "the manifest's files alone"),
        ("weights.partials-left", _parts, "none, or a staging at work on them"),
    ):
        found = [(model, words) for model in models if (words := seen(model))]
        if not found:
            continue
        is_required = any(model.is_required for model, _ in found)
        yield case.finding(
            id_,
            seen="; ".join(f"{model.name}: {words}" for model, words in found),
            expected=expected,
            severity=None if is_required else Severity.WARN,
            model=found[0][0].name,
        )


def _models(case: Case) -> Iterator[_Model]:
    lock, staged = case.lock.weights, case.snapshot.weights.staged
    read = {place: model for place, model in ((place, known(one)) for place, one in staged.items()) if model}
    for name, model in lock.models.items():
        place = target(lock.path, name, model.manifest_sha256)
        if place in staged and place not in read:
            continue  # not read: base.unknown says so
        there = read.get(place) if model.manifest_sha256 else None
        others = (one for at, one in read.items() if at != place and one.model == name and one.verified_at)
        is_required = name in lock.required
        if there or is_required:
            yield _Model(
                name=name,
                pin=model.manifest_sha256,
                is_required=is_required,
                there=there,
                other=next(others, None),
            )


def _not_staged(model: _Model) -> str:
    if not model.is_required or (model.there and model.there.verified_at) or _mismatch(model):
        return ""
    if model.there is None:
        return "nothing" if model.pin else "nothing, and the lock has no manifest of it"
    verified = model.there.files - len(model.there.missing) - len(model.there.unverified)
    return f"{'being staged' if model.there.is_busy else 'begun'}: {verified} of {model.there.files} files verified"


def _mismatch(model: _Model) -> str:
    if model.there is None:
        return f"manifest {_short(model.other.manifest_sha256)}" if model.other and model.is_required else ""
    if model.there.verified_at is None or model.there.manifest_sha256 == model.pin:
        return ""
    return f"manifest {_short(model.there.manifest_sha256)} beside the files"


def _incomplete(model: _Model) -> str:
    there = _verified(model)
    if there is None:
        return ""
    words = {"not there": there.missing, "never verified": there.unverified}
    return ", ".join(f"{_several(paths)} {what}" for what, paths in words.items() if paths)


def _changed(model: _Model) -> str:
    there = _verified(model)
    return _several([f"{path} {words}" for path, words in there.changed.items()]) if there else ""


def _extra(model: _Model) -> str:
    there = _verified(model)
    return _several(there.extra) if there else ""


def _parts(model: _Model) -> str:
    if model.there is None or model.there.is_busy or not model.there.parts:
        return ""
    return f"{len(model.there.parts)} of {_gb(model.there.parts)} GB"


def _verified(model: _Model) -> StagedModel | None:
    """The staged model, where it was verified once and by the locked manifest: else there is nothing to compare."""
    there = model.there
    return there if there and there.verified_at and there.manifest_sha256 == model.pin else None


def _short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "none"


def _gb(parts: Mapping[str, int]) -> str:
    return f"{sum(parts.values()) / 10**9:.1f}"


def _several(words: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
