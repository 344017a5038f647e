"""Tests of waiting would fail if something waited."""

from __future__ import annotations

import pytest
import torch
from samples.waiting import no_waits, while_busy


def test_what_torch_sees_wait_raises_and_only_inside() -> None:
    found = torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="synchroniz"), no_waits():
        found.item()
    assert found.item() == 1


@pytest.mark.quick
def test_what_torch_does_not_see_is_found_by_the_clock_of_the_device() -> None:
    with pytest.raises(AssertionError, match="waited"), no_waits(), while_busy():
        torch.cuda.synchronize()
