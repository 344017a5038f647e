"""From torch to a recorded call, and from its names back to torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from kernels.aten.call import NAME, NAMED_TYPES, Argument, Call, CannotReplay, Named, TensorSpec


def describe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """What a TorchDispatchMode was called with, as plain data; tensors may be fake.

    CannotReplay for what is no operator overload, and for arguments that are no plain data: sparse
    or nested tensors, streams, objects. A random generator, a storage that a view is set to, and a
    profiler's object become None.
    """
    if not isinstance(func, OpOverload):
        raise CannotReplay(f"{func} is not an ATen operator")
    name = str(func)
    try:
        if func.namespace == "profiler":  # it marks a range with an object of its own
            args = [value if isinstance(value, str) else None for value in args]
        named = tuple((key, _plain(value)) for key, value in sorted(kwargs.items()))
        return Call(name, tuple(_plain(value) for value in args), named)
    except CannotReplay as error:
        raise CannotReplay(f"{name}: {error}") from None


def spec_of(tensor: Tensor) -> TensorSpec:
    """A tensor's description; CannotReplay if it is not a plain strided one on "cuda" or "cpu"."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        raise CannotReplay("takes a tensor that is nested, sparse or quantized")
    if is_traceable_wrapper_subclass(tensor):
        raise CannotReplay(f"takes a {type(tensor).__name__}, a tensor with code of its own")
    if tensor.device.type not in ("cuda", "cpu"):
        raise CannotReplay(f"takes a tensor on {tensor.device.type}")
    return TensorSpec(
        tuple(_whole(n) for n in tensor.shape),
        tuple(_whole(n) for n in tensor.stride()),
        _bare(tensor.dtype),
        tensor.device.type,
    )


def tensors_among(*values: Any) -> list[Tensor]:
    """Tensors in what an operator takes or gives, in the order of `Call.tensors`."""
    found: list[Any] = []
    for value in values:
        items = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
        found += tree_leaves(items)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _plain(value: Any) -> Argument:
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, Tensor):
        return spec_of(value)
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return _plain_object(value)


def _plain_object(value: Any) -> Argument:
    if isinstance(value, torch.Generator | torch.UntypedStorage):
        return None
    if isinstance(value, torch.device):
        return Named("device", value.type)
    for kind, of_torch in NAMED_TYPES.items():
        if isinstance(value, of_torch):
            return Named(kind, _bare(value))
    if isinstance(value, torch.SymInt):
        return _whole(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    raise CannotReplay(f"takes a {type(value).__name__}, which cannot be recorded")


def _whole(number: Any) -> int:
    """A size; it may be symbolic, and then not be known."""
    try:
        return int(number)
    except RuntimeError:
        raise CannotReplay("has a size that depends on data") from None


def _bare(constant: object) -> str:
    return str(constant).removeprefix("torch.")


# ------------------------------------------------------------ back to torch


def resolve(name: str) -> OpOverload:
    """The overload with this name; CannotReplay if torch has none, or its library is not loaded."""
    found: Any = None
    if NAME.fullmatch(name):
        found = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, OpOverload):
        raise CannotReplay(f"{name}: this torch has no such operator, or its library is not loaded")
    return found


def constant(named: Named, device: torch.device) -> Any:
    """The object of torch that a `Named` stands for; the recorded device "cuda" is `device`."""
    if named.kind == "device":
        return device if named.name == "cuda" else torch.device(named.name)
    return getattr(torch, named.name)
