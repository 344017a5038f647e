"""Records steps of a training of ours where they run, and sums them up for its ledger."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.profile.causes import Seen, causes_of
from e2e.profile.halfway_watch import Watch
from e2e.profile.operators import HALF, misaligned, types_of
from e2e.profile.products import of_card, products
from e2e.profile.step import NothingSeen, Op, term_of_operators
from e2e.profile.trace import WORK, read_trace
from e2e.profile.unprofiled import Unprofiled, steps_in
from e2e.results import terms
from e2e.results.terms import TracedCost, TracedPart, TracedStep
from kernels.gpus import find_card
from microbench.roofline.rates import known_rates

BARE_STEPS = 6  # without the profiler, before it begins: what it slows is known from them


def traced_step(step: Callable[[], object], module: Any, count: int, *, named: bool) -> TracedStep:
    """Run and record `count` steps, and a few before them that do not count.

    `module` is the network, whose layers have their names in it if `named`. UserError where nothing
    can be said of what was recorded; what a step raises is raised.
    """
    remarks: list[str] = []
    with tempfile.TemporaryDirectory(prefix="halfway-trace-") as folder:
        watch = Watch(
            str(Path(folder) / "trace.json"), 0, BARE_STEPS, count, module_names=named, quiet=True,
            say=remarks.append,
        )  # fmt: skip
        watch.model = module
        try:
            while not watch.done:
                step()
                watch.step()
        finally:
            watch.end()
        if remarks:
            raise NothingSeen(remarks[0])
        trace = read_trace(Path(watch.out))
    return summed(steps_in(trace), trace.device)


def summed(run: Unprofiled, device: str) -> TracedStep:
    """The recorded steps with their parts by term and, of what multiplies, by layer; longest first.

    Costs are of the steps without the profiler.
    """
    step, card, rates = run.step, find_card(device), known_rates(device)
    totals: Counter[tuple[str, ...]] = Counter()
    for op in step.ops:
        totals[_key(op, on_cpu=step.on_cpu)] += op.ns
    longest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return TracedStep(
        step.steps, sum(1 for _ in step.spans(WORK)),
        tuple(TracedPart(key[0], ns, *key[1:]) for key, ns in longest),
        tuple(
            TracedCost(
                cause.title, round(cause.most_ms * 1e6 * step.steps), cause.where, cause.remedy,
                cause.cause,
            )
            for cause in causes_of(Seen(run, card, rates))
        ),
        of_card(step, products(step, card, rates), run.whole_ns),
    )  # fmt: skip


def _key(op: Op, *, on_cpu: bool) -> tuple[str, str, str, str, str]:
    """What distinguishes a part from others: its fields but the time. Sizes are misaligned for
    Tensor Cores alone.
    """
    if op.term in (terms.COMMUNICATION, terms.LATE):
        return terms.EXCHANGE, "", "", "", ""
    within = term_of_operators(op.ops) if op.term == terms.LAYOUT else op.term
    if within not in terms.PRODUCT_TERMS:
        return op.term, "", "", "", ""
    types = types_of(op.ops)
    # Of mixed types the lowest: FP8 before half precision before float32.
    low = sorted(types - {"float32", "float64"}, key=lambda name: (name in HALF, name))
    return (
        op.term, op.module, low[0] if low else "float32" if "float32" in types else "",
        misaligned(op.ops) if types & HALF and not on_cpu else "",
        within if op.term == terms.LAYOUT else "",
    )  # fmt: skip
