"""One rank of an all-reduce over all GPUs, with torch's NCCL: the sum checked on every rank, latency and bandwidth.

Run as a script by the interpreter of an environment with torch: RANK WORLD FILE, where the ranks meet in FILE.
"""

import json
import sys
from datetime import timedelta
from typing import Any

LATENCY_BYTES = (16 << 10, 64 << 10)  # a decode and a verify step of Kimi-K2.5 send 14 and 57 KiB
BANDWIDTH_BYTES = 256 << 20
WARM, TIMED = 20, 200
MEET_S = 60


def main(rank: int, world: int, meeting: str) -> None:
    """Prints one JSON document; its `wrong` are the elements of this rank that are not the sum."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    store = dist.FileStore(meeting, world)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=MEET_S))
    wrong = sum(_wrong(torch, dist, size, rank, world) for size in (*LATENCY_BYTES, BANDWIDTH_BYTES))
    sizes = [{"bytes": size, "us": round(_microseconds(torch, dist, size, TIMED), 1)} for size in LATENCY_BYTES]
    wide_us = _microseconds(torch, dist, BANDWIDTH_BYTES, 10)
    # Bus bandwidth as nccl-tests defines it: what each link carries, 2 (n - 1) / n of the data.
    bus = BANDWIDTH_BYTES / wide_us / 1e3 * 2 * (world - 1) / world
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()
    answer = {
        "rank": rank,
        "uuid": f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "torch": torch.__version__,
        "wrong": wrong,
        "latency": sizes,
        "bus_gb_s": round(bus, 2),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _wrong(torch: Any, dist: Any, size: int, rank: int, world: int) -> int:
    """Elements that are not the sum of all ranks'. Small whole numbers: exact in fp32 in any order."""
    place = torch.arange(size // 4, device="cuda", dtype=torch.float32) % 1021
    data = place * (rank + 1)
    dist.all_reduce(data)
    return int((data != place * (world * (world + 1) / 2)).sum())


def _microseconds(torch: Any, dist: Any, size: int, times: int) -> float:
    data = torch.ones(size // 2, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM):
        dist.all_reduce(data)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        dist.all_reduce(data)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / times


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
