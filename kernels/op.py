"""The ops: which back ends run their cases, and how a case is prepared."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernels.attention import Attention
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.conv import Conv
from kernels.gemm import Gemm
from kernels.linear import Linear
from kernels.precision import PRECISIONS
from kernels.problem import Problem
from kernels.tune import NONE
from kernels.user import UserBackend

if TYPE_CHECKING:
    from kernels.checking import Prepared

OWN = ":"  # in the name of a back end that the user brings
TUNED = "triton"  # the back end of our kernels, whose configurations are tuned
SEPARATE = "separate"  # the back end that runs each part of a case by a kernel of its own


@dataclass(frozen=True)
class BackendEntry:
    """One back end of an op: the module that offers `check` and `candidates`; that of TUNED,
    `configurations` and `compiled` too.
    """

    module: str
    title: str
    kind: str  # of device: "cuda", "cpu" or "any"
    like: str = ""  # the back end whose capabilities it has, if not those of its own name

    def load(self) -> Any:
        """The module. ImportError where a package that it needs is not installed."""
        return importlib.import_module(self.module)

    def candidates(
        self, case: Case, operands: Any, target: Target, *, search: int
    ) -> tuple[Candidate, ...]:
        """The ways to run the case; of our kernels, `search` of them. Raises
        CannotRun with the reason where there is none, ImportError as `load` does.
        """
        searched = (search,) if case.backend == TUNED else ()
        return tuple(self.load().candidates(case, operands, target, *searched))

    def check(self, case: Case, target: Target) -> None:
        """CannotRun where the case cannot run on the target: device, capability, or the module's
        reason. ImportError as `load`.
        """
        if self.kind not in ("any", target.kind):
            device = "a CUDA GPU" if self.kind == "cuda" else "--device cpu"
            raise CannotRun(f"back end {case.backend} needs {device}")
        if target.kind == "cuda":
            name, have = case.precision_name, target.capability or (0, 0)
            need = case.precision.min_capability.get(self.like or case.backend)
            if need is None:
                raise CannotRun(f"{case.backend} has no {name}")
            if have < need:
                (least, minor), (major, own_minor) = need, have
                raise CannotRun(
                    f"{name} needs compute capability {least}.{minor}, "
                    f"this GPU has {major}.{own_minor}"
                )
        elif case.precision.multiply == "tf32":
            raise CannotRun("tf32 is a Tensor Core mode; a CPU has none")
        self.load().check(case, target)


@dataclass(frozen=True)
class Op:
    """An operation that can be measured: its back ends, and what its cases may be.

    Its package `kernels.NAME` has its `Problem`, and the modules `operands` and `triton.backend`.
    """

    problem: type[Problem]
    entries: Mapping[str, BackendEntry]
    gpu_defaults: tuple[str, ...]  # what is measured on a GPU when the user names no back end
    libraries: tuple[str, ...]  # of the vendor, the usual one first; ours are held against these
    axis_name: str  # what a problem's `axis` counts
    knobs: str  # the options that make a problem smaller
    check_bytes: int  # that the float64 check and the cache flush take beside the tensors, at most
    baselines: tuple[str, ...] = ("fp32", "tf32")  # the precisions that others are held against
    across: Mapping[str, str] = field(default_factory=dict[str, str])  # a map's, and their titles
    explained: bool = True  # whether a launch is one product, whose bottleneck can be named

    @property
    def backends(self) -> Mapping[str, str]:
        """Names of the back ends -> one line about each."""
        return {name: entry.title for name, entry in self.entries.items()}

    def entry(self, backend: str) -> BackendEntry | UserBackend:
        """The back end of a name: one of ours, or the user's "module:name". KeyError for others."""
        return UserBackend(backend) if OWN in backend else self.entries[backend]

    def serves(self, own: str) -> bool:
        """Whether a user's back end is for this op: an object is for all; a function for the op of
        which it names most arguments, else for the first. ValueError where there is none.
        """
        names = UserBackend(own).arguments
        return names is None or self is max(
            OPS.values(), key=lambda op: len(op.problem.ARGUMENTS & names)
        )

    def library_backend(self, kind: str) -> str:
        """The back end that baselines are measured with on a kind of device."""
        return self.libraries[0] if kind == "cuda" else "cpu"

    def has(self, backend: str, precision_name: str, kind: str) -> bool:
        """Whether a back end, as far as its names say, has a precision on a kind of device."""
        if OWN in backend:
            return True
        entry, able = self.entries[backend], PRECISIONS[precision_name].min_capability
        return entry.kind in ("any", kind) and (kind == "cpu" or (entry.like or backend) in able)

    def check(self, case: Case, target: Target) -> None:
        """CannotRun, with the reason, where the case cannot run on the target. KeyError for an
        unknown back end.
        """
        if case.precision.only not in ("", case.op):
            raise CannotRun(f"{case.precision_name} is of {case.precision.only} alone")
        self.entry(case.backend).check(case, target)

    def labels(self, case: Case, target: Target) -> frozenset[str]:
        """Of all Triton configurations that may run the case; none for another back end, and where
        Triton cannot run it.
        """
        if case.backend != TUNED:
            return frozenset()
        try:
            self.check(case, target)
            ranked = self.entries[TUNED].load().configurations(case, target).ranked
        except (CannotRun, ImportError):
            return frozenset()
        return frozenset(config.label for config in ranked)


