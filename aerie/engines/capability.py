"""The capability table (capabilities.toml) as values, and what it says about a wish: can this be served, and why not?

Everything here is pure but for reading the table, which is packaged.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from aerie.choice import unknown_name
from aerie.errors import UsageError

__all__ = [
    "ARCHS",
    "Backend",
    "Hang",
    "Name",
    "Release",
    "Router",
    "Rule",
    "Survey",
    "Table",
    "Verdict",
    "VerifyPath",
    "Wish",
    "can_serve",
    "default_backend",
    "names",
    "require",
    "survey",
    "table",
    "verify_path",
]

FILE = Path(__file__).with_name("capabilities.toml")
ARCHS = ("sm90", "sm100", "sm120", "cpu")
Works = Literal["yes", "plain", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What every row of the table has. versions: as a PEP 440 specifier, "" for all; source: where it was read."""

    engine: str
    versions: str
    source: str

    def is_for(self, engine: str, version: str) -> bool:
        """Does the row speak of this release? Pre-releases count as their number."""
        return self.engine == engine and SpecifierSet(self.versions).contains(Version(version), prereleases=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Row):
    """One release and what it needs; versions is the version alone. "" where it was not read."""

    torch: str
    cuda: str = ""
    kernels: str = ""
    flashinfer: str = ""
    transformers: str = ""

    @property
    def version(self) -> str:
        """Its number, "0.5.16"."""
        return self.versions.removeprefix("==")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Row):
    """What does not work, or not well. Empty conditions hold for everything.

    doing: of "eagle3", "forced", "capture", "tree", "images". effect: refuse, or warn and serve all the same.
    verify: how a verify step runs under this rule, "prefill"; "" where the rule is about something else.
    """

    id: str
    effect: Literal["refuse", "warn"]
    reason: str
    remedy: str
    models: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    doing: tuple[str, ...] = ()
    verify: Literal["", "prefill"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Row):
    """A kernel library of an engine on some cards. works: "plain" is for decoding without a drafter alone.

    kind: attention, draft (attention of the drafter), mm-attention, moe. is_default: aerie passes it.
    """

    kind: str
    name: str
    archs: tuple[str, ...]
    works: Works
    reason: str
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Name(Row):
    """How an engine calls a thing in these versions, such as "flag.graph-batch": "--cuda-graph-max-bs"."""

    thing: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(Row):
    """A known hang or crash: symptom, cause, remedy. engine is "any" where it is not the engine's."""

    id: str
    symptom: str
    cause: str
    remedy: str
    archs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Row):
    """What an engine's own router does, by question. versions: of the package, not of the engine."""

    package: str
    question: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The whole table. models: names and aliases, by the name of the architecture in config.json."""

    releases: tuple[Release, ...]
    rules: tuple[Rule, ...]
    backends: tuple[Backend, ...]
    names: tuple[Name, ...]
    hangs: tuple[Hang, ...]
    routers: tuple[Router, ...]
    models: Mapping[str, str]

    def engines(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(dict.fromkeys(release.engine for release in self.releases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to serve. model: "" for one that no row speaks of; doing: as in Rule.

    attention, moe: chosen backends, "" for the table's.
    """

    engine: str
    version: str
    arch: str
    model: str = ""
    doing: frozenset[str] = frozenset()
    attention: str = ""
    moe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether it can run. reasons and warnings: (what, remedy, source) each; is_known: the version has a row."""

    wish: Wish
    reasons: tuple[tuple[str, str, str], ...]
    warnings: tuple[tuple[str, str, str], ...]
    is_known: bool

    @property
    def can_run(self) -> bool:
        """Nothing refuses it."""
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        keys = ("reason", "remedy", "source")
        return {
            **asdict(self.wish),
            "doing": sorted(self.wish.doing),
            "can_run": self.can_run,
            "is_known": self.is_known,
            "reasons": [dict(zip(keys, one, strict=True)) for one in self.reasons],
            "warnings": [dict(zip(keys, one, strict=True)) for one in self.warnings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPath:
    """How a release verifies drafts on a card. name: "prefill", the attention backends that can, or "unknown"."""

    name: str
    why: str
    source: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one release can do with a model on a card, without a drafter and with one."""

    plain: Verdict
    drafted: Verdict

    @property
    def word(self) -> Literal["eagle3", "plain", "no"]:
        """The most that it can."""
        return "eagle3" if self.drafted.can_run else "plain" if self.plain.can_run else "no"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"can": self.word, "plain": self.plain.to_dict(), "eagle3": self.drafted.to_dict()}


