"""What is known of NVIDIA's repositories: which tree is whose, and its key."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .model import Repository

__all__ = ["BASE", "Tree", "of_system", "tree_of", "trees"]

BASE = "https://developer.download.nvidia.com/compute/cuda/repos/"
KEYRING = "cuda-keyring_1.1-1_all.deb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One tree, e.g. "debian13/x86_64" for "debian-13". keyring_sha256: of the keyring package inside it."""

    tree: str
    system: str
    arch: str
    key_fingerprint: str
    keyring_sha256: str
    source: str

    @property
    def repository(self) -> Repository:
        """As a lock has it."""
        return Repository(
            uri=f"{BASE}{self.tree}/",
            key_uri=f"{BASE}{self.tree}/{KEYRING}",
            key_sha256=self.keyring_sha256,
            key_fingerprint=self.key_fingerprint,
        )


@cache
def trees() -> tuple[Tree, ...]:
    """All of repositories.toml."""
    rows = tomllib.loads(Path(__file__).with_name("repositories.toml").read_text())["repository"]
    return tuple(Tree(**row) for row in rows)


def of_system(system: str, arch: str) -> Tree | None:
    """The tree for "debian-13" on "x86_64"; None where none is known."""
    return next((tree for tree in trees() if (tree.system, tree.arch) == (system, arch)), None)


def tree_of(uri: str) -> str | None:
    """ "debian13/x86_64" of NVIDIA's own address; None for any other repository, such as a mirror."""
    if not uri.startswith(BASE):
        return None
    return uri.removeprefix(BASE).strip("/")
