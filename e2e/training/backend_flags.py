"""The switches of torch that a recipe sets in its process, and torch's name of each precision."""

from __future__ import annotations

import torch

from e2e.recipes import Recipe, algorithms_timed

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def set_backend_flags(recipe: Recipe, kind: str, search: str | None) -> None:
    """Set this process's switches as the recipe wants them, for a kind of device.

    `search` is as for `algorithms_timed`.
    """
    set_tf32(recipe.tf32)
    if kind == "cuda":
        timed = algorithms_timed(recipe, search)
        torch.backends.cudnn.benchmark = timed is not None
        if timed is not None:
            torch.backends.cudnn.benchmark_limit = timed


def set_tf32(on: bool) -> None:
    """Allow or forbid TF32 in this process: in cuBLAS, in cuDNN, and in what torch.compile makes.

    PyTorch's defaults mix the two (cuDNN's on, cuBLAS's off); here both are always set. The older
    switches are used because torch.compile reads them, and refuses a mix of old and new.
    """
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
