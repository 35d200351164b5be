"""The tokenizer of a staged model: by transformers, or by code of the model's own folder where the profile trusts it.

Kimi-K2.5's is such code (`tokenization_kimi.py`, over tiktoken). It is executed in this process, so only files run that
the lock's manifest pins and the staging has hashed, and only where the profile says `target.trust_code`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.errors import AerieError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["load"]

_CONFIG = "tokenizer_config.json"


def load(folder: Path, pinned: Mapping[str, str], *, trust_code: bool) -> "PreTrainedTokenizerBase":
    """The tokenizer of the model in `folder`.

    pinned: the code that the manifest knows, each path in the folder with its hash. Raises AerieError for code that is
    not trusted, not in the folder or not pinned, for code that fails, and for a tokenizer that gives a token which is
    named in its own configuration another id.
    """
    config = _read(folder / _CONFIG)
    if (reference := _own_class(config)) is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    else:
        _check(folder, reference, pinned, trust_code)
        tokenizer = _by_own_code(folder, reference)
    _check_named_tokens(tokenizer, folder, config)
    return tokenizer


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def _own_class(config: Mapping[str, Any]) -> str | None:
    """What the configuration names as `module.Class`, the fast one where there are two; None for none."""
    named = config.get("auto_map") or {}
    classes = named.get("AutoTokenizer") if isinstance(named, dict) else named  # a list is its older form
    if isinstance(classes, str):
        return classes
    return next((str(one) for one in reversed(classes or []) if one), None)


def _check(folder: Path, reference: str, pinned: Mapping[str, str], trust_code: bool) -> None:
    """Raise AerieError unless the code may be executed."""
    file = f"{reference.partition('.')[0]}.py"
    if "--" in reference or "/" in reference or file not in pinned:
        raise AerieError(
            f"{folder / _CONFIG}: auto_map",
            seen=f"{reference}, which is not among the files that the manifest pins",
            expected="code in the model's own folder, pinned with its hash",
            remedy="Nothing that is fetched beside the weights is executed: take a repository that brings its code.",
        )
    # A module of the folder may import any other of it, so that each is one that may run.
    if strange := sorted(path for path in _code(folder) if path not in pinned):
        raise AerieError(
            f"{folder}",
            seen=f"code that no manifest pins: {', '.join(strange)}",
            expected="the manifest's files alone",
            remedy="Remove it: it was put there after the staging.",
        )
    if not trust_code:
        raise AerieError(
            "target.trust_code",
            seen=f"false, and the tokenizer is code of the model: {reference}, in {file} of hash {pinned[file]}",
            expected="true, which lets the steps and the engine run the code that came with the weights",
            remedy=f"Read the .py files in {folder}; then set target.trust_code, or take a model without code.",
        )


def _code(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*.py")}


def _by_own_code(folder: Path, reference: str) -> "PreTrainedTokenizerBase":
    # Not through AutoTokenizer: releases of transformers 5 took their own class over this tiktoken file, and with it
    # broke the tokens of Kimi's thinking, or failed (tinker-cookbook pull requests 784 and 785).
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        tokenizer: PreTrainedTokenizerBase = get_class_from_dynamic_module(
            reference, str(folder), local_files_only=True
        ).from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a model's own code raises, a package that it lacks above all
        raise AerieError(
            f"{folder}: {reference}",
            seen=f"{type(error).__name__}: {error}",
            expected="the model's own tokenizer",
            remedy="A package that it imports belongs into the environment train (train-gpu has tiktoken); else this "
            "transformers and the code do not fit: pin another revision of the model.",
        ) from error
    return tokenizer


def _check_named_tokens(tokenizer: "PreTrainedTokenizerBase", folder: Path, config: Mapping[str, Any]) -> None:
    """Raise AerieError unless each token that the configuration names is, as text, that one id."""
    named = {entry["content"]: int(name) for name, entry in (config.get("added_tokens_decoder") or {}).items()}
    if not named:
        return
    found = tokenizer(list(named), add_special_tokens=False)["input_ids"]
    wrong = [(text, ids) for (text, wanted), ids in zip(named.items(), found, strict=True) if list(ids) != [wanted]]
    if wrong:
        text, ids = wrong[0]
        raise AerieError(
            f"{folder / _CONFIG}: {text}",
            seen=f"{list(ids)} by {type(tokenizer).__name__}" + (f", and {len(wrong) - 1} more" if wrong[1:] else ""),
            expected=f"[{named[text]}]",
            remedy="The template's marks would be other tokens than the target knows: pin a revision whose tokenizer "
            "this transformers loads rightly.",
        )
