"""Step finetune: the baseline drafter trained on the target's own answers."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aerie.eagle3 import compute, head, specforge, staged, together
from aerie.eagle3.features import Features, after_norm, agreement, check_mask, feature_mask, write_feature
from aerie.eagle3.parity import read_states
from aerie.eagle3.profile import Drafter, Finetune
from aerie.eagle3.stopping import Patience
from aerie.errors import AerieError
from aerie.pagecache import PassBy, copy_tree
from aerie.runbook.step import Context, Json

__all__ = ["check_agreement", "check_layers", "check_usable", "doc", "held_out", "run", "training"]

doc = """\
The trainer is SpecForge: it comes from the project of SGLang, which serves in production, captures with that engine's
kernels, and its export is the format that SGLang reads; vLLM loads it as well, so the tiny and the production profile
share trainer and checkpoint format. speculators is the second choice: the better command line, but it captures with
vLLM only, and its drafters set `norm_before_residual`, which SGLang 0.5.23 does not know. Neither trains a drafter with
MLA attention.

1. Convert every sample of the synthesis into a feature file. The last token is dropped, it has no state; the last
   layer's state goes through the target's final norm, unless the engine gave the one after it (`last_state`), because
   SpecForge applies `lm_head` alone; the mask moves by one (`feature_mask` in `aerie/eagle3/features.py` says why).
   Nothing is truncated, and a state that is not finite ends the step. Features and states pass by the page cache, where
   the weights lie that are served next. `lm_head` on the state before a generated token must find that token, in 99 of
   100 if the answers are greedy. Nine answers of ten must have two tokens or more, and the drafter to start from no
   `norm_output`. The samples whose ids have the lowest hashes, `finetune.held_out` of all and at least 16, and a batch
   for each process, are kept from the training in a folder of their own, all turns of a conversation together.
2. Make the trainer a target of its own (`aerie/eagle3/head.py`): a link to the file with `lm_head` and embedding, an
   index of these two, and a config.json with the sizes at its top. Kimi-K2.5's own has them one level down, and
   SpecForge fails on it; the 595 GB of its other files are then not touched either.
3. Train `finetune.epochs` epochs from the exported baseline, with the baseline's own `vocab_map.pt`. Without the map
   SpecForge 0.2.0 counts a new one from the new data and puts it over the old rows of `lm_head` without a word.

        model: {target_model_path: target, lm_head_key: lm_head.weight, embedding_key: model.embed_tokens.weight,
                draft_model_config: drafter, vocab_mapping_path: vocab_map.pt,
                torch_dtype: bfloat16}    # float32 where preflight chose it
        data: {hidden_states_path: features, eval_hidden_states_path: held-out,
               max_length: 107, dataloader_num_workers: 0}    # 107: the longest sample
        training: {strategy: eagle3, num_epochs: 3, max_steps: 570, batch_size: 4, learning_rate: 2.0e-3,
                   ttt_length: 3, attention_backend: sdpa, fsdp_sharding: NO_SHARD, log_interval: 11,
                   eval_interval: 190, save_interval: 29, max_checkpoints: 3}
        deployment: {trainer: {nproc_per_node: 1}}
        output_dir: output
        run_id: drafter

   as train.yaml, then in the train environment, from the checkout:

        TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 python -m aerie.eagle3.specforge_cpu train -c train.yaml \
            model.draft_checkpoint_path=drafter

   `aerie.eagle3.specforge_cpu` is SpecForge's command line with its one Triton kernel replaced. On GPUs it is
   `specforge.cli`, a process for each of `engine.gpus.tensor_parallel`, each with its own batch, and above one the
   optimizer in shards (`fsdp_sharding: SHARD_GRAD_OP`):

        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python -m torch.distributed.run --standalone \
            --nproc_per_node=8 -m specforge.cli train -c train.yaml model.draft_checkpoint_path=drafter

   The run's own train.yaml and train.log are among the step's files.
   With `finetune.hosts` each of these hosts of the inventory trains along, on as many GPUs as this one. All of them see
   the runs' state (XDG_STATE_HOME), the checkout and the environments at the same paths: SpecForge reads every sample
   and writes its checkpoints from all of them. Staged models lie on each, by `./invoke stage`. Step `gpus` asks each
   host for the folder, for the same code, torch and SpecForge, and for its GPUs, this step for the models. The
   rendezvous is a store that listens on `hosts.address` alone, and gloo and NCCL take the interface of that network.
   On host number RANK of 2:

        GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1 python -m aerie.eagle3.torchrun --nnodes=2 --node_rank=RANK \
            --nproc_per_node=8 --master_addr=ADDRESS --master_port=29500 --max-restarts=0 \
            -m specforge.cli train -c train.yaml model.draft_checkpoint_path=drafter

   with `nnodes: 2` and `master_addr: ADDRESS` beside `nproc_per_node`. When one host's part ends or fails, so do the
   others; one that does not hear of the first host for two minutes ends by itself.
4. A training that was cut short goes on from its last checkpoint, of which there are twenty in all: with
   `training.resume_from=output/drafter-latest` instead of the drafter, and on as many GPUs and hosts.
