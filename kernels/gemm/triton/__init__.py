"""Back end triton of op gemm: kernels, configurations and their ranking, launches."""
