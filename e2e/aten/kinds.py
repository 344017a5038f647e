"""What kind of work a recorded call is, the terms of a step's time, and its least operations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from e2e.aten.call import Argument, Call, CannotReplay, TensorSpec, schema_of
from kernels import flops as flop_counts

# Operators by kind ("view" launches no kernel), without the endings of their backward, forward and
# in-place forms (see `_stem`). Those that are neither here nor matched below have the kind that
# torch's tags give them.
_STEMS: Mapping[str, str] = {
    "product": """
        convolution _convolution cudnn_convolution convolution_overrideable mkldnn_convolution
        cudnn_convolution_transpose cudnn_convolution_relu _slow_conv2d conv_depthwise3d
        _conv_depthwise2d mm addmm bmm baddbmm addbmm mv addmv dot vdot addr linear _int_mm
        _scaled_mm _addmm_activation _grouped_mm matmul mkldnn_linear _trilinear _cudnn_rnn
        mkldnn_rnn_layer _flash_attention _efficient_attention _cudnn_attention
    """,
    "norm": """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        _batch_norm_with_update batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_stats
        batch_norm_elemt batch_norm_reduce batch_norm_gather_stats_with_counts
        batch_norm_update_stats native_layer_norm native_group_norm _fused_rms_norm
    """,
    "activation": """
        relu threshold gelu silu sigmoid tanh hardswish hardtanh hardsigmoid leaky_relu elu mish
        softplus softshrink hardshrink prelu _prelu_kernel glu log_sigmoid celu selu
        rrelu_with_noise
    """,
    "softmax": """
        _softmax _log_softmax _safe_softmax nll_loss nll_loss2d _masked_softmax
    """,
    "elementwise": """
        native_dropout _fused_dropout bernoulli normal uniform rand randn randint rand_like
        randn_like randint_like randperm random exponential mse_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits _masked_scale _thnn_fused_lstm_cell
        _thnn_fused_gru_cell
    """,
    "copy": """
        fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full arange
        linspace scalar_tensor eye cat stack _chunk_cat split_with_sizes_copy repeat
        constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d flip
        roll select slice slice_scatter select_scatter diagonal as_strided_scatter tril triu
        unfold im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle view_copy
    """,
    "index": """
        embedding embedding_dense embedding_renorm _embedding_bag _embedding_bag_dense gather
        scatter scatter_add scatter_reduce index index_put _index_put_impl _unsafe_index
        _unsafe_index_put index_select index_add index_copy index_fill index_reduce take put
        masked_scatter masked_select nonzero sort topk searchsorted bucketize one_hot bincount
        unique_dim _unique2 repeat_interleave max_unpool2d
    """,
    "reduce": """
        max min cumsum cumprod logcumsumexp median kthvalue dist
    """,
    # `_local_scalar_dense` copies one number to the host: no kernel, but the CPU waits;
    # the recorder of the step notes that.
    "view": """
        empty empty_like empty_strided new_empty new_empty_strided _unsafe_view _reshape_alias
        view detach alias t transpose permute expand squeeze unsqueeze split slice_view set
        resize _local_scalar_dense item equal is_same_size is_pinned _pin_memory record_stream
        _assert_async lift_fresh sym_size sym_stride sym_numel sym_storage_offset
        _has_compatible_shallow_copy_type size stride
    """,
}  # fmt: skip
_KIND_OF_STEM = {stem: kind for kind, stems in _STEMS.items() for stem in stems.split()}

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"_scaled_dot_product_"), "product"),
    (re.compile(r"_amp_"), "scaler"),
    (re.compile(r"_foreach_|_fused_(sgd|adam|adamw|adagrad|lars)_?$"), "optimizer"),
    (re.compile(r"(_?adaptive_|fractional_)?(max|avg)_pool|_?upsample_|grid_sampler"), "pooling"),
)
_MOVES = ("_to_copy", "copy", "copy_", "clone", "contiguous", "_foreach_copy_")


def kind_of(call: Call) -> str:
    """Its kind: "product" is a matrix multiplication, convolution or attention, "other" unknown."""
    if _returns_a_view(call):
        return "view"
    return kind_of_name(call.operator, [tensor.dtype for tensor in call.tensors]) or "other"


def kind_of_name(operator: str, dtypes: Sequence[str] = ()) -> str | None:
    """The kind of an operator of which a profiler knows only the name and the inputs' types.

    None where the name tells nothing: the operators inside it may. A copy between two types is a
    cast; a change of layout cannot be seen.
    """
    name = operator.removesuffix("_")
    if name in _MOVES:
        known = [dtype for dtype in dtypes[:2] if dtype]
        return "cast" if len(set(known)) == 2 else "copy"
    for pattern, kind in _PATTERNS:
        if pattern.match(operator):
            return kind
    return _KIND_OF_STEM.get(_stem(operator)) or _kind_by_packet(name)


def _kind_by_packet(name: str) -> str | None:
    """By the tags of the operator's overloads; None where torch has no such operator."""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if packet is None:
        return None
    tags = {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
    if torch.Tag.pointwise in tags:
        return "elementwise"
    return "reduce" if torch.Tag.reduction in tags else None


def _stem(operator: str) -> str:
    """The operator's name without the ending of its in-place, forward or backward form."""
    stem = operator if operator.startswith("__") else operator.removesuffix("_")
    for ending in ("_backward_data", "_backward_reduce", "_backward_elemt", "_backward"):
        stem = stem.removesuffix(ending)
    return stem.removesuffix("_forward")


def _returns_a_view(call: Call) -> bool:
    """Whether the result only shares an argument's memory, by the schema, or reshapes it there."""
    try:
        func = call.func
    except CannotReplay:
        return False
    if torch.Tag.inplace_view in func.tags:
        return True
    schema = schema_of(func)
    aliases = [a.alias_info for a in (*schema.arguments, *schema.returns)]
    returned = any(r.alias_info is not None for r in schema.returns)
    return returned and not any(alias is not None and alias.is_write for alias in aliases)


# ------------------------------------------------------------ floating-point operations


def flops(call: Call) -> int | None:
    """FLOPs of a GEMM or convolution, a multiply-add as two; None for other calls, or if unknown.

    Attention counts masked elements too; in its backward pass the four products of the algorithm,
    not the scores that a kernel computes again. Else the formulas are torch.utils.flop_counter's
    but for convolutions, where it ignores groups in the weights' gradients.
    """
    if call.operator.startswith("_scaled_dot_product_"):
        backward = call.operator.endswith("_backward")
        shapes = (_tensor(value).shape for value in call.args[backward : backward + 3])
        return (1 + backward) * flop_counts.attention(*shapes)
    own = _FORMULAS.get(call.operator)
    if own is not None:
        return own(call.args)
    try:
        formula: Any = flop_registry.get(call.func.overloadpacket)
    except CannotReplay:
        return None
    if formula is None:
        return None
    args, kwargs = tree_map(_meta, (call.args, dict(call.kwargs)))
    return int(formula(*args, **kwargs, out_val=None))


def _meta(value: Argument) -> Any:
    """The argument; a tensor with its shape and no memory, as the formulas take it."""
    return torch.empty(value.shape, device="meta") if isinstance(value, TensorSpec) else value


def _convolution(args: Sequence[Argument]) -> int:
    source, weight = map(_tensor, args[:2])
    stride, padding, dilation, transposed = args[3:7]
    if transposed:
        return flop_counts.convolution(source.shape[0], source.shape[2:], weight.shape)
    sizes = zip(
        source.shape[2:], weight.shape[2:],
        *(_each(value, len(source.shape) - 2) for value in (stride, padding, dilation)),
        strict=True,
    )  # fmt: skip
    grid = [(n + 2 * p - d * (r - 1) - 1) // s + 1 for n, r, s, p, d in sizes]
    return flop_counts.convolution(source.shape[0], grid, weight.shape)


def _convolution_backward(args: Sequence[Argument]) -> int:
    """As many as the forward pass for each of the input's and the weight's gradient."""
    gradient, source, weight = map(_tensor, args[:3])
    mask = args[10]
    assert isinstance(mask, tuple)
    grid = (source if args[7] else gradient).shape[2:]
    gradients = bool(mask[0]) + bool(mask[1])
    return gradients * flop_counts.convolution(source.shape[0], grid, weight.shape)


def _tensor(value: Argument) -> TensorSpec:
    assert isinstance(value, TensorSpec)
    return value


def _each(value: Argument, dims: int) -> list[int]:
    """A convolution's stride, padding or dilation; one number stands for all dimensions."""
    numbers = [int(n) for n in value] if isinstance(value, tuple) else [value]  # pyright: ignore
    return numbers * dims if len(numbers) == 1 else numbers  # pyright: ignore[reportReturnType]


def _product(first: int) -> Callable[[Sequence[Argument]], int]:
    """Of two factors, the left of which is argument `first`: 2 FLOPs an element and column."""

    def count(args: Sequence[Argument]) -> int:
        left, right = map(_tensor, args[first : first + 2])
        return 2 * left.numel * math.prod(right.shape[1:])

    return count


_FORMULAS: Mapping[str, Callable[[Sequence[Argument]], int]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "_int_mm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmv": _product(1),
    "_addmm_activation": _product(1),
}
