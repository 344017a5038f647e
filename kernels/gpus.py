"""Known facts about GPUs: by compute capability here and, in gpu_cards.py, by name.

A GPU that is in neither table runs too: with the least that GPUs since Ampere have, and with
ceilings measured on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.gpu_cards import CARDS, Card
from kernels.precision import Capability

TMA_SINCE: Capability = (9, 0)  # the Tensor Memory Accelerator; wgmma is Hopper's alone
LINE_BYTES = 128  # of a cache line, and of a swizzled row
SECTOR_BYTES = 32  # the least that L2 reads

MOST_REGISTERS = 255  # of a thread
OVERHEAD_REGISTERS = 56  # of a thread, beside its accumulators: addresses, operands, loop state


@dataclass(frozen=True)
class Architecture:
    """What the GPUs of one compute capability have in common.

    `sm_shared_bytes` is the shared memory of an SM, of which each resident block takes
    `block_reserve_bytes` for itself; `sm_registers` counts an SM's 32-bit registers.
    `flop_per_clock` is the dense rate of an SM by `Precision.rate_name`, empty where not looked up.
    `l2_in_halves`: each half of L2 caches what its own SMs read, so data that all SMs read is
    cached twice.
    """

    name: str
    sm_shared_bytes: int
    block_reserve_bytes: int = 1024
    sm_registers: int = 65536
    flop_per_clock: Mapping[str, int] = field(default_factory=dict[str, int])
    l2_in_halves: bool = False

    @property
    def block_shared_bytes(self) -> int:
        """Bytes of shared memory that one block may have."""
        return self.sm_shared_bytes - self.block_reserve_bytes

    def blocks_per_sm(self, threads: int, accumulators: float, shared_bytes: int) -> int:
        """Blocks of a kernel that multiplies that an SM holds at once: an estimate, at least one.

        A thread has `accumulators` registers to add up in, a block `shared_bytes`.
        """
        registers = min(MOST_REGISTERS, accumulators + OVERHEAD_REGISTERS) * threads
        by_shared = self.sm_shared_bytes // (shared_bytes + self.block_reserve_bytes or 1)
        return max(1, min(int(self.sm_registers // registers), by_shared))


KIB = 1024
# Of a graphics die; the halves that GeForce parts leave of it: sums in FP32.
_GRAPHICS = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "fp16-acc16": 1024, "bf16": 1024,
             "int8": 2048}  # fmt: skip
HALVED, HALVED_PARTS = ("tf32", "fp16", "bf16", "fp8"), "GeForce"

# Shared memory and registers: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability". FLOP per clock: the architectures' whitepapers (GH100: 4,096 dense fp16 FLOP and 128
# fp32 FMA per clock and SM; GA100: half the former; GV100: a quarter; GA102, AD102, GB202: those of
# their professional parts); fp64 is the Tensor Cores'. GB100: the B200's datasheet over its clock.
# L2: NVIDIA A100 Tensor Core GPU Architecture, 2020, "L2 cache"; an H100's is alike.
ARCHITECTURES: Mapping[Capability, Architecture] = {
    (7, 0): Architecture(
        "Volta", 96 * KIB, block_reserve_bytes=0,
        flop_per_clock={"fp64": 64, "fp32": 128, "fp16": 1024, "fp16-acc16": 1024},
    ),
    (7, 5): Architecture("Turing", 64 * KIB, block_reserve_bytes=0),
    (8, 0): Architecture(
        "Ampere", 164 * KIB, l2_in_halves=True,
        flop_per_clock={"fp64": 128, "fp32": 128, "tf32": 1024, "fp16": 2048, "fp16-acc16": 2048,
                        "bf16": 2048, "int8": 4096},
    ),
    (8, 6): Architecture("Ampere, graphics", 100 * KIB, flop_per_clock=_GRAPHICS),
    (8, 7): Architecture("Ampere, Orin", 164 * KIB),
    (8, 9): Architecture("Ada", 100 * KIB, flop_per_clock={**_GRAPHICS, "fp8": 2048}),
    (9, 0): Architecture(
        "Hopper", 228 * KIB, l2_in_halves=True,
        flop_per_clock={"fp64": 256, "fp32": 256, "tf32": 2048, "fp16": 4096, "fp16-acc16": 4096,
                        "bf16": 4096, "fp8": 8192, "int8": 8192},
    ),
    (10, 0): Architecture(
        "Blackwell", 228 * KIB,
        flop_per_clock={"fp64": 128, "fp32": 256, "tf32": 4096, "fp16": 8192, "fp16-acc16": 8192,
                        "bf16": 8192, "fp8": 16384, "int8": 16384},
    ),
    (10, 3): Architecture("Blackwell Ultra", 228 * KIB),
    (12, 0): Architecture(
        "Blackwell, graphics", 100 * KIB, flop_per_clock={**_GRAPHICS, "fp8": 2048}
    ),
}  # fmt: skip
UNKNOWN = Architecture("unknown", 100 * KIB)  # the least of the GPUs since Ampere

HOPPER = ARCHITECTURES[9, 0]  # whose SMs the cost models of the Triton kernels describe


def architecture(capability: Capability | None) -> Architecture:
    """What the GPUs of a capability have; `UNKNOWN` for one that was not looked up."""
    return ARCHITECTURES.get(capability or (0, 0), UNKNOWN)


def flop_per_clock(capability: Capability | None, device_name: str) -> Mapping[str, int]:
    """The dense rate of an SM of a device by `Precision.rate_name`; empty where not looked up."""
    rates = architecture(capability).flop_per_clock
    if HALVED_PARTS not in device_name:
        return rates
    return {name: rate // 2 if name in HALVED else rate for name, rate in rates.items()}


def has_tma(capability: Capability) -> bool:
    """Whether GPUs of this capability copy tiles by descriptor, as the TMA kernels do."""
    return capability >= TMA_SINCE


def find_card(device_name: str) -> Card | None:
    """The card with this device name (as NVML or torch gives it), None if it was not looked up.

    Only the whole name matches (spacing apart), because NVIDIA's names nest: "NVIDIA L4" starts
    "NVIDIA L40S", and "NVIDIA GeForce RTX 3090" starts the Ti's. A MIG slice ("... MIG 1g.10gb") is
    None too: it has only part of the rate.
    """
    name = " ".join(device_name.split())
    return next((card for card in CARDS if name in card.match), None)
