"""Plants made by means that the diagnosis does not share: the held-out half, judged once.

No threshold was chosen on them. Kernels with a known defect are measured beside the same kernel
without it; where the defect costs nothing, it was not planted.
"""

from __future__ import annotations

from dataclasses import replace

from microbench.selftest.plant import Plant, control, gemm, planted

DEFECTS = "microbench.selftest.defects"
NO_ONE_LIMIT = "mixed"  # the diagnosis where no single bottleneck that it knows applies


def independent_plants() -> list[Plant]:
    """All of them, for a GPU."""
    found = [*_stalled(), *_asleep(), *_shifted(), *_clocks()]
    return [replace(plant, held_out=True) for plant in found]


def _stalled() -> list[Plant]:
    kernels = (
        ("conflicts", "no_conflicts", "all threads of a warp read one bank of shared memory; the "
         "same kernel with rows one element longer reads all banks"),
        ("spills", "no_spills", "its 64 sums a thread spill to memory, because the compiler may "
         "use 40 registers; the same kernel without this limit keeps them"),
    )  # fmt: skip
    return [
        planted(
            NO_ONE_LIMIT, why, gemm(n, n, n, "fp32", f"{DEFECTS}:{bad}"),
            companions=(gemm(n, n, n, "fp32", f"{DEFECTS}:{good}"),),
        )
        for bad, good, why in kernels
        for n in (1024, 2048)
    ]  # fmt: skip


def _asleep() -> list[Plant]:
    return [
        planted(
            NO_ONE_LIMIT,
            "each launch is followed by a kernel that only waits, several times as long",
            gemm(n, n, n, precision, f"{DEFECTS}:sleepy"),
            companions=(gemm(n, n, n, precision),),
        )
        for n, precision in ((4096, "fp16"), (2048, "bf16"), (2048, "tf32"))
    ]


def _shifted() -> list[Plant]:
    off = f"{DEFECTS}:off_two_bytes"
    whole = f"{DEFECTS}:off_sixteen_bytes"
    never = ("alignment", "launch", "memory", "layout")
    return [
        *(
            planted(
                "alignment",
                "its tensors begin 2 bytes past a multiple of 16; sizes and strides are aligned",
                gemm(n, n, n, precision, off),
                companions=(gemm(n, n, n, precision),),
            )
            for n, precision in ((4096, "fp16"), (2048, "bf16"))
        ),
        control(
            "alignment",
            "its tensors begin 16 bytes further on, at a multiple of 16",
            gemm(4096, 4096, 4096, "fp16", whole),
            *never,
        ),
    ]


def _clocks() -> list[Plant]:
    zeros = [replace(gemm(n, n, n, p), data="zeros") for n, p in ((4096, "fp16"), (2048, "bf16"))]
    why = "its inputs are zeros, which switch few transistors: the clock stays up"
    return [control("power", why, case) for case in zeros]
