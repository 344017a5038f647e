"""Planted causes are found and named with their numbers; those that are not there are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.explain.causes import MISALIGNED_SHARE, MISSED_SHARE, findings
from e2e.explain.fixes import MIN_GAIN_PCT, Counterfactual, fixes
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


def found(
    present: Step = AMP,
    base: Step | None = FP32,
    what_if: Sequence[Counterfactual] = (),
    recipe: str = "amp",
    base_recipe: str = "fp32",
) -> list[Cause]:
    return [*fixes(present, BATCH, what_if), *findings(present, base, recipe, base_recipe)]


def titled(title: str, listed: list[Cause]) -> Cause:
    return next(cause for cause in listed if cause.title == title)


def titles(listed: list[Cause]) -> list[str]:
    return [cause.title for cause in listed]


def simulated(step_ms: float) -> Step:
    """A step of AMP's ops that is predicted to take this long."""
    return Step(AMP.ops, Simulated(step_ms * MS, step_ms * MS, 1 * MS, 0.0, "gpu"))


# ---------------------------------------------------------------- nothing to say


def test_a_healthy_step_has_no_causes() -> None:
    assert found() == []
    assert found(base=None) == []
    assert found(FP32, FP32, recipe="fp32") == []


def test_a_step_of_nothing_has_no_causes() -> None:
    assert found(step(), step(), [Counterfactual("graph", {"graph": True}, step(), 1)]) == []


def test_a_step_that_launches_no_kernel_has_no_gpu_that_idles() -> None:
    """A step of a CPU, of which a trace says where operations begin and end."""
    slow = Simulated(20 * MS, 17 * MS, 20 * MS, 3 * MS, "host")
    on_cpu, on_gpu = (Step(AMP.ops, slow, launches=launches) for launches in (0, 30))
    assert LAUNCHING in titles(found(on_gpu))
    listed = found(on_cpu)
    assert LAUNCHING not in titles(listed)
    assert "GPU" not in titled("framework overhead between operations", listed).why


# ---------------------------------------------------------------- fixes


def test_fixes_are_ranked_by_their_gain_and_small_ones_left_out() -> None:
    listed = found(
        what_if=[
            Counterfactual("fused optimizer", {"fused": True}, simulated(16.9), BATCH),  # 0.6 %
            Counterfactual("CUDA graph", {"graph": True}, simulated(16), BATCH),
            Counterfactual("channels_last", {"layout": "nhwc"}, simulated(10), BATCH),
            Counterfactual("slower", {"compile": True}, simulated(30), BATCH),
        ]
    )
    assert titles(listed) == ["channels_last", "CUDA graph"]
    assert [cause.predicted_gain_pct for cause in listed] == pytest.approx([70, 6.25])
    assert [cause.fix for cause in listed] == ["--layout nhwc", "--graph"]
    assert listed[0].case_change == {"layout": "nhwc"}
    assert listed[0].why == "predicted 25,600 instead of 15,059 img/s: 10.0 instead of 17.0 ms"


def test_another_batch_is_compared_by_throughput() -> None:
    twice = Counterfactual("larger batch", {"batch": 512}, simulated(25), 512)
    (cause,) = found(what_if=[twice])
    assert cause.predicted_gain_pct == pytest.approx(100 * (512 / 25 / (256 / 17) - 1))
    assert cause.fix == "--batch 512"
    assert "12.5 instead of 17.0 ms for 256" in cause.why
    assert found(what_if=[replace(twice, step=simulated(35))]) == []


def test_a_fix_names_what_it_saves() -> None:
    plain = step(product("body", 8), other("layout", 6), other("norm", 3))
    last = step(product("body", 7), other("norm", 3))
    cause, *_ = found(
        plain, None, [Counterfactual("channels_last", {"layout": "nhwc"}, last, BATCH)]
    )
    assert cause.why.endswith("by 6.00 ms less in layout changes and 1.00 ms less in convolutions")


