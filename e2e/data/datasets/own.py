"""A user's own data, by "module:function": for samples that are no image files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    default_collate,  # pyright: ignore[reportUnknownVariableType]
)

from e2e.case import OWN, USUAL_LOADER
from e2e.data.datasets.synthetic import USUAL_CLASSES, Synthetic
from e2e.data.loaders import FIXED, check_name
from e2e.data.loaders.device_copy import Placer
from e2e.data.loaders.workers import Shuffled, Workers
from e2e.data.types import ALL, IMAGENET, Loader, LoadSpec, Options, laid_out
from e2e.networks.table import written
from kernels.messages import one_line, suggest
from microbench.errors import UserError
from microbench.network.networks import find_attribute, kind_of

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ItemSource:
    """A Dataset, how its items become a batch, and what its workers begin with.

    `count` is None for an IterableDataset.
    """

    dataset: Any
    collate: Callable[[list[Any]], object]
    on_start: Callable[[int], object] | None
    count: int | None


class Own(Synthetic):
    """What a user's function returns: a Dataset or a DataLoader, or two, the second held out.

    A batch is (inputs, targets); for a network of tokens also tokens alone. Of a DataLoader its
    dataset, collate_fn and worker_init_fn count: the order, batches and workers are halfway's.
    UserError, in one line, for anything that the network cannot be trained on.
    """

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(options, name)
        self._check_loader(options.loader)
        try:
            function = find_attribute(name)
        except UserError as error:
            near = suggest(name.partition(":")[0], USUAL_LOADER)
            raise UserError(f"--data {name}: {error}{near}") from None
        if not callable(function):
            raise UserError(f"--data {name} is {kind_of(function)}, not a function")
        made = self._called(f"{name}()", function)
        both = cast("tuple[object, ...]", made) if isinstance(made, tuple) else (made,)
        parts = [self._part(source) for source in both]
        if len(parts) > 2 or not all(part.count for part in parts[1:]):
            raise UserError(
                f"--data {name}: {name}() must return data to train on, or a pair of that and of "
                "what is held out, which has a length"
            )
        self._train, self._kept = parts[0], parts[1] if len(parts) == 2 else None
        if options.share != ALL and self._train.count is None:
            raise UserError(f"--data {name} has an order of its own, which GPUs cannot share")
        self.train_samples = self._train.count if self._kept else None
        self.held_out_samples = self._kept.count if self._kept else None
        if self._kept and not options.tokens:  # the network gets as many outputs then
            self.classes = len(getattr(self._train.dataset, "classes", range(self.classes)))
        self.checked(self._items(self._train, [0]))

    def load(self, spec: LoadSpec) -> Loader:
        """As `Data.load`: a Dataset in shuffled epochs, an IterableDataset over and over."""
        self._check_loader(spec.loader)
        if spec.loader in FIXED:
            return super().load(spec)
        if spec.cold:
            raise UserError(f"--data {self.name}: it is not known which files could be read cold")
        order: dict[str, Any] = dict(batch_size=spec.batch, drop_last=True)
        if (count := self._train.count) is not None:
            draws = Shuffled(count, spec.batch, spec.seed, self.options.share)
            order = dict(batch_sampler=([index for index, _ in some] for some in draws))
        return OwnLoader(self, self._train, spec, order)

    def kept_batch(self, numbers: Sequence[int], device: torch.device) -> Pair:
        """As `Data.kept_batch`, made in this process."""
        assert self._kept, "none is held out"
        inputs, targets = self.checked(self._items(self._kept, numbers))
        return inputs.to(device), targets.to(device)

    def checked(self, batch: object) -> Pair:
        """(inputs, targets) of a batch. UserError for what the network cannot take."""
        tokens, where = self.options.tokens, f"--data {self.name}"
        if tokens and isinstance(batch, Tensor):
            batch = (batch, batch)
        several = isinstance(batch, tuple | list)
        pair = [*cast("Iterable[object]", batch)] if several else []
        if len(pair) != 2 or not all(isinstance(tensor, Tensor) for tensor in pair):
            kind = kind_of(cast("object", batch))
            raise UserError(f"{where} has batches of {kind}; they must be (inputs, targets)")
        inputs, targets = cast("list[Tensor]", pair)
        if tuple(inputs.shape[1:]) != self.sample:
            raise UserError(
                f"{where} has inputs of {written(tuple(inputs.shape[1:])) or 'one number'}, the "
                f"network takes {written(self.sample)} (--input)"
            )
        if inputs.is_floating_point() == bool(tokens) or inputs.dtype == torch.uint8:
            kind, needed = str(inputs.dtype).partition(".")[2], "int64" if tokens else "float32"
            raise UserError(f"{where} has inputs of {kind}, the network takes {needed}")
        values = inputs if tokens else targets
        if not values.is_floating_point() and values.numel():
            ends = [int(end) for end in values.aminmax()]
            wrong = next((end for end in ends if not 0 <= end < self.classes), None)
            if wrong is not None:  # a GPU would be of no more use after it
                what = "token" if tokens else "class"
                raise UserError(f"{where} has {what} {wrong}; the network has {self.classes}")
        if tokens:
            return inputs.long(), targets.long()
        return inputs.float(), targets

    def _check_loader(self, loader: str) -> None:
        if loader:
            check_name(loader)
        if loader not in ("", OWN, *FIXED):
            fit = ", ".join((*FIXED, OWN))
            raise UserError(
                f"--loader {loader} reads images; for --data {self.name} there is {fit}"
            )

    def _part(self, made: object) -> ItemSource:
        name, collate, on_start = self.name, cast("Any", default_collate), None
        dataset: object = made
        if isinstance(made, DataLoader):
            loader = cast("Any", made)
            dataset, collate, on_start = loader.dataset, loader.collate_fn, loader.worker_init_fn
        if isinstance(dataset, IterableDataset):
            return ItemSource(dataset, collate, on_start, None)
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise UserError(
                f"--data {name}: {name}() returned {kind_of(dataset)}; it must be a Dataset "
                "(__getitem__ and __len__, or an IterableDataset) or a DataLoader"
            )
        count = len(cast("Sequence[Any]", dataset))
        if not count:
            raise UserError(f"--data {name}: {name}() returned data without an item")
        return ItemSource(dataset, collate, on_start, count)

    def _items(self, part: ItemSource, numbers: Sequence[int]) -> object:
        """A batch of these items; of an IterableDataset, of its first one."""

        def make() -> object:
            if part.count is None:
                return part.collate([next(iter(part.dataset))])
            return part.collate([part.dataset[number] for number in numbers])

        return self._called("an item", make)

    def _called(self, what: str, make: Callable[[], object]) -> object:
        """What the user's code makes. UserError, in one line, for what it raises."""
        try:
            return make()
        except Exception as error:
            raise UserError(f"--data {self.name}: {what} raised {one_line(error)}") from None


