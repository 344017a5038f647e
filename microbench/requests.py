"""The requests of the measuring commands: their options, the conditions of all of them, and the
comparisons planned from them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kernels import OPS
from kernels.attention import CAUSAL, MEASURED, Attention
from kernels.case import DATA, Case, Target
from kernels.conv import Conv
from kernels.conv.shape import PASSES, ConvShape, of_axes
from kernels.gemm import Gemm
from kernels.linear import Linear
from kernels.messages import suggest
from kernels.op import OWN, SEPARATE
from kernels.precision import PRECISIONS
from kernels.problem import Problem
from kernels.tune import MOST_CANDIDATES, QUICK
from kernels.user import UserBackend
from microbench import command_line, sweep
from microbench.command_line import Outputs, at_least, choice, filled, one_of
from microbench.errors import UserError
from microbench.sweep import Group, read_shapes, refused
from microbench.timing import L2_STATES, REGIMES, TIMERS

if TYPE_CHECKING:  # --help is to load nothing heavy
    from microbench.network.trace import Traced
    from microbench.results.types import NetworkUse


R = TypeVar("R", bound="Request")

# Seconds of sampling in all without --budget: a sweep ends within a minute, a network within four.
CONV_MOST_S = 20.0
PAYOFF_MOST_S = 120.0
ATTENTION_MOST_S = 60.0
LAYERS_MOST_S = 60.0
PAYOFF_USUAL = {
    "conv": {
        "channels": "8..512", "passes": "fprop", "image": "7..56", "batch": "8..256",
        "layout": "nhwc,nchw", "dtype": "fp16", "vs": "fp32,tf32",
    },
    "linear": {
        "channels": "1024..8192,1024x4096,4096x1024,4096x14336", "passes": "step",
        "batch": "512,4096,16384", "layout": "launched,graph,quantised",
        "dtype": "fp8-tensor,fp8-row,fp8-block", "vs": "bf16",
    },
}  # fmt: skip
STEP_USUAL = {"batch": 32, "dtype": "fp16", "vs": "fp32,tf32"}  # of a network's layers
DECODE_USUAL = {
    "batch": 1, "dtype": "bf16,fp8,fp8-weights", "vs": "bf16", "backend": "library,triton"
}  # fmt: skip
SHAPES = "CSV file of problems, in place of the sizes above: see docs/kernels.md"
GROUPS = "--groups must be a number or depthwise"
# How torchvision registers the function that builds a network; other decorators may follow.
BUILDER = re.compile(
    r'^@register_model\((?:name="(\w+)")?\)\n(?:@.+\n| .+\n|\)\n)*def (\w+)', re.MULTILINE
)
LAYER_BACKENDS = ("library", "triton")  # library: cuDNN and cuBLAS, or torch on a CPU


@dataclass(frozen=True)
class Request(ABC):
    """A command's options: the conditions, and a plan made from the others."""

    name: ClassVar[str]  # the command's
    most_s: ClassVar[float] = math.inf  # of sampling, when the user sets no --budget
    traces: ClassVar[bool] = False  # a network, so that its plan takes seconds

    conditions: Conditions

    @classmethod
    def usual(cls, words: Mapping[str, Any]) -> Mapping[str, Any]:
        """Defaults that depend on other options. UserError for options that exclude each other."""
        return {}

    @abstractmethod
    def plan(self, kind: str) -> list[Group]:
        """The comparisons for a device of kind "cuda" or "cpu". UserError for a bad value."""

    def network(self, kind: str) -> NetworkUse | None:
        """The network whose layers these are; None for other commands."""
        return None


@dataclass(frozen=True)
class GemmRequest(Request):
    """The options of `microbench gemm`."""

    name = "gemm"

    sizes: str = choice("256..8192", "256..8192 doubles; 64..1024:+32 steps; 63,64; MxNxK; BxMxNxK")
    layout: str = choice("nt", "nn,nt,tn,tt: t is transposed; nt-FORM of a batch, an epilogue")
    shapes: Path | None = choice(None, SHAPES)

    def plan(self, kind: str) -> list[Group]:
        """One comparison per size and layout. UserError for an invalid value."""
        asked, library = self.conditions, OPS["gemm"].library_backend(kind)
        of_others = asked  # than plain problems
        if asked.backend is None:
            of_others = replace(asked, backend=f"{library},{SEPARATE}")
        plain, others = (plan_variants("gemm", one, kind) for one in (asked, of_others))
        if self.shapes:
            problems = read_shapes("gemm", self.shapes)
        else:
            layouts = sweep.parse_names(self.layout, Gemm.CHOICES["layout"], "--layout")
            sizes = sweep.parse_sizes(self.sizes, more=1)  # the batch
            with refused("--layout"):
                problems = [
                    Gemm(m, n, k, layout, *batch)
                    for (*batch, m, n, k), layout in product(sizes, layouts)
                ]
        return [
            _group_of(one, plain if isinstance(one, Gemm) and one.plain else others, asked.data)
            for one in problems
        ]


