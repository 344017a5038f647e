"""Watches the ATen calls of a training step, below autograd, and finds the module each is for."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

NOTES = ("prim.", "profiler.")  # questions and marks of ranges: no arithmetic, no launch

_autograd: Any = torch._C  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True)
class Origin:
    """Where a call comes from.

    `module` is the path of the submodule that makes the call, or whose forward made the autograd
    node that makes it in the backward pass; "" outside of all submodules. `node` is the number of
    that autograd node, for a forward call of the newest one; `new_node` says whether autograd made
    a node for this forward call, and so saves it for the backward pass.
    """

    module: str
    node: int
    new_node: bool
    backward: bool


@dataclass(frozen=True)
class _Entered:
    """A submodule whose forward runs, and the autograd node that was running when it began."""

    path: str
    under: int | None


class CallRecorder(TorchDispatchMode):
    """Passes every ATen call of a step to `on_call`, with its origin: the base of all recordings.

    Autograd numbers its nodes, and makes a node just before the call that it is for is seen. So new
    numbers belong to the module that is running, and a backward call to the module of the number of
    the running node. A forward that is run again during the backward pass (checkpointing) is a
    forward: its module was entered under the node that is running.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._entered = [_Entered("", None)]
        self._modules: dict[int, str] = {}  # by number of the node
        self._thread = threading.get_ident()
        # The number of the next node. Autograd has a thread for each GPU; each counts by itself.
        self._next = {self._thread: _next_number()}

    @abstractmethod
    def on_call(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], origin: Origin
    ) -> Any:
        """Run a call, record what is needed of it, and return its result."""

    @contextmanager
    def following(self, module: nn.Module) -> Generator[None]:
        """Within this context, know which submodule of `module` runs, by forward hooks."""
        handles: list[Any] = []
        whole: Any = module
        for path, child in whole.named_modules():
            if path:
                handles += [
                    child.register_forward_pre_hook(partial(self._enter, path)),
                    child.register_forward_hook(self._leave, always_call=True),
                ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str, *_: object) -> None:
        """Called before the submodule of this path runs."""
        self._entered.append(_Entered(path, _running_node()))

    def _leave(self, *_: object) -> None:
        """Called when the submodule entered last has run, or raised."""
        self._entered.pop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one call by `on_call`; a note has no origin and is only run."""
        kwargs = kwargs or {}
        if str(func).startswith(NOTES):
            return func(*args, **kwargs)
        return self.on_call(func, args, kwargs, self._origin())

    def _origin(self) -> Origin:
        running, entered = _running_node(), self._entered[-1]
        if running is not None and running != entered.under:
            return Origin(self._modules.get(running, entered.path), running, False, True)
        thread, following = threading.get_ident(), _next_number()
        first = self._next.get(thread, following)
        if thread == self._thread:  # another thread's numbers would be taken for these
            for number in range(first, following):
                self._modules[number] = entered.path
        self._next[thread] = following
        return Origin(entered.path, following - 1, following != first, False)


def _running_node() -> int | None:
    """The number of the autograd node whose backward is running in this thread, if one is."""
    node = _autograd._current_autograd_node()
    return None if node is None else node._sequence_nr()


def _next_number() -> int:
    """The number of the next autograd node that this thread makes."""
    return _autograd._autograd._get_sequence_nr()
