"""The collection of aerie's tasks, which are in commands/.

Each parses, calls one library function, shows what it gives and ends with its exit code. Heavy imports (pydantic,
rich, the runner) stand inside the tasks that need them: `--list` and completion stay fast.
"""

from invoke import Collection

from commands import bench, locks, weights
from commands.changing import provision, rollback, upgrade
from commands.engines import engines
from commands.extensions import build
from commands.hosts import plan, snapshot, verify
from commands.project import docs, schema, test
from commands.runbooks import approve, report, resume, runbook, runs
from commands.serving import serve
from commands.staging import stage
from lab.tasks import collection as lab

namespace = Collection(
    approve, build, docs, engines, plan, provision, report, resume, rollback, runbook, runs, schema, serve, snapshot,
    stage, test, upgrade, verify, bench.collection, lab, locks.collection, weights.collection,
)  # fmt: skip
