"""The files of a folder on this machine."""

from pathlib import Path

from aerie.errors import AerieError
from aerie.weights.manifest import RESERVED, File

from .content import Say, with_hashes

__all__ = ["files"]


def files(location: str, say: Say) -> tuple[File, ...]:
    """Every file in the folder and below, read once; links to files count as files, aerie's own files are left out.

    Raises AerieError for what is no folder, has no file, or holds something that is neither file nor folder.
    """
    root = Path(location)
    if not root.is_dir():
        remedy = "Correct the location in the lock's [weights.models]."
        raise AerieError(location, seen="no folder on this machine", expected="one", remedy=remedy)
    sizes: dict[str, int] = {}
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root)
        if path.parts[0].startswith(RESERVED) or (file.is_dir() and not file.is_symlink()):
            continue
        if not file.is_file():
            # A link to a folder would leave its files out, as the walk does not follow it.
            seen = "a link to a folder" if file.is_dir() else "neither a file nor a folder"
            raise AerieError(str(file), seen=seen, expected="files", remedy="Put the files themselves there.")
        sizes[path.as_posix()] = file.stat().st_size
    if not sizes:
        raise AerieError(location, seen="an empty folder", expected="a model's files", remedy="Put them there.")
    return with_hashes(sizes, {}, lambda path: open(root / path, "rb"), say)