def test_a_change_of_the_network_is_no_change_of_the_case() -> None:
    padded = Counterfactual("pad channels to a multiple of 8", {}, simulated(10), BATCH)
    (cause,) = found(what_if=[padded])
    assert (cause.fix, cause.case_change) == (padded.name, None)


def test_a_change_that_lets_the_device_work_says_so() -> None:
    late = step(*(replace(each, host_s=10 * MS) for each in AMP.ops))
    graph = simulated(17)
    cause = found(late, what_if=[Counterfactual("CUDA graph", {"graph": True}, graph, BATCH)])[0]
    assert cause.why.endswith("17.0 instead of 30.0 ms, by 13.0 ms less in CPU launch gaps")


def test_switching_something_off_is_an_option_too() -> None:
    off = Counterfactual("no fusing", {"fused": False, "loss_scale": 8.0}, simulated(10), BATCH)
    assert found(what_if=[off])[0].fix == "--no-fused --loss-scale 8.0"


# ---------------------------------------------------------------- findings


def test_a_host_that_is_too_slow_is_found() -> None:
    ops = [replace(each, host_s=10 * MS) for each in AMP.ops]
    cause = titled(LAUNCHING, found(step(*ops)))
    assert cause.why == (
        "the GPU is idle for 13.0 of 30.0 ms (43 %): the CPU needs 30.0 ms to launch 3 ops that "
        "run for 17.0 ms"
    )
    ops[-1] = replace(ops[-1], waits=True)
    assert "; 1 of them makes the CPU wait" in titled(LAUNCHING, found(step(*ops))).why


def test_memory_bound_work_is_found_in_the_baseline() -> None:
    base = step(product("body", 16, "float32"), other("norm", 14.1), other("activation", 10),
                other("optimizer", 2))  # fmt: skip
    cause = titled(MEMORY, found(step(product("body", 4), other("norm", 16)), base))
    assert cause.why == (
        "in fp32, memory-bound work takes 24.1 of 42.1 ms (57 %): normalisation (14.1 ms), "
        "activation (10.0 ms); GEMMs and convolutions take 16.0 ms: if they took no time, the "
        "step would be 1.61 times faster"
    )


def test_memory_bound_work_that_is_left_is_found_in_the_present_step() -> None:
    left = step(product("body", 4), other("norm", 8))
    assert titled(MEMORY, found(left)).why.startswith("in amp, memory-bound work takes 8.00")
    assert titled(MEMORY, found(left, None)).why.startswith("in amp, memory-bound work takes 8.00")


def test_a_layer_that_is_slower_is_found_with_its_layout_changes() -> None:
    worse = step(product("stem", 24, conversion_s=6 * MS), product("body", 8), other("norm", 5))
    cause = titled(SLOWER, found(worse))
    assert cause.why == (
        "GEMMs and convolutions are slower in low precision in stem (24.0 ms in amp, 20.0 in "
        "fp32): 4.00 of 37.0 ms (11 %) lost; layout changes take 6.00 of 24.0 ms (25 %) of that"
    )
    assert cause.fix == "keep it in fp32"


def test_a_layer_that_has_a_number_for_a_name_reads_as_one() -> None:
    base = step(product("4", 20, "float32"), other("norm", 5))
    cause = titled(SLOWER, found(step(product("4", 24), other("norm", 5)), base))
    assert "in low precision in layer 4 (24.0 ms" in cause.why


def test_small_rates_and_long_times_are_told_apart() -> None:
    slow = [step(product("body", ms, "float32")) for ms in (2302.4, 2169.1)]
    larger = Counterfactual("larger batch", {"batch": 16}, slow[1], 8)
    (cause, *_) = fixes(slow[0], 8, [larger])
    assert "predicted 3.69 instead of 3.47 img/s: 2,169 instead of 2,302 ms" in cause.why


