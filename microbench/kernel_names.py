"""Which kernels a launch runs, by name, and what the names say of tiles."""

from __future__ import annotations

import re

from microbench.timing import Launch

# "nvjet_sm90_hsh_256x128_64x4_...", "..._tilesize128x128x8_...", "..._128x64_32x6_tn_align8"
_TILE = re.compile(r"(?:tilesize|_)(\d+)x(\d+)(?:x|_)(\d+)")


def record(launch: Launch) -> tuple[str, ...]:
    """Names of the device kernels that one launch runs, in order; empty where unknown."""
    import torch
    from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        launch()
        torch.cuda.synchronize()
    events = profiler.events() or []
    return tuple(
        event.name
        for event in events
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Mem", "Activity"))
    )


def tile_of(names: tuple[str, ...]) -> tuple[int, int, int] | None:
    """(M, N, K) of the work-group tile that a library kernel's name states, or None.

    BLAS computes the transpose of a row-major C, so the name's first number is our N. None for
    launches of several kernels and for split K, whose work-groups are more than the tiles of C.
    """
    if len(names) != 1 or "split" in names[0].lower():
        return None
    found = _TILE.search(names[0])
    if found is None:
        return None
    n, m, k = (int(number) for number in found.groups())
    return m, n, k
