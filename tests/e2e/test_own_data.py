"""A user's own data: what is trained on, and the one line for each mistake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from samples.fetching import drawn, message
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from e2e.data.datasets import Options, open_data
from e2e.data.types import Data, LoadSpec

CPU = torch.device("cpu")
FEATURES = 5


def numbered(count: int = 12) -> TensorDataset:
    """Items of their number, each of one of three classes."""
    numbers = torch.arange(count)
    return TensorDataset(numbers.float()[:, None].expand(-1, FEATURES).contiguous(), numbers % 3)


class Endless(IterableDataset[Any]):
    """Seven items, then an end."""

    def __iter__(self) -> Iterator[Any]:
        return iter([numbered()[number] for number in range(7)])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Data]:
    """Opens what a function in a module of that name returns, as a user's own data."""

    def opened(make: Any, **options: Any) -> Data:
        module = ModuleType("mine")
        module.items = make if callable(make) else lambda: make  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mine", module)
        given = {"sample": (FEATURES,), "classes": 3} | options
        return open_data("mine:items", Options(**given))

    return opened


def numbers(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([inputs[:, 0] for inputs, _ in batches]).int().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_comes_in_shuffled_epochs(own: Any, workers: int) -> None:
    data = own(numbered())
    spec = LoadSpec(4, CPU, 1, "dataloader", workers)
    batches = drawn(data.load(spec), 6)
    found = numbers(batches)
    assert sorted(found[:12]) == sorted(found[12:]) == list(range(12))
    assert found[:12] != found[12:]
    assert found == numbers(drawn(data.load(LoadSpec(4, CPU, 1)), 6)), "whatever the workers"
    assert all(targets.equal(inputs[:, 0].long() % 3) for inputs, targets in batches)
    assert (data.train_samples, list(data.held_out(4, CPU))) == (None, [])


def test_iterable_datasets_begin_again_pairs_hold_out_and_a_dataloader_s_collate_fn_counts(
    own: Any,
) -> None:
    for workers in (0, 1):
        loader = own(Endless()).load(LoadSpec(3, CPU, 1, workers=workers))
        assert numbers(drawn(loader, 5)) == [*range(6), *range(6), *range(3)]
    data = own((numbered(), numbered(5)), share=(1, 2))
    assert (data.train_samples, data.held_out_samples, data.classes) == (12, 5, 3)
    assert numbers(list(data.held_out(2, CPU))) == [2, 3]

    def doubled(items: list[Any]) -> Any:
        inputs, targets = default_collate(items)
        return [2 * inputs, targets]

    loader = DataLoader(numbered(), batch_size=5, collate_fn=doubled)
    found = numbers(drawn(own(loader).load(LoadSpec(3, CPU, 1, workers=1)), 4))
    assert sorted(found) == [2 * number for number in range(12)]


def test_tokens_are_their_own_targets(own: Any) -> None:
    class Rows(Dataset[Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Tensor:
            return torch.full((8,), number)

    data = own(Rows(), sample=(8,), tokens=10)
    ((tokens, targets),) = drawn(data.load(LoadSpec(6, CPU, 1)), 1)
    assert sorted(tokens[:, 0].tolist()) == list(range(6))
    assert targets.equal(tokens)
    assert "mine:items has token 5; the network has 4" in message(
        lambda: drawn(own(Rows(), sample=(8,), tokens=4).load(LoadSpec(6, CPU, 1)), 1)
    )


class Broken(Dataset[Any]):
    """Its first item is good."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        if number:
            raise KeyError("no such row")
        return numbered()[0]


def raising() -> None:
    raise OSError("no file")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (raising, "--data mine:items: mine:items() raised OSError: no file"),
        (3, "of type int; it must be a Dataset"),
        ([], "returned data without an item"),
        ((numbered(), Endless()), "a pair of that and of what is held out, which has a length"),
        ([(torch.zeros(FEATURES), 7)], "--data mine:items has class 7; the network has 3"),
        ([torch.zeros(FEATURES)], "they must be (inputs, targets)"),
        ([(torch.zeros(2, 2), 0)], "has inputs of 2x2, the network takes 5 (--input)"),
        ([(torch.zeros(FEATURES).byte(), 0)], "has inputs of uint8, the network takes float32"),
    ],
)
def test_each_mistake_has_one_line(own: Any, make: Any, said: str) -> None:
    assert said in message(lambda: own(make))


def test_what_an_item_raises_in_a_worker_is_one_line(own: Any) -> None:
    for workers in (0, 1):
        said = message(lambda: drawn(own(Broken()).load(LoadSpec(2, CPU, 1, workers=workers)), 1))  # noqa: B023
        assert said == "--data mine:items: an item raised KeyError: 'no such row'"
    few = own(Endless()).load(LoadSpec(9, CPU, 1))
    assert message(lambda: next(few)) == "--data mine:items has no batch of 9 items"
    assert "reads images" in message(lambda: own(numbered(), loader="resident"))
    assert "could be read cold" in message(
        lambda: own(numbered()).load(LoadSpec(2, CPU, 1, cold=True))
    )
    assert "GPUs cannot share" in message(lambda: own(Endless(), share=(0, 2)))
    assert "--data mine:nothing: mine has no 'nothing'" in message(
        lambda: open_data("mine:nothing", Options((3,)))
    )
