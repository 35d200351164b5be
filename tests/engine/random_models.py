"""FOLDER SHAPE [HIDDEN LAYERS]: writes FOLDER/target (a tiny target, mla or llama) and FOLDER/drafter (EAGLE-3).

All weights are random. FOLDER/shifted is that drafter with every draft id meaning the token after its own: next to
nothing of it is accepted. For the engine's Python.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from aerie.eagle3.profile import Shape, Target
from aerie.eagle3.specforge import draft_config
from aerie.eagle3.target import build_model

VOCABULARY, DRAFT_VOCABULARY = 512, 256
folder, shape = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)

hidden_size, layers = map(int, sys.argv[3:5] or (192, 6))
size = Shape(hidden_size=hidden_size, layers=layers, steps=1, learning_rate=1e-3)
values = Target(shape=shape, vocab_size=VOCABULARY, sequence=256, batch=4, threads=1, seed=0, mla=size, llama=size)
words = {f"w{i}": i for i in range(VOCABULARY)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(folder / "target")
build_model(shape, values).to(torch.bfloat16).save_pretrained(folder / "target")

target = json.loads((folder / "target" / "config.json").read_bytes())
config = draft_config(target, draft_vocab_size=DRAFT_VOCABULARY, aux_layers=[2, 3, 4])
hidden, inner = config["hidden_size"], config["intermediate_size"]
heads = config["num_attention_heads"] * config["head_dim"]


def weight(*shape):
    return (torch.randn(*shape) * 0.02).to(torch.bfloat16)


def norm():
    return torch.ones(hidden, dtype=torch.bfloat16)


weights = {
    "fc.weight": weight(hidden, 3 * hidden),
    **{f"midlayer.self_attn.{name}_proj.weight": weight(heads, 2 * hidden) for name in "qkv"},
    "midlayer.self_attn.o_proj.weight": weight(hidden, heads),
    "midlayer.mlp.gate_proj.weight": weight(inner, hidden),
    "midlayer.mlp.up_proj.weight": weight(inner, hidden),
    "midlayer.mlp.down_proj.weight": weight(hidden, inner),
    **{f"midlayer.{name}.weight": norm() for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
    "norm.weight": norm(),
    "lm_head.weight": weight(DRAFT_VOCABULARY, hidden),
}
tokens = torch.arange(VOCABULARY)
for name, shift in (("drafter", 0), ("shifted", 1)):
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))
    d2t = torch.full((DRAFT_VOCABULARY,), shift, dtype=torch.int64)
    t2d = (tokens >= shift) & (tokens < DRAFT_VOCABULARY + shift)
    save_file(weights | {"d2t": d2t, "t2d": t2d}, folder / name / "model.safetensors")