5. Hold the step count against samples, batch and epochs. SpecForge drops the samples that fill no batch, other ones in
   every epoch: the evidence has their number.
6. Judge the drafter by its accuracy on the held-out samples (`eval_accuracy`): that on a training batch (`accuracy`)
   is far above it as soon as a few passes have gone over a small corpus. It is the trainer's own evaluation, after
   every epoch (`eval_tau` has the accept length that each is worth).
7. Keep the checkpoint of the epoch with the best `eval_tau`, which may not be the last (`kept`). After
   `finetune.patience` evaluations in a row that gained less than `finetune.least_gain` on the best one before, the
   training ends early, all its processes with it, by SIGTERM: `steps` and `epochs_done` have how far it went, `ended`
   why. 0 trains all epochs. An evaluation that gains nothing may be followed by one that does, as the learning rate
   falls to nothing at the last epoch: 2 is the least that makes sense of five. Few held-out samples make it end by
   chance: with 16 of them, 1,008 tokens, 2 ended a training of 20 epochs after the third at τ 1.165, and without it the
   ninth had 1.216. It is for samples by the hundred, as `kimi-k2.5` has them.
"""

_MIN_HELD_OUT = 16  # samples: some 800 tokens of the tiny profile, by which an accuracy is known to 0.02
_MIN_USABLE = 0.9  # of the answers; our choice: none of 800 was too short in runs of the tiny profile
_MIN_AGREEMENT = 0.5  # 0.99 with greedy answers; sampled ones agree less, states shifted by one hardly at all


def run(context: Context) -> Mapping[str, Json]:
    """Write checkpoint/ (SpecForge's own format) and the trainer's configuration and log."""
    drafter = Drafter.model_validate(context.values["drafter"])
    finetune = Finetune.model_validate(context.values["finetune"])
    arithmetic = context.inputs["preflight"].evidence["arithmetic"]
    baseline = staged.folder(context.inputs["baseline-drafter"], "drafter")
    specforge.check_start(json.loads((baseline / "config.json").read_bytes()), str(baseline))
    target = head.of(staged.folder(context.inputs["target"], "model"))
    check_layers(context.inputs["synthesize"].evidence["layers"], drafter)
    counts = _count(context.inputs["synthesize"].path)
    check_usable(len(counts.usable), counts.samples)
    others = together.of(context, "finetune")
    launcher = compute.launcher(context, others)
    if others:  # what they lack is told before the features are written, which takes hours
        models = [*target.trainer_files.values(), baseline]
        together.check(others, context.kept, launcher.processes_each, models)
    conversations = _conversations(context.inputs["target"].path / "prompts.train.jsonl")
    ids = [conversations[one] for one, _ in counts.usable]
    held = held_out(ids, finetune.held_out, at_least=finetune.batch * launcher.processes)
    with Features(context.kept, held) as features:
        _write(context, target, features, len(ids), dtype=arithmetic["dtype"])
    agreed, generated = (sum(each) for each in zip(*features.there.values(), strict=True))
    check_agreement(agreed, generated)

    trained = [tokens for number, (_, tokens) in enumerate(counts.usable) if number not in held]
    plan = specforge.Plan(
        target=target,
        drafter_config=baseline,
        vocab_map=context.inputs["baseline-drafter"].path / "vocab_map.pt",
        features=features.folder,
        held_out=features.held_out_folder,
        start=baseline,
        samples=len(trained),
        epochs=finetune.epochs,
        max_steps=None,
        batch=finetune.batch,
        learning_rate=finetune.learning_rate,
        ttt_length=drafter.ttt_length,
        max_length=max(tokens for _, tokens in counts.usable) + 1,
        dtype=arithmetic["dtype"],
        patience=Patience(evaluations=finetune.patience, least_gain=finetune.least_gain) if finetune.patience else None,
    )
    done = specforge.train(plan, context.kept, launcher, specforge.reporter(context))
    copy_tree(done.checkpoint, context.out / "checkpoint")
    for name in ("train.yaml", "train.log"):
        shutil.copy(context.kept / name, context.out / name)
    per_epoch = specforge.steps_per_epoch(len(trained), finetune.batch, launcher)
    in_batches = per_epoch * launcher.processes * finetune.batch
    return {
        "trainer": specforge.trainer(),
        "arithmetic": arithmetic,
        "hosts": finetune.hosts,
        "processes": launcher.processes,
        "samples": len(trained),
        "samples_held_out": len(held),
        "samples_too_short": counts.samples - len(ids),
        "greedy_agreement": agreed / generated,
        "samples_dropped_per_epoch": max(0, len(trained) - in_batches),
        "tokens": sum(trained),
        **training(done, finetune, per_epoch),
    }


def training(done: specforge.Trained, finetune: Finetune, per_epoch: int) -> dict[str, Json]:
    """How the training went and why it ended, for evidence. per_epoch: steps; kept: of the checkpoint that goes on,
    whose accuracy is eval_accuracy; loss: [step, loss]; accuracy: on the last training batch.
    """
    epochs = done.steps // per_epoch
    least = f" of {finetune.least_gain:g} or more" if finetune.least_gain else ""
    early = f"the last {finetune.patience} evaluations had no gain{least} on the held-out samples"
    return {
        "epochs": finetune.epochs,
        "epochs_done": epochs,
        "steps": done.steps,
        "ended": "all epochs were done" if epochs == finetune.epochs else early,
        "kept": {"step": done.kept, "epoch": done.kept // per_epoch},
        "loss": done.curve.loss,
        "accuracy": done.curve.accuracy,
        **done.curve.evaluated(done.kept),
    }


def held_out(conversations: Sequence[str], share: float, *, at_least: int) -> frozenset[int]:
    """The numbers of the samples that are kept from training: whole conversations, of the lowest hashes, so that their
    order is all the same; `share` of the samples, at least 16 and `at_least`, by which every process has a batch.

    conversations: of every sample the one that it is a turn of.
    """
    count = max(math.ceil(share * len(conversations)), _MIN_HELD_OUT, at_least)
    turns: dict[str, list[int]] = {}
    for number, conversation in enumerate(conversations):
        turns.setdefault(conversation, []).append(number)
    held: list[int] = []
    for conversation in sorted(turns, key=lambda one: hashlib.sha256(one.encode()).digest()):
        if len(held) >= count:
            break
        held += turns[conversation]
    return frozenset(held)


def _conversations(prompts: Path) -> dict[str, str]:
    """Of each prompt's id its conversation, which is its own where the prompt says nothing of one."""
    with open(prompts, encoding="utf-8") as file:
        rows = map(json.loads, file)
        return {row["id"]: row.get("conversation", row["id"]) for row in rows}


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Of a synthesis. usable: (id, tokens but for the last one) of each sample with something to draft."""

    samples: int = 0
    usable: list[tuple[str, int]] = field(default_factory=list)


def _count(synthesis: Path) -> _Counts:
    counts = _Counts()
    for row in _rows(synthesis):
        counts.samples += 1
        if _is_usable(row):
            counts.usable.append((row["id"], len(row["input_ids"]) - 1))
    return counts


def _rows(synthesis: Path) -> Iterator[Json]:
    # One at a time: ten thousand long samples are half a gigabyte of numbers.
    with open(synthesis / "samples.jsonl", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _is_usable(row: Mapping[str, Json]) -> bool:
    # An answer of one token has nothing to draft; more than a few of them would be a target that does not answer.
    usable: bool = sum(row["loss_mask"]) > 1
    return usable


def _write(context: Context, target: head.Head, features: Features, samples: int, *, dtype: str) -> None:
    """Write the feature file of each usable sample that has none yet."""
    synthesis, device = context.inputs["synthesize"], compute.device(context)
    layers = len(synthesis.evidence["layers"])
    has_norm = synthesis.evidence["last_state"] == "after-norm"
    lm_head, norm = (target.tensor(name).to(device).float() for name in (target.lm_head, target.norm))
    with PassBy() as passing:
        for number, row in enumerate(filter(_is_usable, _rows(synthesis.path))):
            if number not in features.there:
                check_mask(row)
                states = read_states(synthesis.path, row, layers).to(device)
                last = states[:, -1].float()
                if not has_norm:
                    last = after_norm(last, norm, target.config["rms_norm_eps"])
                hits, tokens = agreement(last @ lm_head.T, row)
                write_feature(
                    features.path(number),
                    input_ids=row["input_ids"][:-1],
                    loss_mask=feature_mask(row["loss_mask"])[:-1],
                    aux=states[:, :-1],
                    last=last,
                    dtype=dtype,
                )
                features.add(number, hits, tokens)
                passing.done(synthesis.path / row["states"])
                passing.done(features.path(number))
            context.progress(number + 1, samples, unit="samples", note="features")


def check_layers(captured: Sequence[int], drafter: Drafter) -> None:
    """Raise AerieError unless the states are of the layers that the drafter reads, and of a last one."""
    if list(captured[:-1]) != drafter.aux_layers:
        raise AerieError(
            "synthesize",
            seen=captured[:-1],
            expected=f"states of drafter.aux_layers {drafter.aux_layers}",
            remedy="Run synthesize again with this profile.",
        )


def check_usable(usable: int, samples: int) -> None:
    """Raise AerieError where too many answers have less than two tokens: they train nothing, and no loss shows it."""
    if usable < _MIN_USABLE * samples:
        raise AerieError(
            "synthesize",
            seen=f"{samples - usable} of {samples} answers of less than two tokens",
            expected=f"at least {_MIN_USABLE:.0%} with something to draft",
            remedy="Look at the answers: a wrong chat template, or a stop token that comes at once.",
        )


def check_agreement(agreed: int, generated: int) -> None:
    """Raise AerieError where lm_head does not find the generated tokens from the last states before them."""
    if agreed < _MIN_AGREEMENT * generated:
        raise AerieError(
            "synthesize",
            seen=f"last states of which {agreed} of {generated} have the generated token as their most likely one",
            expected=f"a share of at least {_MIN_AGREEMENT}",
            remedy="The states are shifted, or of another layer or model: look at the capture, then at step parity.",
        )
