"""The target step, run for real with two training steps: its files, and that nothing held out is in them."""

import itertools
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from aerie.eagle3 import making, target
from aerie.eagle3 import rows as rendered
from aerie.eagle3.arithmetic import parameters
from aerie.eagle3.profile import Shape, Target
from aerie.errors import AerieError
from aerie.paths import repository
from aerie.runbook.step import Context, Input

PROFILES = repository() / "runbooks" / "eagle3" / "profiles"
SIZE = {"hidden_size": 64, "layers": 5, "steps": 2, "learning_rate": 1e-3}
VALUES = {
    "target": {
        "shape": "auto",
        "vocab_size": 512,
        "sequence": 64,
        "batch": 2,
        "threads": 1,
        "seed": 0,
        "mla": SIZE,
        "llama": SIZE,
    },
    "corpus": {"max_response_chars": 100, "held_out": 8},
    "baseline": {"staged": None},
}


def context(folder: Path, shape: str, **more: Any) -> Context:
    evidence = {
        "shape": {"name": shape, "reason": "asked for"},
        "arithmetic": {"dtype": "float32", "reason": "asked for"},
        "device": {"type": "cpu", "reason": "asked for"},
    }
    return Context(
        run="r",
        step="target",
        attempt=1,
        values={**VALUES, "corpus": VALUES["corpus"] | more},
        inputs={"preflight": Input(path=folder, evidence=evidence)},
        out=folder / "out",
        scratch=folder,
        kept=folder,
        interpreters={},
        progress_file=folder / "progress.json",
    )


def run(folder: Path, shape: str, **more: Any) -> dict[str, Any]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (folder / "out").mkdir()
    return dict(target.run(context(folder, shape, **more)))


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_the_model(folder: Path, evidence: dict[str, Any], shape: str) -> dict[str, Any]:
    """Its config.json, once it is what the engine and the trainer need."""
    model = folder / "out" / "model"
    config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
    index = json.loads((model / "model.safetensors.index.json").read_bytes())
    assert evidence["shape"]["name"] == shape
    assert (evidence["steps"], evidence["vocab_size"]) == (2, 512)
    assert 64 < evidence["tokens"] <= 2 * 2 * 64
    assert config["dtype"] == "bfloat16"
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"} <= set(index["weight_map"])
    return config


def test_the_target_is_what_engine_and_trainer_need(tmp_path: Path) -> None:
    config = check_the_model(tmp_path, run(tmp_path, "mla"), "mla")
    assert (config["topk_method"], config["scoring_func"]) == ("noaux_tc", "sigmoid")
    assert (config["kv_lora_rank"], config["qk_rope_head_dim"]) == (512, 64)


def test_nothing_held_out_is_in_training_prompts_or_generic_text(tmp_path: Path) -> None:
    run(tmp_path, "llama")
    train, held = rows(tmp_path / "out" / "prompts.train.jsonl"), rows(tmp_path / "out" / "prompts.held.jsonl")
    names = {row["id"] for row in held}
    assert len(names) == len(held) == 8
    assert [row["prompt"] for row in train if any(name in row["prompt"] for name in names)] == []
    assert len({row["id"] for row in train}) == len(train)

    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    generic = rows(tmp_path / "out" / "generic.jsonl")
    texts = [tokenizer.decode(row["input_ids"]) for row in generic]
    assert [text for text in texts if any(name in text for name in names)] == []
    assert tokenizer.decode(held[0]["input_ids"]) == f"<|user|>{held[0]['prompt']}<|assistant|>"
    counted = [token for token, mask in zip(generic[0]["input_ids"], generic[0]["loss_mask"], strict=True) if mask]
    assert texts[0].endswith(f"<|assistant|>{tokenizer.decode(counted)}")
    assert counted[-1] == tokenizer.eos_token_id


