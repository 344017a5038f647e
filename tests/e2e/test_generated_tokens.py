"""Generated text is learnable, no better than its entropy, and the same everywhere."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from e2e.data.datasets import Options, open_data, tokens
from e2e.data.datasets.tokens import SUCCESSORS, TokenFeed, entropy, rows_of_tokens
from e2e.data.types import Data
from microbench.errors import UserError

CPU = torch.device("cpu")
VOCABULARY = 251


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of a vocabulary that no other test uses: what is made is kept."""
    monkeypatch.setattr(tokens, "TRAIN_TOKENS", 1 << 14)


def data(loader: str | None = None, **options: Any) -> Data:
    return open_data("generated", Options((64,), tokens=VOCABULARY, loader=loader, **options))


@pytest.mark.parametrize("vocabulary", [4, 64, 50_257])
def test_the_entropy_is_that_of_the_chain_that_is_drawn(vocabulary: int) -> None:
    """Counted in long text: the surprise of each token after the one before it."""
    assert 0 < entropy(vocabulary) <= math.log(SUCCESSORS)
    if vocabulary > 64:
        assert entropy(vocabulary) == entropy(SUCCESSORS)
        return
    text = rows_of_tokens(1000, 256, vocabulary, 1)
    pairs, firsts = Counter[tuple[int, int]](), Counter[int]()
    for row in text.tolist():
        pairs.update(pairwise(row))
        firsts.update(row[:-1])
    counted = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / pairs.total()
    assert counted == pytest.approx(entropy(vocabulary), rel=0.01)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(2, 300), st.integers(1, 2))
def test_tokens_are_of_the_vocabulary_and_the_same_each_time(
    rows: int, length: int, vocabulary: int, stream: int
) -> None:
    text = rows_of_tokens(rows, length, vocabulary, stream)
    assert text.shape == (rows, length)
    assert text.min() >= 0
    assert text.max() < vocabulary
    assert np.array_equal(text, rows_of_tokens(rows, length, vocabulary, stream))


def test_both_parts_walk_through_one_chain() -> None:
    train, kept = (rows_of_tokens(400, 256, 64, stream) for stream in (1, 2))
    assert not np.array_equal(train, kept)
    after = [set((rows[:, 1:][rows[:, :-1] == 7]).tolist()) for rows in (train, kept)]
    assert after[0] == after[1]
    assert len(after[0]) == SUCCESSORS


def test_an_epoch_has_every_row_once() -> None:
    rows = torch.arange(10).reshape(10, 1)
    feed = TokenFeed(rows, 4, seed=3)
    seen = torch.cat([feed.place(feed.fetch())[0] for _ in range(5)]).flatten()
    assert sorted(seen[:10].tolist()) == sorted(seen[10:].tolist()) == list(range(10))


@pytest.mark.parametrize("loader", [None, "pinned"])
@pytest.mark.parametrize(("batch", "ranks", "steps"), [(1, 3, 4), (9, 2, 2), (4, 1, 1)])
def test_ranks_share_one_order(batch: int, ranks: int, steps: int, loader: str | None) -> None:
    def rows(batch: int, share: tuple[int, int]) -> list[torch.Tensor]:
        feed = data(loader, share=share).feed(batch, CPU, 7)
        return [feed.place(feed.fetch())[0] for _ in range(steps)]

    parts = [rows(batch, (rank, ranks)) for rank in range(ranks)]
    for whole, *own in zip(rows(batch * ranks, (0, 1)), *parts, strict=True):
        assert torch.equal(torch.stack(own, dim=1).flatten(0, 1), whole)


def test_held_out_rows_are_others_and_are_their_own_targets() -> None:
    opened = data()
    kept = list(opened.held_out(16, CPU, count=40))
    assert [len(inputs) for inputs, _ in kept] == [16, 16, 8]
    assert all(inputs is targets and inputs.shape[1:] == (64,) for inputs, targets in kept)
    assert opened.generated
    assert opened.classes == VOCABULARY


def test_images_and_tokens_are_not_mixed_up() -> None:
    with pytest.raises(UserError, match="--loader torchvision reads images"):
        data("torchvision")
    with pytest.raises(UserError, match="has images"):
        open_data("made", Options((64,), tokens=256))
