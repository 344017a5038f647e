"""Where the pixels of a crop lie in a stored image, for each way that a camera was held.

EXIF says how a stored image is to be turned: https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf,
tag 274. Its eight ways are: rows and columns exchanged or not, each walked forwards or backwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ORIENTATIONS = range(1, 9)
FIRST_TRANSPOSED = 5  # from here on, rows of the upright image are stored columns
# By EXIF's number: whether the stored rows, or columns, run backwards in the upright image.
_ROWS_BACK = torch.tensor([False, False, False, True, True, False, True, True, False])
_COLUMNS_BACK = torch.tensor([False, False, True, True, False, False, False, True, True])


def upright_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    """Height and width, in pixels, of a stored image after it is turned upright."""
    return (width, height) if orientation >= FIRST_TRANSPOSED else (height, width)


def crop_table(
    addresses: Sequence[int], sizes: Sequence[tuple[int, int]], boxes: Tensor, flips: Tensor,
    orientations: Tensor,
) -> Tensor:  # fmt: skip
    """The table that `resample_images` reads, one row a crop: int64 [N, 6].

    `addresses` and `sizes` are those of stored images, contiguous uint8 [3, height, width]; `boxes`
    [N, 4] are top, left, height, width in pixels of the upright image; `flips` [N] say which crops
    are mirrored, `orientations` [N] are EXIF's. ValueError for a box that is not inside its image,
    or no orientation.
    """
    stored = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    _check(stored, boxes, orientations)
    rows, columns = stored.unbind(1)
    top, left, height, width = boxes.to(torch.int64).unbind(1)
    transposed = orientations >= FIRST_TRANSPOSED
    # Of the crop's first pixel in the stored image, and the steps from it: all as if it were
    # stored upright, then by how it is stored.
    row, column = _exchanged(top, left, transposed)
    down, across = _exchanged(columns, torch.ones_like(columns), transposed)
    rows_back, columns_back = _ROWS_BACK[orientations], _COLUMNS_BACK[orientations]
    row = torch.where(rows_back, rows - 1 - row, row)
    column = torch.where(columns_back, columns - 1 - column, column)
    down_back, across_back = _exchanged(rows_back, columns_back, transposed)
    down = torch.where(down_back, -down, down)
    across = torch.where(across_back, -across, across)
    first = torch.tensor(addresses, dtype=torch.int64) + row * columns + column
    first = torch.where(flips, first + (width - 1) * across, first)
    across = torch.where(flips, -across, across)
    return torch.stack([first, rows * columns, down, across, height, width], dim=1)


def _exchanged(first: Tensor, second: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(which, second, first), torch.where(which, first, second)


def _check(stored: Tensor, boxes: Tensor, orientations: Tensor) -> None:
    known = (orientations >= ORIENTATIONS[0]) & (orientations <= ORIENTATIONS[-1])
    if not bool(known.all()):
        raise ValueError(f"orientations are {[*map(int, orientations)]}, not all from 1 to 8")
    upright = torch.where((orientations >= FIRST_TRANSPOSED)[:, None], stored.flip(1), stored)
    inside = (boxes[:, :2] >= 0) & (boxes[:, 2:] >= 1) & (boxes[:, :2] + boxes[:, 2:] <= upright)
    if not bool(inside.all()):
        n = int(inside.all(dim=1).logical_not().nonzero()[0])
        box, size = [*map(int, boxes[n])], [*map(int, upright[n])]
        raise ValueError(f"box {box} of image {n} is not in its {size} pixels")
