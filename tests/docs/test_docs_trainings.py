"""Trainings, loaders and ledgers: figures of README, results, stalls, ledger and the tutorials."""

from __future__ import annotations

from statistics import fmean

import pytest
from samples.pages import Row, document, rows_in, run, says, shows, table, text, trainings

from e2e.data.datasets import KINDS
from e2e.recipes import RECIPES
from e2e.report.figures import bottleneck
from e2e.report.figures import ratio as as_read
from e2e.report.loading import loader_sweeps
from e2e.results.loader_types import Loading
from e2e.results.types import StepTimes, Training
from microbench.fmt import interval, signed_pct
from microbench.report.report import report_of
from microbench.report.writers import to_markdown
from microbench.timing.stats import half_width_pct

README, RESULTS, TABLES = "README", "docs/results", "docs/notes/result-tables"
AMP, EXPERIMENT, LEDGER = "docs/tutorial-amp", "docs/tutorial-experiment", "docs/ledger"
STALLS, LOADER = "docs/stalls", "docs/notes/loader"


def steps_of(training: Training) -> StepTimes:
    assert training.steps
    return training.steps


def half_pct(training: Training) -> float:
    steps = steps_of(training)
    assert steps.ci95_s
    return half_width_pct(steps.median_s, steps.ci95_s)


def wall_ms(training: Training) -> float:
    return 1e3 * steps_of(training).wall_s / steps_of(training).wall_steps


def unfed_ms(training: Training) -> float:
    """Of a step on a batch that is there."""
    return 1e3 * (steps_of(training).unfed_s or 0)


def fed(name: str) -> list[Training]:
    return [t for t in trainings(name) if t.case.loads_data and not t.case.cached]


def test_recipes_timm_the_ladder_and_inference() -> None:
    rows = table("docs/train", "recipe", "in words")
    assert {name for row in rows for name in row[0].split(", ")} == RECIPES.keys()
    for name in KINDS:
        assert f"| `{name}" in text("docs/train")
    for name in ("amp", "compiled"):
        timm = document(f"timm/{name}")
        by_step = timm["train_batch_size"] / timm["train_step_time"] * 1e3
        (ours,) = trainings(f"timm/ours-{name}")
        assert (ours.per_s or 0) > by_step, "our target"
        says(RESULTS, "Beside timm", f"{by_step:,.0f}", f"{ours.per_s:,.0f}")
    first, *rungs = trainings("ladder-resnet50")
    ends = 1e3 * (first.step_s or 0), 1e3 * (rungs[-1].step_s or 0)
    gains = [as_read(one.speedup["previous"]) for one in rungs]
    says(RESULTS, "--ladder makes one change", *ends, as_read(rungs[-1].speedup["first"]), *gains)
    latency, rate = trainings("eval-resnet50")[:3], trainings("eval-resnet50")[3:]
    assert [t.case.recipe for t in (*latency, *rate)] == 2 * ["fp32", "tf32", "amp"]
    for words, figures in (
        ("ResNet-50 at batch 256 makes", [round(t.per_s or 0) for t in rate]),
        ("At batch 1", [1e3 * (t.step_s or 0) for t in latency]),
    ):
        says("docs/train", words, *figures)
    says("docs/train", "ResNet-50 at batch 256 makes", as_read(rate[-1].speedup["tf32"]))
    assert any(t.ruined_pct for t in latency), "too uncertain for a verdict"


