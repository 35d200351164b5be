"""Manifests as what rich draws. Values in, renderables out."""

from rich.console import RenderableType
from rich.text import Text

from aerie.paths import shown
from aerie.weights.models import Made

__all__ = ["summary"]


def summary(made: Made) -> RenderableType:
    """One line: what the manifest has and where it lies."""
    files, size = len(made.manifest.files), made.manifest.size_bytes
    return Text(f"{shown(made.path)}: {files} files, {size / 1e9:.3f} GB; in lock {made.lock}:")
