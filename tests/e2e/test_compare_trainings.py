"""Two runs of trainings: faster, slower, same, or cannot tell; and how it is shown."""

from __future__ import annotations

import io
import json
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
from microbench.results.kinds import KINDS
from microbench.results.runfile import write_run
from microbench.results.types import Run

OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "cannot tell": "cannot tell"}


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


def verdicts(a: Run, b: Run) -> list[str]:
    return [row.verdict for row in compare(a, b).rows]


def shown(a: Run, b: Run, width: int = 100) -> str:
    file = io.StringIO()
    print_comparison(compare(a, b), Console(file=file, width=width, highlight=False))
    return file.getvalue()


def at_clock(mhz: float | None, per_s: float, **more: Any) -> Run:
    return run_of(arm("amp", per_s, state=State(sm_clock_mhz=mhz), **more))


def test_a_run_is_the_same_as_itself() -> None:
    comparison = compare(amp_run(), amp_run())
    assert [row.verdict for row in comparison.rows] == ["same"] * 3
    assert [row.case for row in comparison.rows] == [t.case for t in amp_run().of(Training)]
    assert comparison.rows[2].a_s == amp_run().of(Training)[2].step_s


def test_five_per_cent_are_seen_and_two_per_cent_are_noise() -> None:
    assert verdicts(amp_run(), scaled(amp_run(), 1.05)) == ["slower"] * 3
    assert verdicts(scaled(amp_run(), 1.05), amp_run()) == ["faster"] * 3
    assert verdicts(amp_run(), scaled(amp_run(), 1.02)) == ["same"] * 3
    assert KINDS["train"].noise_pct == 3.0


def launching(per_s: float, pace: float | None) -> Run:
    """A training that the CPU limits, which launched at this pace."""
    (training,) = run_of(arm("amp", per_s, limit="host")).of(Training)
    assert training.steps
    return run_of(replace(training, steps=replace(training.steps, host_pace=pace)))


@pytest.mark.parametrize(
    ("slower", "pace_a", "pace_b", "verdict"),
    [
        (1.2, 1.0, 1.0, "same"),
        (1.5, 1.0, 1.0, "slower"),
        (1.5, 1.0, 1.5, "same"),  # a slower CPU
        (0.6, 1.0, 1.0, "faster"),
        (1.5, None, 1.0, "cannot tell"),
    ],
)
def test_steps_that_the_cpu_limits_are_compared_at_one_cpu_speed(
    slower: float, pace_a: float | None, pace_b: float | None, verdict: str
) -> None:
    (row,) = compare(launching(4_690, pace_a), launching(4_690 / slower, pace_b)).rows
    assert row.verdict == verdict
    assert row.threshold_pct == 30.0


@pytest.mark.parametrize("fed_first", [True, False])
def test_steps_with_a_loader_are_measured_otherwise_since_method_2(fed_first: bool) -> None:
    """Block means in place of medians; all other trainings compare across it."""
    found = list(amp_run().of(Training))
    fed = replace(found[0], case=replace(found[0].case, loader="torchvision"))
    new = replace(amp_run(), others=(fed, *found[1:]), method_version=2)
    old = replace(new, method_version=1)
    comparison = compare(new, old) if fed_first else compare(old, new)
    assert [row.verdict for row in comparison.rows] == ["cannot tell", "same", "same"]
    assert [row.reason == "other method" for row in comparison.rows] == [True, False, False]
    assert comparison.rows[0].ratio is None
    assert verdicts(new, new) == verdicts(old, old) == ["same"] * 3
    alone = replace(new, others=(fed,))
    with pytest.raises(UserError, match="method"):
        compare(alone, replace(alone, method_version=1))


def test_wide_and_missing_intervals_cannot_tell() -> None:
    wide = run_of(arm("amp", 4_690, half_pct=6.0))
    assert verdicts(wide, run_of(arm("amp", 4_500, half_pct=6.0))) == ["cannot tell"]
    once = run_of(arm("amp", 4_690, half_pct=None))
    (row,) = compare(once, run_of(arm("amp", 2_000))).rows
    assert (row.verdict, row.note) == ("cannot tell", "one round only")


