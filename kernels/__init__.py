"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from kernels.op import OPS, is_library

__all__ = ["OPS", "is_library"]
