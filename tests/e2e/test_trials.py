"""What is proven, likely, possible, after that, or no cause: of causes and of what was tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.profile.causes import AFTER, KNOWN, LEAST_SHARE, LIKELY, POSSIBLE, PROVEN, Cause
from e2e.profile.gains import PROVED_KEY, SIDECAR, Gain, Tried, gain_of, tried_beside
from e2e.profile.halfway_prove import TRIALS
from e2e.profile.replay import KINDS
from e2e.profile.trials import FAIR, SAID_APART, judged, refuted

CAUSES = ("loader", "sync", "launch", "casts", "layout", "optimizer", "misaligned", "")
STEP_MS = 100.0

times = st.floats(1e-4, 1.0)
milliseconds = st.floats(0.01, 100)


@st.composite
def gains(draw: st.DrawFn) -> Gain:
    low, middle, high = sorted(draw(st.lists(st.floats(-50, 50), min_size=3, max_size=3)))
    cause, resident = draw(st.sampled_from(sorted(KNOWN))), draw(st.booleans())
    step_ms = draw(milliseconds)
    return Gain(cause, f"change of {cause}", middle, low, high, step_ms, 6, resident)


@st.composite
def claims(draw: st.DrawFn) -> Cause:
    status, ms = draw(st.sampled_from((LIKELY, POSSIBLE))), draw(milliseconds)
    where = draw(st.sampled_from(("num_workers=0: the training process", "")))
    cause = draw(st.sampled_from(CAUSES))
    return Cause(f"title of {cause}", ms, ms / STEP_MS, where, "", None, cause, status)


def by_cause(some: Any) -> list[Any]:
    return list({one.cause: one for one in some}.values())


causes = st.lists(claims()).map(by_cause)
trials = st.lists(gains()).map(by_cause).map(lambda some: Tried(tuple(some), {}, 9))


@settings(max_examples=100)
@given(causes, trials)
def test_causes_are_kept_or_refuted_and_proven_only_by_a_gain_the_largest_first(
    found: list[Cause], tried: Tried
) -> None:
    kept, gone = judged(found, tried, STEP_MS), {gain.cause for gain in refuted(found, tried)}
    assert not {one.cause for one in kept} & gone
    claimed = {one.cause: one for one in found}
    assert {one.title for one in kept} >= {one.title for one in found if one.cause not in gone}
    for one in kept:
        gain = next((each for each in tried.gains if each.cause == one.cause), None)
        assert one.gain == gain
        if gain is None or one.status in (LIKELY, POSSIBLE):
            assert one.status == claimed[one.cause].status
            continue
        claim = claimed.get(one.cause)
        least = LEAST_SHARE * (gain.step_ms if claim or one.status == AFTER else STEP_MS)
        worth = min(FAIR * claim.most_ms, least) if claim else least
        proven = gain.low_ms > 0 and gain.ms >= worth
        assert proven or (one.status == AFTER and gain.resident)
    after = [one.status == AFTER for one in kept]
    assert after == sorted(after), "what shows only after another cause is last"
    worths = [one.gain.ms if one.status == PROVEN and one.gain else one.most_ms
              for one in kept if one.status != AFTER]  # fmt: skip
    assert worths == sorted(worths, reverse=True)
    waits = [one for one in kept if one.cause == "loader" and one.share >= 0.1 and not one.where]
    waits = waits if "loader" in claimed else []
    assert not any(after) or waits, "nothing else hides a gain"
    resident = [one for one in kept if one.gain and one.gain.resident]
    assert not waits or all(one.status == AFTER for one in resident)


def test_what_only_a_batch_that_is_there_shows_comes_after_the_wait_for_data() -> None:
    """However much it gains."""
    waits = Cause("data loading", 20.0, 0.2, "", "", None, "loader")
    launch = Gain("launch", "CUDA graphs", 30.0, 29.0, 31.0, 80.0, 6, resident=True)
    tried = Tried((launch,), {}, 9)
    kept = judged([Cause("CPU launch", 40.0, 0.4, "", "", None, "launch"), waits], tried, STEP_MS)
    assert [(one.cause, one.status) for one in kept] == [("loader", LIKELY), ("launch", AFTER)]
    assert [one.status for one in judged([waits], tried, STEP_MS)] == [LIKELY, AFTER]


def test_without_a_trial_nothing_changes_but_the_reason_is_said() -> None:
    found = [Cause(f"title of {cause}", 1.0, 0.1, "", "", None, cause) for cause in CAUSES]
    kept = judged(found, Tried((), {"loader": "no time"}, 0), STEP_MS)
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
    for rounds in (0, 1, 2):
        assert gain_of("loader", "", as_is[:rounds], changed[:rounds]) is None


@pytest.mark.parametrize("beside", [True, False])
def test_damaged_results_tell_nothing_and_leave_the_others(beside: bool, tmp_path: Path) -> None:
    """In the file beside the trace, or in the header of an older trace."""

    def read(results: object) -> Tried | None:
        (tmp_path / f"run{SIDECAR}").write_text(json.dumps(results) if beside else "{")
        return tried_beside(tmp_path / "run.json.gz", {} if beside else {PROVED_KEY: results})

    good = {"name": "loader", "change": "x", "as_is_s": [[2]] * 3, "changed_s": [[1]] * 3}
    junk = (None, True, -3, "text", [], [[0]], [[1], [], [1]], {"a": 1})
    bad = [good | {name: value} for name in ("as_is_s", "changed_s") for value in junk]
    whole = {"tried": [*bad, *junk, good | {"resident": True}], "not_tried": {"a": "b"}, "steps": 7}
    found = read(whole)
    assert found is not None
    assert [(one.cause, one.ms, one.resident) for one in found.gains] == [("loader", 1000, True)]
    assert (found.not_tried, found.steps) == ({"a": "b"}, 7)
    for value in junk:
        for damaged in (value, *(whole | {name: value} for name in whole)):
            found = read(damaged)
            assert found is None or {gain.cause for gain in found.gains} <= {"loader"}
            assert found is None or (type(found.steps) is int and found.steps >= 0)
    assert tried_beside(tmp_path / "another.json", {}) is None


def test_all_that_is_tried_is_a_known_cause(tmp_path: Path) -> None:
    """Of several ways to take one away the best counts."""
    names = (*TRIALS, *KINDS, "attention", "loops", SAID_APART)
    rows = [{"name": name, "change": name, "as_is_s": [[99.0]] * 3, "changed_s": [[99.0 - at]] * 3}
            for at, name in enumerate(names)]  # fmt: skip
    (tmp_path / f"run{SIDECAR}").write_text(json.dumps({"tried": rows}))
    found = tried_beside(tmp_path / "run.json", {})
    assert found is not None
    assert {gain.cause for gain in found.gains} <= KNOWN.keys()
    (attention,) = (gain for gain in found.gains if gain.cause == "sdpa")
    assert attention.change == [name for name in names if name.startswith("sdpa")][-1]
