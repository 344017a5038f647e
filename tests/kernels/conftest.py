"""Fixtures of the Triton kernels' tests."""

from __future__ import annotations

import os

import pytest
from samples.hopper import FakeHopper
from samples.interpreting import errors_of


@pytest.fixture(scope="module")
def errors(request: pytest.FixtureRequest) -> dict[str, list[float]]:
    """[error, tolerance] of each case of the test's file, which Triton's interpreter runs."""
    pytest.importorskip("triton")
    return errors_of(str(request.path))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles for an H200 that is not there."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter compiles nothing")
    driver = pytest.importorskip("triton.runtime.driver").driver
    monkeypatch.setattr(driver, "_active", FakeHopper())
