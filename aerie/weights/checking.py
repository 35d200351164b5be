"""Hashing a staged model anew, on the host: for verification."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aerie.errors import AerieError
from aerie.weights.document import target

from . import shipping

if TYPE_CHECKING:
    from aerie.inventory import Host
    from aerie.lock import Weights

__all__ = ["deep"]

TIMEOUT_S = 4 * 3600


def deep(host: "Host", model: str, weights: "Weights") -> Mapping[str, str]:
    """What is wrong with the files of the model, by path: "corrupt", "missing" …; every byte is read on the host.

    Takes the manifest that lies beside the files, which must be the lock's. Raises AerieError where it is not, and
    where the check itself fails.
    """
    pin = weights.models[model].manifest_sha256
    place = target(weights.path, model, pin)
    found = shipping.ask(host, ["check", model, place, pin], timeout_s=TIMEOUT_S)
    if "files" not in found:
        raise AerieError(
            f"host {host.name}: {place}", seen=found, expected="a verdict for each file", remedy="Try it again."
        )
    return {path: verdict for path, verdict in found["files"].items() if verdict != "verified"}
