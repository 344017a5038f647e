"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from kernels.gemm import Gemm

OPS = {"gemm": Gemm()}
