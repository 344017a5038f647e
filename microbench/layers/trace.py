"""The convolutions and GEMMs of a network's training step, recorded without running it.

The step is traced with fake tensors: shapes flow through forward and backward, no weight is
allocated and no kernel runs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.conv.shape import PASSES, ConvShape
from kernels.error_words import one_line
from microbench.errors import UserError
from microbench.layers.networks import Network, following, load, tensors_in

BATCHED = "batched products and attention are not measured yet"


@dataclass(frozen=True)
class Layer:
    """One distinct product of the step.

    `dims` are those of `ConvShape` for "conv", and m, n, k for "gemm": C[M, N] = A[M, K] B[K, N].
    `layout` is None for a convolution; for a GEMM its two letters say how A and B are stored, "n"
    row-major and "t" transposed. `which` is the pass; a transposed convolution is the convolution
    whose dgrad it is. `count` is how often the step runs it, `names` the paths of the modules it
    runs for (the class name for the network's own), `flops` the FLOPs of one run.
    """

    op: str
    dims: Mapping[str, int | str] = field(hash=False)
    layout: str | None
    which: str
    count: int
    names: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class Skipped:
    """A product of the step that cannot be measured, and why; `flops` are those of one run.

    Attention's backward counts its four products, not the scores that a kernel computes again.
    """

    what: str
    reason: str
    count: int
    flops: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Traced:
    """The products of one training step, in the order of the forward pass.

    A product's passes stand together: fprop, dgrad, wgrad. `batch` is the first dimension of the
    input; `image` is the side of its square images in pixels, None for the user's own input.
    """

    network: str
    batch: int
    image: int | None
    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]


def trace(network: str, batch: int, image: int | None = None) -> Traced:
    """Find the products of one training step: forward, and backward from the sum of all outputs.

    `network` is a torchvision model's name or "module:function" (see `networks.load`); the input is
    float32 [batch, 3, image, image], and `image` None the model's usual size. A network that brings
    an example input is traced with that, whatever `batch` is. What needs no gradient (the first
    layer's input, frozen weights) has no dgrad or wgrad. UserError for a network that cannot be
    built or cannot take the input.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    built = load(network, batch, image, fake)
    recorder = _Recorder(type(built.module).__name__)
    try:
        with warnings.catch_warnings(action="ignore"), fake, torch.enable_grad():
            _run_step(built, recorder, fake)
    except Exception as error:
        size = " and ".join("x".join(map(str, tensor.shape)) for tensor in built.inputs)
        raise UserError(f"{network} cannot train on {size}: {_explain(error)}") from None
    return Traced(
        network,
        built.inputs[0].shape[0],
        built.image,
        tuple(recorder.merged(Layer)),
        tuple(recorder.merged(Skipped)),
    )


def _explain(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return f"what it computes depends on values, which a trace does not have ({error.func})"
    if "more than 1 value per channel" in str(error):
        return "batch norm needs more than one value a channel: try a larger batch or image"
    return one_line(error)


def _run_step(network: Network, recorder: _Recorder, fake: FakeTensorMode) -> None:
    """Forward and backward under the recorder; real weights and buffers are swapped for fakes."""
    module = network.module
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    real = {name: t for name, t in state.items() if not isinstance(t, FakeTensor)}
    swapped: dict[str, Tensor] = {name: fake.from_tensor(t) for name, t in real.items()}
    recorder.weights = {_storage(swapped.get(n, p)) for n, p in module.named_parameters()}
    unfused = torch.backends.mkldnn.flags(enabled=False)  # an LSTM is its GEMMs, not one call
    with unfused, recorder, following(module, recorder.enter, recorder.leave):
        outputs = torch.func.functional_call(module, swapped, network.inputs)
        found = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        # A loss hands contiguous gradients to the outputs; sum() would hand expanded scalars.
        ones = [torch.ones_like(t, memory_format=torch.contiguous_format) for t in found]
        torch.autograd.backward(found, ones)


def _storage(tensor: Tensor) -> int:
    """What tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata


def _node() -> int | None:
    """The number of the autograd node whose backward is running, if one is."""
    node = torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
    return None if node is None else node._sequence_nr()


def _nodes_made() -> int:
    """How many nodes autograd has made: the number of the next one."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class _Row:
    """What is known of one distinct product so far; `place` sorts it beside its forward pass."""

    item: Layer | Skipped
    place: int
    count: int = 0
    names: dict[str, None] = field(default_factory=dict[str, None])  # an ordered set


@dataclass(frozen=True)
class _Source:
    """A forward product: what its backward is traced to. Holds its weight, so it stays unique."""

    name: str
    place: int
    weight: Tensor | None


class _Recorder(TorchDispatchMode):
    """Sees every ATen call of a step and keeps a row for each distinct product.

    Autograd numbers its nodes, and a forward call is seen just after its node was made: so a
    backward call belongs to the forward call whose number the running node carries. Of the two
    products in the backward of a GEMM, the one that reads the forward's weight is the dgrad and the
    other the wgrad. The weight is the operand that is a parameter; where none or both are, it is B.
    """

    def __init__(self, root: str) -> None:
        super().__init__()
        self.weights: set[int] = set()
        self._running: list[tuple[str, int | None]] = [(root, None)]
        self._sources: dict[int, _Source] = {}
        self._rows: dict[tuple[object, ...], _Row] = {}

    def enter(self, path: str) -> None:
        """A submodule begins to run."""
        self._running.append((path, _node()))

    def leave(self) -> None:
        """The submodule entered last has run."""
        self._running.pop()

    def merged(self, kind: type[Any]) -> list[Any]:
        """The distinct products of a kind, with counts and names, in forward order."""

        def order(row: _Row) -> tuple[int, int]:
            return row.place, PASSES.index(getattr(row.item, "which", PASSES[0]))

        return [
            dataclasses.replace(row.item, count=row.count, names=tuple(row.names))
            for row in sorted(self._rows.values(), key=order)
            if isinstance(row.item, kind)
        ]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one ATen call and record it if it is a product."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        products = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
        if name not in products and not name.startswith("_scaled_dot_product"):
            if func.namespace != "aten" or not func._can_decompose():
                return func(*args, **kwargs)
            with self:  # inference mode shows composite calls, such as linear, whole
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if name in ("mm", "addmm"):
            self._gemm(*args[-2:])
        elif name in ("bmm", "baddbmm"):
            self._skip(name, BATCHED, 2 * args[-2].numel() * args[-1].shape[-1])
        elif name == "convolution":
            self._convolution(args[0], args[1], out, *args[3:])
        elif name == "convolution_backward":
            grad, x, weight, _, *rest, mask = args
            self._convolution(x, weight, grad, *rest, mask=mask)
        else:
            self._attention(args, backward="backward" in name)
        return out

    def _source(self) -> _Source | None:
        """The forward product whose backward is running; None where a forward call is.

        A forward that is run again during backward (checkpointing) is a forward: its module was
        entered under the node that is running.
        """
        node = _node()
        name, entered_under = self._running[-1]
        if node is None or node == entered_under:
            return None
        return self._sources.get(node) or _Source(name, len(self._rows), None)

    def _add(
        self, key: tuple[object, ...], item: Layer | Skipped, weight: Tensor | None = None
    ) -> None:
        source = self._source()
        place = source.place if source else len(self._rows)
        row = self._rows.setdefault(key, _Row(item, place))
        name = source.name if source else self._running[-1][0]
        row.count += 1
        row.names[name] = None
        if source is None:
            number = _nodes_made() - 1
            self._sources.setdefault(number, _Source(name, row.place, weight))

    def _layer(
        self, op: str, dims: dict[str, int | str], layout: str | None, which: str, flops: int,
        weight: Tensor | None = None,
    ) -> None:  # fmt: skip
        key = (op, *dims.items(), layout, which)
        self._add(key, Layer(op, dims, layout, which, 0, (), flops), weight)

    def _skip(self, what: str, reason: str, flops: int) -> None:
        self._add((what, reason, flops), Skipped(what, reason, 0, flops, ()))

    def _gemm(self, a: Tensor, b: Tensor) -> None:
        (m, k), n = a.shape, b.shape[1]
        source = self._source()
        weight = a if _storage(a) in self.weights and _storage(b) not in self.weights else b
        which = "fprop"
        if source:
            weights = {_storage(source.weight)} if source.weight is not None else self.weights
            which = "dgrad" if weights & {_storage(a), _storage(b)} else "wgrad"
        layout = _letter(a) + _letter(b)
        self._layer("gemm", {"m": m, "n": n, "k": k}, layout, which, 2 * m * n * k, weight)

    def _attention(self, args: tuple[Any, ...], *, backward: bool) -> None:
        query, key, value = args[1:4] if backward else args[:3]
        scores = prod(query.shape[:-1]) * key.shape[-2]
        flops = 2 * scores * (query.shape[-1] + value.shape[-1])
        if backward:
            self._skip("scaled_dot_product_attention backward", BATCHED, 2 * flops)
        else:
            self._skip("scaled_dot_product_attention", BATCHED, flops)

    def _convolution(
        self, x: Tensor, weight: Tensor, y: Tensor, stride: list[int], padding: list[int],
        dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
        mask: tuple[bool, ...] | None = None,
    ) -> None:  # fmt: skip
        """One forward call, or with `mask` the gradients of a backward that are wanted."""
        passes = ("dgrad", "fprop") if transposed else ("fprop", "dgrad")
        wanted = [passes[0]]
        if mask:
            wanted = [w for w, needed in zip((passes[1], "wgrad"), mask, strict=False) if needed]
        image, pixels = (y, x) if transposed else (x, y)  # of the convolution behind either
        flops = 2 * pixels.numel() * prod(weight.shape[1:])
        axes = {"stride": stride, "padding": padding, "dilation": dilation}
        reason = _uneven(weight.dim() - 2, axes)
        for which in wanted:
            what = f"{weight.dim() - 2}-D convolution, {which}"
            if reason:
                self._skip(what, reason, flops)
                continue
            (n, c, h, w), (k, _, r, s) = image.shape, weight.shape
            shape = ConvShape(n, c, h, w, k, r, s, stride[0], padding[0], dilation[0], groups)
            if (shape.p, shape.q) != tuple(pixels.shape[2:]):
                self._skip(what, f"its output padding {output_padding} fits no convolution", flops)
                continue
            self._layer("conv", dataclasses.asdict(shape), None, which, shape.flops)


def _letter(matrix: Tensor) -> str:
    """How a matrix is stored: "n" row-major, "t" transposed; what is neither is copied first."""
    return "t" if matrix.stride(0) == 1 and not matrix.is_contiguous() else "n"


def _uneven(axes: int, settings: Mapping[str, list[int]]) -> str | None:
    """Why a convolution is none of ours: two axes, each setting the same along both."""
    if axes != 2:
        return f"convolutions along {axes} axes are not measured, only along 2"
    for name, values in settings.items():
        if len(set(values)) > 1:
            return f"its {name} differs between the axes: {' and '.join(map(str, values))}"
    return None
