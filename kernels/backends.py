"""Back ends as ops list them: which module, on which kind of device, with which precisions."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from kernels.case import Candidate, Case, Target


@dataclass(frozen=True)
class BackendEntry:
    """One back end of an op: the module that offers `cannot_run` and `candidates`."""

    module: str
    title: str
    kind: str  # of device: "cuda" or "cpu"

    def load(self) -> Any:
        """The module."""
        return importlib.import_module(self.module)

    def candidates(
        self, case: Case, operands: Any, target: Target, *, tune: bool
    ) -> tuple[Candidate, ...]:
        """The ways to run the case; with `tune`, all that a search tries, where there is one."""
        module = self.load()
        searches = tune and hasattr(module, "tuning_candidates")
        find = module.tuning_candidates if searches else module.candidates
        return tuple(find(case, operands, target))

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target: device, capability, or the module's reason."""
        if self.kind != target.kind:
            device = "a CUDA GPU" if self.kind == "cuda" else "--device cpu"
            return f"back end {case.backend} needs {device}"
        return _below_capability(case, target) or self.load().cannot_run(case, target)


def _below_capability(case: Case, target: Target) -> str | None:
    if target.kind != "cuda":
        return None
    have, need = target.capability or (0, 0), case.precision.min_capability.get(case.backend)
    if need is None:
        return f"{case.backend} has no {case.precision_name}"
    if have < need:
        return (
            f"{case.precision_name} needs compute capability {need[0]}.{need[1]}, "
            f"this GPU has {have[0]}.{have[1]}"
        )
    return None
