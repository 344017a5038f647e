"""docs/train.md says what the code does, docs/results.md what the run files of trainings say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.commands.list import cells
from e2e.data.datasets import KINDS
from e2e.recipes import RECIPES
from e2e.report.figures import bottleneck
from e2e.report.figures import ratio as as_read
from e2e.results.types import Training
from microbench.report.export import to_markdown
from microbench.results.runfile import read_run
from microbench.timing.stats import half_width_pct

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
REFERENCE = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
RESULTS = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("results.md", "notes/result-tables.md")
)
RUN_FILES = [
    path
    for path in sorted(ROOT.glob("results/*/**/*.json"))
    if any(r.get("op") == "train" for r in json.loads(path.read_text()).get("results", ()))
]


def test_every_recipe_has_its_row() -> None:
    rows = [line for line in REFERENCE.splitlines() if line.startswith("| ")]
    for recipe in RECIPES.values():
        assert f"| {' | '.join(cells(recipe))} |" in rows


def test_every_kind_of_data_has_its_row() -> None:
    for name in KINDS:
        assert f"| `{name}" in REFERENCE


@pytest.mark.parametrize("name", ["train-resnet50.json", "ladder-resnet50.json"])
def test_resnet50_s_tables_are_the_run_files_own(name: str) -> None:
    whole = to_markdown(read_run(H200 / name))
    table, *_ = whole[whole.index("| ") :].split("\n\n")
    assert table.strip() in RESULTS


def test_timm_s_figures_are_its_own() -> None:
    for name, label in (("amp", "AMP"), ("compiled", "AMP, compiled")):
        timm = json.loads((H200 / "timm" / f"{name}.json").read_text())
        by_step = timm["train_batch_size"] / timm["train_step_time"] * 1e3
        (ours,) = read_run(H200 / "timm" / f"ours-{name}.json").of(Training)
        assert ours.per_s is not None
        assert ours.per_s > by_step, "our target"
        row = f"| {label} | {by_step:,.0f}"
        found = next(line for line in RESULTS.splitlines() if line.startswith(row))
        assert found.endswith(f"| {timm['train_samples_per_sec']:,.0f} | {ours.per_s:,.0f} |")


def test_repeated_recipes_are_as_far_apart_as_said() -> None:
    runs = ("train-resnet50.json", "ladder-resnet50.json", "timm/ours-amp.json")
    steps = [_amp(read_run(H200 / name).of(Training)).step_s for name in runs]
    for step_s in steps:
        assert step_s is not None
        assert f"{step_s * 1e3:.1f} ms" in RESULTS
    known = [step_s for step_s in steps if step_s]
    assert f"{max(known) / min(known) - 1:.1%}".replace("%", " %") in RESULTS


def test_other_networks_rows_are_the_run_files_own() -> None:
    for training in read_run(H200 / "train-others.json").of(Training):
        case, steps = training.case, training.steps
        assert steps is not None
        assert steps.ci95_s is not None
        assert steps.busy_s is not None
        rows = [
            [cell.strip() for cell in line.strip("| ").split("|")]
            for line in RESULTS.splitlines()
            if line.startswith(f"| {case.network} | {case.batch} | {case.recipe} |")
        ]
        assert rows
        for row in rows:
            assert row[3] == f"{training.per_s:,.0f} {training.unit}/s"
            half_pct = float(row[4].split()[0])
            assert half_pct == pytest.approx(half_width_pct(steps.median_s, steps.ci95_s), abs=0.51)
            assert row[7] == f"{min(1.0, steps.busy_s / steps.median_s):.0%}"
            assert row[8] == bottleneck(training.limit)
            for base, cell in zip(("fp32", "tf32"), row[5:7], strict=True):
                ratio = training.speedup.get(base)
                if ratio and cell != "-":
                    assert cell == as_read(ratio)


@pytest.mark.parametrize("name", ["wrn-generated.json", "cifar-vgg16.json"])
def test_what_was_learnt_is_the_run_files_own(name: str) -> None:
    section = RESULTS[RESULTS.index(f"[{name}]") :]
    for training in read_run(H200 / name).of(Training):
        assert training.accuracy is not None
        row = next(r for r in section.splitlines() if r.startswith(f"| {training.case.recipe} |"))
        assert row.startswith(f"| {training.case.recipe} | {100 * training.accuracy[0]:.1f} ")
        assert training.converged
        assert "| converged |" in row
        assert row.endswith(f"| {bottleneck(training.limit)} |")


def _amp(trainings: tuple[Training, ...]) -> Training:
    """Fused, channels_last, neither compiled nor captured."""
    return next(
        t
        for t in trainings
        if (t.case.recipe, t.case.layout, t.case.fused, t.case.compile)
        == ("amp", "nhwc", True, False)
    )


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_published_training_is_whole_and_physical(path: Path) -> None:
    run = read_run(path)
    said = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    rows = [line for line in said.splitlines() if f"{path.name} |" in line]
    assert run.finished_at is not None or any("Unfinished" in row for row in rows)
    for training in run.of(Training):
        if training.status != "ok":
            assert training.reason
            continue
        assert training.steps is not None
        assert sum(training.steps.times_s) <= 1.001 * training.steps.wall_s
        assert (
            training.steps.busy_s is None or training.steps.busy_s <= 1.05 * training.steps.median_s
        )
        assert training.steps.ci95_s is not None
        low, high = training.steps.ci95_s
        assert low <= training.steps.median_s <= high
