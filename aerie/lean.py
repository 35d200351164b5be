"""Invoke and pydantic without what they import for nobody here."""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__: list[str] = []


def _mock(*arguments: Any, **options: Any) -> Any:
    """unittest.mock.Mock, imported when it is used."""
    from unittest.mock import Mock

    return Mock(*arguments, **options)


class _Later(ModuleType):
    """A module of this name, imported when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import itself
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(importlib.import_module(self.__name__), name)


# pydantic 2.14 looks for plugins in the metadata of every package that is installed; .venv has none for it.
if "pydantic" not in sys.modules:
    plugins: Any = ModuleType("pydantic.plugin._loader")
    plugins.get_plugins = tuple
    sys.modules[plugins.__name__] = plugins

# Invoke 2.2.1 imports its own YAML, with which it reads configuration files that nobody here has, and also the real
# one, for its parser in C.
if "invoke" not in sys.modules:
    sys.modules["invoke.vendor.yaml"] = _Later("invoke.vendor.yaml")

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
