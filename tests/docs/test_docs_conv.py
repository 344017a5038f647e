"""What docs/when-fp16-pays.md, docs/results.md and docs/kernels.md claim of kernels is what the
committed run files say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import pytest
from samples.conv_tables import (
    LeftOut,
    ablation_table,
    classes_table,
    left_out,
    payoff_table,
    rival_table,
)

from kernels import OPS, is_library
from kernels.case import Case
from kernels.gemm.triton.config import Problem, choices, tile_kind
from kernels.tile_model import short_list
from microbench.fmt import size
from microbench.libraries import Beside, beside
from microbench.peak import peak_of
from microbench.report.layers_table import against_library, layers_of, layers_summary
from microbench.report.map_table import map_verdict
from microbench.results.runfile import read_run
from microbench.results.types import Result, Run
from microbench.roofline.causes import conversion_share
from microbench.roofline.explain import annotate
from microbench.timing.stats import half_width_pct

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
PAGE = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("when-fp16-pays.md", "notes/result-tables.md")
)
RESULTS = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("results.md", "notes/result-tables.md")
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
KERNELS = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
TECHNIQUES = {
    "`gluon`": "no-gluon",
    "`skinny`": "no-skinny",
    "`split_k`": "no-split",
    "tiles of 80, 96, 144, 160 and 192 columns": "no-widths",
}
CONV_RUNS = ("conv-channels", "conv-fine", "conv-fp16", "payoff-conv", "layers-resnet50")


@cache
def run(name: str) -> Run:
    return read_run(H200 / f"{name}.json")


def by_arm(name: str) -> dict[tuple[str, str, int, str], Result]:
    return {
        (str(r.case.dims["pass"]), r.case.layout, r.case.dim("c"), r.case.precision_name): r
        for r in run(name).results
    }


@pytest.mark.parametrize("name", ["conv-channels", "conv-fine"])
def test_the_payoff_tables_are_the_run_files(name: str) -> None:
    assert payoff_table(run(name), "fp16") in PAGE


def test_the_main_command_s_table_is_the_run_file_s() -> None:
    assert payoff_table(run("conv-fp16"), "fp16") in RESULTS
    gains = [r.speedup["fp32"].ratio for r in run("conv-fp16").results
             if r.case.precision_name == "fp16" and r.case.layout == "nhwc" and
             r.case.dim("c") >= 512]  # fmt: skip
    assert "13 to 18 times" in PAGE
    assert 12.5 < min(gains) < max(gains) < 18.5


def test_how_much_of_nchw_is_layout_changes() -> None:
    def shares(results: list[Result]) -> str:
        found = [100 * (conversion_share(r) or 0.0) for r in results]
        return f"{min(found):.0f} to {max(found):.0f} %"

    narrow = [
        arm
        for (which, layout, width, precision), arm in by_arm("conv-channels").items()
        if (layout, precision) == ("nchw", "fp16") and which != "wgrad" and 16 <= width <= 128
    ]
    assert len(narrow) == 8
    assert f"From 16 to 128 channels, {shares(narrow)} of their kernel time" in PAGE
    main = [
        r
        for r in run("conv-fp16").results
        if (r.case.layout, r.case.precision_name) == ("nchw", "fp16") and r.case.dim("c") >= 16
    ]
    assert f"{shares(main)} of the kernel time changes the layout" in RESULTS


def test_ranges_of_the_summary() -> None:
    arms = by_arm("conv-channels")

    def gains(which: str, baseline: str, least: int) -> list[float]:
        return [
            arms[which, "nhwc", c, "fp16"].speedup[baseline].ratio
            for c in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
            if c >= least
        ]

    for which in ("fprop", "dgrad"):
        assert all(6.9 < g < 9.1 for g in gains(which, "fp32", 256))
    assert all(3.45 < g < 5.05 for g in gains("wgrad", "fp32", 256))
    assert all(1.1 < g < 2.3 for which in ("fprop", "dgrad") for g in gains(which, "tf32", 8))
    exact = {
        r.case.group
        for r in run("payoff-conv").results
        if any("tf32 was enabled" in warning.symptom for warning in r.warnings)
    }
    assert f"in {len(exact)} of 87 cells" in PAGE
    algorithms = {c: arms["wgrad", "nhwc", c, "fp32"].kernels for c in (128, 512, 2048)}
    assert all("winograd" in " ".join(k).lower() for k in algorithms.values())


def test_two_runs_of_one_case_differ_by_the_kernels_that_cudnn_chose() -> None:
    seen: dict[str, list[Result]] = {}
    for name in CONV_RUNS:
        for result in run(name).results:
            if is_library(result.case) and result.case.op == "conv":
                seen.setdefault(result.case.key, []).append(result)
    pairs = [found[:2] for found in seen.values() if len(found) > 1]
    moved = [(a, b) for a, b in pairs if abs((a.median_s or 0) / (b.median_s or 1) - 1) > 0.03]
    other = [(a, b) for a, b in moved if a.kernels != b.kernels]
    said = f"share {len(pairs)} cases: in {len(moved)} of them"
    assert said in PAGE
    assert f"in {len(other)} of those" in PAGE


def test_the_map_in_words_is_the_run_file_s() -> None:
    for line in map_verdict(run("payoff-conv")):
        assert f"- {line}" in PAGE
    cells = {r.case.group for r in run("payoff-conv").results}
    assert f"{len(cells)} cells of {24 * 7 * 2}" in PAGE


def test_the_network_s_summary_and_every_layer_s_ratio_are_the_run_file_s() -> None:
    found = run("layers-resnet50")
    assert found.network is not None
    for line in layers_summary(found, found.network):
        assert line.plain.strip() in PAGE
    assert rival_table(found, found.network) in PAGE
    layers = [layer for layer in layers_of(found, found.network) if "linear" not in layer.label]
    assert len(layers) == 23
    for layer in layers:
        for baseline in ("fp32", "tf32"):
            base, own = layer.seconds(baseline), layer.seconds("fp16")
            assert base
            assert own
            assert base / own >= 1.3


def test_triton_s_means_are_the_run_file_s() -> None:
    found = run("layers-resnet50")
    assert found.network is not None
    said = {line.split("fp16 ")[1].split(":")[0]: line for line in
            against_library(found, found.network)}  # fmt: skip
    for which, line in said.items():
        mean = line.split(": ")[1].split(" ")[0]
        assert f"{which} {mean}" in RESULTS


def test_the_cliff_is_the_run_file_s() -> None:
    fine = by_arm("conv-fine")
    for width in (52, 56, 57, 60, 61, 63, 64, 65, 68, 71, 72):
        rates = [
            f"{(fine['fprop', 'nhwc', width, p].flop_per_s or 0) / 1e12:.1f}"
            for p in ("fp32", "tf32", "fp16")
        ]
        fp16 = fine["fprop", "nhwc", width, "fp16"]
        gains = [f"{fp16.speedup[b].ratio:.2f}" for b in ("fp32", "tf32")]
        assert f"| {' | '.join([str(width), *rates, *gains, str(fp16.bound)])} |" in PAGE
    off, tf32, padded = (fine["fprop", "nhwc", c, p].median_s or 0 for c, p in
                         ((60, "fp16"), (60, "tf32"), (64, "fp16")))  # fmt: skip
    assert "1.5 times as long as TF32. Padded to 64 it is 3 times faster" in PAGE
    assert off / tf32 == pytest.approx(1.5, abs=0.05)
    assert off / padded == pytest.approx(3.0, abs=0.1)


def test_sentences_about_the_sweep() -> None:
    arms = by_arm("conv-channels")
    widths = [8 * 2**i for i in range(9)]
    for which in ("fprop", "dgrad", "wgrad"):
        for width in widths:
            fp16 = arms[which, "nhwc", width, "fp16"]
            for baseline in ("fp32", "tf32"):
                ratio = fp16.speedup[baseline]
                assert ratio.ci95 is not None
                assert ratio.ci95[0] > 1
    assert arms["fprop", "nchw", 8, "fp16"].speedup["fp32"].ratio < 1
    rates = [(arms[which, "nhwc", 2048, "fp32"].flop_per_s or 0) / 1e12
             for which in ("fprop", "wgrad")]  # fmt: skip
    assert f"{rates[0]:.0f} (fprop) to {rates[1]:.0f} (wgrad)" in PAGE
    assert all(any("fft" in k for k in arms["fprop", "nhwc", c, "fp32"].kernels)
               for c in widths if c >= 64)  # fmt: skip
    exact = arms["fprop", "nhwc", 8, "tf32"]
    assert any("tf32 was enabled" in warning.symptom for warning in exact.warnings)


def test_the_published_selftest_is_whole() -> None:
    found = json.loads((H200 / "selftest.json").read_text())
    assert found["counted"] == sum(not row.get("held_out") for row in found["rows"])
    assert not found["absent"]


@pytest.mark.parametrize("name", [*CONV_RUNS, "gemm-fp16", "gemm-all"])
def test_published_explanations_are_what_this_version_says(name: str) -> None:
    found = run(name)
    assert annotate(found).results == found.results


@pytest.mark.parametrize("name", CONV_RUNS)
def test_a_published_convolution_is_right_and_physical(name: str) -> None:
    found = run(name)
    assert found.finished_at
    for result in found.results:
        assert result.status == "ok"
        op = OPS[result.case.op]
        assert (result.flops, result.min_bytes) == (
            op.flops(result.case),
            op.min_bytes(result.case),
        )
        assert result.rel_error is not None
        assert 0 < result.rel_error <= OPS[result.case.op].tolerance(result.case)
        assert result.byte_per_s is not None
        assert 0 < result.byte_per_s < 8e12
        if result.case.precision_name in ("fp16", "bf16"):
            assert result.ceiling_pct is not None
            assert 0 < result.ceiling_pct <= 105


def run_of(name: str) -> Run:
    return read_run(H200 / f"{name}.json")


@cache
def rows_of(name: str) -> list[Beside]:
    """Our kernels beside the better library."""
    found = run_of(name)
    rows = [beside(r) for r in found.results if r.case.backend == "triton"]
    return [row for row in rows if row]


def by_width(which: str) -> dict[int, Beside]:
    return {row.result.case.dim("c"): row for row in rows_of(f"conv-fine-{which}")}


def mean(rows: Iterable[Beside]) -> float:
    return geometric_mean([row.ratio.ratio for row in rows])


def share(row: Beside, kernel: str) -> float:
    """Of the time of a launch's kernels, those of this name."""
    result = row.result
    own = sum(s for s, name in zip(result.kernels_s, result.kernels, strict=True) if name == kernel)
    return own / sum(result.kernels_s)


