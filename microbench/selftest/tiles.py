"""Our Triton GEMM with a tile that is given, whether it fits the problem or not.

A wave plant needs a kernel that leaves SMs idle; what chooses configurations avoids those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.case import Candidate, Case, Target
from kernels.gemm.triton import config as cfg

Tile = tuple[int, int]


@dataclass(frozen=True)
class Fixed:
    """A back end: the first configuration in the model's order that has the tile (M, N)."""

    tile: Tile

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the kernels cannot, or that none has the tile."""
        from kernels.gemm.triton import backend

        reason = backend.cannot_run(case, target)
        return reason or (None if self._found(case, target) else f"no kernel has tile {self.tile}")

    def candidates(self, case: Case, operands: Any, target: Target) -> Sequence[Candidate]:
        """One launch. ValueError where none has the tile."""
        from kernels.gemm.triton import backend

        found = self._found(case, target)
        if found is None:
            raise ValueError(f"no kernel has tile {self.tile}")
        return (backend.bind(found, case, operands, target),)

    def _found(self, case: Case, target: Target) -> cfg.Config | None:
        problem, capability = cfg.Problem.of(case), target.capability or (0, 0)
        ranked = cfg.choices(problem, capability, target.sm_count)
        return next((config for config in ranked if (config.bm, config.bn) == self.tile), None)


wide = Fixed((128, 256))
narrow = Fixed((128, 192))
