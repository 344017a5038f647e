"""nvJPEG's hardware decoder, called on the caller's stream and without its pipeline.

By default, as in torchvision's op, the library gives each engine its own stream without priority:
the kernels after each image's decoding then queue behind the training's, and the engine waits.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from ctypes import CDLL, PyDLL, Structure, byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

import torch
import torchvision  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

# From nvjpeg.h of CUDA 13: statuses and options.
SUCCESS, NO_MEMORY = 0, 5
ABOUT_THE_IMAGE = frozenset((3, 4, 9, 10))  # bad, or not supported, or incomplete
HARDWARE, RGB = 3, 3
NO_PIPELINE = 1  # what follows the engines' work goes on the caller's stream
COMPONENTS = 4

ALIGNMENT = 512  # bytes, of where an image begins
STATES = 2  # batches that may be under way


class NvjpegError(Exception):
    """The library does not work, whatever the image."""


class Refused(RuntimeError):
    """This decoder cannot decode an image of the batch."""


class _Image(Structure):
    """Where a decoded image goes: its channels, and how many bytes a row of each has."""

    _fields_ = (("channel", c_void_p * COMPONENTS), ("pitch", c_size_t * COMPONENTS))


class _Library:
    """The functions of nvJPEG that are used here, with its hardware decoder of one device."""

    def __init__(self, path: str) -> None:
        self._batches = CDLL(path)  # without Python's lock: other threads go on
        # With it: each would else wait for its turn once an image.
        self._headers = PyDLL(path)
        self._handle = c_void_p()
        status = self._batches.nvjpegCreateEx(
            HARDWARE, None, None, c_uint(NO_PIPELINE), byref(self._handle)
        )
        _check(status, "a decoder")
        self._spare: list[c_void_p] = []

    def state(self) -> c_void_p:
        """Device buffers for a batch under way; reused."""
        if self._spare:
            return self._spare.pop()
        state = c_void_p()
        _check(self._batches.nvjpegJpegStateCreate(self._handle, byref(state)), "a state")
        return state

    def give_back(self, state: c_void_p) -> None:
        """Return a state whose batch is complete."""
        self._spare.append(state)

    def end(self, state: c_void_p) -> None:
        """Destroy a state whose contents are undefined."""
        self._batches.nvjpegJpegStateDestroy(state)

    def header(self) -> c_void_p:
        """Memory for the contents of an image's header."""
        header = c_void_p()
        _check(self._batches.nvjpegJpegStreamCreate(self._handle, byref(header)), "a header")
        return header

    def end_header(self, header: c_void_p) -> None:
        """Free the memory of a header."""
        self._batches.nvjpegJpegStreamDestroy(header)

    def size(self, encoded: Tensor, header: c_void_p) -> tuple[int, int] | None:
        """Height and width, by the header; None for what the hardware does not decode."""
        functions, supported = self._headers, c_int(-1)
        width, height = c_uint(), c_uint()
        bytes_ = (c_void_p(encoded.data_ptr()), c_size_t(encoded.numel()))
        steps = (
            lambda: functions.nvjpegJpegStreamParseHeader(self._handle, *bytes_, header),
            lambda: functions.nvjpegDecodeBatchedSupported(self._handle, header, byref(supported)),
            lambda: functions.nvjpegJpegStreamGetFrameDimensions(
                header, byref(width), byref(height)
            ),
        )
        for step in steps:
            status = step()
            if status in ABOUT_THE_IMAGE:
                return None
            _check(status, "a header")
        return (height.value, width.value) if supported.value == 0 else None

    def decode(
        self, state: c_void_p, encoded: Sequence[Tensor], images: Sequence[Tensor], stream: int
    ) -> None:
        """Decode a batch into its images, uint8 [3, height, width] each, and wait for the engines.

        They write at once, whatever the stream has still to do: no earlier work may use the images'
        memory. The images are complete when the stream has come so far.
        """
        count = len(encoded)
        data = (c_void_p * count)(*(content.data_ptr() for content in encoded))
        lengths = (c_size_t * count)(*(content.numel() for content in encoded))
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
        if status in ABOUT_THE_IMAGE:
            raise Refused(f"nvJPEG: status {status}")
        _check(status, "a batch")


