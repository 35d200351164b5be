"""The corpus: the same for the same Python, and nothing that is held out in anything that is trained on."""

import subprocess
import sys
from pathlib import Path

import pytest

from aerie.eagle3 import corpus
from aerie.eagle3.corpus import Pair
from aerie.errors import AerieError

MAX_CHARS = 300
HELD_OUT = 40


@pytest.fixture(scope="module")
def everything() -> list[Pair]:
    return corpus.pairs(MAX_CHARS)


def test_pairs_are_the_same_in_every_process() -> None:
    # In processes of their own: pytest replaces documented hooks such as sys.breakpointhook in this one.
    code = f"from aerie.eagle3 import corpus; import sys; sys.stdout.write(repr(corpus.pairs({MAX_CHARS})))"
    seen = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(corpus.__file__).parents[2]), "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seen[0] == seen[1]


def test_pairs_are_sorted_unique_and_short(everything: list[Pair]) -> None:
    names = [pair.name for pair in everything]
    texts = {pair.text for pair in everything}
    assert names == sorted(set(names))
    assert len(texts) == len(everything) > 1000
    assert [pair for pair in everything if len(pair.text) > MAX_CHARS] == []


def test_plain_attributes_do_not_come_with_the_docstring_of_their_type(everything: list[Pair]) -> None:
    assert [pair.name for pair in everything if pair.text.startswith("int([x]) -> integer")] in ([], ["builtins.int"])


def test_no_held_out_name_or_text_is_in_any_training_prompt_or_text(everything: list[Pair]) -> None:
    train, held = corpus.split(everything, HELD_OUT)
    assert len(held) == HELD_OUT
    assert len(train) + len(held) == len(everything)
    seen = [
        "\n".join([*(corpus.ask(pair.name, template) for template in range(len(corpus.TEMPLATES))), pair.text])
        for pair in train
    ]
    assert [pair.name for pair in held if any(pair.name in text or pair.text in text for text in seen)] == []


def test_no_held_out_name_is_in_the_generic_text(everything: list[Pair]) -> None:
    _, held = corpus.split(everything, HELD_OUT)
    generic = corpus.manual(600, without=[pair.name for pair in held])
    assert len(generic) > 500
    assert [pair.name for pair in held if any(pair.name in piece.text for piece in generic)] == []


def test_split_depends_on_the_names_only(everything: list[Pair]) -> None:
    assert corpus.split(everything, HELD_OUT) == corpus.split(everything[::-1], HELD_OUT)


def test_a_name_that_occurs_elsewhere_is_not_held_out() -> None:
    pairs = [
        Pair("os.path", "Common operations."),
        Pair("os.path.join", "Join components."),
        Pair("abc.f", "About it."),
    ]
    _, held = corpus.split(pairs, 2)
    assert {pair.name for pair in held} == {"os.path.join", "abc.f"}
    with pytest.raises(AerieError, match=r"corpus\.held_out: 3, expected at most 2"):
        corpus.split(pairs, 3)


def test_a_python_without_docstrings_is_refused() -> None:
    with pytest.raises(AerieError, match="documented names"):
        corpus.pairs(MAX_CHARS, modules=["this_module_does_not_exist"])
