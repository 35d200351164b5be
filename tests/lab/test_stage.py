"""Models from the lab's hub onto two hosts that give files to each other, as an operator stages and verifies them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import lab
from aerie import lock, verify
from aerie.verification import Outcome
from lab import LabHost
from roles import applied

pytestmark = pytest.mark.lab

REPOSITORY = Path(__file__).resolve().parents[2]
BOTH = "lab01,lab02"
SHARD = "model-00003-of-00008.safetensors"
SHARD_BYTES = 4 << 20
Said = Callable[..., str]


class Lab:
    """Two hosts, and aerie's tasks against them."""

    def __init__(self, hosts: tuple[LabHost, ...], home: Path) -> None:
        self.hosts, self.home = hosts, home
        self.inventory = hosts[0].inventory

    def start(self, *arguments: str, inventory: Path | None = None) -> "subprocess.Popen[str]":
        argv = [str(Path(sys.executable).parent / "invoke"), *arguments, "--json"]
        argv += ["--inventory", str(inventory or self.inventory)]
        pipe, environment = subprocess.PIPE, {**os.environ, "XDG_STATE_HOME": str(self.home)}
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=REPOSITORY, env=environment
        )

    def invoke(self, *arguments: str, inventory: Path | None = None) -> tuple[int, dict[str, Any]]:
        """Exit code and last JSON line."""
        with self.start(*arguments, inventory=inventory) as process:
            stdout, stderr = process.communicate(timeout=400)
        assert stdout.strip(), f"{arguments}: exit {process.returncode}\n{stderr}"
        return process.returncode, json.loads(stdout.strip().splitlines()[-1])

    def stage(self, model: str, *more: str, hosts: str = BOTH, **how: Any) -> tuple[int, dict[str, Any]]:
        """Exit code, and the rows of the outcome by host."""
        code, document = self.invoke("stage", "--host", hosts, "--model", model, "--yes", *more, **how)
        assert "hosts" in document, document
        return code, {row["host"]: row for row in document["hosts"]}

    def target(self, model: str) -> str:
        pin = lock.load("lab", self.inventory.parent).weights.models[model].manifest_sha256
        return f"/srv/aerie/weights/{model}@{pin[:12]}"

    def job(self, model: str) -> str:
        """Its folder."""
        return f"/var/lib/aerie/jobs/stage-{self.target(model).rsplit('/', 1)[1].replace('@', '-')}"

    def failed(self, host: str, *, deep: bool = False) -> dict[str, str]:
        """What verification of the layer finds wrong: what was seen, by finding."""
        (found,) = verify.verify(host, path=self.inventory, layers=["weights"], deep=deep).hosts
        assert not found.error, found.error
        missed = found.with_outcome(Outcome.FAILED, Outcome.ERROR)
        return {one.finding: one.shortfall.seen if one.shortfall else one.reason for one in missed}


