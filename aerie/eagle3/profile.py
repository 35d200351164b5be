"""The values of the eagle3 runbook: names, types, units, ranges. The numbers themselves are in the profiles."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from aerie.engines.values import Engine
from aerie.runbook.interpreters import Choice, Environments

__all__ = [
    "Baseline",
    "Bench",
    "Corpus",
    "Cost",
    "Drafter",
    "Engine",
    "Environments",
    "Expect",
    "Figures",
    "Finetune",
    "Hosts",
    "Lossless",
    "Parity",
    "Profile",
    "Second",
    "Shape",
    "Staged",
    "Synthesis",
    "Target",
]

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(_Values):
    """Size and training length of one target that is made."""

    hidden_size: Annotated[int, Field(ge=64, le=4096, multiple_of=32, description="width")]
    layers: Annotated[int, Field(ge=5, le=64, description="depth")]
    heads: Annotated[int, Field(ge=1, le=128, description="of MLA attention; llama has one for each 64 of width")] = 2
    head_dim: Annotated[int, Field(ge=32, le=256, description="of MLA: its part without positions, and values")] = 64
    experts: Annotated[int, Field(ge=2, le=512, description="routed, of MLA; 2 of them work on a token")] = 4
    steps: Annotated[int, Field(ge=1, le=100_000, description="optimiser steps of batch x sequence tokens")]
    learning_rate: Rate


class Staged(_Values):
    """A model of a lock, brought to the host with every file verified."""

    lock: Annotated[str, Field(min_length=1, description="name of a lock of inventory/locks")]
    model: Annotated[str, Field(min_length=1, description="a model of its [weights.models]")]
    inventory: Annotated[str, Field(description="folder whose locks/ and manifests/ go before the shipped ones")] = ""


class Target(_Values):
    """The model to be served. What a staged one does not need is how one is made: its shapes and its training."""

    staged: Annotated[Staged | None, Field(description="fetched, and nothing is trained; none: it is made here")] = None
    trust_code: Annotated[
        bool, Field(description="steps and engine run code of the staged model's own folder, as its tokenizer")
    ] = False
    shape: Annotated[Literal["auto", "mla", "llama"], Field(description="auto: mla with AMX, else llama")] = "auto"
    vocab_size: Annotated[int, Field(ge=512, le=262_144, description="tokens of the byte-level BPE tokenizer")]
    sequence: Annotated[int, Field(ge=64, le=1024, description="tokens")] = 256
    batch: Count = 4
    threads: Annotated[int, Field(ge=0, description="0: one per core")] = 1
    seed: Annotated[int, Field(ge=0, description="of weights and order")] = 0
    mla: Shape | None = None
    llama: Shape | None = None

    @model_validator(mode="after")
    def _one_that_is_made_has_both_shapes(self) -> Self:
        if self.staged is None and (self.mla is None or self.llama is None):
            raise ValueError("neither staged nor with both shapes: expected staged, or mla and llama to make one of")
        if self.trust_code and self.staged is None:
            raise ValueError("trust_code without staged: expected false, a target that is made has no code")
        return self


class Corpus(_Values):
    """Prompts: those of a file, else questions about Python's own documentation, with its answers."""

    max_response_chars: Annotated[int, Field(ge=50, le=2000, description="of a docstring; whole paragraphs")]
    held_out: Annotated[int, Field(ge=8, description="prompts kept from training and from synthesis")]
    prompts: Annotated[str, Field(description="absolute path of JSON lines; empty: Python's documentation")] = ""
    max_prompt_tokens: Annotated[int, Field(ge=16, description="longer ones of the file are left out")] = 2048
    template_options: Annotated[
        dict[str, bool | int | float | str] | None,
        Field(description="what the chat template is given, as its thinking mode; none: nothing is said of it"),
    ] = None

    @model_validator(mode="after")
    def _a_file_says_how_it_is_rendered(self) -> Self:
        if self.prompts and not Path(self.prompts).is_absolute():
            raise ValueError(f"prompts {self.prompts}: expected an absolute path, steps run in folders of their own")
        if self.prompts and self.template_options is None:
            raise ValueError(
                "prompts without template_options: expected the template's thinking mode, {} for no options"
            )
        return self


class Drafter(_Values):
    """The EAGLE-3 drafter's shape and how it drafts."""

    draft_vocab_size: Annotated[int, Field(ge=64, description="the most frequent tokens, which it can draft")]
    aux_layers: Annotated[list[int], Field(min_length=3, max_length=3, description="whose states it reads")]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=16, description="k, drafted for each verify step")]
    ttt_length: Annotated[int, Field(ge=1, le=16, description="training-time test steps")]

    @model_validator(mode="after")
    def _layer_ids_mean_the_same_in_every_engine(self) -> Self:
        # SGLang adds 1 to every id only if the first is 1; vLLM takes ids as given (sglang deepseek_v2.py, read).
        if self.aux_layers[0] < 2 or sorted(set(self.aux_layers)) != self.aux_layers:
            raise ValueError(f"aux_layers {self.aux_layers}: expected rising layer ids that start at 2 or above")
        return self