def test_the_same_recipe_in_several_runs_other_networks_and_what_was_learnt() -> None:
    plain = "amp", "nhwc", True, False  # neither compiled nor captured
    steps_ms = [
        1e3 * next(
            t.step_s or 0 for t in trainings(name)
            if (t.case.recipe, t.case.layout, t.case.fused, t.case.compile) == plain
        )
        for name in ("train-resnet50", "ladder-resnet50", "timm/ours-amp")
    ]  # fmt: skip
    apart = 100 * (max(steps_ms) / min(steps_ms) - 1)
    says(TABLES, "beside timm", *steps_ms, apart)
    found = {
        (t.case.network, str(t.case.batch), t.case.recipe): t for t in trainings("train-others")
    }
    for row in table(RESULTS, "network", "batch", "recipe"):
        training = found[row[0], row[1], row[2]]
        assert row[3] == f"{training.per_s:,.0f} {training.unit}/s"
        for base, cell in zip(("fp32", "tf32"), row[4:6], strict=True):
            assert cell == "-" or base not in training.speedup or (
                cell == as_read(training.speedup[base]).removesuffix("?")
            )  # fmt: skip
        assert row[6:] == [bottleneck(training.limit)]
    for name in ("wrn-generated", "cifar-vgg16"):
        base, *low = trainings(name)
        assert all(t.converged for t in (base, *low))
        whole_s = [fmean(repeat.train_s for repeat in t.repeats) for t in (base, *low)]
        by_steps = [t.speedup["fp32"].ratio for t in low]
        says(TABLES, "By timed steps", *by_steps, *(whole_s[0] / s for s in whole_s[1:]))
    launch_ms = [1e3 * (steps_of(t).host_s or 0) for t in trainings("cifar-vgg16")]
    says(EXPERIMENT, "about the same time to launch", *launch_ms)


def test_a_ledger_is_as_the_page_says() -> None:
    amp = next(t for t in trainings("verify-resnet50")
               if (t.ledger_base, t.case.recipe) == ("fp32", "amp"))  # fmt: skip
    before = {t.case.key: t for t in trainings("ledger-resnet50")}
    assert amp.ledger == before[amp.case.key].ledger, "verifying changes nothing"
    drawn = next(t for t in trainings("train-resnet50-short") if t.case.recipe == "amp")
    ms = {line.term: line.ms for line in drawn.ledger}
    total, *_, step = drawn.ledger
    says(README, "AMP trains", *(drawn.speedup[base].ratio for base in ("tf32", "fp32")),
         total.ms - step.ms, -ms["convolutions"])  # fmt: skip
    terms = {line.term: line for line in amp.ledger}
    first, *changes, last = amp.ledger
    assert sum(line.ms for line in (first, *changes)) == pytest.approx(last.ms)
    saved = first.ms - last.ms
    convolutions, layouts = -terms["convolutions"].ms, -terms["layout changes"].ms
    was, now = map(float, terms["convolutions"].detail.split(" ms")[0].split(" to "))
    says(LEDGER, "convolutions take", was / now)
    added = (terms[name].ms for name in ("casts", "loss scaler"))
    says(LEDGER, "are what AMP adds", *added)
    says(AMP, "account", saved, convolutions, layouts)


def test_the_short_table_of_fixes_and_captured_steps() -> None:
    rows: list[Row] = []
    for name, base in (
        ("verify-resnet50", "AMP, NHWC, batch 256"),
        ("verify-resnet50-nchw", "TF32, NCHW, batch 128"),
    ):
        found = {cause.fix: cause for t in trainings(name) for cause in t.causes
                 if cause.measured_gain_pct is not None}  # fmt: skip
        order = sorted(found.values(), key=lambda one: one.predicted_gain_pct is None)
        for one in order:
            rows.append([base, one.fix, signed_pct(one.measured_gain_pct or 0.0)])
    shows(LEDGER, rows)
    steps = {(t.case.graph, t.case.recipe): t for t in trainings("predict-validation")
             if (t.case.network, t.case.batch) == ("vit_b_16", 8)}  # fmt: skip
    for words, graph in (("eager |", False), ("captured as a CUDA graph |", True)):
        pair = [steps[graph, recipe] for recipe in ("tf32", "amp")]
        says(AMP, words, *(1e3 * (t.step_s or 0) for t in pair), bottleneck(pair[0].limit))
    says(AMP, "Eager, AMP gains nothing",
         (steps[True, "tf32"].step_s or 0) / (steps[True, "amp"].step_s or 1))  # fmt: skip


