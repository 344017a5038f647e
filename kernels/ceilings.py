"""What bounds a device: kernels that only multiply (ceilings.cu), and a copy of its memory.

Of a precision the fastest instruction counts: wgmma on Hopper, mma.sync on Ampere, Ada and for
fp64, FFMA for fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.case import Target
from kernels.gpus import flop_per_clock
from kernels.precision import Capability, Precision, precision

if TYPE_CHECKING:
    import torch

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}  # of the source; far beyond any cache
LAUNCH_S = 1e-3  # about, of a launch: filling shared memory and the gap to the next are 0.3 %
CLOCK_HZ = 1.8e9  # about
UNKNOWN_RATE = 1024  # FLOP per clock and SM, about, where the table has none
ACC16_SCALE = 2.0**-5  # keeps sums in float16 within its range
TF32_MASK = ~0x1FFF  # the bits of a float32 that tf32 keeps
# Whose products all run on one of these instructions: a later architecture may have a faster one.
KNOWN: tuple[Capability, ...] = ((8, 0), (8, 6), (8, 9), (9, 0))
ROW_BYTES = 32  # of an operand, that one instruction multiplies in every precision but fp64
CHAINS, UNROLL = 16, 16  # of FFMA: independent sums of a thread, additions to each in a pass
FACTOR, TERM = 0.9990234375, 0.3720703125  # exact in float32; keep values finite
CHECKED_PASSES = 4
PTX_TYPES = {
    "float64": "f64", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int8": "s8", "float32": "tf32",
}  # fmt: skip
# Of an accumulator: its PTX and C types, that one's letter in inline assembly, how many a register.
ACCUMULATORS = {
    "float64": ("f64", "double", "d", 1), "float32": ("f32", "float", "f", 1),
    "float16": ("f16", "unsigned", "r", 2), "int32": ("s32", "int", "r", 1),
}  # fmt: skip


@dataclass(frozen=True)
class PeakKernel:
    """A kernel and how it is launched. In a pass a block does `flops_per_pass` operations.

    It multiplies A [rows[0], k] by B [rows[1], k] transposed, `repeats` times in a pass. Where the
    fastest differs between devices, several are tried and the best counts.
    """

    instruction: str
    label: str
    defines: Mapping[str, object]
    threads: int
    blocks_per_sm: int
    flops_per_pass: int
    rows: tuple[int, int] = (0, 0)
    k: int = 0
    repeats: int = 1
    shared_bytes: int = 0

    @property
    def source(self) -> str:
        defines = "".join(f"#define {name} {value}\n" for name, value in self.defines.items())
        return defines + Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options; wgmma is of this very architecture."""
        return ("-std=c++17", *(("-arch=sm_90a",) if self.instruction == "wgmma" else ()))


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch, with the operations of a launch.

    `rel_error()` launches it once: the relative error of its results against float64.
    """

    launch: Callable[[], object]
    flops: int
    rel_error: Callable[[], float]


def peak_kernels(name: str, target: Target) -> list[PeakKernel]:
    """The kernels of a precision's fastest instruction; [] where that is not known."""
    kind, hopper = precision(name), target.capability == (9, 0)
    factors, since = kind.factors, min(kind.min_capability.values())
    if target.capability not in KNOWN or target.capability < since:
        return []
    if name == "fp32":
        shapes = ((512, 2),) if hopper else ((512, 2), (1024, 1))
        return [_ffma(threads, blocks) for threads, blocks in shapes]
    if hopper and name != "fp64":
        return [_wgmma(factors)]
    return [_mma_sync(factors, blocks, hopper) for blocks in (2, 1)]


def _wgmma(factors: Precision) -> PeakKernel:
    """Four instructions are committed together, while those before them may still run."""
    accumulator, c_type, letter, per = ACCUMULATORS[factors.accumulate]
    a, b = PTX_TYPES[factors.storage], PTX_TYPES[factors.storage_b or factors.storage]
    k, registers = ROW_BYTES // factors.bytes_per_element, 128 // per
    listed = ", ".join(f"%{i}" for i in range(registers))
    # scale-a, scale-b; 16-bit types may also be transposed, here they are not.
    scales = {"s8": "", "f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0"}.get(a, ", 1, 1")
    defines = {
        "WGMMA": 1, "ACC": c_type, "PER": per, "REGISTERS": registers,
        "KEPT": ", ".join(f'"+{letter}"(d[{i}])' for i in range(registers)),
        "INSTRUCTION": f'"wgmma.mma_async.sync.aligned.m64n256k{k}.{accumulator}.{a}.{b} '
        f'{{{listed}}}, %{registers}, %{registers + 1}, p{scales};"',
    }  # fmt: skip
    return PeakKernel(
        "wgmma", f"m64n256k{k}, 2 warpgroups, 4 a commit, 1 in flight", defines,
        threads=256, blocks_per_sm=1, flops_per_pass=2 * 128 * 256 * k * 4, rows=(128, 256),
        k=4 * k, shared_bytes=(128 + 256) * 128 + 1024,
    )  # fmt: skip


