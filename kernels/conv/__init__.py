"""Op conv: 2-D convolution, each pass alone: fprop, dgrad, wgrad; NCHW and NHWC.

y[N, K, P, Q] = x[N, C, H, W] * w[K, C/groups, R, S]. dgrad and wgrad are its gradients by x and w.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kernels.conv.shape import DIMS, PASSES, ConvShape, of_axes
from kernels.precision import Precision
from kernels.problem import Problem, padded

LAYOUTS = ("nchw", "nhwc")
INPUTS = {"fprop": ("x", "w"), "dgrad": ("w", "y"), "wgrad": ("x", "y")}
OUTPUT = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
IMAGE_CHANNELS = 4  # at most: a layer of so few input channels, and more output, reads an image
FLOAT32_EPSILON = 2.0**-24
ROUNDINGS = 4  # sums of n terms in a row err by about epsilon * sqrt(n); wgrad's are seen at 1.1
SPLIT_SUMS = 2  # cuDNN's fp16 wgrad of a 7x7 stem was seen at 1.4e-3, four roundings' worth
BELOW_TF32 = 1e-4  # TF32 errs by 3e-4
PROBED = {"n": 1, "c": 64, "k": 64, "h": 28, "w": 28}  # at most, of a problem tried small


@dataclass(frozen=True)
class Conv(Problem):
    """A pass of a convolution. ValueError for an unknown pass or layout."""

    shape: ConvShape
    which: str
    layout: str = "nhwc"
    op: ClassVar[str] = "conv"
    NUMBERS: ClassVar[Sequence[str]] = DIMS[:7]
    USUAL: ClassVar[Mapping[str, str]] = {
        "stride": "1", "padding": "0", "dilation": "1", "groups": "1", "pass": "fprop",
        "layout": "nhwc",
    }  # fmt: skip
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"layout": LAYOUTS, "pass": PASSES}
    ARGUMENTS: ClassVar[frozenset[str]] = frozenset({"which", "shape", *DIMS[7:]})
    TILE: ClassVar[str] = "mnk"  # M is pixels

    @classmethod
    def fields_of(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().fields_of(named), "shape": named}

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.shape.gemm(self.which)

    @property
    def dims(self) -> Mapping[str, int | str]:
        return {**{name: getattr(self.shape, name) for name in DIMS}, "pass": self.which}

    @property
    def size(self) -> str:
        """ "64" for as many channels in as out, "64x256" otherwise."""
        return str(of_axes(self.shape.c, self.shape.k))

    @property
    def setting(self) -> Mapping[str, str]:
        s = self.shape
        return {
            "pass": self.which,
            "layout": self.layout,
            "image": str(of_axes(s.h, s.w)),
            "batch": str(s.n),
            "kernel": str(of_axes(s.r, s.s)),
            **{name: str(getattr(s, name)) for name in ("stride", "padding", "dilation", "groups")},
        }

    @property
    def inputs(self) -> Sequence[str]:
        return INPUTS[self.which]

    @property
    def outputs(self) -> Sequence[str]:
        return (OUTPUT[self.which],)

    def stored(self, name: str) -> Sequence[int]:
        """Of "x" (N, C, H, W), "w" (K, C/groups, R, S) or "y" (N, K, P, Q)."""
        s = self.shape
        return {
            "x": (s.n, s.c, s.h, s.w), "w": (s.k, s.c // s.groups, s.r, s.s),
            "y": (s.n, s.k, s.p, s.q),
        }[name]  # fmt: skip

    @property
    def flops(self) -> int:
        return self.shape.flops

    def min_bytes(self, precision: Precision) -> int:
        """Pixels of x that a stride skips are not read; dgrad writes all of dx, their zeros too."""
        shape = self.shape
        count = {name: shape.elements(name) for name in "xwy"}
        if self.which == "dgrad":
            count["x"] = shape.n * shape.c * shape.h * shape.w
        written = count.pop(OUTPUT[self.which])
        return sum(count.values()) * precision.bytes_per_element + written * precision.output_bytes

    def tolerance(self, precision: Precision) -> float:
        """The precision's own, or that of a float32 sum of that length, ROUNDINGS * 2**-24 *
        sqrt(length), whichever is larger.

        wgrad's long sums are split, and cuDNN keeps the parts in float16, so float16 may err twice
        as much there. float32's tolerance stays below the error of TF32.
        """
        own = precision.rel_tolerance
        if self.which == "wgrad" and precision.storage == "float16":
            own *= SPLIT_SUMS
        if precision.accumulate != "float32":
            return own
        added = ROUNDINGS * FLOAT32_EPSILON * self.mnk[2] ** 0.5
        return max(own, min(added, BELOW_TF32))

    def may_run_exactly(self, precision: Precision, backend: str) -> str:
        if precision.multiply != "tf32" or not (backend == "cudnn" or self.shape.depthwise):
            return ""
        return "the library chose a kernel without Tensor Cores because it was faster"

    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        """A pixel's channels; none of grouped convolutions, whose kernels have other rules."""
        channels = ("c", "k") if self.shape.groups == 1 else ()
        return tuple((name, precision.bytes_per_element) for name in channels)

    def aligned(self, precision: Precision) -> Conv:
        """The channels padded; an image has its own."""
        s = self.shape
        if self.misaligned(precision) is None:
            return self
        channels = "k" if s.c <= IMAGE_CHANNELS and s.c != s.k else "ck"
        width = precision.bytes_per_element
        more = {name: padded(getattr(s, name), width) for name in channels}
        return replace(self, shape=replace(s, **more))

    def probe(self, scale: int = 1) -> Conv:
        s = self.shape
        groups = min(s.groups, PROBED["c"])
        sizes = {name: min(getattr(s, name), scale * most) for name, most in PROBED.items()}
        sizes |= {name: -(-sizes[name] // groups) * groups for name in ("c", "k")}
        (down, right), (rows, columns) = s.dilations, (s.r - 1, s.s - 1)
        sizes["h"] = max(sizes["h"], down * rows + 1)
        sizes["w"] = max(sizes["w"], right * columns + 1)
        return replace(self, shape=replace(s, **sizes, groups=groups))