class Baseline(_Values):
    """The brief training on generic text that stands in for a published drafter."""

    staged: Annotated[Staged | None, Field(description="a published drafter; none: the stand-in is trained")] = None
    samples: Count | None = None
    steps: Count | None = None
    batch: Count | None = None
    learning_rate: Rate | None = None

    @model_validator(mode="after")
    def _a_stand_in_says_how_it_is_trained(self) -> Self:
        training = (self.samples, self.steps, self.batch, self.learning_rate)
        if self.staged is None and None in training:
            raise ValueError("neither staged nor trained: expected staged, or samples, steps, batch and learning_rate")
        return self


def _each_once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"{names}: expected each once")
    return names


Names = Annotated[list[str], AfterValidator(_each_once)]


class Hosts(_Values):
    """Where finetune.hosts and synthesis.hosts reach this host, and what knows them."""

    address: Annotated[str, Field(description="of this host, in a network that the others have too")] = ""
    inventory: Annotated[str, Field(description="path of the inventory with the others; empty: the checkout's")] = ""


class Synthesis(_Values):
    """Responses of the served target itself."""

    prompts: Count
    max_tokens: Count
    concurrency: Annotated[int, Field(ge=1, description="requests at once, for each host that serves")]
    temperature: Annotated[float, Field(ge=0, le=2, description="0: greedy")]
    hosts: Annotated[Names, Field(description="of the inventory, that serve along with this one")] = []


class Parity(_Values):
    """Hidden states of the engine against transformers in fp32."""

    samples: Count
    max_mean_rel: Annotated[float, Field(gt=0, lt=1, description="relative error, mean over positions and layers")]


class Finetune(_Values):
    """Training of the drafter from the baseline on the target's own responses."""

    epochs: Annotated[int, Field(ge=1, le=100, description="over all samples that are not held out")]
    batch: Count
    learning_rate: Rate
    # Of 800 samples 40, some 2,000 tokens: one standard error of an accuracy is 0.01.
    held_out: Annotated[
        float, Field(gt=0, le=0.5, description="share of the samples that training leaves out, to judge the drafter by")
    ] = 0.05
    patience: Annotated[
        int, Field(ge=0, description="epochs without a gain on those samples after which it ends; 0: all are trained")
    ] = 0
    least_gain: Annotated[float, Field(ge=0, lt=1, description="in τ on those samples; less counts as none")] = 0
    hosts: Annotated[Names, Field(description="of the inventory, that train along with this one")] = []


class Bench(_Values):
    """Greedy decoding of held-out prompts."""

    prompts: Count
    max_tokens: Annotated[int, Field(ge=2, description="of an answer")]
    repetitions: Annotated[int, Field(ge=1, description="of every arm, in turn")]
    concurrency: Annotated[list[Count], Field(min_length=1, description="requests at once, one run for each")]


class Cost(_Values):
    """Forced accept lengths for the cost probe; each costs a measurement of `prompts` prompts a repetition."""

    accept_lengths: list[Annotated[float, Field(ge=1, le=17)]]
    prompts: Count


class Second(_Values):
    """Another engine that the same drafters are measured on, beside the one that the profile serves with."""

    engine: Engine
    environment: Annotated[Choice, Field(description="to serve it in; made by the step that measures it")]


class Lossless(_Values):
    """Greedy outputs may part only where the two best tokens are this close."""

    near_tie_nats: Annotated[float, Field(ge=0, le=1, description="widest gap that counts as a tie")]


class ExpectShape(_Values):
    """What a fine-tuned drafter must reach on one target shape (accept lengths, no unit)."""

    tau_min: Annotated[float, Field(ge=1, description="accept length of the fine-tuned drafter")]
    tau_ratio_min: Annotated[float, Field(ge=1, description="fine-tuned over baseline")]
    tau_margin_min: Annotated[float, Field(ge=0, description="fine-tuned minus baseline")]


class Expect(_Values):
    """The run's own expectations, judged at its end."""

    mla: ExpectShape
    llama: ExpectShape


