"""Generated text is learnable, no better than its entropy, and the same everywhere."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from e2e.data.datasets import Options, open_data
from e2e.data.datasets.tokens import SUCCESSORS, TokenFeed, entropy, rows_of_tokens
from e2e.data.types import Data
from microbench.errors import UserError

CPU = torch.device("cpu")


def data(loader: str | None = None) -> Data:
    return open_data("generated", Options((64,), tokens=256, loader=loader))


@pytest.mark.parametrize("vocabulary", [4, 64, 300, 50_257])
def test_the_entropy_is_that_of_the_chain_that_is_drawn(vocabulary: int) -> None:
    """Counted in long text: the surprise of each token after the one before it."""
    assert 0 < entropy(vocabulary) <= math.log(SUCCESSORS)
    if vocabulary > 64:
        assert entropy(vocabulary) == entropy(SUCCESSORS)
        return
    tokens = rows_of_tokens(2000, 256, vocabulary, 1)
    pairs, firsts = Counter[tuple[int, int]](), Counter[int]()
    for row in tokens.tolist():
        pairs.update(pairwise(row))
        firsts.update(row[:-1])
    counted = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / pairs.total()
    assert counted == pytest.approx(entropy(vocabulary), rel=0.01)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(2, 300), st.integers(1, 2))
def test_tokens_are_of_the_vocabulary_and_the_same_each_time(
    rows: int, length: int, vocabulary: int, stream: int
) -> None:
    tokens = rows_of_tokens(rows, length, vocabulary, stream)
    assert tokens.shape == (rows, length)
    assert tokens.min() >= 0
    assert tokens.max() < vocabulary
    assert np.array_equal(tokens, rows_of_tokens(rows, length, vocabulary, stream))


def test_both_parts_walk_through_one_chain_with_its_odds() -> None:
    train, kept = (rows_of_tokens(400, 256, 64, stream) for stream in (1, 2))
    assert not np.array_equal(train, kept)
    after = [Counter[int](), Counter[int]()]
    for found, tokens in zip(after, (train, kept), strict=True):
        follows = tokens[:, 1:][tokens[:, :-1] == 7]
        found.update(follows.tolist())
    assert set(after[1]) <= set(after[0])
    assert len(after[0]) == SUCCESSORS
    surprise = -sum(
        count / after[1].total() * math.log(after[0][token] / after[0].total())
        for token, count in after[1].items()
    )
    assert surprise == pytest.approx(entropy(64), abs=0.1)


def test_an_epoch_has_every_row_once() -> None:
    rows = torch.arange(10).reshape(10, 1)
    feed = TokenFeed(rows, 4, seed=3)
    seen = torch.cat([feed.place(feed.fetch())[0] for _ in range(5)]).flatten()
    assert sorted(seen[:10].tolist()) == sorted(seen[10:].tolist()) == list(range(10))


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, "pinned"]))
def test_ranks_share_one_order(batch: int, ranks: int, steps: int, loader: str | None) -> None:
    def rows(batch: int, share: tuple[int, int]) -> list[torch.Tensor]:
        opened = open_data("generated", Options((64,), tokens=256, loader=loader, share=share))
        feed = opened.feed(batch, CPU, 7)
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
    assert opened.classes == 256


@pytest.mark.parametrize("loader", ["torchvision", "dali"])
def test_a_loader_of_images_is_refused(loader: str) -> None:
    with pytest.raises(UserError, match=f"--loader {loader} reads images"):
        data(loader)


def test_data_of_images_is_refused_for_a_network_of_tokens() -> None:
    with pytest.raises(UserError, match="has images"):
        open_data("made", Options((64,), tokens=256))