def test_classes_of_shapes_outside_the_tables_are_the_run_files() -> None:
    runs = [run_of(name) for name in ("shapes-gemm", "shapes-conv")]
    assert classes_table(runs) in RESULTS


def test_the_best_of_many_configurations_is_that_of_the_times() -> None:
    """The library's time over the best of a short list, and over the best of all that was timed."""
    listed, best = list[float](), list[float]()
    for row in map(json.loads, (ROOT / "tests/samples/gemm_times.jsonl").read_text().splitlines()):
        size = {dim: row[dim] for dim in "mnk"}
        if any(side % 8 for side in size.values()):
            continue
        problem = Problem.of(Case("gemm", size, "fp16", "triton", row["layout"]))
        ranked = [c for c in choices(problem, (9, 0), 132) if c.label in row["us"]]
        short = min(row["us"][config.label] for config in short_list(ranked, tile_kind))
        listed.append(row["library_us"] / short)
        best.append(row["library_us"] / min(row["us"].values()))
    said = " ".join(RESULTS.split())
    assert f"At {len(best)} other aligned GEMMs, to which our model was fitted" in said
    assert f"five configurations reached {geometric_mean(listed):.2f}, the best of about 20" in said
    assert f"and the first of each kernel) {geometric_mean(best):.2f}" in said


