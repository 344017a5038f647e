"""Ceilings as an H200 would give them."""

from __future__ import annotations

from kernels.ceilings.plan import MIB, Probe
from microbench.results.ceilings import CeilingResult, Tried, ceiling_of
from microbench.results.types import Ceiling, Measurement, Run

SMS = 132
CLOCK_MHZ = 1700.0
LABEL = "m64n256k16, 2 warpgroups"


def measured(probe: Probe, *, flops: int = 0, moved: int = 0, seconds: float = 4e-4,
             nominal: float | None = None) -> CeilingResult:  # fmt: skip
    """A result of one block of samples at this time."""
    times = (seconds, 0.999 * seconds, 1.001 * seconds)
    return CeilingResult(
        probe,
        "ok",
        measurement=Measurement(
            times, (1, 1, 1), seconds, (times[1], times[2]), "events", "warm", "sustained",
            sm_clock_mhz=CLOCK_MHZ, power_w=650.0,
        ),
        flops=flops, moved_bytes=moved, sms=SMS, nominal=nominal, cycles=seconds * CLOCK_MHZ * 1e6,
        rel_error=1e-7, variant=LABEL,
        tried=(Tried(LABEL, seconds, flops or moved, CLOCK_MHZ, 1e-7),
               Tried("another", reason="out of registers")),
    )  # fmt: skip


def wgmma(share: float = 0.98) -> CeilingResult:
    """fp16 at this share of 4,096 FLOP per clock and SM."""
    flops = round(share * 4096 * SMS * CLOCK_MHZ * 1e6 * 4e-4)
    return measured(Probe("wgmma", "fp16"), flops=flops, nominal=4096)


def run() -> Run:
    """A whole run, with a failure and a skip."""
    results = (
        wgmma(),
        CeilingResult(Probe("wgmma", "int8"), "failed", "wrong result", sms=SMS, nominal=8192),
        CeilingResult(Probe("mma.sync", "fp8-e4m3"), "skipped", "needs compute capability 8.9"),
        measured(Probe("DRAM read"), moved=round(4.4e12 * 4e-4)),
        *(measured(Probe("L2 read", working_set=size * MIB), moved=round(rate * 4e5))
          for size, rate in ((2, 6.1e3), (64, 4.6e3))),
        measured(Probe("stream launch"), seconds=2.1e-6),
    )  # fmt: skip
    found = [ceiling_of(result) for result in results]
    return Run(
        command=("python", "-m", "microbench", "ceilings"),
        started_at="2026-11-20T10:00:00+00:00",
        finished_at="2026-11-20T10:03:00+00:00",
        device={"name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": SMS},
        software={"torch": "2.11.0"},
        ceilings=(
            Ceiling("memory", "datasheet", byte_per_s=4.8e12, reference="a sheet"),
            *(one for one in found if one),
        ),
        others=results,
    )
