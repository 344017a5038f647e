"""Traces of an H200: exact sums, products, and the planted cause. docs/diagnose.md quotes some."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from e2e.__main__ import main as diagnose
from e2e.profile import diagnosis
from e2e.profile.aligned import Side
from e2e.profile.diagnosis import Diagnosis, Traced
from e2e.profile.finding import LIKELY, PROVEN
from e2e.profile.partition import partition
from e2e.profile.products import Product, products, reach
from e2e.profile.reader import read_trace
from e2e.report.diagnosis import sheet
from e2e.results.terms import PRODUCT_TERMS
from microbench.__main__ import main
from microbench.errors import UserError
from microbench.results.fields import decode
from microbench.roofline.rates import Rates, known_rates

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "samples" / "traces_h200"
PUBLISHED = ROOT / "results" / "nvidia-h200" / "diagnose"
PAGE = " ".join(
    " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
    for name in ("diagnose.md", "notes/diagnose.md")
)
H200 = "NVIDIA H200"
SAME_AS_PUBLISHED = ("odd_vocab", "fp32_island")  # which the GPU limits
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


@cache
def side(name: str) -> Side:
    """A trace that is read once for all tests of this file."""
    recording = read_trace(TRACES / f"{name}.json.gz")
    return Side(recording, partition(recording))


@cache
def diagnosed(*names: str) -> Diagnosis:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(diagnosis, "read_trace", lambda path: side(path.name[:-8]).recording)
        return diagnosis.diagnose([TRACES / f"{name}.json.gz" for name in names])


def products_of(name: str, device: str = H200, rates: Rates | None = None) -> tuple[Product, ...]:
    return products(side(name).recording, side(name).parts, device, rates)


# ---------------------------------------------------------------- as recorded


@pytest.mark.parametrize("name", sorted(path.name[:-8] for path in TRACES.glob("*.gz")))
def test_the_work_of_the_gpu_is_joined_to_what_launched_it(name: str) -> None:
    parts = side(name).parts
    assert side(name).recording.dropped == 0
    assert 1 <= parts.steps <= 3
    assert not parts.on_cpu
    assert sum(parts.terms.values()) == parts.end - parts.start
    busy = [piece for piece in parts.pieces if piece.name and piece.caller.ops]
    known = sum(piece.ns for piece in busy)
    assert known >= 0.99 * parts.busy * (parts.end - parts.start)
    phases = {piece.caller.phase for piece in busy}
    assert {"forward", "backward", "optimizer"} <= phases


@pytest.mark.parametrize("name", ["odd_vocab", "fp32_island", "mlp_small", "slow_loader"])
def test_the_gpu_is_busy_for_its_share_of_a_step_without_the_profiler(name: str) -> None:
    (run,) = diagnosed(name).runs
    works_s = sum(term.ns for term in run.terms if not term.idle) / run.steps / 1e9
    step_s = run.bare_step_s or run.step_ms / 1e3
    assert run.busy == pytest.approx(min(1.0, works_s / step_s), rel=1e-3)
    assert (run.bottleneck == "GPU") == (run.busy >= 0.9) == (name in SAME_AS_PUBLISHED)


@pytest.mark.parametrize("name", SAME_AS_PUBLISHED)
def test_the_trace_alone_says_what_was_published(name: str) -> None:
    (again,), (before,) = diagnosed(name).runs, published(name).runs
    assert without_causes(again) == without_causes(before)
    # Steps that the GPU limits take as long with the profiler as without it.
    assert again.bare_step_s is not None
    assert again.step_ms == pytest.approx(1e3 * again.bare_step_s, rel=0.05)


def without_causes(run: Traced) -> Traced:
    """Without what versions before --prove did not write."""
    plain = (replace(one, cause="", status=LIKELY) for one in run.findings)
    return replace(run, findings=tuple(plain))


def test_recordings_of_two_models_are_refused() -> None:
    with pytest.raises(UserError, match="different shapes"):
        diagnosed("odd_vocab", "fp32_island")


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


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("name", ["odd_vocab", "fp32_island", "slow_loader-fixed"])
def test_products_add_up_to_their_terms_and_none_is_faster_than_the_card(name: str) -> None:
    found, parts = products_of(name), side(name).parts
    assert sum(p.ns for p in found) == sum(parts.terms.get(term, 0) for term in PRODUCT_TERMS)
    assert all(p.flops and p.bytes and p.floor_s and p.count == parts.steps for p in found)
    assert all(1e9 * p.floor_s * p.count < p.kernel_ns for p in found if p.floor_s)
    # TF32 was off, so float32 is proved to have no Tensor Cores.
    assert all(p.tensor_cores is False for p in found if p.precision == "fp32")
    assert products_of(name, "a card nobody looked up")[0].floor_s is None


def test_the_unaligned_head_is_slow_and_the_aligned_layers_are_not() -> None:
    found = products_of("odd_vocab")
    assert {p.misaligned for p in found[:3]} == {True}
    assert {(p.misaligned, p.tensor_cores) for p in found[3:]} == {(False, True)}
    reached = reach(found)
    assert reached is not None
    assert reached.proved == pytest.approx(0.288, abs=0.001)
    assert reached.of_card == pytest.approx(0.132, abs=0.001)


def test_floors_are_by_measured_rates_and_by_the_datasheet_for_what_was_not_measured() -> None:
    by_sheet, rates = products_of("odd_vocab"), known_rates(H200)
    measured = products_of("odd_vocab", H200, rates)
    assert all(m.measured and not p.measured for m, p in zip(measured, by_sheet, strict=True))
    for one, other in zip(measured, by_sheet, strict=True):
        assert one.floor_s is not None
        assert other.floor_s is not None
        assert other.floor_s < one.floor_s < other.floor_s / 0.85
        assert 1e9 * one.floor_s * one.count < one.kernel_ns
    assert products_of("odd_vocab", H200, Rates(H200, "mine", {"fp64": 1e13})) == by_sheet
    unknown = products_of("odd_vocab", "another card", rates)
    assert [p.floor_s for p in unknown] == [p.floor_s for p in measured]


def test_rates_of_another_gpu_are_refused(tmp_path: Path) -> None:
    run = json.loads((PUBLISHED.parent / "ceilings.json").read_text())
    trace, mine = TRACES / "fp32_island-fixed.json.gz", tmp_path / "mine.json"
    mine.write_text(json.dumps(run))
    (found,) = diagnosis.diagnose([trace], mine).runs
    assert found.rates == "mine.json"
    run["device"]["name"] = "NVIDIA A100-SXM4-80GB"
    mine.write_text(json.dumps(run))
    with pytest.raises(UserError, match="measured on NVIDIA A100-SXM4-80GB"):
        diagnosis.diagnose([trace], mine)
    assert diagnose(["diagnose", str(trace), "--ceilings", str(tmp_path / "none.json")]) == 2


# ---------------------------------------------------------------- what the pages quote


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