class HardwareDecoder:
    """Decodes batches one by one, on the stream that is current. Not thread-safe.

    `idle_cpu_s` are CPU seconds of waiting for the engines so far. NvjpegError when the library
    cannot allocate.
    """

    def __init__(self, library: _Library, device: torch.device) -> None:
        self._library, self._device = library, device
        self._header = library.header()
        self._states = [library.state() for _ in range(STATES)]
        self._done = [torch.cuda.Event(blocking=True) for _ in range(STATES)]
        self._turns = itertools.cycle(range(STATES))
        self.idle_cpu_s = 0.0

    def __call__(self, encoded: list[Tensor]) -> list[Tensor | None]:
        """Baseline JPEGs' bytes, uint8 [bytes] each, as uint8 [3, height, width] on the device.

        None for one that the hardware does not decode. They are there when the current stream has
        come so far; until then the bytes must stay. Refused where the batch has an image that turns
        out not to be for it: nothing is under way then. NvjpegError, OutOfMemoryError.
        """
        sizes = [self._library.size(content, self._header) for content in encoded]
        fitting = [(content, size) for content, size in zip(encoded, sizes, strict=True) if size]
        if not fitting:
            return [None] * len(encoded)
        lengths = [_aligned(3 * height * width) for _, (height, width) in fitting]
        flat = torch.empty(sum(lengths), dtype=torch.uint8, device=self._device)
        images = [
            part[: 3 * height * width].view(3, height, width)
            for part, (_, (height, width)) in zip(torch.split(flat, lengths), fitting, strict=True)
        ]
        self._decode([content for content, _ in fitting], images)
        made = iter(images)
        return [next(made) if size else None for size in sizes]

    def close(self) -> None:
        """Return what the next decoder can use, when this one's batches are done."""
        if not self._states:
            return
        for state, done in zip(self._states, self._done, strict=True):
            done.synchronize()
            self._library.give_back(state)
        self._library.end_header(self._header)
        self._states, self._done = [], []

    def _decode(self, encoded: Sequence[Tensor], images: Sequence[Tensor]) -> None:
        turn = next(self._turns)
        self._done[turn].synchronize()  # of the batch that had this state before
        stream = torch.cuda.current_stream(self._device)
        began_s = time.thread_time()
        try:
            self._library.decode(self._states[turn], encoded, images, stream.cuda_stream)
        except Exception:
            torch.cuda.synchronize(self._device)  # some of it may be under way
            self._library.end(self._states[turn])
            self._states[turn] = self._library.state()
            raise
        finally:
            self.idle_cpu_s += time.thread_time() - began_s
        self._done[turn].record(stream)


def hardware_decoder(device: torch.device) -> HardwareDecoder | None:
    """A decoder for a device; None without the hardware or the library."""
    with torch.cuda.device(device):
        library = _opened(device.index)
        try:
            return HardwareDecoder(library, device) if library else None
        except NvjpegError:
            return None


@cache
def _opened(index: int) -> _Library | None:
    """The library for a device, once per process; torchvision ships it."""
    packages = Path(torchvision.__file__).parent.parent
    places = ("torchvision.libs/libnvjpeg*.so*", "nvidia/*/lib/libnvjpeg.so*")
    for path in (path for place in places for path in sorted(packages.glob(place))):
        try:
            return _Library(str(path))
        except (OSError, AttributeError, NvjpegError):
            continue
    return None


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _check(status: int, what: str) -> None:
    if status == NO_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory: nvJPEG has none for {what}")
    if status != SUCCESS:
        raise NvjpegError(f"nvJPEG cannot make {what}: status {status}")