class Figures(_Values):
    """What a plan counts with until something is measured: sizes and rates of models that are staged. No step reads it.

    Bytes, tokens and seconds. A manifest that a lock pins wins over weight_bytes and drafter_bytes.
    """

    layers: Annotated[int, Field(ge=1, description="of the target")]
    hidden_size: Annotated[int, Field(ge=64, description="width of the target")]
    weight_bytes: Annotated[int, Field(ge=1, description="of the target's files")]
    drafter_bytes: Annotated[int, Field(ge=1, description="of the drafter's files")]
    gpu_weight_bytes: Annotated[int, Field(ge=1, description="of the target on each GPU")]
    kv_bytes_per_token: Annotated[int, Field(ge=1, description="on each GPU, the drafter's cache included")]
    prompt_tokens: Annotated[float, Field(gt=0, description="mean of a sample")]
    answer_tokens: Annotated[float, Field(gt=0, description="mean of a sample")]
    fetch_bytes_s: Annotated[float, Field(gt=0, description="of weights to the host")]
    load_s: Annotated[float, Field(gt=0, description="of weights into the GPUs, read from disk")]
    warm_load_s: Annotated[float, Field(gt=0, description="of weights into the GPUs, out of the page cache")]
    single_tok_s: Annotated[float, Field(gt=0, description="generated for one user")]
    crowd_tok_s: Annotated[float, Field(gt=0, description="generated for more than one user, all together")]
    extract_tok_s: Annotated[float, Field(gt=0, description="whose hidden states are extracted")]
    reference_bytes_s: Annotated[float, Field(gt=0, description="of weights that parity's reference computes with")]
    layer_bytes: Annotated[int, Field(ge=1, description="of one layer in fp32 without experts, one expert, and work")]
    train_tok_s: Annotated[float, Field(gt=0, description="trained on, all GPUs together")]
    train_gpu_bytes: Annotated[int, Field(ge=1, description="of the trainer on each GPU")]
    checkpoint_bytes: Annotated[int, Field(ge=1, description="of one checkpoint, optimizer included")]
    checkpoints: Annotated[int, Field(ge=1, description="that the trainer keeps")]


class Profile(_Values):
    """Every value of the eagle3 runbook."""

    environments: Environments = Environments()
    target: Target
    corpus: Corpus
    engine: Engine
    drafter: Drafter
    baseline: Baseline
    synthesis: Synthesis
    parity: Parity
    finetune: Finetune
    bench: Bench
    cost: Cost
    lossless: Lossless
    second: Annotated[Second | None, Field(description="an engine to hold `engine` against; none: one engine")] = None
    expect: Expect
    hosts: Hosts = Hosts()
    figures: Annotated[Figures | None, Field(description="of staged models; none: a target that is made")] = None

    @model_validator(mode="after")
    def _aux_layers_lie_below_the_last(self) -> Self:
        known = [one.layers for one in (self.target.mla, self.target.llama, self.figures) if one is not None]
        if not known:
            raise ValueError("figures: nothing, expected those of the staged target, which has no shape here")
        layers = min(known)
        if self.drafter.aux_layers[-1] >= layers:
            raise ValueError(f"drafter.aux_layers {self.drafter.aux_layers}: expected ids below {layers} layers")
        answer = max(self.synthesis.max_tokens, self.bench.max_tokens)
        if self.corpus.prompts and self.corpus.max_prompt_tokens + answer > self.engine.max_model_len:
            raise ValueError(
                f"corpus.max_prompt_tokens {self.corpus.max_prompt_tokens} and an answer of {answer}: expected at most "
                f"{self.engine.max_model_len} tokens, engine.max_model_len"
            )
        if self.second and (self.second.engine.gpus is None) != (self.engine.gpus is None):
            raise ValueError(
                "second.engine.gpus: expected GPUs for both engines or for none, as a comparison is of both"
            )
        if self.second and self.second.engine.max_model_len < self.engine.max_model_len:
            raise ValueError(
                f"second.engine.max_model_len {self.second.engine.max_model_len}: expected at least "
                f"{self.engine.max_model_len}, that of engine"
            )
        if self.finetune.hosts and self.engine.gpus is None:
            raise ValueError("finetune.hosts without engine.gpus: expected none, a processor trains alone")
        if self.finetune.hosts or self.synthesis.hosts:
            _check_reached(self.hosts.address)
        if self.drafter.draft_vocab_size > self.target.vocab_size:
            raise ValueError(
                f"drafter.draft_vocab_size {self.drafter.draft_vocab_size}: "
                f"expected at most target.vocab_size {self.target.vocab_size}"
            )
        return self


def _check_reached(text: str) -> None:
    try:
        address = ip_address(text)
    except ValueError:
        raise ValueError(
            f"finetune.hosts or synthesis.hosts with hosts.address {text!r}: expected an IP address of this host"
        ) from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(f"hosts.address {text}: expected one on which the other hosts reach this one")
