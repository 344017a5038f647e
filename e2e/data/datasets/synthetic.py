"""One fixed random batch on the device: training without the cost of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from e2e.data.loaders.device_copy import FixedBatch, PinnedBatch
from e2e.data.types import ALL, Loader, LoadSpec, Share

USUAL_CLASSES = 1000  # where neither network nor user says how many
HELD_OUT_BATCHES = 4
HELD_OUT_SEED = 0x0DD5EED  # no run's seed, as those count from 1


@dataclass(frozen=True)
class Synthetic:
    """Images of normal noise with random classes, or random tokens.

    A network can only memorise the one batch: on held-out batches its accuracy is that of guessing.
    """

    sample: tuple[int, ...]
    classes: int
    tokens: int | None = None
    share: Share = ALL

    name = "synthetic"
    train_samples: int | None = None
    held_out_samples: int | None = None
    notes: tuple[str, ...] = ()

    def load(self, spec: LoadSpec) -> Loader:
        """The same batch for ever, by the seed: float32 [batch, 3, H, W] or int64 [batch, T].

        It stays on the device; with loader "pinned" it is copied from pinned memory at each step.
        """
        if spec.loader == "pinned":
            return PinnedBatch(*self._own(self._bytes, spec), spec.device)
        return FixedBatch(*self._own(partial(self._batch, device=spec.device), spec))

    def _own(
        self, make: Callable[..., tuple[Tensor, Tensor]], spec: LoadSpec
    ) -> tuple[Tensor, Tensor]:
        """This rank's samples of a batch that all ranks have together."""
        rank, ranks = self.share
        inputs, targets = make(spec.batch * ranks, seed=spec.seed)
        if ranks == 1:
            return inputs, targets
        own = inputs[rank::ranks].contiguous()
        return own, own if targets is inputs else targets[rank::ranks].contiguous()

    def held_out(
        self, batch: int, device: torch.device, count: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """HELD_OUT_BATCHES batches, the same ones at every call; `count` changes nothing."""
        for i in range(HELD_OUT_BATCHES):
            yield self._batch(batch, HELD_OUT_SEED + i, device)

    def _batch(self, batch: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        shape = (batch, *self.sample)
        if self.tokens is not None:
            tokens = torch.randint(self.tokens, shape, generator=generator, device=device)
            return tokens, tokens
        images = torch.randn(shape, generator=generator, device=device)
        return images, torch.randint(self.classes, (batch,), generator=generator, device=device)

    def _bytes(self, batch: int, seed: int) -> tuple[Tensor, Tensor]:
        """Colour images as bytes [N, 3, H, W], which files become; anything else as it is."""
        if len(self.sample) != 3 or self.sample[0] != 3:
            return self._batch(batch, seed, torch.device("cpu"))
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, *self.sample)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        return images, torch.randint(self.classes, (batch,), generator=generator)
