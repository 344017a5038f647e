"""Traces of an H200: exact sums, and the planted cause first. docs/diagnose.md quotes one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.profile.diagnosis import Diagnosis, Traced, diagnose
from e2e.profile.finding import LIKELY, PROVEN
from e2e.profile.partition import partition
from e2e.profile.products import reach
from e2e.profile.reader import read_trace
from e2e.report.diagnosis import sheet
from microbench.__main__ import main
from microbench.results.fields import decode

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "samples" / "traces_h200"
PUBLISHED = ROOT / "results" / "nvidia-h200" / "diagnose"
PAGE = " ".join(
    " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
    for name in ("diagnose.md", "notes/diagnose.md")
)
FIRST = {
    "mlp_small": "CPU launch",
    "slow_loader": "data loading",
    "nchw": "layout changes",
    "odd_vocab": "no multiple of 8",
    "fp32_island": "stayed in float32",
}


def published(name: str) -> Diagnosis:
    data = json.loads((PUBLISHED / f"{name}.json").read_text())
    found: Diagnosis = decode(Diagnosis, {"runs": data["runs"]}, "")
    return found


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.stem)
def test_the_work_of_the_gpu_is_joined_to_what_launched_it(path: Path) -> None:
    recording = read_trace(path)
    assert recording.dropped == 0
    parts = partition(recording)
    assert 1 <= parts.steps <= 3
    assert not parts.on_cpu
    assert sum(parts.terms.values()) == parts.end - parts.start
    busy = [piece for piece in parts.pieces if piece.name and piece.caller.ops]
    known = sum(piece.ns for piece in busy)
    assert known >= 0.99 * parts.busy * (parts.end - parts.start)
    phases = {piece.caller.phase for piece in busy}
    assert {"forward", "backward", "optimizer"} <= phases


@pytest.mark.parametrize("name", ["odd_vocab", "fp32_island"])
def test_the_trace_alone_says_what_was_published(name: str) -> None:
    (again,) = diagnose([TRACES / f"{name}.json.gz"]).runs
    (before,) = published(name).runs
    assert without_causes(again) == without_causes(before)
    # Steps that the GPU limits take as long with the profiler as without it.
    assert again.bottleneck == "GPU"
    assert again.bare_step_s is not None
    assert again.step_ms == pytest.approx(1e3 * again.bare_step_s, rel=0.05)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.stem)
def test_the_gpu_is_busy_for_its_share_of_a_step_without_the_profiler(path: Path) -> None:
    (run,) = diagnose([path]).runs
    works_s = sum(term.ns for term in run.terms if not term.idle) / run.steps / 1e9
    step_s = run.bare_step_s or run.step_ms / 1e3
    assert run.busy == pytest.approx(min(1.0, works_s / step_s), rel=1e-3)
    assert (run.bottleneck == "GPU") == (run.busy >= 0.9)


def without_causes(run: Traced) -> Traced:
    """Without what versions before --prove did not write."""
    plain = (replace(one, cause="", status=LIKELY) for one in run.findings)
    return replace(run, findings=tuple(plain))


@pytest.mark.parametrize("name", FIRST)
def test_the_planted_cause_is_the_first(name: str) -> None:
    run = published(name).runs[-1]
    assert FIRST[name] in run.findings[0].title
    assert run.findings == tuple(sorted(run.findings, key=lambda found: -found.ms))


def test_a_fixed_run_does_not_have_the_cause() -> None:
    for name in ("slow_loader", "nchw"):
        fixed, planted = published(name).runs
        assert not any(FIRST[name] in found.title for found in fixed.findings)
        assert planted.bare_step_s is not None
        assert fixed.bare_step_s is not None
        assert planted.bare_step_s > 1.4 * fixed.bare_step_s


def test_the_page_quotes_the_published_ledger() -> None:
    base, other = published("nchw").runs
    for term in ("layout changes", "convolutions"):
        a, b = base.ms(term), other.ms(term)
        assert f"| {term} | {a:.3f} | {b:.3f} | {b - a:+.3f} |" in PAGE
    assert base.bare_step_s is not None
    assert other.bare_step_s is not None
    a, b = 1e3 * base.bare_step_s, 1e3 * other.bare_step_s
    assert f"| step | {a:.3f} | {b:.3f} | {b - a:+.3f} |" in PAGE
    assert f"{other.findings[0].ms:.2f} ms at most; measured, the fix saves {b - a:.2f} ms" in PAGE


def test_the_page_quotes_what_the_products_reach() -> None:
    (run,) = published("odd_vocab").runs
    found = reach(run.products)
    assert found is not None
    assert f"proved for {100 * found.proved:.0f} % of the time" in PAGE
    assert f"the GEMMs reach {100 * found.of_card:.0f} % of what the measured rates allow" in PAGE
    odd = sorted((p.flop_per_s or 0) / 1e12 for p in run.products if p.misaligned)
    even = sorted((p.flop_per_s or 0) / 1e12 for p in run.products if not p.misaligned)
    said = f"the head runs at {odd[0]:.0f} to {odd[-1]:.0f} TFLOP/s"
    assert f"{said}, the aligned layers at {even[0]:.0f} to {even[-1]:.0f}." in PAGE


@pytest.mark.parametrize("name", ["bare_step_s", "window_ns"])
def test_a_step_that_takes_no_time_is_refused(name: str) -> None:
    data = json.loads((PUBLISHED / "slow_loader.json").read_text())
    run = data["runs"][-1]
    if name == "window_ns":
        run["terms"] = []
    run[name] = 0
    with pytest.raises(ValueError, match=f"{name} is no time above zero"):
        sheet(data)


def test_the_page_has_the_table_of_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    file = ROOT / "results" / "nvidia-h200" / "diagnose-scenarios.json"
    assert main(["show", str(file), "--markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    count = len(json.loads(file.read_text())["scenarios"])
    assert len(rows) > count
    for row in rows[: count + 2]:
        assert " ".join(row.split()) in PAGE


def test_the_page_has_the_diagnoses_of_public_scripts() -> None:
    found = sorted((PUBLISHED / "public").glob("*.json"))
    assert len(found) == 5
    for path in found:
        (run,) = published(f"public/{path.stem}").runs
        assert run.bare_step_s is not None
        first = run.findings[0]
        step_ms, most_ms = f"{1e3 * run.bare_step_s:.3g}", f"{first.most_ms:.3g}"
        cause = first.title.partition(":")[0].replace("sizes that are", "a vocabulary of 50,257,")
        row = rf"\| {re.escape(step_ms)} \| {re.escape(cause)}[^|]* \| {re.escape(most_ms)} \|"
        assert re.search(row, PAGE), path.stem
        assert first.most_ms <= 1e3 * run.bare_step_s


def test_the_page_quotes_what_was_proven_of_synchronisation() -> None:
    (run,) = published("prove-syncs").runs
    sync, launch = (next(g for g in run.gains if g.cause == name) for name in ("sync", "launch"))
    assert run.findings[0].status == PROVEN
    assert f"gain {sync.ms:.2f} ms ({sync.low_ms:.2f} to {sync.high_ms:.2f})" in PAGE
    assert f"gains {launch.ms:.2f} ms ({launch.low_ms:.2f} to {launch.high_ms:.2f})" in PAGE
    assert f"of {sync.step_ms:.1f}: synchronisation is proven" in PAGE
