"""Compiles the kernels of the ceilings, launches them, and checks what they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernels.case import Target
from kernels.ceilings.plan import SHARED_RATE, Loaded, Probe, Product, Traffic, Variant
from kernels.ceilings.products import FMA_CHAINS, FMA_FACTOR, FMA_TERM
from kernels.ceilings.traffic import PATTERN, WORD_BYTES
from kernels.data import draw, store
from kernels.error_words import first_line
from kernels.gpus import architecture

cupy: Any = import_module("cupy")  # which has no types

LAUNCH_S = 1e-3  # about, of a launch: filling shared memory and the gap to the next are 0.3 %
CLOCK_HZ = 1.8e9  # about
UNKNOWN_RATE = 1024  # FLOP per clock and SM, about, where the table has none
BUFFER_BYTES = 1 << 33  # so large that what any L2 may keep of it is under 1 %
LEAST_TRAFFIC = 1 << 32  # bytes of a launch, of a small working set again and again
BUFFER_SHARE = 8  # of the free memory a buffer is at most one in so many
ACC16_SCALE = 2.0**-5  # keeps sums in float16 within its range
TF32_MASK = ~0x1FFF  # the bits of a float32 that tf32 keeps
FMA_CHECKED_PASSES = 4


class Loader:
    """Makes kernels of one device ready; keeps their data, which they share."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        cupy.cuda.Device(target.index).use()
        self._target = target
        self._device = torch.device(target.torch_device)
        self._random = torch.Generator(self._device).manual_seed(seed)
        self._sources: dict[int, torch.Tensor] = {}

    def load(self, probe: Probe, variant: Variant) -> Loaded:
        """The variant, compiled. CuPy's CompileException, RuntimeError where it cannot run."""
        options = ("-std=c++17", *(("-arch=sm_90a",) if variant.specific else ()))
        module = cupy.RawModule(code=variant.source, options=options)
        if isinstance(variant, Product):
            return self._product(probe, variant, self._ready(module, "product", variant))
        if isinstance(variant, Traffic):
            kernel = self._ready(module, "traffic", variant)
            ready = self._shared if variant.what == "shared" else self._traffic
            return ready(probe, variant, kernel)
        kernel = module.get_function("nothing")
        return Loaded(partial(self._launch, kernel, 1, variant), 0, 0, lambda: 0.0)

    def raise_if_dead(self, error: Exception) -> None:
        """RuntimeError after a fault that the device does not survive: only a new process helps."""
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            raise RuntimeError(first_line(error)) from error

    def _ready(self, module: Any, name: str, variant: Variant) -> Any:
        kernel = module.get_function(name)
        if variant.shared_bytes:
            kernel.max_dynamic_shared_size_bytes = variant.shared_bytes
        return kernel

    def _launch(self, kernel: Any, blocks: int, variant: Variant, *args: object) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with cupy.cuda.ExternalStream(stream):
            kernel((blocks,), (variant.threads,), args, shared_mem=variant.shared_bytes)

    # ------------------------------------------------------------ products

    def _product(self, probe: Probe, variant: Product, kernel: Any) -> Loaded:
        precision = probe.precision
        assert precision
        blocks = self._target.sm_count * variant.blocks_per_sm
        rates = architecture(self._target.capability).flop_per_clock
        rate = rates.get(precision.rate_name, UNKNOWN_RATE)
        of_sm = variant.flops_per_pass * variant.blocks_per_sm
        passes = max(1, round(LAUNCH_S * CLOCK_HZ * rate / of_sm))
        operands = self._factors() if probe.precision_name == "fp32" else self._ab(probe, variant)

        def launch(out: torch.Tensor | None, times: int) -> None:
            addresses = [np.uintp(x.data_ptr()) for x in operands]
            sink = np.uintp(out.data_ptr() if out is not None else 0)
            self._launch(kernel, blocks, variant, *addresses, sink, np.int32(times))

        error = partial(_fma_error if probe.precision_name == "fp32" else _product_error, launch)
        flops = passes * blocks * variant.flops_per_pass
        return Loaded(
            lambda: launch(None, passes), flops, 0, partial(error, probe, variant, operands)
        )

    def _factors(self) -> tuple[torch.Tensor, ...]:
        return (torch.tensor([FMA_FACTOR, FMA_TERM], device=self._device),)

    def _ab(self, probe: Probe, variant: Product) -> tuple[torch.Tensor, ...]:
        precision = probe.precision
        assert precision
        found: list[torch.Tensor] = []
        for rows, which in zip(variant.rows, ("storage", "storage_b"), strict=True):
            values = draw((rows, variant.k), "normal", self._random)
            if precision.accumulate == "float16":
                values *= ACC16_SCALE
            stored = store(values, precision.torch_dtype(which), "normal")
            if precision.multiply == "tf32":
                stored = (stored.view(torch.int32) & TF32_MASK).view(torch.float32)
            found.append(stored.contiguous())
        return tuple(found)

    # ------------------------------------------------------------ traffic

    @cached_property
    def _buffer_bytes(self) -> int:
        """Of what DRAM reads, and of what it writes: a power of two that fits the free memory."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return min(BUFFER_BYTES, 1 << (free // BUFFER_SHARE).bit_length() - 1)

    def _random_words(self, size: int) -> torch.Tensor:
        if size not in self._sources:
            self._sources[size] = torch.randint(
                -(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device=self._device,
                generator=self._random,
            )  # fmt: skip
        return self._sources[size]

    @cached_property
    def _written(self) -> torch.Tensor:
        return torch.zeros(self._buffer_bytes // 4, dtype=torch.int32, device=self._device)

    def _traffic(self, probe: Probe, variant: Traffic, kernel: Any) -> Loaded:
        size = probe.working_set or self._buffer_bytes
        source = self._random_words(4 if variant.what == "write" else size)
        sink = source if variant.what == "read" else self._written
        mask = np.uint32(size // WORD_BYTES - 1)

        def launch(out: torch.Tensor | None, tiles: int) -> None:
            grid = min(tiles, self._target.sm_count * variant.blocks_per_sm or tiles)
            self._launch(
                kernel, grid, variant, np.uintp(source.data_ptr()), np.uintp(sink.data_ptr()), mask,
                np.uint32(tiles), np.uintp(out.data_ptr() if out is not None else 0),
            )  # fmt: skip

        tiles = max(size, LEAST_TRAFFIC) // variant.tile_bytes
        once = size // variant.tile_bytes
        error = {
            "read": lambda: _sum_error(launch, once, source),
            "write": lambda: _pattern_error(launch, once, sink),
            "copy": lambda: _copy_error(launch, once, source, sink),
        }[variant.what]
        moved = tiles * variant.tile_bytes * (2 if variant.what == "copy" else 1)
        return Loaded(lambda: launch(None, tiles), 0, moved, error)

    def _shared(self, probe: Probe, variant: Traffic, kernel: Any) -> Loaded:
        words = self._random_words(variant.shared_bytes)
        blocks = self._target.sm_count * variant.blocks_per_sm
        of_sm = variant.tile_bytes * variant.blocks_per_sm
        passes = max(1, round(LAUNCH_S * CLOCK_HZ * SHARED_RATE / of_sm))

        def launch(out: torch.Tensor | None, times: int) -> None:
            sink = np.uintp(out.data_ptr() if out is not None else 0)
            self._launch(
                kernel, blocks, variant, np.uintp(words.data_ptr()), np.uint32(1),
                np.uint32(times), sink,
            )  # fmt: skip

        windows = variant.shared_bytes // variant.tile_bytes
        moved = passes * blocks * variant.tile_bytes
        return Loaded(
            lambda: launch(None, passes), 0, moved, lambda: _xor_error(launch, windows, words)
        )


Launcher = Callable[[torch.Tensor | None, int], None]  # (where results go, passes or tiles)


def _product_error(
    launch: Launcher, probe: Probe, variant: Product, operands: tuple[torch.Tensor, ...]
) -> float:
    precision = probe.precision
    assert precision
    a, b = (x.double() for x in operands)
    out = torch.full(
        (len(a), len(b)), -1, dtype=precision.torch_dtype("accumulate"), device=a.device
    )
    launch(out, 1)
    wanted = variant.repeats * (a @ b.T)
    return float((out.double() - wanted).norm() / wanted.norm())


def _fma_error(
    launch: Launcher, probe: Probe, variant: Product, operands: tuple[torch.Tensor, ...]
) -> float:
    out = torch.zeros(variant.threads, FMA_CHAINS, device=operands[0].device)
    launch(out, FMA_CHECKED_PASSES)
    n = variant.repeats * FMA_CHECKED_PASSES
    threads = torch.arange(variant.threads, dtype=torch.float64, device=out.device)
    first = threads[:, None] + torch.arange(FMA_CHAINS, device=out.device)
    shrunk = FMA_FACTOR**n
    wanted = shrunk * first + FMA_TERM * (1 - shrunk) / (1 - FMA_FACTOR)
    return float((out.double() - wanted).norm() / wanted.norm())


def _sum_error(launch: Launcher, tiles: int, words: torch.Tensor) -> float:
    out = torch.zeros(1, dtype=torch.int32, device=words.device)
    launch(out, tiles)
    return float((int(out.item()) - int(words.sum(dtype=torch.int64).item())) % 2**32 != 0)


def _pattern_error(launch: Launcher, tiles: int, sink: torch.Tensor) -> float:
    sink.zero_()
    launch(None, tiles)
    words = sink.view(-1, 4)
    at = torch.arange(len(words), device=sink.device)
    wanted = at * PATTERN & 0xFFFFFFFF
    return float(not torch.equal(words[:, 0].long() & 0xFFFFFFFF, wanted))


def _copy_error(launch: Launcher, tiles: int, source: torch.Tensor, sink: torch.Tensor) -> float:
    sink.zero_()
    launch(None, tiles)
    return float(not torch.equal(source, sink))


def _xor_error(launch: Launcher, windows: int, words: torch.Tensor) -> float:
    out = torch.zeros(1, dtype=torch.int32, device=words.device)
    launch(out, windows)
    wanted = int(np.bitwise_xor.reduce(words.cpu().numpy()))
    return float(int(out.item()) != wanted)
