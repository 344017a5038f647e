"""The figures of the tutorials, and of short tables, are the run files' own; commands parse."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import e2e.__main__
import microbench.__main__
from e2e.report.errors import error_table
from e2e.report.figures import bottleneck
from e2e.results.baselines import by_the_wall
from e2e.results.types import Training
from microbench.fmt import interval
from microbench.report.export import to_markdown
from microbench.results.runfile import read_run
from microbench.results.types import Run

ROOT = Path(__file__).parents[2]
AMP, KERNELS, EXPERIMENT = (
    (ROOT / "docs" / f"tutorial-{name}.md").read_text(encoding="utf-8")
    for name in ("amp", "kernels", "experiment")
)
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def run(name: str) -> Run:
    return read_run(ROOT / "results" / "nvidia-h200" / f"{name}.json")


def rows(markdown: str) -> list[dict[str, str]]:
    """Every row of every table, cell by column."""
    found: list[dict[str, str]] = []
    header: list[str] = []
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif not set("".join(cells)) <= set("-: "):
            found.append(dict(zip(header, cells, strict=True)))
    return found


def held(page: str, own: list[dict[str, str]], columns: list[str]) -> int:
    """How many of the page's rows with these columns there are; each is one of the run file's."""
    mine = [row for row in rows(page) if list(row) == columns]
    theirs = [[row.get(name) for name in columns] for row in own]
    for row in mine:
        assert list(row.values()) in theirs, row
    return len(mine)


def test_rows_of_kernels_are_the_run_files_own() -> None:
    own = rows(to_markdown(run("gemm-fp16")))
    columns = ["size", "precision", "back end", "time", "TFLOP/s", "x fp32", "x tf32", "bottleneck"]
    assert held(KERNELS, own, columns) == held(RESULTS, own, columns) == 3
    own = [r for r in rows(to_markdown(run("gemm-alignment"))) if r["back end"] == "cublas"]
    assert held(KERNELS, own, ["size", "precision", "time", "TFLOP/s", "bottleneck"]) == 3
    fp16 = {
        r.case.layout: r
        for r in run("conv-fp16").results
        if (r.case.dim("c"), r.case.precision_name) == (64, "fp16")
    }
    for layout, change in (("nhwc", ""), ("nchw", "45%")):
        result = fp16[layout]
        cells = (
            layout, f"{(result.flop_per_s or 0) / 1e12:.1f}",
            interval(result.speedup["fp32"]), interval(result.speedup["tf32"]),
            change, str(result.bound),
        )  # fmt: skip
        assert f"| {' | '.join(cells)} |" in KERNELS
    assert "45 %" in (fp16["nchw"].why or "")


def test_rows_of_trainings_are_the_run_files_own() -> None:
    own = rows(to_markdown(run("ledger-resnet50")))
    columns = ["recipe", "img/s", "x fp32", "x tf32", "GPU busy", "bottleneck"]
    assert held(AMP, own, columns) == 3
    label = "accuracy (generated data)"
    for name, base, columns in (
        ("cifar-vgg16", "fp32", "recipe|img/s|x fp32|peak GB|GPU busy|bottleneck"),
        ("wrn-generated", "O0", "recipe|img/s|x O0|peak GB|bottleneck"),
    ):
        own = rows(to_markdown(run(name)))
        mine = [r for r in rows(EXPERIMENT) if f"x {base}" in r]
        assert len(mine) == len([r for r in own if label in r])
        for row, theirs in zip(mine, own, strict=False):
            assert [row[c] for c in columns.split("|")] == [theirs[c] for c in columns.split("|")]
            assert row["accuracy (generated)"] == theirs[label]
    launch_ms = [1e3 * (t.steps.host_s or 0) for t in run("cifar-vgg16").of(Training) if t.steps]
    fp32, fp16, amp = launch_ms
    said = f"{fp32:.1f} ms in FP32, {fp16:.2f} ms in FP16, {amp:.1f} ms in AMP"
    assert said in EXPERIMENT


def test_what_the_ledger_and_the_fixes_say_is_the_run_files_own() -> None:
    (amp,) = (t for t in run("ledger-resnet50").of(Training) if t.case.recipe == "amp")
    ms = {line.term: line.ms for line in amp.ledger}
    first, *_, last = amp.ledger
    assert f"AMP's step is {first.ms - last.ms:.1f} ms shorter" in AMP
    assert f"{-ms['convolutions']:.1f} ms are convolutions" in AMP
    assert f"{-ms['layout changes']:.1f} ms layout changes" in AMP
    fixes = rows(to_markdown(run("verify-resnet50-nchw")))
    assert held(AMP, fixes, ["fix", "predicted gain", "measured gain"]) == 3


def test_eager_and_captured_steps_are_the_run_file_s() -> None:
    steps = {
        (t.case.graph, t.case.recipe): t
        for t in run("predict-validation").of(Training)
        if (t.case.network, t.case.batch) == ("vit_b_16", 8)
    }
    for graph, label, digits in (
        (False, "eager", (1, 1)),
        (True, "captured as a CUDA graph", (1, 2)),
    ):
        pair = [steps[graph, recipe] for recipe in ("tf32", "amp")]
        cells = [f"{1e3 * (t.step_s or 0):.{n}f}" for t, n in zip(pair, digits, strict=True)]
        assert {t.limit for t in pair} == {"gpu" if graph else "host"}
        assert f"| {label} | {' | '.join(cells)} | {bottleneck(pair[0].limit)} |" in AMP
    ratio = (steps[True, "tf32"].step_s or 0) / (steps[True, "amp"].step_s or 1)
    assert f"it is {ratio:.2f} times as fast as TF32" in AMP


def test_loaders_and_cores_are_the_run_files_own() -> None:
    fed = [t for t in run("stalls-resnet50").of(Training) if t.case.fed and not t.case.cached]
    by_case = {(t.case.recipe, t.case.workers): t for t in fed}
    for workers in (2, 8, 16):
        fp32, amp = by_case["fp32", workers], by_case["amp", workers]
        gain = interval(by_the_wall(amp.speedup["fp32"], fp32, amp))
        assert f"| {workers} | {fp32.per_s:,.0f} | {amp.per_s:,.0f} | {gain} |" in AMP
    pinned = next(
        t for t in run("stalls-resnet50").of(Training)
        if (t.case.loader, t.case.recipe) == ("pinned", "amp")
    )  # fmt: skip
    assert f"Without a loader AMP is {interval(pinned.speedup['fp32'])} times" in AMP
    arms = {
        t.case.recipe: t.steps
        for t in run("stalls-two-cpus").of(Training)
        if t.case.fed and not t.case.cached
    }
    steps = [step for name in ("O0", "O1", "O2", "O3") if (step := arms[name])]
    for times in ([s.wall_s / s.wall_steps for s in steps], [s.unfed_s or 0 for s in steps]):
        assert f"| {' | '.join(f'{1e3 * s:.1f}' for s in times)} |" in EXPERIMENT


def test_prediction_errors_are_the_run_file_s() -> None:
    trainings = run("predict-outside").of(Training)
    lines = {line.what: line for line in error_table(trainings)}
    gpu, host = lines["step, bottleneck GPU"], lines["step, bottleneck CPU launch"]
    said = " ".join(AMP.split())
    assert f"On {len(trainings)} steps of eight networks" in said
    assert f"was {gpu.median_pct:.1f} % (median) and {gpu.largest_pct:.1f} % (worst)" in said
    assert f"and {host.median_pct:.1f} % and {host.largest_pct:.1f} % for CPU-bound" in said


def _commands() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found: list[str] = []
    for page in pages:
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            found += [line for line in block.splitlines() if line.startswith("halfway ")]
    return sorted(set(found))


@pytest.mark.parametrize("line", _commands())
def test_every_command_of_the_docs_has_its_options(line: str) -> None:
    _, first, *words = shlex.split(line.partition(" -- ")[0], comments=True)
    apps = (microbench.__main__.app, e2e.__main__.app)
    command = next((app.commands[first] for app in apps if first in app.commands), None)
    if command is None:
        assert first == "COMMAND"
        return
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    # What follows --other are a script's own arguments.
    ours = [w for before, w in pairwise(["", *words]) if w.startswith("-") and before != "--other"]
    assert {word.split("=")[0] for word in ours} <= known | {"--help"}
