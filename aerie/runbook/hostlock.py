"""One run at a time on a host: an flock, which the kernel lets go when its holder dies, however it dies."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aerie.errors import AerieError

__all__ = ["hold"]


@contextmanager
def hold(directory: Path, host: str) -> Iterator[Callable[[str], None]]:
    """Hold `host` while the block runs, which is given a function that says for which run.

    Raises AerieError with the holder's run id when the host is taken.

    The file in `directory` is never removed and means nothing by its existence; its content names the last holder.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / f"{host}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "(not yet named)"
            raise AerieError(
                f"host {host}", seen=f"run {holder} at work", expected="no other run on the host",
                remedy="Wait for its end, or stop it with Ctrl-C where it runs.",
            ) from None  # fmt: skip

        def claim(run: str) -> None:
            file.truncate(0)
            file.write(f"{run}\n")
            file.flush()

        yield claim
