"""Finds and builds networks: torchvision's by name, or those that a user's function returns.

`layers` and training both use it; in a `BuildMode` no weights are allocated.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.error_words import one_line
from kernels.user import find
from microbench.errors import UserError

DEFAULT_IMAGE = 224  # pixels a side, where the network has no size of its own
MAX_CONSTANT = 2**16  # elements of a constant that is computed for real while a network is built
# Networks whose weights fit one image size only, and the builder's argument that sets it.
SIZE_ARGUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "torchvision.models.vision_transformer": lambda image: {"image_size": image},
    "torchvision.models.maxvit": lambda image: {"input_size": (image, image)},
}


class BuildMode(TorchDispatchMode):
    """Makes tensors fake, except the small constants that a constructor computes with.

    Uninitialised, random and large tensors are fake, and so is what is made of them. Constants of
    at most MAX_CONSTANT elements are real, because constructors read them (`linspace(...).tolist()`
    sets depths and widths). A value read from a fake tensor is 0: fake weights have no values, and
    the rejection sampling of `trunc_normal_` then ends at once.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.fake = fake

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one ATen call, faked or for real."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            if func is torch.ops.aten._local_scalar_dense.default:
                return torch.zeros((), dtype=args[0].dtype).item()
        elif tensors or self._is_constant(func, args, kwargs):
            return func(*args, **kwargs)
        with self.fake:
            return func(*args, **kwargs)

    def _is_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call that takes no tensor makes a small tensor of known values."""
        if torch.Tag.nondeterministic_seeded in func.tags or func.__name__.startswith("empty"):
            return False
        with self.fake:
            made = func(*args, **kwargs)
        return not isinstance(made, Tensor) or made.numel() <= MAX_CONSTANT


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in a network's output, also in nested containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        inside = cast("Mapping[object, object]", value).values()
    elif isinstance(value, list | tuple | set):
        inside = cast("Iterable[object]", value)
    elif dataclasses.is_dataclass(value):
        inside = vars(value).values()
    for item in inside:
        yield from tensors_in(item)


@contextmanager
def silent() -> Generator[None]:
    """A context without warnings, or torch's log of operators that fake tensors cannot run."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled = disabled


def torchvision_models() -> Any:
    """The module `torchvision.models`, imported on first use, which takes seconds."""
    from torchvision import models  # pyright: ignore[reportMissingTypeStubs]

    return models


def build_torchvision(name: str, image: int, **options: Any) -> nn.Module:
    """torchvision's model of this name, untrained, for images [3, `image`, `image`] in pixels.

    ValueError for an unknown name; what its builder raises is passed on.
    """
    builder = torchvision_models().get_model_builder(name)
    sized = SIZE_ARGUMENTS.get(builder.__module__)
    if sized:
        options |= sized(image)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None  # else it is downloaded
    with warnings.catch_warnings(action="ignore"):  # of slow initialisation
        return builder(weights=None, **options)


def usual_image(name: str) -> int:
    """The side, in pixels, that the model's default weights were made for.

    ValueError: unknown name.
    """
    transforms = torchvision_models().get_model_weights(name)["DEFAULT"].transforms()
    for attribute in ("crop_size", "resize_size"):
        size = getattr(transforms, attribute, None)
        if size:
            return int(size[0])
    return DEFAULT_IMAGE


def call_function(
    name: str, function: Callable[[], object], fake: FakeTensorMode | None = None
) -> tuple[nn.Module, tuple[object, ...] | None]:
    """What the user's function returns: a module and its example inputs, None if it has none.

    With `fake` it is called in a `BuildMode`. UserError, in one line, when it raises or returns
    anything else.
    """
    try:
        with BuildMode(fake) if fake else nullcontext():
            made = function()
    except (Exception, SystemExit) as error:
        # torch cannot convert the weights of a module whose weights are fake
        moved = fake and ("_apply()" in str(error) or "driver" in str(error))
        hint = "; trace it as built, without .to(), .half() or .cuda()" if moved else ""
        raise UserError(f"{name}() raised {one_line(error)}{hint}") from None
    pair = _pair(made)
    module, example = pair or (made, None)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{name}() returned {kind_of(made)}; it must return an nn.Module, "
            f"or (nn.Module, example input{'s' if fake else ''})"
        )
    if pair is None:
        return module, None
    several = isinstance(example, tuple | list)
    return module, tuple(cast("Iterable[object]", example)) if several else (example,)


def _pair(made: object) -> tuple[object, object] | None:
    if isinstance(made, tuple) and len(cast("tuple[object, ...]", made)) == 2:
        return cast("tuple[object, object]", made)
    return None


def kind_of(value: object) -> str:
    """A value's type, for a message."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def find_function(name: str) -> Callable[[], object]:
    """The function that "module:function" names. UserError when it cannot be imported or called."""
    function = find_attribute(name)
    if isinstance(function, nn.Module) or not callable(function):
        raise UserError(f"{name} is {kind_of(function)}, not a function that returns an nn.Module")
    return function


def find_attribute(name: str) -> object:
    """The object that "module:attribute" names, importable from the current directory too.

    UserError when the module cannot be imported, with its own error, or has no such attribute.
    """
    try:
        return find(name)
    except ValueError as error:
        raise UserError(str(error)) from None
