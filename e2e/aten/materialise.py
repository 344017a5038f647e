"""Arguments for a recorded call, and a launch of it alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from e2e.aten.arena import ALIGNMENT_BYTES, WARM, Area, ColdL2, Pool, fill, fill_normal, writable
from e2e.aten.call import (
    Argument,
    Call,
    CannotReplay,
    Named,
    Slot,
    TensorSpec,
    schema_of,
)
from kernels.messages import first_line

LEAST = 0.1  # of values that are divided by, or whose root is taken
SMALL = 0.1  # standard deviation of means
STEPS_DONE = 10.0  # of an optimizer
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Site:
    """Which argument needs content: the call's arguments by name, its place in a list of tensors
    (None outside one), and the source of random numbers.
    """

    arguments: Mapping[str, Argument]
    position: int | None
    rng: torch.Generator

    def spec(self, name: str) -> TensorSpec:
        """A tensor argument. KeyError if the call has none of that name."""
        argument = self.arguments[name]
        assert isinstance(argument, TensorSpec)
        return argument

    def number(self, name: str) -> Any:
        """An argument that is no tensor, or None where the call leaves it out."""
        return self.arguments.get(name)


Fill = Callable[[Tensor, Site], object]

# ------------------------------------------------------------ values


def _always(value: float) -> Fill:
    return lambda tensor, _: tensor.fill_(value)


def _positive(tensor: Tensor, site: Site) -> None:
    fill_normal(tensor, site.rng).abs_().add_(LEAST)


def _small(tensor: Tensor, site: Site) -> None:
    tensor.normal_(0.0, SMALL, generator=site.rng)


def _signs(tensor: Tensor, site: Site) -> None:
    """1 or -1: what can be multiplied by thousands of times."""
    tensor.bernoulli_(0.5, generator=site.rng).mul_(2).sub_(1)


def _uniform(low: float) -> Fill:
    """From `low` to 1."""
    return lambda tensor, site: tensor.uniform_(low, 1, generator=site.rng)


_unit, _tanh = _uniform(0), _uniform(-1)


def _through(function: Callable[[Tensor, int], Tensor]) -> Fill:
    """What a function along the call's `dim` makes of normal values."""
    return lambda tensor, site: tensor.copy_(
        function(fill_normal(tensor, site.rng), site.number("dim"))
    )


def _kept(tensor: Tensor, site: Site) -> None:
    """A dropout mask: what is kept is scaled by 1 / its share."""
    scale = site.number("scale")
    tensor.bernoulli_(min(1.0, 1 / scale) if scale else 0.0, generator=site.rng)


def _data(tensor: Tensor, site: Site) -> None:
    """Integers that are only moved, such as images."""
    if tensor.dtype == torch.bool:
        fill(tensor, site.rng)
    else:
        tensor.random_(0, 128, generator=site.rng)


def _by_type(tensor: Tensor, site: Site) -> None:
    """Integers 0: counters begin so, and it is valid as index and size. Random truth values."""
    fill(tensor, site.rng)


# ------------------------------------------------------------ indices


def _below(bound: Callable[[Site], int]) -> Fill:
    return lambda tensor, site: tensor.random_(0, max(bound(site), 1), generator=site.rng)


def _classes(site: Site) -> int:
    scores = site.spec("self").shape
    return scores[min(1, len(scores) - 1)]


def _along_dim(site: Site) -> int:
    shape = site.spec("self").shape
    dim: int = site.number("dim")
    return shape[dim] if shape else 1


# ------------------------------------------------------------ content by operator and argument

