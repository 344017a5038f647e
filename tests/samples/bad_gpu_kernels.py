"""`--backend samples.bad_gpu_kernels:NAME`: faults of a GPU, and kernels that do not end.

Those called `..._later` are right in the first LAUNCHES launches of a process: when they are
checked, and for a while longer.
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
    """An index that is out of range, of which only the device knows."""
    wrong = torch.full((1,), 1 << 40, dtype=torch.int64, device=tensor.device)
    tensor.flatten().index_select(0, wrong)


def ask_for_too_much(tensor: Tensor) -> None:
    """More memory than there is."""
    torch.empty(MORE_THAN_ANY_CARD, dtype=torch.uint8, device=tensor.device)


def _run(
    a: Tensor, b: Tensor, out: Tensor, fault: Callable[[Tensor], None], later: str = ""
) -> None:
    torch.mm(a, b, out=out)
    _launches[later] += 1
    if not later or _launches[later] > LAUNCHES:
        fault(a)


def good(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A right result, always."""
    torch.mm(a, b, out=out)


def illegal_address(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In every launch."""
    _run(a, b, out, wild_store)


def illegal_address_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """While it is timed."""
    _run(a, b, out, wild_store, "wild")


def endless(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In every launch."""
    _run(a, b, out, spin)


def endless_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """While it is timed."""
    _run(a, b, out, spin, "spin")


def assertion(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In every launch."""
    _run(a, b, out, fail_an_assertion)


def assertion_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """While it is timed."""
    _run(a, b, out, fail_an_assertion, "assertion")


def too_much(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In every launch."""
    _run(a, b, out, ask_for_too_much)


def too_much_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """While it is timed."""
    _run(a, b, out, ask_for_too_much, "memory")


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


def hungry(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Eight GB beside the result: little on an empty card."""
    torch.empty(8 << 30, dtype=torch.uint8, device=a.device)
    torch.mm(a, b, out=out)