@dataclass(frozen=True)
class ConvRequest(Request):
    """The options of `microbench conv`."""

    name = "conv"
    most_s = CONV_MOST_S

    channels: str = choice("8..2048", "8..2048 doubles; 1..72:+1 steps; 64x256 is CxK")
    passes: str = choice("fprop", "fprop (forward), dgrad and wgrad (gradients)", written="--pass")
    image: str = choice("28", "Input height and width: 28, 7..56, 28x56")
    batch: str = choice("16", "Batch size: 16, 8..256")
    kernel: str = choice("3", "Filter height and width: 3; 1,3; 1x7")
    layout: str = choice("nhwc,nchw", "nhwc (channels_last), nchw (PyTorch's default)")
    stride: str = choice("1", "Stride: 2, or rows x columns: 1x2")
    padding: str = choice("same", "Padding: 1, or rows x columns: 0x15, or same")
    dilation: str = choice("1", "Dilation: 2, or rows x columns: 1x2")
    groups: str = choice("1", "Groups: a number, or depthwise")
    shapes: Path | None = choice(None, SHAPES)

    def plan(self, kind: str) -> list[Group]:
        """One comparison per width, pass, layout, image, batch, kernel; and the padded twin of each
        misaligned width. UserError for an invalid value, or sizes that fit no convolution.
        """
        asked = self.conditions
        variants = plan_variants("conv", asked, kind)
        if self.shapes:
            problems = read_shapes("conv", self.shapes)
            return [_group_of(problem, variants, asked.data) for problem in problems]
        stride = of_axes(*sweep.parse_axes(self.stride, "--stride"))
        dilations = sweep.parse_axes(self.dilation, "--dilation")
        convs: list[Conv] = []
        for which, layout, (h, w), batch, (r, s), (c, k) in product(
            sweep.parse_names(self.passes, PASSES, "--pass"),
            sweep.parse_names(self.layout, Conv.CHOICES["layout"], "--layout"),
            sweep.parse_sizes(self.image, "--image", rank=2),
            sweep.parse_numbers(self.batch, "--batch"),
            sweep.parse_sizes(self.kernel, "--kernel", rank=2),
            sweep.parse_sizes(self.channels, "--channels", rank=2),
        ):
            padding = _padding(self.padding, (r, s), dilations)
            groups = c if self.groups == "depthwise" else sweep.parse_number(self.groups, GROUPS)
            with refused(f"{of_axes(c, k)} channels, image {h}x{w}"):
                steps = stride, padding, of_axes(*dilations)
                shape = ConvShape(batch, c, h, w, k, r, s, *steps, groups)
            convs.append(Conv(shape, which, layout))
        planned = [_group_of(conv, variants, asked.data) for conv in convs]
        return [*planned, *_padded(convs, asked, kind)]


@dataclass(frozen=True)
class AttentionRequest(Request):
    """The options of `microbench attention`."""

    name = "attention"
    most_s = ATTENTION_MOST_S

    sizes: str = choice("512..8192", "Sequence lengths: 512..8192 doubles")
    heads: str = choice("16x64", "Heads x head size: 16x64; with key/value heads: 32x8x128")
    batch: str = choice("8", "Batch size: 8, 1..64")
    passes: str = choice("fprop,bprop", "fprop (forward), bprop (gradients)", written="--pass")
    layout: str = choice(CAUSAL, "causal (a query sees the keys up to its own), full")
    shapes: Path | None = choice(None, SHAPES)

    def plan(self, kind: str) -> list[Group]:
        """One comparison per pass, layout, heads, batch, length. UserError for an invalid value."""
        asked = self.conditions
        variants = plan_variants(self.name, asked, kind)
        absent = [name for name, _ in variants if name not in MEASURED]
        if absent and not any(OWN in backend for _, backend in variants):
            choices = ", ".join(MEASURED)
            raise UserError(f"--dtype: attention has no {absent[0]}; choose from {choices}")
        if self.shapes:
            problems = read_shapes(self.name, self.shapes)
        else:
            if any("x" not in heads for heads in self.heads.split(",")):
                raise UserError(f"--heads {self.heads}: write heads x head size, such as 16x64")
            words = Attention.CHOICES
            axes = product(
                sweep.parse_names(self.passes, words["pass"], "--pass"),
                sweep.parse_names(self.layout, words["layout"], "--layout"),
                sweep.parse_sizes(self.heads, "--heads", rank=2, more=1),
                sweep.parse_numbers(self.batch, "--batch"),
                sweep.parse_numbers(self.sizes, "--sizes"),
            )
            with refused(f"--heads {self.heads}"):
                problems = [
                    Attention(batch, heads[0], heads[-2], sequence, heads[-1], which, layout)
                    for which, layout, heads, batch, sequence in axes
                ]
        return [_group_of(problem, variants, asked.data) for problem in problems]


