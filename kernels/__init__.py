"""What is computed: precisions, cases and the kernels that run them. No clocks, no printing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from kernels.case import Case
from kernels.op import Op


class _Ops(Mapping[str, Op]):
    """The ops by name; each is imported when it is first asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules  # name -> module with an `OP`

    def __getitem__(self, name: str) -> Op:
        return importlib.import_module(self._modules[name]).OP

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


OPS: Mapping[str, Op] = _Ops({"gemm": "kernels.gemm", "conv": "kernels.conv"})


def is_library(case: Case) -> bool:
    """Whether a case is run by what stands for the vendor's library: what baselines run on."""
    return case.backend in (OPS[case.op].library_backend(kind) for kind in ("cuda", "cpu"))


def size_of(case: Case) -> str:
    """The size in a word: "4096", "64x256"."""
    return OPS[case.op].size(case)
