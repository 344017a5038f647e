"""Planted causes are found and named with their numbers; those that are not there are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.explain.causes import MISALIGNED_SHARE, MISSED_SHARE, findings
from e2e.explain.fixes import MIN_GAIN_PCT, Counterfactual, as_options, fixes
from e2e.explain.ledger import Step
from e2e.prediction.queue_model import OpCost, Simulated, simulate
from e2e.results.types import Cause

MS = 1e-3
CONV = "aten.convolution.default"
BATCH = 256
LAUNCHING = "CPU launch is the bottleneck"
MEMORY = "memory-bound work is most of the step"
SLOWER = "layers that are slower in low precision"
MISSED = "GEMMs and convolutions still in float32"
MISALIGNED = "unaligned sizes"
TF32 = "the baseline already uses TF32"


def product(layer: str, ms: float, dtype: str = "float16", **more: float | str) -> OpCost:
    made = OpCost("product", "forward", layer, ms * MS, 1e-5, name=CONV, dtype=dtype)
    return replace(made, **more)


def other(kind: str, ms: float) -> OpCost:
    return OpCost(kind, "forward", "", ms * MS, 1e-5)


def step(*ops: OpCost) -> Step:
    return Step(ops, simulate(ops))


FP32 = step(product("stem", 20, "float32"), product("body", 40, "float32"), other("norm", 10))
AMP = step(product("stem", 4), product("body", 8), other("norm", 5))
LATE = step(*(replace(each, host_s=10 * MS) for each in AMP.ops))


def found(
    present: Step = AMP,
    base: Step | None = FP32,
    what_if: Sequence[Counterfactual] = (),
    recipe: str = "amp",
    base_recipe: str = "fp32",
) -> dict[str, Cause]:
    listed = [*fixes(present, BATCH, what_if), *findings(present, base, recipe, base_recipe)]
    return {cause.title: cause for cause in listed}


def simulated(step_ms: float) -> Step:
    """A step of AMP's ops that is predicted to take this long."""
    return Step(AMP.ops, Simulated(step_ms * MS, step_ms * MS, 1 * MS, 0.0, "gpu"))


# ---------------------------------------------------------------- findings

# The step, its baseline, the cause, and what its sentence says.
PLANTED: list[tuple[Step, Step | None, str, str]] = [
    (LATE, FP32, LAUNCHING, "the GPU is idle for 13.0 of 30.0 ms (43 %): the CPU needs 30.0 ms to "
     "launch 3 ops that run for 17.0 ms"),
    (step(*LATE.ops[:2], replace(LATE.ops[2], waits=True)), FP32, LAUNCHING,
     "; 1 of them makes the CPU wait"),
    (step(product("body", 4), other("norm", 16)),
     step(product("body", 16, "float32"), other("norm", 14.1), other("activation", 10),
          other("optimizer", 2)), MEMORY,
     "in fp32, memory-bound work takes 24.1 of 42.1 ms (57 %): normalisation (14.1 ms), activation "
     "(10.0 ms); GEMMs and convolutions take 16.0 ms: if they took no time, the step would be 1.61 "
     "times faster"),
    (step(product("body", 4), other("norm", 8)), FP32, MEMORY, "in amp, memory-bound work takes 8"),
    (step(product("body", 4), other("norm", 8)), None, MEMORY, "in amp, memory-bound work takes 8"),
    (step(product("stem", 24, conversion_s=6 * MS), product("body", 8), other("norm", 5)), FP32,
     SLOWER, "stem (24.0 ms in amp, 20.0 in fp32): 4.00 of 37.0 ms (11 %) lost; layout changes "
     "take 6.00 of 24.0 ms (25 %) of that"),
    (step(product("4", 24), other("norm", 5)), step(product("4", 20, "float32"), other("norm", 5)),
     SLOWER, "in low precision in layer 4 (24.0 ms"),
    (step(*(product(f"l{i}", 1.1 + i / 10) for i in range(5)), other("norm", 1)),
     step(*(product(f"l{i}", 1, "float32") for i in range(5)), other("norm", 1)),
     SLOWER, " and 2 more: 1.50 of 7.50 ms (20 %) lost"),
    (step(product("stem", 4), product("head", 6, "float32"), other("norm", 5)), FP32, MISSED,
     "leaves in float32 take 6.00 of 10.0 ms (60 %) of all of them: head (6.00 ms)"),
    (step(product("stem", 4, misaligned="C=60"), product("body", 8), other("norm", 5)), FP32,
     MISALIGNED, "unaligned sizes (C=60) take 4.00 of 17.0 ms (24 %): stem (4.00 ms)"),
]  # fmt: skip


