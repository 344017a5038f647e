"""Facts of each compute capability. Their rates: test_gpus, against the datasheets of cards."""

from __future__ import annotations

import pytest

from kernels.gpus import (
    ARCHITECTURES,
    HOPPER,
    LINE_BYTES,
    SECTOR_BYTES,
    UNKNOWN,
    architecture,
    has_tma,
)
from kernels.precision import Capability

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": KB of shared memory
# of an SM and of a block.
SHARED_KB = {
    (7, 0): (96, 96), (7, 5): (64, 64), (8, 0): (164, 163), (8, 6): (100, 99), (8, 7): (164, 163),
    (8, 9): (100, 99), (9, 0): (228, 227), (10, 0): (228, 227), (10, 3): (228, 227),
    (12, 0): (100, 99),
}  # fmt: skip


def test_each_capability_has_its_own_facts() -> None:
    for capability, found in ARCHITECTURES.items():
        assert architecture(capability) is found
        shared = found.sm_shared_bytes / 1024, found.block_shared_bytes / 1024
        assert shared == SHARED_KB[capability]
        assert found.sm_registers == 64 * 1024
        assert all(rate.bit_count() == 1 for rate in found.flop_per_clock.values())
        assert found.l2_in_halves == (capability in ((8, 0), (9, 0)))
    assert HOPPER is architecture((9, 0))
    assert LINE_BYTES == 4 * SECTOR_BYTES == 128
    assert [has_tma(each) for each in ((8, 9), (9, 0), (10, 0), (12, 0))] == [False, *[True] * 3]


def test_what_was_not_looked_up_has_the_least_since_ampere() -> None:
    for capability in (None, (0, 0), (6, 1), (99, 0)):
        assert architecture(capability) is UNKNOWN
    assert (UNKNOWN.flop_per_clock, UNKNOWN.l2_in_halves) == ({}, False)
    blocks = [block for capability, (_, block) in SHARED_KB.items() if capability >= (8, 0)]
    assert UNKNOWN.block_shared_bytes == 1024 * min(blocks)


@pytest.mark.parametrize(
    ("capability", "threads", "accumulators", "shared", "blocks"),
    [
        ((9, 0), 256, 128, 0, 1),  # 184 registers a thread
        ((9, 0), 128, 72, 0, 4),  # 128
        ((9, 0), 129, 300, 0, 1),  # 255: one more would let two in
        ((9, 0), 32, 8, 99 * 1024, 2),  # of 228 KB, and 1 KB for each block
        ((9, 0), 1024, 255, 10**6, 1),
        ((7, 0), 128, 72, 0, 4),
        ((7, 0), 32, 8, 48 * 1024, 2),  # of 96 KB, nothing taken
    ],
)
def test_blocks_share_the_registers_and_the_memory_of_an_sm(
    capability: Capability, threads: int, accumulators: float, shared: int, blocks: int
) -> None:
    assert architecture(capability).blocks_per_sm(threads, accumulators, shared) == blocks