_BLAS, _CONV = "kernels.gemm.torch_blas", "kernels.conv.torch_conv"
GEMM = Op(
    Gemm,
    {
        "cublas": BackendEntry(_BLAS, "cuBLAS as torch calls it", "cuda"),
        "cublaslt": BackendEntry(
            "kernels.gemm.cublaslt", "fastest of cuBLASLt's candidates", "cuda"
        ),
        "cupy": BackendEntry(
            "kernels.gemm.cupy_blas", "cuBLAS gemmEx called directly through CuPy", "cuda"
        ),
        TUNED: BackendEntry("kernels.gemm.triton.backend", "this project's Triton kernels", "cuda"),
        SEPARATE: BackendEntry(
            _BLAS, "a kernel for each product, bias and GELU", "any", like="cublas"
        ),
        "cpu": BackendEntry(_BLAS, "torch on the CPU (oneDNN, MKL)", "cpu"),
    },
    gpu_defaults=("cublas", "cublaslt", TUNED),
    libraries=("cublas", "cublaslt"),
    axis_name="size",
    knobs="--sizes",
    check_bytes=1 << 29,
)
CONV = Op(
    Conv,
    {
        "cudnn": BackendEntry(_CONV, "cuDNN as torch calls it, cudnn.benchmark on", "cuda"),
        TUNED: BackendEntry(
            "kernels.conv.triton.backend", "this project's Triton kernels, NHWC", "cuda"
        ),
        "cpu": BackendEntry(_CONV, "torch on the CPU (oneDNN)", "cpu"),
    },
    gpu_defaults=("cudnn",),
    libraries=("cudnn",),
    axis_name="channels",
    knobs="--channels, --image or --batch",
    check_bytes=3 << 30,  # bands of three tensors in float64; torch keeps an output of its own
    across={"image": "image (pixels)", "batch": "batch"},
)
_LINEAR = "kernels.linear.torch_linear"
LINEAR = Op(
    Linear,
    {
        "torch": BackendEntry(_LINEAR, "torch's products, casts and compiler", "cuda", "cublas"),
        "torchao": BackendEntry(_LINEAR, "torchao's Float8Linear, whole steps", "cuda", "cublas"),
        "cpu": BackendEntry(_LINEAR, "torch on the CPU", "cpu"),
    },
    gpu_defaults=("torch",),
    libraries=("torch",),
    axis_name="features",
    knobs="--channels or --batch",
    check_bytes=3 << 30,  # FP8 operands of every product, and what they stand for in float32
    baselines=("bf16",),
    across={"batch": "batch (tokens)"},
    explained=False,
)
_SDPA = "kernels.attention.torch_attention"
ATTENTION = Op(
    Attention,
    {
        "torch": BackendEntry(_SDPA, "the back end that torch picks", "cuda", like="cudnn"),
        "cudnn": BackendEntry(_SDPA, "cuDNN as torch calls it", "cuda"),
        "flash": BackendEntry(_SDPA, "torch's FlashAttention", "any", like="cudnn"),
        "efficient": BackendEntry(_SDPA, "torch's CUTLASS kernels", "cuda", like="cudnn"),
        "math": BackendEntry(_SDPA, "products and a softmax, each alone", "any", like="cudnn"),
        "cpu": BackendEntry(_SDPA, "torch on the CPU", "cpu"),
    },
    gpu_defaults=("torch", "cudnn", "flash", "efficient", "math"),
    libraries=("torch",),
    axis_name="sequence",
    knobs="--sizes, --heads or --batch",
    check_bytes=2 << 30,  # a band of one head's scores in float64, and what is made of it
)

OPS: Mapping[str, Op] = {op.problem.op: op for op in (GEMM, CONV, ATTENTION, LINEAR)}


def is_library(case: Case) -> bool:
    """Whether the case uses the vendor's library (or torch on a CPU), as baselines do."""
    return case.backend in ("cpu", OPS[case.op].libraries[0])


class Session:
    """Prepares cases; variants of one group that store the same operands share memory."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.checking = importlib.import_module("kernels.checking")  # with torch
        self.pool = importlib.import_module("kernels.data").OperandPool(target, seed)

    def prepare(self, case: Case, *, search: int = NONE) -> Prepared:
        """Allocate, fill and bind what a `search` tries. Raises CannotRun with a reason, or
        torch.OutOfMemoryError; ValueError for a user's back end that is none, ImportError for one
        whose packages are missing.
        """
        operands, entry = self.pool.get(case), OPS[case.op].entry(case.backend)
        found = entry.candidates(case, operands, self.target, search=search)
        return self.checking.Prepared(case, operands, found)

    def close(self) -> None:
        self.pool.clear()