def test_the_slowest_convolutions_are_the_run_file_s() -> None:
    rows = sorted(rows_of("shapes-conv"), key=lambda row: row.ratio.ratio)[:4]
    said = RESULTS.split("- Slowest convolutions, all with a stride of 2: ")[1].split("\n\n")[0]
    shapes = re.findall(r"(\d+x\d+) of (\d+) to (\d+)(?: channels)? \((\d.\d+)\)", said)
    dims = [row.result.case.dims for row in rows]
    assert shapes == [
        (f"{d['r']}x{d['s']}", str(d["c"]), str(d["k"]), f"{row.ratio.ratio:.2f}")
        for d, row in zip(dims, rows, strict=True)
    ]
    assert [d["pass"] for d in dims] == ["fprop", *["wgrad"] * 3]
    assert {d["stride"] for d in dims} == {2}


def test_4099_is_the_run_file_s() -> None:
    (row,) = rows_of("gemm-4099")
    low, high = row.ratio.ci95 or (0.0, 0.0)
    half = max(high - row.ratio.ratio, row.ratio.ratio - low)
    assert row.library == "cublas"
    assert f"ours is {row.ratio.ratio:.2f} ±{half:.2f} times as fast as cuBLAS" in RESULTS


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("fprop", "forward"),
        ("dgrad", "gradient of the input"),
        ("wgrad", "gradient of the weights"),
    ],
)
def test_the_means_over_every_width_are_the_run_files(which: str, words: str) -> None:
    rows = by_width(which)
    assert len(rows) == 72
    said = " ".join(RESULTS.split("Every width from 1 to 72")[1].split("cuDNN is")[0].split())
    assert f"{words} {mean(rows.values()):.2f} ([conv-fine-{which}.json]" in said
    assert 1.85 < mean(rows.values()) < 2.15
    assert "average twice cuDNN's speed" in README


