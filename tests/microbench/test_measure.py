"""Right before fast, for real on the CPU: wrong kernels fail, others go on, skips have reasons."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import bad_kernels
from samples.commands import Ran, run_here, warm_children

from kernels.case import Candidate, Case, Target
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm, torch_blas
from kernels.gemm.operands import Operands
from kernels.gpus import find_card
from microbench import measure as measuring
from microbench import worker
from microbench.__main__ import main
from microbench.device.device import describe, open_telemetry
from microbench.device.telemetry import TelemetrySummary
from microbench.measure import Measurer, measurement_of
from microbench.results.merging import with_ratios
from microbench.results.runfile import read_run
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


# ---------------------------------------------------------------- turned wrong


FATAL = {
    "leaves": "exit code 7", "crashes": "SIGSEGV", "sleeps": "hung",
    "has_no_memory": "out of memory",
}  # fmt: skip
COMMAND_S = 20.0  # of which little is taken: however busy the machine, no case is refused
GEMMS = (
    "wrong_later", "nan_later", "stale_later", "kept_later", "input_later", "cached",
    "unless_poisoned", "launch_late",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


def measured(
    folder: Path, *words: object, backends: tuple[str, ...], **environment: Any
) -> tuple[Ran, dict[str, Result]]:
    """A command with these back ends of `bad_kernels`: how it ended, and its results by name."""
    file = folder / "run.json"
    named = ",".join(f"samples.bad_kernels:{name}" for name in backends)
    ran = run_here(
        main, "microbench", *words, "--device", "cpu", "--dtype", "fp32", "--vs", "none",
        "--backend", named, "--l2", "warm", "--budget", COMMAND_S, "--json", file, "--verbose",
        **environment,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr  # an own kernel failed
    assert "Traceback" not in ran.stderr
    return ran, {r.case.backend.rpartition(":")[2]: r for r in read_run(file).results}


def assert_failed(result: Result) -> None:
    assert result.turned_wrong, result.reason
    assert result.measurement is None
    assert not result.speedup
    assert not result.vs_backend


def test_a_gemm_or_convolution_that_turns_wrong_fails_and_the_right_one_is_timed(
    tmp_path: Path,
) -> None:
    ran, found = measured(tmp_path, "gemm", "--sizes", "64", backends=("good", *GEMMS))
    for name in GEMMS:
        assert_failed(found[name])
    assert found["good"].measurement is not None
    assert list(found["good"].vs_backend) == ["cpu"]
    assert "right at first, later a wrong result" in " ".join(ran.stdout.split())
    _, found = measured(
        tmp_path, "conv", "--channels", "8", "--image", "8", "--batch", "2", "--layout", "nhwc",
        "--overwrite", backends=("conv_later",),
    )  # fmt: skip
    assert_failed(found["conv_later"])


def test_a_kernel_that_turns_wrong_in_a_later_process_fails_too(tmp_path: Path) -> None:
    _, found = measured(
        tmp_path, "gemm", "--sizes", "64", "--processes", "2",
        backends=("good", "wrong_in_another"),
        **{bad_kernels.STARTS: str(tmp_path / "starts")},
    )  # fmt: skip
    assert_failed(found["wrong_in_another"])
    good = found["good"].measurement
    assert len(good.processes) == 2
    assert list(found["good"].vs_backend) == ["cpu"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kernel_that_takes_the_process_along_fails_alone(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HANG_S", 1.0)  # beside the budget, which no other takes
    ran, found = measured(
        tmp_path, "gemm", "--sizes", "32", "--processes", processes,
        backends=(*FATAL, "good"),
    )  # fmt: skip
    assert "device" not in ran.stderr
    assert read_run(tmp_path / "run.json").finished_at
    assert list(found) == ["cpu", *FATAL, "good"], "as planned, whichever died first"
    assert {name for name, result in found.items() if result.status == "ok"} == {"good", "cpu"}
    for name, said in FATAL.items():
        assert found[name].status == "failed"
        assert said in (found[name].reason or "")
    assert found["good"].measurement is not None


def test_a_kernel_that_is_wrong_for_some_rounds_only_is_seen_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right at first and at the end: which round is looked at, it cannot know."""
    stages = [""]

    def candidates(case: Case, operands: Operands, target: Target) -> list[Candidate]:
        def call() -> None:
            torch.mm(operands.a, operands.b, out=operands.c)
            rounds = [stage for stage in stages if stage.startswith("timing, round")]
            if 2 <= len(rounds) <= 7:  # of which the first is the warm-up
                operands.c.zero_()

        return [Candidate("wavers", call)]

    monkeypatch.setattr(torch_blas, "candidates", candidates)
    monkeypatch.setattr(measuring, "QUICK_S", 10.0)  # on a busy machine too
    assert_failed(measured_here(announce=lambda _, stage: stages.append(stage)))


