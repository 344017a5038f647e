"""Traces of an H200, compiled ones of a CPU, and scripts: exact sums and the planted cause.

docs/diagnose.md quotes some.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import fmean, median

import pytest
import torch
from scenarios.__main__ import main
from scenarios.report import summary, table
from scenarios.run import Scenario
from scenarios.table import SCENARIOS
from torch import nn

from e2e.profile import diagnosis, halfway_watch
from e2e.profile.compiled import is_compiling
from e2e.profile.diagnosis import Diagnosis, Traced
from e2e.profile.products import Product, products, reach
from e2e.profile.step import step_of
from e2e.profile.trace import OP, read_trace
from e2e.profile.unprofiled import Unprofiled, steps_in
from e2e.report.diagnosis import report
from e2e.results import terms
from kernels.gpu_cards import Card
from kernels.gpus import find_card
from microbench.results.codec import decode
from microbench.roofline.rates import Rates, known_rates

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples"
TRACES, COMPILED = SAMPLES / "traces_h200", SAMPLES / "traces_compiled"
NAMES = sorted(path.name[:-8] for path in TRACES.glob("*.gz"))
PUBLISHED = ROOT / "results" / "nvidia-h200" / "diagnose"
PAGE = " ".join(
    " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
    for name in ("diagnose.md", "notes/diagnose.md")
)
H200 = "NVIDIA H200"
CARD = find_card(H200)


@cache
def run_of(name: str) -> Unprofiled:
    return steps_in(read_trace(TRACES / f"{name}.json.gz"))


@cache
def diagnosed(*names: str) -> Diagnosis:
    return diagnosis.diagnose([TRACES / f"{name}.json.gz" for name in names])


def products_of(
    name: str, card: Card | None = CARD, rates: Rates | None = None
) -> tuple[Product, ...]:
    return products(run_of(name).step, card, rates)


# ---------------------------------------------------------------- as recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_work_of_the_gpu_is_joined_to_what_launched_it(name: str) -> None:
    run = run_of(name)
    step = run.step
    assert (step.trace.lost, step.on_cpu) == (0, False)
    assert 1 <= step.steps <= 3
    assert sum(step.recorded.values()) == step.end - step.start
    work = [op for op in step.ops if op.term not in terms.IDLE]
    assert sum(op.ns for op in work if op.ops) >= 0.99 * sum(op.ns for op in work)
    assert {op.phase for op in work} >= {"forward", "backward", "optimizer"}
    # A step without the profiler is its mean, and its work is as it was recorded.
    assert run.step_s
    assert sum(run.terms.values()) == run.whole_ns == pytest.approx(1e9 * run.step_s * step.steps)
    worked = sum(op.ns for op in work)
    assert run.whole_ns - run.idle_ns == pytest.approx(min(worked, run.whole_ns), abs=9)


FIRST = ("mlp_small", "slow_loader", "nchw", "odd_vocab", "recast", "fp32_island", "new_shapes")


@pytest.mark.parametrize("name", [*FIRST, "syncs", "optimizer_bound"])
def test_the_planted_cause_is_named_first_and_not_where_it_is_mended(name: str) -> None:
    """Without trials a step that waits for launches too may have its cause second."""
    (run,), (fixed,) = diagnosed(name).runs, diagnosed(f"{name}-fixed").runs
    cause = SCENARIOS[name].cause
    place = [bool(re.search(cause, one.title)) for one in run.findings].index(True)
    assert place <= (name not in FIRST)
    (planted,) = (one for one in run.findings if re.search(cause, one.title))
    (mended,) = [one.ms for one in fixed.findings if re.search(cause, one.title)] or [0.0]
    assert mended < planted.ms / 4
    assert run.step_ms - fixed.step_ms > 0.5 * mended
    if name in FIRST:  # as its mending shows, after which something else limits the step
        assert 0.6 < planted.most_ms / (run.step_ms - fixed.step_ms) < 1.4


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("name", ["odd_vocab", "fp32_island", "slow_loader-fixed"])
def test_products_add_up_to_their_terms_and_none_is_faster_than_the_card(name: str) -> None:
    found, step = products_of(name), run_of(name).step
    assert sum(p.ns for p in found) == sum(
        step.recorded.get(term, 0) for term in terms.PRODUCT_TERMS
    )
    assert all(p.flops and p.bytes and p.floor_s and p.count == step.steps for p in found)
    assert all(1e9 * p.floor_s * p.count < p.kernel_ns for p in found if p.floor_s)
    # TF32 was off, so float32 is proved to have no Tensor Cores.
    assert all(p.tensor_cores is False for p in found if p.precision == "fp32")
    assert products_of(name, None)[0].floor_s is None


def test_the_unaligned_head_is_slow_and_floors_are_by_measured_rates_or_the_datasheet() -> None:
    by_sheet, rates = products_of("odd_vocab"), known_rates(H200)
    measured = products_of("odd_vocab", CARD, rates)
    assert all(m.measured and not p.measured for m, p in zip(measured, by_sheet, strict=True))
    for one, other in zip(measured, by_sheet, strict=True):
        assert other.floor_s < one.floor_s < other.floor_s / 0.85
        assert 1e9 * one.floor_s * one.count < one.kernel_ns
    assert products_of("odd_vocab", CARD, Rates(H200, "mine", {"fp64": 1e13})) == by_sheet
    unknown = products_of("odd_vocab", None, rates)
    assert [p.floor_s for p in unknown] == [p.floor_s for p in measured]
    found = products_of("odd_vocab")
    assert {p.misaligned for p in found[:3]} == {True}
    assert {(p.misaligned, p.tensor_cores) for p in found[3:]} == {(False, True)}
    assert reach(found) == pytest.approx((0.288, 0.132), abs=0.001)


# ---------------------------------------------------------------- compiled, on a CPU


@pytest.mark.parametrize("name", ["steady", "broken"])
def test_a_cpu_s_compiled_code_has_products_by_layer_and_loops_of_its_own(name: str) -> None:
    path = COMPILED / f"{name}.json.gz"
    step, (run,) = step_of(read_trace(path)), diagnosis.diagnose([path]).runs
    assert step.on_cpu
    assert sum(step.recorded.values()) == step.end - step.start
    assert terms.COMPILATION not in step.recorded
    phases = {op.phase for op in step.ops if op.term == terms.FUSED_KERNELS}
    assert phases == {"forward", "backward"}
    multiplied = {(p.operator, p.phase) for p in run.products if p.flops}
    assert {("addmm", "forward"), ("mm", "backward")} <= multiplied
    assert all(one.title != "compilation inside the steps" for one in run.findings)
    assert not {one.cause for one in run.findings} & {"tf32", "float32"}, "a CPU has no other"


def test_compiled_products_match_in_pieces_too_and_a_recompilation_is_of_no_usual_step() -> None:
    found = diagnosis.diagnose([COMPILED / f"{name}.json.gz" for name in ("steady", "broken")])
    assert found.aligned.alike > 0.5
    (run,) = diagnosis.diagnose([COMPILED / "recompiled.json.gz"]).runs
    assert run.ms(terms.COMPILATION) > 0.5 * run.step_ms
    assert "in the recorded steps alone" in run.ruined[0], "steps take 34 ms, and it took 24 s"
    # Tensors that dynamo only traces with are no work of the step.
    assert run.ms(terms.MATRIX_PRODUCTS) < 0.1 * run.step_ms


class Part(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x).relu()


def test_the_recorder_s_hooks_are_not_compiled_in_the_steps(tmp_path: Path) -> None:
    net = nn.Sequential(*(Part(8, 8) for _ in range(10)))
    compiled, out = torch.compile(net, backend="eager"), tmp_path / "t.json"
    with halfway_watch.watch(out=str(out), after=2, bare=2, traced=2) as watch:
        for _ in range(7):
            compiled(torch.randn(4, 8)).sum().backward()
            watch.step()
    trace = read_trace(out)
    assert any(op.name.startswith("Torch-Compiled Region") for op in trace.spans[OP])
    assert not any(is_compiling(op) for op in trace.spans[OP])
    assert terms.COMPILATION not in step_of(trace).recorded


# ---------------------------------------------------------------- what the pages quote


def published(name: str) -> tuple[Traced, ...]:
    data = json.loads((PUBLISHED / f"{name}.json").read_text())
    found: Diagnosis = decode(Diagnosis, {"runs": data["runs"]}, "")
    return found.runs


def test_the_page_quotes_what_was_published() -> None:
    base, other = published("nchw")
    saved, more = other.step_ms - base.step_ms, other.ms(terms.LAYOUT) - base.ms(terms.LAYOUT)
    rest = (
        next(float(one.ns) for one in diagnosis.changes(base, other) if one.term == terms.RESIDUAL)
        / 1e6
    )
    assert f"is {saved:.2f} ms longer: layout changes take {more:.2f} ms more" in PAGE
    assert f"and {rest:.2f} ms are unexplained" in PAGE
    found = sorted((PUBLISHED / "public").glob("*.json"))
    assert len(found) == 5
    for path in found:
        (run,) = published(f"public/{path.stem}")
        first = run.findings[0]
        cause = first.title.partition(":")[0].replace("sizes that are", "a vocabulary of 50,257,")
        row = rf"\| {re.escape(f'{run.step_ms:.3g}')} \| {re.escape(cause)}[^|]* \| "
        assert re.search(rf"{row}{re.escape(f'{first.most_ms:.3g}')} \|", PAGE), path.stem
        assert first.most_ms <= run.step_ms


@pytest.mark.parametrize("name", ["bare_step_s", "window_ns"])
def test_a_step_that_takes_no_time_is_refused(name: str) -> None:
    data = json.loads((PUBLISHED / "slow_loader.json").read_text())
    run = data["runs"][-1]
    if name == "window_ns":
        run["terms"] = []
    run[name] = 0
    with pytest.raises(ValueError, match=rf"runs\[1\]\.{name}: expected"):
        report(data)


# ---------------------------------------------------------------- scripts with planted causes


ON_CPU = [name for name, planted in SCENARIOS.items() if planted.on_cpu]
EACH = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = [*words, "--steps=1"]
    runpy.run_path(words[0], run_name="__main__")
    print(*words, flush=True)
"""


