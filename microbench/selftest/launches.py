"""The program that Nsight Compute profiles: some launches of each case, after a marker kernel.

Run as `python -m microbench.selftest.launches DEVICE LAUNCHES CASE...`, a case being
precision:backend:size.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from kernels import OPS
from microbench.device.device import describe
from microbench.selftest.ncu import parse
from microbench.timing.instruments import Instruments


def launch_all(device: str, launches: int, words: list[str]) -> None:
    """Launch every case between profiler start and stop; the marker is the kernel "empty".

    UserError for a device that does not exist.
    """
    info = describe(device)
    instruments = Instruments(info.index, 1 << 20, info.sm_count)
    session = OPS["gemm"].session(info.target(), seed=0)
    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    for word in words:
        call = session.prepare(parse(word)).candidates[0].call
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        instruments.launch_empty()
        for _ in range(launches):
            call()
            torch.cuda.synchronize()
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    launch_all(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
