"""Gluon, Triton's language of layouts and warps, where this Triton has what our kernels use of it.

It is experimental: names move between versions, and the interpreter does not run it. `missing`
says what a machine lacks, so that a back end can leave its Gluon kernels out.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module

HOPPER = "triton.experimental.gluon.language.nvidia.hopper"
# Module -> what the kernels use of it; of names joined by "|", the later ones are of Triton 3.6.
USED = {
    "triton.experimental.gluon": ("jit",),
    "triton.experimental.gluon.language": (
        "warp_specialize", "allocate_shared_memory", "num_warps", "NVMMASharedLayout",
        "NVMMADistributedLayout", "BlockedLayout", "SliceLayout", "barrier|thread_barrier",
    ),
    "triton.experimental.gluon.nvidia.hopper": ("TensorDescriptor",),
    HOPPER: ("warpgroup_mma", "warpgroup_mma_wait", "fence_async_shared"),
    f"{HOPPER}.tma": (
        "async_load|async_copy_global_to_shared", "async_store|async_copy_shared_to_global",
        "store_wait",
    ),
    f"{HOPPER}.mbarrier": ("init", "wait", "arrive", "expect", "MBarrierLayout"),
}  # fmt: skip


@cache
def missing() -> str | None:
    """What this Triton lacks for the project's Gluon kernels, in a few words; None for nothing."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton's interpreter does not run Gluon"
    for module, names in USED.items():
        try:
            found = import_module(module)
        except ImportError:
            return f"this Triton has no {module}"
        for name in names:
            if not any(hasattr(found, each) for each in name.split("|")):
                return f"this Triton has no {module}.{name.split('|')[0]}"
    return None