def test_prompts_of_ones_own_take_the_place_of_pythons(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    turns = [{"role": "user", "content": "Servus"}, {"role": "assistant", "content": "Hello"}]
    entries = [{"prompt": f"Question {i}?"} for i in range(20)]
    entries += [{"id": "talk", "messages": [*turns, {"role": "user", "content": "Why?"}]}, entries[3]]
    entries += [{"id": "long", "prompt": "word " * 400}]
    file.write_text("".join(json.dumps(one) + "\n" for one in entries))
    evidence = run(tmp_path, "llama", prompts=str(file), template_options={}, max_prompt_tokens=64)
    check_the_model(tmp_path, evidence, "llama")
    told = evidence["corpus"]
    assert (told["lines"], told["asked"], told["conversations"]) == (23, 24, 22)
    assert (told["repeated"], told["too_long"]) == (1, 1)
    train, held = (rows(tmp_path / "out" / f"prompts.{part}.jsonl") for part in ("train", "held"))
    assert (len(train), len(held)) == (evidence["train_prompts"], 8) == (14, 8)
    assert len({row["id"] for row in train + held}) == 22
    first, second = (row for name in ("talk#1", "talk#2") for row in train if row["id"] == name)
    assert first["conversation"] == second["conversation"]

    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    opening = "<|user|>Servus<|assistant|>"
    assert tokenizer.decode(first["input_ids"]) == opening
    assert tokenizer.decode(second["input_ids"]) == f"{opening}Hello<eos><|user|>Why?<|assistant|>"
    assert target.stale(evidence) is None
    file.write_text("")
    assert target.stale(evidence) == f"{file} holds other prompts by now"
    file.unlink()
    assert target.stale(evidence) is None  # what was made of it is there


def test_an_option_that_the_template_never_reads_and_turns_that_it_refuses_are_told() -> None:
    pytest.importorskip("transformers")
    tokenizer = target.build_tokenizer(["Why is it so? Because."], 262)
    chat = [[{"role": "user", "content": "Why?"}]]
    with pytest.raises(AerieError, match=r"corpus\.template_options\.enable_thinking: 'a chat template that never"):
        rendered.render(tokenizer, chat, {"enable_thinking": False})
    plain = rendered.render(tokenizer, chat, {})
    tokenizer.chat_template += "{% if thinking is false %}<eos>{% endif %}"
    assert rendered.render(tokenizer, chat, {"thinking": False}) == [[*plain[0], tokenizer.eos_token_id]]
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(AerieError, match="roles must alternate for Why"):
        rendered.render(tokenizer, chat, {})


def test_every_row_of_a_batch_starts_with_a_prompt_and_is_padded_at_its_end() -> None:
    settings = Target.model_validate(VALUES["target"])
    ways = [[[3, 10 + name, 4, *range(20, 20 + name)] for name in range(12)] for _ in range(4)]
    batches = list(itertools.islice(making.batches(ways, settings), 20))
    rows = [row for batch in batches for row in batch]
    assert [batch for batch in batches if len(batch) * len(batch[0]) > settings.batch * settings.sequence] == []
    assert [row for row in rows if row[0] != 3 or 0 in row[: row.index(4) + 1]] == []
    assert {row[1] for row in rows} == set(range(10, 22))


def test_a_training_that_is_killed_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)  # as the step does: on shared cores two wait for each other
    settings = Target.model_validate(VALUES["target"])
    size = Shape.model_validate(SIZE | {"steps": 6})
    ways = [[[3, 10 + name, 4, *range(20, 20 + name)] for name in range(12)] for _ in range(4)]

    def train(kept: Path) -> tuple[dict[str, Any], making.Trained]:
        kept.mkdir(exist_ok=True)
        torch.manual_seed(0)
        model = target.build_model("mla", settings)
        trained = making.train(context(kept, "mla"), settings, size, model, ways, save_s=0)
        return dict(model.state_dict()), trained

    weights, uncut = train(tmp_path / "uncut")
    keep, times = making._keep, iter(range(6))

    def killed_after(*given: Any) -> None:
        keep(*given)
        if next(times) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(making, "_keep", killed_after)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "cut")
    resumed, trained = train(tmp_path / "cut")
    assert (trained.losses, trained.tokens) == (uncut.losses, uncut.tokens)
    assert [name for name in weights if not torch.equal(weights[name], resumed[name])] == []


@pytest.mark.parametrize("shape", ["mla", "llama"])
def test_rescaled_states_are_near_one_and_give_the_same_outputs(shape: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = target.build_model(shape, Target.model_validate(VALUES["target"])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter *= 20  # as after training with Muon
        tokens = torch.arange(5, 25).unsqueeze(0)
        before = model(input_ids=tokens).logits
        target._rescale_states(model, tokens)
        after = model(input_ids=tokens, output_hidden_states=True)
    assert torch.allclose(before, after.logits, atol=1e-3)
    assert 0.5 < torch.stack(after.hidden_states[1:-1]).pow(2).mean().sqrt() < 2


def test_the_learning_rate_warms_up_stays_and_falls() -> None:
    shares = [making.learning_rate_share(step, 100) for step in (0, 19, 40, 70, 99)]
    assert shares == pytest.approx([0.05, 1, 1, 0.5, 0.02], abs=1e-3)


@pytest.mark.parametrize("profile", ["tiny", "gpu-small"])
@pytest.mark.parametrize("shape", ["mla", "llama"])
def test_a_plan_counts_the_parameters_of_the_model_that_is_built(shape: Literal["mla", "llama"], profile: str) -> None:
    torch = pytest.importorskip("torch")
    values = Target.model_validate(yaml.safe_load((PROFILES / f"{profile}.yml").read_text())["target"])
    with torch.device("meta"):
        built = target.build_model(shape, values)
    assert parameters(shape, values) == sum(parameter.numel() for parameter in built.parameters())
