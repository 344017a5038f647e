"""GEMMs and convolutions whose sizes miss the fast Tensor Core kernels, and the same calls padded.

Pure functions of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from e2e.aten import Argument, Call, TensorSpec

# Rows of whole 16-byte words: channels and features are a multiple of 8 in 16-bit types, of 4 in
# TF32. Images may do with 4 channels where the stride is 2:
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
# Where this argument is; strides are three before it, groups two after.
TRANSPOSED = {"convolution": 6, "convolution_backward": 7}


@dataclass(frozen=True)
class Padding:
    """A call with sizes rounded up, and those sizes: {33: 40}.

    `noun` is what they count. `known_slow` are the sizes before, without those of images: libraries
    have kernels for three channels.
    """

    call: Call
    sizes: Mapping[int, int]
    known_slow: tuple[int, ...]
    noun: str

    @property
    def misaligned(self) -> str:
        """Such as "33 channels"; "" where only an image's channels are misaligned."""
        return f"{', '.join(map(str, self.known_slow))} {self.noun}" if self.known_slow else ""

    @property
    def change(self) -> str:
        """Such as "33 to 40 channels"."""
        rounded = [f"{size} to {padded}" for size, padded in self.sizes.items()]
        return f"{', '.join(rounded)} {self.noun}"


def padding(call: Call, tf32: bool) -> Padding | None:
    """The padded call; None if aligned, grouped, not for Tensor Cores, or no GEMM or convolution.

    `tf32`: float32 calls run in TF32. The padded copy of a tensor has no gaps between its rows.
    """
    letters = _letters(call)
    if not letters or not call.tensors:
        return None
    found = {
        letter: (size, wanted)
        for letter, size in _sizes(call, letters).items()
        if (wanted := _rounded(call, letter, size, tf32)) != size
    }
    if not found:
        return None
    args = tuple(_padded(arg, named, found) for arg, named in zip(call.args, letters, strict=False))
    slow = [size for letter, (size, _) in found.items() if not _of_image(call, letter, size)]
    return Padding(
        Call(call.name, args + call.args[len(letters) :], call.kwargs),
        dict(sorted(found.values())),
        tuple(sorted(set(slow))),
        NOUNS.get(call.operator, "elements"),
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
    """Sizes that matter: channels; of matrices those that are contiguous in memory."""
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
        right = call.tensors[len(letters) - 1]
        sizes["N"] = right.shape[-1]  # of the result
    sizes.pop(".", None)
    return sizes


def _rounded(call: Call, letter: str, size: int, tf32: bool) -> int:
    dtype = call.tensors[0].dtype
    least = 2 if call.operator in MATRICES else 1  # vectors have kernels of their own
    if size < least or not (dtype in HALVES or (dtype == "float32" and tf32)):
        return size
    unit = WORD_BYTES // call.tensors[0].itemsize
    if _of_image(call, letter, size) and call.args[TRANSPOSED[call.operator] - 3] == (2, 2):
        unit = IMAGE_CHANNELS
    return -(-size // unit) * unit


def _of_image(call: Call, letter: str, size: int) -> bool:
    return call.operator in CONVOLUTIONS and letter == "C" and size <= IMAGE_CHANNELS


def _fitted(letters: str, dims: int) -> str:
    """The letters for `dims` dimensions: images have more after the channels, a bias only rows."""
    letters = letters.ljust(dims, ".")
    return letters[len(letters) - dims :]


def _padded(arg: Argument, letters: str, found: Mapping[str, tuple[int, int]]) -> Argument:
    """A tensor, or the shape of a bias, with those sizes rounded up."""
    if isinstance(arg, tuple):
        return _larger(cast(tuple[int, ...], arg), letters, found)
    if not isinstance(arg, TensorSpec):
        return arg
    shape = _larger(arg.shape, letters, found)
    return arg if shape == arg.shape else replace(arg, shape=shape, stride=_dense(shape, arg))


def _larger(
    shape: tuple[int, ...], letters: str, found: Mapping[str, tuple[int, int]]
) -> tuple[int, ...]:
    """Rounded-up sizes; broadcast sizes of 1 stay."""
    named = zip(_fitted(letters, len(shape)), shape, strict=True)
    return tuple(
        found[letter][1] if letter in found and size == found[letter][0] else size
        for letter, size in named
    )


def _dense(shape: Sequence[int], like: TensorSpec) -> tuple[int, ...]:
    """Strides in the same order without gaps; dimensions that share memory still do."""
    stride, step = [0] * len(shape), 1
    inward = sorted(range(len(shape)), key=lambda dim: (-like.stride[dim], -like.shape[dim], dim))
    for dim in reversed(inward):
        if like.stride[dim]:
            stride[dim] = step
            step *= shape[dim]
    return tuple(stride)
