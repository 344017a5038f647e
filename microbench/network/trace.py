"""Records the convolutions and GEMMs of a network's step without running it, and plans them.

The step is traced with fake tensors: only shapes pass through forward and backward, no weight is
allocated and no kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

from kernels.error_words import one_line, suggest
from microbench.errors import UserError
from microbench.network.hub import (
    TIMM,
    build_text,
    build_timm,
    is_hub,
    text_config,
    timm_image,
    usual_tokens,
)
from microbench.network.networks import (
    DEFAULT_IMAGE,
    BuildMode,
    build_torchvision,
    call_function,
    find_function,
    kind_of,
    silent,
    tensors_in,
    torchvision_models,
    usual_image,
)
from microbench.network.products import Layer, ProductRecorder, Skipped, storage_of

CLIP_FRAMES = 16  # of a video network, as torchvision's were trained


@dataclass(frozen=True)
class Traced:
    """The GEMMs and convolutions of one training step, in forward order.

    The passes of each are together: fprop, dgrad, wgrad. `batch` is the first dimension of the
    input; `image` is the side of its square images in pixels, None for the user's own input.
    """

    network: str
    batch: int
    image: int | None
    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Built:
    """A network and one batch of input.

    `inputs` are the arguments of `module`; `image` is the side of its square images in pixels, None
    where the user's function returned the inputs.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    image: int | None
    name: str  # of which no part is a path


def trace(network: str, batch: int, image: int | None = None) -> Traced:
    """Find the GEMMs and convolutions of a step: forward, and backward from the summed outputs.

    `network` is a torchvision model's name or another that `load` knows; the input is
    float32 [batch, 3, image, image], and `image` None the model's usual size. A network that brings
    an example input is traced with that, whatever `batch` is. What needs no gradient (the first
    layer's input, frozen weights) has no dgrad or wgrad. UserError for a network that cannot be
    built or cannot take the input.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    built = load(network, batch, image, fake)
    try:
        with silent(), fake, torch.enable_grad():
            recorder = _run_step(built, fake)
    except Exception as error:
        size = " and ".join("x".join(map(str, tensor.shape)) for tensor in built.inputs)
        raise UserError(f"{network} cannot train on {size}: {_explain(error)}") from None
    return Traced(
        built.name,
        built.inputs[0].shape[0],
        built.image,
        tuple(recorder.merged(Layer)),
        tuple(recorder.merged(Skipped)),
    )


def _explain(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return (
            f"the computation depends on tensor values, which a trace does not have ({error.func})"
        )
    if "more than 1 value per channel" in str(error):
        return "batch norm needs more than one value per channel: use a larger batch or image"
    return one_line(error)


def _run_step(network: Built, fake: FakeTensorMode) -> ProductRecorder:
    """Forward and backward, recorded; real weights and buffers are swapped for fakes."""
    module = network.module
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    real = {name: t for name, t in state.items() if not isinstance(t, FakeTensor)}
    swapped: dict[str, Tensor] = {name: fake.from_tensor(t) for name, t in real.items()}
    weights = {storage_of(swapped.get(n, p)) for n, p in module.named_parameters()}
    recorder = ProductRecorder(module, weights)
    unfused = torch.backends.mkldnn.flags(enabled=False)  # an LSTM is its GEMMs, not one call
    with unfused, recorder.recording():
        outputs = torch.func.functional_call(module, swapped, network.inputs)
        found = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        # A loss gives the outputs contiguous gradients; sum() would give expanded scalars.
        ones = [torch.ones_like(t, memory_format=torch.contiguous_format) for t in found]
        torch.autograd.backward(found, ones)
    return recorder


# ------------------------------------------------------------ the network and its input


def load(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    """Build the network that `name` names, in training mode, with one batch of float32 input.

    `name` is a torchvision model's, "timm:NAME", "hf:path/to/config.json" (token ids, not images),
    or "module:function": a function of no arguments that returns
    an nn.Module, or (nn.Module, its example input: a tensor or a tuple of them), importable from
    the current directory too. Images are [batch, 3, image, image], clips of video networks
    [batch, 3, CLIP_FRAMES, image, image]; `image` None is the model's usual size. No memory is
    allocated for weights or images. UserError for whatever is wrong with the name or what it names.
    """
    for what, size in (("batch", batch), ("image", image)):
        if size is not None and size < 1:
            raise UserError(f"{what} must be at least 1, not {size}")
    if is_hub(name):
        network = _from_hub(name, batch, image, fake)
    elif ":" in name:
        network = _from_function(name, batch, image, fake)
    else:
        network = _from_torchvision(name, batch, image, fake)
    network.module.train()
    return network


def _from_torchvision(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    models = torchvision_models()
    if name.lower() not in models.list_models():
        hint = suggest(name.lower(), models.list_models())
        raise UserError(
            f"torchvision has no network {name!r}{hint or '; your own: module:function'}"
        )
    builder = models.get_model_builder(name)
    if ".detection." in builder.__module__:
        raise UserError(
            f"{name} detects objects: its step depends on the boxes in the images and cannot be "
            "traced without running it; give its backbone as module:function"
        )
    image = image or usual_image(name)
    try:
        with BuildMode(fake):
            module = build_torchvision(name, image)
    except Exception as error:
        raise UserError(f"{name} cannot be built for {image} px: {one_line(error)}") from None
    size = (batch, 3, image, image)
    if ".video." in builder.__module__:
        size = (batch, 3, CLIP_FRAMES, image, image)
    frames = 2 if ".optical_flow." in builder.__module__ else 1
    with fake:
        return Built(module, tuple(torch.empty(size) for _ in range(frames)), image, name)


def _from_function(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    module, example = call_function(name, find_function(name), fake)
    if example is not None:
        if image is not None:
            raise UserError(f"{name} has its own example input: leave out --image {image}")
        return Built(module, _example_inputs(name, example, fake), None, name)
    image = image or DEFAULT_IMAGE
    device = next((weight.device for weight in module.parameters()), None)
    with fake:
        return Built(module, (torch.empty(batch, 3, image, image, device=device),), image, name)


def _from_hub(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    kind, _, rest = name.partition(":")
    if kind == TIMM:
        channels, height, width = timm_image(rest)
        shape = (channels, image or height, image or width)
        build, size = partial(build_timm, rest, shape), shape
    else:
        name, config = text_config(rest)
        if image is not None:
            raise UserError(f"{name} takes tokens: leave out --image {image}")
        build, size = partial(build_text, config, name), (usual_tokens(config),)
    try:
        with silent(), BuildMode(fake):
            module = build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} cannot be built: {one_line(error)}") from None
    with fake:
        sample = torch.zeros(batch, *size, dtype=torch.float32 if kind == TIMM else torch.int64)
    square = size[-1] if len(size) == 3 and size[1] == size[2] else None
    return Built(module, (sample,), square, name)


def _example_inputs(
    name: str, example: tuple[object, ...], fake: FakeTensorMode
) -> tuple[Tensor, ...]:
    inputs: list[Tensor] = []
    for tensor in example:
        if not isinstance(tensor, Tensor):
            raise UserError(
                f"{name}() returned {kind_of(tensor)} as an example input; it must be a tensor"
            )
        inputs.append(tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor))
    if not inputs or inputs[0].dim() == 0:
        raise UserError(f"{name}() returned an example input without a batch dimension")
    return tuple(inputs)


traced = lru_cache(maxsize=4)(trace)
