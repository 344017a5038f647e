"""Op attention: O = softmax(Q K^T / sqrt(D)) V for each head, or its gradients, each pass alone.

Q, O [B, H, S, D], K, V [B, H_kv, S, D], as torch's scaled_dot_product_attention has them; with
fewer key/value heads than heads (GQA) consecutive heads share one. fprop is the forward pass, bprop
has dQ, dK and dV of dO, from what the forward pass saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from kernels import flops
from kernels.precision import Precision
from kernels.problem import Problem

FPROP, BPROP = PASSES = ("fprop", "bprop")
MEASURED = ("fp32", "tf32", "fp16", "bf16")  # the precisions that torch's has
CAUSAL, FULL = LAYOUTS = ("causal", "full")  # a query sees the keys up to its own, or all
TOLERANCE = {FPROP: 2, BPROP: 4}  # times that of one product: one rounds what the next takes
PROBED = 128  # queries, at most, of a problem that is tried small


@dataclass(frozen=True)
class Attention(Problem):
    """ValueError for a size below 1, heads that key/value heads do not divide, unknown words."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_size: int
    which: str = FPROP
    layout: str = CAUSAL
    op: ClassVar[str] = "attention"
    NUMBERS: ClassVar[Sequence[str]] = ("batch", "heads", "kv_heads", "sequence", "head_size")
    USUAL: ClassVar[Mapping[str, str]] = {"pass": FPROP, "layout": CAUSAL}
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"layout": LAYOUTS, "pass": PASSES}
    ARGUMENTS: ClassVar[frozenset[str]] = frozenset({"which", "causal", "scale"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads")

    @property
    def dims(self) -> Mapping[str, int | str]:
        return {**{name: getattr(self, name) for name in self.NUMBERS}, "pass": self.which}

    @property
    def size(self) -> str:
        return str(self.sequence)

    @property
    def title(self) -> str:
        heads = self.setting["heads"]
        return f"{self.which} {self.layout} {heads} @{self.sequence} b{self.batch}"

    @property
    def setting(self) -> Mapping[str, str]:
        heads = dict.fromkeys((self.heads, self.kv_heads))
        return {
            "pass": self.which, "layout": self.layout, "batch": str(self.batch),
            "heads": "x".join(map(str, (*heads, self.head_size))),
        }  # fmt: skip

    @property
    def mnk(self) -> tuple[int, int, int]:
        """Of one head's scores."""
        return self.sequence, self.sequence, self.head_size

    @property
    def flops(self) -> int:
        """Of the pairs of a query and a key that it sees; bprop has twice as many, without the
        scores that a kernel computes again.
        """
        shape = self.batch * self.heads, self.sequence, self.head_size
        whole = flops.attention(shape, shape, shape) * (1 + PASSES.index(self.which))
        return whole * (self.sequence + 1) // (2 * self.sequence) if self.causal else whole

    @property
    def causal(self) -> bool:
        return self.layout == CAUSAL

    @property
    def inputs(self) -> Sequence[str]:
        return ("q", "k", "v") if self.which == FPROP else ("q", "k", "v", "do")

    @property
    def outputs(self) -> Sequence[str]:
        return ("o",) if self.which == FPROP else ("dq", "dk", "dv")

    def stored(self, name: str) -> Sequence[int]:
        """Of "q", "k", "v", "o" or of the gradient of one, "dq"."""
        heads = self.kv_heads if name[-1] in "kv" else self.heads
        return self.batch, heads, self.sequence, self.head_size

    def min_bytes(self, precision: Precision) -> int:
        """The scores stay on the chip; bprop reads O too."""
        of_output = 0 if self.which == FPROP else prod(self.stored("o")) * precision.output_bytes
        return super().min_bytes(precision) + of_output

    def tolerance(self, precision: Precision) -> float:
        return TOLERANCE[self.which] * precision.rel_tolerance

    def may_run_exactly(self, precision: Precision, backend: str) -> str:
        fused = "fused kernels for float32 do not ask whether TF32 is allowed"
        return fused * (precision.multiply == "tf32")

    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        return (("head_size", precision.bytes_per_element),)

    def probe(self, scale: int = 1) -> Attention:
        batch, kv_heads = min(self.batch, scale), min(self.kv_heads, scale)
        heads, sequence = kv_heads * self.heads // self.kv_heads, min(self.sequence, scale * PROBED)
        return replace(self, batch=batch, heads=heads, kv_heads=kv_heads, sequence=sequence)
