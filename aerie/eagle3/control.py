"""The control experiment: the same engine, prompts and minutes for no drafter, the baseline, the fine-tuned one."""

from collections.abc import Mapping

from aerie.eagle3 import experiment
from aerie.eagle3.profile import Engine
from aerie.eagle3.serving import Installed
from aerie.runbook.step import Context, Json

__all__ = ["doc", "run"]

doc = """
Start four servers of the same target at once: without a drafter (`base`), with the baseline drafter, with the
fine-tuned one, and one whose acceptance is forced. The flags are those of step `serve-base` and, for a drafter,

    --speculative-config '{"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}'

Before that the drafters are held against the version: a key that changes their normalisation, and that the engine does
not read, would be passed over without a word (drafter.norms in docs/engines.md).

Measure one after the other, and all of them again in another order, several times: the machine's speed drifts by tens
of percent within minutes. (On GPUs that do not hold all servers by their shares, `engine.gpus.memory_fraction`, each is
started alone, the base last, and measured as often; the order then evens nothing out between them.) A step that was
killed goes on after the last whole repetition, with servers that are started anew. Before and after
each run read `/metrics`; from the differences

    accept length = 1 + num_accepted_tokens / num_drafts        acceptance rate = num_accepted_tokens / num_draft_tokens

Forced acceptance measures what a verify step costs, whatever the drafter is worth: with forced length L and the same
number of tokens, R = L x tokens/s without a drafter / tokens/s forced. vLLM's own switch for it
(`rejection_sample_method: synthetic`) ends the engine at the first request on a CPU, so
aerie/engines/vllm_cpu/forced.py replaces the greedy kernel. Forced text is not the target's: it runs with
`ignore_eos`, against `base-fixed`, which is the `base` server with the same prompts and lengths.

Where a drafter's output leaves that of `base`, send the prompt and the common tokens to the `base` server with
`"max_tokens": 1, "logprobs": 20`: the gap is the log probability of its best token minus that of the worse of the two.
"""


def run(context: Context) -> Mapping[str, Json]:
    """Serve all, measure interleaved, find and score the divergences."""
    installed = Installed.of(context, Engine(**context.values["engine"]))
    return experiment.run(context, installed, experiment.sides_of(context, installed))
