"""Finds and builds networks: torchvision's by name, timm's and transformers' without weights
("timm:NAME", "hf:path/config.json"), or those that a user's function returns.

`layers` and training both use it; in a `BuildMode` no weights are allocated. timm and transformers
are optional: each is imported when one of its networks is asked for.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.messages import one_line, suggest
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


TIMM, HF = "timm", "hf"
CLASSES = 1000
LONGEST = 512  # tokens of a sequence where nothing else is asked
CONFIG = "config.json"
# How the name of an architecture that predicts the next token ends (config.json, "architectures").
CAUSAL = ("ForCausalLM", "LMHeadModel")


def is_hub(name: str) -> bool:
    """Whether a name is of a network of timm or transformers."""
    return name.startswith((f"{TIMM}:", f"{HF}:"))


def _package(name: str, asked: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = f"pip install {name}" if missing else one_line(error)
        raise UserError(f"{asked} needs {name}: {why}") from None


# ---------------------------------------------------------------- timm


def timm_image(name: str) -> tuple[int, int, int]:
    """The shape (C, H, W) of an image of timm's model. UserError for a missing package or an
    unknown name, with near ones.
    """
    timm = _package("timm", f"{TIMM}:{name}")
    if not timm.is_model(name):
        known: Sequence[str] = timm.list_models()
        near = suggest(name.lower(), known) or "; timm.list_models() names them"
        raise UserError(f"timm has no model {name!r}{near}")
    config = timm.models.get_pretrained_cfg(name)
    size: Any = getattr(config, "input_size", None) or (3, DEFAULT_IMAGE, DEFAULT_IMAGE)
    return int(size[0]), int(size[1]), int(size[2])


def build_timm(name: str, shape: tuple[int, int, int], classes: int = CLASSES) -> nn.Module:
    """timm's model for images of `shape` (C, H, W), in training mode. Raises what timm raises."""
    timm: Any = import_module("timm")
    options: dict[str, Any] = {}
    fixed = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    if fixed and shape != timm_image(name):
        options["img_size"] = shape[1:]
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **options)
    return network.train()


# ---------------------------------------------------------------- transformers


class Text(nn.Module):
    """A transformers model that takes token ids [batch, T] and returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, T, vocabulary] of a causal model, [batch, labels] of a classifier."""
        return self.model(input_ids=tokens).logits


def text_config(place: str) -> tuple[str, Any]:
    """The name, "hf:folder/config.json", and the configuration in a file or folder.

    UserError for a missing file or package, and for what is no configuration of a text model.
    """
    path = Path(place) / CONFIG if Path(place).is_dir() else Path(place)
    name = f"{HF}:{'/'.join(path.parts[-2:])}"  # a published file need not say where it lay
    if not path.is_file():
        raise UserError(
            f"{HF}:{place}: no such file; give a local configuration, {HF}:path/to/{CONFIG}"
        )
    transformers = _package("transformers", name)
    transformers.logging.set_verbosity_error()  # it warns of token ids that nothing here uses
    try:
        with silent():
            config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        raise UserError(f"{name} is no configuration of transformers: {one_line(error)}") from None
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise UserError(f"{name} is no text model (it has no vocab_size)")
    if not is_causal(config) and config.pad_token_id is None:
        config.pad_token_id = 0  # a classifier of a decoder looks for the last token
    return name, config


def is_causal(config: Any) -> bool:
    """Whether the model of a configuration predicts the next token; else it is a classifier."""
    names: Sequence[str] = getattr(config, "architectures", None) or ()
    return any(architecture.endswith(CAUSAL) for architecture in names)


def most_tokens(config: Any) -> int | None:
    """The longest sequence that the model takes, in tokens; None where it does not say."""
    most: Any = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def usual_tokens(config: Any) -> int:
    """The length of a sequence where nothing else is asked."""
    return min(LONGEST, most_tokens(config) or LONGEST)


def build_text(config: Any, name: str) -> nn.Module:
    """The model of a configuration, in float32 and training mode. UserError where transformers
    builds none.
    """
    transformers: Any = import_module("transformers")
    kind = "AutoModelForCausalLM" if is_causal(config) else "AutoModelForSequenceClassification"
    config.use_cache = False
    try:
        model: nn.Module = getattr(transformers, kind).from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise UserError(f"{name}: {kind} does not build it: {one_line(error)}") from None
    return Text(model).train()
