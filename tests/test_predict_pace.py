"""How the host's pace is summed up."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from e2e.predict.pace import Spread, Steady, pace_of, spread

PACES = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=200)


@given(PACES)
def test_most_values_lie_between_low_and_high(found: list[float]) -> None:
    told = spread(found)
    rounding = 1e-9
    assert told.low <= told.middle * (1 + rounding) <= told.high * (1 + rounding) ** 2
    outside = [v for v in found if not (1 - rounding) * told.low <= v <= (1 + rounding) * told.high]
    assert len(outside) <= 0.1 * len(found) + 2  # one at each end
    assert min(found) * (1 - rounding) <= told.low
    assert told.high <= max(found) * (1 + rounding)


def test_the_spread_of_known_values() -> None:
    told = spread([float(value) for value in range(1, 20)])
    assert told == Spread(10.0, 1.9, 18.1)


def test_a_cpu_has_no_pace_of_its_own() -> None:
    pace = pace_of(torch.device("cpu"))
    assert isinstance(pace, Steady)
    assert pace.look() == Spread(1.0, 1.0, 1.0)
