"""Traces of all ranks: transfer is what the last to arrive takes, the rest is waiting for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples.traces import US, Made

from e2e.profile.diagnosis import diagnose_ranks
from microbench.errors import UserError

MS = 1000 * US
TRANSFER = 2 * MS
ELEMENTS = 1_000_000


def rank(folder: Path, number: int, arrives: list[int], name: str = "allreduce") -> Path:
    """Steps of 20 ms, each with a GEMM until it arrives and an exchange that ends at 14 ms."""
    made = Made(header={"halfway": {"rank": number, "lead_in": 1, "traced": len(arrives) - 1}})
    ends: list[int] = []
    for place, at in enumerate(arrives):
        begin = 20 * MS * place
        made.op("aten::mm", begin, begin + 50 * US)
        made.kernel("gemm", begin + 20 * US, begin + at, begin + 10 * US)
        launched = begin + 100 * US
        made.correlation += 1
        made.span(
            "cuda_runtime", "cudaLaunchKernelExC", launched, launched + US,
            correlation=made.correlation,
        )  # fmt: skip
        made.span(
            "kernel", "ncclDevKernel_AllReduce", begin + at, begin + 14 * MS, 9, stream=9, device=0,
            correlation=made.correlation, dtype="BFloat16",
            **{"Collective name": name, "In msg nelems": ELEMENTS, "Group size": 2,
               "Process Group Name": "0"},
        )  # fmt: skip
        ends.append(begin + 19 * MS)
    made.steps(*ends)
    return made.write(folder / f"amp.rank{number}.json")


def test_the_last_to_arrive_takes_the_transfer_and_the_others_wait(tmp_path: Path) -> None:
    early = rank(tmp_path, 0, [5 * MS, 6 * MS, 7 * MS])
    late = rank(tmp_path, 1, [12 * MS, 12 * MS, 12 * MS])
    found = diagnose_ranks([early, late])
    assert found.ranks is not None
    first, second = found.ranks.ranks
    assert found.ranks.transfer_ms == pytest.approx(2)
    assert second.last == 1.0
    assert second.waiting_ms == pytest.approx(0)
    assert first.waiting_ms == pytest.approx((6 + 5) / 2)  # of the two whole steps
    assert first.communication_ms == pytest.approx(first.waiting_ms + 2)
    assert found.ranks.collectives == 1
    # An all-reduce of two sends each byte once over each link: 2 (n - 1) / n.
    assert found.ranks.bus_byte_per_s == pytest.approx(2 * ELEMENTS / (TRANSFER / 1e9))
    assert found.runs[0].name == "amp.rank1.json"  # what the others wait for is explained


def test_ranks_without_a_common_exchange_are_refused(tmp_path: Path) -> None:
    ours = rank(tmp_path, 0, [5 * MS, 5 * MS])
    theirs = rank(tmp_path, 1, [5 * MS, 5 * MS], name="broadcast")
    with pytest.raises(UserError, match="not of one run"):
        diagnose_ranks([ours, theirs])
