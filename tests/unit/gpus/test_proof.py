"""What is read out of a proof, and what its processes do when something hangs."""

import json
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.errors import AerieError
from aerie.gpus.onhost import main
from aerie.gpus.onhost.kernels import stamped
from aerie.gpus.proof import parse
from tests.waiting import until

SLEEPS = "import time; time.sleep(600)"
# A process that leaves a child behind, as a launcher of ranks does: the group must go with it.
FORKS = f"import subprocess; print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True)"
LATE = "import sys; open(sys.argv[1], 'w').close()"


@pytest.fixture
def late(tmp_path, monkeypatch):
    """The argument of a program, which makes a file of this name when its time, an hour, is to be up."""
    file = tmp_path / "late"
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * file.exists(), sleep=time.sleep)
    monkeypatch.setattr(main, "time", clock)
    return file


def run(*programs, limit_s=600.0, argument=""):
    return main._run([[sys.executable, "-c", program, argument] for program in programs], limit_s)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_answers_are_the_lines_of_json_of_all_processes():
    ended = run("print('NCCL version 2.27'); print('{\"rank\": 0}')", "print('{\"rank\": 1}')")
    assert sorted(answer["rank"] for answer in ended.answers) == [0, 1]
    assert (ended.error, ended.is_late, ended.is_stuck) == ("", False, False)


def test_a_hang_is_ended_at_its_limit_with_its_whole_group(late):
    ended = run(f"import sys; {FORKS}; {LATE}; {SLEEPS}", argument=late)
    assert (ended.error, ended.is_late, ended.is_stuck) == ("no answer within 600 s", True, False)
    until("the end of the child", lambda: is_gone(ended.answers[0]))


def test_one_rank_that_fails_ends_the_others_which_would_wait_for_it():
    ended = run(SLEEPS, "import sys; sys.exit('ncclUnhandledCudaError: peer access')")
    assert (ended.error, ended.is_late) == ("ncclUnhandledCudaError: peer access", False)
    assert ended.wall_s < 300


def test_a_process_that_says_nothing_is_named_by_its_status():
    assert run("import os; os._exit(3)").error == "ended with status 3"


def test_a_pair_that_hangs_is_named_and_those_before_it_count(late):
    program = "\n".join(
        (
            "import json",
            'print(json.dumps({"trying": [0, 1]}))',
            'print(json.dumps({"from": 0, "to": 1, "copy_gb_s": 25.0}))',
            'print(json.dumps({"trying": [1, 0]}), flush=True)',
            LATE,
            SLEEPS,
        )
    )
    pairs = main._pairs(run(program, argument=late))
    assert [(pair["from"], pair["to"], pair.get("error", "")) for pair in pairs] == [
        (0, 1, ""),
        (1, 0, "no answer within 600 s"),
    ]


def test_where_there_is_no_driver_the_proof_says_so(tmp_path, monkeypatch):
    # The code as it is on a host: a folder with a main program, started by its path.
    (tmp_path / "__main__.py").write_text(
        "import sys\nsys.path.insert(0, sys.argv[0])\nsys.stderr.write('libcuda.so.1: cannot open')\nsys.exit(1)\n"
    )
    monkeypatch.setattr(sys, "argv", [str(tmp_path)])
    proof = parse(main.prove(python="", limit_s=600, is_collective=False))
    assert (proof.start_error, proof.gpus, proof.pairs, proof.collective) == ("libcuda.so.1: cannot open", (), (), None)


def test_the_words_that_a_kernel_must_leave():
    seen = stamped(4, 7)
    assert struct.unpack("<4I", seen[:16]) == tuple((i ^ 7) * 2654435761 % 2**32 for i in range(4))
    assert struct.unpack("<4f", seen[16:]) == (7.0, 7.5, 8.0, 8.5)


def document(**changes):
    gpu = {"index": 0, "error": "", "is_late": False, "is_stuck": False, "wall_s": 0.5, "uuid": "GPU-1", "name": "X"}
    return {
        "schema": "aerie.gpu-proof/1",
        "limit_s": 120.0,
        "start": {"error": "", "is_late": False, "is_stuck": False, "wall_s": 0.2},
        "gpus": [gpu | {"bus_id": "0000:C1:00.0", "compile_s": 0.01, "words": 8, "wrong_words": 0}],
        "pairs": [],
        "collective": None,
    } | changes


def test_faults_of_a_gpu_in_words():
    (sound,) = parse(document()).gpus
    assert sound.fault == ""
    wrong = document()["gpus"][0] | {"wrong_words": 8}
    stuck = {"index": 1, "error": "no answer within 120 s", "is_late": True, "is_stuck": True, "wall_s": 125.0}
    proof = parse(document(gpus=[wrong, stuck]))
    assert [gpu.fault for gpu in proof.gpus] == [
        "8 of 8 words are wrong",
        "no answer within 120 s, and its process cannot be killed",
    ]
    assert [proof.name(0), proof.name(1)] == ["GPU 0 (0000:C1:00.0)", "GPU 1"]


def test_wrong_words_of_a_pair_count_whichever_way_they_came():
    pair = {"from": 0, "to": 5, "can_access": True, "native_atomics": False, "words": 100, "copy_wrong_words": 3}
    pairs = [pair | {"copy_gb_s": 20.0, "read_wrong_words": 4, "read_gb_s": 11.0}]
    (one,) = parse(document(pairs=pairs)).pairs
    assert (one.name, one.wrong_words) == ("0 to 5", 7)


@pytest.mark.parametrize("changed", [{"schema": "aerie.gpu-proof/9"}, {"gpus": [{"idx": 0}]}, {"pairs": None}])
def test_another_document_is_an_error(changed):
    with pytest.raises(AerieError, match="prove the GPUs again"):
        parse(json.loads(json.dumps(document(**changed))))


# What two H200 of one host answered (Ubuntu 24.04, driver 580.159.04, torch 2.11.0+cu130, 2026-11-30; uuids replaced):
# as they are, with one rank of the all-reduce stopped by SIGSTOP and a limit of 25 s, and with NCCL_P2P_DISABLE=1.
def recorded(name):
    return parse(json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text()))


def test_two_sound_gpus():
    proof = recorded("h200-x2")
    assert [(gpu.name, gpu.words, gpu.fault) for gpu in proof.gpus] == [("NVIDIA H200", 131072, "")] * 2
    assert [(pair.name, pair.can_access, pair.wrong_words) for pair in proof.pairs] == [
        ("0 to 1", True, 0),
        ("1 to 0", True, 0),
    ]
    assert proof.collective is not None
    assert (proof.collective.error, [rank.wrong for rank in proof.collective.ranks]) == ("", [0, 0])
    assert [(one.bytes, one.us) for one in proof.collective.ranks[0].latency] == [(16384, 40.8), (65536, 47.4)]


def test_a_stopped_rank_is_an_all_reduce_that_does_not_end():
    collective = recorded("h200-x2-stopped-rank").collective
    assert collective is not None
    assert (collective.error, collective.ranks) == ("no answer within 25 s", ())


def test_the_way_around_peer_access_is_an_eighth_as_wide():
    wide, narrow = (recorded(name).collective for name in ("h200-x2", "h200-x2-without-p2p"))
    assert wide is not None
    assert narrow is not None
    assert (wide.ranks[0].bus_gb_s, narrow.ranks[0].bus_gb_s) == (225.48, 28.42)
