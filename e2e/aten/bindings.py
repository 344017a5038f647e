"""Torch's own bindings of operators, by which networks and their optimizers call them.

Through `torch.ops` every argument is matched with the operator's schema: on the CPU a small call
takes 1 us longer for it, and 2 to 4 us with keywords or lists of numbers (a cast, a convolution).
Autograd and autocast cast without Python: `Tensor.to` is the closest binding. The gradients of
convolutions and norms have no binding: for these, the matching can be timed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from e2e.aten.call import CannotReplay, describe, tensors_among

# From an operator's arguments and keywords to a launch with them.
Binding = Callable[[Sequence[Any], Mapping[str, Any]], partial[object]]

_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_HOLDERS = (_torch._VariableFunctions, _torch._nn, _torch.TensorBase)


def quickest(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Binding:
    """The first binding that makes just this call, or else the operator itself. Runs nothing."""
    for binding in _bindings(func, kwargs):
        if _makes(binding(args, kwargs), func, args, _telling(func, args, kwargs)):
            return binding
    return _as_is(func)


def matching(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[], object] | None:
    """A function that converts and matches arguments as `torch.ops` does before it calls the
    operator, and does nothing else; None where this torch has none.
    """
    check = getattr(_torch, "_check_schema_allow_fake_script_object", None)
    if check is None:
        return None
    match = partial(check, func._schema, *args, **kwargs)
    try:
        return match if match() else None
    except (RuntimeError, TypeError):
        return None


def _telling(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keywords that say anything: autograd also tells a cast to leave a tensor where it is."""
    there: dict[str, Any] = {}
    if func is torch.ops.aten._to_copy.default:
        there = {"device": args[0].device, "layout": args[0].layout}
    return {
        name: value
        for name, value in kwargs.items()
        if value is not None and (name not in there or value != there[name])
    }


def _bindings(func: OpOverload, kwargs: Mapping[str, Any]) -> Iterator[Binding]:
    if func.namespace != "aten":
        return
    name = func._schema.name.removeprefix("aten::")
    if name == "_to_copy" and kwargs.get("dtype") is not None:
        yield _cast
    for holder in _HOLDERS:
        if hasattr(holder, name):
            yield _as_is(getattr(holder, name))


def _as_is(function: Callable[..., object]) -> Binding:
    return lambda args, kwargs: partial(function, *args, **kwargs)


def _cast(args: Sequence[Any], kwargs: Mapping[str, Any]) -> partial[object]:
    return partial(_torch.TensorBase.to, args[0], kwargs["dtype"])


# ------------------------------------------------------------ the same call?


class _Seen(Exception):
    """Ends a call before it runs."""


class _Watch(TorchDispatchMode):
    """Lets no call run; keeps the first."""

    seen: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Note it, and go no further."""
        self.seen = (func, args, kwargs or {})
        raise _Seen


def _makes(
    launch: Callable[[], object], func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether the first operator that a launch comes to is this one, with these tensors and values.

    It is not run.
    """
    watch = _Watch()
    try:
        with watch:
            launch()
        return False  # it gave back what it was given
    except _Seen:
        pass
    except Exception:
        return False  # it takes other arguments
    assert watch.seen is not None
    return _is(*watch.seen, func, args, kwargs)


def _is(
    seen: Any, its_args: Sequence[Any], its_kwargs: Mapping[str, Any],
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any],
) -> bool:  # fmt: skip
    try:
        same = describe(seen, its_args, its_kwargs) == describe(func, args, kwargs)
    except CannotReplay:
        return False
    tensors, its = tensors_among(args, kwargs), tensors_among(its_args, its_kwargs)
    return same and all(a is b for a, b in zip(tensors, its, strict=True))
