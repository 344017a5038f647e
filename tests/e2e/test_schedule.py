"""Learning-rate schedules: the shares they have, how they are written."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.schedule import KINDS, Schedule, parse_schedule
from microbench.errors import UserError

HALF = 0.5**0.5

schedules = st.sampled_from(
    [*KINDS, "cosine:3", "triangle:0", "triangle:10", "triangle:100", "step:20,40,80/5", "step:0/2"]
)


@pytest.mark.parametrize(
    ("text", "start", "quarter", "end"),
    [
        ("constant", 1.0, 1.0, 1.0),
        ("cosine", 1.0, (1 + HALF) / 2, 0.0),
        ("cosine:2", 1.0, 0.5, 0.0),
        ("cosine:4", 1.0, 1.0, 0.0),
        ("triangle", 0.0, 1.0, 0.0),
        ("triangle:50", 0.0, 0.5, 0.0),
        ("triangle:0", 1.0, 0.75, 0.0),
        ("step", 1.0, 1.0, 0.01),
        ("step:25,100/5", 1.0, 0.2, 0.04),
    ],
)
def test_shares_at_the_start_a_quarter_and_the_end(
    text: str, start: float, quarter: float, end: float
) -> None:
    schedule = parse_schedule(text)
    found = [schedule.share(done) for done in (0, 0.25, 1)]
    assert found == pytest.approx([start, quarter, end], abs=1e-12)


@given(schedules, st.floats(0, 1), st.floats(1, 1e6))
def test_a_share_is_from_0_to_1_and_stays_after_the_end(
    text: str, done: float, after: float
) -> None:
    schedule = parse_schedule(text)
    assert 0 <= schedule.share(done) <= 1
    assert schedule.share(after) == schedule.share(1)


@given(st.text(max_size=14) | st.builds("{}:{}".format, st.sampled_from(KINDS), st.text("0123,./")))
def test_whatever_is_written_gives_a_schedule_or_one_line(text: str) -> None:
    with suppress(UserError):
        assert isinstance(parse_schedule(text), Schedule)
