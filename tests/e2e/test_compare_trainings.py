"""Two runs of trainings: faster, slower, same, or cannot tell."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import h200_run
from samples.training_runs import amp_run, arm, broken_run, run_of

from e2e.results.types import State, Training
from microbench.commands import compare_with
from microbench.errors import UserError
from microbench.report.comparison import print_comparison
from microbench.results.comparison import compare
from microbench.results.runfile import write_run
from microbench.results.types import Run

OPPOSITE = {"faster": "slower", "slower": "faster"}


def scaled(run: Run, factor: float) -> Run:
    """The run with every step taking this many times as long."""
    found: list[Training] = []
    for training in run.of(Training):
        steps = training.steps
        assert steps
        assert steps.ci95_s
        low, high = steps.ci95_s
        longer = replace(
            steps,
            times_s=tuple(factor * seconds for seconds in steps.times_s),
            median_s=factor * steps.median_s,
            ci95_s=(factor * low, factor * high),
        )
        found.append(replace(training, steps=longer))
    return replace(run, others=tuple(found))


def one(per_s: float = 4_690, pace: float | None = None, mhz: float | None = None,
        **more: Any) -> Run:  # fmt: skip
    """A training at this many units a second, launched at this pace, at this clock."""
    made = arm("amp", per_s, state=State(sm_clock_mhz=mhz), **more)
    return run_of(replace(made, steps=made.steps and replace(made.steps, host_pace=pace)))


HOST: Mapping[str, Any] = {"limit": "host"}
LOST = run_of(replace(arm("amp", 1.0), status="failed", reason="hung", steps=None))
# Both runs, the verdict of the second, and what its note or reason says.
PAIRS: dict[str, tuple[Run, Run, str, str]] = {
    "a run and itself": (one(), one(), "same", ""),
    "five per cent": (one(), scaled(one(), 1.05), "slower", "interval is beyond it"),
    "two per cent": (one(), scaled(one(), 1.02), "same", ""),
    "wide intervals": (one(half_pct=6.0), one(4_500, half_pct=6.0), "cannot tell", ""),
    "no interval": (one(half_pct=None), one(2_000), "cannot tell", "one round only"),
    "a difference of clocks": (
        one(mhz=1_980), one(4_690 * 1_800 / 1_980, mhz=1_800), "cannot tell", "1980 and 1800 MHz",
    ),
    "an unknown clock": (one(), one(4_263, mhz=1_800), "slower", ""),
    "one clock": (one(mhz=1_800), one(4_263, mhz=1_800), "slower", ""),
    # Steps that the CPU limits are compared at one CPU speed.
    "launches": (one(pace=1, **HOST), one(4_690 / 1.2, 1, **HOST), "same", ""),
    "slow launches": (one(pace=1, **HOST), one(4_690 / 1.5, 1, **HOST), "slower", ""),
    "a slow CPU": (one(pace=1, **HOST), one(4_690 / 1.5, 1.5, **HOST), "same", ""),
    "an unknown CPU": (one(**HOST), one(4_690 / 1.5, 1, **HOST), "cannot tell", ""),
    "a failure": (one(), LOST, "slower", "ok | failed"),
    "two failures": (LOST, LOST, "not measured", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_verdict_and_that_of_the_exchanged_runs(name: str) -> None:
    a, b, verdict, said = PAIRS[name]
    (row,), (back,) = compare(a, b).rows, compare(b, a).rows
    assert row.verdict == verdict
    assert said in f"{row.note} {row.reason}"
    assert back.verdict == OPPOSITE.get(verdict, verdict)
    limited = a.of(Training)[0].limit == "host"
    assert row.threshold_pct in (None, 30.0 if limited else 3.0)


@given(
    st.floats(1e-4, 10.0),
    st.floats(0.5, 2.0),
    st.none() | st.floats(0.0, 5.0),
    st.none() | st.floats(500.0, 2000.0),
    st.none() | st.floats(500.0, 2000.0),
)
def test_exchanging_the_runs_exchanges_the_verdict(
    seconds: float, factor: float, half_pct: float | None, mhz_a: float | None, mhz_b: float | None
) -> None:
    a = one(256 / seconds, mhz=mhz_a, half_pct=half_pct)
    b = one(256 / seconds / factor, mhz=mhz_b, half_pct=half_pct)
    (there,), (back,) = compare(a, b).rows, compare(b, a).rows
    assert back.verdict == OPPOSITE.get(there.verdict, there.verdict)


@pytest.mark.parametrize("fed_first", [True, False])
def test_steps_with_a_loader_are_measured_otherwise_since_method_2(fed_first: bool) -> None:
    """Block means in place of medians; all other trainings compare across it."""
    found = list(amp_run().of(Training))
    fed = replace(found[0], case=replace(found[0].case, loader="torchvision"))
    new = replace(amp_run(), others=(fed, *found[1:]), method_version=2)
    old = replace(new, method_version=1)
    rows = (compare(new, old) if fed_first else compare(old, new)).rows
    assert [row.verdict for row in rows] == ["cannot tell", "same", "same"]
    assert [row.reason == "other method" for row in rows] == [True, False, False]
    assert rows[0].ratio is None
    assert {row.verdict for run in (new, old) for row in compare(run, run).rows} == {"same"}
    alone = replace(new, others=(fed,))
    with pytest.raises(UserError, match="method"):
        compare(alone, replace(alone, method_version=1))


def test_convergence_of_one_only_is_a_note() -> None:
    sound = broken_run()
    mended = replace(sound.of(Training)[3], converged=True, convergence=None)
    learnt = replace(sound, others=(*sound.of(Training)[:3], mended))
    notes = [row.note for row in compare(sound, learnt).rows]
    assert notes == ["", "", "", "A did not converge (loss is not finite from step 214 on)"]
    assert "B did not converge" in compare(learnt, sound).rows[3].note
    assert compare(sound, sound).rows[3].note == ""


def test_trainings_and_kernels_compare_each_with_its_own_noise() -> None:
    kernels, both = h200_run(), replace(h200_run(), others=amp_run().of(Training))
    slower = replace(both, others=scaled(amp_run(), 1.05).of(Training))
    comparison = compare(both, slower)
    assert comparison.count("same") == len(both.results)
    assert comparison.count("slower") == 3
    assert compare(both, amp_run()).only_a == [result.case for result in both.results]
    for a, b in ((amp_run(), kernels), (kernels, amp_run())):
        with pytest.raises(UserError, match="no case in common"):
            compare(a, b)
    few = replace(both, results=both.results[:2])
    for a, b in ((amp_run(), amp_run()), (both, slower), (broken_run(), broken_run()), (few, few)):
        for width in (60, 100):
            file = io.StringIO()
            print_comparison(compare(a, b), Console(file=file, width=width, highlight=False))
            assert max(map(cell_len, file.getvalue().splitlines())) <= width


def test_the_command_writes_the_comparison(tmp_path: Path) -> None:
    a, b, out = (tmp_path / name for name in ("a.json", "b.json", "out.json"))
    write_run(amp_run(), a)
    write_run(scaled(amp_run(), 1.05), b)
    assert compare_with([a, b], fail_on="slower", json=out) == 1
    written = json.loads(out.read_text())
    assert (written["counts"]["slower"], written["train_noise_pct"]) == (3, 3.0)
    row = written["rows"][0]
    assert row.keys() == {
        "key", "verdict", "ratio", "ci95", "a_s", "b_s", "note", "reason", "threshold_pct",
        "processes",
    }  # fmt: skip
    assert (row["reason"], row["threshold_pct"]) == ("interval is beyond it", 3.0)
    assert row["key"] == amp_run().of(Training)[0].case.key
