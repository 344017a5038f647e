"""The CUDA kernels that timers use: a gate, a clock stamp, a cache flush, an empty one.

Compiled once a process by NVRTC through CuPy, launched on torch's current stream.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

cupy: Any = import_module("cupy")  # which has no types
cupyx: Any = import_module("cupyx")

SOURCE = r"""
__device__ unsigned long long now_ns() {
    unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t;
}
// Holds the stream until the host opens it, or the limit has passed; says which.
extern "C" __global__ void gate(
    volatile int* open, volatile int* expired, unsigned long long limit) {
    unsigned long long start = now_ns();
    while (*open == 0) if (now_ns() - start > limit) { *expired = 1; break; }
}
extern "C" __global__ void stamp(unsigned long long* out) {
    unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    out[0] = clock64(); out[1] = now_ns(); out[2] = sm;
}
extern "C" __global__ void empty() {}
extern "C" __global__ void fill(uint4* p, long long n, unsigned value) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) p[i] = make_uint4(value, value, value, value);
}
extern "C" __global__ void read(const uint4* p, long long n, unsigned* sink) {
    unsigned sum = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        uint4 v = __ldcg(p + i); sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x9e3779b9u) *sink = sum;  // never for constant data: keeps the loads alive
}
"""

GATE_LIMIT_S = 0.5
FLUSH_FACTOR = 2  # times the size of the L2, so that no line of the last sample survives
BLOCKS_PER_SM = 8
PERSISTING_L2 = 6  # cudaLimitPersistingL2CacheSize
THREADS = 256


class Instruments:
    """The instrument kernels of one GPU, on torch's current stream; `l2_bytes` is its L2 in bytes.

    Holds two buffers of FLUSH_FACTOR times the L2. What CuPy raises when NVRTC cannot compile the
    kernels is passed on.
    """

    def __init__(self, device_index: int, l2_bytes: int, sm_count: int) -> None:
        cupy.cuda.Device(device_index).use()
        module = cupy.RawModule(code=SOURCE)
        self._gate, self._stamp, self._empty, self._fill, self._read = (
            module.get_function(name) for name in ("gate", "stamp", "empty", "fill", "read")
        )
        self._device = torch.device("cuda", device_index)
        self._flags = cupyx.zeros_pinned((2,), dtype=np.int32)
        self._flush_words = FLUSH_FACTOR * l2_bytes // 16
        self._grid = (sm_count * BLOCKS_PER_SM,)
        self._write_buffer, self._read_buffer = (
            torch.ones(16 * self._flush_words, dtype=torch.int8, device=self._device)
            for _ in range(2)
        )
        self._sink = torch.zeros(1, dtype=torch.int32, device=self._device)
        self.stamps = torch.zeros((2, 3), dtype=torch.int64, device=self._device)

    def _launch(self, kernel: Any, grid: tuple[int], threads: int, *args: object) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with cupy.cuda.ExternalStream(stream):
            kernel(grid, (threads,), args)

    def close_gate(self) -> None:
        """Queue the gate: later launches wait until `open_gate`, at most GATE_LIMIT_S."""
        self._flags[:] = 0
        address = self._flags.ctypes.data
        limit = np.uint64(GATE_LIMIT_S * 1e9)
        self._launch(self._gate, (1,), 1, np.uintp(address), np.uintp(address + 4), limit)

    def open_gate(self) -> None:
        """Let the queued launches run. The CPU sets a flag in pinned memory that the gate polls."""
        self._flags[0] = 1

    @property
    def gate_expired(self) -> bool:
        """Whether the gate gave up before it was opened. Synchronise first."""
        return bool(self._flags[1])

    def flush_l2(self) -> None:
        """Queue a write, then a read, of FLUSH_FACTOR times the L2: its lines are new and clean.

        Reading last matters: dirty lines would be written back during the sample that follows, at
        its cost.
        """
        words = np.int64(self._flush_words)
        self._launch(self._fill, self._grid, THREADS, np.uintp(self._write_buffer.data_ptr()),
                     words, np.uint32(1))  # fmt: skip
        self._launch(self._read, self._grid, THREADS, np.uintp(self._read_buffer.data_ptr()),
                     words, np.uintp(self._sink.data_ptr()))  # fmt: skip

    def release_l2(self) -> bool:
        """Whether a part of the L2 was set aside for data that persist in it, through a flush too;
        from now on none is.
        """
        runtime = cupy.cuda.runtime
        try:
            if not runtime.deviceGetLimit(PERSISTING_L2):
                return False
        except runtime.CUDARuntimeError:  # a GPU that has no such limit
            return False
        runtime.deviceSetLimit(PERSISTING_L2, 0)
        ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()  # CuPy does not offer it
        return True

    def stamp_clock(self, which: int) -> None:
        """Queue a read of the SM's cycle counter and the nanosecond timer; `which` is 0 or 1."""
        self._launch(self._stamp, (1,), 1, np.uintp(self.stamps[which].data_ptr()))

    def clock_mhz(self) -> float | None:
        """Mean SM clock in MHz between the two stamps: cycles over time. Synchronises.

        None when they ran on different SMs, whose counters differ, or a counter began anew: where a
        kernel of another program faults, the driver resets the SMs.
        """
        stamps = cast("list[list[int]]", self.stamps.tolist())  # pyright: ignore[reportUnknownMemberType]
        (cycles_0, ns_0, sm_0), (cycles_1, ns_1, sm_1) = stamps
        if sm_0 != sm_1 or ns_1 <= ns_0 or cycles_1 <= cycles_0:
            return None
        return 1e3 * (cycles_1 - cycles_0) / (ns_1 - ns_0)

    def launch_empty(self) -> None:
        """Queue a kernel that does nothing."""
        self._launch(self._empty, (1,), 1)
