"""The step without the profiler: what its terms add up to, and when nothing is concluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.field_traces import Tape, recorded
from samples.traces import MS, US, Made
from samples.training_runs import arm
from torch import Tensor, nn

from e2e.profile.causes import Gain
from e2e.profile.diagnosis import Diagnosis, Traced, diagnose
from e2e.profile.trace import read_trace
from e2e.profile.training_steps import traced_step
from e2e.profile.unprofiled import Unprofiled, mean_interval, steps_in
from e2e.report.diagnosis import report
from e2e.results import terms
from e2e.results.ledger import ledger
from e2e.training.float8 import convert

approx = pytest.approx


def played(tape: Tape) -> None:
    """The next batch, 40 launches in 0.8 ms, 2 ms of work, a read and 1 ms of Python."""
    with tape.inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        tape.now += 500 * US
    for _ in range(40):
        tape.work("aten::relu", US)
    tape.product(2 * MS)
    tape.read()
    tape.python(MS)


def seen(made: Made, folder: Path) -> Unprofiled:
    return steps_in(read_trace(made.write(folder / "t.json")))


def said(folder: Path, **facts: Any) -> Traced:
    return diagnose([recorded(played, **facts).write(folder / "t.json")]).runs[0]


@settings(max_examples=40)
@given(
    bare_s=st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=12),
    waits=st.floats(0, 1.5), twice=st.booleans(),
)  # fmt: skip
def test_terms_are_the_mean_step_work_as_recorded_and_idle_time_what_is_left(
    bare_s: list[float], waits: float, twice: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    facts = {"bare_s": bare_s, "loading_s": [waits * time for time in bare_s]}
    times = {"times": recorded(played)} if twice else {}
    run = seen(recorded(played, slow=2, **times, **facts), tmp_path_factory.mktemp("t"))
    mean_ns = 1e9 * sum(bare_s) / len(bare_s)
    assert sum(run.terms.values()) == run.whole_ns == approx(2 * mean_ns, abs=1)
    assert all(ns > 0 for ns in run.terms.values())
    works = 2 * (2 * MS + 40 * US)
    assert run.whole_ns - run.idle_ns == approx(min(works, run.whole_ns), abs=4)
    for term, ns in run.terms.items():  # none is far longer than it was recorded, but for these
        assert term in (terms.LOADER, terms.RESIDUAL) or ns <= 1.5 * run.step.recorded[term] + 1
    assert run.terms.get(terms.LOADER, 0) <= 2 * waits * mean_ns + 1


@pytest.mark.parametrize(
    ("bare_ms", "own_ms", "launch_ms"), [(3.84, 1, 0.3), (3.54, 1, 0), (3.04, 0.5, 0)]
)
def test_the_profiler_s_time_is_cut_from_what_it_slows(
    bare_ms: float, own_ms: float, launch_ms: float, tmp_path: Path
) -> None:
    """Of two recordings launches and waits alone are slowed, until nothing is left of them."""
    times = recorded(played, slow=3)
    bare_s = [*[bare_ms / 1e3] * 9, bare_ms / 1e3 + 0.01]  # of which one is longer, by 1 ms a step
    run = seen(recorded(played, slow=9, times=times, bare_s=bare_s, loading_s=[5e-4] * 10),
               tmp_path)  # fmt: skip
    assert run.step.named is not None
    ms = {term: ns / 2e6 for term, ns in run.terms.items()}
    assert ms[terms.RESIDUAL] == approx(1, abs=0.05)
    assert ms[terms.LOADER] == approx(0.5, abs=0.01)
    assert ms.get(terms.PYTHON, 0) == approx(own_ms, abs=0.05)
    assert ms.get(terms.LAUNCH, 0) + ms.get(terms.SYNC, 0) == approx(launch_ms, abs=0.05)


def test_two_recordings_of_other_work_are_not_joined(tmp_path: Path) -> None:
    def other(tape: Tape) -> None:
        played(tape)
        tape.product(MS, kernel="another")

    run = seen(recorded(played, times=recorded(other)), tmp_path)
    assert run.step.named is None
    both = seen(recorded(played, times=recorded(played)), tmp_path)
    assert (both.step.matched, both.step.recorded[terms.MATRIX_PRODUCTS]) == (1, 4 * MS)


@pytest.mark.parametrize("junk", [None, "x", -7, [], {}, 10**30, float("inf")])
def test_a_damaged_recording_of_kernels_alone_leaves_that_with_names(
    junk: object, tmp_path: Path
) -> None:
    made = recorded(played, times=recorded(played))
    times = made.header["halfway"]["times"]
    for name, rows in times.items():
        first, *others = rows
        whole = first if name in ("work", "calls") else []
        damaged = [[*whole[:n], junk, *whole[n + 1 :]] for n in range(len(whole))]
        for row in (junk, *damaged):
            made.header["halfway"]["times"] = times | {name: [row, *others]}
            run = diagnose([made.write(tmp_path / "t.json")]).runs[0]
            assert run.ruined or run.ms(terms.MATRIX_PRODUCTS) == approx(2, abs=0.05)


def test_launches_behind_a_read_are_its_cost_and_on_a_cpu_shares_stay_as_recorded(
    tmp_path: Path,
) -> None:
    run = seen(recorded(played, foreign=True), tmp_path)
    assert (run.step_s, run.ci95_s) == (None, None)
    assert run.terms == run.step.recorded
    assert sum(run.terms.values()) == run.step.end - run.step.start
    for bare_ms in (4, 20):
        made = Made(header={"halfway": {"lead_in": 1, "traced": 1, "bare_s": [bare_ms / 1e3] * 4}})
        made.steps(10 * MS, 20 * MS)
        made.op("aten::mm", 12 * MS, 18 * MS)
        whole = {terms.MATRIX_PRODUCTS: 0.6 * bare_ms * MS, terms.PYTHON: 0.4 * bare_ms * MS}
        assert seen(made, tmp_path).terms == whole
    # At most as long as the CPU waits: by the bare steps where they were timed.
    for wait_s, held_ms in ((0.0001, 0.1), (0.5, 0.777)):
        reads = [["train.py:12", "item", 20, 20 * wait_s]]
        run = seen(recorded(played, reads=reads), tmp_path)
        lost = run.terms.get(terms.SYNC, 0) / 2e6
        assert run.held_up_ns / 2e6 == approx(held_ms - lost, abs=0.003)
    costs = {one.cause: one.ms for one in said(tmp_path, reads=reads).findings}
    assert costs["sync"] == approx(0.78, abs=0.03)
    assert "launch" not in costs


@pytest.mark.parametrize(
    ("bare_s", "loading_s", "words"),
    [
        ([0.001, 0.012] * 3, [], ["steps differ too much"]),
        ([0.0045, 0.0045, 0.009] * 8, [], ["in no recorded step"]),
        ([0.001] * 6, [], ["in the recorded steps alone"]),
        ([0.005, 0.04] * 9, [0.0005, 0.0355] * 9, []),  # waits that come in bursts are known
    ],
)
def test_nothing_is_concluded_of_steps_that_differ_or_were_not_recorded(
    bare_s: list[float], loading_s: list[float], words: list[str], tmp_path: Path
) -> None:
    run = said(tmp_path, bare_s=bare_s, loading_s=loading_s)
    assert all(word in run.ruined[0] for word in words)
    assert len(run.ruined) == 3 * len(words)
    assert (run.bottleneck == "unknown", run.findings == ()) == (bool(words),) * 2
    assert sum(term.ns for term in run.terms) == run.window_ns
    gain = Gain("tf32", "TF32 allowed", 2.0, 1.0, 3.0, 10.0, 3)
    for one, part in ((gain, "20 % of a step less"), (replace(gain, low_ms=-1.0), "none gained")):
        found = report(asdict(Diagnosis((replace(run, gains=(one,)),))))
        tried = [line.text for line in found.answer if line.text.startswith("Tried: ")]
        assert [part in text for text in tried] == [True] * bool(words), "also without a verdict"


def test_the_interval_of_a_mean_knows_that_steps_depend_on_one_another() -> None:
    assert mean_interval([1.0, 2.0, 3.0]) is None
    assert mean_interval([2.0] * 9) == (2, 2)
    # By hand: variance 1.25, with half the covariance of neighbours twice 1.5625; t(3) = 3.182.
    assert mean_interval([1.0, 2.0, 3.0, 4.0]) == approx((2.5 - 2.2966, 2.5 + 2.2966), abs=1e-3)
    low, high = mean_interval([1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0] * 3) or (0, 0)
    alone, other = mean_interval([1.0, 9.0] * 12) or (0, 0)
    assert high - low > 2 * (other - alone)


# ---------------------------------------------------------------- training steps


WIDTH, BATCH = 64, 32


class Repeated(nn.Linear):
    """A layer that does its work several times: a slow one, planted."""

    times = 1

    def forward(self, x: Tensor) -> Tensor:
        """[N, WIDTH] -> [N, WIDTH]"""
        for _ in range(self.times):
            x = super().forward(x)
        return x


def network(times: int) -> nn.Sequential:
    slow = Repeated(WIDTH, WIDTH)
    slow.times = times
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), slow, nn.Linear(WIDTH, 4))


def step_of(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def recorded_of(model: nn.Module, *, autocast: bool = False) -> terms.TracedStep:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = traced_step(step_of(model), model, 2, named=True)
    assert (found.steps, found.launches) == (2, 0), "no device"
    assert sum(found.terms.values()) == found.window_ns > 0
    return found


def products_of(traced: terms.TracedStep) -> dict[str, terms.TracedPart]:
    return {part.layer: part for part in traced.parts if part.term == terms.MATRIX_PRODUCTS}


def test_recorded_steps_add_up_a_slow_layer_is_first_and_is_named_alike_over_several_gpus() -> None:
    plain, slow = recorded_of(network(1)), recorded_of(network(100))
    layer, part = next(iter(products_of(slow).items()))
    assert (layer, part.dtype) == ("2", "float32")
    base = arm("fp32", 1e9 / plain.window_ns * 2 * 256, traced=plain)
    other = arm("amp", 1e9 / slow.window_ns * 2 * 256, traced=slow)
    changed = next(x for x in ledger(base, other) if x.term == terms.MATRIX_PRODUCTS)
    assert changed.ms > 0
    assert changed.detail.partition("; ")[2].startswith("2 +")
    wrapped = nn.DataParallel(network(1))  # with no GPU it calls the model
    layers = products_of(recorded_of(wrapped)).keys()
    assert "0" in layers
    assert not any(layer.startswith("module") for layer in layers)


def test_types_are_those_of_the_products_and_a_step_that_raises_ends_the_recording() -> None:
    """It has no Tensor Cores. What FP8 computes is not taken for float32."""
    odd = recorded_of(nn.Sequential(nn.Linear(WIDTH, 13), nn.Linear(13, 4)), autocast=True)
    assert {part.dtype for part in products_of(odd).values()} >= {"bfloat16"}
    assert {part.misaligned for part in products_of(odd).values()} == {""}
    assert not any("multiple of" in cost.title for cost in odd.costs)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 5, bias=False))
    model, counts = convert(model, "tensorwise", batch=16)
    assert counts == (1, 2)
    found = {
        layer: part.dtype for layer, part in products_of(recorded_of(model, autocast=True)).items()
    }
    assert found["0"].startswith("float8")
    assert found["1"] == "bfloat16"
    model = network(1)
    step, calls = step_of(model), 0

    def breaking() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise RuntimeError("planted")
        step()

    with pytest.raises(RuntimeError, match="planted"):
        traced_step(breaking, model, 2, named=True)
    assert products_of(recorded_of(model)).keys() >= {"0"}, "another begins, and names its layers"
