"""Right before fast, for real on the CPU: wrong kernels fail, others go on, skips have reasons."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from kernels.case import Candidate, Case, Target
from kernels.gemm import Gemm, torch_blas
from kernels.gemm.operands import Operands
from microbench.device.device import describe, open_telemetry
from microbench.device.telemetry import TelemetrySummary
from microbench.measure import Measurer, measurement_of
from microbench.results.merging import with_ratios
from microbench.results.types import Result
from microbench.sweep import Group
from microbench.timing.interleave import Variant
from microbench.timing.timers import Block, CpuClock, Launch

Fake = Callable[[Case, Operands], Sequence[Candidate]]
BUDGET_S = 60.0  # of which so little is taken that a busy machine refuses no case


class Spy(CpuClock):
    """A CPU clock that notes which launches were timed, a sample a block: all rounds are short."""

    def __init__(self) -> None:
        super().__init__(1 << 16, "warm")
        self.timed: set[int] = set()

    def block(self, launch: Launch, samples: int) -> Block:
        self.timed.add(id(launch))
        return super().block(launch, 1)


def group_of(*precisions: str) -> Group:
    return Group(tuple(Case(Gemm(24, 32, 40), p, "cpu") for p in precisions))


@pytest.fixture
def spy() -> Spy:
    return Spy()


@pytest.fixture
def measurer(spy: Spy) -> Measurer:
    info = describe("cpu")
    return Measurer(info.target(), spy, open_telemetry(info), "sustained", 0)


def measure(
    measurer: Measurer, group: Group, announce: Callable[[str, str], None] = lambda *_: None
) -> dict[str, Result]:
    results = measurer.measure(group, BUDGET_S, announce)
    assert [r.case for r in results] == list(group.cases)
    return {r.case.precision_name: r for r in results}


@pytest.fixture
def fake_back_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fake], None]:
    """Gives one precision other candidates; the rest stay torch's."""
    real = torch_blas.candidates

    def install(precision: str, fake: Fake) -> None:
        def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
            if case.precision_name == precision:
                return fake(case, operands)
            return real(case, operands, target)

        monkeypatch.setattr(torch_blas, "candidates", candidates)

    return install


# ---------------------------------------------------------------- measured


def test_what_is_right_is_timed_compared_and_checked_on_inputs_as_drawn(measurer: Measurer) -> None:
    found = measure(measurer, group_of("fp32", "fp64", "bf16"))
    for name, result in found.items():
        assert (result.status, result.reason) == ("ok", None), name
        m = result.measurement
        assert sum(m.blocks) == len(m.times_s) > 0
        assert min(m.times_s) > 0
        assert min(m.times_s) <= m.median_s <= max(m.times_s)
        assert m.ci95_s[0] <= m.median_s <= m.ci95_s[1]
        assert (m.timer, m.l2, m.regime) == ("clock", "warm", "unmanaged")
        assert result.rel_error <= result.case.precision.rel_tolerance
        assert result.flops == 2 * 24 * 32 * 40
    bf16, fp32 = found["bf16"], found["fp32"]
    assert set(bf16.speedup) == {"fp32", "fp64"}
    assert bf16.speedup["fp32"].ratio == pytest.approx(1 / fp32.speedup["bf16"].ratio)
    assert bf16.rel_error > fp32.rel_error > found["fp64"].rel_error  # type: ignore[operator]
    assert fp32.min_bytes == 4 * (24 * 40 + 40 * 32 + 24 * 32)
    problem = Gemm(24, 32, 40)
    cases = [Case(problem, "fp32", name) for name in ("cpu", "samples.bad_kernels:good")]
    found = measurer.measure(Group(tuple(cases)), BUDGET_S, lambda *_: None)
    for result in found:
        assert result.status == "ok", result.reason
        assert result.total_error < result.case.precision.rel_tolerance


@pytest.mark.parametrize("overhead_s", [0.0, 1.0])
def test_the_ratio_is_time_of_the_baseline_over_own_time_less_the_timers(
    spy: Spy, overhead_s: float
) -> None:
    spy.overhead_s = overhead_s
    cases = group_of("fp32", "fp16").cases
    variants = [
        Variant(name, lambda: None, seconds, [Block((seconds + overhead_s,))] * 2)
        for name, seconds in (("a", 4.0), ("b", 2.0))
    ]
    both = [
        Result(case, "ok", measurement=measurement_of(one, spy, "burst", TelemetrySummary(), False))
        for case, one in zip(cases, variants, strict=True)
    ]
    slow, fast = (with_ratios(result, both) for result in both)
    assert fast.speedup["fp32"].ratio == pytest.approx(2.0)
    assert slow.speedup["fp16"].ratio == pytest.approx(0.5)


