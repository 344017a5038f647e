"""Speed-ups, bottlenecks and warnings, from planted numbers, each bound from both sides."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.results.baselines import baselines, slowest
from e2e.results.types import Phase, StepTimes, Training
from e2e.training.speedups import FEW_STEPS, HOST_WANDERS, PROCESSES_VARY, STEPS_VARY, with_speedups
from microbench.results.types import ProcessTime
from microbench.timing.stats import median

Blocks = Sequence[Sequence[float]]
CASE = TrainCase("resnet50", "fp32", 64, "3x224x224", layout="nhwc")
BATCH = 64


def timed(blocks: Blocks) -> StepTimes:
    times, sizes = tuple(t for block in blocks for t in block), tuple(map(len, blocks))
    return StepTimes(times, times, sizes, median(times), None, sum(times), len(times))


def variant(recipe: str, blocks: Blocks | None = None, **case: Any) -> Training:
    """A training of this recipe with these times; without any it failed."""
    made = replace(CASE, recipe=recipe, **case)
    if blocks is None:
        return Training(made, "failed", "out of memory")
    return Training(made, "ok", step_units=BATCH, steps=timed(blocks))


def steady(step_s: float, rounds: int = 7) -> list[list[float]]:
    return [[step_s] * 3 for _ in range(rounds)]


def gained(*variants: Training, rungs: dict[str, str | None] | None = None) -> list[Training]:
    return with_speedups(variants, rungs or {})


# ---------------------------------------------------------------- against baselines


@pytest.mark.parametrize(
    ("recipe", "among", "base"),
    [
        ("amp", ("tf32", "fp32"), "fp32"), ("amp", ("tf32",), "tf32"), ("amp", (), None),
        ("tf32", ("fp32",), "fp32"), ("fp32", ("tf32",), None), ("O0", ("tf32",), None),
        ("O1", ("tf32", "O0"), "O0"),
    ],
)  # fmt: skip
def test_ledgers_start_at_the_slowest(recipe: str, among: Sequence[str], base: str | None) -> None:
    case = replace(CASE, recipe=recipe)
    found = slowest(case, baselines(case, [replace(CASE, recipe=name) for name in among]))
    assert (found.recipe if found else None) == base


def test_a_ratio_is_the_geometric_mean_of_those_of_medians_and_in_its_interval() -> None:
    slow = [[4.0, 4.0, 40.0], [6.0, 5.0, 7.0], [9.0]]  # medians 4, 6, 9
    fast = [[2.0, 1.0, 2.0], [2.0, 2.0], [1.0, 3.0, 100.0]]  # medians 2, 2, 3
    _, amp = gained(variant("fp32", slow), variant("amp", fast))
    assert amp.speedup["fp32"].ratio == pytest.approx((4 / 2 * 6 / 2 * 9 / 3) ** (1 / 3))
    _, amp = gained(variant("fp32", steady(0.2)), variant("amp", steady(0.1)))
    ratio = amp.speedup["fp32"]
    assert ratio.ratio == pytest.approx(2.0)
    assert ratio.ci95[0] <= ratio.ratio <= ratio.ci95[1]
    assert ratio.ci95[1] - ratio.ci95[0] < 1e-4
    _, once = gained(variant("fp32", steady(0.3, rounds=1)), variant("amp", steady(0.1, rounds=1)))
    assert once.speedup["fp32"].ratio == pytest.approx(3.0)
    assert once.speedup["fp32"].ci95 is None, "one round has no interval"
    slow, fast = (
        replace(one, steps=replace(one.steps, processes=(ProcessTime(place, 7, 0.1),)))
        for place, one in enumerate((variant("fp32", steady(0.3)), variant("amp", steady(0.1))))
        if one.steps
    )
    found = gained(slow, fast)[1].speedup["fp32"]
    assert (found.ratio, found.ci95) == (pytest.approx(3.0), None)


Variants = list[tuple[str, float | None, dict[str, Any]]]  # recipe, seconds a step or failed, case
PLAIN: dict[str, Any] = {}
NCHW = {"layout": "nchw"}
# The variants, and of each what it is compared with.
COMPARED: dict[str, tuple[Variants, list[dict[str, float]]]] = {
    "all recipes": (
        [("fp32", 0.4, PLAIN), ("tf32", 0.2, PLAIN), ("amp", 0.1, PLAIN)],
        [{"tf32": 0.5}, {"fp32": 2.0}, {"fp32": 4.0, "tf32": 2.0}],
    ),
    "a slower one": ([("fp32", 0.1, PLAIN), ("O3", 0.2, PLAIN)], [{}, {"fp32": 0.5}]),
    "the baseline of the same layout comes first": (
        [("fp32", 0.8, NCHW), ("amp", 0.2, NCHW), ("fp32", 0.3, PLAIN), ("amp", 0.1, PLAIN)],
        [{}, {"fp32": 4.0}, {}, {"fp32": 3.0}],
    ),
    "else the first one": (
        [("fp32", 0.8, NCHW), ("fp32", 0.4, {**NCHW, "fused": False}), ("amp", 0.1, PLAIN)],
        [{}, {}, {"fp32": 8.0}],
    ),
    "settings of the recipe alone do not part it from its baseline": (
        [("fp32", 0.9, NCHW), ("fp32", 0.4, PLAIN), ("amp", 0.1, {"loss_scale": 256.0}),
         ("O3", 0.2, {"keep_batchnorm_fp32": True})],
        [{}, {}, {"fp32": 4.0}, {"fp32": 2.0}],
    ),
    "O0 is a float32 baseline too": (
        [("O0", 0.4, PLAIN), ("O1", 0.1, PLAIN)], [{}, {"fp32": 4.0}],
    ),
    "a baseline that failed is none": (
        [("fp32", None, PLAIN), ("tf32", 0.2, PLAIN), ("amp", 0.1, PLAIN)],
        [{}, {}, {"tf32": 2.0}],
    ),
    "a variant that failed": ([("fp32", 0.2, PLAIN), ("amp", None, PLAIN)], [{}, {}]),
    "no variants": ([], []),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_with_what(name: str) -> None:
    variants, expected = COMPARED[name]
    given = [
        variant(recipe, step_s and steady(step_s), **case) for recipe, step_s, case in variants
    ]
    found = gained(*given)
    ratios = [{base: ratio.ratio for base, ratio in t.speedup.items()} for t in found]
    assert ratios == [pytest.approx(one) for one in expected]
    for before, after in zip(given, found, strict=True):
        assert after.steps == before.steps
        assert before.steps or after == before, "a failed variant comes out as it went in"


some_blocks = st.lists(
    st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=5), min_size=2, max_size=8
)


@settings(max_examples=40)  # each example is a bootstrap
@given(some_blocks, st.floats(0.1, 10.0), st.randoms(use_true_random=False))
def test_a_ratio_is_that_of_the_times_and_its_inverse_the_other_way_round(
    blocks: Blocks, factor: float, drawn: Any
) -> None:
    slower = [[factor * t for t in block] for block in blocks]
    for other, ratio in ((blocks, 1.0), (slower, factor)):
        _, amp = gained(variant("fp32", other), variant("amp", blocks))
        found = amp.speedup["fp32"]
        assert found.ratio == pytest.approx(ratio)
        assert found.ci95[0] <= found.ratio <= found.ci95[1]
    other = [[drawn.uniform(1e-4, 10.0) for _ in block] for block in blocks]
    there, back = (gained(variant("fp32", a), variant("amp", b))[1].speedup["fp32"].ratio
                   for a, b in ((blocks, other), (other, blocks)))  # fmt: skip
    assert there * back == pytest.approx(1.0)


# ---------------------------------------------------------------- up a ladder

RUNGS: list[tuple[str, str, float, dict[str, Any]]] = [
    ("fp32", "fp32", 0.8, {"layout": "nchw", "fused": False}),
    ("tf32", "tf32", 0.4, {"layout": "nchw", "fused": False}),
    ("channels_last", "tf32", 0.32, {"fused": False}),
    ("AMP", "amp", 0.2, {"fused": False}),
    ("fused optimizer", "amp", 0.16, {}),
    ("compile", "amp", 0.1, {"compile": True}),
]


def ladder(*missing: str) -> tuple[list[Training], dict[str, str | None]]:
    variants = [
        variant(recipe, None if rung in missing else steady(step_s), **case)
        for rung, recipe, step_s, case in RUNGS
    ]
    names: dict[str, str | None] = {
        made.case.key: rung for made, (rung, *_) in zip(variants, RUNGS, strict=True)
    }
    return variants, names


def test_each_rung_is_compared_with_the_first_and_the_one_below_unless_that_failed() -> None:
    variants, rungs = ladder()
    found = gained(*variants, rungs=rungs)
    assert [t.rung for t in found] == [rung for rung, *_ in RUNGS]
    assert not {"previous", "first"} & found[0].speedup.keys()
    for (below, here), training in zip(pairwise(RUNGS), found[1:], strict=True):
        assert training.speedup["previous"].ratio == pytest.approx(below[2] / here[2])
        assert training.speedup["first"].ratio == pytest.approx(RUNGS[0][2] / here[2])
    product = math.prod(t.speedup["previous"].ratio for t in found[1:])
    assert product == pytest.approx(found[-1].speedup["first"].ratio)
    variants, rungs = ladder("channels_last")
    found = gained(*variants, rungs=rungs)
    assert (found[2].status, found[2].rung) == ("failed", "channels_last")
    assert "previous" not in found[3].speedup, "it would be the gain of two changes"
    assert found[3].speedup["first"].ratio == pytest.approx(RUNGS[0][2] / RUNGS[3][2])
    variants[2] = replace(variants[2], status="skipped")
    after = gained(*variants, rungs=rungs)[3]
    assert after.speedup["previous"].ratio == pytest.approx(RUNGS[1][2] / RUNGS[3][2])


# ---------------------------------------------------------------- what a step waits for


def judged(
    *, steps: int = 60, wall: float = 1.0, waits: float = 0.0, skipped: int = 0,
    graph: bool = False, fed: bool = False, **changes: Any,
) -> Training:  # fmt: skip
    """A training of steps of 1 s, whose wall time is `wall` a step."""
    times = replace(timed([[1.0] * steps]), wall_s=wall * steps, **changes)
    case = {"data": "folder", "loader": "pillow"} if fed else {}
    training = replace(
        variant("amp", [[1.0]], graph=graph, **case), steps=times, skipped_steps=skipped,
        phases=(Phase("data", None, waits), Phase("forward", 0.5, 0.5)),
    )  # fmt: skip
    (found,) = gained(training)
    return found


@pytest.mark.parametrize(
    ("step", "limit"),
    [
        ({"busy_s": 0.91}, "gpu"),
        ({"busy_s": 0.89}, "host"),
        ({"busy_s": 0.89, "host_s": 0.89, "graph": True}, "gpu"),
        ({"busy_s": 0.89, "host_s": 0.91, "graph": True}, "host"),
        ({"busy_s": 0.89, "host_s": 0.89}, "host"),  # its launches are not one
        ({"busy_s": 0.89, "graph": True}, "host"),
        ({"busy_s": 0.89, "waits": 0.11}, "data"),
        ({"busy_s": 0.89, "waits": 0.09}, "host"),
        ({"busy_s": 0.91, "waits": 0.11}, "gpu"),  # the host runs ahead
        ({"busy_s": 0.89, "waits": 0.1}, "host"),  # more than a tenth
        ({"waits": 0.11}, "data"),
        ({"waits": 0.09}, None),
        ({"busy_s": 0.89, "waits": 0.5, "fed": True}, "host"),  # of fed steps the times decide
        ({"busy_s": 0.95, "unfed_s": 0.951}, "data"),
        ({"busy_s": 0.95, "unfed_s": 1 / 1.05}, "gpu"),
        ({"busy_s": 2.0}, "gpu"),
        ({}, None),
    ],
)
def test_the_bottleneck(step: dict[str, Any], limit: str | None) -> None:
    assert judged(**step).limit == limit


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        ({"busy_s": 0.95, "unfed_s": 0.5}, {1000.0, 500.0}),
        ({"busy_s": 0.89, "waits": 0.37}, {37.0}),
        ({"busy_s": 0.63}, {37.0}),
        ({"busy_s": 0.63, "host_s": 0.9, "launches": 70}, {37.0, 900.0, 70.0}),
        ({"busy_s": 0.63, "host_s": 0.9}, {37.0}),
        ({"busy_s": 0.63, "launches": 70}, {37.0}),
        ({"busy_s": 0.97}, {97.0}),
    ],
)
def test_the_reason_has_the_numbers_behind_it(step: dict[str, Any], numbers: set[float]) -> None:
    """Milliseconds, per cent and launches."""
    why = judged(**step).why or ""
    assert {float(number) for number in re.findall(r"[\d.]*\d", why)} == numbers
    captured = {"busy_s": 0.8, "launches": 70, "graph": True}  # a host that is done has gaps too
    assert "CUDA graph" in (judged(host_s=0.01, **captured).why or "")
    assert "CUDA graph" not in (judged(host_s=0.99, **captured).why or "")


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    ("wall", "said"),
    [(0.0, ""), (1.0, ""), (1.029, ""), (0.972, ""), (1.032, "3.1% below"), (0.969, "3.2% above"),
     (1.05, "4.8% below"), (0.95, "5.3% above")],
)  # fmt: skip
def test_wall_time_may_differ_by_three_per_cent(wall: float, said: str) -> None:
    symptoms = [warning.symptom for warning in judged(wall=wall).warnings]
    assert len(symptoms) == bool(said)
    assert all(said in symptom and "amp" in symptom for symptom in symptoms)


def test_a_gap_has_the_cause_of_its_side_and_a_few_slow_steps_show_in_the_wall_time() -> None:
    def cause(**step: Any) -> str | None:
        (warning,) = judged(**step).warnings
        return warning.cause

    causes = [cause(wall=wall, busy_s=busy) for wall in (0.8, 1.2) for busy in (0.95, 0.5)]
    assert causes[1] == causes[3] == HOST_WANDERS[0]
    assert len({*causes}) == 3
    assert cause(wall=1.2, skipped=0) == causes[2], "where the bottleneck is not known"
    (found,) = gained(variant("amp", [[0.1] * 9 + [1.0] for _ in range(7)]))
    assert found.per_s == pytest.approx(BATCH / 0.1)
    assert found.wall_per_s == pytest.approx(BATCH / 0.19)
    assert len(found.warnings) == 1


@pytest.mark.parametrize(("pct", "warned"), [(9.9, 0), (10.1, 1)])
@pytest.mark.parametrize(
    ("steps", "seen", "words"),
    [(1, "1 step", FEW_STEPS), (49, "49 steps", FEW_STEPS), (50, "50 steps", STEPS_VARY)],
)
def test_an_interval_is_wide_from_ten_per_cent(
    pct: float, warned: int, steps: int, seen: str, words: tuple[str, str]
) -> None:
    processes = (ProcessTime(0, 1, 1.0), ProcessTime(1, steps - 1, 1.0))
    for interval in ((1 - pct / 100, 1.001), (0.999, 1 + pct / 100)):
        for more, by, advice in ((), seen, words), (processes, "2 processes", PROCESSES_VARY):
            found = judged(ci95_s=interval, steps=steps, processes=more).warnings
            assert [(warning.cause, warning.remedy) for warning in found] == [advice] * warned
            assert all(one.symptom.endswith(f"±10 %, from {by}") for one in found)
    wide = judged(ci95_s=(0.8, 1.2), steps=steps, fed=True).warnings
    assert wide[0].symptom.endswith(seen.replace("step", "block")), "means of fed blocks"


@pytest.mark.parametrize(
    ("steps", "skipped", "warned"),
    [(10, 1, 0), (10, 2, 1), (40, 4, 0), (40, 5, 1), (59, 5, 0), (60, 6, 0), (60, 7, 1),
     (500, 6, 0), (500, 7, 1), (600, 6, 0), (600, 7, 1), (700, 7, 0), (700, 8, 1), (60, 0, 0)],
)  # fmt: skip
def test_skipped_updates_settle_or_are_one_in_100(steps: int, skipped: int, warned: int) -> None:
    found = judged(steps=steps, skipped=skipped).warnings
    assert len(found) == warned
    assert all(str(skipped) in warning.symptom for warning in found)
    assert all("amp-bf16" in (warning.remedy or "") for warning in found)
