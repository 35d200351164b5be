"""The schemas hold for what is really printed."""

import json

import pytest

from aerie import schemas
from aerie.errors import UsageError
from aerie.findings import Fix, Severity
from aerie.plan import HostState, Plan, unjudged
from aerie.verification import HostVerification, Outcome, Requirement, Shortfall, Verification
from tests.unit.findings.examples import EXAMPLES, a_host, lock_with, snapshot_of, waiver
from tests.unit.test_plan import TODAY, host_plan


def test_the_plan_of_every_example_is_as_its_schema_says():
    hosts = [
        host_plan(a_host(**example.host), lock_with(example.lock), snapshot_of(example), TODAY) for example in EXAMPLES
    ]
    waived = a_host(waivers=(waiver("engine.user-missing", "2027-01-01"),))
    example = next(one for one in EXAMPLES if one.id == "engine.user-missing")
    hosts.append(host_plan(waived, lock_with({}), snapshot_of(example), TODAY))
    hosts.append(unjudged("gpu02", "x", HostState.UNREACHABLE, "no answer"))
    document = json.dumps(Plan(hosts=tuple(hosts)).to_dict())
    assert schemas.PlanDocument.model_validate_json(document).model_dump(mode="json", by_alias=True) == json.loads(
        document
    )


def test_a_verification_of_every_outcome_is_as_its_schema_says():
    short = Shortfall(seen="1", expected="2", remedy="set it", fix=Fix.PROVISION)
    asked = [
        Requirement(
            name="it is so", test=f"t::{outcome}", layer="base", finding="base.limits-low", severity=Severity.WARN,
            outcome=outcome, shortfall=short if outcome in (Outcome.FAILED, Outcome.WAIVED) else None, reason="r",
        )
        for outcome in Outcome
    ]  # fmt: skip
    found = Verification(
        hosts=(
            HostVerification(host="gpu01", lock="x", requirements=tuple(asked), wall_s=1.0),
            HostVerification(host="gpu02", lock="x", error="no answer", is_reached=False),
        ),
        wall_s=2.0,
    )
    document = json.dumps(found.to_dict())
    read = schemas.VerificationDocument.model_validate_json(document)
    assert read.model_dump(mode="json", by_alias=True) == json.loads(document)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_every_schema_can_be_printed(name):
    made = schemas.json_schema(name)
    assert made["$schema"].endswith("2020-12/schema")
    assert json.loads(json.dumps(made)) == made and made["type"] == "object"


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(UsageError, match="Did you mean plan"):
        schemas.json_schema("plans")
