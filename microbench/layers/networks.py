"""Networks by name: torchvision's, or the user's own function, built without allocating weights."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.error_words import one_line
from microbench.errors import UserError

DEFAULT_IMAGE = 224  # pixels a side, of a network that says nothing else
CLIP_FRAMES = 16  # of a video network, as torchvision's were trained
MAX_CONSTANT = 2**16  # elements of a constant that is computed for real while a network is built
# Networks whose weights fit one image size only, and the builder's argument that sets it.
SIZE_ARGUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "torchvision.models.vision_transformer": lambda image: {"image_size": image},
    "torchvision.models.maxvit": lambda image: {"input_size": (image, image)},
}


@dataclass(frozen=True)
class Network:
    """A network and one batch of input.

    `inputs` are what `module` is called with; `image` is the side of its square images in pixels,
    None where the user's function brought the inputs.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    image: int | None


class BuildMode(TorchDispatchMode):
    """Makes tensors fake, except the small constants that a constructor computes with.

    Uninitialised, random and large tensors are fake, and so is what is made of them. Constants of
    at most MAX_CONSTANT elements are real, because constructors read them (`linspace(...).tolist()`
    sets depths and widths). A value read from a fake tensor is 0: weights have none, and the
    rejection sampling of `trunc_normal_` ends at once.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
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


def load(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Network:
    """Build the network that `name` names, in training mode, with one batch of float32 input.

    `name` is a torchvision model's, or "module:function": a function of no arguments that returns
    an nn.Module, or (nn.Module, its example input: a tensor or a tuple of them), importable from
    the current directory too. Images are [batch, 3, image, image], clips of video networks
    [batch, 3, CLIP_FRAMES, image, image]; `image` None is the model's usual size. No memory is
    allocated for weights or images. UserError for whatever is wrong with the name or what it names.
    """
    for what, size in (("batch", batch), ("image", image)):
        if size is not None and size < 1:
            raise UserError(f"{what} must be at least 1, not {size}")
    if ":" in name:
        network = _from_function(name, batch, image, fake)
    else:
        network = _from_torchvision(name, batch, image, fake)
    network.module.train()
    return network


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in whatever a network returns: nested containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple | set):
        inside = value
    elif dataclasses.is_dataclass(value):
        inside = vars(value).values()
    for item in inside:
        yield from tensors_in(item)


@contextmanager
def following(
    module: nn.Module, enter: Callable[[str], None], leave: Callable[[], None]
) -> Iterator[None]:
    """Call `enter(path)` when a submodule begins to run and `leave()` when it has run or raised."""
    handles: list[Any] = []
    for path, child in module.named_modules():
        if path:
            handles += [
                child.register_forward_pre_hook(lambda *_, path=path: enter(path)),
                child.register_forward_hook(lambda *_: leave(), always_call=True),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def suggest(word: str, known: Iterable[str]) -> str:
    """What the user may have meant: "; did you mean a, b?", or nothing when none is near."""
    close = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def _from_torchvision(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Network:
    from torchvision import models

    if name.lower() not in models.list_models():
        hint = suggest(name.lower(), models.list_models())
        raise UserError(
            f"torchvision has no network {name!r}{hint or '; your own is module:function'}"
        )
    builder = models.get_model_builder(name)
    if ".detection." in builder.__module__:
        raise UserError(
            f"{name} detects objects: its step depends on the boxes in the images and cannot be "
            "traced without running it; give its backbone as module:function"
        )
    image = image or usual_image(name)
    options = SIZE_ARGUMENTS.get(builder.__module__, lambda _: {})(image)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None  # else it is downloaded
    # torchvision warns that initialisation is slow, which it is not here
    with warnings.catch_warnings(action="ignore"), BuildMode(fake):
        try:
            module = builder(weights=None, **options)
        except Exception as error:
            raise UserError(f"{name} cannot be built for {image} px: {one_line(error)}") from None
    size = (batch, 3, image, image)
    if ".video." in builder.__module__:
        size = (batch, 3, CLIP_FRAMES, image, image)
    frames = 2 if ".optical_flow." in builder.__module__ else 1
    with fake:
        return Network(module, tuple(torch.empty(size) for _ in range(frames)), image)


def usual_image(name: str) -> int:
    """The side, in pixels, that the model's default weights were made for."""
    from torchvision import models

    transforms = models.get_model_weights(name)["DEFAULT"].transforms()
    for attribute in ("crop_size", "resize_size"):
        size = getattr(transforms, attribute, None)
        if size:
            return int(size[0])
    return DEFAULT_IMAGE


def _from_function(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Network:
    function = find_function(name)
    with BuildMode(fake):
        try:
            made = function()
        except (Exception, SystemExit) as error:
            # torch cannot convert the weights of a module whose weights are fake
            moved = "_apply()" in str(error) or "driver" in str(error)
            hint = "; trace it as built, without .to(), .half() or .cuda()" if moved else ""
            raise UserError(f"{name}() raised {one_line(error)}{hint}") from None
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{name}() returned {kind_of(made)}; it must return an nn.Module, "
            "or (nn.Module, example inputs)"
        )
    if isinstance(made, tuple):
        if image is not None:
            raise UserError(f"{name} brings its own example input: drop --image {image}")
        return Network(module, _example_inputs(name, example, fake), None)
    image = image or DEFAULT_IMAGE
    device = next((weight.device for weight in module.parameters()), None)
    with fake:
        return Network(module, (torch.empty(batch, 3, image, image, device=device),), image)


def _example_inputs(name: str, example: object, fake: FakeTensorMode) -> tuple[Tensor, ...]:
    inputs: list[Tensor] = []
    for tensor in example if isinstance(example, (tuple, list)) else (example,):
        if not isinstance(tensor, Tensor):
            raise UserError(
                f"{name}() returned {kind_of(tensor)} as an example input, not a tensor"
            )
        inputs.append(tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor))
    if not inputs or inputs[0].dim() == 0:
        raise UserError(f"{name}() returned an example input without a batch")
    return tuple(inputs)


def kind_of(value: object) -> str:
    """What a value is, for a message: its type's name."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def find_function(name: str) -> Callable[[], object]:
    """The function that "module:function" names; UserError when it cannot be had or called."""
    function = find_attribute(name)
    if isinstance(function, nn.Module) or not callable(function):
        raise UserError(f"{name} is {kind_of(function)}, not a function that returns an nn.Module")
    return function


def find_attribute(name: str) -> object:
    """What "module:attribute" names, importable from the current directory too.

    UserError when the module does not import, with its own error, or has no such attribute.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise UserError(f"{name!r} is not module:function, for example mynet:build")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise UserError(f"{module_name} has no {attribute!r}{suggest(attribute, functions)}")
    return found


def _import(module_name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module_name == missing or module_name.startswith(missing + ".")):
            raise UserError(
                f"no module {missing!r} in {os.getcwd()} or among the installed packages"
            ) from None
        raise UserError(f"importing {module_name} raised {one_line(error)}") from None
