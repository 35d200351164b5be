"""One run's evidence and its summary, made once."""

from typing import Any

import pytest

from tests.unit import recorded


@pytest.fixture(scope="module")
def evidence() -> dict[str, Any]:
    return recorded.evidence()


@pytest.fixture(scope="module")
def summary(evidence) -> dict[str, Any]:
    return recorded.summary(evidence)
