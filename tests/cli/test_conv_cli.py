"""conv, payoff and layers as a user meets them: what they print, write and refuse, on the CPU.

Written from the issue, not from the code: every expected number is worked out here, anew.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from samples.commands import Ran, run_here

from microbench.__main__ import main
from microbench.results.runfile import read_run

ROOT = Path(__file__).resolve().parents[2]
Doc = dict[str, Any]
PASSES = ("fprop", "dgrad", "wgrad")
ALL_PASSES = "conv --pass fprop,dgrad,wgrad"
DIMS = ("n", "c", "h", "w", "k", "r", "s", "stride", "padding", "dilation", "groups")
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}

NETWORK = """
import torch
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10),
    )

def broken():
    raise ValueError("broken on purpose\\nand on two lines")

def number():
    return 3

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        raise RuntimeError("forward is broken")

def mixed():
    return Mixed()
"""


def microbench(*words: object, cwd: Path | None = None, **environment: str) -> Ran:
    return run_here(main, "microbench", *words, cwd=cwd, **environment)


def report_of(stdout: str) -> str:
    """What a command printed, without progress and the line that names the file."""
    lines = stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if not re.match(r"\[\d+/\d+\]", line))
    last = next(i for i, line in enumerate(lines) if line.startswith("Run file: "))
    return "\n".join(lines[first:last]).strip()


def document(file: Path) -> Doc:
    read_run(file)  # the reader takes it, whatever else is asked of it here
    return json.loads(file.read_text())


def out_size(size: int, kernel: int, case: Doc) -> int:
    reach = case["dilation"] * (kernel - 1) + 1
    return (size + 2 * case["padding"] - reach) // case["stride"] + 1


def hand_flops(case: Doc) -> int:
    p, q = out_size(case["h"], case["r"], case), out_size(case["w"], case["s"], case)
    products = case["n"] * case["k"] * p * q * (case["c"] // case["groups"]) * case["r"] * case["s"]
    return 2 * products


def touched(size: int, kernel: int, case: Doc) -> int:
    """How many rows (or columns) of the input any output looks at."""
    starts = range(out_size(size, kernel, case))
    return len(
        {p * case["stride"] - case["padding"] + i * case["dilation"]
         for p in starts for i in range(kernel)} & set(range(size))
    )  # fmt: skip


def hand_bytes(case: Doc, element: int) -> tuple[int, int]:
    """Least and most that each operand moved once can come to."""
    p, q = out_size(case["h"], case["r"], case), out_size(case["w"], case["s"], case)
    x = case["n"] * case["c"] * case["h"] * case["w"]
    seen = case["n"] * case["c"] * touched(case["h"], case["r"], case)
    seen *= touched(case["w"], case["s"], case)
    w = case["k"] * case["c"] // case["groups"] * case["r"] * case["s"]
    y = case["n"] * case["k"] * p * q
    least = x if case["pass"] == "dgrad" else seen  # dgrad writes the rest of x too: zeros
    return element * (least + w + y), element * (x + w + y)


def check_arithmetic(results: list[Doc]) -> None:
    for result in results:
        case = result["case"]
        assert result["flops"] == hand_flops(case), case
        low, high = hand_bytes(case, BYTES[result["precision"]])
        assert low <= result["min_bytes"] <= high, case
        if result["status"] == "ok":
            rate = result["flops"] / result["median_s"]
            assert result["tflops"] == pytest.approx(rate / 1e12, rel=1e-6)
            bandwidth = result["min_bytes"] / result["median_s"]
            assert result["gb_per_s"] == pytest.approx(bandwidth / 1e9, rel=1e-6)


def check_right(results: list[Doc]) -> None:
    """All ran and are right, but for what a busy machine had no time for."""
    assert any(result["status"] == "ok" for result in results)
    for result in results:
        if result["status"] == "skipped" and "--budget" in result["reason"]:
            continue
        assert result["status"] == "ok", (result["case"], result["reason"])
        assert result["reason"] is None
        assert 0 < result["rel_error"] < {"fp32": 2e-6, "bf16": 8e-3}[result["precision"]]
        assert result["times_s"]
        assert min(result["times_s"]) > 0
        low, high = result["ci95_s"] or (result["median_s"],) * 2
        assert 0 < low <= result["median_s"] <= high


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conv-cli")
    (folder / "tinynet.py").write_text(NETWORK)
    return folder


def in_process(words: str, folder: Path, name: str) -> Doc:
    file = folder / name
    assert main([*shlex.split(words), "--device", "cpu", "--quiet", "--json", str(file)]) == 0
    return document(file)


# ---------------------------------------------------------------- one run

WIDTHS = ("--channels", "8..16,4x6,20", "--pass", "fprop,wgrad", "--layout", "nhwc", "--image", "6",
          "--batch", "2", "--dtype", "bf16", "--device", "cpu", "--budget", "2")  # fmt: skip


@pytest.fixture(scope="module")
def measured(folder: Path) -> Ran:
    return microbench("conv", *WIDTHS, "--seed", "3", "--json", folder / "run.json",
                      "--csv", folder / "run.csv")  # fmt: skip


@pytest.fixture(scope="module")
def run(measured: Ran, folder: Path) -> Doc:
    assert measured.returncode == 0, measured.stderr
    return document(folder / "run.json")


def asked(results: list[Doc], precision: str, passed: str = "fprop") -> list[tuple[int, int]]:
    return [(r["case"]["c"], r["case"]["k"]) for r in results
            if r["precision"] == precision and r["case"]["pass"] == passed]  # fmt: skip


def test_a_width_list_mixes_ranges_pairs_and_numbers(run: Doc) -> None:
    for passed in ("fprop", "wgrad"):
        assert sorted(asked(run["results"], "fp32", passed)) == [(4, 6), (8, 8), (16, 16), (20, 20)]
        assert {(4, 6), (8, 8), (16, 16), (20, 20)} <= set(asked(run["results"], "bf16", passed))


def test_the_run_file_has_what_the_schema_names(run: Doc) -> None:
    assert run["schema_version"] == 1
    assert run["finished_at"] >= run["started_at"]
    assert run["settings"]["seed"] == 3
    for result in run["results"]:
        case = result["case"]
        assert result["op"] == "conv"
        assert all(isinstance(case[d], int) for d in DIMS)
        assert case["layout"] == "nhwc"
        assert case["pass"] in ("fprop", "wgrad")
        assert (case["r"], case["s"], case["padding"], case["groups"]) == (3, 3, 1, 1)
    keys = [json.dumps([r["case"], r["precision"], r["backend"]]) for r in run["results"]]
    assert len(keys) == len(set(keys))


def test_what_ran_is_right_and_what_did_not_says_why(run: Doc) -> None:
    check_arithmetic(run["results"])
    check_right([r for r in run["results"] if r["precision"] != "tf32"])
    skipped = [r for r in run["results"] if r["precision"] == "tf32"]
    assert skipped
    for result in skipped:
        assert (result["status"], result["times_s"], result["tflops"]) == ("skipped", None, None)
        assert "CPU" in result["reason"]


def test_a_speedup_lies_in_its_interval_and_is_the_other_way_round_s_inverse(run: Doc) -> None:
    fp32 = {json.dumps(r["case"]): r for r in run["results"] if r["precision"] == "fp32"}
    compared = [r for r in run["results"] if r["precision"] == "bf16" and "fp32" in r["speedup"]]
    assert compared
    for result in compared:
        against = result["speedup"]["fp32"]
        assert against["ci95"][0] <= against["ratio"] <= against["ci95"][1]
        back = fp32[json.dumps(result["case"])]["speedup"]["bf16"]
        assert back["ratio"] * against["ratio"] == pytest.approx(1)


def test_the_report_is_plain_fits_and_says_what_was_convolved(measured: Ran, run: Doc) -> None:
    """A rate means nothing without image, batch and kernel."""
    assert measured.stderr == ""
    assert not set("\x1b\r") & set(measured.stdout)
    lines = measured.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines[:-1])
    assert [line for line in lines if line != line.rstrip()] == []
    text = report_of(measured.stdout)
    for words in ("4x6", "fprop", "wgrad", "nhwc", "bf16", "fp32"):
        assert words in text
    assert re.search(r"image\D{0,3}6|6x6", text)
    assert re.search(r"batch\D{0,3}2", text)
    assert re.search(r"kernel\D{0,3}3|3x3", text)


def test_the_csv_has_a_line_a_result_and_agrees_with_show(
    measured: Ran, run: Doc, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "run.csv").read_text()
    assert main(["show", str(folder / "run.json"), "--csv"]) == 0
    assert capfd.readouterr().out.split() == text.split()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(run["results"])
    for row, result in zip(rows, run["results"], strict=True):
        assert (row["op"], row["status"]) == ("conv", result["status"])
        assert row["precision"] == result["precision"]
        if result["status"] == "ok":
            assert float(row["median_s"]) == pytest.approx(result["median_s"])
            assert float(row["rel_error"]) == pytest.approx(result["rel_error"])
        for name in (*DIMS, "pass", "layout"):
            assert row[name] == str(result["case"][name])


@pytest.fixture(scope="module")
def varied(folder: Path) -> Ran:
    ran = microbench(
        "conv", "--dtype", "bf16", "--vs", "fp32", "--channels", "8,16", "--image", "4,6",
        "--batch", "1,2", "--kernel", "1,3", "--layout", "nhwc", "--pass", "fprop",
        "--device", "cpu", "--budget", "2", "--json", folder / "varied.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran


def progress_names(ran: Ran) -> list[str]:
    """What each line of progress is about."""
    lines = [line for line in ran.stdout.splitlines() if re.match(r"\[\d+/\d+\]", line)]
    return [re.sub(r"^\[\d+/\d+\] ", "", line).split(":")[0] for line in lines]


def test_progress_tells_one_case_from_another(varied: Ran, layered: Ran) -> None:
    """Two images by two batches: each line says which; depthwise and dense differ."""
    for ran in (varied, layered):
        assert len(set(progress_names(ran))) == len(progress_names(ran))
    assert len(progress_names(layered)) == 17


def test_several_images_batches_and_kernels_are_a_grid(varied: Ran, folder: Path) -> None:
    results = document(folder / "varied.json")["results"]
    check_arithmetic(results)
    check_right(results)
    cells = Counter((r["case"]["c"], r["case"]["h"], r["case"]["n"], r["case"]["r"])
                    for r in results)  # fmt: skip
    assert set(cells) == set(itertools.product((8, 16), (4, 6), (1, 2), (1, 3)))
    assert set(cells.values()) == {2}
    assert {(r["case"]["r"], r["case"]["padding"]) for r in results} == {(1, 0), (3, 1)}


def test_a_grid_s_headings_are_words(varied: Ran) -> None:
    """ "1 0 bf16 against fp32" is what the map of kernel 1, padding 0 was headed."""
    assert not re.search(r"^\d+ \d+\b", report_of(varied.stdout), re.MULTILINE)
    assert re.search(r"kernel|1x1", varied.stdout)


def test_markdown_tells_one_row_from_another(
    varied: Ran, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(folder / "varied.json"), "--markdown"]) == 0
    rows = [line.split("|") for line in capfd.readouterr().out.splitlines() if line[:2] == "| "][2:]
    names = Counter(tuple(cell.strip() for cell in row[1:4]) for row in rows)
    assert max(names.values()) == 1


# ---------------------------------------------------------------- the arithmetic, in breadth

SHAPES = [
    "--channels 8x12,16 --image 5,7x9 --batch 3 --kernel 1,3 --stride 2",
    "--channels 1..4:+1,64x256 --image 6,56x6 --kernel 3x2,1x5 --padding 2 --dilation 2 --stride 3",
    "--channels 4,8x16 --image 7 --groups depthwise --stride 100 --kernel 5",
]


@pytest.mark.parametrize("words", SHAPES)
def test_flops_and_bytes_are_what_a_hand_count_gives(words: str, tmp_path: Path) -> None:
    """tf32, which a CPU skips: nothing runs, and the counts are in the file all the same."""
    run = in_process(f"{ALL_PASSES} --dtype tf32 --vs none {words}", tmp_path, "run.json")
    assert {r["status"] for r in run["results"]} == {"skipped"}
    assert {(r["case"]["pass"], r["case"]["layout"]) for r in run["results"]} == set(
        itertools.product(PASSES, ("nhwc", "nchw"))
    )
    check_arithmetic(run["results"])
    if "depthwise" in words:
        assert all(r["case"]["groups"] == r["case"]["c"] for r in run["results"])


RIGHT = {
    "dilation-stride-rectangle": "--channels 4x6 --image 7x10 --kernel 3x2 --stride 2 "
    "--dilation 2 --padding 2 --batch 3",
    "depthwise": "--channels 4x8 --image 6 --groups depthwise --batch 2",
    "groups": "--channels 8x12 --image 5x6 --groups 4 --stride 2 --batch 2 --kernel 1,3",
}


@pytest.mark.parametrize("words", RIGHT.values(), ids=RIGHT)
def test_every_kind_of_convolution_runs_on_a_cpu_and_is_right(words: str, tmp_path: Path) -> None:
    run = in_process(
        f"{ALL_PASSES} --dtype fp32 --vs none --budget 4 {words}", tmp_path, "run.json"
    )
    check_right(run["results"])
    check_arithmetic(run["results"])
    assert {(r["case"]["pass"], r["case"]["layout"]) for r in run["results"]} == set(
        itertools.product(PASSES, ("nhwc", "nchw"))
    )


# ---------------------------------------------------------------- resume


def measured_in(run: Doc) -> dict[str, list[float]]:
    """What --resume keeps as it is. On a busy machine a case may take too long for its share of the
    budget: it is skipped, and tried again where a budget is given.
    """
    return {json.dumps(r["case"]): r["times_s"] for r in run["results"] if r["status"] == "ok"}


def test_resume_measures_what_is_missing_and_keeps_the_samples(tmp_path: Path) -> None:
    words = "conv --dtype fp32 --vs none --image 5 --pass fprop --layout nchw --budget 0.5 --batch"
    first = in_process(f"{words} 1 --channels 4,8", tmp_path, "run.json")
    file = tmp_path / "run.json"
    more = [*shlex.split(f"{words} 1,2 --channels 4,8x4,8"), "--device", "cpu", "--quiet"]
    assert main([*more, "--resume", str(file)]) == 0
    whole = document(file)
    cells = [(r["case"]["c"], r["case"]["k"], r["case"]["n"]) for r in whole["results"]]
    assert sorted(cells) == sorted((c, k, n) for n in (1, 2) for c, k in ((4, 4), (8, 4), (8, 8)))
    assert measured_in(first)
    assert measured_in(whole).items() >= measured_in(first).items()
    assert main([*more, "--resume", str(file)]) == 0
    assert measured_in(document(file)).items() >= measured_in(whole).items()


# ---------------------------------------------------------------- payoff


@pytest.fixture(scope="module")
def mapped(folder: Path) -> Ran:
    ran = microbench(
        "payoff", "--op", "conv", "--channels", "8..32", "--image", "4,6", "--batch", "1,2",
        "--dtype", "bf16", "--vs", "fp32", "--layout", "nhwc", "--device", "cpu",
        "--budget", "4", "--json", folder / "map.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran


def cells_of(run: Doc) -> dict[tuple[int, int], dict[int, bool]]:
    """(image, batch) -> width -> bf16 was faster, as a map means it: surely, and by over 2 %."""
    cells: dict[tuple[int, int], dict[int, bool]] = {}
    for result in run["results"]:
        case = result["case"]
        if result["precision"] == "bf16":
            ratio = result["speedup"].get("fp32")
            faster = bool(ratio and ratio["ci95"] and ratio["ci95"][0] > 1.02)
            cells.setdefault((case["h"], case["n"]), {})[case["c"]] = faster
    return cells


def test_payoff_measures_fewer_cells_than_the_grid_has(mapped: Ran, folder: Path) -> None:
    run = document(folder / "map.json")
    check_arithmetic(run["results"])
    cells = cells_of(run)
    assert set(cells) == set(itertools.product((4, 6), (1, 2)))
    assert {w for column in cells.values() for w in column} <= {8, 16, 32}
    assert sum(map(len, cells.values())) < 3 * 4


def test_what_payoff_measured_brackets_every_boundary(mapped: Ran, folder: Path) -> None:
    """Each column: a width that loses next to one that gains, or the last one, on its side."""
    widths = [8, 16, 32]
    for column in cells_of(document(folder / "map.json")).values():
        pairs = itertools.pairwise(widths)
        between = any(column.get(a) is False and column.get(b) is True for a, b in pairs)
        assert between or column.get(widths[-1]) is False or column.get(widths[0]) is True


def test_the_map_fits_names_its_axes_and_is_shown_again(
    mapped: Ran, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = report_of(mapped.stdout)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\x1b" not in text
    for word in ("image", "batch", "bf16 against fp32", "In short"):
        assert word in text
    assert not re.search(r"nowhere at \d+\.", text)  # four what? There is an image of 4 as well
    assert main(["show", str(folder / "map.json")]) == 0
    assert capfd.readouterr().out.strip() == text


def test_every_measured_cell_of_the_map_is_the_run_file_s_with_its_cause(
    mapped: Ran, folder: Path
) -> None:
    run = document(folder / "map.json")
    lines = report_of(mapped.stdout).splitlines()
    images = next(line.split()[1:] for line in lines if re.match(r"image\s", line))
    batches = next(line.split()[1:] for line in lines if re.match(r"batch\s", line))
    columns = [(int(i), int(b)) for i, b in zip(images, batches, strict=True)]
    shown = {}
    for line in lines:
        if match := re.match(r"\s+(\d+)((?:\s+\S+)+)$", line):
            for column, cell in zip(columns, match[2].split(), strict=True):
                if cell != ".":
                    shown[(*column, int(match[1]))] = cell
    found = {}
    for result in run["results"]:
        case = result["case"]
        if result["precision"] == "bf16":
            found[(case["h"], case["n"], case["c"])] = result
    assert set(shown) == set(found)
    letters = {"launch": "l", "memory": "m", "layout": "t", "alignment": "a", "waves": "w",
               "compute": "c", "power": "p", "mixed": "-", "no hardware": "n"}  # fmt: skip
    for where, cell in shown.items():
        against = found[where]["speedup"]["fp32"]
        low, high = against["ci95"]
        if low <= 1 <= high:
            assert cell.startswith("="), (cell, against)
        if low > 1.021 or high < 0.979:  # beyond the 2 % that a verdict asks for
            assert not cell.startswith("="), (cell, against)
        number = float(re.search(r"[\d.]+", cell)[0])  # type: ignore[index]
        assert number == pytest.approx(against["ratio"], rel=0.06)
        assert cell.endswith(letters[found[where]["bound"]])


def test_an_interval_without_1_is_a_difference_in_the_map(
    mapped: Ran, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The legend: "= no difference seen"; method.md: that is an interval that holds 1."""
    run = document(folder / "map.json")
    for result in run["results"]:
        if result["precision"] == "bf16":
            result["speedup"] = {"fp32": {"ratio": 0.97, "ci95": [0.955, 0.985]}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert main(["show", str(tmp_path / "run.json")]) == 0
    assert "=0.97" not in capfd.readouterr().out


# ---------------------------------------------------------------- layers


@pytest.fixture(scope="module")
def layered(folder: Path) -> Ran:
    ran = microbench(
        "layers", "tinynet:build", "--batch", "2", "--image", "16", "--dtype", "fp32",
        "--vs", "none", "--device", "cpu", "--budget", "4", "--json", folder / "layers.json",
        cwd=folder,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran


CONVS = [  # c, k, kernel, stride, groups, how often, passes
    (3, 8, 3, 1, 1, 1, ("fprop", "wgrad")),  # the first: nobody needs the gradient of the images
    (8, 8, 3, 1, 1, 2, PASSES),
    (8, 8, 3, 1, 8, 1, PASSES),
    (8, 16, 1, 2, 1, 1, PASSES),
]
PRODUCTS = [  # m, n, k of what a Linear of 16 to 32, then 32 to 10, does with 2 images
    {(2, 32, 16), (2, 16, 32), (32, 16, 2)},
    {(2, 10, 32), (2, 32, 10), (10, 32, 2)},
]


def test_layers_lists_exactly_the_network_s_convolutions_and_products(
    layered: Ran, folder: Path
) -> None:
    run = document(folder / "layers.json")
    convs = Counter(
        (r["case"]["c"], r["case"]["k"], r["case"]["r"], r["case"]["stride"], r["case"]["groups"],
         r["case"]["pass"])
        for r in run["results"] if r["op"] == "conv"
    )  # fmt: skip
    assert convs == Counter((*c[:5], p) for c in CONVS for p in c[6])
    products = [(r["case"]["m"], r["case"]["n"], r["case"]["k"])
                for r in run["results"] if r["op"] == "gemm"]  # fmt: skip
    assert Counter(products) == Counter(set.union(*PRODUCTS))
    check_right(run["results"])
    check_arithmetic([r for r in run["results"] if r["op"] == "conv"])
    assert all(r["case"]["n"] == 2 and r["case"]["h"] == 16
               for r in run["results"] if r["op"] == "conv")  # fmt: skip


def test_layers_counts_how_often_each_is_used(layered: Ran, folder: Path) -> None:
    uses = document(folder / "layers.json")["network"]["layers"]
    counts = Counter((use["which"], use["count"]) for use in uses)
    assert counts == {("fprop", 1): 5, ("fprop", 2): 1, ("dgrad", 1): 4, ("dgrad", 2): 1,
                      ("wgrad", 1): 5, ("wgrad", 2): 1}  # fmt: skip
    assert all(use["count"] == len(use["names"]) for use in uses)


def test_the_work_of_a_step_is_what_a_hand_count_gives(layered: Ran, folder: Path) -> None:
    run = document(folder / "layers.json")
    loaded = read_run(folder / "layers.json")
    groups = {result.case.group: raw["flops"]
              for result, raw in zip(loaded.results, run["results"], strict=True)}  # fmt: skip
    total = sum(use["count"] * groups[use["group"]] for use in run["network"]["layers"])
    hand = 0
    for c, k, kernel, stride, per, often, passes in CONVS:
        side = 16 // stride
        hand += 2 * 2 * k * side * side * (c // per) * kernel * kernel * often * len(passes)
    hand += sum(2 * m * n * k for products in PRODUCTS for m, n, k in products)
    assert total == hand


def test_the_table_of_layers_adds_up(layered: Ran, folder: Path) -> None:
    text = report_of(layered.stdout)
    assert all(len(line) <= 100 for line in text.splitlines())
    row = next(line for line in text.splitlines() if line.startswith("total "))
    run = document(folder / "layers.json")
    loaded = read_run(folder / "layers.json")
    median = {result.case.group: raw["median_s"]
              for result, raw in zip(loaded.results, run["results"], strict=True)}  # fmt: skip
    if None in median.values():
        pytest.skip("a busy machine: something did not fit the budget")
    total = sum(use["count"] * median[use["group"]] for use in run["network"]["layers"])
    count, milliseconds = row.removeprefix("total ").split()[:2]
    assert int(count) == 7
    assert float(milliseconds) == pytest.approx(total * 1e3, rel=0.01)


SKIPPED: Doc = dict.fromkeys(
    ("times_s", "blocks", "median_s", "ci95_s", "tflops", "gb_per_s", "rel_error", "total_error",
     "bound", "why")
)  # fmt: skip
SKIPPED |= {"status": "skipped", "reason": "it would take until noon", "speedup": {}}


@pytest.mark.parametrize(("name", "first"), [("layers", -3), ("varied", 0)])
def test_what_was_skipped_says_why(
    name: str, first: int, varied: Ran, layered: Ran, folder: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Three layers, or all of a grid, whose report was two lines of heading, and nothing."""
    run = document(folder / f"{name}.json")
    for result in run["results"][first:]:
        result.update(SKIPPED, warnings=[])
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert main(["show", str(tmp_path / "run.json")]) == 0
    assert "until noon" in " ".join(capfd.readouterr().out.split())


# ---------------------------------------------------------------- bad input

BAD = {
    "conv --channels 8,,16": "--channels",
    "conv --channels 10000000000000000000000": "--channels",
    "conv --image 0": "--image",
    "conv --batch 0": "--batch",
    "conv --kernel 0": "--kernel",
    "conv --kernel 9 --image 7 --padding 0": "kernel of 9",
    "conv --kernel 1x9 --image 9x7 --padding 0": "kernel of 9",
    "conv --kernel 3 --dilation 8 --image 7 --padding 0": "dilation",
    "conv --kernel 2": "--padding",
    "conv --stride 0": "--stride",
    "conv --stride 1.5": "--stride",
    "conv --padding valid": "--padding",
    "conv --dilation 0": "--dilation",
    "conv --groups 0": "groups",
    "conv --groups 2 --channels 8x9": "K=9",
    "conv --groups 4 --channels 8..32,6": "C=6",
    "conv --groups depthwise --channels 8x12": "K=12",
    "conv --pass up": "dgrad",
    "conv --layout nn": "nchw",
    "conv --backend cublas": "cudnn",
    "conv --dtype fp7": "fp16",
    "conv --vs fp99": "fp32",
    "conv --data gauss": "normal",
    "conv --l2 hot": "warm",
    "conv --budget 0": "--budget",
    "conv --json /nowhere/run.json": "--json",
    "conv --csv /nowhere/run.csv": "--csv",
    "conv --resume /nowhere/run.json": "/nowhere/run.json",
    "conv --frobnicate": "--frobnicate",
    "conv extra": "extra",
    "conv --sizes 16": "--sizes",
    "payoff --op gemm": "conv",
    "payoff --channels 64..8": "8..64",
    "payoff --groups 3": "3 groups",
    "payoff --json /nowhere/a.json": "--json",
    "payoff --resume /nowhere/a.json": "/nowhere/a.json",
    "layers": "NETWORK",
    "layers ''": "network",
    "layers resnet5O": "resnet50",
    "layers nosuchnet": "module:function",
    "layers tinynet:broken": "broken on purpose",
    "layers tinynet:number": "nn.Module",
    "layers tinynet:mixed": "forward is broken",
    "layers tinynet:nothing": "nothing",
    "layers tinynet:": "module:function",
    "layers :build": "module:function",
    "layers no_module_here:net": "no_module_here",
    "layers resnet50 --batch 0": "--batch",
    "layers resnet50 --image 0": "--image",
    "layers resnet50 --layout nhwc,nchw": "nhwc,nchw",
    "layers resnet50 --json /nowhere/a.json": "--json",
    "layers resnet50 --resume /nowhere/a.json": "/nowhere/a.json",
    "layers resnet50 --backend cudnn": "library",
    "layers resnet50 extra": "extra",
}


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    import microbench.run_command as commands

    def started(*_: object, **__: object) -> None:
        pytest.fail("a measuring process was started")

    monkeypatch.setattr(commands, "Workers", started)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def complaint(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    code = main(words)
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("words", BAD)
def test_a_mistake_is_a_line_before_anything_is_measured(
    words: str, capfd: pytest.CaptureFixture[str], no_worker: None, tmp_path: Path
) -> None:
    assert BAD[words] in complaint(shlex.split(words), capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chart", ["/nowhere/a.png", "a.gif", "plain", "/"])
@pytest.mark.parametrize("command", ["conv", "payoff", "layers resnet50"])
def test_a_chart_that_cannot_be_is_found_first(
    command: str, chart: str, capfd: pytest.CaptureFixture[str], no_worker: None
) -> None:
    assert "--chart" in complaint([*command.split(), "--chart", chart], capfd)


@pytest.mark.parametrize("option", ["--json", "--csv", "--chart"])
@pytest.mark.parametrize("command", ["conv", "payoff", "layers resnet50"])
def test_what_exists_is_not_overwritten(
    command: str, option: str, capfd: pytest.CaptureFixture[str], no_worker: None, tmp_path: Path
) -> None:
    file = tmp_path / "precious.png"
    file.write_text("precious")
    assert option in complaint([*command.split(), option, str(file)], capfd)
    assert file.read_text() == "precious"


def test_beyond_memory_is_a_line_in_words_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    ran = microbench("conv", "--channels", "8,1000000", "--device", "cpu", "--json", file)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert "1000000" in ran.stderr
    assert "free" in ran.stderr
    assert "conv/n=" not in ran.stderr  # that is a key of the run file
    assert "--channels" in ran.stderr or "--batch" in ran.stderr


def test_what_a_back_end_lacks_is_skipped_with_its_reason(tmp_path: Path) -> None:
    words = "conv --vs none --channels 16 --image 4 --batch 1 --backend cpu,triton --budget 0.3"
    run = in_process(f"{words} --dtype int8,fp8,fp16-acc16", tmp_path, "a.json")
    found = {(r["precision"], r["backend"]) for r in run["results"]}
    assert found == set(itertools.product(("int8", "fp8-e4m3", "fp16-acc16"), ("cpu", "triton")))
    for result in run["results"]:
        assert (result["status"], result["times_s"]) == ("skipped", None)
        assert len(result["reason"]) > 10
        assert "\n" not in result["reason"]


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_a_chart_is_drawn_of_a_run_and_of_a_map(
    kind: str, run: Doc, mapped: Ran, folder: Path, tmp_path: Path
) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<", "html": b"<"}[kind]
    for name in ("run", "map"):
        chart = tmp_path / f"{name}.{kind}"
        assert main(["show", str(folder / f"{name}.json"), "--chart", str(chart)]) == 0
        data = chart.read_bytes()
        assert data.startswith(starts)
        assert len(data) > 1000


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from microbench.__main__ import main\n"
        "codes = [main([word, '--help']) for word in ('conv', 'payoff', 'layers')]\n"
        "heavy = {'torch', 'numpy', 'triton', 'cupy', 'pynvml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert not any(codes), codes\n"
        "assert main(['conv', '--groups', '3']) == 2\nassert 'torch' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert all(len(line) <= 80 for line in ran.stdout.splitlines())
