"""A recorded ATen call as plain data: its parts, its identity, its arguments by the names of the
operator's schema, and how it is made from torch's objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


class CannotReplay(Exception):
    """A call cannot be described or run alone. The message is the reason that reports print."""


@dataclass(frozen=True)
class TensorSpec:
    """A strided tensor without its content: shape, stride in elements, and the name of its torch
    dtype ("float16").

    `device` is "cuda" or "cpu". The offset in its storage is not kept.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str

    @property
    def numel(self) -> int:
        """Elements, each of those that share memory counted."""
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Elements of storage from the first to the last, gaps included."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))

    @property
    def distinct(self) -> int:
        """Elements, those that share memory by a stride of 0 counted once."""
        if self.numel == 0:
            return 0
        return math.prod(n for n, step in zip(self.shape, self.stride, strict=True) if step)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.torch_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the storage it needs, from its first element to its last."""
        return self.span * self.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """torch's dtype of that name. AttributeError if this torch has none."""
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class Named:
    """A constant of torch by name: `kind` is "dtype", "layout", "memory_format" or "device"."""

    kind: str
    name: str


Argument = None | bool | int | float | str | TensorSpec | Named | tuple["Argument", ...]


# Arguments that are written though the schema does not say so: running statistics in training.
_RUNNING = ("running_mean", "running_var")
_WRITE_RUNNING = (
    "native_batch_norm", "cudnn_batch_norm", "batch_norm_gather_stats_with_counts",
    "batch_norm_update_stats",
)  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """One tensor argument. `position` is its place in a list of tensors, None outside one;
    `written` says whether the operator writes it.
    """

    name: str
    position: int | None
    spec: TensorSpec
    written: bool


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operator: its overload's name ("aten.mm.default") and its arguments.

    `kwargs` are sorted by name. Two calls are equal if their keys are: 1, 1.0 and True differ.
    """

    name: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()

    @cached_property
    def key(self) -> str:
        """Its identity as one line of text, the same in every run."""
        return repr(self)

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor argument in order, those in lists included."""
        leaves = tree_leaves((self.args, [value for _, value in self.kwargs]))
        return tuple(leaf for leaf in leaves if isinstance(leaf, TensorSpec))

    @property
    def operator(self) -> str:
        """The operator's name without namespace and overload: "convolution_backward"."""
        return self.name.split(".")[1]

    @cached_property
    def func(self) -> OpOverload:
        """The overload of this name. CannotReplay as of `resolve`."""
        return resolve(self.name)

    @cached_property
    def named(self) -> dict[str, Argument]:
        """Arguments by the schema's names; those left to their defaults are left out.

        CannotReplay if this torch has no such operator, or it does not take them.
        """
        known = schema_of(self.func).arguments
        names = [argument.name for argument in known if not argument.kwarg_only]
        if len(self.args) > len(names):
            raise CannotReplay(f"{self.name}: this torch's operator takes fewer arguments")
        if not {argument.name for argument in known}.issuperset(dict(self.kwargs)):
            raise CannotReplay(f"{self.name}: this torch's operator has other arguments")
        return dict(zip(names, self.args, strict=False)) | dict(self.kwargs)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every tensor argument in the order of the schema. CannotReplay as of `named`."""
        marked = schema_of(self.func).arguments
        written = {a.name for a in marked if a.alias_info and a.alias_info.is_write}
        if self.operator in _WRITE_RUNNING and self.named.get("training", True):
            written.update(_RUNNING)
        return tuple(
            Slot(name, position, spec, name in written)
            for name, value in self.named.items()
            for position, spec in (
                enumerate(value) if isinstance(value, tuple) else [(None, value)]
            )
            if isinstance(spec, TensorSpec)
        )

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Call) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


def resolve(name: str) -> OpOverload:
    """The overload with this name; CannotReplay if torch has none, or its library is not loaded."""
    operator: Any = None
    if re.fullmatch(r"\w+\.\w+\.\w+", name):
        operator = torch.ops
        for part in name.split("."):
            operator = getattr(operator, part, None)
    if not isinstance(operator, OpOverload):
        raise CannotReplay(f"{name}: this torch has no such operator, or its library is not loaded")
    return cast(OpOverload, operator)


def schema_of(func: OpOverload) -> Any:
    """The operator's schema: its arguments and returns."""
    return func._schema  # pyright: ignore[reportPrivateUsage]


# ------------------------------------------------------------ from torch


def describe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The plain data of a call, from the arguments of `__torch_dispatch__`; tensors may be fake.

    CannotReplay for what is no operator overload, and for arguments that are no plain data: sparse
    or nested tensors, generators, objects.
    """
    if not isinstance(func, OpOverload):
        raise CannotReplay(f"{func} is not an ATen operator")
    name = str(cast(object, func))
    try:
        named = tuple((key, _plain(value)) for key, value in sorted(kwargs.items()))
        return Call(name, tuple(_plain(value) for value in args), named)
    except CannotReplay as error:
        raise CannotReplay(f"{name}: {error}") from None


def spec_of(tensor: Tensor) -> TensorSpec:
    """A tensor's description. CannotReplay if it is not a plain strided one on "cuda" or "cpu"."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        raise CannotReplay("takes a tensor that is nested, sparse or quantized")
    if is_traceable_wrapper_subclass(tensor):
        raise CannotReplay(f"takes a {type(tensor).__name__}, a tensor subclass")
    if tensor.device.type not in ("cuda", "cpu"):
        raise CannotReplay(f"takes a tensor on {tensor.device.type}")
    shape = tuple(tensor.shape)
    return TensorSpec(shape, tensor.stride(), _bare(tensor.dtype), tensor.device.type)


def tensors_among(*values: Any) -> list[Tensor]:
    """Tensors in an operator's arguments or results, in the order of `Call.tensors`."""
    leaves: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            value = [item for _, item in sorted(cast("dict[str, Any]", value).items())]
        leaves += tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _plain(value: Any) -> Argument:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return spec_of(value)
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in cast("Sequence[Any]", value))
    if isinstance(value, torch.device):
        return Named("device", value.type)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return Named(type(value).__name__, _bare(value))
    raise CannotReplay(f"takes a {type(value).__name__}, which cannot be recorded")


def _bare(constant: object) -> str:
    return str(constant).removeprefix("torch.")
