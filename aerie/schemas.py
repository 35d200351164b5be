"""JSON Schemas of the documents that aerie prints and reads, by name. Within a version only keys are added."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .choice import unknown_name
from .engines.benchmark.schema import BenchDocument
from .fieldtexts import add_to_schema
from .findings import Fix, Severity
from .lock import Lock
from .plan import HostState
from .snapshot import Snapshot
from .verification import HostState as VerificationState
from .verification import Outcome

__all__ = ["NAMES", "BuildPlanDocument", "PlanDocument", "VerificationDocument", "json_schema"]

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


class EstimateDocument(_Part):
    """How long a build takes, and where that is known from."""

    seconds: float
    basis: str


class WheelDocument(_Part):
    """The wheel that is to be installed."""

    name: str
    where: str = Field(description="whose it is: a store's, or the lock's")
    is_read: bool = Field(description="its device code was read; else the host reads it before it installs")


class SizedBuildDocument(_Part):
    """A build as it would run."""

    digest: str = Field(description="of all that decides what comes out: its place in the store")
    nvcc: str | None
    jobs: int
    nvcc_threads: int
    memory_bytes: int = Field(description="the most that so many compilers take at once")
    budget_bytes: int = Field(description="what they may take, enforced")
    reasons: list[str]
    warnings: list[str]
    estimate: EstimateDocument | None = Field(description="null where nobody measured it")


class BuildRowDocument(_Part):
    """One package on one host."""

    host: str
    package: str
    version: str
    environment: str
    action: Literal["nothing", "install", "build", "after", "refused", "unreachable", "unknown"] = Field(
        description="after: installs what another host of the plan builds; refused: a person must act first"
    )
    reasons: list[str]
    architectures: list[str] = Field(description="compute capabilities of the host's GPUs, by NVML")
    wheel: WheelDocument | None
    build: SizedBuildDocument | None
    builds_where_unfit: bool = Field(description="a wheel that turns out to lack code is followed by a build")
    job: str = Field(description="running: an earlier command's job, which is attached to")
    damaged: list[str] = Field(description="entries of the host's store that nothing is installed from")
    error: str


class BuildPlanDocument(_Part):
    """What `build --plan --json` prints."""

    schema_: Literal["aerie.build-plan/1"] = Field(alias="schema")
    rows: list[BuildRowDocument]


NAMES: dict[str, Any] = {
    "bench": BenchDocument,
    "build-plan": BuildPlanDocument,
    "lock": Lock,
    "plan": PlanDocument,
    "snapshot": Snapshot,
    "verify": VerificationDocument,
}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of that document. Raises UsageError for a name that is not one of NAMES."""
    if name not in NAMES:
        raise unknown_name("schema", name, NAMES)
    made = TypeAdapter(NAMES[name]).json_schema(by_alias=True)
    if name == "lock":
        add_to_schema(made, Lock)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
