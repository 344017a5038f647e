"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from collections.abc import Mapping

from kernels.case import Op
from kernels.gemm import Gemm

OPS: Mapping[str, Op] = {"gemm": Gemm()}
