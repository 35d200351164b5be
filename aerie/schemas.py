"""JSON Schemas of the documents that aerie prints and reads, by name. Within a version only keys are added."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .choice import unknown_name
from .fieldtexts import add_to_schema
from .findings import Fix, Severity
from .lock import Lock
from .plan import HostState
from .snapshot import Snapshot
from .verification import HostState as VerificationState
from .verification import Outcome

__all__ = ["NAMES", "PlanDocument", "VerificationDocument", "json_schema"]

Layer = Annotated[
    str, Field(description="base, kernel, driver, interconnect, cuda, python, extensions, storage, weights or engine")
]
FindingId = Annotated[str, Field(pattern=r"^[a-z]+\.[a-z0-9-]+$", description="as docs/findings.md lists them")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)  # unknown keys are allowed: readers are to ignore them


class FindingDocument(_Part):
    """One difference between a host and its lock, or one broken state."""

    id: FindingId
    layer: Layer
    severity: Severity
    seen: str
    expected: str
    remedy: str = Field(description="what to do; a command where there is one")
    fix: Fix = Field(
        description="provision: the layer's role mends it; stage: ./invoke stage does; "
        "build: ./invoke build does; reboot: that is enough; "
        "person: beyond aerie"
    )
    needs_reboot: bool = Field(description="the fix takes effect at the next boot")


class WaivedDocument(FindingDocument):
    """A finding that the inventory waives."""

    reason: str
    expires: str = Field(description="the last day on which the waiver holds, ISO 8601")


class RebootDocument(_Part):
    """Whether applying the plan ends with a reboot; never more than one."""

    needed: bool
    reasons: list[str] = Field(description="one sentence each, beginning with a finding's id")
    refused: str = Field(description="why aerie does not do it although there are reasons; empty where it does")


class HostDocument(_Part):
    """One host."""

    host: str
    lock: str
    lock_sha256: str = Field(description="of every value of the lock for this host; empty where there is no snapshot")
    state: HostState
    findings: list[FindingDocument] = Field(description="the fatal ones first, then by layer")
    waived: list[WaivedDocument]
    apply: list[Layer] = Field(description="layers that provision would apply, in order")
    reboot: RebootDocument
    stops: list[str] = Field(description="services and processes that applying interrupts")
    blocked: list[FindingId] = Field(description="what a person must mend before anything is changed")
    judged: list[Layer] = Field(description="layers that were looked at")
    error: str = Field(description="why there is no snapshot; empty where there is one")


class PlanDocument(_Part):
    """What `plan --json` prints."""

    schema_: Literal["aerie.plan/1"] = Field(alias="schema")
    hosts: list[HostDocument]


class RequirementDocument(_Part):
    """One test on one host. seen, expected, remedy and fix are empty unless it failed or is waived."""

    name: str = Field(description="the requirement in words")
    test: str = Field(description="as pytest addresses it")
    layer: Layer
    finding: FindingId
    severity: Severity
    outcome: Outcome
    seen: str
    expected: str
    remedy: str
    fix: Fix | Literal[""]
    reason: str = Field(description="why it was skipped or is waived, or what went wrong")
    wall_s: float


class HostVerificationDocument(_Part):
    """One host."""

    host: str
    lock: str
    state: VerificationState
    counts: dict[Outcome, int]
    requirements: list[RequirementDocument]
    error: str = Field(description="why not everything could be asked; empty where it could")
    wall_s: float


class VerificationDocument(_Part):
    """What `verify --json` prints."""

    schema_: Literal["aerie.verify/1"] = Field(alias="schema")
    hosts: list[HostVerificationDocument]
    wall_s: float


NAMES: dict[str, Any] = {"lock": Lock, "plan": PlanDocument, "snapshot": Snapshot, "verify": VerificationDocument}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of that document. Raises UsageError for a name that is not one of NAMES."""
    if name not in NAMES:
        raise unknown_name("schema", name, NAMES)
    made = TypeAdapter(NAMES[name]).json_schema(by_alias=True)
    if name == "lock":
        add_to_schema(made, Lock)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
