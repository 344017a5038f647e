"""Measures the kernels of `kernels/`: how fast they are, and what the bottleneck is.

`microbench.gemm`, `conv`, `attention`, `payoff`, `layers`, `bench`, `compare_variants` and `load`
are the functions of `microbench.api`, which loads when one is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microbench.api import Measurement as Measurement
    from microbench.api import Run as Run
    from microbench.api import UserError as UserError
    from microbench.api import Variants as Variants
    from microbench.api import attention as attention
    from microbench.api import bench as bench
    from microbench.api import compare_variants as compare_variants
    from microbench.api import conv as conv
    from microbench.api import gemm as gemm
    from microbench.api import layers as layers
    from microbench.api import load as load
    from microbench.api import payoff as payoff

__version__ = "0.1.0"
API = ("Measurement", "Run", "UserError", "Variants", "attention", "bench", "compare_variants",
       "conv", "gemm", "layers", "load", "payoff")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from microbench import api

    return getattr(api, name)
