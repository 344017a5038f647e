"""What a trace cannot say because the profiler was not asked for it, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from e2e.profile.calls import MODULE
from e2e.profile.operands import shapes_of
from e2e.profile.partition import Partition, steps_ns
from e2e.profile.reader import Recording
from e2e.results.terms import PRODUCT_TERMS, SYNC

UNEVEN = 3  # times as long as another: a step that holds more than a step
LEAST_SHARE = 0.03  # of a step: a shorter synchronisation needs no line


def missing(recording: Recording, parts: Partition) -> Iterator[str]:
    """The lines that go missing, and the options that would bring them."""
    if parts.on_cpu and recording.header.get("deviceProperties"):
        yield (
            "The trace has no work of a GPU: these are the CPU's times. If the training used one, "
            "the profiler was not asked for it (ProfilerActivity.CUDA)."
        )
    if len(devices := {span.lane.partition("/")[0] for span in recording.work}) > 1:
        yield f"{len(devices)} GPUs worked: time counts as idle only where none of them did."
    yield from _uneven(recording)
    products = any(parts.terms.get(term) for term in PRODUCT_TERMS)
    if products and not any(shapes_of(op) for op in recording.ops):
        yield (
            "The trace has no shapes (record_shapes): no table of GEMMs and convolutions, nothing "
            "about misaligned sizes or what stayed in float32, no match with another trace."
        )
    if not any(note.name.startswith(MODULE) for note in recording.notes):
        yield (
            "The model is compiled: its work has no modules, and there are no layers."
            if recording.facts.get("compiled")
            else "The trace names no modules (halfway_watch does): no layers."
        )
    waited = parts.terms.get(SYNC, 0) / (parts.end - parts.start)
    if waited >= LEAST_SHARE and not recording.stack:
        yield (
            "The trace has no Python stack (--stack of halfway_watch): synchronisation has no file "
            "and line."
        )


def _uneven(recording: Recording) -> Iterator[str]:
    """A step that is far longer than the others is no training step alone."""
    times = steps_ns(recording)
    longest, usual = max(times), median_low(times)
    if longest > UNEVEN * usual:
        yield (
            f"One recorded step took {longest / 1e6:,.0f} ms and another {usual / 1e6:,.0f}: an "
            "evaluation or a checkpoint may be in it. Record other steps (--after), or more "
            "(--traced)."
        )
