"""Speed-ups, limits and warnings, from planted numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.results.baselines import baselines, slowest
from e2e.results.types import LIMITS, MAX_WALL_GAP, Phase, StepTimes, Training
from e2e.training.speedups import (
    DATA_SHARE,
    FIRST_SKIPS,
    IDLE_SHARE,
    MAX_SKIPPED_SHARE,
    with_speedups,
)
from microbench.results.values import ProcessTime
from microbench.timing.stats import median

Blocks = Sequence[Sequence[float]]
CASE = TrainCase("resnet50", "fp32", 64, "3x224x224", layout="nhwc")
BATCH = 64
FEW = settings(max_examples=40)  # each example is a bootstrap


@pytest.mark.parametrize(
    ("recipe", "among", "base"),
    [
        ("amp", ("tf32", "fp32"), "fp32"), ("amp", ("tf32",), "tf32"), ("amp", (), None),
        ("tf32", ("fp32",), "fp32"), ("fp32", ("tf32",), None), ("O0", ("tf32",), None),
        ("O1", ("tf32", "O0"), "O0"),
    ],
)  # fmt: skip
def test_a_ledger_starts_from_the_slowest_baseline(
    recipe: str, among: Sequence[str], base: str | None
) -> None:
    case = replace(CASE, recipe=recipe)
    found = slowest(case, baselines(case, [replace(CASE, recipe=name) for name in among]))
    assert (found.recipe if found else None) == base


def timed(blocks: Blocks, **changes: Any) -> StepTimes:
    times = tuple(t for block in blocks for t in block)
    made = StepTimes(
        times_s=times,
        wall_times_s=times,
        blocks=tuple(len(block) for block in blocks),
        median_s=median(times),
        ci95_s=None,
        wall_s=sum(times),
        wall_steps=len(times),
    )
    return replace(made, **changes)


def arm(recipe: str, blocks: Blocks | None = None, **case: Any) -> Training:
    """A training of this recipe with these times; without any it failed."""
    made = replace(CASE, recipe=recipe, **case)
    if blocks is None:
        return Training(made, "failed", "out of memory")
    return Training(made, "ok", step_units=BATCH, steps=timed(blocks))


def steady(step_s: float, rounds: int = 7) -> list[list[float]]:
    return [[step_s] * 3 for _ in range(rounds)]


def gained(*arms: Training, rungs: dict[str, str | None] | None = None) -> list[Training]:
    return with_speedups(arms, rungs or {})


def with_steps(training: Training, **changes: Any) -> Training:
    assert training.steps
    return replace(training, steps=replace(training.steps, **changes))


# ---------------------------------------------------------------- against baselines


def test_a_ratio_is_the_geometric_mean_of_the_rounds_ratios_of_medians() -> None:
    slow = [[4.0, 4.0, 40.0], [6.0, 5.0, 7.0], [9.0]]  # medians 4, 6, 9
    fast = [[2.0, 1.0, 2.0], [2.0, 2.0], [1.0, 3.0, 100.0]]  # medians 2, 2, 3
    _, amp = gained(arm("fp32", slow), arm("amp", fast))
    assert amp.speedup["fp32"].ratio == pytest.approx((4 / 2 * 6 / 2 * 9 / 3) ** (1 / 3))


def test_the_interval_holds_the_ratio_and_is_tight_for_steady_arms() -> None:
    _, amp = gained(arm("fp32", steady(0.2)), arm("amp", steady(0.1)))
    ratio = amp.speedup["fp32"]
    assert ratio.ratio == pytest.approx(2.0)
    assert ratio.ci95 is not None
    assert ratio.ci95[0] <= ratio.ratio <= ratio.ci95[1]
    assert ratio.ci95[1] - ratio.ci95[0] < 1e-4
    _, once = gained(arm("fp32", steady(0.3, rounds=1)), arm("amp", steady(0.1, rounds=1)))
    assert once.speedup["fp32"].ratio == pytest.approx(3.0)
    assert once.speedup["fp32"].ci95 is None, "one round has no interval"


Arms = list[tuple[str, float | None, dict[str, Any]]]  # recipe, seconds a step or failed, case
PLAIN: dict[str, Any] = {}
NCHW = {"layout": "nchw"}
# The arms, and of each what it is compared with.
COMPARED: dict[str, tuple[Arms, list[dict[str, float]]]] = {
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
    "an arm that failed": ([("fp32", 0.2, PLAIN), ("amp", None, PLAIN)], [{}, {}]),
    "no arms": ([], []),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_with_what(name: str) -> None:
    arms, expected = COMPARED[name]
    given = [arm(recipe, step_s and steady(step_s), **case) for recipe, step_s, case in arms]
    found = gained(*given)
    ratios = [{base: ratio.ratio for base, ratio in t.speedup.items()} for t in found]
    assert ratios == [pytest.approx(one) for one in expected]
    for before, after in zip(given, found, strict=True):
        assert after.steps == before.steps
        assert before.steps or after == before, "a failed arm comes out as it went in"


block_lists = st.lists(
    st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=5), min_size=2, max_size=8
)


@FEW
@given(block_lists)
def test_identical_arms_are_equally_fast(blocks: Blocks) -> None:
    _, amp = gained(arm("fp32", blocks), arm("amp", blocks))
    ratio = amp.speedup["fp32"]
    assert ratio.ratio == pytest.approx(1.0)
    assert ratio.ci95 is not None
    assert ratio.ci95[0] <= 1.0 <= ratio.ci95[1]


@FEW
@given(block_lists, st.floats(0.1, 10.0))
def test_an_arm_a_factor_slower_is_that_factor_slower(blocks: Blocks, factor: float) -> None:
    slower = [[factor * t for t in block] for block in blocks]
    _, amp = gained(arm("fp32", slower), arm("amp", blocks))
    assert amp.speedup["fp32"].ratio == pytest.approx(factor)


@FEW
@given(st.data())
def test_turned_round_the_ratio_is_its_inverse(data: st.DataObject) -> None:
    one = data.draw(block_lists)
    other = [[data.draw(st.floats(1e-4, 10.0)) for _ in block] for block in one]
    _, forth = gained(arm("fp32", one), arm("amp", other))
    _, back = gained(arm("fp32", other), arm("amp", one))
    product = forth.speedup["fp32"].ratio * back.speedup["fp32"].ratio
    assert product == pytest.approx(1.0)


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
    arms = [
        arm(recipe, None if rung in missing else steady(step_s), **case)
        for rung, recipe, step_s, case in RUNGS
    ]
    names: dict[str, str | None] = {
        made.case.key: rung for made, (rung, *_) in zip(arms, RUNGS, strict=True)
    }
    return arms, names


def test_each_rung_is_compared_with_the_one_below_and_the_first() -> None:
    arms, rungs = ladder()
    found = gained(*arms, rungs=rungs)
    assert [t.rung for t in found] == [rung for rung, *_ in RUNGS]
    assert not {"previous", "first"} & found[0].speedup.keys()
    for (below, here), training in zip(pairwise(RUNGS), found[1:], strict=True):
        assert training.speedup["previous"].ratio == pytest.approx(below[2] / here[2])
        assert training.speedup["first"].ratio == pytest.approx(RUNGS[0][2] / here[2])
    product = math.prod(t.speedup["previous"].ratio for t in found[1:])
    assert product == pytest.approx(found[-1].speedup["first"].ratio)


def test_the_rung_after_a_failed_one_is_compared_with_the_first_alone() -> None:
    arms, rungs = ladder("channels_last")
    found = gained(*arms, rungs=rungs)
    assert found[2].status == "failed"
    assert found[2].rung == "channels_last"
    assert "previous" not in found[3].speedup, "it would be the gain of two changes"
    assert found[3].speedup["first"].ratio == pytest.approx(RUNGS[0][2] / RUNGS[3][2])


def test_arms_off_a_ladder_have_no_rungs() -> None:
    found = gained(arm("fp32", steady(0.2)), arm("amp", steady(0.1)))
    assert all(t.rung is None for t in found)
    assert set(found[1].speedup) == {"fp32"}


# ---------------------------------------------------------------- what a step waits for


def limited(
    step_s: float = 0.1, *, data_s: float = 0.0, graph: bool = False, **changes: Any
) -> Training:
    made = with_steps(arm("amp", steady(step_s)), **changes)
    made = replace(made, case=replace(made.case, graph=graph))
    phases = (Phase("data", None, data_s), Phase("forward", 0.05, 5.0))
    (found,) = gained(replace(made, phases=phases))
    return found


@pytest.mark.parametrize(
    ("step", "limit", "words"),
    [
        ({"data_s": 0.03, "busy_s": 0.065}, "data", ["30%"]),
        ({"busy_s": 0.06, "host_s": 0.0951, "launches": 700}, "host",
         ["40%", "95.1 ms", "700 kernels"]),
        ({"data_s": 0.001, "busy_s": 0.097}, "gpu", ["97%"]),
        ({"busy_s": 0.104}, "gpu", ["100%"]),  # a profiler that counts more than the step has
        ({"data_s": 0.05}, "data", []),  # on a CPU no more is known
    ],
)  # fmt: skip
def test_what_a_step_waits_for(step: dict[str, Any], limit: str, words: list[str]) -> None:
    found = limited(0.1, **step)
    assert found.limit == limit
    assert [word for word in words if word not in (found.why or "")] == []


def test_what_is_not_known_is_not_said() -> None:
    assert "ms" not in (limited(0.1, busy_s=0.06).why or "ms"), "the host's time"
    assert (limited(0.1).limit, limited(0.1).why) == (None, None)


@pytest.mark.parametrize(("above", "limit"), [(-0.02, "gpu"), (0.02, "host")])
def test_the_bound_between_gpu_and_host(above: float, limit: str) -> None:
    assert limited(1.0, busy_s=1 - (IDLE_SHARE + above)).limit == limit


@pytest.mark.parametrize(("host_s", "limit"), [(0.01, "gpu"), (0.08, "gpu"), (0.099, "host")])
def test_a_captured_step_waits_for_the_host_only_where_that_takes_as_long(
    host_s: float, limit: str
) -> None:
    found = limited(0.1, busy_s=0.08, host_s=host_s, launches=700, graph=True)
    assert found.limit == limit
    assert found.why is not None
    if limit == "gpu":
        assert found.why == (
            "kernels run for 80% of the step; the rest is gaps between the kernels of the CUDA "
            "graph"
        )


@pytest.mark.parametrize(("above", "limit"), [(-0.02, "host"), (0.02, "data")])
def test_the_bound_beyond_which_data_is_waited_for(above: float, limit: str) -> None:
    assert limited(1.0, data_s=DATA_SHARE + above, busy_s=0.89).limit == limit
    assert limited(1.0, data_s=DATA_SHARE + above, busy_s=1.0).limit == "gpu", "it runs ahead"


@given(st.floats(1e-4, 1.0), st.floats(0, 2), st.floats(0, 2) | st.none())
def test_a_limit_is_one_of_the_known_ones_and_always_says_why(
    step_s: float, data: float, busy: float | None
) -> None:
    found = limited(step_s, data_s=data * step_s, busy_s=None if busy is None else busy * step_s)
    assert found.limit in (*LIMITS, None)
    assert (found.limit is None) == (found.why is None)


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(("factor", "word"), [(1.05, "below"), (0.95, "above")])
def test_images_over_wall_time_that_disagree_are_told(factor: float, word: str) -> None:
    (found,) = gained(with_steps(arm("amp", steady(0.1)), wall_s=2.1 * factor))
    (warning,) = found.warnings
    for part in (word, f"{abs(1 / factor - 1):.1%}", "amp"):
        assert part in warning.symptom
    assert warning.cause
    assert warning.remedy


@pytest.mark.parametrize("share", [-0.9, 0.0, 0.9])
def test_a_small_gap_is_no_warning(share: float) -> None:
    (found,) = gained(with_steps(arm("amp", steady(0.1)), wall_s=2.1 * (1 + share * MAX_WALL_GAP)))
    assert found.warnings == ()


def test_a_few_slow_steps_show_in_the_wall_time_alone() -> None:
    blocks = [[0.1] * 9 + [1.0] for _ in range(7)]
    (found,) = gained(arm("amp", blocks))
    assert found.median_per_s == pytest.approx(BATCH / 0.1)
    assert found.per_s == found.wall_per_s == pytest.approx(BATCH / 0.19)
    assert len(found.warnings) == 1


@pytest.mark.parametrize(("busy_s", "names_host"), [(0.05, True), (0.1, False), (None, False)])
def test_a_gap_of_a_step_that_waits_for_the_host_is_the_hosts(
    busy_s: float | None, names_host: bool
) -> None:
    (found,) = gained(with_steps(arm("amp", steady(0.1)), wall_s=100.0, busy_s=busy_s))
    (warning,) = found.warnings
    assert ("CPU launch" in warning.cause) is names_host
    assert ("--batch" in warning.remedy) is names_host


@pytest.mark.parametrize(
    ("steps", "skipped", "warned"),
    [
        (100, FIRST_SKIPS, 0), (100, FIRST_SKIPS + 1, 1), (20, 2, 0), (20, 3, 1),  # it settles
        (1000, None, 0), (1000, 0, 0), (1000, 9, 0), (1000, 11, 1), (1000, 900, 1),
    ],
)  # fmt: skip
def test_many_skipped_steps_bring_a_warning(steps: int, skipped: int | None, warned: int) -> None:
    assert MAX_SKIPPED_SHARE == 0.01
    (found,) = gained(replace(arm("amp", [[0.1] * steps]), skipped_steps=skipped))
    assert len(found.warnings) == warned
    for warning in found.warnings:
        assert str(skipped) in warning.symptom
        assert "amp-bf16" in warning.remedy


@pytest.mark.parametrize("rounds", [3, 30])
def test_a_wide_interval_says_how_wide_and_what_to_do(rounds: int) -> None:
    made = arm("amp", steady(0.1, rounds))
    (narrow,) = gained(with_steps(made, ci95_s=(0.098, 0.102)))
    assert narrow.warnings == ()
    (found,) = gained(with_steps(made, ci95_s=(0.09, 0.35)))
    (warning,) = found.warnings
    assert "amp" in warning.symptom
    assert "±250 %" in warning.symptom
    assert f"{3 * rounds} steps" in warning.symptom
    assert ("--budget" in warning.remedy) is (rounds == 3)
    processes = (ProcessTime(0, 1, 0.1), ProcessTime(1, rounds - 1, 0.2))
    (found,) = gained(with_steps(made, ci95_s=(0.09, 0.35), processes=processes))
    (warning,) = found.warnings
    assert "2 processes" in warning.symptom
    assert "--processes" in warning.remedy


def test_both_warnings_come_together() -> None:
    made = replace(arm("amp", steady(0.1)), skipped_steps=20)
    (found,) = gained(with_steps(made, wall_s=100.0))
    assert len(found.warnings) == 2
