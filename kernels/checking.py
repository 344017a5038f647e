"""Correctness of every op's output against float64, for errors anywhere in it.

A GEMM is checked as two 1x1 convolutions, of C and of its transpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import pad

from kernels.case import Candidate, Case, LeftBehind
from kernels.conv import OUTPUT
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape

INT_POISON = torch.iinfo(torch.int32).min  # no GEMM of int8 matrices has this value
# A checksum sees a row's error through one random projection, so its size varies like a normal
# deviate; over thousands of rows the largest is four to five times the typical one.
CHECKSUM_SLACK = 6.0
CHECKSUMS = 8
CHUNK_ELEMENTS = 1 << 26  # of a tensor that are held in float64 at once
RENEWED_BYTES = 1 << 20  # of an input between two samples: a copy of microseconds
FEW = 64  # elements, which roll to few different inputs
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class Prepared:
    """A case ready to launch: memory allocated, inputs filled.

    `candidates` holds at least one; with several, the measuring core times them and keeps the
    fastest.
    """

    def __init__(self, case: Case, operands: Any, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self._case, self._operands, self._launched = case, operands, operands

    def rel_error(self, candidate: Candidate) -> float:
        """Fill the output with a poison and launch once: the relative error against a float64
        reference of the inputs as stored, infinite where an element was not written. ValueError
        where the launch returned a tensor of another shape or dtype.
        """
        self._launched = launch_poisoned(self._operands, candidate)
        return relative_error(self._launched)

    def total_error(self) -> float:
        """Of the last output, of inputs before they were rounded to their storage."""
        return total_error(self._launched)

    @cached_property
    def _renewal(self) -> Callable[[], None]:
        return renewal(getattr(self._operands, "renewed", self._operands.inputs))

    def renew(self) -> None:
        """Queue new contents of an input, in place: what a launch left before is wrong then."""
        self._renewal()

    def rel_error_again(
        self, candidate: Candidate, sample: Callable[[Callable[[], object]], object]
    ) -> float:
        """The error of what one timed sample leaves in an output that was not prepared;
        `sample(launch)` takes it. LeftBehind where the result is right, but was not yet when its
        time ended.
        """
        if self._case.data == "zeros":  # other zeros are not new
            return self.rel_error(candidate)
        outputs, kept = self._operands.outputs, list[Any]()

        def launch() -> None:
            found = results(candidate.call(), outputs)
            kept[:] = found, ends(found)  # in the order of the stream

        ends(outputs)  # loads its kernel, which no gate can hold
        sample(launch)
        found, ends_then = kept
        error = relative_error(self._operands.holding(*found))
        both = zip(ends(found), ends_then, strict=True)
        if error <= self._case.tolerance and not all(now.equal(then) for now, then in both):
            raise LeftBehind
        return error


def poison(output: torch.Tensor) -> None:
    """Fill an output, in place: NaN, or INT_POISON for int32, values that no kernel computes."""
    output.fill_(float("nan") if output.dtype.is_floating_point else INT_POISON)


def launch_poisoned(operands: Any, candidate: Candidate) -> Any:
    """Launch once into poisoned memory; the operands to check then. ValueError where the launch
    returned a tensor of another shape or dtype than the output, or none, with nowhere to write.
    """
    outputs: Sequence[torch.Tensor] = operands.outputs
    left = [torch.empty_like(output) for output in outputs if candidate.allocates]
    for tensor in (*outputs, *left):
        poison(tensor)
    left.clear()  # poison is where the allocator takes from
    returned = candidate.call()
    if candidate.allocates and returned is None:
        raise ValueError("returned None, and has no argument `out`")
    return operands.holding(*results(returned, outputs))


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


def ends(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of the first and the last row (or image, or filter) of each result."""
    return [torch.stack((result[0], result[-1])) for result in results]


