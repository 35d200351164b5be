"""A tokenizer that is code of the model's own folder, as Kimi-K2.5's: where the profile trusts it, and if pinned."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import rows, staged, staged_tokenizer, target
from aerie.eagle3.profile import Target
from aerie.errors import AerieError
from aerie.runbook.step import Input
from tests.unit.eagle3.test_staged import CORPUS, LOCK, SIZE, TARGET, context, made, pin

__all__ = ["made"]

# One token a byte and one a mark. It takes its marks from the configuration, as Kimi's does, and from a second file.
CODE = """
from transformers import PreTrainedTokenizer

from .marks import FIRST


class Bytes(PreTrainedTokenizer):
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, added_tokens_decoder=None, **more):
        self.marks = {str(token): number for number, token in (added_tokens_decoder or {}).items()}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **more)

    @property
    def vocab_size(self):
        return FIRST

    def get_vocab(self):
        return {chr(code): code for code in range(FIRST)} | self.marks

    def _tokenize(self, text, **more):
        return [chr(code) for code in text.encode()]

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, number):
        return chr(number)
"""
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinking is false %}<think></think>{% endif %}{% endif %}"
)
MARKS = ("<|user|>", "<|assistant|>", "<think>", "</think>", "<eos>")
PINNED = {"tokenization_own.py": "a1", "marks.py": "b2"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers executes a copy of the code: it lies where the test ends."""
    modules = pytest.importorskip("transformers.dynamic_module_utils")
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


def write(folder: Path, reference: Any = ("tokenization_own.Bytes", None), code: str = CODE) -> Path:
    folder.mkdir(exist_ok=True)
    marks = {
        str(256 + number): {"content": mark, "special": True, "normalized": False} for number, mark in enumerate(MARKS)
    }
    config = {
        "tokenizer_class": "Bytes",
        "auto_map": {"AutoTokenizer": reference},
        "added_tokens_decoder": marks,
        "eos_token": "<eos>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenization_own.py").write_text(code)
    (folder / "marks.py").write_text("FIRST = 256\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_trusted_code_is_the_tokenizer(tmp_path: Path) -> None:
    found = staged_tokenizer.load(write(tmp_path / "kimi-k2.5@abc"), PINNED, trust_code=True)
    assert type(found).__name__ == "Bytes"
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "Why?")]
    assert rows.render(found, chats, {"thinking": False}) == [
        [256, *b"Hi", 257, 258, 259],
        [256, *b"Why?", 257, 258, 259],
    ]


def refusal(folder: Path, pinned: dict[str, str], *, trust_code: bool = True) -> AerieError:
    with pytest.raises(AerieError) as refused:
        staged_tokenizer.load(folder, pinned, trust_code=trust_code)
    return refused.value


def test_code_that_is_not_trusted_is_named_and_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", code="raise SystemExit('it ran')")
    said = refusal(folder, PINNED, trust_code=False)
    assert said.where == "target.trust_code"
    assert said.seen == "false, and the tokenizer is code of the model: tokenization_own.Bytes, " + (
        "in tokenization_own.py of hash a1"
    )


@pytest.mark.parametrize("reference", ["someone/else--tokenization_own.Bytes", "../other.Bytes", "absent.Bytes"])
def test_code_of_elsewhere_is_not_run(tmp_path: Path, reference: str) -> None:
    said = refusal(write(tmp_path / "model", [reference, None]), PINNED)
    assert said.seen == f"{reference}, which is not among the files that the manifest pins"


def test_code_that_was_put_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "more").mkdir()
    (folder / "more" / "late.py").write_text("")
    assert refusal(folder, PINNED).seen == "code that no manifest pins: more/late.py"


def test_code_that_fails_tells_what_it_lacks(tmp_path: Path) -> None:
    said = refusal(write(tmp_path / "model", code="import a_package_that_is_not_there\n" + CODE), PINNED)
    assert said.seen is not None and "ImportError" in said.seen and "a_package_that_is_not_there" in said.seen
    assert "environment train" in said.remedy


def test_a_mark_that_comes_out_as_other_tokens_is_refused(tmp_path: Path) -> None:
    wrong = CODE.replace("super().__init__(added_tokens_decoder=added_tokens_decoder, **more)", "super().__init__()")
    said = refusal(write(tmp_path / "model", code=wrong), PINNED)
    assert said.where.endswith("tokenizer_config.json: <|user|>")
    assert (said.seen, said.expected) == (f"{list(b'<|user|>')} by Bytes, and 4 more", "[256]")


def test_a_staged_target_with_a_tokenizer_of_its_own(made: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(made / "out" / "model", model)
    for file in model.glob("tokenizer*"):
        file.unlink()
    pin(tmp_path / "inventory", own=write(model))
    chosen = {"lock": LOCK, "model": "own", "inventory": str(tmp_path / "inventory")}
    values = {**TARGET, "mla": SIZE, "llama": SIZE, "staged": chosen, "trust_code": True}
    baseline = {"staged": {"lock": LOCK, "model": "drafter"}}
    corpus = {**CORPUS, "template_options": {"thinking": False}}
    step = context(tmp_path / "step", "target", target=values, corpus=corpus, baseline=baseline)
    evidence = target.run(step)
    assert (evidence["trust_code"], evidence["tokenizer"], evidence["vocab_size"]) == (True, "Bytes", 261)
    assert sorted(evidence["staged"]["code"]) == ["marks.py", "tokenization_own.py"]
    row = json.loads((step.out / "prompts.held.jsonl").read_text().splitlines()[0])
    assert row["input_ids"] == [256, *row["prompt"].encode(), 257, 258, 259]
    assert not (step.out / "generic.jsonl").exists()  # the drafter is staged, and nothing else reads it
    folder = staged.folder(Input(path=step.out, evidence=evidence), "model")
    assert (folder / "tokenization_own.py").read_text() == CODE


def test_trust_needs_a_staged_target() -> None:
    with pytest.raises(ValueError, match="trust_code without staged"):
        Target.model_validate({**TARGET, "mla": SIZE, "llama": SIZE, "trust_code": True})
