"""Parts of every op's correctness check: poisoned outputs, relative errors, checksums."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.case import Candidate

INT_POISON = torch.iinfo(torch.int32).min  # no GEMM of int8 matrices has this value
# A checksum sees a row's error through one random projection, so its size varies like a normal
# deviate; over thousands of rows the largest is four to five times the typical one.
CHECKSUM_SLACK = 6.0
CHECKSUMS = 8
CHUNK_ELEMENTS = 1 << 26  # of a tensor that are held in float64 at once
RENEWED_BYTES = 1 << 20  # of an input between two samples: a copy of microseconds
FEW = 64  # elements, which roll to few different inputs
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def poison(output: torch.Tensor) -> None:
    """Fill an output, in place: NaN, or INT_POISON for int32, values that no kernel computes."""
    output.fill_(float("nan") if output.dtype.is_floating_point else INT_POISON)


def launch_poisoned(operands: Any, candidate: Candidate) -> Any:
    """Launch once into poisoned memory; the operands to check then. ValueError where the launch
    returned a tensor of another shape or dtype than the output.
    """
    poison(operands.output)
    if candidate.allocates:
        poison(torch.empty_like(operands.output))  # leave poison where the allocator takes from
    return operands.holding(filled(candidate.call(), operands.output))


def renewal(inputs: Sequence[torch.Tensor]) -> Callable[[], None]:
    """What gives the smallest input (of those with FEW elements or more) new contents, in place.

    Its values, those in the first RENEWED_BYTES of its memory, move on by a random number of
    places: the input is another one, whose values are distributed as before.
    """
    tensor = min((t for t in inputs if t.numel() >= FEW), key=lambda t: t.nbytes, default=inputs[0])
    count = min(tensor.numel(), RENEWED_BYTES // tensor.itemsize)
    memory = tensor.as_strided((count,), (1,)).view(INTEGERS[tensor.itemsize])
    twice = torch.cat((memory, memory))

    def renew() -> None:
        start = random.randrange(count)
        memory.copy_(twice[start : start + count])

    return renew


def ends(result: torch.Tensor) -> torch.Tensor:
    """A copy of the first and the last row (or image, or filter) of a result."""
    return torch.stack((result[0], result[-1]))


def filled(returned: object, output: torch.Tensor) -> torch.Tensor:
    """The tensor with the result: the one that a launch returned, or else `output`.

    ValueError if it returned a tensor of another shape or dtype.
    """
    if not isinstance(returned, torch.Tensor):
        return output
    if returned.shape != output.shape or returned.dtype != output.dtype:
        found, wanted = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
                         for t in (returned, output))  # fmt: skip
        raise ValueError(f"returned {found}, not {wanted}")
    return returned


def unwritten(output: torch.Tensor) -> int:
    """The number of elements that still hold the poison (any NaN counts, wherever it came from)."""
    bad = torch.isnan(output) if output.dtype.is_floating_point else output == INT_POISON
    return int(bad.sum().item())


def ratio(difference: torch.Tensor, reference: torch.Tensor) -> float:
    """||difference|| / ||reference|| (Frobenius); ||difference|| where the reference is zero."""
    norm = reference.norm()
    return float((difference.norm() / norm if norm > 0 else difference.norm()).item())


def typical(sizes: torch.Tensor) -> torch.Tensor:
    """The root mean square, a 0-d tensor; 1 where all are zero, so that it can be divided by."""
    square = sizes.square().mean().sqrt()
    return torch.where(square > 0, square, torch.ones_like(square))


def random_signs(rows: int, device: torch.device) -> torch.Tensor:
    """Random +-1, float64 [rows, CHECKSUMS]."""
    return torch.randint(0, 2, (rows, CHECKSUMS), device=device).double() * 2 - 1