@dataclass(frozen=True)
class PayoffRequest(ConvRequest):
    """`microbench payoff`: a sweep of convolutions or linear layers that is shown as a map.

    Of a linear layer, channels are its features in and out, and a batch is of tokens.
    """

    name = "payoff"
    most_s = PAYOFF_MOST_S

    op: str = choice("conv", "Op: conv; linear (FP8)", check=one_of(tuple(PAYOFF_USUAL)))

    @classmethod
    def usual(cls, words: Mapping[str, Any]) -> Mapping[str, Any]:
        return PAYOFF_USUAL[words.get("op") or "conv"]

    def plan(self, kind: str) -> list[Group]:
        """Every cell. UserError for --vs that is no baseline of the op."""
        baselines = OPS[self.op].baselines
        for name in sweep.parse_precisions(self.conditions.vs, "--vs"):
            if name not in baselines:
                raise UserError(f"--vs {name}: the map compares with {' or '.join(baselines)}")
        groups = super().plan(kind) if self.op == "conv" else self._linear(kind)
        return [group for group in groups if len(group.cases) > 1]

    def _linear(self, kind: str) -> list[Group]:
        """Of sizes that are given, of a file of shapes, or of a network's linear layers."""
        variants, data = plan_variants(self.op, self.conditions, kind), self.conditions.data
        named = str(self.shapes or "")
        if ":" in named or (named and named.lower() in torchvision_names()):
            products = (one.problem.mnk for one in _traced(named, tokens=(1,)).layers)
            if not (features := [(k, n) for _, n, k in products]):
                raise UserError(f"--shapes {named} has no linear layers")
        elif self.shapes:
            problems = read_shapes(self.op, self.shapes)
            return [_group_of(problem, variants, data) for problem in problems]
        else:
            features = sweep.parse_sizes(self.channels, "--channels", rank=2)
        return [
            _group_of(Linear(tokens, k, n, which, layout), variants, data)
            for which in sweep.parse_names(self.passes, Linear.CHOICES["pass"], "--pass")
            for layout in sweep.parse_names(self.layout, Linear.CHOICES["layout"], "--layout")
            for tokens in sweep.parse_numbers(self.batch, "--batch")
            for k, n in features
        ]


def _traced(
    name: str, batch: int = 1, image: int | None = None, tokens: Sequence[int] = ()
) -> Traced:
    """A network's step, or its linear layers by tokens. UserError where it cannot be traced."""
    known = torchvision_names()
    command_line.check_there(name)
    if ":" not in name and name.lower() not in known:
        hint = suggest(name.lower(), known) or "; your own: module:function"
        raise UserError(f"torchvision has no network {name!r}{hint}")
    from microbench.network.trace import decoding, traced

    network = traced(name, batch, image)
    return decoding(network, tokens) if tokens else network


@dataclass(frozen=True)
class LayersRequest(Request):
    """The options of `microbench layers`; `image` is pixels a side. With `tokens` it is decode: the
    linear layers of a forward pass with so few.
    """

    name = "layers"
    most_s = LAYERS_MOST_S
    traces = True

    network_name: str
    batch: int = choice(32, "Batch size", check=at_least(1))
    image: int | None = choice(
        None, "Image height and width  [default: of the network]", check=at_least(1)
    )
    tokens: str | None = choice(None, "Decode: linear layers of so many tokens: 1..256 doubles")

    @classmethod
    def usual(cls, words: Mapping[str, Any]) -> Mapping[str, Any]:
        if words.get("tokens") is None:
            return STEP_USUAL
        if words.get("batch") is not None:
            raise UserError("--tokens is the batch of decode: leave out --batch")
        return DECODE_USUAL

    def plan(self, kind: str) -> list[Group]:
        """One comparison per distinct GEMM or convolution. UserError: cannot be traced."""
        return self._planned(kind)[0]

    def network(self, kind: str) -> NetworkUse | None:
        """The network, and where it uses each problem."""
        return self._planned(kind)[1]

    def _planned(self, kind: str) -> tuple[list[Group], NetworkUse]:
        tokens = sweep.parse_numbers(self.tokens, "--tokens") if self.tokens else ()
        network = _traced(self.network_name, self.batch, self.image, tokens)
        return plan_layers(network, self.conditions, kind)