def test_causes_that_a_cpu_shows_are_named_until_they_are_fixed(
    tmp_path: Path, quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from the packed traces alone. What ran is not run again."""
    monkeypatch.setattr(sys, "executable", quick_python)
    words = ["--out", str(tmp_path), *ON_CPU, "--steps", "1", "2", "1"]
    assert main(words) == 0
    written = (tmp_path / "diagnose-scenarios.json").read_text()
    ran = decode(tuple[Scenario, ...], json.loads(written)["scenarios"], "scenarios")
    assert [one.name for one in ran] == ON_CPU
    for one in ran:
        for found, expected in (
            (one.live, 1), (one.alone, 1), (one.fixed, 0), (one.fixed_alone, 0)
        ):  # fmt: skip
            assert found.exact
            assert min(1, found.place(one.planted)) == expected, one.name
        for kept in (one.name, f"{one.name}-fixed"):
            assert (tmp_path / "traces" / f"{kept}.json.gz").exists()
    assert not (tmp_path / "full").exists()
    assert main(words) == 0
    again = json.loads((tmp_path / "diagnose-scenarios.json").read_text())
    assert again["scenarios"] == json.loads(written)["scenarios"]


def test_every_script_runs_with_its_cause_and_without() -> None:
    lines = [
        [str(planted.path), *planted.arguments, *fixed, *other]
        for planted in SCENARIOS.values()
        for fixed in ([], ["--fixed"])[: 2 if planted.cause else 1]
        for other in ([], [planted.other])[: 2 if planted.other else 1]
    ]
    words = [sys.executable, "-W", "ignore", "-c", EACH, json.dumps(lines)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(line) for line in lines]


def test_the_page_has_the_tables_of_the_published_runs() -> None:
    data = json.loads((ROOT / "results/nvidia-h200/diagnose-scenarios.json").read_text())
    ran = decode(tuple[Scenario, ...], data["scenarios"], "scenarios")
    page = (ROOT / "docs/notes/diagnose.md").read_text()
    told = (ROOT / "docs/diagnose.md").read_text()
    for line in list(summary(ran))[:4]:
        assert line.partition(";")[0].rstrip(".") in told
    first = [one.live.place(one.planted) == 1 for one in ran if one.planted and one.live]
    assert f"{sum(first)} of {len(first)}" in (ROOT / "README.md").read_text()
    _, _, *rows = table(ran)
    assert len(rows) == len(data["scenarios"])
    for row in rows:
        assert row in page
    costs = json.loads((ROOT / "results/nvidia-h200/diagnose-slowdown.json").read_text())
    for one in costs["trainings"]:
        bare_s = fmean(one["bare_s"])
        more = [100 * (median(one[k]) / bare_s - 1) for k in ("kernels_alone_s", "with_names_s")]
        assert f"| {1e3 * bare_s:.2f} | {more[0]:+.0f} % | {more[1]:+.0f} % |" in page
