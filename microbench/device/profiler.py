"""The kernels that a launch runs, their durations, and what their names tell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.case import Case
from microbench.results.types import Result

# "nvjet_sm90_hsh_256x128_64x4_...", "..._tilesize128x128x8_...", "..._128x64_32x6_tn_align8"
_TILE = re.compile(r"(?:tilesize|_)(\d+)x(\d+)(?:x|_)(\d+)")

_STAGES = re.compile(r"/s(\d+)/|stage(\d+)(?!\d*x)|_\d+x\d+_\d+x(\d+)_")
_WARPS = re.compile(r"/w(\d+)|warpsize(\d+)x(\d+)x(\d+)")

# cuDNN's and torch's kernels that only move data between NCHW and NHWC.
_CONVERSION = re.compile(r"nchw\w*tonhwc|nhwc\w*tonchw|transpose(?!d)|nhwc_to_nchw", re.IGNORECASE)


@dataclass(frozen=True)
class KernelTime:
    """A kernel of a launch and its duration in seconds, profiled once with a warm cache.

    `start_s` is in seconds from an arbitrary moment before the first kernel.
    """

    name: str
    seconds: float
    start_s: float = 0.0


def record(launch: Callable[[], object]) -> tuple[KernelTime, ...]:
    """The GPU kernels that one launch runs, in order, by torch's profiler; () where it saw none.

    What the launch raises is passed on.
    """
    import torch
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.autograd.profiler import profile

    # torch.profiler's own profile loads torch's compiler first, which takes five seconds.
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        launch()
        torch.cuda.synchronize()
    # The profiler's own list: torch's events of it take ten times as long to make.
    found: Any = getattr(profiler, "kineto_results", None)
    events: Any = found.events() if found is not None else ()
    kernels = [
        KernelTime(event.name(), event.duration_ns() * 1e-9, event.start_ns() * 1e-9)
        for event in events
        if event.device_type() == DeviceType.CUDA and not event.name().startswith("Activity")
    ]
    return tuple(sorted(kernels, key=lambda kernel: kernel.start_s))


def is_conversion(name: str) -> bool:
    """Whether a kernel's name says that it only changes the layout of a tensor."""
    return bool(_CONVERSION.search(name))


def is_communication(name: str) -> bool:
    """Whether a kernel's or a copy's name says that it only moves data between GPUs."""
    return name.startswith(("nccl", "rccl", "Memcpy PtoP"))


def fewer_operations(names: Sequence[str]) -> str | None:
    """ "FFT" or "Winograd" if the kernels' names say so: both need fewer multiplications."""
    for word, title in (("fft", "FFT"), ("winograd", "Winograd")):
        if any(word in name.lower() for name in names):
            return title
    return None


def stages_of(result: Result) -> int | None:
    """Stages of the pipeline that loads tiles, where the kernel's or variant's name states them.

    "stage3", "_64x4_" after a tile (64 elements of K, 4 stages), "/s4/" of ours.
    """
    return _number(_STAGES, result)


def threads_of(result: Result) -> int | None:
    """Threads of a block: "/w8/" of our variants, "warpsize2x2x1" of a library's kernel."""
    warps = _number(_WARPS, result)
    return 32 * warps if warps else None


def _number(pattern: re.Pattern[str], result: Result) -> int | None:
    for name in (result.variant or "", *result.kernels):
        if found := pattern.search(name):
            return math.prod(int(number) for number in found.groups() if number)
    return None


def tile_of(names: tuple[str, ...], case: Case) -> tuple[int, int, int] | None:
    """(M, N, K) in elements of the work-group tile that a library kernel's name states, or None.

    None for several kernels, and for split K and so for wgrad, which have more work-groups than
    output tiles; and for an op whose kernels' names do not say M, N and K.
    """
    problem = case.problem
    working = [name for name in names if not name.startswith("Mem")]
    if (
        len(working) != 1
        or "split" in working[0].lower()
        or problem.setting.get("pass") == "wgrad"
        or not problem.TILE
    ):
        return None
    match = _TILE.search(working[0])
    if match is None:
        return None
    size = dict(zip(problem.TILE, map(int, match.groups()), strict=True))
    return size["m"], size["n"], size["k"]
