"""A real engine, vLLM on the processor, as a service of a lab host: what is done to it, and what befalls it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie import environments
from aerie.eagle3 import preflight
from aerie.paths import repository
from aerie.weights import manifest as manifests
from aerie.weights.sources import folder as folder_source
from lab import LabHost

pytestmark = [pytest.mark.lab, pytest.mark.engine]

HERE = Path(__file__).parent
SHAPE, _ = preflight.shape("auto", preflight.cpu().flags)
DTYPE, _ = preflight.arithmetic(preflight.cpu().flags)
PYTHON, LIB, MODELS = "/opt/aerie/python", "/opt/aerie/engine-lib", "/srv/models"
ENGINE = f"""
[weights]
parallel = 4

[engine.models.tiny]
environment = "engine"
port = 8100
dtype = "{DTYPE}"
max_model_len = 256
max_num_seqs = 4
kv_cache_gib = 1
threads = 1
ready_timeout_s = 240
"""
Said = Callable[..., str]
Call = Callable[..., tuple[int, dict[str, Any]]]


def make_models(folder: Path) -> None:
    """tiny, its drafter, one more drafter of the same weights, and one whose configuration fits no weights."""
    python = environments.ensure("engine").python
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    script = HERE.parent / "engine" / "random_models.py"
    argv = [python, "-W", "ignore", script, folder, SHAPE]
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=300)
    (folder / "target").rename(folder / "tiny")
    for name in ("second", "broken"):
        shutil.copytree(folder / "drafter", folder / name)
    config = json.loads((folder / "broken/config.json").read_text())
    (folder / "broken/config.json").write_text(json.dumps(config | {"draft_vocab_size": 128}))


def write_lock(host: LabHost, folder: Path) -> None:
    """The lab's lock with these models, and their manifests."""
    inventory = host.inventory.parent
    text = (inventory / "locks/lab.lock.toml").read_text()
    text = text[: text.index("[weights]")].replace('name = "lab"', 'name = "lab-serve"') + ENGINE
    (inventory / "manifests").mkdir(exist_ok=True)
    for path in sorted(folder.iterdir()):
        source = manifests.Source(kind="folder", location=f"{MODELS}/{path.name}")
        files = folder_source.files(str(path), lambda line: None)
        made = manifests.Manifest(model=path.name, source=source, files=files)
        (inventory / f"manifests/{path.name}{manifests.SUFFIX}").write_bytes(manifests.dump(made))
        text += f'\n[weights.models.{path.name}]\nsource = "folder"\nlocation = "{source.location}"\n'
        text += f'manifest_sha256 = "{manifests.digest(made)}"\n'
    (inventory / "locks/lab-serve.lock.toml").write_text(text)
    hosts = host.inventory.read_text()
    host.inventory.write_text(hosts.replace("aerie_lock: lab", "aerie_lock: lab-serve"))


@pytest.fixture(scope="module")
def host(lab_home: Path, tmp_path_factory: pytest.TempPathFactory, call: Call) -> Iterator[LabHost]:
    """lab01 with the engine's environment and its interpreter from this machine, and every model staged."""
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    made = environments.ensure("engine")
    base = made.python.resolve().parent.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        binds = {base: PYTHON, made.path / "lib": LIB, folder: MODELS}
        (found,) = lab.up(1, memory_bytes=8 << 30, binds=binds)
        write_lock(found, folder)
        program = f"""
        apt-get -qq install -y --no-install-recommends libnuma1
        cd /opt/aerie; mkdir -p environments/engine/bin; ln -s {LIB} environments/engine/lib
        ln -s {PYTHON}/bin/{made.python.resolve().name} environments/engine/bin/python
        echo 'home = {PYTHON}/bin' > environments/engine/pyvenv.cfg
        echo {PYTHON}/lib > /etc/ld.so.conf.d/aerie-python.conf; ldconfig
        """
        done = found.ssh(["sh", "-ec", program], timeout_s=300)
        assert done.returncode == 0, done.stderr.decode()
        _, outcome = call(found, "provision", "--host", "lab01", "--layer", "weights", "--layer", "engine", "--yes")
        assert [row["state"] for row in outcome["hosts"]] == ["done"], outcome
        for name in ("tiny", "drafter", "second", "broken"):
            code, staged = call(found, "stage", "--host", "lab01", "--model", name, "--yes")
            assert code == 0, staged
        yield found
        lab.down()
