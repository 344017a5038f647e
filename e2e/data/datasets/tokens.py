"""Generated text: rows of tokens in which a language model has something to learn.

Each token is followed by one of SUCCESSORS different ones, the kth with a probability proportional
to 1 / k: a Markov chain of order one. No model predicts new text better than the
chain's entropy, so the best possible loss on held-out text is known: 2.36 nats a token. On text
that it sees again a network can do better, by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e2e.data.datasets.synthetic import Synthetic
from e2e.data.loaders import FIXED
from e2e.data.loaders.resident import Rows
from e2e.data.types import Loader, LoadSpec, Options
from microbench.errors import UserError

SEED = 20_261_125  # of the data set, independent of a run's seed
CHAIN_STREAM, TRAIN_STREAM, HELD_OUT_STREAM = 0, 1, 2  # of random numbers
SUCCESSORS = 16
USED = 4096  # of the vocabulary at most: a short training meets each token often
TRAIN_TOKENS, HELD_OUT_TOKENS = 1 << 25, 1 << 17  # at least one row each


def entropy(vocabulary: int) -> float:
    """The mean surprise of a token that follows another, in nats: the least loss on new text."""
    odds = _odds(min(vocabulary, USED))
    return float(-(odds * np.log(odds)).sum())


def _odds(used: int) -> NDArray[np.float64]:
    """The probabilities of a token's successors."""
    odds = 1 / np.arange(1, min(SUCCESSORS, used) + 1)
    return odds / odds.sum()


def rows_of_tokens(rows: int, length: int, vocabulary: int, stream: int) -> NDArray[np.int64]:
    """Tokens [rows, length], each row a walk through the chain from anywhere.

    A stream has other rows than another; both walk through the same chain.
    """
    used = min(vocabulary, USED)
    odds = _odds(used)
    numbers = _numbers(CHAIN_STREAM)
    # Different steps from a place of the token's own, so all successors of a token are different.
    chain = numbers.integers(used, size=(used, 1)) + numbers.permutation(used)[: len(odds)]
    chain %= used
    drawn = _numbers(stream)
    tokens = np.empty((length, rows), dtype=np.int64)
    tokens[0] = drawn.integers(used, size=rows)
    limits = np.cumsum(odds)[:-1]
    for place in range(1, length):
        which = np.searchsorted(limits, drawn.random(rows), side="right")
        tokens[place] = chain[tokens[place - 1], which]
    return np.ascontiguousarray(tokens.T)


def _numbers(stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((SEED, stream))))


@lru_cache(maxsize=2)
def _parts(length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """(Training, held-out) tokens, int64 [N, length]."""
    train, kept = (max(1, tokens // length) for tokens in (TRAIN_TOKENS, HELD_OUT_TOKENS))
    return (
        torch.as_tensor(rows_of_tokens(train, length, vocabulary, TRAIN_STREAM)),
        torch.as_tensor(rows_of_tokens(kept, length, vocabulary, HELD_OUT_STREAM)),
    )


class GeneratedTokens(Synthetic):
    """Generated text of a vocabulary as a `Data`: `sample` is (T,), the tokens of a row.

    UserError for a loader, which text does not need, other than those of one fixed batch.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options, "generated")
        self._check(options.loader)
        self._train, self._kept = _parts(self.sample[0], self.classes)
        self.train_samples, self.held_out_samples = len(self._train), len(self._kept)
        least = entropy(self.classes)
        self._notes[f"generated text: the best possible held-out loss is {least:.3f}"] = None

    def load(self, spec: LoadSpec) -> Loader:
        """As `Data.load`: int64 [batch, T] that stay on the device, in shuffled epochs."""
        self._check(spec.loader)
        if spec.loader in FIXED:
            return super().load(spec)
        return Rows(self._train.to(spec.device), spec.batch, spec.seed, self.options.share)

    def kept_batch(self, numbers: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """As `Data.kept_batch`: the inputs are the targets too."""
        tokens = self._kept[numbers].to(device)
        return tokens, tokens

    def _check(self, loader: str) -> None:
        if loader not in ("", "resident", *FIXED):
            raise UserError(f"--loader {loader} reads images; generated text is on the device")
