"""Memory that the arguments of many calls share, one call at a time, and random values in it.

Launched again and again, a call finds small arguments in the device's cache, and writes its results
where the last ones were; in a step it often does not. So `ColdL2` arguments alternate between
places of a pool that are together larger than the cache, and results are held for a while, which
makes the next ones use other memory.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from e2e.aten.call import TensorSpec

ALIGNMENT_BYTES = 512  # of an argument's beginning, as torch's allocator aligns on CUDA
ROUND_CACHES = 4.0  # a round of rotations touches this many times what the cache holds,
MOST_ROTATIONS = 128  # unless it would have more rotations than these
_CHUNK = 1 << 24  # elements drawn at once for types that torch cannot draw


class Area(NamedTuple):
    """One flat buffer of a pool, for arguments of one dtype that are only read, or `written`."""

    written: bool
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class ColdL2:
    """What the cache does not hold: arguments, by their places in `Call.tensors`, and whether
    `results` leave it before they are freed. `cache_bytes` is the size of the cache in bytes.
    """

    arguments: tuple[int, ...] = ()
    results: bool = False
    cache_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.arguments or self.results)

    @property
    def key(self) -> str:
        """Part of a name, which differs by what is cold: "distant 0,1,results"; "" for nothing."""
        named = [*map(str, self.arguments), *(["results"] if self.results else [])]
        return f"distant {','.join(named)}" if named else ""

    def rotations(self, rotation_bytes: int) -> int:
        """Places to alternate between, of `rotation_bytes` each, so that none is still cached:
        together ROUND_CACHES = 4 times the cache, at most MOST_ROTATIONS = 128 of them.
        """
        places = math.ceil(ROUND_CACHES * self.cache_bytes / max(1, rotation_bytes))
        return max(1, min(MOST_ROTATIONS, places))


WARM = ColdL2()


class Pool:
    """The shared memory of all calls that are replayed on one device.

    Every call takes its arguments from the beginning of the areas, so together they need what the
    largest needs in each area. Values that are read are the same for all, and never change; what
    one call writes, the next one finds: `Replay.restore` before a block of launches makes it fresh.
    Areas grow when a call needs more; earlier replays then keep the smaller ones alive, unless
    `reserve` has made room for all of them first.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flats: dict[Area, Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}
        # The latest results of all calls: those that were let go would be written over.
        self._held: deque[tuple[object, int]] = deque()
        self._held_bytes = 0

    def area(self, spec: TensorSpec, written: bool) -> Area:
        """The area for an argument; what was recorded on "cuda" is on the pool's device."""
        device = self.device if spec.device == "cuda" else torch.device("cpu")
        return Area(written, device, spec.torch_dtype)

    def grow(self, needs: Mapping[Area, int]) -> None:
        """Have at least `needs` elements in each area, new memory filled with random values.
        torch.OutOfMemoryError where they do not fit.
        """
        for area, elements in needs.items():
            if area in self.flats and self.flats[area].numel() >= elements:
                continue
            self.flats.pop(area, None)  # before the larger one is made
            fresh = torch.empty(elements, dtype=area.dtype, device=area.device)
            fill(fresh, self.generator(area.device))
            self.flats[area] = fresh

    def view(self, area: Area, offset: int, spec: TensorSpec) -> Tensor:
        """A tensor in an area's memory, `offset` elements from its beginning, which autograd does
        not treat as a view. KeyError for an area that has not grown yet.
        """
        flat = self.flats[area]
        empty = torch.empty(0, dtype=flat.dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), offset, spec.shape, spec.stride)

    def generator(self, device: torch.device) -> torch.Generator:
        """The source of random numbers for tensors on a device, always from the same seed."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]

    def rotating(
        self, launches: Sequence[Callable[[], object]], cold: ColdL2
    ) -> Callable[[], object]:
        """A launch that runs the next of `launches` at each call, round and round. Where results
        are cold, up to four times the cache of them are held.
        """
        next_launch = itertools.cycle(launches).__next__
        if not cold.results:
            return lambda: next_launch()()
        most_bytes = int(ROUND_CACHES * cold.cache_bytes)

        def launch() -> None:
            result = next_launch()()
            size = sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self._held.append((result, size))
            self._held_bytes += size
            while self._held_bytes > most_bytes and len(self._held) > 1:
                self._held_bytes -= self._held.popleft()[1]

        return launch


def fill(tensor: Tensor, rng: torch.Generator) -> None:
    """Fresh content by dtype, in place: normal values, random truth values, integers 0."""
    if tensor.is_floating_point() or tensor.is_complex():
        fill_normal(tensor, rng)
    elif tensor.dtype == torch.bool:
        tensor.bernoulli_(0.5, generator=rng)
    else:
        tensor.zero_()


def fill_normal(tensor: Tensor, rng: torch.Generator) -> Tensor:
    """Normal values of mean 0 and standard deviation 1, rounded to the tensor's dtype, in place."""
    if tensor.itemsize > 1:
        return tensor.normal_(generator=rng)
    flat: Any = tensor.view(-1)
    for piece in flat.split(_CHUNK):  # torch does not draw 8-bit values
        drawn = torch.empty(piece.shape, dtype=torch.float32, device=piece.device)
        piece.copy_(drawn.normal_(generator=rng))
    return tensor


def writable(tensor: Tensor) -> Tensor:
    """The tensor with size 1 where its stride is 0: torch refuses to write elements that share
    memory.
    """
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