# ---------------------------------------------------------------- wrong


@pytest.mark.parametrize(
    "kernel",
    [
        lambda _: None,
        lambda o: torch.mm(o.a, o.b, out=o.c)[0, 0].add_(5),
        lambda o: torch.mm(2 * o.a, o.b, out=o.c),
    ],
)
def test_a_wrong_kernel_fails_and_is_never_timed(
    measurer: Measurer, spy: Spy, fake_back_end: Callable[..., None],
    kernel: Callable[[Operands], object],
) -> None:  # fmt: skip
    launches: list[Launch] = []

    def fake(_: Case, operands: Operands) -> Sequence[Candidate]:
        launches.append(partial(kernel, operands))
        return [Candidate("wrong", launches[-1])]

    fake_back_end("bf16", fake)
    found = measure(measurer, group_of("fp32", "bf16"))
    assert found["bf16"].status == "failed"
    assert found["bf16"].reason
    assert "\n" not in found["bf16"].reason
    assert found["bf16"].measurement is None
    assert not {id(launch) for launch in launches} & spy.timed
    assert found["fp32"].status == "ok"
    assert "bf16" not in found["fp32"].speedup


# ---------------------------------------------------------------- raising


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("no such kernel\nand a stack"), "no such kernel"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    ],
)
@pytest.mark.parametrize("call_number", [1, 5, 60])
def test_a_kernel_that_raises_at_once_or_in_the_turns_fails_alone(
    measurer: Measurer, fake_back_end: Callable[..., None], error: Exception, said: str,
    call_number: int,
) -> None:  # fmt: skip
    def fake(_: Case, o: Operands) -> Sequence[Candidate]:
        calls = itertools.count(1)

        def call() -> None:
            if next(calls) >= call_number:
                raise error
            torch.mm(o.a, o.b, out=o.c)

        return [Candidate("breaks", call)]

    fake_back_end("bf16", fake)
    found = measure(measurer, group_of("fp32", "bf16", "fp64"))
    assert {n: r.status for n, r in found.items()} == {"fp32": "ok", "bf16": "failed", "fp64": "ok"}
    reason = found["bf16"].reason
    assert reason is not None
    assert said in reason
    assert "\n" not in reason
    m = found["fp32"].measurement
    assert sum(m.blocks) == len(m.times_s)


# ---------------------------------------------------------------- whom to blame


def test_the_case_announced_last_is_the_one_that_runs(
    measurer: Measurer, fake_back_end: Callable[..., None]
) -> None:
    """A fault or a hang is blamed on the case announced last, in every stage."""
    announced: list[tuple[str, str]] = [("", "")]
    blamed: set[tuple[str, str, str]] = set()

    def fake(case: Case, o: Operands) -> Sequence[Candidate]:
        def call() -> None:
            key, stage = announced[-1]
            if key != case.key:
                blamed.add((key, stage.split(",")[0], case.key))
            torch.mm(o.a, o.b, out=o.c)

        return [Candidate("watched", call)]

    fake_back_end("bf16", fake)
    group = group_of("fp32", "bf16", "fp64")
    measure(measurer, group, lambda *what: announced.append(what))
    assert blamed == set()
    for case in group.cases:
        stages = [stage for key, stage in announced if key == case.key]
        assert stages[:2] == ["preparing", "checking"]


# ---------------------------------------------------------------- inputs


def test_inputs_are_fresh_for_the_next_group(
    measurer: Measurer, fake_back_end: Callable[..., None]
) -> None:
    seen: list[torch.Tensor] = []

    def fake(_: Case, o: Operands) -> Sequence[Candidate]:
        seen.append(o.a.clone())
        return [Candidate("right", lambda: torch.mm(o.a, o.b, out=o.c))]

    fake_back_end("fp32", fake)
    measure(measurer, group_of("fp32"))
    measure(measurer, group_of("fp32"))
    assert not torch.equal(*seen[-2:])
