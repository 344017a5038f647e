"""Op linear: a linear layer in bfloat16 or FP8, each pass alone, or a whole step.

y[M, N] = x[M, K] @ w[N, K] transposed, for M tokens. dgrad and wgrad are the gradients of x and w
from g[M, N], that of y; a step is all three.

Layouts name what is given, and who launches. Operands in bfloat16 are cast inside, as a training
step does (`graph`, `launched`, `eager`); `quantised` ones are FP8 before the time begins, and only
the products are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from kernels.precision import Precision
from kernels.problem import Problem

# As one CUDA graph, or kernel by kernel, of what torch.compile made or (eager) torch itself.
LAYOUTS = ("graph", "launched", "eager", "quantised", "quantised-launched")
PASSES = ("fprop", "dgrad", "wgrad", "step")
# Each result as a @ b transposed: (a, b), both [rows, what is summed over]; "_t" is transposed.
PRODUCTS: Mapping[str, tuple[str, str]] = {
    "y": ("x", "w"), "dx": ("g", "w_t"), "dw": ("g_t", "x_t"),
}  # fmt: skip
OUTPUTS = {"fprop": ("y",), "dgrad": ("dx",), "wgrad": ("dw",), "step": tuple(PRODUCTS)}
# What casts to FP8 err by on random data, relative to the product of what was cast: rounding to
# three bits of mantissa errs by 0.026 an operand, to two, which e5m2 gradients have, by 0.052.
# To one bit, by 0.096.
CASTS, CASTS_E5M2, CASTS_FP4 = 5e-2, 7e-2, 0.2
PROBED = 128  # at most, of a problem that is tried small


@dataclass(frozen=True)
class Linear(Problem):
    """A pass of a linear layer. ValueError for a size below 1, an unknown pass or layout."""

    m: int
    k: int
    n: int
    which: str = "step"
    layout: str = "graph"
    op: ClassVar[str] = "linear"
    NUMBERS: ClassVar[Sequence[str]] = ("m", "k", "n")
    USUAL: ClassVar[Mapping[str, str]] = {"pass": "step", "layout": "graph"}
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"layout": LAYOUTS, "pass": PASSES}
    ARGUMENTS: ClassVar[frozenset[str]] = frozenset({"problem"})

    @property
    def quantised(self) -> bool:
        """Whether FP8 operands are given as such."""
        return self.layout.startswith("quantised")

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS[self.which]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in "xwg" if any(name in matrix for output in self.outputs
                                                   for matrix in PRODUCTS[output]))  # fmt: skip

    def stored(self, name: str) -> tuple[int, int]:
        """Of "x", "g_t", "dw"."""
        rows, columns = {
            "x": (self.m, self.k), "w": (self.n, self.k), "g": (self.m, self.n),
        }[{"y": "g"}.get(name, name.removeprefix("d").removesuffix("_t"))]  # fmt: skip
        return (columns, rows) if name.endswith("_t") else (rows, columns)

    @property
    def mnk(self) -> tuple[int, int, int]:
        """Those of the first product."""
        a, b = PRODUCTS[self.outputs[0]]
        return (self.stored(a)[0], *self.stored(b))

    @property
    def dims(self) -> Mapping[str, int | str]:
        return {"m": self.m, "k": self.k, "n": self.n, "pass": self.which}

    @property
    def size(self) -> str:
        """ "4096" for as many features in as out, "4096x14336" otherwise."""
        return str(self.k) if self.k == self.n else f"{self.k}x{self.n}"

    @property
    def title(self) -> str:
        return f"{self.which} {self.layout} {self.m}x{self.size}"

    @property
    def setting(self) -> Mapping[str, str]:
        return {"pass": self.which, "layout": self.layout, "batch": str(self.m)}

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * len(self.outputs)

    def tolerance(self, precision: Precision) -> float:
        """With casts, what they err by too."""
        own = precision.rel_tolerance
        if self.quantised or not precision.casts:
            return own
        e5m2 = precision.name == "fp8-tensor" and self.which != "fprop"
        return own + (CASTS_FP4 if precision.multiply == "fp4" else CASTS_E5M2 if e5m2 else CASTS)

    def may_run_exactly(self, precision: Precision, backend: str) -> str:
        return "the operands are FP8 already: only products are left to err" * self.quantised

    def min_bytes(self, precision: Precision) -> int:
        read, written = (
            sum(prod(self.stored(name)) for name in names) for names in (self.inputs, self.outputs)
        )
        if self.quantised and precision.casts:
            read //= 2 if precision.multiply == "fp4" else 1
        else:
            read *= precision.bytes_per_element
        return read + written * precision.output_bytes

    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        """What FP8 products sum over has to be whole 16-byte rows of FP8."""
        width = 1 if precision.casts else precision.bytes_per_element
        return tuple((name, width) for name in "mkn")

    def probe(self, scale: int = 1) -> Linear:
        sizes = {name: min(getattr(self, name), scale * PROBED) for name in "mkn"}
        return replace(self, **sizes)
