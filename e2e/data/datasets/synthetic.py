"""One fixed random batch on the device: training without the cost of data."""

from __future__ import annotations

import torch
from torch import Tensor

from e2e.data.loaders.device_copy import FixedBatch, PinnedBatch
from e2e.data.types import Data, Loader, LoadSpec, Options

USUAL_CLASSES = 1000  # where neither network nor user says how many
SAMPLES_APART, MAX_SEED = 1 << 24, 1 << 63  # seeds of two batches are so many samples apart


class Synthetic(Data):
    """Images of normal noise with random classes, or random tokens: a batch to memorise.

    The base of all data: any network can be fed by noise of its samples.
    """

    def __init__(
        self, options: Options, name: str = "synthetic", classes: int | None = None
    ) -> None:
        usual = options.tokens or options.classes or USUAL_CLASSES
        super().__init__(name, options, usual if classes is None else classes)

    def load(self, spec: LoadSpec) -> Loader:
        """The same batch for ever, by the seed: float32 [batch, 3, H, W] or int64 [batch, T].

        It stays on the device; with loader "pinned" it is copied from pinned memory at each step:
        colour images as bytes, which files become.
        """
        if spec.loader == "pinned":
            coded = len(self.sample) == 3 and self.sample[0] == 3
            made = self._batch(spec.batch, spec.seed, torch.device("cpu"), coded=coded)
            return PinnedBatch(*made, spec.device)
        return FixedBatch(*self._batch(spec.batch, spec.seed, spec.device))

    def _batch(
        self, batch: int, seed: int, device: torch.device, *, coded: bool = False
    ) -> tuple[Tensor, Tensor]:
        """This rank's samples of a batch that all ranks have together.

        Each sample has a seed of its own: a rank makes no more than it keeps.
        """
        tokens, (rank, ranks) = self.options.tokens, self.options.share
        generator = torch.Generator(device)
        kind = torch.uint8 if coded else torch.float32 if tokens is None else torch.int64
        inputs = torch.empty((batch, *self.sample), dtype=kind, device=device)
        for i, number in enumerate(range(rank, batch * ranks, ranks)):
            generator.manual_seed((seed * SAMPLES_APART + number + 1) % MAX_SEED)
            if kind.is_floating_point:
                inputs[i].normal_(generator=generator)
            else:
                inputs[i].random_(0, tokens or 256, generator=generator)
        if tokens is not None:
            return inputs, inputs
        generator.manual_seed(seed)
        targets = torch.randint(self.classes, (batch * ranks,), generator=generator, device=device)
        return inputs, targets[rank::ranks].contiguous()