class AnyInput(nn.Module):
    """A network that takes inputs of any shape, where only the loading is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(USUAL_CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        """float32 [N, USUAL_CLASSES]."""
        return inputs.flatten(1).mean(1, keepdim=True) * self.scale


class OwnLoader(Workers):
    """Batches of the user's own items, copied to the device as they are."""

    def __init__(self, data: Own, part: ItemSource, spec: LoadSpec, order: dict[str, Any]) -> None:
        super().__init__(
            part.dataset, spec, pinned=spec.pinned, on_start=part.on_start,
            collate_fn=part.collate, **order,
        )  # fmt: skip
        self._data, self._placer = data, Placer(spec.device, IMAGENET)

    def __next__(self) -> Pair:
        """Wait for the next batch. UserError where an item fails, or where there is no batch."""
        for _ in range(2):
            try:
                return self._data.checked(super().__next__())
            except StopIteration:  # of an IterableDataset, which begins again
                self._batches = None
            except UserError:
                raise
            except Exception as error:
                # Of a worker it has a traceback: what is not indented in it is the error.
                _, traced, text = str(error).rpartition("Traceback (most recent call last):")
                own = [line for line in text.splitlines() if line and not line.startswith(" ")]
                line = own[0] if traced and own else one_line(error)
                raise UserError(f"--data {self._data.name}: an item raised {line}") from None
        raise UserError(f"--data {self._data.name} has no batch of {self._spec.batch} items")

    def to_device(self, batch: Pair, channels_last: bool = False) -> Pair:
        """The batch as it is, copied to the device without waiting if pinned."""
        inputs, targets = self._placer.copied(*batch)
        return (laid_out(inputs, channels_last) if inputs.dim() == 4 else inputs), targets
