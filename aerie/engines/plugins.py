"""Plugins of ours for an engine's processes: a folder on their path that names the code to load.

Engines find plugins by the entry points of installed packages; a folder with a package's metadata is enough of one.
"""

import os
from pathlib import Path

from aerie import paths

__all__ = ["write"]


def write(folder: Path, *, name: str, group: str, install: str) -> str:
    """Write the metadata of plugin `name` into the folder; PYTHONPATH of a process that is to load it.

    group: of entry points, which the engine loads; install: "module:function" of this project.
    """
    metadata = folder / f"{name}-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {install}\n")
    return os.pathsep.join((str(paths.repository()), str(folder)))