def test_a_decoding_gpu() -> None:
    alone = {(one.case.loader, one.case.workers): one for one in run("loaders-dali").of(Loading)}
    dali, slow, ours = (
        [(one.per_s or 0, half_width_pct(one.per_s or 1, one.ci95_per_s or (0, 0)))
         for workers in (8, 16) if (one := alone[name, workers])]
        for name in ("dali", "torchvision", "gpu-decode")
    )  # fmt: skip
    (training,) = fed("train-resnet50-dali")
    says(STALLS, "JPEG files at GPU speed.", *dali[1], *slow[1], training.per_s or 0,
         half_pct(training), 100 * unfed_ms(training) / wall_ms(training))  # fmt: skip
    first, *later = (block.images / block.wall_s for block in alone["dali", 8].blocks)
    says(LOADER, "the first of four blocks was slow", *dali[0], first, min(later), max(later))
    says(LOADER, "With it ResNet-50 under AMP took", wall_ms(training), unfed_ms(training))
    captured, *_, compiled = fed("train-resnet50-jpeg")
    assert (captured.case.graph, compiled.case.graph, compiled.case.compile) == (True, False, True)
    share = 100 * unfed_ms(captured) / wall_ms(captured)
    says(LOADER, "Beside DALI", *(per_s for per_s, _ in ours))
    says(LOADER, "It fed ResNet-50", captured.per_s or 0, share, compiled.per_s or 0)


def test_workers_that_amp_needs() -> None:
    together = {t.case.recipe: t for t in fed("stalls-resnet50") if t.per_s}
    pinned = {t.case.recipe: t for t in trainings("stalls-resnet50") if t.case.loader == "pinned"}
    rates = {name: (together[name].per_s or 0, pinned[name].per_s or 0) for name in together}
    assert {t.case.workers for t in together.values()} == {16}
    assert (together["tf32"].limit, together["amp"].limit) == ("data", "data")
    alone = {one.case.workers: one.per_s or 0 for one in run("stalls-resnet50").of(Loading)
             if one.case.loader == "torchvision" and not one.case.cold}  # fmt: skip
    (joint,) = loader_sweeps(run("stalls-resnet50"))
    gain = joint.speedup("amp", "tf32", 16)
    assert gain is not None
    reached = [100 * end for name in together for end in joint.reached(name, 16).ci95 or ()]
    assert len(reached) == 4
    says(STALLS, "of its full speed in TF32", *reached)
    says(STALLS, "How many workers", *(alone[n] for n in (4, 16)), *rates["tf32"], *rates["amp"],
         interval(gain.ratio), interval(pinned["amp"].speedup["tf32"]))  # fmt: skip
    errors = [100 * abs((t.predicted_per_s or 0) / (t.per_s or 1) - 1) for t in together.values()]
    says(STALLS, "With 16 workers the predicted", *errors, half_pct(together["amp"]))
    says(AMP, "with JPEG files and 16 workers", *rates["amp"], half_pct(together["amp"]),
         *rates["tf32"])  # fmt: skip
    times_ms = [1e3 * time_s for time_s in steps_of(together["amp"]).times_s]
    says(
        LOADER,
        "step with 16 workers",
        min(times_ms),
        max(times_ms),
        1e3 * steps_of(pinned["amp"]).median_s,
    )


def test_two_cores_and_a_loader_by_hand() -> None:
    found = {t.case.recipe: t for t in fed("stalls-two-cpus")}
    variants = [found[f"O{level}"] for level in range(4)]
    times = [wall_ms(t) for t in variants], [unfed_ms(t) for t in variants]
    says(LOADER, "at batch 512 with --cpus 2", *times[0], *times[1])
    for words, row in zip(("with two workers", "on a preloaded batch |"), times, strict=True):
        says(EXPERIMENT, words, *row)
    ends = [t.predicted.interval_s for t in variants if t.predicted and t.predicted.interval_s]
    assert sum(wall_ms(t) < 1e3 * low for t, (low, _) in zip(variants, ends, strict=True)) == 3
    report = rows_in(to_markdown(report_of(run("stalls-two-cpus"))))
    row = next(row for head, row, *_ in report if "O2 x O0" in head)
    head = next(head for head, *_ in report if "O2 x O0" in head)
    ratio, half = map(float, row[head.index("O2 x O0")].split(" ±"))
    within = round(100 * (abs(ratio - 1) + half))
    says(LOADER, "O2 is shown to be within", within)
    says(EXPERIMENT, "O2 is within", within)
    hand = [fmean(document(f"by-hand/plain{i}")["images_per_s"]) for i in (1, 2, 3)]
    ours = [run(f"by-hand/ours{i}").of(Loading)[0].per_s or 0.0 for i in (1, 2, 3)]
    figures = [rate for one in (hand, ours) for rate in (fmean(one), min(one), max(one))]
    says(LOADER, "plain_dataloader.py", *figures, 100 * (fmean(ours) / fmean(hand) - 1))