@pytest.fixture(scope="module")
def two(lab_home: Path) -> Iterator[Lab]:
    """Two hosts that were given what the layer weights takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        found = Lab(lab.up(2), lab_home)
        code, refused = found.invoke("stage", "--host", "lab01", "--model", "tiny", "--plan")
        assert (code, refused["hosts"][0]["state"]) == (1, "blocked")
        assert "./invoke provision --host lab01" in refused["hosts"][0]["error"]
        _, outcome = found.invoke("provision", "--host", BOTH, "--layer", "weights", "--yes")
        assert [(row["host"], row["state"]) for row in outcome["hosts"]] == [("lab01", "done"), ("lab02", "done")]
        yield found
        lab.hub_mode("normal")


@pytest.fixture
def active(two: Lab) -> Callable[[str], list[bool]]:
    """Is the unit active, on each host?"""
    return lambda unit: [host.ssh(["systemctl", "is-active", "--quiet", unit]).returncode == 0 for host in two.hosts]


@pytest.fixture(scope="module")
def staged(two: Lab) -> dict[str, Any]:
    """The outcome of staging tiny on both for the first time, by host."""
    code, rows = two.stage("tiny")
    assert code == 0, rows
    return rows


def test_two_hosts_end_verified_and_warm_with_one_download(
    two: Lab, staged: dict[str, Any], active: Callable[[str], list[bool]], said: Said
) -> None:
    assert [(row["state"], row["warm"]) for row in staged.values()] == [("done", "warm")] * 2
    assert list(staged["lab02"]["bytes_by_source"]) == ["lab01"]
    for host in two.hosts:
        record = json.loads(said(host, "cat", "/var/lib/aerie/weights/tiny.json"))
        receipt = said(host, "sha256sum", f"{two.target('tiny')}/.aerie/receipt.json").split()[0]
        assert (record["target"], record["receipt_sha256"]) == (two.target("tiny"), receipt)
    assert active("aerie-seeder") == active("nginx") == [False, False]


def test_the_seeder_gives_whole_files_to_the_hosts_of_the_staging_alone(
    two: Lab, staged: dict[str, Any], said: Said
) -> None:
    first, second = two.hosts
    said(first, "systemctl", "start", "aerie-seeder")
    try:
        url = f"http://{first.address}:8378/{two.target('tiny').rsplit('/', 1)[1]}"
        code = ["curl", "-s", "--retry", "5", "--retry-connrefused", "-o", "/dev/null", "-w", "%{http_code}"]
        assert said(second, *code, f"{url}/config.json") == "200"
        assert said(second, *code, f"{url}/.aerie/verified.json") == "200"
        assert said(second, *code, f"{url}/.aerie/receipt.json") == "404"
        own = f"{two.target('tiny')}/.aerie/parts/sub"
        script = "mkdir -p $1/x.part.hub/home; echo 1234 | tee $1/x.part $1/x.part.hub/home/y.part >$1/x.part.aria2"
        said(first, "sh", "-ec", script, "sh", own)
        parts = f"{url}/.aerie/parts"
        assert said(second, *code, "-r", "2-9", f"{parts}/sub/x.part") == "206"
        for private in ("", "/", "/sub/", "/sub/x.part.aria2", "/sub/x.part.hub/home/y.part", "/../receipt.json"):
            assert said(second, *code, "--path-as-is", f"{parts}{private}") == "404", private
        assert said(second, *code, "-X", "PUT", f"{url}/config.json") == "403"
        elsewhere = subprocess.run([*code, f"{url}/config.json"], capture_output=True, text=True, check=False)
        assert elsewhere.stdout == "403"
    finally:
        said(first, "systemctl", "stop", "aerie-seeder")
        said(first, "rm", "-rf", f"{two.target('tiny')}/.aerie/parts")


def test_the_role_changes_nothing_a_second_time(two: Lab, own_lab: Path) -> None:
    again = applied(two.hosts[0], "weights")
    assert (again.state, again.error, dict(again.cells)) == ("ok", "", {"weights": "ok"})


def test_a_second_run_starts_no_job_and_no_play(two: Lab, staged: dict[str, Any], said: Said) -> None:
    started = [said(host, "cat", f"{two.job('tiny')}/started.json") for host in two.hosts]
    plays = sorted((two.home / "aerie/hosts/plays").iterdir())
    code, rows = two.stage("tiny", "--no-warm")  # what else runs on the machine may take the page cache
    assert (code, [row["state"] for row in rows.values()]) == (0, ["unchanged"] * 2)
    assert [said(host, "cat", f"{two.job('tiny')}/started.json") for host in two.hosts] == started
    assert sorted((two.home / "aerie/hosts/plays").iterdir()) == plays


def test_a_staged_host_verifies_to_the_last_byte(two: Lab, staged: dict[str, Any], own_lab: Path) -> None:
    assert two.failed("lab02", deep=True) == {}


BROKEN = {
    # what is done in the target's folder, where $1 is a shard; how it is undone; what verification says then
    "missing": ("mv $1 /root/kept", "mv /root/kept $1", "weights.incomplete", f"tiny: {SHARD}"),
    "truncated": (
        "mv $1 /root/kept; head -c 1000 /root/kept >$1", "mv /root/kept $1",
        "weights.changed", f"tiny: {SHARD}: has 1000 bytes of 4194400",
    ),
    "flipped": (
        "mv $1 /root/kept; cp /root/kept $1; printf x | dd of=$1 bs=1 seek=99 conv=notrunc", "mv /root/kept $1",
        "weights.changed", f"tiny: {SHARD}: was written after it was verified",
    ),
    "other-manifest": (
        "cp -p .aerie/manifest.json /root/kept; echo >>.aerie/manifest.json", "mv /root/kept .aerie/manifest.json",
        "weights.manifest-mismatch", "tiny: ",
    ),
    "left-part": (
        "mkdir -p .aerie/parts; head -c 9999 $1 >.aerie/parts/$1.part", "rm .aerie/parts/$1.part",
        "weights.partials-left", f"tiny: {SHARD}: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_was_done_to_the_files_is_found(
    name: str, two: Lab, staged: dict[str, Any], own_lab: Path, said: Said
) -> None:
    change, undo, finding, seen = BROKEN[name]

    def in_target(script: str) -> None:
        said(two.hosts[1], "sh", "-ec", f"cd '{two.target('tiny')}'; {script}", "sh", SHARD)

    in_target(change)
    try:
        found = two.failed("lab02")
    finally:
        in_target(undo)
    assert list(found) == [finding]
    assert found[finding].startswith(seen)


def test_a_byte_that_flipped_without_a_trace_is_found_by_hashing_and_that_shard_fetched_again(
    two: Lab, staged: dict[str, Any], own_lab: Path, said: Said
) -> None:
    file = f"{two.target('tiny')}/{SHARD}"
    flip = f"printf x | dd of='{file}' bs=1 seek=999999 conv=notrunc"
    flip = f"touch -r '{file}' /root/at; {flip}; touch -r /root/at '{file}'"
    said(two.hosts[1], "sh", "-ec", flip)
    assert two.failed("lab02") == {}
    assert two.failed("lab02", deep=True) == {"weights.corrupt": f"tiny: {SHARD}: corrupt"}
    code, rows = two.stage("tiny")
    assert code == 0, rows
    (fetched,) = rows["lab02"]["bytes_by_source"].values()
    assert fetched < 2 * SHARD_BYTES
    assert two.failed("lab02", deep=True) == {}


def test_a_host_takes_the_files_from_another_over_ssh(
    two: Lab, staged: dict[str, Any], own_lab: Path, said: Said
) -> None:
    first, second = two.hosts
    own = "/root/.ssh/id_ed25519"
    public = said(second, "sh", "-ec", f"ssh-keygen -q -t ed25519 -N '' -f {own}; cat {own}.pub")
    first.ssh(["tee", "-a", "/root/.ssh/authorized_keys"], stdin=public.encode())
    key = said(first, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    second.ssh(["tee", "-a", "/root/.ssh/known_hosts"], stdin=f"{first.address} {key}".encode())
    said(second, "rm", "-r", two.target("tiny"))
    code, rows = two.stage("tiny", "--source", f"root@{first.address}:{two.target('tiny')}", hosts="lab02")
    assert (code, list(rows["lab02"]["bytes_by_source"])) == (0, ["rsync"]), rows
    assert two.failed("lab02", deep=True) == {}


def until_fetching(process: "subprocess.Popen[str]") -> None:
    """Read lines until the first host fetches."""
    assert process.stdout is not None
    for line in process.stdout:
        row = json.loads(line)
        if row.get("host") == "lab01" and row.get("bytes_on_disk"):
            return
    raise AssertionError(f"it ended before: {process.communicate()}")


def test_a_staging_goes_on_without_its_controller_and_the_next_one_attaches(
    two: Lab, active: Callable[[str], list[bool]], own_lab: Path, said: Said
) -> None:
    command = ("stage", "--host", BOTH, "--model", "drafter", "--yes")
    lab.hub_mode("stall", path="model*.safetensors")  # half of the file and no more, until it is mended
    with two.start(*command) as process:
        until_fetching(process)
        process.kill()
    started = said(two.hosts[0], "cat", f"{two.job('drafter')}/started.json")
    assert active(f"aerie-{two.job('drafter').rsplit('/', 1)[1]}")[0]
    assert active("aerie-seeder") == [True, True]
    with two.start(*command) as process:
        until_fetching(process)
        lab.hub_mode("normal")
        stdout, stderr = process.communicate(timeout=400)
    rows = {row["host"]: row for row in json.loads(stdout.splitlines()[-1])["hosts"]}
    assert (process.returncode, [row["state"] for row in rows.values()]) == (0, ["done", "done"]), stderr
    assert rows["lab01"]["attached"]
    assert said(two.hosts[0], "cat", f"{two.job('drafter')}/started.json") == started
    assert active("aerie-seeder") == [False, False]


def test_a_staging_that_is_interrupted_leaves_no_seeder_and_no_job_and_goes_on_later(
    two: Lab, active: Callable[[str], list[bool]], own_lab: Path, tmp_path: Path
) -> None:
    lab.hub_mode("slow", path="model*.safetensors")
    with two.start("stage", "--host", BOTH, "--model", "mirror", "--yes") as process:
        until_fetching(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    lab.hub_mode("normal")
    assert process.returncode == 130
    assert active("aerie-seeder") == active(f"aerie-{two.job('mirror').rsplit('/', 1)[1]}") == [False, False]
    # The first host of the inventory is one that nobody answers at: another fetches from the source in its stead.
    shutil.copytree(two.inventory.parent, tmp_path / "inventory")
    file = tmp_path / "inventory/hosts.yml"
    document = yaml.safe_load(file.read_text())
    hosts = document["all"]["children"]["lab"]["hosts"]
    document["all"]["children"]["lab"]["hosts"] = {"lab00": {**hosts["lab01"], "ansible_host": "10.77.0.99"}, **hosts}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    code, rows = two.stage("mirror", hosts="lab00,lab01,lab02", inventory=file)
    assert (code, {name: row["state"] for name, row in rows.items()}) == (
        1,
        {"lab00": "unreachable", "lab01": "done", "lab02": "done"},
    )
    assert "10.77.0.99" in rows["lab00"]["error"]
    assert active("aerie-seeder") == [False, False]
