"""Another program on the GPU: `python -m samples.gpu_neighbour memory|compute`."""

from __future__ import annotations

import sys
import threading

import torch

LEFT_BYTES = 5 << 30  # of the free memory, for the program beside it


def main(what: str) -> None:
    """Take nearly all memory, or compute all the time, until stdin ends; says when it is ready."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    if what == "memory":
        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(free - LEFT_BYTES, dtype=torch.uint8, device="cuda")
        assert held.numel()
        print("ready", flush=True)
        ended.wait()
        return
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    torch.mm(a, a)
    torch.cuda.synchronize()
    print("ready", flush=True)
    while not ended.is_set():
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
