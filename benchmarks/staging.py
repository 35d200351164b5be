"""Staged and verified bytes a second, against downloaders on the same files from the same server.

    python benchmarks/staging.py [--files 8] [--mib 256] [--repetitions 3] [--folder FOLDER] [--hub-python PYTHON]

nginx serves the files on loopback from the page cache; every arm writes them to FOLDER (on a disk, not a tmpfs). Arms
take turns, so that other work on the machine meets them alike. The limit is curl, 8 in parallel, to /dev/null.
aerie ends with every file hashed, on the disk (fsync) and stamped; aria2 alone and huggingface_hub check nothing and
leave it to the kernel when the bytes reach the disk, so that an arm of aria2 with the hashing of openssl and a sync
after it says what the same result costs by hand.

Needs nginx, aria2c, curl, openssl and a Python with huggingface_hub; it installs nothing and says what is missing:

    apt-get install --no-install-recommends nginx-light aria2 curl openssl
    python3 -m venv /tmp/hub && /tmp/hub/bin/pip install huggingface_hub    # --hub-python /tmp/hub/bin/python
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie.weights import manifest as manifests  # noqa: E402  (the line above makes it importable)

REPOSITORY, REVISION = "benchmark/model", "0123456789abcdef0123456789abcdef01234567"
# What the issue of this part asks for: staged and verified, as a ratio to each peer.
TARGETS = {"aria2": 0.9, "huggingface_hub": 2.0, "aria2 --checksum": 2.5}
ARIA2 = ["aria2c", "--no-conf", "--quiet", "-j16", "-x1", "-s1", "--file-allocation=falloc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where everything is, and what is moved."""

    source: Path  # the files, served
    work: Path  # where the arms write
    url: str  # of the server, without a slash at its end
    hub_python: Path
    manifest: manifests.Manifest

    @property
    def files_url(self) -> str:
        """Where the plain files lie."""
        return f"{self.url}/{REPOSITORY}/resolve/{REVISION}"


def main(arguments: argparse.Namespace) -> None:
    """Measure every arm `repetitions` times, in turns."""
    _need(arguments.hub_python)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="aerie-staging-") as name:
        folder = Path(name)
        source = _make(folder / "source", arguments.files, arguments.mib)
        with _serve(folder, source) as url:
            bench = Bench(
                source=source,
                work=folder / "work",
                url=url,
                hub_python=arguments.hub_python,
                manifest=_manifest(source),
            )
            arms = {
                "limit: curl to /dev/null": _curl,
                "aria2": _aria2,
                "aria2, openssl, sync": _by_hand,
                "aria2 --checksum": _checksum,
                "huggingface_hub": _hub,
                "aerie": _aerie,
            }
            results: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
            for _ in range(arguments.repetitions):
                for label, arm in arms.items():
                    results[label].append(_measure(bench, arm))
    _report(arguments, results)


