"""A training that takes seconds on a CPU: a drafter for a target of which there is nothing but a head."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from aerie.eagle3 import head, specforge
from aerie.eagle3.features import write_feature

_WIDTH, _VOCAB, _DRAFTED, _TOKENS = 64, 128, 64, 20
_USED = 16  # tokens of the text
_FOLLOWS = 0.7  # of them come after the one before as always
_CONFIG = {
    "hidden_size": _WIDTH,
    "vocab_size": _VOCAB,
    "num_hidden_layers": 6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def plan(folder: Path, *, samples: int, held_out: int, **more: Any) -> specforge.Plan:
    """A sample a step for each process. After a token comes the same one, in 7 of 10 places, and else any: what is
    learned beyond is the samples by heart, for the states of the layers say nothing of the text.
    """
    torch.manual_seed(0)
    (folder / "model").mkdir()
    rows = torch.nn.functional.normalize(torch.randn(_VOCAB, _WIDTH), dim=-1)
    weights = {"lm_head.weight": rows, "model.embed_tokens.weight": torch.randn(_VOCAB, _WIDTH)}
    named = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(named | {"model.norm.weight": torch.ones(_WIDTH)}, folder / "model" / "model.safetensors")
    (folder / "model" / "config.json").write_text(json.dumps(_CONFIG))
    drafter = specforge.draft_config(_CONFIG, draft_vocab_size=_DRAFTED, aux_layers=[2, 3, 4])
    (folder / "drafter.json").write_text(json.dumps(drafter))
    torch.save(
        {"d2t": torch.zeros(_DRAFTED, dtype=torch.int64), "t2d": torch.arange(_VOCAB) < _DRAFTED}, folder / "map.pt"
    )
    follows = torch.randperm(_USED).tolist()
    for name, count in (("features", samples), ("held-out", held_out)):
        (folder / name).mkdir()
        for number in range(count):
            _write(folder / name / f"{number:06d}.ckpt", _text(follows), rows)
    return specforge.Plan(
        target=head.of(folder / "model"),
        drafter_config=folder / "drafter.json",
        vocab_map=folder / "map.pt",
        features=folder / "features",
        held_out=folder / "held-out",
        start=None,
        samples=samples,
        max_steps=None,
        batch=1,
        ttt_length=2,
        max_length=64,
        dtype="float32",
        **more,
    )


def _text(follows: list[int]) -> list[int]:
    tokens = [int(torch.randint(_USED, ()))]
    while len(tokens) <= _TOKENS:
        tokens.append(follows[tokens[-1]] if torch.rand(()) < _FOLLOWS else int(torch.randint(_USED, ())))
    return tokens


def _write(path: Path, tokens: list[int], rows: torch.Tensor) -> None:
    write_feature(
        path,
        input_ids=tokens[:-1],
        loss_mask=[0] * 5 + [1] * (_TOKENS - 5),
        aux=torch.randn(_TOKENS, 3, _WIDTH) / 2,
        last=20 * rows[tokens[1:]],  # of which the head finds the next token
        dtype="float32",
    )