def torchvision_names() -> set[str]:
    """The names of torchvision's networks, from its source: to import it takes seconds."""
    spec, names = find_spec("torchvision"), set[str]()
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder, "models").rglob("*.py"):
            registered = BUILDER.findall(path.read_text(encoding="utf-8"))
            names |= {name or function for name, function in registered}
    return names


REQUESTS: Mapping[str, type[Request]] = {
    one.name: one
    for one in (GemmRequest, ConvRequest, AttentionRequest, PayoffRequest, LayersRequest)
}


def request_of(kind: type[R], words: Mapping[str, Any]) -> R:
    """The request of a command, from its options by name. UserError for an invalid value."""
    command_line.check_options(words, kind, Conditions)
    given = {name: value for name, value in words.items() if value is not None}
    words = {**words, **kind.usual(words), **given}
    conditions = filled(Conditions, words, outputs=filled(Outputs, words))
    return filled(kind, words, conditions=conditions)


# ---------------------------------------------------------------- the variants

Variant = tuple[str, str]  # precision, back end


def plan_variants(op: str, asked: Conditions, kind: str) -> list[Variant]:
    """The variants, as (precision, back end): baselines by the library, then each asked precision.

    `kind` is the device's, "cuda" or "cpu"; it decides the default back ends. `asked.vs` names the
    baselines ("none" for none). A user's own back end brings the libraries beside it. UserError for
    an unknown precision or back end.
    """
    entry, library = OPS[op], OPS[op].library_backend(kind)
    named = entry.gpu_defaults if kind == "cuda" else ("cpu",)
    if asked.backend is not None:
        known, own = _backends(asked.backend, entry.backends)
        beside = [library, *(entry.libraries if kind == "cuda" else ())] if own else []
        named = [*beside, *known, *own]
    baselines = [] if asked.vs == "none" else sweep.parse_precisions(asked.vs, "--vs")
    variants = [(p, library) for p in baselines]
    return list(dict.fromkeys([*variants, *product(sweep.parse_precisions(asked.dtype), named)]))


