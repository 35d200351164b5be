"""Tasks of the collection `weights`."""

import sys

from invoke import Collection, Context, task

from .screen import INVENTORY, JSON, console_on, optional_path, show

__all__ = ["collection"]


@task(
    name="manifest",
    auto_shortflags=False,
    help={
        "model": "a model of a lock's [weights.models]",
        "lock": "the lock that has it; needed where locks have different models of that name",
        "check": "only print it; write nothing (so does invoke --dry)",
        "inventory": INVENTORY,
        "json": JSON,
    },
)
def weights_manifest(
    c: Context, model: str, lock: str = "", check: bool = False, inventory: str | None = None, json: bool = False
) -> None:
    """Make a model's manifest from its source, and print the lines for the lock."""
    from aerie import inventory as hosts
    from aerie.report import manifests
    from aerie.weights import models

    made = models.make(model, lock, hosts.folder(optional_path(inventory)), console_on(sys.stderr).print)
    if not (check or c.config.run.dry):
        models.write(made)
    console_on(sys.stderr).print(manifests.summary(made))
    if json:
        show("", made.to_dict(), json=True)
    else:
        sys.stdout.write(f"{made.lock_lines}\n")  # to be copied, so never wrapped


collection = Collection("weights", weights_manifest)
