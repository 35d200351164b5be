"""Sizes and times of a run from its counts: bytes of hidden states and of features, hours from rates. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from aerie.eagle3.profile import Profile, Target

__all__ = ["KEPT", "Captured", "captured", "hours", "parameters", "rate_of_one"]

# Of the bytes of bf16 states: aerie/engines/states.py on states of the tiny target, 2026-11; the floor by entropy of
# their bits is 0.656.
KEPT = 0.70
_PROMPT_TOKENS = 48  # the longest prompt of the embedded corpus has 43
_IDS_AND_MASK_BYTES = 16  # an int64 token id and an int64 mask entry for each position


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Hidden states of a corpus. layers: captured for each token, the last one included; hidden: their width;
    number_bytes: 2 in bf16, 4 in fp32.
    """

    samples: int
    tokens_per_sample: float
    layers: int
    hidden: int
    number_bytes: int = 2

    @property
    def tokens(self) -> float:
        """Of all samples."""
        return self.samples * self.tokens_per_sample

    @property
    def bytes_per_token(self) -> int:
        """Without its id and its mask."""
        return self.layers * self.hidden * self.number_bytes

    @property
    def state_bytes(self) -> int:
        """As an engine writes them."""
        return round(self.tokens * self.bytes_per_token)

    @property
    def kept_bytes(self) -> int:
        """As they are kept, without loss; with token ids."""
        return round(self.tokens * (self.bytes_per_token * KEPT + _IDS_AND_MASK_BYTES / 2))

    @property
    def feature_bytes(self) -> int:
        """As the trainer reads them: uncompressed, with ids and mask."""
        return round(self.tokens * (self.bytes_per_token + _IDS_AND_MASK_BYTES))

    def samples_within(self, disk_bytes: float) -> int:
        """How many samples of this length can be kept in so many bytes."""
        return int(disk_bytes / (self.kept_bytes / self.samples))


def captured(profile: "Profile") -> Captured:
    """What a run of a target that is made captures at the most: answers of full length, in fp32 as some processors need
    it; on GPUs in bf16.
    """
    corpus = profile.corpus
    return Captured(
        samples=profile.synthesis.prompts,
        tokens_per_sample=(corpus.max_prompt_tokens if corpus.prompts else _PROMPT_TOKENS)
        + profile.synthesis.max_tokens,
        layers=len(profile.drafter.aux_layers) + 1,
        hidden=max(shape.hidden_size for shape in (profile.target.mla, profile.target.llama) if shape),
        number_bytes=2 if profile.engine.gpus else 4,
    )


def parameters(shape: Literal["mla", "llama"], target: "Target") -> int:
    """Of the target that is made with this shape; 0 where the profile has none. A test holds it against the model."""
    size = target.mla if shape == "mla" else target.llama
    if size is None:
        return 0
    width, inner = size.hidden_size, size.hidden_size // 2
    if shape == "llama":
        heads = width // 64
        attention = 64 * width * 2 * (heads + max(1, heads // 2))
        each = size.layers * (attention + 3 * width * (width * 11 // 4) + 2 * width)
        return each + (2 * target.vocab_size + 1) * width
    queries = inner * (width + 1 + size.heads * (size.head_dim + 64))
    latent = 576 * width + 512 + 512 * size.heads * 2 * size.head_dim
    attention = queries + latent + size.heads * size.head_dim * width
    experts = size.experts * width + (size.experts + 1) * 3 * width * inner
    dense = 3 * width * 2 * width
    layers = size.layers * (attention + 2 * width) + dense + (size.layers - 1) * experts
    return layers + (2 * target.vocab_size + 1) * width


def rate_of_one(synthesis: Mapping[str, Any]) -> float | None:
    """New tokens a second of each host that served in a measured synthesis; None where nothing was measured.

    One that was lost on the way counts in full, so that what is planned is no shorter than what was seen.
    """
    rate: float | None = synthesis.get("tok_s")
    served = sum(one["start_s"] is not None for one in synthesis.get("hosts", {}).values())
    return rate and rate / max(1, served)


def hours(amount: float, per_second: float) -> float:
    """Hours for so many tokens or bytes at a rate. Raises ValueError for a rate of 0 or less."""
    if per_second <= 0:
        raise ValueError(f"a rate of {per_second} a second")
    return amount / per_second / 3600