def _backends(text: str, choices: Iterable[str]) -> tuple[list[str], list[str]]:
    """The back ends that are named of these, and the user's own, "module:name".

    UserError, in one line, for one that is unknown, or of the user's that cannot be had.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    own = [name for name in names if OWN in name]
    for name in own:
        with refused(f"--backend {name}"):
            _ = UserBackend(name).found  # imports it
    ours = ",".join(name for name in names if OWN not in name)
    if own and not ours:
        return [], own
    return sweep.parse_names(ours, [*choices, "module:function"], "--backend"), own


def _group_of(problem: Problem, variants: Sequence[Variant], data: str) -> Group:
    """The problem in every variant."""
    return Group(tuple(Case(problem, *variant, data) for variant in variants))


def _padding(text: str, kernel: tuple[int, int], dilations: tuple[int, int]) -> int | str:
    if text != "same":
        return of_axes(*sweep.parse_axes(text, "--padding"))
    if not all(size % 2 for size in kernel):
        raise UserError(
            f"--padding same needs kernels of odd size, not {kernel[0]}x{kernel[1]}; give a number"
        )
    rows, columns = (step * (size - 1) // 2 for step, size in zip(dilations, kernel, strict=True))
    return of_axes(rows, columns)


def _padded(problems: Sequence[Conv], asked: Conditions, kind: str) -> list[Group]:
    """The padded twins of misaligned widths, measured for comparison."""
    planned, library = set(problems), OPS["conv"].library_backend(kind)
    twins: dict[Case, None] = {}
    for problem, name in product(problems, sweep.parse_precisions(asked.dtype)):
        if "cudnn" not in PRECISIONS[name].min_capability:
            continue
        twin = problem.aligned(PRECISIONS[name])
        if twin not in planned:
            twins[Case(twin, name, library, asked.data)] = None
    return [Group((case,)) for case in twins]


def plan_layers(network: Traced, asked: Conditions, kind: str) -> tuple[list[Group], NetworkUse]:
    """A comparison per distinct GEMM and convolution (channels_last), and where the network uses
    them, on a device of kind "cuda" or "cpu". UserError for an invalid back end or precision.
    """
    from microbench.results.types import LayerUse, NetworkUse

    groups: dict[str, Group] = {}
    uses: list[LayerUse] = []
    for layer in network.layers:
        variants = _layer_variants(layer.problem.op, asked, kind)
        group = _group_of(layer.problem, variants, asked.data)
        groups.setdefault(group.name, group)
        uses.append(LayerUse(group.name, layer.which, layer.count, layer.names))
    of_network = network.network, network.batch, network.image
    return [*groups.values()], NetworkUse(*of_network, tuple(uses), network.skipped)


def _layer_variants(op: str, asked: Conditions, kind: str) -> Sequence[Variant]:
    """The user's own back ends stand beside the library, each at the op that it is for. Of those
    named, one that lacks a precision is left out where another has it.
    """
    names, own = _backends("library" if asked.backend is None else asked.backend, LAYER_BACKENDS)
    if own and "library" not in names:
        names = ["library", *names]
    library = OPS[op].library_backend(kind)
    named = [library if name == "library" else name
             for name in names if name == "library" or name in OPS[op].backends]  # fmt: skip
    named += [name for name in own if OPS[op].serves(name)]
    variants = plan_variants(op, replace(asked, backend=",".join(named or [library])), kind)
    able = [(name, backend) for name, backend in variants if OPS[op].has(backend, name, kind)]
    return [variant for variant in variants if variant in able or variant[0] not in dict(able)]


# ---------------------------------------------------------------- how to measure


def patterns(text: str) -> tuple[str, ...]:
    """The patterns of a list with commas; a kernel's name stands for all of its labels."""
    words = [word for word in map(str.strip, text.split(",")) if word]
    return tuple(word if "/" in word else f"{word}/*" for word in words)


def check_without(text: str, cases: Iterable[Case], target: Target) -> None:
    """UserError for a pattern of --without that no Triton configuration of these cases matches."""
    left = patterns(text)
    for case in cases:
        if not left:
            return
        labels = OPS[case.op].labels(case, target)
        left = tuple(text for text in left if not any(fnmatchcase(label, text) for label in labels))
    if left:
        raise UserError(
            f"--without: {left[0]!r} leaves out no Triton configuration of these cases on "
            f"{target.name}"
        )


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The only list of measuring conditions.

    Each is one field; the click option, its check, what the measuring process gets, and what the
    run file keeps and --resume must repeat are derived from it.
    """

    dtype: str = choice("fp16", "Precisions: fp64,fp32,tf32,fp16,fp16-acc16,bf16,fp8,int8,...")
    backend: str | None = choice(None, "Back ends")
    vs: str = choice("fp32,tf32", "Baselines, interleaved with the rest; or none")
    data: str = choice(
        "normal", "Input values: normal, uniform, integers or zeros", check=one_of(DATA)
    )
    device: str = choice("auto", "Device: auto, cuda, cuda:N or cpu")
    timer: str = choice(
        "auto",
        "Timer: auto, events, graph (CUDA graph), clock (CPU)",
        kept=True,
        check=one_of(TIMERS),
    )
    l2: str = choice(
        "cold",
        "cold: flush the L2 before each launch; warm: do not",
        kept=True,
        check=one_of(L2_STATES),
    )
    regime: str = choice(
        "sustained",
        "sustained: clocks settled; burst: a cool card",
        kept=True,
        check=one_of(REGIMES),
    )
    budget: float | None = choice(
        None, "Total sampling time in seconds  [default: by case]", check=command_line.above_0()
    )
    processes: int | None = choice(
        None,
        "Processes that time each case; 3 for runs that will be compared  [default: 1]",
        check=command_line.check_processes,
    )
    tune: int = choice(
        QUICK,
        "Triton configurations to time for a case that was not tuned; above 6: for every case",
        check=at_least(0, MOST_CANDIDATES),
    )
    without: str = choice(
        "", "Leave out our Triton configurations of these labels: 'split_k/*,*/direct'", kept=True
    )
    seed: int | None = choice(
        None, "Seed of the input values  [default: random]", check=command_line.check_seed
    )
    outputs: Outputs = field(default_factory=Outputs)
