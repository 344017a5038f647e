"""GEMMs and convolutions whose sizes miss the fast Tensor Core kernels, and the same calls padded.

Pure functions of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from e2e.aten import Argument, Call, TensorSpec

# Rows of whole 16-byte words: channels and features are a multiple of 8 in 16-bit types, of 4 in
# TF32. Images stay: libraries have kernels for their few channels.
# https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/
WORD_BYTES = 16
IMAGE_CHANNELS = 4
HALVES = ("float16", "bfloat16")

# The sizes of tensor arguments, in order, a letter a dimension; "." is none that is padded.
CONVOLUTIONS = {"convolution": (".C", "KC", "K"), "convolution_backward": (".K", ".C", "KC", "K")}
MATRICES = {
    "mm": ("MK", "KN"),
    "addmm": ("MN", "MK", "KN"),
    "bmm": (".MK", ".KN"),
    "baddbmm": (".MN", ".MK", ".KN"),
}
NOUNS = {**dict.fromkeys(CONVOLUTIONS, "channels"), "mm": "features", "addmm": "features"}
# Where this argument is; groups are two after it.
TRANSPOSED = {"convolution": 6, "convolution_backward": 7}


class Padding(NamedTuple):
    """A call with sizes rounded up, those sizes ({33: 40}), and in words: "33 to 40 channels"."""

    call: Call
    sizes: Mapping[int, int]
    change: str


def padding(call: Call, tf32: bool) -> Padding | None:
    """The padded call; None if aligned, grouped, not for Tensor Cores, or no GEMM or convolution.

    `tf32`: float32 calls run in TF32. The padded copy of a tensor has no gaps between its rows.
    """
    letters = _letters(call)
    first = next(iter(call.tensors), None)
    if not letters or first is None or first.dtype not in (*HALVES, *["float32"] * tf32):
        return None
    unit = WORD_BYTES // first.itemsize
    sizes = {
        letter: (size, -(-size // unit) * unit)
        for letter, size in _sizes(call, letters).items()
        if size % unit
    }
    if not sizes:
        return None
    args = tuple(_padded(arg, named, sizes) for arg, named in zip(call.args, letters, strict=False))
    rounded = dict(sorted(sizes.values()))
    changes = ", ".join(f"{size} to {padded}" for size, padded in rounded.items())
    return Padding(
        Call(call.name, args + call.args[len(letters) :], call.kwargs),
        rounded,
        f"{changes} {NOUNS.get(call.operator, 'elements')}",
    )


def _letters(call: Call) -> tuple[str, ...]:
    """The names of the sizes of each argument, () where nothing is to be padded."""
    at = TRANSPOSED.get(call.operator)
    if at is None:
        return MATRICES.get(call.operator, ())
    if call.args[at + 2] != 1:
        return ()
    letters = CONVOLUTIONS[call.operator]
    return tuple("CK" if each == "KC" else each for each in letters) if call.args[at] else letters


def _sizes(call: Call, letters: Sequence[str]) -> dict[str, int]:
    """Sizes that matter: channels, but not of images; of matrices those that are contiguous in
    memory. Vectors have kernels of their own.
    """
    sizes: dict[str, int] = {}
    for arg, named in zip(call.args, letters, strict=False):
        if not isinstance(arg, TensorSpec):
            continue
        by_dim = list(zip(_fitted(named, len(arg.shape)), arg.shape, arg.stride, strict=True))
        if call.operator in CONVOLUTIONS:
            sizes |= {letter: size for letter, size, _ in by_dim}
            continue
        side_by_side = [(size, letter) for letter, size, step in by_dim if step == 1]
        if side_by_side and len(named) == len(arg.shape):
            size, letter = max(side_by_side)
            sizes[letter] = size
    if call.operator in MATRICES:
        sizes["N"] = call.tensors[len(letters) - 1].shape[-1]  # of the result
        return {letter: size for letter, size in sizes.items() if letter != "." and size > 1}
    least = {"C": IMAGE_CHANNELS + 1}
    return {n: size for n, size in sizes.items() if n != "." and size >= least.get(n, 1)}


def _fitted(letters: str, dims: int) -> str:
    """The letters for `dims` dimensions: images have more after the channels, a bias only rows."""
    letters = letters.ljust(dims, ".")
    return letters[len(letters) - dims :]


def _padded(arg: Argument, letters: str, sizes: Mapping[str, tuple[int, int]]) -> Argument:
    """A tensor, or the shape of a bias, with those sizes rounded up; broadcast sizes of 1 stay."""
    shape = arg.shape if isinstance(arg, TensorSpec) else arg
    if not isinstance(shape, tuple):
        return arg
    larger: list[int] = []
    for letter, size in zip(_fitted(letters, len(shape)), shape, strict=True):
        assert isinstance(size, int)
        before, after = sizes.get(letter, (size, size))
        larger.append(after if size == before else size)
    if not isinstance(arg, TensorSpec):
        return tuple(larger)
    if tuple(larger) == arg.shape:
        return arg
    return replace(arg, shape=tuple(larger), stride=_dense(larger, arg))


def _dense(shape: Sequence[int], like: TensorSpec) -> tuple[int, ...]:
    """Strides in the same order without gaps; dimensions that share memory still do."""
    stride, step = [0] * len(shape), 1
    inward = sorted(range(len(shape)), key=lambda dim: (-like.stride[dim], -like.shape[dim], dim))
    for dim in reversed(inward):
        if like.stride[dim]:
            stride[dim] = step
            step *= shape[dim]
    return tuple(stride)
