"""On a GPU: the timers' constants are the card's own."""

from __future__ import annotations

from microbench.device.device import describe
from microbench.device.profiler import record
from microbench.timing.stats import median
from microbench.timing.timers import GatedEvents, GraphReplay, empty_kernel_s


def test_ticks_and_the_empty_kernel_are_those_of_this_card() -> None:
    info = describe("cuda")
    cold = GatedEvents(info.index, info.l2_bytes, info.sm_count, "cold")
    graph = GraphReplay(info.index, info.l2_bytes, info.sm_count)
    assert cold.resolution_s == graph.resolution_s
    assert 1e-9 < cold.resolution_s < 2e-6
    launch = cold.instruments.launch_empty
    for time_s in cold.block(launch, 48).times_s:
        ticks = time_s / cold.resolution_s
        assert abs(ticks - round(ticks)) < 0.05
    seen = [k.seconds for k in record(lambda: [launch() for _ in range(21)]) if k.name == "empty"]
    # By two sources on a card that is in the table, else by one.
    assert abs(median(seen) - empty_kernel_s(info.index)) < 0.5e-6


def test_a_graphs_clock_is_a_mean_over_its_batches() -> None:
    info = describe("cuda")
    graph = GraphReplay(info.index, info.l2_bytes, info.sm_count)
    found: list[float | None] = []
    clock_mhz = graph.instruments.clock_mhz

    def noted() -> float | None:
        found.append(clock_mhz())
        return found[-1]

    graph.instruments.clock_mhz = noted  # type: ignore[method-assign]
    block = graph.block(graph.instruments.launch_empty, 60)
    known = [mhz for mhz in found if mhz]
    assert len(found) == 3
    if known:
        assert block.sm_clock_mhz == sum(known) / len(known)