def test_a_difference_of_clocks_alone_cannot_tell() -> None:
    (row,) = compare(at_clock(1_980, 4_690), at_clock(1_800, 4_690 * 1_800 / 1_980)).rows
    assert row.verdict == "cannot tell"
    assert "1980 and 1800 MHz" in row.note
    assert verdicts(at_clock(None, 4_690), at_clock(1_800, 4_263)) == ["slower"]
    assert verdicts(at_clock(1_800, 4_690), at_clock(1_800, 4_263)) == ["slower"]


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
    rates = (256 / seconds, 256 / seconds / factor)
    runs = [at_clock(mhz, rate, half_pct=half_pct)
            for mhz, rate in zip((mhz_a, mhz_b), rates, strict=True)]  # fmt: skip
    (there,), (back,) = verdicts(*runs), verdicts(*reversed(runs))
    assert back == OPPOSITE[there]


def test_failures() -> None:
    good = run_of(arm("amp", 4_690))
    lost = run_of(replace(good.of(Training)[0], status="failed", reason="hung", steps=None))
    assert verdicts(good, lost) == ["slower"]
    assert verdicts(lost, good) == ["faster"]
    assert verdicts(lost, lost) == ["cannot tell"]
    assert compare(good, lost).rows[0].note == "ok | failed"


def test_convergence_of_one_only_is_a_note() -> None:
    sound = broken_run()
    mended = replace(sound.of(Training)[3], converged=True, convergence=None)
    learnt = replace(sound, others=(*sound.of(Training)[:3], mended))
    notes = [row.note for row in compare(sound, learnt).rows]
    assert notes == ["", "", "", "A did not converge (loss is not finite from step 214 on)"]
    assert "B did not converge" in compare(learnt, sound).rows[3].note
    assert compare(sound, sound).rows[3].note == ""


def test_trainings_and_kernels_have_nothing_in_common() -> None:
    with pytest.raises(UserError, match="no case in common"):
        compare(amp_run(), h200_run())
    with pytest.raises(UserError, match="no case in common"):
        compare(h200_run(), amp_run())


def test_both_kinds_compare_each_with_its_own_noise() -> None:
    both = replace(h200_run(), others=amp_run().of(Training))
    slower = replace(both, others=scaled(amp_run(), 1.05).of(Training))
    comparison = compare(both, slower)
    assert comparison.count("same") == len(both.results)
    assert comparison.count("slower") == 3
    only = compare(both, amp_run())
    assert only.only_a == [result.case for result in both.results]


def test_the_screen_has_recipe_what_and_options() -> None:
    text = shown(amp_run(), scaled(amp_run(), 1.05))
    (head,) = [line for line in text.splitlines() if line.startswith("B is")]
    assert head.split() == [
        "B", "is", "recipe", "what", "options", "time", "B", "A", "/", "B", "threshold", "reason",
    ]  # fmt: skip
    line = next(line for line in text.splitlines() if " amp " in line)
    expected = (
        "- slower amp resnet50, batch 256 nhwc sgd 57.3 ms 0.952 ±0.003 3.0 % interval is beyond it"
    )
    assert line.split() == expected.split()
    assert text.endswith("B against A, 3 cases: 3 slower.\n")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_screen_fits(width: int) -> None:
    both = replace(h200_run(), others=amp_run().of(Training))
    slower = replace(both, others=scaled(amp_run(), 1.05).of(Training))
    for a, b in ((amp_run(), amp_run()), (both, slower), (broken_run(), broken_run())):
        text = shown(a, b, width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
    few = replace(h200_run(), results=h200_run().results[:2], others=amp_run().of(Training))
    assert {"precision", "what", "backend"} <= set(shown(few, few).split("─")[0].split())


def test_the_command_writes_the_comparison(tmp_path: Path) -> None:
    a, b, out = (tmp_path / name for name in ("a.json", "b.json", "out.json"))
    write_run(amp_run(), a)
    write_run(scaled(amp_run(), 1.05), b)
    assert compare_with([a, b], fail_on="slower", json=out) == 1
    written = json.loads(out.read_text())
    assert written["counts"]["slower"] == 3
    assert written["train_noise_pct"] == 3.0
    assert written["rows"][0].keys() == {
        "key", "verdict", "ratio", "ci95", "a_s", "b_s", "note", "reason", "threshold_pct",
        "threshold_s", "processes",
    }  # fmt: skip
    assert written["rows"][0]["reason"] == "interval is beyond it"
    assert written["rows"][0]["threshold_pct"] == 3.0
    assert written["rows"][0]["key"] == amp_run().of(Training)[0].case.key