def test_the_widths_at_which_cudnn_is_faster_are_the_run_files() -> None:
    said = " ".join(RESULTS.split("Every width from 1 to 72")[1].split("![")[0].split())
    ratios = {
        which: {width: row.ratio.ratio for width, row in by_width(which).items()}
        for which in ("fprop", "dgrad", "wgrad")
    }
    slower = {which: [w for w, x in found.items() if x < 1] for which, found in ratios.items()}
    worst = {which: f"({min(found.values()):.2f} at worst)" for which, found in ratios.items()}
    assert slower == {"fprop": [24, 56], "dgrad": [24, 40, 56], "wgrad": []}
    assert f"cuDNN is faster forward at 24 and 56 channels {worst['fprop']}" in said
    assert f"in the gradient of the input at 24, 40 and 56 {worst['dgrad']}" in said
    eights = [geometric_mean([found[w] for w in range(8, 73, 8)]) for found in ratios.values()]
    assert "multiples of 8 are {:.2f}, {:.2f} and {:.2f}.".format(*eights) in said


@pytest.mark.parametrize(
    ("name", "layout", "title"),
    [
        ("conv-powers", "nhwc", "every power of two"),
        ("conv-powers", "nchw", "every power of two"),
        ("conv-groups", "nhwc", "32 groups"),
        ("conv-depthwise", "nhwc", "depthwise"),
    ],
)
def test_powers_groups_and_depthwise_are_the_run_files(name: str, layout: str, title: str) -> None:
    rows = [row for row in rows_of(name) if row.result.case.layout == layout]
    means = [
        f"{mean(row for row in rows if row.result.case.dims['pass'] == which):.2f}"
        for which in ("fprop", "dgrad", "wgrad")
    ]
    least = min(rows, key=lambda row: row.ratio.ratio)
    case = least.result.case
    said = f"| {least.ratio.ratio:.2f} ({case.dims['pass']}, {case.dim('c')}) |"
    lines = [line for line in RESULTS.splitlines() if line.startswith(f"| [{title}")]
    (line,) = (line for line in lines if f"{layout.upper()}]" in line)
    assert line.endswith(f"| {' | '.join(means)} {said}")


def test_what_is_said_of_wide_and_depthwise_convolutions_is_the_run_files() -> None:
    rows = [(row.result.case, row.ratio.ratio) for row in rows_of("conv-powers")]
    powers = {case.dim("c"): ratio for case, ratio in rows
              if (case.dims["pass"], case.layout) == ("wgrad", "nhwc")}  # fmt: skip
    slower = [ratio for width, ratio in powers.items() if width >= 64]
    assert [width for width, ratio in powers.items() if ratio >= 1] == [8, 16, 32]
    said = f"take {1 / max(slower):.1f} to {1 / min(slower):.1f} times as long as cuDNN's"
    assert said in RESULTS
    ratios = [row.ratio.ratio for row in rows_of("conv-depthwise")]
    assert f"ours reach {min(ratios):.2f} to {max(ratios):.2f} times cuDNN's speed" in RESULTS


def test_fp8_convolutions_are_the_run_file_s() -> None:
    found = {(r.case.dims["pass"], r.case.precision_name, r.case.dim("c")): r.flop_per_s or 0
             for r in run_of("conv-fp8").results if r.case.backend == "triton"}  # fmt: skip
    gains = []
    for width in (64, 128, 256, 512, 1024, 2048):
        cells = [found[which, precision, width] for which in ("fprop", "dgrad")
                 for precision in ("fp8-e4m3", "fp16")]  # fmt: skip
        assert f"| {width} | {' | '.join(f'{cell / 1e12:,.0f}' for cell in cells)} |" in RESULTS
        gains += [cells[0] / cells[1], cells[2] / cells[3]]
    assert f"reach {min(gains):.1f} to {max(gains):.1f} times the TFLOP/s of our FP16" in RESULTS