# "operator.argument", "operator_.argument" for the in-place form alone, or "argument" of any.
_NAMES: tuple[tuple[Fill, str], ...] = (
    # classes, indices
    (_below(_classes), """
        nll_loss_forward.target nll_loss_backward.target nll_loss2d_forward.target
        nll_loss2d_backward.target"""),
    (lambda tensor, site: tensor.fill_(max(site.spec("target").numel, 1)),
     "nll_loss_backward.total_weight nll_loss2d_backward.total_weight"),
    (_below(lambda site: site.spec("weight").shape[0]), "embedding.indices"),
    (_below(lambda site: site.number("num_weights")), "embedding_dense_backward.indices"),
    (_below(_along_dim), "index"),
    (_below(lambda site: site.spec("self").numel), "take.index put.index"),
    (_below(lambda site: site.spec("self").shape[site.position or 0]), """
        index.indices index_put.indices _index_put_impl.indices _unsafe_index.indices
        _unsafe_index_put.indices"""),
    # dropout, probabilities, outputs of activations
    (_kept, "native_dropout_backward.mask _masked_scale.mask"),
    (_unit, """
        bernoulli.self bernoulli.p binary_cross_entropy.self binary_cross_entropy.target
        binary_cross_entropy_backward.self binary_cross_entropy_backward.target
        binary_cross_entropy_with_logits.target sigmoid_backward.output
        pow.exponent _foreach_pow.exponent"""),
    (_tanh, "tanh_backward.output"),
    (_through(torch.softmax), "_softmax_backward_data.output"),
    (_through(torch.log_softmax), "_log_softmax_backward_data.output"),
    # statistics
    (_small, """
        running_mean save_mean native_layer_norm_backward.mean native_group_norm_backward.mean"""),
    (_positive, "running_var save_invstd save_var invstd rstd"),
    # optimizer and loss scaler
    (_positive, "exp_avg_sqs max_exp_avg_sqs state_sums"),
    (_always(STEPS_DONE), "state_steps"),
    (_always(LEARNING_RATE), "lr"),
    (_always(0), "found_inf growth_tracker"),
    (_always(1), """
        inv_scale grad_scale _amp_update_scale.self _scaled_mm.scale_a _scaled_mm.scale_b"""),
    # what must not be 0 or negative, and what stays finite when multiplied again and again
    (_positive, """
        sqrt.self rsqrt.self log.self log2.self log10.self log1p.self reciprocal.self pow.self
        _foreach_sqrt.self _foreach_rsqrt.self _foreach_log.self _foreach_reciprocal.self
        _foreach_pow.self div.other _foreach_div.other remainder.other fmod.other
        addcdiv.tensor2 _foreach_addcdiv.tensor2"""),
    (_signs, "mul_.other div_.other _foreach_mul_.other _foreach_div_.other"),
)  # fmt: skip
FILLS = {name: fill for fill, names in _NAMES for name in names.split()}

_OF_FLOATS = (_positive, _small, _signs, _unit, _tanh)
_ONES = _always(1)
# Integers that these read are data; elsewhere they may be indices or sizes.
_MOVE_INTEGERS = ("_to_copy", "copy", "clone", "cat", "stack", "div", "mul", "sub", "add")


def fill_of(operator: str, slot: Slot) -> Fill | None:
    """The function that fills an argument in place; None if normal values suffice."""
    plain, dtype = operator.removesuffix("_"), slot.spec.torch_dtype
    is_real = dtype.is_floating_point
    for key in (f"{operator}.{slot.name}", f"{plain}.{slot.name}", slot.name):
        if key in FILLS:
            return _ONES if FILLS[key] in _OF_FLOATS and not is_real else FILLS[key]
    if is_real or dtype.is_complex:
        return None
    return _data if plain in _MOVE_INTEGERS and not slot.written else _by_type


# ------------------------------------------------------------ what cannot be made

_WHY: Mapping[str, str] = {
    "what its forward pass saved cannot be made": """
        _embedding_bag_backward _embedding_bag_dense_backward _flash_attention_backward
        _efficient_attention_backward mkldnn_rnn_layer_backward _cudnn_rnn_backward""",
    "its offsets and indices are of no use at random": """
        _embedding_bag _embedding_bag_forward_only""",
    "its sequences may be of several lengths": """
        _flash_attention_forward _efficient_attention_forward""",
    "its lengths are of no use at random": "_pack_padded_sequence",
    "matching lengths and targets cannot be generated": "_ctc_loss _ctc_loss_backward",
    "it is for GPUs of another vendor": "miopen_batch_norm_backward",
}
REFUSED = {name: why for why, names in _WHY.items() for name in names.split()}


