"""Measuring a network's layers: what is planned, and what the table says of planted times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from samples.measuring import result_of

from kernels.case import Case
from microbench import fmt
from microbench.network.trace import Traced, trace
from microbench.report import layers as report
from microbench.report.layers import MeasuredLayer, by_pass, layers_of
from microbench.report.parts import cells as texts_of
from microbench.report.parts import value
from microbench.report.payoff import maps_of, starts_of
from microbench.report.payoff import report as map_report
from microbench.requests import (
    Conditions,
    ConvRequest,
    LayersRequest,
    PayoffRequest,
    plan_layers,
    request_of,
)
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.types import Ceiling, LayerUse, NetworkUse, Ratio, Result, Run
from microbench.sweep import Group
from microbench.verdict import RUINED, gain

SOURCE = """
import torch
def net():
    n = torch.nn
    return n.Sequential(n.Conv2d(3, 8, 3, padding=1), n.ReLU(), n.Conv2d(8, 8, 3, padding=1),
                        n.ReLU(), n.Conv2d(8, 8, 3, padding=1), n.AdaptiveAvgPool2d(1),
                        n.Flatten(), n.Linear(8, 5))
def decoder():
    n = torch.nn
    layers = n.Linear(64, 256), n.Linear(256, 64), n.Linear(64, 256)
    return n.Sequential(*layers), torch.ones(2, 3, 64)
