"""Records convolutions, GEMMs and attention of a network's step without running it.

The step is traced with fake tensors: only shapes pass through forward and backward, no weight is
allocated and no kernel runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.attention import BPROP, CAUSAL, FPROP, FULL, Attention
from kernels.conv import Conv
from kernels.conv.shape import PASSES, ConvShape, of_axes
from kernels.flops import attention, convolution
from kernels.gemm import Gemm
from kernels.messages import one_line
from kernels.problem import Problem
from microbench.errors import UserError
from microbench.network import networks
from microbench.results.types import NotMeasured

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
    skipped: tuple[NotMeasured, ...]


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
        with networks.silent(), fake, torch.enable_grad():
            recorder = _run_step(built, fake)
    except Exception as error:
        size = " and ".join("x".join(map(str, tensor.shape)) for tensor in built.inputs)
        raise UserError(f"{network} cannot train on {size}: {_explain(error)}") from None
    return Traced(
        built.name,
        built.inputs[0].shape[0],
        built.image,
        tuple(recorder.layers()),
        tuple(recorder.skipped()),
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
        found = [tensor for tensor in networks.tensors_in(outputs) if tensor.requires_grad]
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
    if networks.is_hub(name):
        network = _from_hub(name, batch, image, fake)
    elif ":" in name:
        network = _from_function(name, batch, image, fake)
    else:
        network = _from_torchvision(name, batch, image, fake)
    network.module.train()
    return network


def _from_torchvision(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    builder = networks.torchvision_models().get_model_builder(name)
    if ".detection." in builder.__module__:
        raise UserError(
            f"{name} detects objects: its step depends on the boxes in the images and cannot be "
            "traced without running it; give its backbone as module:function"
        )
    image = image or networks.usual_image(name)
    try:
        with networks.BuildMode(fake):
            module = networks.build_torchvision(name, image)
    except Exception as error:
        raise UserError(f"{name} cannot be built for {image} px: {one_line(error)}") from None
    size = (batch, 3, image, image)
    if ".video." in builder.__module__:
        size = (batch, 3, CLIP_FRAMES, image, image)
    frames = 2 if ".optical_flow." in builder.__module__ else 1
    with fake:
        return Built(module, tuple(torch.empty(size) for _ in range(frames)), image, name)


def _from_function(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    module, example = networks.call_function(name, networks.find_function(name), fake)
    if example is not None:
        if image is not None:
            raise UserError(f"{name} has its own example input: leave out --image {image}")
        return Built(module, _example_inputs(name, example, fake), None, name)
    image = image or networks.DEFAULT_IMAGE
    device = next((weight.device for weight in module.parameters()), None)
    with fake:
        return Built(module, (torch.empty(batch, 3, image, image, device=device),), image, name)


def _from_hub(name: str, batch: int, image: int | None, fake: FakeTensorMode) -> Built:
    kind, _, rest = name.partition(":")
    if kind == networks.TIMM:
        channels, height, width = networks.timm_image(rest)
        shape = (channels, image or height, image or width)
        build, size = partial(networks.build_timm, rest, shape), shape
    else:
        name, config = networks.text_config(rest)
        if image is not None:
            raise UserError(f"{name} takes tokens: leave out --image {image}")
        build, size = partial(networks.build_text, config, name), (networks.usual_tokens(config),)
    try:
        with networks.silent(), networks.BuildMode(fake):
            module = build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} cannot be built: {one_line(error)}") from None
    with fake:
        sample = torch.zeros(
            batch, *size, dtype=torch.float32 if kind == networks.TIMM else torch.int64
        )
    square = size[-1] if len(size) == 3 and size[1] == size[2] else None
    return Built(module, (sample,), square, name)


def _example_inputs(
    name: str, example: tuple[object, ...], fake: FakeTensorMode
) -> tuple[Tensor, ...]:
    inputs: list[Tensor] = []
    for tensor in example:
        if not isinstance(tensor, Tensor):
            raise UserError(
                f"{name}() returned {networks.kind_of(tensor)} as an example input; it must be a "
                "tensor"
            )
        inputs.append(tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor))
    if not inputs or inputs[0].dim() == 0:
        raise UserError(f"{name}() returned an example input without a batch dimension")
    return tuple(inputs)


traced = lru_cache(maxsize=4)(trace)


def decoding(network: Traced, tokens: Sequence[int]) -> Traced:
    """The linear layers of a forward pass of so many tokens, for each of these numbers. Weights are
    stored as torch.nn.Linear has them, [out, in]; attention, which reads a cache, is left out.
    """
    found: dict[Problem, Layer] = {}
    for count, layer in product(tokens, network.layers):
        if layer.which == "fprop" and isinstance(layer.problem, Gemm):
            problem = Gemm(count, layer.problem.n, layer.problem.k)
            same = found.get(problem, Layer(problem, "fprop", 0, ()))
            uses, names = same.count + layer.count, dict.fromkeys((*same.names, *layer.names))
            found[problem] = Layer(problem, "fprop", uses, tuple(names))
    return dataclasses.replace(network, layers=tuple(found.values()), skipped=())


# ---------------------------------------------------------------- the calls


PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
ATTENTION = "_scaled_dot_product"  # how the names of its operators begin
FFT = "_fft"  # likewise
_autograd: Any = torch._C  # pyright: ignore[reportPrivateUsage]
ORDER = (*PASSES, BPROP)  # of a layer's passes
BATCHED = "batched GEMMs are not measured yet"
MASKED = "attention with a mask, dropout or other lengths of keys is not measured"


@dataclass(frozen=True)
class Layer:
    """One distinct GEMM or convolution of the step.

    The layout of a convolution is any. `which` is the pass: "fprop", "dgrad" or "wgrad"; a
    transposed convolution counts as the convolution whose dgrad it is. `count` is how often a step
    runs it, `names` the paths of the modules that it runs for (the class name for the network
    itself).
    """

    problem: Problem
    which: str
    count: int
    names: tuple[str, ...]


def storage_of(tensor: Tensor) -> int:
    """An integer that tensors share exactly when they share memory."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


