"""Writes FOLDER/target (DeepSeek-V3-shaped) and FOLDER/drafter (EAGLE-3), weights random. For the engine's Python."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

VOCABULARY, DRAFT_VOCABULARY, HIDDEN, HEAD, HEADS, INNER = 512, 256, 192, 64, 2, 384
folder = Path(sys.argv[1])
torch.manual_seed(0)

words = {f"w{i}": i for i in range(VOCABULARY)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(folder / "target")
rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
config = DeepseekV3Config(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    moe_intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    n_shared_experts=1,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    q_lora_rank=96,
    kv_lora_rank=512,
    qk_nope_head_dim=HEAD,
    qk_rope_head_dim=HEAD,
    v_head_dim=HEAD,
    max_position_embeddings=1024,
    rope_parameters=rope,
    bos_token_id=1,
    eos_token_id=2,
)
config.topk_method, config.scoring_func, config.num_nextn_predict_layers = "noaux_tc", "sigmoid", 0
DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "target")


def weight(*shape):
    return (torch.randn(*shape) * 0.02).to(torch.bfloat16)


def norm():
    return torch.ones(HIDDEN, dtype=torch.bfloat16)


drafter = folder / "drafter"
drafter.mkdir()
save_file(
    {
        "fc.weight": weight(HIDDEN, 3 * HIDDEN),
        **{f"midlayer.self_attn.{name}_proj.weight": weight(HEADS * HEAD, 2 * HIDDEN) for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD),
        "midlayer.mlp.gate_proj.weight": weight(INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": weight(INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": weight(HIDDEN, INNER),
        **{
            f"midlayer.{name}.weight": norm() for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        },
        "norm.weight": norm(),
        "lm_head.weight": weight(DRAFT_VOCABULARY, HIDDEN),
        "d2t": torch.zeros(DRAFT_VOCABULARY, dtype=torch.int64),
        "t2d": torch.arange(VOCABULARY) < DRAFT_VOCABULARY,
    },
    drafter / "model.safetensors",
)
shape = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "target_hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "use_aux_hidden_state": True},
}
(drafter / "config.json").write_text(json.dumps(shape))
