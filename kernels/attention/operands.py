"""The tensors of attention, how `kernels.data` makes them, and their check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.attention import BPROP, Attention
from kernels.case import Case
from kernels.checking import CHECKSUM_SLACK, typical

BAND_ELEMENTS = 1 << 24  # of a head's scores that are held in float64 at once
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class AttentionOperands:
    """`tensors`: q, k, v and o of fprop; q, k, v, do, dq, dk and dv of bprop; [B, H, S, D] each.
    `sample` holds the inputs of one key/value head as drawn, float32.
    """

    problem: Attention
    tensors: Tensors
    sample: Tensors

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """(q, k, v) of fprop, (q, k, v, do) of bprop: the arguments of a user's function."""
        return tuple(self.tensors[name] for name in self.problem.inputs)

    @property
    def renewed(self) -> tuple[torch.Tensor, ...]:
        """What may change between two launches: bprop goes on with what its forward pass saved."""
        return self.inputs[3:] or self.inputs

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name."""
        problem = self.problem
        return {
            "which": problem.which, "causal": problem.causal, "scale": problem.head_size**-0.5,
        }  # fmt: skip

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.tensors[name] for name in self.problem.outputs)

    def holding(self, *results: torch.Tensor) -> Self:
        tensors = zip(self.problem.outputs, results, strict=True)
        return replace(self, tensors={**self.tensors, **dict(tensors)})

    def relative_error(self) -> float:
        """The largest of any head of any output, or of any of its rows: see `_errors`."""
        errors: list[torch.Tensor] = []
        for group in self._groups():
            sizes: dict[str, torch.Tensor] = {}
            for name, expected in reference(self.problem, group, sizes).items():
                errors += _errors(group[name].double(), expected, sizes.get(name))
        return float(torch.stack(errors).max())

    def total_error(self) -> float:
        """The largest over the first key/value head, of inputs as drawn: rounding to storage is
        counted.
        """
        group, found = next(self._groups()), reference(self.problem, self.sample)
        return max(float(_errors(group[n].double(), ref)[0]) for n, ref in found.items())

    def _groups(self) -> Iterator[Tensors]:
        """All tensors of each key/value head."""
        for b in range(self.problem.batch):
            for head in range(self.problem.kv_heads):
                yield {n: _of_head(self.problem, n, t, b, head) for n, t in self.tensors.items()}


def _of_head(
    problem: Attention, name: str, tensor: torch.Tensor, b: int, head: int
) -> torch.Tensor:
    """[heads, S, D] of those that share a key/value head."""
    count = 1 if name[-1] in "kv" else problem.heads // problem.kv_heads
    return tensor[b, head * count : (head + 1) * count]


def _errors(
    got: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(error of all, worst of a row less what chance allows), over the root mean square of rows;
    of a row that is larger, or that is what is left of larger terms, `rounded`, over these.
    """
    rows, sizes = (got - expected).norm(dim=-1), expected.norm(dim=-1)
    usual = typical(sizes)
    own = sizes if rounded is None else torch.maximum(sizes, rounded)
    worst = (rows / torch.maximum(own, usual)).max()
    return rows.square().mean().sqrt() / usual, worst / (1 + CHECKSUM_SLACK / got.shape[-1] ** 0.5)


def reference(
    problem: Attention, tensors: Tensors, sizes: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """The outputs by their definition in float64 of the heads [heads, S, D] that share one
    key/value head [1, S, D]; in bands of queries.

    `sizes` gets, for each row of dQ and dK, how large the terms are that a kernel subtracts: dO on
    the O that its forward pass rounded. With few keys to see they are larger than what is left.
    """
    q, k, v, *of_output = (tensors[name].double() for name in problem.inputs)
    k, v, scale, size = k[0], v[0], problem.head_size**-0.5, problem.sequence
    outputs = {name: torch.zeros_like(tensors["k" if name[-1] in "kv" else "q"], dtype=q.dtype)
             for name in problem.outputs}  # fmt: skip
    if sizes is not None and problem.which == BPROP:
        sizes |= {name: outputs[name].norm(dim=-1) for name in ("dq", "dk")}
    else:
        sizes = None
    for heads in range(len(q)):
        for start in range(0, size, step := max(1, BAND_ELEMENTS // size)):
            rows = slice(start, start + step)
            scores = q[heads, rows] @ k.t() * scale
            if problem.causal:
                ahead = torch.ones_like(scores, dtype=torch.bool).triu(start + 1)
                scores.masked_fill_(ahead, float("-inf"))
            shares = scores.softmax(-1)
            if problem.which != BPROP:
                outputs["o"][heads, rows] = shares @ v
                continue
            do = of_output[0][heads, rows]
            of_shares = do @ v.t()
            mean = (shares * of_shares).sum(-1, keepdim=True)
            of_scores = shares * (of_shares - mean) * scale
            if sizes is not None:
                terms = (do * (shares @ v)).norm(dim=-1) * scale
                sizes["dq"][heads, rows] = terms * (shares @ k.norm(dim=-1))
                sizes["dk"][0] += shares.t().square() @ (terms * q[heads, rows].norm(dim=-1)) ** 2
            outputs["dq"][heads, rows] = of_scores @ k
            outputs["dk"][0] += of_scores.t() @ q[heads, rows]
            outputs["dv"][0] += shares.t() @ do
    if sizes is not None:
        sizes["dk"].sqrt_()
    return outputs


def sample(problem: Attention, drawn: Callable[[str], torch.Tensor]) -> Tensors:
    """The first key/value head as drawn."""
    return {name: _of_head(problem, name, drawn(name), 0, 0) for name in problem.inputs}


def operands(case: Case, tensors: Tensors, sample: Tensors) -> AttentionOperands:
    assert isinstance(case.problem, Attention)
    return AttentionOperands(case.problem, tensors, sample)
