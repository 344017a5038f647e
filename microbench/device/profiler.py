"""Which kernels a launch runs, how long each takes, and what their names say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.case import Case

# "nvjet_sm90_hsh_256x128_64x4_...", "..._tilesize128x128x8_...", "..._128x64_32x6_tn_align8"
_TILE = re.compile(r"(?:tilesize|_)(\d+)x(\d+)(?:x|_)(\d+)")


# cuDNN's and torch's kernels that only move data between NCHW and NHWC.
_CONVERSION = re.compile(r"nchw\w*tonhwc|nhwc\w*tonchw|transpose(?!d)|nhwc_to_nchw", re.IGNORECASE)


@dataclass(frozen=True)
class KernelTime:
    """A kernel of a launch and its duration as the profiler saw it once, warm.

    `start_s` counts from some moment before the first kernel.
    """

    name: str
    seconds: float
    start_s: float = 0.0


def record(launch: Callable[[], object]) -> tuple[KernelTime, ...]:
    """The device kernels that one launch runs, in order; empty where unknown."""
    import torch
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        launch()
        torch.cuda.synchronize()
    events: Any = profiler.events() or ()
    return tuple(
        KernelTime(event.name, event.time_range.elapsed_us() * 1e-6, event.time_range.start * 1e-6)
        for event in events
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Activity")
    )


def is_conversion(name: str) -> bool:
    """Whether a kernel only changes the layout of a tensor."""
    return bool(_CONVERSION.search(name))


def fewer_operations(names: Sequence[str]) -> str | None:
    """The algorithm, where the names are of one that multiplies less often than the definition."""
    for word, title in (("fft", "FFT"), ("winograd", "Winograd")):
        if any(word in name.lower() for name in names):
            return title
    return None


def tile_of(names: tuple[str, ...], case: Case) -> tuple[int, int, int] | None:
    """(M, N, K) of the work-group tile that a library kernel's name states, or None.

    BLAS computes the transpose of a row-major C, so the name's first number is our N; cuDNN's is
    our M, the pixels. None for launches of several kernels, for split K, whose work-groups are more
    than the tiles of the output, and so for wgrad.
    """
    working = [name for name in names if not name.startswith("Mem")]
    if len(working) != 1 or "split" in working[0].lower() or case.dims.get("pass") == "wgrad":
        return None
    found = _TILE.search(working[0])
    if found is None:
        return None
    first, second, k = (int(number) for number in found.groups())
    return (second, first, k) if case.op == "gemm" else (first, second, k)
