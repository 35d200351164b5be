"""Folders that look like a host's root, for readers that take a root."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str | bytes]], str]:
    """Write these files below a fresh root and give the root; a text "-> x" makes a link to x."""

    def write(files: dict[str, str | bytes]) -> str:
        for name, content in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content.startswith("-> "):
                path.symlink_to(content[3:])
            else:
                path.write_text(content)
        return str(tmp_path)

    return write
