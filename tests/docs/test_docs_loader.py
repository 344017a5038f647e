"""docs/stalls.md and docs/notes/loader.md have the run files' numbers."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from e2e.explain.joint import joints
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from microbench.fmt import interval
from microbench.report.export import to_markdown
from microbench.results.runfile import read_run
from microbench.results.types import Run
from microbench.timing.stats import half_width_pct, median

ROOT = Path(__file__).parents[2]
STALLS = (ROOT / "docs" / "stalls.md").read_text(encoding="utf-8")
LOADER = (ROOT / "docs" / "notes" / "loader.md").read_text(encoding="utf-8")
BY_HAND = ROOT / "results" / "nvidia-h200" / "by-hand"
SUMMARY = " ".join(f"{STALLS} {LOADER}".split())
SAID = " ".join(LOADER.split())


def run_file(name: str) -> Run:
    return read_run(ROOT / "results" / "nvidia-h200" / name)


def fed(run: Run) -> list[Training]:
    return [t for t in run.of(Training) if t.case.fed and not t.case.cached]


def wall_s(training: Training) -> float:
    assert training.steps
    return training.steps.wall_s / training.steps.wall_steps


def ms(seconds: list[float]) -> str:
    *first, last = [f"{1e3 * each:.1f}" for each in seconds]
    return f"{', '.join(first)} and {last}"


def test_the_loaders_alone_are_the_run_files_own() -> None:
    assert to_markdown(run_file("loaders.json")).strip() in LOADER


def test_what_a_decoding_gpu_feeds_is_the_run_files_own() -> None:
    run = run_file("train-resnet50-jpeg.json")
    arms, (loading,) = fed(run), run.of(Loading)
    by_median: list[str] = []
    for training in arms:
        case, steps = training.case, training.steps
        assert steps is not None
        assert steps.unfed_s is not None
        how = " and ".join(["compiled"] * case.compile + ["captured"] * case.graph)
        cells = (
            how, f"{case.batch}", f"{training.per_s:,.0f}", f"{1e3 * wall_s(training):.1f}",
            f"{1e3 * steps.unfed_s:.1f}", f"{100 * steps.unfed_s / wall_s(training):.1f} %",
        )  # fmt: skip
        assert f"| {' | '.join(cells)} |" in LOADER
        if case.graph and case.compile:
            by_median.append(f"{training.step_units / steps.median_s:,.0f}")
        if not case.graph:
            assert f"needs {1e3 * (steps.host_s or 0):.0f} ms to launch it" in SAID
    assert len(arms) == 4
    halves = [
        half_width_pct(t.steps.median_s, t.steps.ci95_s)
        for t in arms
        if t.case.graph and t.case.compile and t.steps and t.steps.ci95_s
    ]
    assert f"known to ±{' and ±'.join(f'{half:.1f}' for half in halves)} %" in SAID
    assert f"trained {' and '.join(by_median)} img/s" in SAID
    captured = arms[0]
    assert f"the loader alone gave {loading.per_s:,.0f}" in SAID
    assert f"ran at {captured.per_s:,.0f} img/s" in SAID
    assert captured.steps is not None
    share = 100 * (captured.steps.unfed_s or 0) / wall_s(captured)
    assert f"reaches {captured.per_s:,.0f} img/s as a captured step, {share:.1f} %" in SUMMARY


def test_the_joint_picture_is_the_run_files_own() -> None:
    run = run_file("stalls-resnet50.json")
    table = to_markdown(run)
    assert table[table.index("| workers | loader alone") :].strip() in LOADER
    together = {(t.case.recipe, t.case.workers): t for t in fed(run)}
    errors = [
        abs(told / t.per_s - 1)
        for t in together.values()
        if t.per_s and (told := t.predicted_per_s)
    ]
    assert len(errors) == 6
    assert f"error of the six predicted rates is {100 * median(errors):.1f} %" in SUMMARY
    worst = max(together.values(), key=lambda t: abs((t.predicted_per_s or 0) / (t.per_s or 1) - 1))
    assert (worst.case.recipe, worst.case.workers) == ("amp", 16)
    assert f"the worst {100 * max(errors):.1f} % (AMP, 16 workers)" in SUMMARY
    by_median = [
        abs((t.predicted_per_s or 0) * t.steps.median_s / t.step_units - 1)
        for t in together.values()
        if t.steps
    ]
    both = f"{100 * median(by_median):.1f} and {100 * max(by_median):.1f} %"
    rate = 256 / (together["amp", 16].step_s or 1)
    assert f"AMP trained {rate:,.0f} img/s with 16 workers and the errors were {both}" in SUMMARY
    waiting = [
        abs(told / t.per_s - 1)
        for t in together.values()
        if t.limit == "data" and t.per_s and (told := t.predicted_per_s)
    ]
    assert len(waiting) == 4
    assert f"with data loading as the bottleneck it is {100 * median(waiting):.1f} %" in SUMMARY
    (joint,) = joints(run)
    ratios: dict[int, str] = {}
    for workers, sure in ((2, False), (8, False), (16, True)):
        gain = joint.speedup("amp", "fp32", workers)
        assert gain
        assert gain.ratio.ci95
        assert (gain.ratio.ci95[0] > 1) is sure
        rates = [together[name, workers].wall_per_s or 0.0 for name in ("amp", "fp32")]
        assert gain.ratio.ratio == pytest.approx(rates[0] / rates[1])
        ratios[workers] = interval(gain.ratio)
    assert f"no difference seen with 2 workers ({ratios[2]})" in SUMMARY
    assert f"and 8 ({ratios[8]}), {ratios[16]} with 16" in SUMMARY
    pinned = next(
        t for t in run.of(Training) if t.case.loader == "pinned" and t.case.recipe == "amp"
    )
    assert f"and {interval(pinned.speedup['fp32'])} on a preloaded" in SUMMARY
    halves = sorted(
        half_width_pct(t.steps.median_s, t.steps.ci95_s)
        for t in together.values()
        if t.limit == "data" and t.steps and t.steps.ci95_s
    )
    *some, last = [f"±{half:.0f}" for half in halves]
    assert f"are measured to {', '.join(some)} and {last} %" in SUMMARY
    assert {len(t.steps.blocks_s) for t in together.values() if t.steps} == {3}
    busy = {
        t.case.recipe: t.timed for t in run.of(Training) if t.case.cached and t.case.workers == 16
    }["amp"]
    assert busy is not None
    assert busy.ci95_s is not None
    low, high = (f"{1e3 * end:.1f}" for end in busy.ci95_s)
    assert f"took {1e3 * busy.median_s:.1f} ms (95 % interval: {low} to {high})" in SAID
    assert pinned.steps is not None
    assert pinned.steps.ci95_s is not None
    low, high = (f"{1e3 * end:.1f}" for end in pinned.steps.ci95_s)
    assert f"instead of {1e3 * pinned.steps.median_s:.1f} ({low} to {high})" in SAID


def test_two_cores_are_the_run_files_own() -> None:
    run = run_file("stalls-two-cpus.json")
    arms = {t.case.recipe: t.steps for t in fed(run)}
    steps = [steps for name in ("O0", "O1", "O2", "O3") if (steps := arms[name])]
    walls = [one.wall_s / one.wall_steps for one in steps]
    assert f"took {ms(walls)} ms a step, but" in SAID
    assert f"but {ms([one.unfed_s or 0 for one in steps])} ms on a preloaded batch" in SAID
    assert {len(one.blocks_s) for one in steps} == {4}
    quicker = [
        wall_s(t) < t.predicted.interval_s[0]
        for t in fed(run)
        if t.predicted and t.predicted.interval_s
    ]
    assert (sum(quicker), len(quicker)) == (3, 4)
    table = to_markdown(run)
    assert table[table.index("| workers | loader alone") :].strip() in LOADER
    ratios = table[table.rindex("| 2 |") :].splitlines()[0].strip("| ").split(" | ")[-3:]
    ratio, half = map(float, ratios[1].split(" ±"))
    assert f"O2 is shown to be within {100 * (abs(ratio - 1) + half):.0f} % of O0" in SAID


def test_what_a_loader_by_hand_gives_is_the_files_own() -> None:
    hand = [
        fmean(json.loads((BY_HAND / f"plain{i}.json").read_text(encoding="utf-8"))["images_per_s"])
        for i in (1, 2, 3)
    ]
    ours = [run_file(f"by-hand/ours{i}.json").of(Loading)[0].per_s or 0.0 for i in (1, 2, 3)]

    def said(per_s: list[float]) -> str:
        return f"({min(per_s):,.0f} to {max(per_s):,.0f})"

    assert f"by hand {fmean(hand):,.0f} img/s on average {said(hand)}" in SAID
    more_pct = 100 * (fmean(ours) / fmean(hand) - 1)
    assert f"`torchvision` {fmean(ours):,.0f} {said(ours)}, {more_pct:.1f} % more" in SAID
