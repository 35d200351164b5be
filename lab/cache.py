"""What the lab makes once and keeps: folders of the user's cache, named by a hash of all that they are made from."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from aerie.paths import cache_dir

__all__ = ["kept"]


def kept(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder lab/<name> of the cache. When it is not there yet, `fill` gets an empty one that becomes it.

    It appears whole or not at all; when several make it at a time, the first one's stays. `name` has a hash of what
    it is made from, so it is never made anew.
    """
    final = cache_dir() / "lab" / name
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=final.parent))
        try:
            fill(partial)
            partial.chmod(0o755)
            os.rename(partial, final)
        except OSError:
            if not final.is_dir():  # another was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return final
