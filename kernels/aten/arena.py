"""Memory that the arguments of many calls share, one call at a time, and random values in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.aten.call import TensorSpec
from kernels.aten.distant import Held

ALIGNMENT_BYTES = 512  # of an argument's beginning, as torch's allocator aligns on CUDA
READ, WRITTEN = "read", "written"
_CHUNK = 1 << 24  # elements drawn at once for types that torch cannot draw


@dataclass(frozen=True)
class Area:
    """One flat buffer of a pool: for arguments that are only read, or written, of one type."""

    use: str  # READ or WRITTEN
    device: torch.device
    dtype: torch.dtype

    def aligned(self, elements: int) -> int:
        """`elements` rounded up to where the next argument may begin."""
        unit = max(1, ALIGNMENT_BYTES // self.dtype.itemsize)
        return -(-elements // unit) * unit


class Pool:
    """The shared memory of all calls that are replayed on one device.

    Every call takes its arguments from the beginning of the areas, so together they need what the
    largest needs in each area. Values that are read are the same for all, and never change; what a
    call writes is the next one's: `Replay.restore` before a block of launches makes it fresh.
    Areas grow when a call needs more; earlier replays then keep the smaller ones alive, unless
    `kernels.aten.reserve` has made room for all of them first.
    """

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self.device = device
        self._flats: dict[Area, Tensor] = {}
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self.held = Held()  # results that were let go would be written over

    @property
    def bytes(self) -> int:
        """Bytes that the areas take, on all devices together."""
        return sum(flat.numel() * flat.itemsize for flat in self._flats.values())

    def place(self, spec: TensorSpec) -> torch.device:
        """Where a tensor recorded on "cuda" or "cpu" is made."""
        return self.device if spec.device == "cuda" else torch.device("cpu")

    def grow(self, needs: Mapping[Area, int]) -> None:
        """Have at least so many elements in each area."""
        for area, elements in needs.items():
            flat = self._flats.get(area)
            if flat is not None and flat.numel() >= elements:
                continue
            del flat
            self._flats.pop(area, None)  # before the larger one is made
            fresh = torch.empty(elements, dtype=area.dtype, device=area.device)
            fill(fresh, self.generator(area.device))
            self._flats[area] = fresh

    def read_only(self) -> list[Tensor]:
        """The flat buffers that no call writes."""
        return [flat for area, flat in self._flats.items() if area.use == READ]

    def beginning(self, area: Area, elements: int) -> Tensor:
        """The first elements of an area that has them, flat."""
        return self._flats[area][:elements]

    def view(self, area: Area, offset: int, spec: TensorSpec) -> Tensor:
        """A tensor in an area's memory, `offset` elements from its beginning; no view to torch."""
        return _laid_out(self._flats[area], offset, spec)

    def apart(self, area: Area, spec: TensorSpec) -> Tensor:
        """A tensor as in an area, in memory that nothing else has; no view to torch."""
        flat = torch.empty(spec.span, dtype=area.dtype, device=area.device)
        fill(flat, self.generator(area.device))
        return _laid_out(flat, 0, spec)

    def generator(self, device: torch.device) -> torch.Generator:
        """The source of random numbers for tensors on a device, seeded by the pool's seed."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _laid_out(flat: Tensor, offset: int, spec: TensorSpec) -> Tensor:
    empty = torch.empty(0, dtype=flat.dtype, device=flat.device)
    return empty.set_(flat.untyped_storage(), offset, spec.shape, spec.stride)


def total(needs: Iterable[Mapping[Area, int]]) -> dict[Area, int]:
    """What all calls need, one at a time: the most in each area."""
    most: dict[Area, int] = {}
    for need in needs:
        for area, elements in need.items():
            most[area] = max(most.get(area, 0), elements)
    return most


def fill(tensor: Tensor, rng: torch.Generator) -> None:
    """Fresh content by type: normal values, random truth values, integers 0."""
    if tensor.is_floating_point() or tensor.is_complex():
        fill_normal(tensor, rng)
    elif tensor.dtype == torch.bool:
        tensor.bernoulli_(0.5, generator=rng)
    else:
        tensor.zero_()


def fill_normal(tensor: Tensor, rng: torch.Generator) -> None:
    """Normal values of mean 0 and standard deviation 1, rounded to the tensor's type."""
    if tensor.itemsize > 1:
        tensor.normal_(generator=rng)
        return
    for piece in tensor.view(-1).split(_CHUNK):  # torch does not draw 8-bit values
        drawn = torch.empty(piece.shape, dtype=torch.float32, device=piece.device)
        piece.copy_(drawn.normal_(generator=rng))


def writable(tensor: Tensor) -> Tensor:
    """The tensor without elements that share memory, which torch refuses to write."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
