"""GEMMs with a defect that is planted, as back ends: "tests.validation.defects:NAME".

The diagnosis knows nothing of them, but of idle SMs. What a defect costs is measured beside the
same GEMM without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

from kernels.case import Candidate, Case, Target
from kernels.gemm.triton import backend
from kernels.gemm.triton import config as cfg

# C[M, N] = A[M, K] B[N, K]^T in fp32. In `narrow` a warp reads a column of B's tile: with PITCH 32
# its floats lie in one bank of shared memory, with 33 in 32. `blocked` adds up 64 sums a thread,
# which do not fit the registers that a limit leaves it. M and N are multiples of their tiles, K of
# 32.
SOURCE = r"""
extern "C" __global__ void narrow(const float* a, const float* b, float* c, int n, int k) {
    __shared__ float left[32][33], right[32][PITCH];
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    const float* row = a + (long long)(blockIdx.y * 32 + y) * k + x;
    const float* column = b + (long long)(blockIdx.x * 32 + y) * k + x;
    float sum = 0;
    for (int at = 0; at < k; at += 32) {
        left[y][x] = row[at];
        right[y][x] = column[at];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 32; i++) sum += left[y][i] * right[x][i];
        __syncthreads();
    }
    c[(long long)(blockIdx.y * 32 + y) * n + blockIdx.x * 32 + x] = sum;
}
extern "C" __global__ void blocked(const float* a, const float* b, float* c, int n, int k) {
    __shared__ float left[8][132], right[8][132];
    int t = threadIdx.x, x = t % 16 * 8, y = t / 16 * 8, line = t / 2, part = t % 2 * 4;
    const float* row = a + (long long)(blockIdx.y * 128 + line) * k + part;
    const float* column = b + (long long)(blockIdx.x * 128 + line) * k + part;
    float sum[8][8] = {};
    for (int at = 0; at < k; at += 8) {
        for (int i = 0; i < 4; i++) left[part + i][line] = row[at + i];
        for (int i = 0; i < 4; i++) right[part + i][line] = column[at + i];
        __syncthreads();
        #pragma unroll
        for (int s = 0; s < 8; s++)
            #pragma unroll
            for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] += left[s][y + i] * right[s][x + j];
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int j = 0; j < 8; j++)
            c[(long long)(blockIdx.y * 128 + y + i) * n + blockIdx.x * 128 + x + j] = sum[i][j];
}
"""
FEW_REGISTERS = 40  # of a thread; its sums take 64
SLEEP_CYCLES = 1_500_000  # some 0.8 ms: several times what the GEMM before it takes
Launcher = Callable[[Any, Target], Callable[[], object]]


@dataclass(frozen=True)
class Defect:
    """A back end: `prepare(operands, target)` makes the launch."""

    name: str
    prepare: Launcher

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """They need a GPU."""
        return None if target.kind == "cuda" else f"{self.name} needs a CUDA device"

    def candidates(self, case: Case, operands: Any, target: Target) -> Sequence[Candidate]:
        """One launch."""
        return (Candidate(self.name, self.prepare(operands, target)),)


def _compiled(kernel: str, tile: int, threads: int, *options: str) -> Launcher:
    def prepare(operands: Any, target: Target) -> Callable[[], object]:
        cupy: Any = import_module("cupy")  # which has no types
        cupy.cuda.Device(target.index).use()
        pitch = () if any("PITCH" in option for option in options) else ("-DPITCH=33",)
        function = cupy.RawModule(code=SOURCE, options=(*pitch, *options)).get_function(kernel)
        a, b, c = operands.a, operands.b.t(), operands.c
        if not (a.is_contiguous() and b.is_contiguous() and c.is_contiguous()):
            raise ValueError("made for layout nt")
        (m, k), n = a.shape, b.shape[0]
        if m % tile or n % tile or k % 32:
            raise ValueError(f"made for multiples of {tile}")
        addresses = [np.uintp(tensor.data_ptr()) for tensor in (a, b, c)]
        words = (*addresses, np.int32(n), np.int32(k))

        def launch() -> None:
            stream = torch.cuda.current_stream(c.device).cuda_stream
            with cupy.cuda.ExternalStream(stream):
                function((n // tile, m // tile), (threads,), words)

        return launch

    return prepare


def _shifted(elements: int) -> Launcher:
    """The library's GEMM of a B that begins a few elements past an aligned address.

    A is the one given: it is the smaller or the first of the inputs, which samples renew.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        room = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
        found = room.as_strided(tensor.size(), tensor.stride(), elements)
        return found.copy_(tensor)

    def prepare(operands: Any, target: Target) -> Callable[[], object]:
        a, b, c = operands.a, moved(operands.b), operands.c
        return lambda: torch.mm(a, b, out=c)

    return prepare


def _sleepy(operands: Any, target: Target) -> Callable[[], object]:
    """The library's GEMM, then nothing for SLEEP_CYCLES."""
    a, b, c = operands.a, operands.b, operands.c
    cuda: Any = cast(Any, torch.cuda)

    def launch() -> None:
        torch.mm(a, b, out=c)
        cuda._sleep(SLEEP_CYCLES)

    return launch


conflicts = Defect("one bank", _compiled("narrow", 32, 1024, "-DPITCH=32"))
no_conflicts = Defect("32 banks", _compiled("narrow", 32, 1024))
spills = Defect("few registers", _compiled("blocked", 128, 256, f"--maxrregcount={FEW_REGISTERS}"))
no_spills = Defect("enough registers", _compiled("blocked", 128, 256))
off_two_bytes = Defect("off by one element", _shifted(1))
off_sixteen_bytes = Defect("off by eight elements", _shifted(8))
sleepy = Defect("and sleep", _sleepy)


@dataclass(frozen=True)
class Tile:
    """Our Triton GEMM with a tile (M, N) that is given, whether it fits the problem or not.

    A kernel that leaves SMs idle is needed; what chooses configurations avoids those.
    """

    size: tuple[int, int]

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """That none of the kernels has the tile."""
        return None if self._found(case, target) else f"no kernel has tile {self.size}"

    def candidates(self, case: Case, operands: Any, target: Target) -> Sequence[Candidate]:
        """One launch: the first configuration in the model's order that has the tile."""
        found = self._found(case, target)
        if found is None:
            raise ValueError(f"no kernel has tile {self.size}")
        return backend.bind([found], case, operands, target)

    def _found(self, case: Case, target: Target) -> cfg.GemmConfig | None:
        problem, capability = cfg.GemmProblem.of(case), target.capability or (0, 0)
        ranked = cfg.choices(problem, capability, target.sm_count)
        return next((config for config in ranked if (config.bm, config.bn) == self.size), None)


wide = Tile((128, 256))
tall = Tile((256, 128))