@pytest.mark.parametrize(("present", "base", "title", "said"), PLANTED)
def test_a_planted_cause_is_found(present: Step, base: Step | None, title: str, said: str) -> None:
    assert said in found(present, base)[title].why


SMALL = 0.9 * MISSED_SHARE, 0.9 * MISALIGNED_SHARE * 17
HEALTHY: list[tuple[Step, Step | None]] = [
    (AMP, FP32), (AMP, None), (step(), step()),
    (step(product("stem", 20.5), product("body", 8), other("norm", 5)), FP32),  # hardly slower
    (step(*AMP.ops, product("new", 0.002)), step(*FP32.ops, product("new", 0.001, "float32"))),
    (step(*AMP.ops, product("elsewhere", 2)), FP32),  # the baseline lacks it
    (step(product("stem", 10 * (1 - SMALL[0])), product("body", 10 * SMALL[0], "float32")), FP32),
    (step(product("stem", SMALL[1], misaligned="C=60"), product("body", 12 - SMALL[1]),
          other("norm", 5)), FP32),
]  # fmt: skip


@pytest.mark.parametrize(("present", "base"), HEALTHY)
def test_a_healthy_step_has_no_causes(present: Step, base: Step | None) -> None:
    assert found(present, base) == {}
    assert MISSED not in found(FP32, FP32, recipe="tf32")


def test_a_step_that_launches_no_kernel_has_no_gpu_that_idles() -> None:
    """A step of a CPU, of which a trace says where operations begin and end."""
    slow = Simulated(20 * MS, 17 * MS, 20 * MS, 3 * MS, "host")
    on_cpu, on_gpu = (found(Step(AMP.ops, slow, launches=launches)) for launches in (0, 30))
    assert LAUNCHING in on_gpu
    assert LAUNCHING not in on_cpu
    assert "GPU" not in on_cpu["framework overhead between operations"].why


def test_a_tf32_baseline_is_pointed_out() -> None:
    why = found(base_recipe="tf32")[TF32].why
    assert "take 60.0 ms in tf32, which uses Tensor Cores too, and 12.0 in amp" in why
    assert TF32 not in found(FP32, FP32, recipe="fp32", base_recipe="tf32")
    assert TF32 not in found(base=None, base_recipe="tf32")


# ---------------------------------------------------------------- fixes


def test_fixes_come_before_findings_and_say_what_to_type_and_what_it_saves() -> None:
    present = step(
        product("stem", 24), product("head", 2, "float32", misaligned="K=1001"),
        other("norm", 5), other("layout", 6),
    )  # fmt: skip
    graph = Counterfactual("CUDA graph", {"graph": True}, simulated(28), BATCH)
    layout = Counterfactual("channels_last", {"layout": "nhwc"}, step(*present.ops[:3]), BATCH)
    padded = Counterfactual("pad channels", {}, simulated(10), BATCH)
    listed = found(present, what_if=[graph, layout, padded], base_recipe="tf32")
    assert list(listed) == [
        "pad channels", "CUDA graph", "channels_last", SLOWER, MISSED, MISALIGNED, TF32,
    ]  # fmt: skip
    assert listed["channels_last"].why.endswith("by 6.00 ms less in layout changes")
    assert (listed["CUDA graph"].fix, listed["CUDA graph"].case_change) == (
        "--graph", {"graph": True},
    )  # fmt: skip
    padding = listed["pad channels"]
    assert (padding.fix, padding.case_change) == (padding.title, None), "a change of the network"
    late = found(LATE, what_if=[replace(graph, step=simulated(17))])["CUDA graph"]
    assert late.why.endswith("17.0 instead of 30.0 ms, by 13.0 ms less in CPU launch gaps")
    assert as_options({"fused": False, "loss_scale": 8.0}) == "--no-fused --loss-scale 8.0"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 100), st.integers(1, 1024)), max_size=8))
def test_only_gains_in_throughput_above_the_least_are_proposed_in_order(
    steps: list[tuple[float, int]],
) -> None:
    what_if = [
        Counterfactual(str(i), {"batch": n}, simulated(ms), n) for i, (ms, n) in enumerate(steps)
    ]
    gained = [cause.predicted_gain_pct for cause in found(what_if=what_if).values()]
    expected = [100 * (n / ms / (BATCH / 17) - 1) for ms, n in steps]
    wanted = sorted((gain for gain in expected if gain > MIN_GAIN_PCT), reverse=True)
    assert gained == pytest.approx(wanted)
