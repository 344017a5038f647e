"""The answer in words, from planted speed-ups."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from kernels.case import Case
from microbench.results.types import Measurement, Ratio, Result, Run
from microbench.verdict import asked_for, verdict

SIZES = (256, 1024, 4096)


def result(
    size: int, precision: str, speedup: Mapping[str, float | Ratio] | None = None,
    backend: str = "cublas", seconds: float = 1e-3, error: float = 2e-4,
) -> Result:  # fmt: skip
    """A float stands for a ratio known to 2 %."""
    ratios = {
        name: r if isinstance(r, Ratio) else Ratio(r, (0.98 * r, 1.02 * r))
        for name, r in (speedup or {}).items()
    }
    return Result(
        Case("gemm", {"m": size, "n": size, "k": size}, precision, backend),
        "ok",
        measurement=Measurement((seconds,), (1,), seconds, None, "events", "cold", "sustained"),
        flops=2 * size**3,
        total_error=error,
        speedup=ratios,
        bound="launch",
        why=f"the reason at {size}",
    )


def run_of(*results: Result) -> Run:
    return Run(("x",), "now", {"name": "x", "kind": "cuda"}, {}, results=results)


def said_of(*gains: float | Ratio, baseline: str = "fp32") -> str:
    """The verdict on fp16 with these speed-ups at 256, 1024 and 4096."""
    rows = [result(size, "fp16", {baseline: r}) for size, r in zip(SIZES, gains, strict=False)]
    bases = [result(size, baseline, error=3e-7) for size in SIZES]
    return "\n".join(verdict(run_of(*bases, *rows)))


def claims_nothing_pays(text: str) -> bool:
    return "is not faster than" in text


def tells(text: str, gain: float, size: int) -> bool:
    """Whether one clause of the text holds the gain (or, slower, its inverse) and the size."""
    wanted = {f"{gain:.3g}", f"{1 / gain:.3g}"}
    return any(
        str(size) in (numbers := re.findall(r"\d+(?:\.\d+)?", clause))
        and wanted & {f"{float(number):.3g}" for number in numbers}
        for clause in re.split(r"[,;\n]", text)
    )


def test_pays_off_everywhere() -> None:
    said = said_of(1.5, 6.0, 12.0)
    assert "fp16 is faster than fp32 at every size measured" in said
    assert tells(said, 1.5, 256)
    assert tells(said, 12.0, 4096)
    assert "the reason" not in said


def test_pays_off_from_a_size_and_says_why_not_below() -> None:
    said = said_of(0.9, 2.0, 12.0)
    assert "fp16 is faster than fp32 from 1024" in said
    assert tells(said, 2.0, 1024)
    assert tells(said, 12.0, 4096)
    (below,) = [line for line in said.splitlines() if "at 256 against fp32" in line]
    assert "slower" in below
    assert tells(below, 0.9, 256)
    assert "the reason at 256" in below


@pytest.mark.parametrize("first", [Ratio(1.03, (0.98, 1.08)), Ratio(1.001, (0.98, 1.02))])
def test_an_interval_that_holds_one_is_no_difference(first: Ratio) -> None:
    said = said_of(first, 2.0, 12.0)
    assert "from 1024" in said
    assert "slower" not in said
    (below,) = [line for line in said.splitlines() if "at 256 against fp32" in line]
    assert "no difference" in below
    assert "1 times faster" not in below


def test_a_loss_that_rounds_to_one_is_not_called_slower() -> None:
    assert not re.search(r"\b1(\.00)? times (slower|faster)", said_of(0.5, 0.6, 0.9999))


def test_never_pays_off() -> None:
    said = said_of(0.5, 0.7, 0.9)
    assert claims_nothing_pays(said)
    assert tells(said.splitlines()[0], 0.9, 4096)
    assert sum("slower" in line for line in said.splitlines()[1:]) == 3


def test_the_best_is_named_even_when_it_is_not_the_largest() -> None:
    said = said_of(2.0, 14.0, 12.0)
    assert tells(said, 14.0, 1024)


def test_a_gain_in_the_middle_is_not_denied() -> None:
    """Faster at 1024 only: "does not pay off: 2 times faster at best" would contradict itself."""
    said = said_of(0.9, 2.0, 0.9)
    assert not claims_nothing_pays(said)
    assert tells(said.splitlines()[0], 2.0, 1024)


def test_a_gain_below_a_loss_is_not_denied() -> None:
    said = said_of(2.0, Ratio(1.0, (0.97, 1.03)), 12.0)
    assert "from 4096" in said
    assert "256" in said


def test_without_an_interval_nothing_is_claimed() -> None:
    said = said_of(*[Ratio(12.0, None)] * 3)
    assert not claims_nothing_pays(said)
    assert not said.startswith("fp16 is faster")
    assert "--budget" in said or "not enough rounds" in said


def test_the_most_is_never_a_gain_that_nobody_knows() -> None:
    said = said_of(2.0, Ratio(30.0, None), 0.9).splitlines()[0]
    assert not tells(said, 30.0, 1024)


def test_both_baselines_have_their_sentence() -> None:
    rows = [result(size, "fp16", {"fp32": 10.0, "tf32": 0.8}) for size in SIZES]
    said = "\n".join(verdict(run_of(*rows)))
    assert "is faster than fp32 at every size" in said
    assert "is not faster than tf32" in said


def test_the_price_is_said() -> None:
    said = said_of(2.0, 3.0, 4.0)
    assert "2.0e-04" in said
    assert "3.0e-07" in said
    assert "4096" in said.splitlines()[-1]


def test_sizes_are_told_in_order_of_work_however_they_were_measured() -> None:
    gains = {4096: 12.0, 256: 0.9, 1024: 2.0}
    rows = [result(size, "fp16", {"fp32": r}) for size, r in gains.items()]
    assert "from 1024" in "\n".join(verdict(run_of(*rows)))


@pytest.mark.parametrize(("other", "gain"), [("cublas", 2.0), ("cupy", 4.0)])
def test_the_librarys_arm_decides_not_the_fastest_but_where_there_is_none(
    other: str, gain: float
) -> None:
    rows = [
        result(1024, "fp16", {"fp32": 2.0}, backend=other, seconds=2e-3),
        result(1024, "fp16", {"fp32": 4.0}, backend="triton", seconds=1e-3),
    ]
    for order in (rows, rows[::-1]):
        said = "\n".join(verdict(run_of(*order)))
        assert tells(said, gain, 1024)
        assert not tells(said, 6.0 - gain, 1024)


def test_what_was_skipped_is_said_with_its_reason() -> None:
    skipped = Result(
        Case("gemm", {"m": 4096, "n": 4096, "k": 4096}, "fp16", "cpu"), "skipped",
        reason="about 9 min a launch",
    )  # fmt: skip
    said = "\n".join(verdict(run_of(result(256, "fp16", {"fp32": 0.1}, "cpu"), skipped)))
    assert "fp16 was not measured at 4096: about 9 min a launch" in said
    only = "\n".join(verdict(run_of(skipped)))
    assert "no verdict" in only
    assert "about 9 min a launch" in only


def test_every_precision_asked_for_has_a_verdict() -> None:
    rows = [
        result(1024, precision, {"fp32": 2.0})
        for precision in ("fp32", "tf32", "fp16", "bf16", "int8")
    ]
    run = run_of(*rows)
    assert asked_for(run) == ["fp16", "bf16", "int8"]
    said = "\n".join(verdict(run))
    for name in asked_for(run):
        assert f"{name} is faster than fp32" in said


def test_asking_for_tf32_is_answered() -> None:
    assert "tf32 is faster than fp32" in "\n".join(
        verdict(run_of(result(1024, "fp32"), result(1024, "tf32", {"fp32": 7.0})))
    )


def test_nothing_measured_nothing_said() -> None:
    assert verdict(run_of()) == []


def test_each_sentence_is_one_line() -> None:
    said = verdict(run_of(*[result(s, "fp16", {"fp32": 0.5, "tf32": 2.0}) for s in SIZES]))
    assert said
    assert all("\n" not in line and line.strip() for line in said)