def measured_here(
    clock: CpuClock | None = None, announce: measuring.Announce = lambda _key, _stage: None,
    device: str | None = None,
) -> Result:  # fmt: skip
    """A small GEMM of the back end "cpu", measured in this process, by the clock, as a card."""
    info = describe("cpu")
    target = replace(info.target(), name=device or info.name)
    clock = clock or CpuClock(1 << 16, "warm")
    measurer = Measurer(target, clock, open_telemetry(info), "sustained", 0)
    group = Group((Case(Gemm(24, 32, 40), "fp32", "cpu"),))
    return measurer.measure(group, COMMAND_S, announce)[0]


# ---------------------------------------------------------------- that would fool a timer


def test_a_kernel_that_skips_what_it_has_done_before_works_in_every_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its operands are other ones nearly each time, so that its time is that of the work."""
    worked: list[int] = []

    def candidates(case: Case, operands: Operands, target: Target) -> list[Candidate]:
        seen = torch.empty(0)

        def call() -> None:
            nonlocal seen
            both = torch.cat([operands.a.flatten(), operands.b.flatten()])
            if torch.equal(both, seen):
                return
            seen = both
            worked.append(1)
            torch.mm(operands.a, operands.b, out=operands.c)

        return [Candidate("skips", call)]

    monkeypatch.setattr(torch_blas, "candidates", candidates)
    result = measured_here()
    # Of the thousand places where renewed operands may begin, one is that of the sample before.
    assert len(worked) > 0.98 * len(result.measurement.times_s)


class WithAStream(CpuClock):
    """Its device has another stream, whose work is done when the device is waited for."""

    def __init__(self) -> None:
        super().__init__(1 << 16, "warm")
        self.stream: list[Callable[[], object]] = []

    def block(self, launch: Launch, samples: int) -> Block:
        block = super().block(launch, samples)
        while self.stream:
            self.stream.pop(0)()
        return block


def test_work_that_ends_after_its_time_is_a_failure_though_the_result_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = WithAStream()

    def candidates(case: Case, operands: Operands, target: Target) -> list[Candidate]:
        def work() -> None:
            torch.mm(operands.a, operands.b, out=operands.c)

        launches = itertools.count()

        def call() -> None:
            if next(launches) < bad_kernels.LAUNCHES:
                work()
            else:
                clock.stream.append(work)

        return [Candidate("aside", call)]

    monkeypatch.setattr(torch_blas, "candidates", candidates)
    result = measured_here(clock)
    assert_failed(result)
    assert "work was left on another stream" in (result.reason or "")


class Planted(CpuClock):
    """Every sample takes as long as is planted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(1 << 16, "warm")
        self.seconds = seconds

    def block(self, launch: Launch, samples: int) -> Block:
        return Block((self.seconds,) * len(super().block(launch, samples).times_s))


@pytest.mark.parametrize(("share", "possible"), [(1.08, True), (1.5, False), (1e6, False)])
def test_a_rate_that_the_card_cannot_have_is_a_failure(share: float, possible: bool) -> None:
    card = find_card("NVIDIA H200")
    seconds = 2 * 24 * 32 * 40 / (share * card.flop_per_s["fp32"])
    result = measured_here(Planted(seconds), device="NVIDIA H200")
    assert (result.measurement is not None) == possible
    if not possible:
        assert_failed(result)
        assert "faster than this card can be: 84 TFLOP/s in fp32 at most" in (result.reason or "")


def test_a_convolution_may_multiply_once_for_a_filters_taps(tmp_path: Path) -> None:
    """As FFTs and Winograd's algorithm nearly do: three times a sheet's rate is no defect."""
    problem = Conv(ConvShape(1, 8, 8, 8, 8, 3, 3), "fprop")
    result = Result(Case(problem, "fp32", "cudnn"), "ok", flops=67 * 10**12)
    h200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
    assert measuring.too_fast(result, 1 / 3, h200) is None
    assert measuring.too_fast(result, 1 / 12, h200)
    assert measuring.too_fast(result, 1 / 12, replace(h200, name="NVIDIA Test")) is None