def _mma_sync(factors: Precision, blocks: int, hopper: bool) -> PeakKernel:
    """`blocks` an SM; before Hopper fp64 has m8n8k4 alone. Its registers are doubles."""
    accumulator, c_type, letter, per = ACCUMULATORS[factors.accumulate]
    a, b = PTX_TYPES[factors.storage], PTX_TYPES[factors.storage_b or factors.storage]
    word, read, rows, k = "unsigned", "r", 16, ROW_BYTES // factors.bytes_per_element
    words = ROW_BYTES // 4
    if factors.name == "fp64":
        word, read, (rows, k) = "double", "d", (16, 16) if hopper else (8, 4)
        words = k
    counts = rows // 4 // per, rows // 8 * words // 4, words // 4  # registers of D, A, B
    first = [0, counts[0], counts[0] + counts[1]]
    d, x, y = (
        "{" + ", ".join(f"%{i}" for i in range(at, at + count)) + "}"
        for at, count in zip(first, counts, strict=True)
    )
    types = f"{accumulator}.{a}.{b}.{accumulator}"
    inputs = [f'"{read}"(x[i][{r}])' for r in range(counts[1])]
    inputs += [f'"{read}"(y[j][{r}])' for r in range(counts[2])]
    defines = {
        "MMA_SYNC": 1, "ACC": c_type, "PER": per, "WORD": word, "WORDS": words, "ROWS": rows,
        "HIGH": rows // 8, "OF_D": counts[0], "OF_A": counts[1], "OF_B": counts[2],
        "KEPT": ", ".join(f'"+{letter}"(d[i][j][{r}])' for r in range(counts[0])),
        "READ": ", ".join(inputs),
        "INSTRUCTION": f'"mma.sync.aligned.m{rows}n8k{k}.row.col.{types} {d}, {x}, {y}, {d};"',
    }  # fmt: skip
    return PeakKernel(
        "mma.sync", f"m{rows}n8k{k}, 8 a warp, {blocks} x 8 warps", defines, threads=256,
        blocks_per_sm=blocks, flops_per_pass=2 * 2 * rows * 32 * k * 8, rows=(2 * rows, 32), k=k,
    )  # fmt: skip


def _ffma(threads: int, blocks: int) -> PeakKernel:
    label = f"{CHAINS} a thread, {blocks} x {threads // 32} warps"
    defines = {"FFMA": 1, "CHAINS": CHAINS, "UNROLL": UNROLL}
    flops = 2 * threads * CHAINS * UNROLL
    return PeakKernel("FFMA", label, defines, threads, blocks, flops, repeats=UNROLL)


def load(variant: PeakKernel, name: str, target: Target) -> Loaded:
    """A variant, compiled for a precision. CuPy's CompileException where it does not compile."""
    import numpy as np
    import torch

    cupy: Any = import_module("cupy")  # which has no types
    cupy.cuda.Device(target.index).use()
    module = cupy.RawModule(code=variant.source, options=variant.options)
    kernel = module.get_function("product")
    if variant.shared_bytes:
        kernel.max_dynamic_shared_size_bytes = variant.shared_bytes
    factors, blocks = precision(name).factors, target.sm_count * variant.blocks_per_sm
    rates = flop_per_clock(target.capability, target.name)
    of_device = LAUNCH_S * CLOCK_HZ * rates.get(factors.rate_name, UNKNOWN_RATE) * target.sm_count
    passes = max(1, round(of_device / (blocks * variant.flops_per_pass)))
    operands = _operands(variant, factors, torch.device(target.torch_device))

    def launch(out: torch.Tensor | None, times: int) -> None:
        tensors = [np.uintp(x.data_ptr() if x is not None else 0) for x in (*operands, out)]
        stream = torch.cuda.current_stream(operands[0].device).cuda_stream
        with cupy.cuda.ExternalStream(stream):
            kernel((blocks,), (variant.threads,), (*tensors, np.int32(times)),
                   shared_mem=variant.shared_bytes)  # fmt: skip

    def rel_error() -> float:
        wanted, times = _results(variant, operands)
        out = torch.full_like(wanted, -1, dtype=factors.torch_dtype("accumulate"))
        launch(out, times)
        return float((out.double() - wanted).norm() / wanted.norm())

    flops = passes * blocks * variant.flops_per_pass
    return Loaded(lambda: launch(None, passes), flops, rel_error)


def _operands(variant: PeakKernel, factors: Precision, device: torch.device) -> list[torch.Tensor]:
    import torch

    from kernels.data import draw, store

    if not variant.k:
        return [torch.tensor([FACTOR, TERM], device=device)]
    random = torch.Generator(device).manual_seed(0)
    tensors: list[torch.Tensor] = []
    for rows, which in zip(variant.rows, ("storage", "storage_b"), strict=True):
        values = draw((rows, variant.k), "normal", random)
        if factors.accumulate == "float16":
            values *= ACC16_SCALE
        stored = store(values, factors.torch_dtype(which), "normal")
        if factors.multiply == "tf32":
            stored = (stored.view(torch.int32) & TF32_MASK).view(torch.float32)
        tensors.append(stored.contiguous())
    return tensors


def _results(variant: PeakKernel, operands: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """What a block's accumulators are in float64, and after how many passes."""
    import torch

    if variant.k:
        a, b = (x.double() for x in operands)
        return variant.repeats * (a @ b.T), 1
    of = {"dtype": torch.float64, "device": operands[0].device}
    first = torch.arange(variant.threads, **of)[:, None] + torch.arange(CHAINS, **of)
    shrunk = FACTOR ** (variant.repeats * CHECKED_PASSES)
    return shrunk * first + TERM * (1 - shrunk) / (1 - FACTOR), CHECKED_PASSES


def copy(target: Target) -> tuple[Callable[[], object], int]:
    """(launch, bytes per launch) of a copy within device memory: bytes read plus bytes written.

    torch.OutOfMemoryError where two buffers of COPY_BYTES do not fit.
    """
    import torch

    size = COPY_BYTES[target.kind]
    source = torch.ones(size // 4, dtype=torch.int32, device=target.torch_device)
    destination = torch.empty_like(source)
    return (lambda: destination.copy_(source)), 2 * size
