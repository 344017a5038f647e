"""What is proven, likely, possible, or no cause: of findings and of what was tried."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.profile.diagnosis import Diagnosis, TermTime, Traced
from e2e.profile.finding import LEAST_SHARE, LIKELY, POSSIBLE, PROVEN, Finding
from e2e.profile.gains import PROVED_KEY, Gain, Tried, gain_of, tried_in
from e2e.profile.halfway_prove import KEY, TRIALS
from e2e.profile.proofs import ALSO, FAIR, SAID_APART, judged, refuted
from e2e.profile.replays import KINDS
from e2e.report.diagnosis import sheet
from microbench.report.documents import print_sheet
from microbench.report.screen import make_console

GOLDEN = Path(__file__).parents[1] / "samples" / "report_proofs.txt"
CAUSES = ("loader", "sync", "launch", "casts", "layout", "optimizer", "misaligned", "")

times = st.floats(1e-4, 1.0)
milliseconds = st.floats(0.01, 100)


@st.composite
def gains(draw: st.DrawFn) -> Gain:
    low, middle, high = sorted(draw(st.lists(st.floats(-50, 50), min_size=3, max_size=3)))
    cause = draw(st.sampled_from(sorted(ALSO)))
    return Gain(cause, f"change of {cause}", middle, low, high, draw(milliseconds), 6)


@st.composite
def claims(draw: st.DrawFn) -> Finding:
    status = draw(st.sampled_from((LIKELY, POSSIBLE)))
    cause = draw(st.sampled_from(CAUSES))
    return Finding(f"title of {cause}", draw(milliseconds), 0.1, "", "", None, cause, status)


def by_cause(some: Any) -> list[Any]:
    return list({one.cause: one for one in some}.values())


findings = st.lists(claims()).map(by_cause)
trials = st.lists(gains()).map(by_cause).map(lambda some: Tried(tuple(some), {}, 9))


@settings(max_examples=50)
@given(findings, trials)
def test_findings_are_kept_or_refuted_and_proven_only_by_a_gain_the_largest_first(
    found: list[Finding], tried: Tried
) -> None:
    kept, gone = judged(found, tried), {gain.cause for gain in refuted(found, tried)}
    assert not {one.cause for one in kept} & gone
    assert {one.title for one in kept} >= {one.title for one in found if one.cause not in gone}
    proven = [one.gain for one in kept if one.status == PROVEN and one.gain]
    assert [one.gain for one in kept[: len(proven)]] == proven, "before all others"
    assert proven == sorted(proven, key=lambda gain: -gain.ms)
    for one in kept[: len(proven)]:
        assert one.gain is not None
        assert one.gain.low_ms > 0
        assert one.gain.ms >= min(FAIR * one.ms, LEAST_SHARE * one.gain.step_ms)


def test_without_a_trial_nothing_changes_but_the_reason_is_said() -> None:
    found = [Finding(f"title of {cause}", 1.0, 0.1, "", "", None, cause) for cause in CAUSES]
    kept = judged(found, Tried((), {"loader": "no time"}, 0))
    assert [one.title for one in kept] == [one.title for one in found]
    assert {one.cause: one.unproven for one in kept if one.unproven} == {"loader": "no time"}
    assert not any(one.gain for one in kept)


@settings(max_examples=50)
@given(st.lists(times, min_size=3, max_size=8), st.floats(0.2, 5))
def test_a_gain_is_that_of_the_ratio_and_exchanged_sides_change_its_sign(
    seconds: list[float], factor: float
) -> None:
    as_is, changed = [[one] for one in seconds], [[one * factor] for one in seconds]
    found, back = gain_of("loader", "", as_is, changed), gain_of("loader", "", changed, as_is)
    assert found is not None
    assert back is not None
    assert found.ms == pytest.approx(found.step_ms * (1 - factor), rel=1e-6, abs=1e-9)
    assert found.low_ms <= found.ms <= found.high_ms
    assert found.ms * back.ms <= 1e-12


def test_too_few_rounds_tell_nothing() -> None:
    for rounds in (0, 1, 2):
        assert gain_of("loader", "", [[1.0]] * rounds, [[0.5]] * rounds) is None


def test_damaged_results_tell_nothing_and_leave_the_others() -> None:
    good = {"name": "loader", "change": "x", "as_is_s": [[2]] * 3, "changed_s": [[1]] * 3}
    junk = (None, True, -3, "text", [], [[0]], [[1], [], [1]], {"a": 1})
    bad = [good | {name: value} for name in ("as_is_s", "changed_s") for value in junk]
    whole = {"tried": [*bad, *junk, good], "not_tried": {"a": "b"}, "steps": 7}
    found = tried_in({PROVED_KEY: whole})
    assert found is not None
    assert [(gain.cause, gain.ms) for gain in found.gains] == [("loader", 1000.0)]
    assert (found.not_tried, found.steps) == ({"a": "b"}, 7)
    for value in junk:
        for damaged in (value, *(whole | {name: value} for name in whole)):
            found = tried_in({PROVED_KEY: damaged})
            assert found is None or {gain.cause for gain in found.gains} <= {"loader"}


def test_all_that_is_tried_can_be_named() -> None:
    assert KEY == PROVED_KEY
    assert {trial.name for trial in TRIALS} | KINDS.keys() == ALSO.keys() | {"islands"}
    assert SAID_APART in {trial.name for trial in TRIALS}


# ---------------------------------------------------------------- the screen


def proven_run() -> Traced:
    """A run of which each status is shown, with made figures."""
    tried = Tried(
        (
            Gain("loader", "the same batch again and again", 14.2, 14.0, 14.4, 20.0, 6),
            Gain("casts", "casts of weights kept until the optimizer's step", 0.05, 0, 0.1, 6, 6),
            Gain("launch", "the model's forward and backward as CUDA graphs", 0.4, -0.2, 1.1, 6, 6),
            Gain("amp", "autocast switched off", -3.0, -3.2, -2.8, 6, 6),
            Gain("tf32", "TF32 allowed", 0.0, -0.01, 0.01, 6, 6),
        ),
        {"layout": "it might break a training that goes on"},
        435,
    )
    by_trace = (
        Finding("data loading", 15.0, 0.75, "not ready", "more loader workers", None, "loader"),
        Finding("CPU launch", 2.0, 0.1, "900 launches", "a CUDA graph", None, "launch"),
        Finding("casts between types", 1.0, 0.05, "head", "one autocast", None, "casts"),
        Finding("layout changes", 0.9, 0.045, "conv", "channels_last", None, "layout"),
        Finding(
            "sizes that are no multiple of 8", 0.8, 0.04, "", "pad", None, "misaligned", POSSIBLE
        ),
    )
    terms = (TermTime("loader wait", 45_000_000, True), TermTime("convolutions", 15_000_000, False))
    return Traced(
        "train.json.gz", "NVIDIA H200", "2.11.0", 3, 60_000_000, 0.02, 0.25, False, "data loading",
        terms, judged(by_trace, tried),
        tuple(f"{gain.change} ({gain.ms:+.2g} ms)" for gain in refuted(by_trace, tried)),
        gains=tried.gains, tried_steps=tried.steps,
    )  # fmt: skip


def screen() -> str:
    out = io.StringIO()
    data = json.loads(json.dumps(asdict(Diagnosis((proven_run(),)))))
    print_sheet(sheet(data), make_console(file=out))
    return out.getvalue()


def test_the_screen_has_each_status_its_gain_and_what_is_no_cause() -> None:
    assert screen() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(screen(), encoding="utf-8")
