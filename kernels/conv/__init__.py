"""Op conv: 2-D convolution, each pass alone: fprop, dgrad, wgrad; NCHW and NHWC.

y[N, K, P, Q] = x[N, C, H, W] * w[K, C/groups, R, S]. dgrad and wgrad are its gradients by x and w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from kernels.case import Case
from kernels.conv.shape import DIMS, LEAST_BY_AXIS, PASSES, ConvShape
from kernels.op import BackendEntry, Op

LAYOUTS = ("nchw", "nhwc")
ALIGNMENT_BYTES = 16  # of a pixel's channels: what TMA, cp.async and 128-bit loads take
IMAGE_CHANNELS = 4  # at most: a layer of so few input channels, and more output, reads an image
FLOAT32_EPSILON = 2.0**-24
ROUNDINGS = 4  # sums of n terms in a row err by about epsilon * sqrt(n); wgrad's are seen at 1.1
SPLIT_SUMS = 2  # cuDNN's fp16 wgrad of a 7x7 stem was seen at 1.4e-3, four roundings' worth
BELOW_TF32 = 1e-4  # TF32 errs by 3e-4
PROBED = {"n": 1, "c": 64, "k": 64, "h": 28, "w": 28}  # at most, of a case that is tried small


class Conv(Op):
    """The op conv: how much work a case is, whether it is valid, which back ends run it."""

    name = "conv"
    entries: ClassVar = {
        "cudnn": BackendEntry(
            "kernels.conv.torch_conv", "cuDNN as torch calls it, cudnn.benchmark on", "cuda"
        ),
        "triton": BackendEntry(
            "kernels.conv.triton.backend",
            "this project's Triton kernels, NHWC",
            "cuda",
            tuned=True,
        ),
        "cpu": BackendEntry("kernels.conv.torch_conv", "torch on the CPU (oneDNN)", "cpu"),
    }
    gpu_defaults = ("cudnn",)
    library = "cudnn"
    libraries = ("cudnn",)
    dims = DIMS
    pairs = tuple(LEAST_BY_AXIS)
    layouts = LAYOUTS
    axis_name = "channels"

    def validate(self, case: Case) -> None:
        """ValueError for no convolution, an unknown pass or layout; KeyError for a missing
        dimension.
        """
        ConvShape.of(case)
        if case.dims.get("pass") not in PASSES:
            raise ValueError(f"pass is {case.dims.get('pass')!r}")
        if case.layout not in LAYOUTS:
            raise ValueError(f"layout is {case.layout!r}")

    def flops(self, case: Case) -> int:
        """2*N*K*P*Q*C*R*S/groups operations per launch, the same for every pass."""
        return ConvShape.of(case).flops

    def min_bytes(self, case: Case) -> int:
        """Bytes per launch: both inputs read once, the output written once.

        Pixels of x that a stride skips are not read; dgrad writes all of dx, their zeros too.
        """
        shape, kind, which = ConvShape.of(case), case.precision, case.dims["pass"]
        count = {name: shape.elements(name) for name in "xwy"}
        if which == "dgrad":
            count["x"] = shape.n * shape.c * shape.h * shape.w
        output = {"fprop": "y", "dgrad": "x", "wgrad": "w"}[str(which)]
        return sum(
            elements * (kind.output_bytes if name == output else kind.bytes_per_element)
            for name, elements in count.items()
        )

    def tolerance(self, case: Case) -> float:
        """The largest ||out - ref|| / ||ref|| of a correct result: the precision's own, or that of
        a float32 sum of that length, ROUNDINGS * 2**-24 * sqrt(length), whichever is larger.

        wgrad's long sums are split, and cuDNN keeps the parts in float16, so float16 may err twice
        as much there. float32's tolerance stays below the error of TF32.
        """
        kind, which = case.precision, str(case.dims["pass"])
        own = kind.rel_tolerance
        if which == "wgrad" and kind.storage == "float16":
            own *= SPLIT_SUMS
        if kind.accumulate != "float32":
            return own
        depth = ConvShape.of(case).gemm(which)[2]
        added = ROUNDINGS * FLOAT32_EPSILON * depth**0.5
        return max(own, min(added, BELOW_TF32))

    def may_run_exactly(self, case: Case) -> bool:
        """Whether an IEEE kernel may run for TF32: cuDNN takes one where it is faster, and Tensor
        Cores have nothing to do for a depthwise convolution.
        """
        exact = case.backend == "cudnn" or ConvShape.of(case).depthwise
        return case.precision.multiply == "tf32" and exact

    def gemm(self, case: Case) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM, of one group."""
        return ConvShape.of(case).gemm(str(case.dims["pass"]))

    def misaligned(self, case: Case) -> tuple[str, int] | None:
        """("C=60", 120), the dimension and its bytes, when a pixel's channels do not fill whole
        16-byte words; None when they do.

        None for grouped convolutions too: they have kernels of their own, with other rules.
        """
        for name in ("c", "k"):
            stride = case.dim(name) * case.precision.bytes_per_element
            if stride % ALIGNMENT_BYTES and case.dim("groups") == 1:
                return f"{name.upper()}={case.dim(name)}", stride
        return None

    def aligned(self, case: Case) -> Case:
        """The case with channels padded up to what `misaligned` asks for; an image has its own."""
        if self.misaligned(case) is None:
            return case
        whole = ALIGNMENT_BYTES // case.precision.bytes_per_element
        image = case.dim("c") <= IMAGE_CHANNELS and case.dim("c") != case.dim("k")
        padded = {d: -(-case.dim(d) // whole) * whole for d in ("k" if image else "ck")}
        return replace(case, dims=dict(case.dims) | padded)

    def size(self, case: Case) -> str:
        """ "64" for as many channels in as out, "64x256" otherwise."""
        c, k = case.dim("c"), case.dim("k")
        return str(c) if c == k else f"{c}x{k}"

    def axis(self, case: Case) -> int | None:
        """The channel width where C = K; None for others."""
        return case.dim("c") if case.dim("c") == case.dim("k") else None

    def setting(self, case: Case) -> Mapping[str, str]:
        """What else a case is, by name: pass, layout, image (pixels), batch, kernel and so on."""
        return {
            "pass": str(case.dims["pass"]),
            "layout": case.layout,
            "image": _pair(case, "h", "w"),
            "batch": str(case.dims["n"]),
            "kernel": _pair(case, "r", "s"),
            **{name: str(case.dims[name]) for name in ("stride", "padding", "dilation", "groups")},
        }

    def probe(self, case: Case, scale: int = 1) -> Case:
        """A small case of the same kind, to try what a large one would take."""
        groups = 1 if case.dim("groups") == 1 else min(case.dim("groups"), PROBED["c"])
        dims = dict(case.dims) | {d: min(case.dim(d), scale * most) for d, most in PROBED.items()}
        dims |= {"groups": groups} | {d: -(-int(dims[d]) // groups) * groups for d in ("c", "k")}
        for axis, (image, kernel) in enumerate((("h", "r"), ("w", "s"))):
            dilation = ConvShape.of(case).dilations[axis]
            dims[image] = max(int(dims[image]), dilation * (case.dim(kernel) - 1) + 1)
        return replace(case, dims=dims)


def _pair(case: Case, first: str, second: str) -> str:
    """ "28" for a square, "28x56" otherwise."""
    a, b = case.dims[first], case.dims[second]
    return str(a) if a == b else f"{a}x{b}"


OP = Conv()
