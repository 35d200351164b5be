"""What the steps of the eagle3 runbook take, and which cannot run with a profile's values: the runbook's `planning`.

A target that is made is counted by its shape, a staged one by figures. Reads the lock's manifests and what lies in its
weights folder.
"""

from aerie.eagle3.figured import of_figures
from aerie.eagle3.made import of_made
from aerie.eagle3.obstacles import obstacle
from aerie.eagle3.profile import Profile
from aerie.runbook.budget import Budget, Measured

__all__ = ["budget", "obstacle"]


def budget(step: str, profile: Profile, measured: Measured | None) -> Budget | None:
    """What the step takes; None where the runbook's file says all there is to say."""
    return of_figures(step, profile, measured) or of_made(step, profile, measured)