def results(returned: object, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensors with the results: those that a launch returned, a tuple where there are several,
    or else `outputs`. ValueError for others than these.
    """
    given: Sequence[object] = (returned, *outputs[1:])
    if len(outputs) > 1 and isinstance(returned, tuple):
        given = returned
    if len(given) != len(outputs):
        raise ValueError(f"returned {len(given)} tensors, not {len(outputs)}")
    pairs = zip(given, outputs, strict=True)
    chosen = [result if isinstance(result, torch.Tensor) else output for result, output in pairs]
    for tensors in zip(chosen, outputs, strict=True):
        got, wanted = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors)
        if got != wanted:
            raise ValueError(f"returned {got}, not {wanted}")
    return chosen


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


# ---------------------------------------------------------------- against float64


def relative_error(operands: Any) -> float:
    """The largest of: the sample's ||out - ref|| / ||ref||, its worst channel (of a GEMM, row or
    column), the checksums. All from the inputs as stored, in float64. Infinite when an element
    still holds the poison. Operands that are not checked as convolutions say their own.
    """
    if any(map(unwritten, operands.outputs)):
        return float("inf")
    if hasattr(operands, "relative_error"):
        return operands.relative_error()
    return max(map(_relative_error, operands.convolutions))


def _relative_error(operands: ConvOperands) -> float:
    sample, name = operands.sample, OUTPUT[operands.which]
    assert sample is not None
    inputs = {n: sample.part(n, getattr(operands, n)) for n in sample.drawn}
    reference = _reference(operands.which, inputs, sample.shape)
    got = sample.part(name, operands.output).double()
    channel = worst_channel(got, reference, 0 if name == "w" else 1)
    hidden = checksum_error(operands, float(typical(reference)))
    return max(ratio(got - reference, reference), channel, hidden / CHECKSUM_SLACK)


def total_error(operands: Any) -> float:
    """||out - ref|| / ||ref|| over the sample, of inputs as drawn: rounding to storage is
    counted.
    """
    if hasattr(operands, "total_error"):
        return operands.total_error()
    operands = operands.convolutions[0]
    sample = operands.sample
    reference = _reference(operands.which, sample.drawn, sample.shape)
    got = sample.part(OUTPUT[operands.which], operands.output).double() / operands.scale
    return ratio(got - reference, reference)


def worst_channel(got: torch.Tensor, reference: torch.Tensor, channels: int) -> float:
    """The largest error of one channel over the typical channel, less what chance allows."""
    rest = [d for d in range(4) if d != channels]
    lines = (got - reference).square().sum(rest).sqrt()
    whole = typical(reference.square().sum(rest).sqrt())
    few = reference.numel() / reference.shape[channels]
    return float(lines.max() / whole) / (1 + CHECKSUM_SLACK / few**0.5)


def checksum_error(operands: ConvOperands, size: float) -> float:
    """The largest error of sums of the output over its channels with random signs.

    Each sum runs over the channels of a group (the filters, or dgrad's input channels), so that
    every element of the output is in CHECKSUMS of them; the expected sums come from a convolution
    of inputs summed in the same way. The error is relative to the typical size of such a sum of
    elements of `size`.
    """
    shape, which = operands.shape, operands.which
    depth = (shape.c if which == "dgrad" else shape.k) // shape.groups
    signs = random_signs(depth, operands.x.device)
    if depth <= CHECKSUMS:
        signs = torch.eye(depth, device=operands.x.device, dtype=torch.float64)
    summed = replace(shape, **{"c" if which == "dgrad" else "k": signs.shape[1] * shape.groups})
    inputs = {"x": operands.x, "w": operands.w, "y": operands.y}
    output = inputs.pop(OUTPUT[which])
    if which == "fprop":
        inputs["w"] = _sum_groups(inputs["w"], 0, signs, shape.groups)
    elif which == "dgrad":
        inputs["w"] = _sum_groups(inputs["w"], 1, signs, 1)
    worst = torch.zeros((), device=operands.x.device, dtype=torch.float64)
    if which == "wgrad":
        expected = _reference(which, inputs, summed, signs=signs)
        worst = (_sum_groups(output, 0, signs, shape.groups) - expected).abs().max()
    else:
        for start, stop in _bands(shape):
            band = {n: t if n == "w" else t[start:stop] for n, t in inputs.items()}
            expected = _reference(which, band, replace(summed, n=stop - start))
            got = _sum_groups(output[start:stop], 1, signs, shape.groups)
            worst = torch.maximum(worst, (got - expected).abs().max())
    terms = depth if depth > CHECKSUMS else 1
    return float(worst) / (size * terms**0.5)


def _sum_groups(tensor: torch.Tensor, axis: int, signs: torch.Tensor, groups: int) -> torch.Tensor:
    """Each group's channels along an axis (0 or 1) replaced by their sums with the columns of
    signs, a band of the other axis at a time.
    """
    other = 1 - axis
    bands: list[torch.Tensor] = []
    for band in tensor.split(max(1, CHUNK_ELEMENTS * tensor.shape[other] // tensor.numel()), other):
        lead, tail = band.shape[:axis], band.shape[axis + 1 :]
        grouped = band.double().reshape(*lead, groups, signs.shape[0], *tail)
        summed = grouped.movedim(axis + 1, -1) @ signs
        bands.append(summed.movedim(-1, axis + 1).flatten(axis, axis + 1))
    return torch.cat(bands, other)


def _bands(shape: ConvShape) -> Iterator[tuple[int, int]]:
    """Ranges of images that fit CHUNK_ELEMENTS."""
    image = max(shape.c * shape.h * shape.w, shape.k * shape.p * shape.q)
    step = max(1, CHUNK_ELEMENTS // image)
    for start in range(0, shape.n, step):
        yield start, min(shape.n, start + step)


def _reference(
    which: str, inputs: dict[str, torch.Tensor], shape: ConvShape, signs: torch.Tensor | None = None
) -> torch.Tensor:
    """The pass in float64, as sums of GEMMs over the taps; wgrad in bands of images.

    With `signs`, wgrad's dy is first summed over each group's filters.
    """
    if which != "wgrad":
        return reference(which, {n: t.double() for n, t in inputs.items()}, shape)
    total: torch.Tensor | None = None
    for start, stop in _bands(shape):
        x, y = (inputs[n][start:stop].double() for n in ("x", "y"))
        if signs is not None:
            y = _sum_groups(y, 1, signs, shape.groups)
        part = reference(which, {"x": x, "y": y}, replace(shape, n=stop - start))
        total = part if total is None else total + part
    assert total is not None
    return total


def reference(which: str, inputs: dict[str, torch.Tensor], shape: ConvShape) -> torch.Tensor:
    """A pass of a convolution by its definition: one GEMM per tap (r, s), summed.

    `inputs` are two of x[N, C, H, W], w[K, C/groups, R, S], y[N, K, P, Q] in float64; the third is
    returned.
    """
    g, (rows, columns) = shape.groups, shape.paddings
    some = next(iter(inputs.values()))
    n, h, w = shape.n, shape.h + 2 * rows, shape.w + 2 * columns
    given = "x" in inputs
    x = (
        pad(inputs["x"], (columns, columns, rows, rows))
        if given
        else some.new_zeros(n, shape.c, h, w)
    )
    x = x.reshape(n, g, shape.c // g, h, w)
    y = inputs.get("y")
    y = some.new_zeros(n, shape.k, shape.p, shape.q) if y is None else y
    y = y.reshape(n, g, shape.k // g, shape.p, shape.q)
    weight = inputs.get("w")
    if weight is None:
        weight = some.new_zeros(shape.k, shape.c // g, shape.r, shape.s)
    weight = weight.reshape(g, shape.k // g, shape.c // g, shape.r, shape.s)
    for r in range(shape.r):
        for s in range(shape.s):
            view = x[..., _tap(r, shape.p, shape, 0), _tap(s, shape.q, shape, 1)]
            if which == "fprop":
                y += torch.einsum("ngchw,gkc->ngkhw", view, weight[..., r, s])
            elif which == "dgrad":
                view += torch.einsum("ngkhw,gkc->ngchw", y, weight[..., r, s])
            else:
                weight[..., r, s] = torch.einsum("ngkhw,ngchw->gkc", y, view)
    if which == "fprop":
        return y.flatten(1, 2)
    if which == "wgrad":
        return weight.flatten(0, 1)
    return x.flatten(1, 2)[..., rows : h - rows, columns : w - columns]


def _tap(tap: int, outputs: int, shape: ConvShape, axis: int) -> slice:
    """The padded pixels along an axis that a tap meets, one an output."""
    first, stride = tap * shape.dilations[axis], shape.strides[axis]
    return slice(first, first + (outputs - 1) * stride + 1, stride)
