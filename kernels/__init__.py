"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.case import Case
from kernels.conv import OP as CONV
from kernels.gemm import OP as GEMM
from kernels.op import Op

OPS: Mapping[str, Op] = {op.name: op for op in (GEMM, CONV)}


def is_library(case: Case) -> bool:
    """Whether the case uses the vendor's library (or torch on a CPU), as baselines do."""
    return case.backend in (OPS[case.op].library_backend(kind) for kind in ("cuda", "cpu"))


def size_of(case: Case) -> str:
    """The size in short: "4096" or "4096x11008x4096" (MxNxK), "64x256" (channels CxK)."""
    return OPS[case.op].size(case)
