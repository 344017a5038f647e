"""Fixtures of the Triton kernels' tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from samples.hopper import FakeHopper


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles for an H200 that is not there, whatever it has cached, and ptxas is heard."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter compiles nothing")
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.setattr(
        pytest.importorskip("triton.runtime.driver").driver, "_active", FakeHopper()
    )
    monkeypatch.setattr(knobs.nvidia, "dump_ptxas_log", True)
    monkeypatch.setattr(knobs.compilation, "always_compile", True)


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """gc.collect() looks at what is made from here on, and not at all of torch (half a second)."""
    gc.freeze()
    yield
    gc.unfreeze()
