"""Several recordings: what matches, an exact ledger, layers, ranks, and what is refused."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import h200_run
from samples.traces import MS, US, Made, traces
from samples.training_runs import amp_run, broken_run, run_of, variant

from e2e.__main__ import main
from e2e.profile.compare import align
from e2e.profile.diagnosis import Diagnosis, changes, diagnose, diagnose_ranks
from e2e.profile.trace import read_trace
from e2e.profile.unprofiled import steps_in
from e2e.results.types import DeviceState, Training
from microbench.__main__ import main as shows
from microbench.errors import UserError
from microbench.report.comparison import report
from microbench.report.screen import print_report
from microbench.results.comparison import compare
from microbench.results.types import Run

BF16 = "c10::BFloat16"
Folders = pytest.TempPathFactory


def of(folder: Path, *made: Made) -> Diagnosis:
    return diagnose([one.write(folder / f"{n}.json") for n, one in enumerate(made)])


def training(
    steps: int = 2, batch: int = 64, dtype: str = "float", gemm_us: int = 100, casts: bool = False,
    modules: bool = True, shapes: bool = True, odd: int = 0,
) -> Made:  # fmt: skip
    """Steps of two layers, a product and a relu each, and what ends them.

    Of all products after those of the first step, the first `odd` have other sizes.
    """
    made, now, ends = Made(), 0, []
    others = iter([[[batch, 32], [32, 16]]] * 2 + [[[batch, 99], [99, 16]]] * odd)
    for _ in range(steps + 1):
        for layer in ("body", "head"):
            begin = now
            calls = [("aten::copy_", 30)] * casts + [("aten::mm", gemm_us), ("aten::relu", 20)]
            for name, gpu_us in calls:
                dims = [[batch, 32], [32, 16]]
                dims = next(others, dims) if name == "aten::mm" else dims
                args: dict[str, Any] = {"Input Dims": dims} if shapes else {}
                args["Input type"] = [dtype, "float" if name == "aten::copy_" else dtype]
                made.op(name, now, now + 5 * US, **args)
                made.kernel(name, now + 10 * US, now + (10 + gpu_us) * US, now + US)
                now += (gpu_us + 20) * US
            if modules:
                made.note(f"halfway::{layer}", begin, now - US)
        ends.append(now)
    made.steps(*ends)
    return made


def test_amp_matches_float32_and_what_a_recording_lacks_is_said(tmp_path: Path) -> None:
    base, other = training(), training(steps=3, dtype=BF16, gemm_us=40, casts=True)
    found = of(tmp_path, base, other)
    assert (found.aligned.share, found.aligned.alike) == (1, 1)
    times = 2 * 120 * US, 3 * (40 + 20 + 30) * US
    layers = [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.aligned.layers]
    assert layers == [("body", "forward", *times), ("head", "forward", *times)]
    of_term = {change.term: change.ns for change in changes(*found.runs)}
    assert of_term["matrix products"] == -2 * 60 * US
    assert of_term["casts"] == 2 * 30 * US
    unnamed, unshaped = training(modules=False), training(shapes=False)
    found = of(tmp_path, training(), unnamed)
    assert (found.aligned.share, found.aligned.layers) == (1, ())
    assert "names no modules" in found.runs[1].missing[0]
    found = of(tmp_path, training(), unshaped)
    assert (found.aligned, found.runs[1].products) == (None, ())
    assert (found.runs[0].missing, "record_shapes" in found.runs[1].missing[0]) == ((), True)


@pytest.mark.parametrize(("odd", "matched"), [(4, 17), (3, 38)])
def test_recordings_that_hardly_match_are_refused(odd: int, matched: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^the two .* different shapes \(matched {matched} %"):
        of(tmp_path, training(), training(odd=odd))
    with pytest.raises(UserError, match="matched 0 %"):
        of(tmp_path, training(), training(batch=128))
    cpu = training()
    cpu.events = [event for event in cpu.events if event["cat"] in ("cpu_op", "user_annotation")]
    with pytest.raises(UserError, match="the other only a CPU's"):
        of(tmp_path, training(), cpu)


def test_a_synchronisation_has_the_line_of_the_user_s_script(tmp_path: Path) -> None:
    """From a stack, of older torch and of newer."""
    made = training()
    end = max(e["ts"] + e["dur"] for e in made.events if e["cat"] == "kernel")
    made.op("aten::item", end, end + 500 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", end + US, end + 400 * US)
    made.op("aten::mm", end + 600 * US, end + 610 * US)
    made.kernel("gemm", end + 620 * US, end + 630 * US, end + 601 * US)
    made.events = [e for e in made.events if not e["name"].startswith("ProfilerStep")]
    made.steps(end // 3, 2 * end // 3, end + 611 * US)

    def sync() -> str:
        (run,) = of(tmp_path, made).runs
        assert "someone" not in str(run)
        stack = any(event["cat"] == "python_function" for event in made.events)
        assert any("no Python stack" in text for text in run.missing) != stack
        return next(one.where for one in run.findings if one.cause == "sync")

    assert ".py" not in sync()
    for name, start, until in (
        ("runpy.py(88): _run_code", 0, 999),
        ("/home/someone/work/train.py(80): main", end - US, 900),
        ("torch/_tensor.py(10): item", end, 500),
    ):  # fmt: skip
        made.span("python_function", name, start, end + until * US)
    assert "train.py:80 " in sync()
    made.events[-1]["args"]["CallFrom"] = "/home/someone/work/train.py:88"
    assert "train.py:88 " in sync()


@pytest.mark.parametrize("alike", [True, False])
def test_the_screen_has_the_layers_where_enough_matches(
    alike: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = training(dtype=BF16, gemm_us=40, casts=True) if alike else training(odd=1)
    paths = [training().write(tmp_path / "base.json"), made.write(tmp_path / "other.json")]
    aligned = diagnose(paths).aligned
    assert aligned.share == pytest.approx(1 if alike else 380 / 480)
    words = ["diagnose", str(paths[1]), "--base", str(paths[0])]
    out = tmp_path / "out.json"
    assert main([*words, "--json", str(out)]) == 0
    brief = capsys.readouterr().out
    assert shows(["show", str(out), "--verbose"]) == 0
    whole = capsys.readouterr().out
    assert ("too little to compare layers" in " ".join(whole.split())) != alike
    assert ("Layers that changed most" in whole) == alike
    assert ["64x32 32x16" in text for text in (brief, whole)] == [False, True]


# ---------------------------------------------------------------- properties


@settings(max_examples=25)
@given(made=traces(), other=traces(types=BF16))
def test_changes_add_up_and_flip(made: Made, other: Made, tmp_path_factory: Folders) -> None:
    other.header = {"halfway": {"bare_s": [0.000123, 0.000321], "traced": 2}}
    folder = tmp_path_factory.mktemp("t")
    paths = made.write(folder / "a.json"), other.write(folder / "b.json")
    runs = [diagnose([path]).runs[0] for path in paths]
    there, back = changes(*runs), changes(*reversed(runs))
    for *lines, step in (there, back):
        assert sum((line.ns for line in lines), Fraction()) == step.ns
    assert there[-1].other_ns == Fraction(runs[1].window_ns, runs[1].steps)
    assert {change.term: -change.ns for change in back} == {line.term: line.ns for line in there}
    steps = [steps_in(read_trace(path)).step for path in paths]
    found, swapped = align(*steps), align(*reversed(steps))
    if found is None or swapped is None:  # all work is a cast or a copy
        assert found == swapped
        return
    assert found.alike == swapped.alike
    assert found.matched_ns == swapped.matched_ns[::-1]
    assert [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.layers] == [
        (x.module, x.phase, x.other_ns, x.base_ns) for x in swapped.layers
    ]


@settings(max_examples=25)
@given(made=traces(), shift=st.integers(0, 10**15), seed=st.integers(0, 99))
def test_a_recording_is_itself_in_any_order_at_any_time(
    made: Made, shift: int, seed: int, tmp_path_factory: Folders
) -> None:
    first = made.write(tmp_path_factory.mktemp("first") / "t.json")
    (before,) = diagnose([first]).runs
    random.Random(seed).shuffle(made.events)
    for event in made.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] += 13
    found = diagnose([first, made.write(tmp_path_factory.mktemp("again") / "t.json", shift)])
    assert found.runs == (before, before)
    assert all(change.ns == 0 for change in changes(*found.runs))
    if found.aligned:  # None where all work is a cast or a copy
        assert (found.aligned.share, found.aligned.alike) == (1, 1)
        assert all(layer.base_ns == layer.other_ns for layer in found.aligned.layers)
        busy = sum(term.ns for term in before.terms if not term.idle)
        assert sum(layer.base_ns for layer in found.aligned.layers) in (0, busy)


# ---------------------------------------------------------------- all ranks of one run

TRANSFER = 2 * MS
ELEMENTS = 1_000_000


def rank(folder: Path, number: int, arrives: list[int], name: str = "allreduce") -> Path:
    """Steps of 20 ms, each with a GEMM until it arrives and an exchange that ends at 14 ms."""
    made = Made(header={"halfway": {"rank": number, "lead_in": 1, "traced": len(arrives) - 1}})
    ends: list[int] = []
    for place, at in enumerate(arrives):
        begin = 20 * MS * place
        made.op("aten::mm", begin, begin + 50 * US)
        made.kernel("gemm", begin + 20 * US, begin + at, begin + 10 * US)
        launched = begin + 100 * US
        made.correlation += 1
        made.span(
            "cuda_runtime", "cudaLaunchKernelExC", launched, launched + US,
            correlation=made.correlation,
        )  # fmt: skip
        made.span(
            "kernel", "ncclDevKernel_AllReduce", begin + at, begin + 14 * MS, 9, stream=9, device=0,
            correlation=made.correlation, dtype="BFloat16",
            **{"Collective name": name, "In msg nelems": ELEMENTS, "Group size": 2,
               "Process Group Name": "0"},
        )  # fmt: skip
        ends.append(begin + 19 * MS)
    made.steps(*ends)
    return made.write(folder / f"amp.rank{number}.json")


def test_the_last_of_ranks_takes_the_transfer_and_other_runs_are_refused(tmp_path: Path) -> None:
    early = rank(tmp_path, 0, [5 * MS, 6 * MS, 7 * MS])
    late = rank(tmp_path, 1, [12 * MS, 12 * MS, 12 * MS])
    found = diagnose_ranks([early, late])
    first, second = found.ranks.ranks
    assert found.ranks.transfer_ms == pytest.approx(2)
    assert second.last == 1.0
    assert second.waiting_ms == pytest.approx(0)
    assert first.waiting_ms == pytest.approx((6 + 5) / 2)  # of the two whole steps
    assert first.communication_ms == pytest.approx(first.waiting_ms + 2)
    assert found.ranks.collectives == 1
    # An all-reduce of two sends each byte once over each link: 2 (n - 1) / n.
    assert found.ranks.bus_byte_per_s == pytest.approx(2 * ELEMENTS / (TRANSFER / 1e9))
    assert found.runs[0].name == "amp.rank1.json"  # what the others wait for is explained
    theirs = rank(tmp_path, 1, [5 * MS, 5 * MS], name="broadcast")
    assert diagnose_ranks([early, theirs]) is None


# ---------------------------------------------------------------- compare trainings


OPPOSITE = {"faster": "slower", "slower": "faster"}


def scaled(run: Run, factor: float) -> Run:
    """The run with every step taking this many times as long."""
    found: list[Training] = []
    for training in run.of(Training):
        steps = training.steps
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
    made = variant("amp", per_s, state=DeviceState(sm_clock_mhz=mhz), **more)
    return run_of(replace(made, steps=made.steps and replace(made.steps, host_pace=pace)))


HOST: Mapping[str, Any] = {"limit": "host"}
LOST = run_of(replace(variant("amp", 1.0), status="failed", reason="hung", steps=None))
# Both runs, the verdict of the second, and what its note or reason says.
PAIRS: dict[str, tuple[Run, Run, str, str]] = {
    "a run and itself": (one(), one(), "same", ""),
    "five per cent": (one(), scaled(one(), 1.05), "slower", "interval is beyond it"),
    "no interval": (one(half_pct=None), one(2_000), "cannot tell", "one round only"),
    "a difference of clocks": (
        one(mhz=1_980), one(4_690 * 1_800 / 1_980, mhz=1_800), "cannot tell", "1980 and 1800 MHz",
    ),
    # Steps that the CPU limits are compared at one CPU speed.
    "slow launches": (one(pace=1, **HOST), one(4_690 / 1.5, 1, **HOST), "slower", ""),
    "a slow CPU": (one(pace=1, **HOST), one(4_690 / 1.5, 1.5, **HOST), "same", ""),
    "an unknown CPU": (one(**HOST), one(4_690 / 1.5, 1, **HOST), "cannot tell", ""),
    "a failure": (one(), LOST, "slower", "ok | failed"),
    "two failures": (LOST, LOST, "not measured", ""),
    "only one learns": (
        one(converged=False, convergence="NaN"), one(converged=True), "same",
        "A did not converge (NaN)",
    ),
    "only the other": (
        one(converged=True), one(converged=False), "same", "B did not converge",
    ),
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
            console = Console(file=file, width=width, highlight=False)
            print_report(report({"b": compare(a, b)}, "a"), console)
            assert max(map(cell_len, file.getvalue().splitlines())) <= width