@cache
def table() -> Table:
    """The packaged table."""
    data = tomllib.loads(FILE.read_text())
    return Table(
        releases=tuple(Release(**{**row, "versions": f"=={row['versions']}"}) for row in data["release"]),
        rules=tuple(Rule(**_tuples(row)) for row in data["rule"]),
        backends=tuple(Backend(**_tuples(row)) for row in data["backend"]),
        names=tuple(Name(**row) for row in data["name"]),
        hangs=tuple(Hang(**_tuples(row)) for row in data["hang"]),
        routers=tuple(Router(**row) for row in data["router"]),
        models=data["models"],
    )


def names(engine: str, version: str) -> dict[str, str]:
    """How this release calls things, by thing."""
    return {row.thing: row.value for row in table().names if row.is_for(engine, version)}


def default_backend(engine: str, version: str, kind: str, arch: str) -> str:
    """The backend that aerie passes; "" leaves the choice to the engine."""
    found = (row.name for row in _backends(engine, version, kind, arch) if row.is_default)
    return next(found, "")


def can_serve(wish: Wish) -> Verdict:
    """What the table says of it. Raises UsageError for an engine or architecture that the table does not have."""
    if wish.engine not in table().engines():
        raise unknown_name("engine", wish.engine, table().engines())
    if wish.arch not in ARCHS:
        raise unknown_name("arch", wish.arch, ARCHS)
    rules = [row for row in table().rules if row.is_for(wish.engine, wish.version) and _speaks_of(row, wish)]
    refusals = [(row.reason, row.remedy, row.source) for row in rules if row.effect == "refuse"]
    refusals += list(_unfit(wish))
    return Verdict(
        wish=wish,
        reasons=tuple(refusals),
        warnings=tuple((row.reason, row.remedy, row.source) for row in rules if row.effect == "warn"),
        is_known=any(row.is_for(wish.engine, wish.version) for row in table().releases),
    )


def verify_path(wish: Wish) -> VerifyPath:
    """How its verify steps run, whether or not something else refuses it."""
    for rule in table().rules:
        if rule.verify and rule.is_for(wish.engine, wish.version) and _speaks_of(rule, wish):
            return VerifyPath(name=rule.verify, why=rule.reason, source=rule.source)
    rows = [
        row
        for row in _backends(wish.engine, wish.version, "attention", wish.arch)
        if row.works == "yes" and wish.attention in ("", row.name)
    ]
    if not rows:
        return VerifyPath(name="unknown", why=f"no row for {wish.engine} {wish.version} on {wish.arch}", source="")
    return VerifyPath(
        name=" or ".join(row.name for row in rows),
        why="; ".join(row.reason for row in rows),
        source="; ".join(dict.fromkeys(row.source for row in rows)),
    )


def require(wish: Wish) -> Verdict:
    """The verdict on what can run; raises UsageError with every reason where it cannot."""
    verdict = can_serve(wish)
    if verdict.reasons:
        raise UsageError(
            f"{wish.engine} {wish.version} on {wish.arch}",
            seen="; ".join(reason for reason, _, _ in verdict.reasons),
            expected="something that the capability table does not refuse",
            remedy=" ".join(dict.fromkeys(remedy for _, remedy, _ in verdict.reasons)),
        )
    return verdict


def survey(model: str, arch: str, engine: str = "") -> tuple[Survey, ...]:
    """Every release of the table, the newest first: without a drafter and with one. engine: "" for all."""
    if model not in (known := tuple(dict.fromkeys(table().models.values()))):
        raise unknown_name("--for", model, known)
    if engine and engine not in table().engines():
        raise unknown_name("--engine", engine, table().engines())
    wishes = [
        Wish(engine=release.engine, version=release.version, arch=arch, model=model)
        for release in reversed(table().releases)
        if engine in ("", release.engine)
    ]
    drafting = frozenset({"eagle3"})
    return tuple(Survey(plain=can_serve(wish), drafted=can_serve(replace(wish, doing=drafting))) for wish in wishes)


def _speaks_of(rule: Rule, wish: Wish) -> bool:
    return (
        (not rule.models or wish.model in rule.models)
        and (not rule.archs or wish.arch in rule.archs)
        and (not rule.doing or bool(wish.doing & set(rule.doing)))
    )


def _unfit(wish: Wish) -> Iterator[tuple[str, str, str]]:
    for kind, chosen in (("attention", wish.attention), ("moe", wish.moe)):
        rows = _backends(wish.engine, wish.version, kind, wish.arch)
        fit = [row.name for row in rows if row.works == "yes" or (row.works == "plain" and "eagle3" not in wish.doing)]
        for row in rows:
            if row.name == chosen and chosen not in fit:
                yield f"{kind} backend {chosen}: {row.reason}", f"Take {' or '.join(fit)}.", row.source


def _backends(engine: str, version: str, kind: str, arch: str) -> list[Backend]:
    rows = [row for row in table().backends if row.is_for(engine, version)]
    return [row for row in rows if row.kind == kind and arch in row.archs]


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