"""


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return trace("mine:net", 4, 16)


def planned(traced: Traced, **changes: str) -> tuple[list[Group], NetworkUse]:
    return plan_layers(traced, Conditions(**changes), "cuda")  # type: ignore[arg-type]


def run_of(
    groups: list[Group], network: NetworkUse, times: Mapping[str, float], **more: object
) -> Run:
    """Every launch takes what its precision takes, in microseconds."""
    results = []
    for group in groups:
        for case in group.cases:
            result = result_of(case, 1e-6 * times[case.precision_name])
            result = replace(result, bound="launch")
            if case.backend == "triton":
                result = replace(result, vs_backend={"cudnn": Ratio(2.0, (1.9, 2.1))})
            if case.precision_name == "fp16":
                ratios = {b: Ratio(times[b] / times["fp16"], None) for b in ("fp32", "tf32")}
                result = replace(result, speedup=ratios)
            results.append(result)
    return Run(("layers",), "now", {"name": "x"}, {}, results=tuple(results), network=network)


def test_times_of_a_step_add_up(traced) -> None:
    groups, network = planned(traced)
    run = run_of(groups, network, {"fp32": 30, "tf32": 12, "fp16": 10})
    layers = layers_of(run, network)
    assert [layer.label for layer in layers] == ["3x3 3>8 @16", "3x3 8>8 @16", "linear 8>5"]
    launches = 2 + 2 * 3 + 3  # the stem has no dgrad; the second convolution is there twice
    assert sum(layer.seconds("fp16") for layer in layers) == pytest.approx(launches * 10e-6)
    found = report.report(run, network)
    said = "\n".join(line.text for line in found.answer)
    assert "take 0.11 ms: 1.20 ±? times as fast as tf32, 3.00 ±? as fp32" in said
    assert "against tf32 3 of 3 layers not clearly faster" in said  # of one round
    assert [value(row.item, "s.fp16") for row in found.parts[0].rows] == pytest.approx(
        [launches * 10e-6, 6 * 10e-6, 3 * 10e-6, 2 * 10e-6]
    )
    again = run_from_json(json.loads(json.dumps(run_to_json(run))))
    assert again.network == network


def test_a_total_s_interval_comes_from_its_parts() -> None:
    case, known = cells()[0].cases[0], Ratio(2.0, (1.8, 2.4))
    own = result_of(replace(case, precision_name="fp16"), 1.0)
    own = replace(own, measurement=replace(own.measurement, ci95_s=(1.0, 1.0)))
    for ratios, interval in (
        ([known], (1.8, 2.4)), ([known] * 4, (1.9, 2.2)),  # independent errors
        ([known, Ratio(2.0, None)], None),
    ):  # fmt: skip
        layer = MeasuredLayer("any", 1)
        for which, ratio in zip("abcd", ratios, strict=False):
            layer.uses[which] = LayerUse("any", which, 1, ())
            layer.results[which, "fp16"] = replace(own, speedup={"tf32": ratio})
            layer.results[which, "tf32"] = result_of(replace(case, precision_name="tf32"), 2.0)
        assert layer.ratio("fp16", "fp32") is None
        found = layer.ratio("fp16", "tf32")
        assert found.ratio == 2.0
        assert found.ci95 == (interval and pytest.approx(interval))


def test_our_kernels_are_held_against_the_library_and_a_missing_layer_is_said(traced) -> None:
    groups, network = planned(traced, backend="library,triton")
    run = run_of(groups, network, {"fp32": 30, "tf32": 12, "fp16": 10})
    found = by_pass(run, network)
    assert [one.which for one in found] == ["fprop", "wgrad", "dgrad"]
    assert [(one.against, one.mean) for one in found] == [("cudnn", pytest.approx(2.0))] * 3
    groups, network = planned(traced)
    run = run_of(groups, network, {"fp32": 30, "tf32": 12, "fp16": 10})
    kept = tuple(r for r in run.results if r.case.op == "conv")
    assert "times as fast" in report.report(replace(run, results=kept), network).finding
    first = kept[0]
    failed = Result(first.case, "failed", "broke")
    broken = replace(run, results=(failed, *run.results[1:]))
    assert "ms over 2 of 3 layers" in report.report(broken, network).finding


@pytest.mark.usefixtures("traced")
def test_decode_moves_the_bytes_of_a_hand_count_and_says_where_split_k_gains() -> None:
    words = {"network_name": "mine:decoder", "tokens": "1,512"}
    request = request_of(LayersRequest, words)
    network, results = request.network("cuda"), list[Result]()
    layers = {f"gemm/m={m},n={n},k={k}/nt/normal": count
              for m in (1, 512) for n, k, count in ((256, 64, 2), (64, 256, 1))}  # fmt: skip
    assert {use.group: use.count for use in network.layers} == layers
    cases = [case for group in request.plan("cuda") for case in group.cases]
    assert len(cases) == 4 * 5
    assert {c.backend for c in cases if c.precision_name == "fp8-weights"} == {"triton"}
    for case in cases:
        bf16 = case.precision_name == "bf16"
        few = case.problem.mnk[0] == 1
        gain = 1.5 if case.precision_name == "fp8-weights" and few else 1.0
        result = result_of(case, replace(case, precision_name="bf16").min_bytes / 4e12 / gain)
        bound = "memory" if few else "compute"
        kernels = ("tile_splitK",) * (case.problem.mnk == (512, 64, 256))
        result = replace(result, min_bytes=case.min_bytes, bound=bound, kernels=kernels)
        same = {} if bf16 else {"bf16": Ratio(gain, (gain - 0.01, gain + 0.01))}
        results.append(replace(result, speedup=same))
    ceilings = (
        Ceiling("memory", "datasheet", byte_per_s=5e12),
        Ceiling("memory", "measured", byte_per_s=4.5e12),
    )
    run = Run((), "now", {"name": "x", "kind": "cuda"}, {}, "layers", {"tokens": "1,512"},
              ceilings=ceilings, results=tuple(results), network=network)  # fmt: skip
    found = report.report(run, network)
    whole, by_layer, *_ = found.parts
    first, last = (row.item for row in whole.rows)
    assert (first["tokens"], first["rate"], first["share"]) == pytest.approx((1, 4e12, 80))
    assert first["s"] * 4e12 == pytest.approx(3 * 2 * (64 + 64 * 256 + 256))
    assert last["flops"] * last["s"] == pytest.approx(3 * 2 * 512 * 64 * 256)
    said = "\n".join(line.text for line in found.answer)
    step = "the linear layers of a step of 1 token take 0.00 ms: 4.00 TB/s, 80 % of the datasheet's"
    assert f"cublas bf16: {step} bandwidth (mine:decoder, x)" in said, "whose bf16 it is"
    assert "times as fast: triton bf16 1.00 ±?, cublas fp8-e4m3 ~1 ±0.01, triton" in said
    assert "triton fp8-weights 1.50 ±0.01\n" in said
    assert "memory at 1 tokens, compute at 512; fp8-e4m3: 2 of 2 layers not clearly faster" in said
    assert [list(row) for row in texts_of(by_layer).texts] == [
        ["linear 64>256", "2", "1", ""], ["linear 256>64", "1", "1", "512"],
    ]  # fmt: skip
    cut = replace(run, results=run.results[:-5])  # the last layer of 512 tokens
    assert [row.item["tokens"] for row in report.report(cut, network).parts[0].rows] == [1]


# ---------------------------------------------------------------- break even


def cells() -> list[Group]:
    """Seven widths, two images, two batches."""
    asked = ConvRequest(Conditions(), "8..512", image="7,14", batch="8,16", layout="nhwc")
    return [group for group in asked.plan("cuda") if len(group.cases) > 1]


def result_with(case: Case, gains: Mapping[str, float]) -> Result:
    """A made-up result: fp16 is `gains[baseline]` times faster, known to 1 %."""
    result = result_of(case, 1e-5)
    if case.precision_name != "fp16":
        return result
    ratios = {name: Ratio(r, (0.99 * r, 1.01 * r)) for name, r in gains.items()}
    return replace(result, speedup=ratios, bound="launch")


def test_the_map_says_from_which_width_it_is_faster() -> None:
    results: list[Result] = []
    for case in (case for group in cells() for case in group.cases):
        starts = 64 if case.problem.dims["h"] == 7 else 256
        gains = {"fp32": 2.0, "tf32": 1.2 if case.problem.dims["c"] >= starts else 0.9}
        results.append(result_with(case, gains))
    run = Run((), "now", {"name": "x", "kind": "cuda"}, {}, "payoff", results=tuple(results))
    maps = maps_of(run)
    assert {key[2]: dict(starts_of(some)) for key, some in maps.items()} == {
        "tf32": {"64": 2, "256": 2}, "fp32": {"8": 4}
    }  # fmt: skip
    found = map_report(run)
    assert found.finding.startswith(
        "fp16 is faster than tf32 from 64 channels for 2 of 4 sizes, 256 for 2"
    )
    ruined = [
        replace(r, speedup={"tf32": Ratio(9.0, (1.0, 81.0))})
        if r.case.problem.dims["h"] == 7 and r.case.problem.dims["c"] == 512 and r.speedup else r
        for r in results
    ]  # fmt: skip
    found = map_report(replace(run, results=tuple(ruined)))
    said = [line.text for line in found.answer]
    assert said[0].startswith("fp16 is faster than tf32 from 256 channels for all 2 sizes")
    assert any(line.startswith("no verdict on fp16 against tf32") for line in said)


def test_the_map_of_linear_layers_gives_an_answer_for_each_way_to_launch(tmp_path: Path) -> None:
    """As launched it pays from 4096 features, as a graph from 2048, of FP8 operands everywhere."""
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,k,n,layout\n64,32,16,quantised\n")
    (group,) = request_of(PayoffRequest, {"op": "linear", "shapes": shapes}).plan("cuda")
    assert group.name == "linear/m=64,k=32,n=16,pass=step/quantised/normal"
    starts = {"launched": 4096**2, "graph": 2048**2, "quantised": 0}
    words = {"op": "linear", "channels": "1024..8192,2048x4096", "dtype": "fp8-row"}
    results: list[Result] = []
    for case in (c for g in request_of(PayoffRequest, words).plan("cuda") for c in g.cases):
        m, k, n = (int(case.problem.dims[name]) for name in "mkn")
        faster = k * n >= starts[case.problem.layout] and m > 512
        ratio = 1.2 if faster else 0.8
        speedup = {"bf16": Ratio(ratio, (0.99 * ratio, 1.01 * ratio))}
        own = case.precision_name != "bf16"
        results.append(replace(result_of(case, 1e-5), speedup=speedup if own else {}))
    run = Run((), "now", {"name": "x", "kind": "cuda"}, {}, "payoff", results=tuple(results))
    assert run_from_json(json.loads(json.dumps(run_to_json(run)))) == run
    found = {key[0]: starts_of(some) for key, some in maps_of(run).items()}
    assert found == {
        "launched": {"4096": 2, "": 1},
        "graph": {"2048": 2, "": 1},
        "quantised": {"1024": 2, "": 1},
    }
    report = map_report(run)
    assert report.finding == (
        "fp8-row pays from 4096 features on as launched, from 2048 features on as a CUDA graph; it "
        "is 1.20 times as fast as bf16 without casts (x, 16384 tokens, others below)"
    )
    single = [
        r for r in results if fmt.size(r.case) == "1024" and r.case.problem.layout == "launched"
        and r.case.problem.setting["batch"] != "512"
    ]  # fmt: skip
    report = map_report(replace(run, results=tuple(single)))
    assert report.finding == (
        "fp8-row is 0.80 ±0.01 times as fast as bf16 as launched "
        "(x, 1024 features, 16384 tokens, others below)"
    )


def test_gain_needs_the_whole_interval_and_one_beyond_30_per_cent_shows_nothing() -> None:
    row, known = result_of(cells()[0].cases[0]), Ratio(4.0, (3.9, 4.1))
    assert gain(row, Ratio(1.5, (1.4, 1.6))) == gain(row, known) == "faster"
    assert gain(row, Ratio(1.1, (0.9, 1.3))) == "same"
    assert gain(row, Ratio(0.88, (0.755, 0.991))) == "same", "not by 2 %"
    assert gain(row, Ratio(0.5, (0.4, 0.6))) == "slower"
    assert gain(row, Ratio(1.5, None)) == gain(row, None) == "unknown"
    assert gain(row, Ratio(4.0, (3.0, 5.33))) == gain(row, Ratio(0.25, (0.19, 0.33))) == RUINED
    measured = row.measurement
    own = replace(row, measurement=replace(measured, ci95_s=(1e-9, 2 * measured.median_s)))
    assert gain(own, known) == RUINED, "its own time is as uncertain as that"