def test_layers_that_are_hardly_slower_are_not_named() -> None:
    assert found(step(product("stem", 20.5), product("body", 8), other("norm", 5))) == []
    tiny = [product("new", 0.001, "float32")], [product("new", 0.002)]
    bases = step(*FP32.ops, *tiny[0]), step(*AMP.ops, *tiny[1])
    assert found(bases[1], bases[0]) == []
    assert found(step(*AMP.ops, product("elsewhere", 2)), FP32) == []  # the baseline lacks it


def test_few_slower_layers_out_of_many_are_named() -> None:
    base = step(*(product(f"l{i}", 1, "float32") for i in range(5)), other("norm", 1))
    slow = step(*(product(f"l{i}", 1.1 + i / 10) for i in range(5)), other("norm", 1))
    cause = titled(SLOWER, found(slow, base))
    assert "in l4 (1.50 ms in amp, 1.00 in fp32), l3 (" in cause.why
    assert " and 2 more: 1.50 of 7.50 ms (20 %) lost" in cause.why
    assert cause.fix == "keep them in fp32"


def test_products_that_stay_in_float32_are_found() -> None:
    missed = step(product("stem", 4), product("head", 6, "float32"), other("norm", 5))
    cause = titled(MISSED, found(missed))
    assert cause.why == (
        "GEMMs and convolutions that amp leaves in float32 take 6.00 of 10.0 ms (60 %) of all of "
        "them: head (6.00 ms)"
    )
    assert "autocast" in cause.fix
    assert MISSED not in titles(found(missed, recipe="tf32"))
    share = 0.9 * MISSED_SHARE
    few = step(product("stem", 10 * (1 - share)), product("head", 10 * share, "float32"))
    assert MISSED not in titles(found(few))


def test_sizes_off_alignment_are_found() -> None:
    odd = step(product("stem", 4, misaligned="C=60"), product("body", 8), other("norm", 5))
    cause = titled(MISALIGNED, found(odd))
    assert cause.why == (
        "GEMMs and convolutions with unaligned sizes (C=60) take 4.00 of 17.0 ms (24 %): stem "
        "(4.00 ms)"
    )
    assert cause.fix.startswith("pad")
    ms = 0.9 * MISALIGNED_SHARE * 17
    few = step(product("stem", ms, misaligned="C=60"), product("body", 12 - ms), other("norm", 5))
    assert found(few) == []


def test_a_tf32_baseline_is_pointed_out() -> None:
    cause = titled(TF32, found(base_recipe="tf32"))
    assert cause.why == (
        "GEMMs and convolutions take 60.0 ms in tf32, which uses Tensor Cores too, and 12.0 in "
        "amp: the gain over fp32 is larger"
    )
    assert TF32 not in titles(found(FP32, FP32, recipe="fp32", base_recipe="tf32"))
    assert TF32 not in titles(found(base=None, base_recipe="tf32"))


def test_findings_follow_fixes_by_the_time_they_are_about() -> None:
    present = step(
        product("stem", 24), product("head", 2, "float32", misaligned="K=1001"), other("norm", 5)
    )
    graph = Counterfactual("CUDA graph", {"graph": True}, simulated(28), BATCH)
    listed = found(present, what_if=[graph], base_recipe="tf32")
    assert titles(listed) == ["CUDA graph", SLOWER, MISSED, MISALIGNED, TF32]


# ---------------------------------------------------------------- properties

gains = st.lists(st.tuples(st.floats(1, 100), st.integers(1, 1024)), max_size=8)


@settings(max_examples=150)
@given(gains)
def test_only_gains_above_the_least_are_proposed_in_order(steps: list[tuple[float, int]]) -> None:
    what_if = [
        Counterfactual(str(i), {"batch": n}, simulated(ms), n) for i, (ms, n) in enumerate(steps)
    ]
    gained = [cause.predicted_gain_pct for cause in found(what_if=what_if)]
    expected = [100 * (n / ms / (BATCH / 17) - 1) for ms, n in steps]
    wanted = sorted((gain for gain in expected if gain > MIN_GAIN_PCT), reverse=True)
    assert gained == pytest.approx(wanted)
