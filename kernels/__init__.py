"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from collections.abc import Mapping

from kernels.case import Case, Op
from kernels.conv import Conv
from kernels.gemm import Gemm

OPS: Mapping[str, Op] = {"gemm": Gemm(), "conv": Conv()}


def is_library(case: Case) -> bool:
    """Whether a case is run by what stands for the vendor's library: what baselines run on."""
    return case.backend in (OPS[case.op].library_backend(kind) for kind in ("cuda", "cpu"))


def size_of(case: Case) -> str:
    """The size in a word: "4096", "64x256"."""
    return OPS[case.op].size(case)
