"""Back ends that do what a defective kernel does, each in its own way and on any device.

`--backend samples.bad_kernels:NAME`. Those that turn bad are right in their first LAUNCHES launches
of a process: when they are checked, and for a while longer. NAME may be one of FAULTS, at once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from samples.bad_networks import FAULTS

LAUNCHES = 12
STARTS = "BAD_KERNELS_STARTS"  # a file that counts the processes in which `wrong_in_another` ran
_launches: Counter[str] = Counter()


def _turned(name: str) -> bool:
    _launches[name] += 1
    return _launches[name] > LAUNCHES


def good(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A right result, always."""
    torch.mm(a, b, out=out)


# ---------------------------------------------------------------- right at first, later wrong


def wrong_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """One element is off."""
    torch.mm(a, b, out=out)
    if _turned("wrong"):
        out[-1, -1] += 100


def nan_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """One element is NaN."""
    torch.mm(a, b, out=out)
    if _turned("nan"):
        out[0, 0].fill_(float("nan"))  # an assignment would wait for the device


def stale_later(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Nothing is written: what lies there is from an earlier launch."""
    if not _turned("stale"):
        torch.mm(a, b, out=out)


_kept: dict[torch.Size, Tensor] = {}


def kept_later(a: Tensor, b: Tensor) -> Tensor:
    """The tensor of an earlier launch is returned once more."""
    shape = torch.Size([a.shape[0], b.shape[1]])
    if shape not in _kept or not _turned("kept"):
        _kept[shape] = torch.mm(a, b)
    return _kept[shape]


_results: dict[tuple[int, int], Tensor] = {}


def cached(a: Tensor, b: Tensor, out: Tensor) -> None:
    """What was computed of matrices at these addresses is copied."""
    key = a.data_ptr(), b.data_ptr()
    if key not in _results:
        _results[key] = torch.mm(a, b)
    out.copy_(_results[key])


def unless_poisoned(a: Tensor, b: Tensor, out: Tensor) -> None:
    """It works only where somebody has made sure to see it: an output that holds NaN."""
    out.copy_(torch.where(out[0, 0].isnan(), torch.mm(a, b), out))


_asked: list[Tensor] = []


def launch_late(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Later each launch does what the one before it was asked for."""
    now = [a.clone(), b.clone()]
    torch.mm(*(_asked if _turned("late") else now), out=out)
    _asked[:] = now


def input_later(a: Tensor, b: Tensor) -> Tensor:
    """An input is returned, of square matrices the right shape."""
    return a if _turned("input") else torch.mm(a, b)


def conv_later(
    x: Tensor, w: Tensor, out: Tensor, stride: int, padding: int, dilation: int, groups: int
) -> None:
    """A forward convolution whose last channel is zero later."""
    out.copy_(torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups))
    if _turned("conv"):
        out[:, -1] = 0


def wrong_in_another(a: Tensor, b: Tensor, out: Tensor) -> None:
    """As `wrong_later`, but not in the first process."""
    if not _launches["another"]:
        with Path(os.environ[STARTS]).open("a") as file:
            file.write("x")
    torch.mm(a, b, out=out)
    if _turned("another") and Path(os.environ[STARTS]).stat().st_size > 1:
        out.zero_()


# ---------------------------------------------------------------- on a GPU, what fools a timer


def aside(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Later the work is left to another stream, and nobody waits for it."""
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        torch.mm(a, b, out=out)
    if not _turned("aside"):
        current.wait_stream(stream)


def keeps_l2(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A part of the L2 is set aside for data that persist in it."""
    import cupy

    cupy.cuda.runtime.deviceSetLimit(6, 1 << 20)  # cudaLimitPersistingL2CacheSize
    torch.mm(a, b, out=out)


# ---------------------------------------------------------------- those that take the process along


def __getattr__(name: str) -> Callable[[Tensor, Tensor, Tensor], None]:
    if name not in FAULTS:
        raise AttributeError(name)

    def run(a: Tensor, b: Tensor, out: Tensor) -> None:
        FAULTS[name](a)

    return run
