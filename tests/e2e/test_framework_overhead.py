"""What the host does beside calls: the fit finds what was planted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples.calibration import shallow_models

from e2e.predict.calibration import (
    CLASSES,
    small_case,
    small_networks,
    small_recipes,
)
from e2e.predict.framework_overhead import (
    COUNTED,
    CalibrationStep,
    FrameworkOverhead,
    counts,
    fitted,
)
from e2e.predict.op_timer import op_timer as replay
from e2e.predict.op_timer.op_timer import CpuStopwatch, PlacedCall
from e2e.predict.trace.fake_trace import Trace, trace

PLANTED = (40e-6, 3e-6, 2e-6, 4e-6, 1e-6, 60e-6, 30e-6, 50e-6, 2e-6)


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    with shallow_models():
        return [
            trace(network, small_case(network, recipe), torch.device("cpu"), CLASSES)
            for network in small_networks("cpu")
            for recipe in small_recipes(network, "cuda")
        ]


def planted(traces: list[Trace], calls_s: float = 100e-6) -> list[CalibrationStep]:
    truth = FrameworkOverhead(PLANTED, 0.0)
    return [CalibrationStep(found, truth.of(found) + calls_s, calls_s) for found in traces]


def test_what_was_planted_is_found_also_for_a_network_outside_the_fit(traces: list[Trace]) -> None:
    samples = planted(traces)
    found = fitted(samples)
    assert found.error < 0.01
    for sample in samples:
        assert found.of(sample.trace) == pytest.approx(sample.host_s - sample.calls_s, rel=0.02)
    for i, left_out in enumerate(samples):
        without = fitted(samples[:i] + samples[i + 1 :])
        wanted_s = left_out.host_s - left_out.calls_s
        assert without.of(left_out.trace) == pytest.approx(wanted_s, rel=0.1)


def test_noise_shows_in_the_error(traces: list[Trace]) -> None:
    noise = 1 + 0.1 * torch.randn(len(traces), generator=torch.Generator().manual_seed(1))
    samples = [
        replace(sample, host_s=sample.host_s * factor)
        for sample, factor in zip(planted(traces), noise.tolist(), strict=True)
    ]
    assert 0.02 < fitted(samples).error < 0.2


def test_the_small_networks_differ_in_what_the_host_does(traces: list[Trace]) -> None:
    rows = torch.tensor([counts(found) for found in traces], dtype=torch.float64)
    assert torch.linalg.matrix_rank(rows / rows.amax(0)) == len(PLANTED)


def test_a_card_without_bfloat16_is_not_asked_for_it() -> None:
    networks = small_networks("cuda")
    for small in networks:
        assert small_recipes(small, "cuda", bf16=False) == ("fp32", "amp")
        assert small_recipes(small, "cpu") == ("fp32",)
    able = [small_recipes(small, "cuda") for small in networks]
    assert sum("amp-bf16" in recipes for recipes in able) == 4


def test_views_that_autograd_notes_are_told_from_calls(traces: list[Trace]) -> None:
    attention = next(found for found in traces if found.case.network == "small-attention")
    named = dict(zip(COUNTED, counts(attention), strict=True))
    names = [op.call.name for op in attention.ops if op.saved_for_backward]
    assert named["noted call"] + named["noted view"] == len(names)
    assert named["noted view"] >= names.count("aten.view.default") + names.count("aten.t.default")
    assert named["noted call"] >= names.count("aten.addmm.default") > 0


class Launched:
    """A replay whose launch takes a second of the test's clock, or fails."""

    def __init__(self, clock: list[float], *, fails: bool = False) -> None:
        self.clock, self.fails, self.launches = clock, fails, 0

    def launch(self) -> None:
        """Once more."""
        if self.fails:
            raise RuntimeError("no such kernel")
        self.launches += 1
        self.clock[0] += 1.0

    def restore(self) -> None:
        """Takes a while, which is not the launch's."""
        self.clock[0] += 100.0


def test_calls_alone_count_as_often_as_the_step_launches_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(replay.time, "perf_counter", lambda: clock[0])
    often, fails = Launched(clock), Launched(clock, fails=True)
    calls = [PlacedCall(often, (0, 2, 3)), PlacedCall(fails, (1,))]  # type: ignore[arg-type]
    launch = CpuStopwatch().passes(calls)
    assert [launch(), launch()] == [3.0, 3.0]
    assert often.launches == 3, "once to begin with, and once a pass"


def test_coefficients_are_not_negative(traces: list[Trace]) -> None:
    """Calls that were timed in a slow moment leave steps that seem shorter than their calls."""
    backward = COUNTED.index("backward call")
    samples = [
        replace(sample, calls_s=sample.calls_s + 6e-6 * counts(sample.trace)[backward])
        for sample in planted(traces)
    ]
    found = fitted(samples)
    assert min(found.seconds) == 0.0
    assert max(found.seconds) > 0.0
    nothing = [replace(sample, calls_s=2 * sample.host_s) for sample in samples]
    assert set(fitted(nothing).seconds) == {0.0}
    assert FrameworkOverhead((-1.0,) * len(PLANTED), 0.0).of(traces[0]) == 0.0