def _report(arguments: argparse.Namespace, results: dict[str, list[tuple[float, float]]]) -> None:
    gb = arguments.files * arguments.mib * 2**20 / 1e9
    print(f"{arguments.files} files of {arguments.mib} MiB, {arguments.repetitions} repetitions, "
          f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    rate = {label: gb / statistics.median(wall for wall, _ in runs) for label, runs in results.items()}
    for label, runs in results.items():
        walls, used = [wall for wall, _ in runs], statistics.median(cpu for _, cpu in runs) / gb
        spread = f"({gb / max(walls):.2f} to {gb / min(walls):.2f})"
        print(f"{label:26} {rate[label]:6.2f} GB/s {spread:16} {used:5.2f} CPU-s/GB, client")
    limit = rate["limit: curl to /dev/null"]
    print(f"{'aerie to the limit':34} {rate['aerie'] / limit:5.2f}")
    for label, target in TARGETS.items():
        # Of the same turn, so that what else runs on the machine meets both.
        ratios = [other[0] / own[0] for own, other in zip(results["aerie"], results[label], strict=True)]
        ratio = statistics.median(ratios)
        verdict = "met" if ratio >= target else "MISSED"
        print(f"{'aerie to ' + label:34} {ratio:5.2f}  target {target}: {verdict}")


def _measure(bench: Bench, arm: Callable[[Bench], None]) -> tuple[float, float]:
    """(wall, processor) seconds of an arm, its processes included."""
    shutil.rmtree(bench.work, ignore_errors=True)
    bench.work.mkdir()
    for file in bench.source.iterdir():
        file.read_bytes()
    began, used = time.perf_counter(), _processor_s()
    arm(bench)
    return time.perf_counter() - began, _processor_s() - used


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _curl(bench: Bench) -> None:
    outputs = [word for file in bench.manifest.files for word in ("-o", "/dev/null", f"{bench.files_url}/{file.path}")]
    _run(["curl", "--silent", "--fail", "--parallel", "--parallel-max", "8", *outputs])


def _aria2(bench: Bench, *, checksum: bool = False) -> None:
    lines = []
    for file in bench.manifest.files:
        lines += [f"{bench.files_url}/{file.path}", f"  out={file.path}"]
        lines += [f"  checksum=sha-256={file.sha256}"] if checksum else []
    (bench.work / "list").write_text("\n".join(lines) + "\n")
    _run([*ARIA2, f"--dir={bench.work}", f"--input-file={bench.work / 'list'}"])


def _checksum(bench: Bench) -> None:
    _aria2(bench, checksum=True)


def _by_hand(bench: Bench) -> None:
    _aria2(bench)
    script = f"printf '%s\\n' {bench.work}/*.safetensors | xargs -P {os.cpu_count()} -n 1 openssl dgst -sha256"
    script += f" && sync {bench.work}/*.safetensors"
    _run(["sh", "-c", script])


def _hub(bench: Bench) -> None:
    code = (
        "import sys; from huggingface_hub import snapshot_download; "
        "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3], max_workers=8)"
    )
    environment = {
        **os.environ, "HF_ENDPOINT": bench.url, "HF_HOME": str(bench.work / "home"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    _run([str(bench.hub_python), "-c", code, REPOSITORY, REVISION, str(bench.work / "files")], environment)
    if sorted(path.name for path in (bench.work / "files").glob("*.safetensors")) != _names(bench):
        sys.exit("huggingface_hub did not bring every file")


def _aerie(bench: Bench) -> None:
    document = {
        "schema": "aerie.staging/1",
        "model": bench.manifest.model,
        "target": str(bench.work / "target"),
        "manifest": manifests.to_dict(bench.manifest),
        "sources": [{"kind": "http", "url": f"{bench.files_url}/"}],
        "records": str(bench.work / "records"),
        "warm": "auto",
    }
    (bench.work / "spec.json").write_text(json.dumps(document))
    (bench.work / "job").mkdir()
    (bench.work / "records").mkdir()
    boot = "import sys; sys.path.insert(0, sys.argv.pop(1)); from aerie.weights.onhost.main import main"
    code = f"{boot}; sys.exit(main(sys.argv[1:]))"
    _run([sys.executable, "-I", "-S", "-c", code, str(CHECKOUT), "stage", str(bench.work / "spec.json"),
          str(bench.work / "job")])  # fmt: skip
    outcome = json.loads((bench.work / "job" / "outcome.json").read_bytes())
    if outcome["state"] != "done" or outcome["files"]["verified"] != len(bench.manifest.files):
        sys.exit(f"aerie ended with {outcome}")


def _run(argv: Sequence[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{argv[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def _names(bench: Bench) -> list[str]:
    return [file.path for file in bench.manifest.files]


def _make(folder: Path, files: int, mib: int) -> Path:
    """Random files as a model's shards are named."""
    folder.mkdir()
    for number in range(1, files + 1):
        with open(folder / f"model-{number:05d}-of-{files:05d}.safetensors", "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    return folder


def _manifest(source: Path) -> manifests.Manifest:
    files = []
    for path in sorted(source.iterdir()):
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        files.append(manifests.File(path=path.name, size=path.stat().st_size, sha256=sha256))
    return manifests.Manifest(
        model="benchmark",
        source=manifests.Source(kind="hub", location=REPOSITORY, revision=REVISION),
        files=tuple(files),
    )


@contextmanager
def _serve(folder: Path, source: Path) -> Iterator[str]:
    """nginx on a free port of loopback: the files where a hub has them, and the two answers its client asks for."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = folder / "api"
    api.mkdir()
    paths = sorted(source.iterdir())
    rows = [
        {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": f"{index:040x}"}
        for index, path in enumerate(paths)
    ]
    (api / "tree").write_text(json.dumps(rows))
    about = {"id": REPOSITORY, "sha": REVISION, "private": False, "siblings": [{"rfilename": p.name} for p in paths]}
    (api / "revision").write_text(json.dumps(about))
    (folder / "nginx.conf").write_text(f"""
{"user root;" if os.geteuid() == 0 else ""}  # it reads a folder that is ours alone
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes auto;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port};
    location /{REPOSITORY}/resolve/{REVISION}/ {{ alias {source}/; add_header X-Repo-Commit {REVISION}; }}
    location /api/models/{REPOSITORY}/ {{ default_type application/json; root {api};
      rewrite /tree/ /tree break; rewrite /revision/ /revision break; }}
  }}
}}
""")
    with subprocess.Popen(["nginx", "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]) as server:
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGTERM)


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit("nginx did not start")


def _need(hub_python: Path) -> None:
    missing = [program for program in ("nginx", "aria2c", "curl", "openssl") if shutil.which(program) is None]
    has_hub = (
        shutil.which(hub_python)
        and not subprocess.run(
            [str(hub_python), "-c", "import huggingface_hub"], capture_output=True, check=False
        ).returncode
    )
    if not has_hub:
        missing.append(f"huggingface_hub in {hub_python} (--hub-python)")
    if missing:
        sys.exit(f"missing: {', '.join(missing)}\n{__doc__}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--hub-python", type=Path, default=Path(sys.executable))
    return parser.parse_args()


if __name__ == "__main__":
    main(_arguments())
