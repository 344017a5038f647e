"""nvJPEG's hardware decoder, called on the caller's own stream.

torchvision's op calls the same library, on a stream that has no priority, and waits for it: beside
a training, what follows each image's decoding stands in line behind the training's kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from ctypes import CDLL, PyDLL, Structure, byref, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import torch
import torchvision
from torch import Tensor

# From nvjpeg.h of CUDA 13.
SUCCESS = 0
HARDWARE, RGB = 3, 3
COMPONENTS = 4
IN_HARDWARE = frozenset((0, 1, 2, 3, 6))  # samplings of colour: 4:4:4, 4:2:2, 4:2:0, 4:4:0, grey

ALIGNMENT = 512  # bytes, of where an image begins
STATES = 2  # batches that may be under way


class _Image(Structure):
    """Where a decoded image goes: its channels, and how many bytes a row of each has."""

    _fields_ = (("channel", c_void_p * COMPONENTS), ("pitch", c_size_t * COMPONENTS))


class Refused(RuntimeError):
    """An image of the batch, or the whole of it, is not for this decoder."""


class _Library:
    """The functions of nvJPEG that are used here, and a handle of its hardware decoder."""

    def __init__(self, path: str) -> None:
        self._batches = CDLL(path)  # without Python's lock: other threads go on
        # With it: each would else wait for its turn once an image.
        self._headers = PyDLL(path)
        self._handle = c_void_p()
        _check(
            self._batches.nvjpegCreateEx(HARDWARE, None, None, 0, byref(self._handle)),
            "its decoder",
        )

    def state(self) -> c_void_p:
        """What a batch under way needs."""
        state = c_void_p()
        _check(self._batches.nvjpegJpegStateCreate(self._handle, byref(state)), "a state")
        return state

    def size(self, encoded: Tensor) -> tuple[int, int]:
        """Height and width, by the header. Refused for what the hardware does not decode."""
        channels, sampling = c_int(), c_int()
        widths, heights = (c_int * COMPONENTS)(), (c_int * COMPONENTS)()
        status = self._headers.nvjpegGetImageInfo(
            self._handle, c_void_p(encoded.data_ptr()), c_size_t(encoded.numel()),
            byref(channels), byref(sampling), widths, heights,
        )  # fmt: skip
        _check(status, "a header")
        if sampling.value not in IN_HARDWARE:
            raise Refused(f"nvJPEG: no hardware for a sampling of {sampling.value}")
        return heights[0], widths[0]

    def decode(
        self, state: c_void_p, encoded: Sequence[Tensor], images: Sequence[Tensor], stream: int
    ) -> None:
        """Queue the decoding of a batch into its images, uint8 [3, height, width] each."""
        count = len(encoded)
        data = (c_void_p * count)(*(one.data_ptr() for one in encoded))
        lengths = (c_size_t * count)(*(one.numel() for one in encoded))
        placed = (_Image * count)()
        for place, image in zip(placed, images, strict=True):
            _, height, width = image.shape
            address = image.data_ptr()
            place.channel[:3] = [address + channel * height * width for channel in range(3)]
            place.pitch[:3] = [width] * 3
        status = self._batches.nvjpegDecodeBatchedInitialize(
            self._handle, state, c_int(count), c_int(1), c_int(RGB)
        )
        _check(status, "a batch")
        status = self._batches.nvjpegDecodeBatched(
            self._handle, state, data, lengths, placed, c_void_p(stream)
        )
        _check(status, "a batch")


class HardwareDecoder:
    """Decodes batches in turn, on the stream that is current then. Not for several threads."""

    def __init__(self, library: _Library, device: torch.device) -> None:
        self._library, self._device = library, device
        self._turns: Iterator[tuple[c_void_p, torch.cuda.Event]] = itertools.cycle(
            [(library.state(), torch.cuda.Event(blocking=True)) for _ in range(STATES)]
        )

    def __call__(self, encoded: list[Tensor]) -> list[Tensor]:
        """Baseline JPEGs' bytes, uint8 [bytes] each, as uint8 [3, height, width] on the device.

        They are there when the current stream has come so far; until then the bytes must stay.
        Refused where one of them is not for this decoder: nothing is under way then.
        """
        sizes = [self._library.size(one) for one in encoded]
        starts = list(itertools.accumulate((_aligned(3 * h * w) for h, w in sizes), initial=0))
        flat = torch.empty(starts[-1], dtype=torch.uint8, device=self._device)
        images = [
            flat[start : start + 3 * height * width].view(3, height, width)
            for start, (height, width) in zip(starts, sizes, strict=False)
        ]
        state, done = next(self._turns)
        done.synchronize()  # of the batch that had this state before
        stream = torch.cuda.current_stream(self._device)
        try:
            self._library.decode(state, encoded, images, stream.cuda_stream)
        except Refused:
            stream.synchronize()  # some of it may be under way
            raise
        done.record(stream)
        return images


def hardware_decoder(device: torch.device) -> HardwareDecoder | None:
    """A decoder for a device that has one, by its number; None where hardware or library lack."""
    with torch.cuda.device(device):
        library = _opened(device.index)
        return HardwareDecoder(library, device) if library else None


@cache
def _opened(index: int) -> _Library | None:
    """The library for a device, once a process; torchvision brings it along."""
    for path in _places():
        try:
            return _Library(str(path))
        except (OSError, AttributeError, Refused):
            continue
    return None


def _places() -> Iterator[Path]:
    packages = Path(torchvision.__file__).parent.parent
    yield from sorted((packages / "torchvision.libs").glob("libnvjpeg*.so*"))
    yield from sorted((packages / "nvidia").glob("*/lib/libnvjpeg.so*"))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _check(status: int, what: str) -> None:
    if status != SUCCESS:
        raise Refused(f"nvJPEG refuses {what}: status {status}")
