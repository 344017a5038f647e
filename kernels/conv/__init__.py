"""Op conv: 2-D convolution, each pass alone: fprop, dgrad, wgrad; NCHW and NHWC.

y[N, K, P, Q] = x[N, C, H, W] * w[K, C/groups, R, S]. dgrad and wgrad are its gradients by x and w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kernels.backends import BackendEntry
from kernels.case import Candidate, Case, Prepared, Target
from kernels.conv.shape import DIMS, PASSES, ConvShape

LAYOUTS = ("nchw", "nhwc")
ALIGNMENT_BYTES = 16  # of a pixel's channels: what TMA, cp.async and 128-bit loads take
FLOAT32_EPSILON = 2.0**-24
ROUNDINGS = 4  # sums of n terms in a row err by about epsilon * sqrt(n); wgrad's are seen at 1.1
SPLIT_SUMS = 2  # cuDNN's fp16 wgrad of a 7x7 stem was seen at 1.4e-3, four roundings' worth
BELOW_TF32 = 1e-4  # TF32 errs by 3e-4
PROBED = {"n": 1, "c": 64, "k": 64, "h": 28, "w": 28}  # at most, of a case that is tried small

_BACKENDS: Mapping[str, BackendEntry] = {
    "cudnn": BackendEntry(
        "kernels.conv.torch_conv", "cuDNN as torch calls it, cudnn.benchmark on", "cuda"
    ),
    "triton": BackendEntry(
        "kernels.conv.triton.backend", "this project's Triton kernels, NHWC", "cuda"
    ),
    "cpu": BackendEntry("kernels.conv.torch_conv", "torch on the CPU (oneDNN)", "cpu"),
}


class Conv:
    """The op: how much work a case is, whether it can run, and how to run it."""

    name = "conv"
    dims: tuple[str, ...] = DIMS
    layouts: tuple[str, ...] = LAYOUTS
    axis_name = "channels"
    backends: Mapping[str, str] = {name: b.title for name, b in _BACKENDS.items()}

    def default_backends(self, kind: str) -> tuple[str, ...]:
        """What is measured when the user names no back end."""
        return ("cudnn",) if kind == "cuda" else ("cpu",)

    def library_backend(self, kind: str) -> str:
        """The back end that baselines are measured with."""
        return "cudnn" if kind == "cuda" else "cpu"

    def validate(self, case: Case) -> None:
        """ValueError for dimensions that are no convolution, an unknown pass or layout."""
        ConvShape.of(case)
        if case.dims.get("pass") not in PASSES:
            raise ValueError(f"pass is {case.dims.get('pass')!r}")
        if case.layout not in LAYOUTS:
            raise ValueError(f"layout is {case.layout!r}")

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target, or None."""
        return _BACKENDS[case.backend].cannot_run(case, target)

    def flops(self, case: Case) -> int:
        """2*N*K*P*Q*C*R*S/groups, of every pass alike."""
        return ConvShape.of(case).flops

    def min_bytes(self, case: Case) -> int:
        """Both inputs read once, the output written once; of dgrad's output every pixel."""
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
        """The precision's own, or a float32 sum's of that length, whichever is larger.

        wgrad's long sums are split, and cuDNN keeps the parts in float16. float32's tolerance stays
        below what TF32 would do.
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
        """cuDNN takes an IEEE kernel where that is faster, though TF32 is allowed."""
        return case.precision.multiply == "tf32" and case.backend == "cudnn"

    def gemm(self, case: Case) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM, of one group."""
        return ConvShape.of(case).gemm(str(case.dims["pass"]))

    def misaligned(self, case: Case) -> tuple[str, int] | None:
        """("C=60", 120) when a pixel's channels do not fill whole 16-byte words.

        Grouped convolutions have kernels of their own, of which nothing is said.
        """
        for name in ("c", "k"):
            stride = case.dim(name) * case.precision.bytes_per_element
            if stride % ALIGNMENT_BYTES and case.dim("groups") == 1:
                return f"{name.upper()}={case.dim(name)}", stride
        return None

    def aligned(self, case: Case) -> Case:
        """The case with channels padded up to what `misaligned` asks for."""
        if self.misaligned(case) is None:
            return case
        whole = ALIGNMENT_BYTES // case.precision.bytes_per_element
        dims = dict(case.dims) | {d: -(-case.dim(d) // whole) * whole for d in ("c", "k")}
        return replace(case, dims=dims)

    def size(self, case: Case) -> str:
        """ "64" for as many channels in as out, "64x256" otherwise."""
        c, k = case.dim("c"), case.dim("k")
        return str(c) if c == k else f"{c}x{k}"

    def axis(self, case: Case) -> int | None:
        """The channel width, where there is one."""
        return case.dim("c") if case.dim("c") == case.dim("k") else None

    def setting(self, case: Case) -> Mapping[str, str]:
        """What else a case is, by name: pass, layout, image, batch and so on."""
        return {
            "pass": str(case.dims["pass"]),
            "layout": case.layout,
            "image": _pair(case, "h", "w"),
            "batch": str(case.dims["n"]),
            "kernel": _pair(case, "r", "s"),
            **{name: str(case.dims[name]) for name in ("stride", "padding", "dilation", "groups")},
        }

    def probe(self, case: Case) -> Case:
        """A small case of the same kind, to try what a large one would take."""
        groups = 1 if case.dim("groups") == 1 else min(case.dim("groups"), PROBED["c"])
        dims = dict(case.dims) | {d: min(case.dim(d), most) for d, most in PROBED.items()}
        dims |= {"groups": groups} | {d: -(-int(dims[d]) // groups) * groups for d in ("c", "k")}
        for image, kernel in (("h", "r"), ("w", "s")):
            reach = case.dim("dilation") * (case.dim(kernel) - 1) + 1
            dims[image] = max(int(dims[image]), reach)
        return replace(case, dims=dims)

    def save_tuned(self, case: Case, target: Target, label: str) -> Path:
        """Record the Triton configuration that won a search; the path of the user's table."""
        from kernels.conv.triton.backend import save_tuned

        return save_tuned(case, target, label)

    def session(self, target: Target, seed: int) -> ConvSession:
        """A session that shares operands between arms."""
        return ConvSession(self, target, seed)


def _pair(case: Case, first: str, second: str) -> str:
    """ "28" for a square, "28x56" otherwise."""
    a, b = case.dims[first], case.dims[second]
    return str(a) if a == b else f"{a}x{b}"


class ConvSession:
    """Prepares convolutions on one target."""

    def __init__(self, op: Conv, target: Target, seed: int) -> None:
        from kernels.conv.operands import OperandPool

        self.op = op
        self.target = target
        self.pool = OperandPool(target, seed)

    def prepare(self, case: Case, *, tune: bool = False) -> Prepared:
        """Allocate, fill and bind; raises CannotRun or torch.OutOfMemoryError."""
        import torch

        from kernels.checking import poison
        from kernels.conv import check
        from kernels.conv.operands import OUTPUT, ConvOperands

        operands = self.pool.get(case)
        backend = _BACKENDS[case.backend]
        found = backend.candidates(case, operands, self.target, tune=tune)
        last: list[ConvOperands] = [operands]

        def rel_error(candidate: Candidate) -> float:
            poison(operands.output)
            # torch allocates its outputs: leave poison where the allocator takes them from.
            poison(torch.empty_like(operands.output))
            out = candidate.call()
            if isinstance(out, torch.Tensor):
                last[0] = replace(operands, **{OUTPUT[operands.which]: out})
            return check.relative_error(last[0])

        return Prepared(
            found,
            rel_error,
            lambda: check.total_error(last[0]),
            self.op.flops(case),
            self.op.min_bytes(case),
        )

    def close(self) -> None:
        """Free the tensors."""
        self.pool.clear()


OP = Conv()
