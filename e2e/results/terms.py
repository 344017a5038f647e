"""The terms of a ledger, which a training step's time is divided into; and recorded steps, divided.

Times of recorded steps are whole nanoseconds over all of them, so that they add up exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from microbench.results.types import Amount, AtLeastOne, Count

# What the Tensor Cores compute, and what the other terms do not explain.
PRODUCT_TERMS = ("convolutions", "matrix products", "attention", "products")
RESIDUAL = "residual"
LONG_STEPS = "long steps"  # what few steps take beyond the others, in no recorded step
CONVOLUTIONS, MATRIX_PRODUCTS, ATTENTION, PRODUCTS = PRODUCT_TERMS
LAYOUT = "layout changes"
OTHER = "other ops"
TERMS = {  # kinds of ops (`e2e.aten.kinds`) but for products, in the ledger's order
    "norm": "normalisation",
    "activation": "activation",
    "pooling": "pooling",
    "softmax": "softmax and loss",
    "elementwise": "elementwise",
    "reduce": "reductions",
    "index": "index",
    "copy": "copies",
    "cast": "casts",
    "layout": LAYOUT,
    "optimizer": "optimizer",
    "scaler": "loss scaler",
    "other": OTHER,
}
OP_TERMS = (*PRODUCT_TERMS, *TERMS.values())
LOADER = "loader wait"

# Of a recorded step also: work that is no operator's, and what the device waits for.
COMMUNICATION, COPIES, FILLS = "communication", "copies to and from the device", "fills"
RECOMPUTATION = "recomputation"  # of activations, by checkpointing
# Kernels that torch.compile made of several operators.
FUSED_ELEMENTWISE, FUSED_REDUCTIONS = "fused elementwise", "fused reductions"
FUSED_KERNELS = "fused kernels"
FUSED = (FUSED_ELEMENTWISE, FUSED_REDUCTIONS, FUSED_KERNELS)
FLOAT8 = "casts and scales for FP8"
EXPOSED = "communication that nothing hides"  # of what a trace costs
LATE = "communication behind a late CPU"  # only it runs, and the CPU has launched nothing more
NOT_RECORDED = "kernels that were not recorded"  # inside a CUDA graph
EXCHANGE = "gradient exchange"  # communication of a training of ours, that nothing hides
STEP_TERMS = (
    COMMUNICATION, LATE, EXCHANGE, NOT_RECORDED, COPIES, FILLS, RECOMPUTATION, FLOAT8, *FUSED,
)  # fmt: skip
SYNC, ALLOCATION = "synchronisation", "memory allocation"
MODULES, COMPILATION = "module loading", "compilation"
LAUNCH, BETWEEN, PYTHON = "CPU launch", "between kernels", "outside of operators"
IDLE = (LOADER, SYNC, ALLOCATION, MODULES, COMPILATION, LAUNCH, BETWEEN, PYTHON)


# ---------------------------------------------------------------- recorded steps


@dataclass(frozen=True)
class TracedPart:
    """Some of the steps' time: `ns` of a term.

    Of a GEMM, a convolution or attention: the `layer`'s path, the `dtype` of its factors, and the
    shape with `misaligned` sizes; each is "" where it is unknown or not. Of a layout change inside
    one, `within` is that one's term.
    """

    term: str
    ns: Count
    layer: str = ""
    dtype: str = ""
    misaligned: str = ""
    within: str = ""


@dataclass(frozen=True)
class TracedCost:
    """Something that costs `ns` in all steps at most: where it is, and what to try against it.

    `cause` is its name among what can be tried; "" for what cannot, and in older files.
    """

    title: str
    ns: Count
    where: str
    remedy: str
    cause: str = ""


@dataclass(frozen=True)
class TracedStep:
    """`steps` consecutive steps, which consist of their `parts`, without gap or overlap.

    `launches` are the kernels and copies that ran in them; 0 where no device worked, and the parts
    are the CPU's. `costs` are what the trace of these steps alone says against them. `of_card` is
    the share of a step (0 to 1) that its work takes at the card's rates; None where unknown.
    """

    steps: AtLeastOne
    launches: Count
    parts: tuple[TracedPart, ...]
    costs: tuple[TracedCost, ...] = ()
    of_card: Amount | None = None

    @property
    def window_ns(self) -> int:
        """Nanoseconds of all steps."""
        return sum(part.ns for part in self.parts)

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which something ran."""
        return sum(part.ns for part in self.parts if part.term not in IDLE)

    @property
    def terms(self) -> Mapping[str, int]:
        """Nanoseconds in all steps by term."""
        totals: dict[str, int] = defaultdict(int)
        for part in self.parts:
            totals[part.term] += part.ns
        return totals