# ------------------------------------------------------------ what a forward pass saves

Values = Mapping[str, Any]  # arguments as they are passed, by name


@dataclass(frozen=True)
class Saved:
    """Arguments of a backward pass that its forward pass returned.

    `outputs` maps each to its index in what `forward` returns. The forward pass takes the backward
    pass's own arguments of the same names, and those that `given` computes from them.
    """

    forward: str
    outputs: Mapping[str, int]
    given: Mapping[str, Callable[[Values], Any]]


def _constant(value: Any) -> Callable[[Values], Any]:
    return lambda _: value


_SEEDS = {"out": 0, "logsumexp": 1, "cum_seq_q": 2, "cum_seq_k": 3,
          "philox_seed": 6, "philox_offset": 7}  # fmt: skip
_WITH_LOGSUMEXP = {"compute_log_sumexp": _constant(True)}

SAVED: dict[str, Saved] = {
    "max_pool2d_with_indices_backward": Saved("max_pool2d_with_indices", {"indices": 1}, {}),
    "max_pool3d_with_indices_backward": Saved("max_pool3d_with_indices", {"indices": 1}, {}),
    "adaptive_max_pool2d_backward": Saved(
        "adaptive_max_pool2d", {"indices": 1},
        {"output_size": lambda values: list(values["grad_output"].shape[-2:])},
    ),
    "_scaled_dot_product_flash_attention_backward": Saved(
        "_scaled_dot_product_flash_attention", _SEEDS, {}
    ),
    "_scaled_dot_product_cudnn_attention_backward": Saved(
        "_scaled_dot_product_cudnn_attention", _SEEDS, _WITH_LOGSUMEXP
    ),
    "_scaled_dot_product_efficient_attention_backward": Saved(
        "_scaled_dot_product_efficient_attention",
        {"out": 0, "logsumexp": 1, "philox_seed": 2, "philox_offset": 3}, _WITH_LOGSUMEXP,
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Saved(
        "_scaled_dot_product_flash_attention_for_cpu", {"out": 0, "logsumexp": 1}, {}
    ),
    # Its reserved space is opaque, and under fake tensors recorded as empty.
    "cudnn_batch_norm_backward": Saved(
        "cudnn_batch_norm",
        {"save_mean": 1, "save_var": 2, "reserveSpace": 3},
        {
            "bias": lambda values: values["weight"],
            "running_mean": _constant(None),
            "running_var": _constant(None),
            "training": _constant(True),
            "exponential_average_factor": _constant(0.0),
        },
    ),
}  # fmt: skip


def run_forward(call: Call, values: Values) -> dict[str, Any]:
    """What the forward pass of a call in SAVED returns for its other arguments, by name.

    CannotReplay where the forward pass does not run here, torch.OutOfMemoryError where it does not
    fit.
    """
    saved = SAVED.get(call.operator)
    if saved is None:
        return {}
    forward = getattr(torch.ops.aten, saved.forward).default
    passed = {
        argument.name: saved.given[argument.name](values)
        if argument.name in saved.given
        else values.get(argument.name, argument.default_value)
        for argument in schema_of(forward).arguments
    }
    try:
        returned = forward(**passed)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise CannotReplay(
            f"{call.name}: its forward pass does not run here: {first_line(error)}"
        ) from None
    return {
        name: _fit(returned[place], call.named[name])
        for name, place in saved.outputs.items()
        if isinstance(call.named.get(name), TensorSpec)
    }


def _fit(tensor: Tensor | None, spec: Argument) -> Tensor | None:
    """The tensor with the recorded strides; as it is where its shape is the forward's own affair.

    Under fake tensors, seeds and reserved space are recorded with other shapes than they have.
    """
    assert isinstance(spec, TensorSpec)
    if tensor is None or tuple(tensor.shape) != spec.shape or tensor.stride() == spec.stride:
        return tensor
    fitted = torch.empty_strided(spec.shape, spec.stride, dtype=tensor.dtype, device=tensor.device)
    writable(fitted).copy_(writable(tensor.expand_as(fitted)))
    return fitted


# Torch says of these that their shape may depend on data; it does for masks, not for indices.
_INDEXED = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
_MASKS = ("bool", "uint8")
_OWN_NAMESPACES = ("aten", "prims")
_TAGGED = {
    torch.Tag.dynamic_output_shape: "the shape of its output depends on data",
    torch.Tag.data_dependent_output: "waits for the device to read a value",
    torch.Tag.inplace_view: "changes its argument's shape in place, so it cannot be repeated",
}


@dataclass(frozen=True)
class Replay:
    """A recorded call ready to run: `launch` calls the operator, with arguments and results that
    the cache does not hold, where there are any; `plain` without that, and returns its result.

    Where arguments are written, `restore` gives them fresh content: call it before each block of
    launches, since calls share the memory, and repeated additions in place would grow to infinity.
    It launches a few kernels, and does not wait for them.
    """

    launch: Callable[[], object]
    plain: partial[Any]
    restore: Callable[[], None]


def materialise(call: Call, device: torch.device, pool: Pool, cold: ColdL2 = WARM) -> Replay:
    """Arguments with the recorded shapes, strides and dtypes on `device`, and a launch with them.

    What the shared memory of `pool` cannot hold (indices, masks, what a forward pass saved) belongs
    to the replay and is freed with it. Raises CannotReplay, with the reason, for calls whose output
    shape or flow depends on data, for custom operators that take integers, and for calls without
    valid arguments here; torch.OutOfMemoryError where memory does not suffice.
    """
    assert pool.device == device, "a pool is for one device"
    if reason := why_not(call):
        raise CannotReplay(reason)
    layout = _layout(call, pool, cold)
    pool.grow(layout.needs)
    made: dict[_At, Tensor] = {}
    once: list[Callable[[], object]] = []
    again: list[Callable[[], object]] = []
    for slot in call.slots:
        if slot.name in _saved(call):
            continue
        spec, place = slot.spec, layout.places.get(slot)
        made[slot.name, slot.position] = tensor = (
            pool.view(*place, spec)
            if place
            else torch.empty_strided(
                spec.shape, spec.stride, dtype=spec.torch_dtype,
                device=pool.area(spec, False).device,
            )
        )  # fmt: skip
        if (content := fill_of(call.operator, slot)) is not None:
            site = Site(call.named, slot.position, pool.generator(tensor.device))
            (again if slot.written else once).append(partial(content, writable(tensor), site))
    written = [
        (pool.flats[area][:elements], pool.generator(area.device))
        for area, elements in layout.needs.items()
        if area.written
    ]

    def restore() -> None:
        for flat, rng in written:
            fill(flat, rng)
        for give_content in again:
            give_content()

    restore()
    for give_content in once:
        give_content()
    saved = run_forward(call, _values(call, made, device))
    launches: list[partial[Any]] = []
    for rotation in layout.rotations:
        there = {(s.name, s.position): pool.view(*at, s.spec) for s, at in rotation.items()}
        values = _values(call, made | there, device) | saved
        args = [values[name] for name in list(call.named)[: len(call.args)]]
        launches.append(
            partial(call.func, *args, **{name: values[name] for name, _ in call.kwargs})
        )
    launch = pool.rotating(launches, cold) if cold else launches[0]
    return Replay(launch, launches[0], restore)


def reserve(calls: Iterable[tuple[Call, ColdL2]], pool: Pool) -> None:
    """Make the pool as large as the largest of these calls needs; calls that cannot run need
    nothing. torch.OutOfMemoryError where it does not fit.
    """
    most: dict[Area, int] = {}
    for call, cold in calls:
        if why_not(call) is None:
            needs = _layout(call, pool, cold).needs
            most |= {area: max(most.get(area, 0), n) for area, n in needs.items()}
    pool.grow(most)


def why_not(call: Call) -> str | None:
    """Why a call cannot be replayed, as reports print it; None if, as far as is known, it can."""
    try:
        if reason := _refusal(call):
            return f"{call.name}: {reason}"
        _ = call.slots
        return None
    except CannotReplay as error:
        return str(error)


def movable(call: Call) -> tuple[int, ...]:
    """Arguments that can be measured as cold, by their places in `Call.tensors`.

    Only those that are read and hold normal values: those with rules of their own, or saved by a
    forward pass, stay in place. Empty for a call that cannot be replayed.
    """
    if why_not(call) is not None:
        return ()
    return tuple(
        i for i, slot in enumerate(call.slots) if _is_shared(call, slot) and not slot.written
    )


# ------------------------------------------------------------ what cannot run


def _refusal(call: Call) -> str | None:
    func = call.func
    if call.operator in REFUSED:
        return REFUSED[call.operator]
    if func.namespace not in _OWN_NAMESPACES and any(
        not spec.torch_dtype.is_floating_point for spec in call.tensors
    ):
        return "a custom operator; the valid values of its integer arguments are unknown"
    if call.operator in _INDEXED:
        indices = call.args[1] if len(call.args) > 1 else ()
        assert isinstance(indices, tuple)
        if any(isinstance(spec, TensorSpec) and spec.dtype in _MASKS for spec in indices):
            return "indexes by a mask: the amount of work depends on data"
        return None
    return next((reason for tag, reason in _TAGGED.items() if tag in func.tags), None)


# ------------------------------------------------------------ where arguments lie


_At = tuple[str, int | None]  # an argument's name, and its place in a list of tensors
_Places = dict[Slot, tuple[Area, int]]  # an area of the pool, and elements from its beginning


@dataclass(frozen=True)
class _Layout:
    """Places of arguments in the pool, no two of which share memory, and the elements that all need
    of each area. What has no place has memory of its own.

    `rotations` are further places of the cold arguments; the first rotation has none.
    """

    places: _Places
    rotations: list[_Places]
    needs: dict[Area, int]


def _layout(call: Call, pool: Pool, cold: ColdL2) -> _Layout:
    needs: dict[Area, int] = defaultdict(int)

    def placed(slots: Iterable[Slot]) -> _Places:
        places: _Places = {}
        for slot in slots:
            area = pool.area(slot.spec, slot.written)
            places[slot] = area, needs[area]
            unit = max(1, ALIGNMENT_BYTES // area.dtype.itemsize)
            needs[area] += -(-slot.spec.span // unit) * unit
        return places

    places = placed(slot for slot in call.slots if _is_shared(call, slot))
    moving = [call.slots[i] for i in movable(call) if i in cold.arguments]
    rotation_bytes = sum(slot.spec.distinct * slot.spec.itemsize for slot in moving)
    more = range(1, cold.rotations(rotation_bytes) if moving else 1)
    return _Layout(places, [{}, *(placed(moving) for _ in more)], needs)


def _is_shared(call: Call, slot: Slot) -> bool:
    """Whether it lies in the pool: it is written, or holds normal values."""
    own = slot.name in _saved(call)
    return not own and (slot.written or fill_of(call.operator, slot) is None)


def _saved(call: Call) -> Iterable[str]:
    """Arguments that a forward pass saved, which has yet to run."""
    return SAVED[call.operator].outputs if call.operator in SAVED else ()


def _values(call: Call, made: Mapping[_At, Tensor], device: torch.device) -> dict[str, Any]:
    """The arguments as torch takes them; None for a tensor that has not been made yet."""

    def value_of(name: str, value: Argument, position: int | None = None) -> Any:
        if isinstance(value, TensorSpec):
            return made.get((name, position))
        if isinstance(value, tuple):
            return [value_of(name, item, place) for place, item in enumerate(value)]
        if not isinstance(value, Named):
            return value
        if value.kind == "device":  # the recorded device "cuda" is `device`
            return device if value.name == "cuda" else torch.device(value.name)
        return getattr(torch, value.name)

    return {name: value_of(name, value) for name, value in call.named.items()}
