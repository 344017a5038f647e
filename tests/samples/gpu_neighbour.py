"""Another program on the GPU: `python -m samples.gpu_neighbour memory|compute [FOLDER]`.

With a folder it begins when a file of that name is there, and says there that it has.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch

LEFT_BYTES = 5 << 30  # of the free memory, for the program beside it


def main(what: str, folder: str = "") -> None:
    """Take nearly all memory, or compute all the time, until stdin ends; says when it is ready."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    torch.mm(a, a)
    torch.cuda.synchronize()
    if folder:
        print("ready", flush=True)
        while not Path(folder, what).exists() and not ended.is_set():
            time.sleep(0.02)
    if what == "memory":
        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(free - LEFT_BYTES, dtype=torch.uint8, device="cuda")
        assert held.numel()
    if folder:
        Path(folder, f"{what} is done").touch()
    else:
        print("ready", flush=True)
    if what == "memory":
        ended.wait()
    while not ended.is_set():
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
