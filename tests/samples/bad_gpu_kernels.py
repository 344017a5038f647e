"""`--backend samples.bad_gpu_kernels:NAME`: faults of a GPU, and kernels that do not end.

NAME is one of FAULTS, in every launch. With `_later` they are right in the first LAUNCHES launches
of a process: when they are checked, and for a while longer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

LAUNCHES = 12
SMALL = 256  # rows
NEIGHBOUR, WAIT_S = "HALFWAY_NEIGHBOUR", 30.0
FOR_EVER = 1 << 62  # cycles: a century
MORE_THAN_ANY_CARD = 1 << 50  # bytes, refused before any of it is taken
_WILD = 'extern "C" __global__ void wild() { *(volatile int*)0x10 = 1; }'
_launches: Counter[str] = Counter()


def wild_store(_: Tensor) -> None:
    """A store to an address outside all allocations."""
    import cupy

    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    with stream:
        cupy.RawKernel(_WILD, "wild")((1,), (1,), ())


def spin(_: Tensor) -> None:
    """A kernel that does not end."""
    torch.cuda._sleep(FOR_EVER)


def fail_an_assertion(tensor: Tensor) -> None:
    """A condition that does not hold, of which only the device knows."""
    torch._assert_async(torch.zeros((), dtype=torch.bool, device=tensor.device))


def ask_for_too_much(tensor: Tensor) -> None:
    """More memory than there is."""
    torch.empty(MORE_THAN_ANY_CARD, dtype=torch.uint8, device=tensor.device)


FAULTS = {
    "illegal_address": wild_store, "endless": spin, "assertion": fail_an_assertion,
    "too_much": ask_for_too_much,
}  # fmt: skip


def __getattr__(name: str) -> Callable[[Tensor, Tensor, Tensor], None]:
    if (fault := name.removesuffix("_later")) not in FAULTS:
        raise AttributeError(name)

    def run(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a, b, out=out)
        _launches[name] += 1
        if fault == name or _launches[name] > LAUNCHES:
            FAULTS[fault](a)

    return run


def good(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A right result, always."""
    torch.mm(a, b, out=out)


def hungry_meanwhile(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Sixteen GB for the larger sizes, once another program has taken the memory: see `asked`."""
    if a.shape[0] > SMALL:
        asked("memory")
        torch.empty(16 << 30, dtype=torch.uint8, device=a.device)
    torch.mm(a, b, out=out)


def asked(what: str) -> None:
    """Ask `gpu_neighbour`, once in this run, and wait until it has done it.

    They talk by files in the folder that NEIGHBOUR names. TimeoutError after WAIT_S.
    """
    folder = Path(os.environ[NEIGHBOUR])
    (folder / what).touch()
    until_s = time.monotonic() + WAIT_S
    while not (folder / f"{what} is done").exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the neighbour does not take {what}")
        time.sleep(0.05)
