"""Kernels: figures of README, results, kernels and when-fp16- and when-fp8-pays are the files'."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import geometric_mean

from samples.pages import Row, run, says, shows, table

from kernels import is_library
from microbench import fmt
from microbench.report.layers import by_pass, layers_of, total_of
from microbench.report.layers import report as layers_report
from microbench.report.payoff import maps_of, starts_of
from microbench.report.payoff import report as payoff_report
from microbench.results.types import Ratio, Result
from microbench.roofline.explain import conversion_share
from microbench.verdict import (
    MIN_GAIN,
    BesideLibrary,
    beside_library,
    gain,
    payoffs,
    summaries,
)

FP16, RESULTS, TABLES = "docs/when-fp16-pays", "docs/results", "docs/notes/result-tables"
KERNELS, README, FP8 = "docs/kernels", "README", "docs/when-fp8-pays"
WIDTHS = [8 * 2**i for i in range(9)]
PASSES = ("fprop", "dgrad", "wgrad")
CONV_RUNS = ("conv-channels", "conv-fine", "conv-fp16", "payoff-conv", "layers-resnet50")


def peak_of(name: str, precision: str) -> Result:
    """The highest rate among those sampled in many rounds: a short reading may be lucky."""
    found = [r for r in run(name).results if r.measurement and r.case.precision_name == precision]
    rounds = {id(r): len(r.measurement.blocks) for r in found if r.measurement}
    long = [r for r in found if rounds[id(r)] >= max(rounds.values()) / 2]
    return max(long, key=lambda r: r.flop_per_s or 0.0)


def variants(name: str) -> dict[tuple[str, str, int, str], Result]:
    """By pass, layout, channels and precision."""
    return {
        (
            str(r.case.problem.dims["pass"]),
            r.case.problem.layout,
            r.case.problem.dims["c"],
            r.case.precision_name,
        ): r
        for r in run(name).results
    }


def tflops(result: Result) -> float:
    return (result.flop_per_s or 0) / 1e12


@cache
def ours(name: str) -> list[BesideLibrary]:
    """Our kernels beside the better library."""
    rows = [beside_library(r) for r in run(name).results if r.case.backend == "triton"]
    return [row for row in rows if row]


def mean(rows: Iterable[BesideLibrary]) -> float:
    return geometric_mean([row.ratio.ratio for row in rows])


def test_what_is_said_of_gemm() -> None:
    for one in payoffs(run("gemm-fp16"), "fp16"):
        ratios = [row.ratio.ratio for row in one.rows]
        ends = f"{min(ratios):.2f} to {max(ratios):.3g}"
        says(RESULTS, "GEMM: FP16 is", ends)
    largest = max(r.flops for r in run("gemm-fp16").results)
    errors = {r.case.precision_name: f"{r.total_error:.1e}" for r in run("gemm-fp16").results
              if r.flops == largest and is_library(r.case)}  # fmt: skip
    says(RESULTS, "relative error", errors["fp16"], errors["fp32"])
    (triton,) = summaries(run("gemm-fp16"))
    ends = [f"{one.ratio.ratio:.2f} at {one.result.case.problem.size}"
            for one in (triton.least, triton.most)]  # fmt: skip
    says(RESULTS, "Our Triton kernels in fp16", f"{triton.mean:.2f}", *ends)
    found = run("gemm-triton")
    by = {
        (r.case.backend, r.case.precision_name, r.case.problem.dims["m"]): r for r in found.results
    }
    tiles = {1536: (144, 128), 3072: (192, 192)}
    for m, (rows, columns) in tiles.items():
        assert f"{rows}x{columns}" in " ".join(by["cublas", "fp16", m].kernels)
    doubling = [by["triton", "fp16", 256 * 2**i] for i in range(6)]
    alone = [row.ratio.ratio for r in doubling if (row := beside_library(r))]
    says(
        TABLES,
        "At 1536 and 3072 cuBLAS wins",
        *tiles,
        *tiles[1536],
        *tiles[3072],
        geometric_mean(alone),
    )
    int8 = [by["triton", "int8", 256 * 2**i].vs_backend for i in range(6)]
    means = [geometric_mean([one[name].ratio for one in int8]) for name in ("cublas", "cublaslt")]
    says(TABLES, "torch's int8 GEMM", *means, int8[4]["cublaslt"].ratio)
    (row,) = ours("gemm-4099")
    assert row.library == "cublas"
    says(RESULTS, "at 4099 x 4099 x 4099", fmt.interval(row.ratio))
    for name, words in (("peak", "The highest rates"), ("peak-burst", "In short bursts")):
        peaks = {p: peak_of(name, p) for p in ("fp16", "bf16", "tf32", "fp8-e4m3", "int8")}
        says(RESULTS, words, *(f"{p} {tflops(peak):,.0f}" for p, peak in peaks.items()))
        shares = [peak.efficiency_pct["datasheet"] for peak in peaks.values()]
        if name == "peak":
            says(RESULTS, words, min(shares), max(shares))
    times = {r.case.problem.dims["m"]: r.median_s or 0 for r in run("gemm-alignment").results
             if (r.case.backend, r.case.precision_name) == ("cublas", "fp16")}  # fmt: skip
    shown = (1e6 * times[4096], 1e3 * times[4095], 1e3 * times[4097])
    says("docs/tutorial-kernels", "On cuBLAS 4096 takes", *shown)
    for name, words in (("own-gemm", "GEMM is"), ("own-conv", "the convolution")):
        found, *_ = summaries(run(name))
        says("docs/own-kernels", words, found.mean)


def test_what_is_said_of_fp16_in_convolutions() -> None:
    wide, fine = variants("conv-channels"), variants("conv-fine")

    def gains(base: str, *passes: str) -> list[float]:
        return [wide[which, "nhwc", c, "fp16"].speedup[base].ratio for which in passes
                for c in (WIDTHS if base == "tf32" else WIDTHS[5:])]  # fmt: skip

    forward, wgrad = gains("fp32", "fprop", "dgrad"), gains("fp32", "wgrad")
    says(FP16, "NHWC (channels_last)", *(round(g) for g in (min(forward), max(forward))),
         min(wgrad), round(max(wgrad)))  # fmt: skip
    assert 1.1 < min(gains("tf32", "fprop", "dgrad")) < max(gains("tf32", "fprop", "dgrad")) < 2.3
    for which in PASSES:
        for width in WIDTHS:
            ratios = wide[which, "nhwc", width, "fp16"].speedup
            assert all((ratios[base].ci95 or (0, 0))[0] > 1 for base in ("fp32", "tf32"))
    assert wide["fprop", "nchw", 8, "fp16"].speedup["fp32"].ratio < 1
    for c, which, name in ((64, "fprop", "fft"), (128, "wgrad", "winograd")):
        used = [" ".join(wide[which, "nhwc", w, "fp32"].kernels) for w in WIDTHS if w >= c]
        assert all(name in kernels.lower() for kernels in used)
    rates = [tflops(wide[which, "nhwc", 2048, "fp32"]) for which in ("fprop", "wgrad")]
    batch_16 = [r.speedup["fp32"].ratio for r in run("conv-fp16").results
                if (r.case.precision_name, r.case.problem.layout) == ("fp16", "nhwc")
                and r.case.problem.dims["c"] >= 512]  # fmt: skip
    faster = round(min(batch_16)), round(max(batch_16))
    says(TABLES, "fp32 is IEEE float32", *rates, *faster)
    says(FP16, "fp32 is IEEE float32", *faster)
    exact = {r.case.group for r in run("payoff-conv").results
             if any("tf32 was enabled" in warning.symptom for warning in r.warnings)}  # fmt: skip
    cells = {r.case.group for r in run("payoff-conv").results}
    says(FP16, "cuDNN picked an IEEE kernel", len(exact), len(cells))
    says(FP16, "bisected the boundary", len(cells), 24 * 7 * 2)
    for (layout, _, base), some in maps_of(run("payoff-conv")).items():
        page, starts = FP16 if layout == "nhwc" else TABLES, starts_of(some)
        assert starts.total() == len(some)
        widths = [f"from {width} channels up for {starts[width]}" for width in starts]
        says(page, f"{layout}: fp16 is faster than", base, *widths)
    off, tf32, padded = (fine["fprop", "nhwc", c, p].median_s or 0
                         for c, p in ((60, "fp16"), (60, "tf32"), (64, "fp16")))  # fmt: skip
    says(FP16, "Channels that are not a multiple of 8", off / tf32, round(off / padded))
    shows(FP16, [cliff(width) for width in (56, 60, 64, 68)])


def cliff(width: int) -> Row:
    """Rates of the forward pass at a width around 60."""
    one = {p: variants("conv-fine")["fprop", "nhwc", width, p] for p in ("fp32", "tf32", "fp16")}
    gains = [f"{one['fp16'].speedup[base].ratio:.2f}" for base in ("fp32", "tf32")]
    return [str(width), *(f"{tflops(r):.1f}" for r in one.values()), *gains, str(one["fp16"].bound)]


def test_how_much_of_nchw_changes_the_layout() -> None:
    shares = [
        100 * (conversion_share(result) or 0)
        for (which, layout, width, precision), result in variants("conv-channels").items()
        if (layout, precision) == ("nchw", "fp16") and which != "wgrad" and 16 <= width <= 128
    ]
    says(FP16, "From 16 to 128 channels", min(shares), max(shares))


def test_two_runs_of_one_case_differ_by_the_kernels_that_cudnn_chose() -> None:
    seen: dict[str, list[Result]] = {}
    for result in (result for name in CONV_RUNS for result in run(name).results):
        if is_library(result.case) and result.case.op == "conv":
            seen.setdefault(result.case.key, []).append(result)
    pairs = [found[:2] for found in seen.values() if len(found) > 1]
    moved = [(a, b) for a, b in pairs if abs((a.median_s or 0) / (b.median_s or 1) - 1) > 0.03]
    other = [(a, b) for a, b in moved if a.kernels != b.kernels]
    says(TABLES, "An interval covers one run", len(pairs), len(moved), len(other))
    says(FP16, "What the ± does not cover", len(moved), len(pairs))


def test_the_layers_of_resnet50() -> None:
    found = run("layers-resnet50")
    assert found.network is not None
    whole = total_of(layers_of(found, found.network), bool)
    for base in ("fp32", "tf32"):
        times = [fmt.as_ms(1e3 * (whole.seconds(name) or 0)) for name in ("fp16", base)]
        ratio = whole.ratio("fp16", base)
        assert ratio
        says(FP16, f"fp16 against {base}", *times, f"{fmt.ratio(ratio)} times as fast")
    for one in by_pass(found, found.network):
        says(RESULTS, "single layers", f"{one.which} {one.mean:.3f}")
    every = [row.ratio.ratio for one in by_pass(found, found.network) for row in one.rows]
    says(README, "ResNet's layers", min(every), max(every))
    ratios = {
        r.case.group: r.vs_backend["cudnn"]
        for r in found.results
        if r.case.precision_name == "fp16" and "cudnn" in r.vs_backend and not is_library(r.case)
    }
    layers = [layer for layer in layers_of(found, found.network) if "linear" not in layer.label]
    found_in: dict[tuple[str, str], str] = {}
    for layer in layers:
        for which, use in layer.uses.items():
            if use.group in ratios:
                found_in[layer.label.replace(">", "→"), which] = fmt.interval(ratios[use.group])
        for base in ("fp32", "tf32"):
            assert (layer.seconds(base) or 0) >= 1.3 * (layer.seconds("fp16") or 1)
    stem = [found_in["7x7/2 3→64 @224", which] for which in ("fprop", "wgrad")]
    says(TABLES, "The stem's three channels", *stem)
    slow = sorted((ratio, layer) for (layer, which), ratio in found_in.items() if which == "wgrad")
    for ratio, layer in slow[:2]:
        says(TABLES, "with stride 2 loses", f"{ratio} for {layer}")


def test_decode_of_a_network() -> None:
    """Of the linear layers, by what `halfway show` says of the file."""
    found = run("decode-llama-8b")
    assert found.network is not None
    report = layers_report(found, found.network)
    rows = {row.item["tokens"]: row.item for row in report.parts[0].rows}
    first = rows[1]
    fp8 = first["ratios"]["fp8-e4m3"]
    limited = max(tokens for tokens, row in rows.items() if row["bound"] == "memory")
    gains = {tokens: row["ratios"]["triton fp8-weights"].ci95 for tokens, row in rows.items()}
    faster = max(tokens for tokens, (low, _) in gains.items() if low > 1)
    slower = min(tokens for tokens, (_, high) in gains.items() if high < 1)
    floor_s = min(one.seconds for one in found.ceilings if one.seconds)
    gains_cast = (
        first["s"] / (first["s"] / first["ratios"][name].ratio + floor_s * first["step"].count)
        for name in ("fp8-e4m3", "triton fp8-e4m3")
    )
    slow = found.by_key["gemm/m=1,n=1024,k=4096/nt/normal/fp8-e4m3/cublas"].speedup["bf16"]
    ours = (first["ratios"][f"triton {name}"].ratio for name in ("fp8-e4m3", "fp8-weights", "bf16"))
    says(KERNELS, "the linear layers of so few tokens", fmt.as_ms(1e3 * first["s"]), first["share"],
         limited, fmt.ratio(fp8), slow.ratio, *ours, *gains_cast, faster, slower)  # fmt: skip


def test_shapes_outside_the_tables() -> None:
    found: dict[str, dict[bool, list[float]]] = {}
    for row in (*ours("shapes-gemm"), *ours("shapes-conv")):
        case = row.result.case
        gemm = case.op == "gemm"
        kind = "GEMM" if gemm else str(case.problem.dims["pass"])
        aligned = all(case.problem.dims[d] % 8 == 0 for d in ("mnk" if gemm else "ck"))
        found.setdefault(kind, {}).setdefault(aligned, []).append(row.ratio.ratio)
    rows = [
        [kind, *(cell for aligned in (True, False) for ratios in (of[aligned],)
                 for cell in (str(len(ratios)), f"{geometric_mean(ratios):.2f}",
                              f"{min(ratios):.2f}"))]
        for kind, of in ((kind, found[kind]) for kind in ("GEMM", *PASSES))
    ]  # fmt: skip
    shows(RESULTS, rows)
    gemms = [ratio for ratios in found["GEMM"].values() for ratio in ratios]
    says(README, "Our Triton GEMMs", geometric_mean(gemms), len(gemms),
         geometric_mean(found["GEMM"][True]), min(gemms))  # fmt: skip
    slowest = sorted(ours("shapes-conv"), key=lambda row: row.ratio.ratio)[:2]
    assert [row.result.case.problem.dims["stride"] for row in slowest] == [2, 2]
    says(RESULTS, "two slowest convolutions have a stride of 2")


def test_convolutions_by_width() -> None:
    slower: list[list[int]] = []
    words = "Every width from 1 to 72 channels"
    for which in PASSES:
        rows = {row.result.case.problem.dims["c"]: row for row in ours(f"conv-fine-{which}")}
        assert len(rows) == 72
        says(RESULTS, words, mean(rows.values()), mean(rows[w] for w in range(8, 73, 8)))
        assert 1.85 < mean(rows.values()) < 2.2
        if which == "fprop":
            eighths = mean(rows[w] for w in range(8, 73, 8))
            says(README, "Our convolutions", 72, mean(rows.values()), eighths)
        slower.append([width for width, row in rows.items() if row.ratio.ratio < 1])
        if slower[-1]:
            worst = min(row.ratio.ratio for row in rows.values())
            says(RESULTS, words, *slower[-1], f"{worst:.2f} at worst")
    assert slower == [[24, 56], [24, 40, 56], []]
    found = [r for r in ours("conv-powers") if r.result.case.problem.layout == "nhwc"]
    means = [mean(r for r in found if r.result.case.problem.dims["pass"] == p) for p in PASSES]
    least = min(found, key=lambda row: row.ratio.ratio)
    at = f"{least.result.case.problem.dims['pass']}, {least.result.case.problem.dims['c']}"
    says(RESULTS, "Powers of two from 8 to 2048", *means, f"{least.ratio.ratio:.2f} ({at})")


def test_fp8_convolutions_and_what_the_quick_tune_gains() -> None:
    found = {(r.case.problem.which, r.case.precision_name, r.case.problem.shape.c): tflops(r)
             for r in run("conv-fp8").results if r.case.backend == "triton"}  # fmt: skip
    widths = (64, 128, 256, 512, 1024, 2048)
    pairs = [
        (found[which, "fp8-e4m3", width], found[which, "fp16", width])
        for width in widths
        for which in ("fprop", "dgrad")
    ]
    gains = [fp8 / fp16 for fp8, fp16 in pairs]
    says(RESULTS, "our FP8 convolutions reach", min(gains), max(gains), max(found.values()))
    # Times with the model's first choice over those with the best of a quick tune.
    every = {r.case.group: r for r in run("ablation/all").results}
    losses = sorted((r.median_s or 0) / (every[r.case.group].median_s or 1)
                    for r in run("ablation/no-tune").results)  # fmt: skip
    some = (round(100 * (geometric_mean(of) - 1)) for of in (losses, losses[:-3]))
    says(KERNELS, "the quick tune gained", *some, len(losses))


# ---------------------------------------------------------------- linear layers, attention, batches

# torchao 0.18's own filter of layers, by features in and out (float8_linear_utils).
CONVERTS: Mapping[str, Callable[[int, int], bool]] = {
    "fp8-tensor": lambda k, n: k > 4096 or n > 1024,
    "fp8-row": lambda k, n: n > 2048 and k > 1024 and (n > 4096 or k > 2048),
}
MAPPED = [(layout, name) for name in CONVERTS for layout in ("launched", "graph")]
MAPPED += [("quantised", name) for name in (*CONVERTS, "fp8-block")]


def steps(*names: str) -> dict[tuple[str, str], dict[tuple[str, str, str], Result]]:
    """Of linear layers: by tokens and features; by layout, precision and back end."""
    found: dict[tuple[str, str], dict[tuple[str, str, str], Result]] = {}
    for result in (r for name in names for r in run(name).results if r.measurement):
        case, problem = result.case, result.case.problem
        key = problem.layout, case.precision_name, case.backend
        found.setdefault((problem.setting["batch"], problem.size), {})[key] = result
    return found


def test_the_map_of_linear_layers_and_where_torchaos_rule_is_wrong() -> None:
    rows: list[Row] = []
    wrong: dict[str, tuple[list[str], list[str]]] = {}
    for (tokens, size), by in steps("linear-torchao", "linear-quantised").items():
        row = [tokens, size, f"{1e3 * (by['graph', 'bf16', 'torch'].median_s or 0):.2f}"]
        for layout, name in MAPPED:
            one = by.get((layout, name, "torch" if layout == "quantised" else "torchao"))
            row.append(fmt.ratio(one.speedup["bf16"]) if one else "")
            if one and layout == "graph" and tokens == "16384":
                converts = CONVERTS[name](int(size.split("x")[0]), int(size.split("x")[-1]))
                of = wrong.setdefault(name, ([], []))
                if gain(one, one.speedup["bf16"]) == ("slower" if converts else "faster"):
                    of[not converts].append(size)
        rows.append(row)
    assert table(FP8, "tokens", "features") == rows
    answer = payoff_report(run("linear-torchao"))
    pays = [line.text.partition(" (")[0] for line in answer.answer if not line.label]
    says(FP8, "One layer of 16,384 tokens", *pays)
    alone = [r for r in run("linear-quantised").results if r.case.precision_name == "fp8-tensor"]
    assert {gain(r, r.speedup["bf16"]) for r in alone} == {"faster"}
    ratios = sorted((r.speedup["bf16"] for r in alone), key=lambda one: one.ratio)
    says(FP8, "The products alone", fmt.ratio(ratios[0]), fmt.ratio(ratios[-1]))
    few = steps("linear-torchao")["512", "8192"]["graph", "fp8-tensor", "torchao"]
    says(FP8, "Few tokens", fmt.ratio(few.speedup["bf16"]))
    assert table(FP8, "torchao's rule") == [
        [name, *(", ".join(sizes) or "none" for sizes in both)] for name, both in wrong.items()
    ]


def test_linear_layers_beside_transformer_engine() -> None:
    found = steps("linear-te")
    assert list(found) == [("15872", s) for s in ("4096x12288", "4096", "4096x16384", "16384x4096")]
    gains: list[str] = []
    for layout, name, backend in (
        ("graph", "fp8-tensor", "torchao"), ("graph", "fp8-block", "torch"),
        ("quantised", "fp8-tensor", "torch"), ("quantised", "fp8-block", "torch"),
        ("graph", "fp8-tensor", "torch"),
    ):  # fmt: skip
        base, own = (
            sum(by[layout, *one].median_s or 0 for by in found.values())
            for one in (("bf16", "torch"), (name, backend))
        )
        gains.append(f"{base / own:.2f}")
    *shown, by_torch = gains
    assert [row[2] for row in table(FP8, "FP8 over BF16")] == shown
    says(FP8, "Its tool times", by_torch)


def test_attention_and_batches() -> None:
    every = [r for r in run("attention").results
             if (r.case.backend, r.case.precision_name) == ("torch", "bf16")]  # fmt: skip
    calls = [result for result in every if result.measurement]
    rows: list[Row] = []
    for result in (r for r in calls if r.case.problem.setting["heads"] == "16x64"):
        problem, others = result.case.problem, result.vs_backend
        if problem.layout == "causal" and problem.size in ("512", "2048", "8192", "16384"):
            rows.append([
                problem.setting["pass"], problem.size, result.variant or "",
                fmt.duration(result.median_s or 0),
                *(fmt.short_ratio(others[name]) if name in others else ""
                  for name in ("cudnn", "flash", "efficient", "math")),
                fmt.short_ratio(result.speedup["tf32"]),
            ])  # fmt: skip
    assert table(RESULTS, "pass", "length") == rows
    faster = [r for r in calls for ratio in r.vs_backend.values()
              if (ratio.ci95 or (1, 1))[1] < 1 / MIN_GAIN]  # fmt: skip
    says(RESULTS, "torch picks the fastest", len(calls) - len({id(r) for r in faster}), len(every),
         *(float(figure) for r in every if not r.measurement
           for figure in re.findall(r"0\.\d+", r.reason or "")[:1]))  # fmt: skip
    rows = []
    for name in ("gemm-batch", "gemm-grouped"):
        for result in (r for r in run(name).results if "separate" in r.vs_backend):
            case = result.case
            if is_library(case) and case.problem.layout in ("nt", "nt-grouped", "nt-skewed"):
                rows.append([
                    result.variant or "", case.problem.size, case.problem.layout,
                    fmt.duration(result.median_s or 0), fmt.ratio(result.vs_backend["separate"]),
                ])  # fmt: skip
    assert table(RESULTS, "call", "size") == rows
    gains: dict[str, list[Ratio]] = {}
    for result in run("gemm-epilogues").results:
        if is_library(result.case) and "separate" in result.vs_backend:
            gains.setdefault(result.variant or "", []).append(result.vs_backend["separate"])
    for call, ratios in gains.items():
        clear = [ratio.ratio for ratio in ratios if not ratio.no_difference]
        same = f"(~1 in {len(ratios) - len(clear)} of {len(ratios)})" * (len(clear) < len(ratios))
        says(RESULTS, "With a bias", f"{call} {min(clear):.2f} to {max(clear):.2f} {same}".strip())
    found = [r for r in run("gemm-batch").results if r.case.precision_name == "bf16"]
    plain_s = {r.case.problem.size: r.median_s for r in found if r.case.problem.layout == "nt"
               and is_library(r.case)}  # fmt: skip
    biased = [r for r in found if r.variant == "baddbmm"]
    assert all("elementwise" in r.kernels[0] for r in biased)
    longer = [(r.median_s or 0) / (plain_s[r.case.problem.size] or 1) for r in biased]
    says(RESULTS, "With a bias", min(longer), max(longer))
