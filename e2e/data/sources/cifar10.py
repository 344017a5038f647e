"""CIFAR-10 from disk, in the Python form that its authors publish.

torchvision reads it: only files of the published checksums, as a pickle can run any program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torchvision.datasets import CIFAR10  # pyright: ignore[reportMissingTypeStubs]

from e2e.data.types import Arrays, Normal
from microbench.errors import UserError

CLASSES = 10
SAMPLE = (3, 32, 32)
# Of the training images.
NORMAL = Normal((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
ARCHIVE = "cifar-10-python.tar.gz"


def read(folder: Path) -> tuple[Arrays, Arrays]:
    """(training, test) images of the CIFAR-10 in this folder or its usual subfolder.

    uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32]. UserError when a file is missing or is not as
    published.
    """
    usual = CIFAR10.base_folder
    root = folder.parent if folder.name == usual else folder
    try:
        parts = [CIFAR10(root, train=train) for train in (True, False)]
    except (OSError, RuntimeError):
        packed = root / ARCHIVE
        remedy = f"tar -xf {packed} -C {root}" if packed.is_file() else f"unpack {ARCHIVE} there"
        raise UserError(
            f"no CIFAR-10 in {folder}: its folder {usual} is missing, or has a file that is "
            f"missing or not as published; {remedy}"
        ) from None
    arrays: list[Arrays] = []
    for part in parts:
        pixels, classes = torch.as_tensor(part.data), torch.as_tensor(cast(Any, part).targets)
        arrays.append(Arrays(pixels.movedim(-1, 1).contiguous(), classes))
    return arrays[0], arrays[1]
