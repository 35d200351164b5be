"""Waits until nobody holds a lock of apt or dpkg. Argument: how long at most, in seconds.

Exit 0: free. Exit 1: still held, by the program that the last line names.
"""

import fcntl
import os
import struct
import sys
import time

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, pid


def holder(path: str) -> str | None:
    """The program that holds the lock, or None."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    finally:
        os.close(file)
    if kind == fcntl.F_UNLCK:
        return None
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return f"{comm.read().strip()} (pid {pid}) holds {path}"
    except OSError:
        return f"pid {pid} holds {path}"


def main() -> int:
    end = time.monotonic() + float(sys.argv[1])
    while True:
        held = [who for who in map(holder, LOCKS) if who]
        if not held:
            return 0
        if time.monotonic() >= end:
            sys.stdout.write(f"{held[0]}\n")
            return 1
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