@dataclass
class _Row:
    """A distinct GEMM or convolution while it is counted; `place` sorts it by its forward pass."""

    item: Layer | NotMeasured
    place: int
    count: int = 0
    names: dict[str, None] = field(default_factory=dict[str, None])  # an ordered set


@dataclass(frozen=True)
class _Source:
    """A forward GEMM or convolution. Holds its weight, so that its storage stays unique."""

    name: str
    place: int
    weight: Tensor | None


class ProductRecorder(TorchDispatchMode):
    """Records each distinct GEMM and convolution of a step of `module`, whose weights lie in the
    storages `weights`.

    Autograd numbers its nodes, and makes a node just before the call that it is for is seen: a
    backward call belongs to the forward one with the number of the running node. Of the two in the
    backward of a GEMM, the one that reads the forward's weight is the dgrad and the other the
    wgrad. The weight is the operand that is a parameter; where none or both are, it is B. A forward
    that is run again during the backward pass (checkpointing) is a forward: its module was entered
    under the node that is running.
    """

    def __init__(self, module: nn.Module, weights: set[int]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._module: Any = module
        self._weights = weights
        # The modules whose forward runs, and the autograd node that was running as each began.
        self._entered: list[tuple[str, int | None]] = [(type(module).__name__, None)]
        self._sources: dict[int, _Source] = {}  # by number of the autograd node
        self._rows: dict[Layer | NotMeasured, _Row] = {}

    def layers(self) -> list[Layer]:
        """What can be measured, with counts and names, in forward order, pass by pass."""
        found = [(row, row.item) for row in self._rows.values() if isinstance(row.item, Layer)]
        found.sort(key=lambda pair: (pair[0].place, ORDER.index(pair[1].which)))
        return [
            dataclasses.replace(layer, count=row.count, names=tuple(row.names))
            for row, layer in found
        ]

    def skipped(self) -> list[NotMeasured]:
        """What cannot, with counts, in forward order."""
        return [
            dataclasses.replace(row.item, count=row.count)
            for row in sorted(self._rows.values(), key=lambda row: row.place)
            if isinstance(row.item, NotMeasured)
        ]

    @contextmanager
    def recording(self) -> Generator[None]:
        """Record the calls within this context, of one thread, and which submodule makes each."""
        handles: list[Any] = []
        for path, child in self._module.named_modules():
            if path:
                handles += [
                    child.register_forward_pre_hook(partial(self._enter, path)),
                    child.register_forward_hook(self._leave, always_call=True),
                ]
        try:
            with torch.autograd.set_multithreading_enabled(False), self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str, *_: object) -> None:
        """Called before the submodule of this path runs."""
        self._entered.append((path, _running_node()))

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
        """Run one ATen call, and record it if it is a GEMM, a convolution or attention."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name not in PRODUCTS and not name.startswith((ATTENTION, FFT)):
            if func.namespace != "aten" or not func._can_decompose():
                return func(*args, **kwargs)
            with self:  # of other operators alone, as linear: inference mode shows these whole
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if name in ("mm", "addmm"):
            self._gemm(*args[-2:])
        else:
            named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
            for item in _products(name, args, out, {**dict(named), **kwargs}):
                self._add(item)
        return out

    def _gemm(self, a: Tensor, b: Tensor) -> None:
        (m, k), n = a.shape, b.shape[1]
        weight = a if storage_of(a) in self._weights and storage_of(b) not in self._weights else b
        which = "fprop"
        if self._backward:
            of_forward = self._source.weight
            weights = self._weights if of_forward is None else {storage_of(of_forward)}
            which = "dgrad" if weights & {storage_of(a), storage_of(b)} else "wgrad"
        if m and n and k:
            self._add(Layer(Gemm(m, n, k, _letter(a) + _letter(b)), which, 0, ()), weight)

    def _add(self, item: Layer | NotMeasured, weight: Tensor | None = None) -> None:
        source = self._source
        row = self._rows.setdefault(item, _Row(item, source.place))
        row.count += 1
        row.names[source.name] = None
        if not self._backward:
            newest = _autograd._autograd._get_sequence_nr() - 1
            self._sources.setdefault(newest, _Source(source.name, row.place, weight))

    @property
    def _backward(self) -> bool:
        """Whether the call that is seen is one of the backward pass."""
        return _running_node() not in (None, self._entered[-1][1])

    @property
    def _source(self) -> _Source:
        """What a backward call belongs to in the forward pass; of a forward call, itself."""
        known = self._sources.get(_running_node() or 0) if self._backward else None
        return known or _Source(self._entered[-1][0], len(self._rows), None)


def _running_node() -> int | None:
    """The number of the autograd node whose backward is running, if one is."""
    node = _autograd._current_autograd_node()
    return None if node is None else node._sequence_nr()


def _products(
    name: str, args: tuple[Any, ...], out: Any, named: Mapping[str, Any]
) -> Iterator[Layer | NotMeasured]:
    """What one operator call computes, except plain GEMMs."""
    if name in ("bmm", "baddbmm"):
        yield _skipped(name, BATCHED, 2 * args[-2].numel() * args[-1].shape[-1])
    elif name == "convolution":
        yield from _convolution(args[0], args[1], out, *args[3:])
    elif name == "convolution_backward":
        grad, x, weight, _, *rest, mask = args
        yield from _convolution(x, weight, grad, *rest, mask=mask)
    elif name.startswith(FFT):
        points = max(args[0].numel(), out.numel())
        passes = math.log2(prod(out.shape[axis] for axis in args[1]) or 1)
        yield _skipped("FFT", "FFTs are not measured", round(5 * points * passes))
    else:
        yield _attention(named, BPROP if "backward" in name else FPROP)


def _skipped(name: str, reason: str, flops: int) -> NotMeasured:
    return NotMeasured(name, reason, 0, flops)


def _attention(named: Mapping[str, Any], which: str) -> Layer | NotMeasured:
    query, key, value = (named[name] for name in ("query", "key", "value"))
    masked = any(named.get(name) is not None for name in ("attn_mask", "attn_bias"))
    if (
        masked
        or named.get("dropout_p")
        or key.shape != value.shape
        or query.dim() != 4
        or (query.shape[2:] != key.shape[2:])
    ):
        flops = attention(query.shape, key.shape, value.shape) * (2 if which == BPROP else 1)
        return _skipped(f"scaled_dot_product_attention, {which}", MASKED, flops)
    (batch, heads, sequence, size), layout = query.shape, CAUSAL if named.get("is_causal") else FULL
    return Layer(Attention(batch, heads, key.shape[1], sequence, size, which, layout), which, 0, ())


def _convolution(
    x: Tensor, weight: Tensor, y: Tensor, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
    mask: tuple[bool, ...] | None = None,
) -> Iterator[Layer | NotMeasured]:  # fmt: skip
    """One forward call, or with `mask` the requested gradients of a backward call."""
    passes = ("dgrad", "fprop") if transposed else ("fprop", "dgrad")
    wanted = [passes[0]]
    if mask:
        wanted = [w for w, needed in zip((passes[1], "wgrad"), mask, strict=False) if needed]
    image, pixels = (y, x) if transposed else (x, y)  # of the convolution behind either
    flops = convolution(pixels.shape[0], pixels.shape[2:], weight.shape)
    axes = weight.dim() - 2
    for which in wanted:
        name = f"{axes}-D convolution, {which}"
        if axes > 2:
            yield _skipped(name, f"{axes}-D convolutions are not measured yet", flops)
            continue
        # 1-D is an image of one row, and a kernel of one.
        (h, w), (r, s), outputs = (
            (1, *tensor.shape[2:])[-2:] for tensor in (image, weight, pixels)
        )
        by_axis = (of_axes(*(2 * values)[:2]) for values in (stride, padding, dilation))
        steps, pads, dilations = by_axis
        if axes == 1:
            pads = of_axes(0, padding[0])
        (n, c), k = image.shape[:2], weight.shape[0]
        shape = ConvShape(n, c, h, w, k, r, s, steps, pads, dilations, groups)
        if (shape.p, shape.q) != outputs:
            unlike = f"output padding {output_padding} does not match any convolution"
            yield _skipped(name, unlike, flops)
        else:
            yield Layer(Conv(shape, which), which, 0, ())


def _letter(matrix: Tensor) -> str:
    """How a matrix is stored: "n" row-major, "t" transposed; any other is copied first."""
    return "t" if matrix.stride(0) == 1 and not matrix.is_contiguous() else "n"