def test_what_the_quick_tune_gains_is_the_run_files() -> None:
    tuned, model = ({r.case.group: r for r in read_run(H200 / f"ablation/{name}.json").results}
                    for name in ("all", "no-tune"))  # fmt: skip
    loss = {key: (model[key].median_s or 0) / (tuned[key].median_s or 1) for key in tuned}
    other = [key for key in tuned if tuned[key].variant != model[key].variant]
    most = max(other, key=lambda key: loss[key])
    gain = 100 * (geometric_mean(loss.values()) - 1)
    assert f"gained {gain:.0f} % on average over the model's first choice" in KERNELS
    rest = 100 * (geometric_mean(sorted(loss.values())[:-3]) - 1)
    assert f"without three shapes {rest:.0f} %" in KERNELS
    last = sorted(loss, key=lambda key: loss[key])[-3:]
    assert all((model[key].variant or "").startswith("pointer") for key in last)
    said = f"up to {loss[most]:.2f} times ({size(tuned[most].case)}: `{tuned[most].variant}`"
    assert f"{said} against `{model[most].variant}`" in KERNELS
    assert f"another configuration than the model at {len(other)}\n  of the {len(loss)}" in KERNELS


def test_the_rates_of_short_bursts_are_the_run_file_s() -> None:
    found = read_run(H200 / "peak-burst.json").results
    for precision in ("fp16", "bf16", "tf32", "fp8-e4m3", "int8"):
        peak = peak_of([r for r in found if r.case.precision_name == precision])
        assert peak
        rate = f"{(peak.flop_per_s or 0) / 1e12:,.0f}"
        assert f"{precision} {rate}" in RESULTS or f"{precision}\n{rate}" in RESULTS


def test_few_filters_are_the_run_file_s() -> None:
    (row,) = (row for row in rows_of("shapes-conv")
              if (row.result.case.dim("c"), row.result.case.dim("k")) == (128, 8))  # fmt: skip
    assert (row.result.variant or "").startswith("wgrad_exchanged")
    assert f"5x5 of 128 to 8 channels is then {row.ratio.ratio:.1f} times" in KERNELS


@cache
def without(technique: str) -> list[LeftOut]:
    folder = H200 / "ablation"
    return left_out(
        read_run(folder / "all.json"), read_run(folder / f"{TECHNIQUES[technique]}.json")
    )


def test_what_each_technique_gains_is_the_run_files() -> None:
    folder = H200 / "ablation"
    runs = {name: read_run(folder / f"{file}.json") for name, file in TECHNIQUES.items()}
    assert ablation_table(read_run(folder / "all.json"), runs) in KERNELS
    for name in TECHNIQUES:
        assert len(without(name)) == 32
        assert all(row.used <= row.other for row in without(name))  # none ran what was left out
    gains = [100 * (geometric_mean([row.loss for row in without(n)]) - 1) for n in TECHNIQUES]
    gluon, skinny, split, widths = gains
    assert f"**`split_k` gains most**: {split:.0f} % on average" in KERNELS
    assert f"`gluon` {gluon:.0f} %, its tiles of these widths {widths:.0f} %" in KERNELS
    assert f"`skinny` {skinny:.1f} % (only one of the shapes ran it)" in KERNELS


def test_the_noise_of_the_techniques_is_the_run_files() -> None:
    rows = [row for name in TECHNIQUES for row in without(name)]
    same = max(abs(row.loss - 1) for row in rows if not row.other)
    assert f"times differ by up to {100 * same:.0f} %" in KERNELS
    half, throttle = max(
        (half_width_pct(m.median_s, m.ci95_s), m.throttle)
        for row in rows
        for m in (row.full.measurement, row.without.measurement)
        if m and m.ci95_s
    )
    assert f"intervals reach ±{half:.0f} % where the power limit" in KERNELS
    assert "power cap" in throttle
    luck = [row.loss for row in rows if row.other and not row.used]
    assert f"shapes took {min(luck):.2f} to {max(luck):.2f} times as long" in KERNELS
