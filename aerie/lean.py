"""Invoke without what it imports for nobody here."""

import sys
from types import ModuleType
from typing import Any

__all__: list[str] = []


def _mock(*arguments: Any, **options: Any) -> Any:
    """unittest.mock.Mock, imported when it is used."""
    from unittest.mock import Mock

    return Mock(*arguments, **options)


# Invoke 2.2.1 imports unittest.mock, and that asyncio, for MockContext, which tests of tasks may use: a third of the
# time that `import invoke` takes. It gets a stand-in for the length of its import.
if "unittest.mock" not in sys.modules and "invoke" not in sys.modules:
    stand_in: Any = ModuleType("unittest.mock")
    stand_in.Mock = _mock
    sys.modules["unittest.mock"] = stand_in
    try:
        import invoke  # noqa: F401
    finally:
        del sys.modules["unittest.mock"]
