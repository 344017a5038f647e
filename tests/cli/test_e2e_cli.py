"""`python -m e2e` as a user meets it: what it prints, writes and refuses, on the CPU.

Written from the issue, not from the code: every expected number is worked out here, anew.
"""

from __future__ import annotations

import csv
import getpass
import io
import json
import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest
from samples.commands import ROOT, Ran, environment, interrupted, on_a_terminal, run_here
from samples.images import noise, put, save

from e2e.__main__ import main
from e2e.results.types import Training
from microbench.__main__ import main as microbench
from microbench.results.runfile import read_run

Doc = dict[str, Any]
Captured = pytest.CaptureFixture[str]
CPU = ("--device", "cpu", "--budget", "0.5")
OWN = ("--input", "3x8x8", "--batch", "4")
PAIR = ("--recipe", "fp32,amp-bf16")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PROGRESS = re.compile(r"^\[\d+/\d+\]")

NETWORKS = """
import torch
from torch import nn
from torch.nn import functional

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )

def half(ins, outs):
    return [nn.Conv2d(ins, outs, 3, 2, 1, bias=False), nn.BatchNorm2d(outs), nn.ReLU()]

def small():
    return nn.Sequential(
        *half(3, 16), *half(16, 32), *half(32, 64),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )

def squares(output, target):
    return functional.one_hot(target, output.shape[1]).sub(output.float()).square().mean()

def not_a_number(output, target):
    return output.float().sum() * float("nan")

def failing_loss(output, target):
    raise ValueError("no loss today")

def raises():
    raise ValueError("broken on purpose\\nand on two lines")

def leaves():
    raise SystemExit(0)

def number():
    return 3

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        raise RuntimeError("forward is broken\\non two lines")

def broken():
    return Broken()

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()

    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("I will not be cast")
        return self.body(x)

def picky():
    return Picky()
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Children inherit it: two threads on cores that others use wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ONE_THREAD.items():
            patch.setenv(name, value)
        yield


def e2e(*words: object, cwd: Path | None = None) -> Ran:
    return run_here(main, "e2e", *words, cwd=cwd)


def document(file: Path) -> Doc:
    read_run(file)  # the reader takes it, whatever else is asked of it here
    return json.loads(file.read_text())


def in_process(*words: object, file: Path) -> Doc:
    assert main([*map(str, words), *CPU, "--quiet", "--json", str(file)]) == 0
    return document(file)


def report_of(stdout: str) -> str:
    """What a command printed, without progress and the line that names the file."""
    lines = stdout.splitlines()
    last_progress = max((i for i, line in enumerate(lines) if PROGRESS.match(line)), default=-1)
    last = next(i for i, line in enumerate(lines) if line.startswith("Run file: "))
    return "\n".join(lines[last_progress + 1 : last]).strip()


def shown(file: Path, capfd: Captured, *words: str) -> str:
    capfd.readouterr()
    assert microbench(["show", str(file), *words]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def by_recipe(run: Doc) -> dict[str, Doc]:
    arms = {result["case"]["recipe"]: result for result in run["results"]}
    assert len(arms) == len(run["results"])
    return arms


def blocks_of(result: Doc) -> list[list[float]]:
    times = iter(result["times_s"])
    return [list(islice(times, count)) for count in result["blocks"]]


def check_steps(result: Doc) -> None:
    """One arm's numbers agree with each other."""
    times = result["times_s"]
    assert times
    assert min(times) > 0
    assert sum(result["blocks"]) == len(times)
    if result["case"]["loader"] == "torchvision":  # fed: a mean of each block
        assert set(result["blocks"]) == {1}
        assert min(result["wall_times_s"]) <= min(times)
        assert max(times) <= max(result["wall_times_s"])
    else:
        assert len(times) == len(result["wall_times_s"])
    assert result["step_s"] == pytest.approx(median(times), rel=1e-3)
    low, high = result["ci95_s"] or (result["step_s"],) * 2
    assert low <= result["step_s"] <= high
    assert low > 0
    units = result["step_units"]
    median_per_s = units / result["step_s"]
    wall_per_s = units * result["wall_steps"] / result["wall_s"]
    far = abs(wall_per_s / median_per_s - 1) > 0.03
    fed = result["case"]["loader"] == "torchvision"
    shown_per_s = wall_per_s if far or fed else median_per_s
    assert result["images_per_s"] == pytest.approx(shown_per_s, rel=1e-6)
    if far:
        assert any("wall" in json.dumps(w) for w in result["warnings"]), result["warnings"]
    for warning in result["warnings"]:
        assert all(warning[name] for name in ("symptom", "cause", "remedy"))


def check_phases(result: Doc) -> None:
    phases = {phase["name"]: phase["host_s"] for phase in result["phases"]}
    assert list(phases) == ["data", "copy", "forward", "backward", "optimizer"]
    assert min(phases.values()) >= 0
    assert min(phases["forward"], phases["backward"], phases["optimizer"]) > 0
    assert result["data_wait_s"] == phases["data"]
    assert result["step_s"] / 5 < sum(phases.values()) < result["step_s"] * 5


def check_speedup(result: Doc, against: Doc, name: str) -> None:
    """The geometric mean of the rounds' ratios of medians, within its interval."""
    speedup = result["speedup"][name]
    rounds = list(zip(blocks_of(against), blocks_of(result), strict=True))
    logs = [math.log(median(theirs) / median(ours)) for theirs, ours in rounds]
    assert speedup["ratio"] == pytest.approx(math.exp(sum(logs) / len(logs)), rel=1e-4)
    if speedup["ci95"] is None:
        assert len(rounds) < 3, "enough rounds for an interval"
    else:
        assert speedup["ci95"][0] <= speedup["ratio"] <= speedup["ci95"][1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e-cli")
    (folder / "my_networks.py").write_text(NETWORKS)
    (folder / "my_bad_syntax.py").write_text("def build(:\n")
    return folder


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


# ---------------------------------------------------------------- the main command


@pytest.fixture(scope="module")
def measured(folder: Path) -> Ran:
    """The command of the issue's title, for the smallest network; most tests look at it."""
    return e2e("cnn-cifar", "--amp", "--batch", "8", *CPU, "--seed", "3",
               "--json", folder / "run.json", "--csv", folder / "run.csv")  # fmt: skip


@pytest.fixture(scope="module")
def run(measured: Ran, folder: Path) -> Doc:
    assert measured.returncode == 0, measured.stderr
    return document(folder / "run.json")


@pytest.fixture(scope="module")
def report(measured: Ran) -> str:
    return report_of(measured.stdout)


@pytest.fixture(scope="module")
def timed(run: Doc) -> list[Doc]:
    return [by_recipe(run)[name] for name in ("fp32", "amp-bf16")]


def test_the_command_ends_well(measured: Ran, run: Doc) -> None:
    assert measured.stderr == ""
    assert run["schema_version"] == 1
    assert run["finished_at"] >= run["started_at"]
    assert run["device"]["kind"] == "cpu"
    assert run["settings"]["training"]["seed"] == 3


def test_on_a_cpu_amp_is_bf16_and_tf32_is_skipped_which_is_said(report: str, run: Doc) -> None:
    arms = by_recipe(run)
    assert set(arms) == {"fp32", "tf32", "amp-bf16"}
    assert arms["fp32"]["status"] == arms["amp-bf16"]["status"] == "ok"
    tf32 = arms["tf32"]
    assert (tf32["status"], tf32["times_s"]) == ("skipped", None)
    assert "CPU" in tf32["reason"]
    assert "\n" not in tf32["reason"]
    for word in ("amp-bf16", "CPU", "tf32"):
        assert word in report


def test_the_run_file_has_what_the_schema_names(report: str, run: Doc) -> None:
    for result in run["results"]:
        case = result["case"]
        assert (result["op"], case["network"], case["image_size"], case["data"]) == (
            "train", "cnn-cifar", 32, "synthetic",
        )  # fmt: skip
        assert (case["compile"], case["gpus"], case["accumulate"]) == (False, 1, 1)
        assert case["layout"] in ("nchw", "nhwc")
        assert case["workers"] == 0, "data on the device needs none"
        assert case["batch"] > 0
        for name in (
            "images_per_s", "step_s", "times_s", "data_wait_s", "memory_peak_bytes",
            "gpu_util_pct", "power_w", "images_per_j", "loss", "accuracy", "skipped_steps",
            "speedup", "warnings",
        ):  # fmt: skip
            assert name in result
        if result["status"] == "ok":
            assert (result["unit"], result["step_units"]) == ("img", case["batch"])
    assert "workers" not in report
    cases = [{**result["case"], "recipe": None} for result in run["results"]]
    assert cases == [cases[0]] * len(cases), "the arms differ in their recipe only"


def test_the_numbers_agree_with_each_other(timed: list[Doc]) -> None:
    for result in timed:
        check_steps(result)
        check_phases(result)
        peak = result["memory_peak_bytes"]
        assert peak is None or 100_000 < peak < 100e9
    fp32, amp = timed
    assert set(amp["speedup"]) == {"fp32"}
    check_speedup(amp, fp32, "fp32")
    assert amp["speedup"]["fp32"]["ci95"] is not None


def test_the_budget_is_kept(timed: list[Doc]) -> None:
    """Half a second of timing, or three rounds of a step or two where a step is long."""
    longest_s = max(max(result["times_s"]) for result in timed)
    assert sum(result["wall_s"] for result in timed) < 3 + 12 * longest_s


def test_the_screen_has_a_row_a_recipe(report: str, run: Doc) -> None:
    assert "cnn-cifar" in report
    for name, result in by_recipe(run).items():
        rows = [line for line in report.splitlines() if re.match(rf"\W*{name}\s", line)]
        assert rows, name
        if result["status"] == "ok":
            assert any(re.search(r"\d", row.split(name, 1)[1]) for row in rows)
    assert "img/s" in report
    speedup = by_recipe(run)["amp-bf16"]["speedup"]["fp32"]
    ratio, (low, high) = speedup["ratio"], speedup["ci95"]
    # as many digits as the interval lets stand; none where it holds 1
    written = [f"{ratio:.2f}", f"{ratio:.1f}", f"{ratio:.3g}", f"{ratio:.2g}"]
    assert any(one in report for one in (["~1"] if low <= 1 <= high else written)), speedup


def test_the_screen_says_batch_file_and_throughput_and_is_plain_and_fits(
    measured: Ran, run: Doc, folder: Path
) -> None:
    batch, lines = run["results"][0]["case"]["batch"], measured.stdout.splitlines()
    assert re.search(rf"batch\D{{0,3}}{batch}\b", measured.stdout)
    assert str(folder / "run.json") in measured.stdout.replace("\n", "")
    assert "In short" in measured.stdout
    assert any("img/s" in line for line in lines if PROGRESS.match(line))
    assert "\x1b" not in measured.stdout
    assert "\r" not in measured.stdout
    assert [line for line in lines[:-1] if len(line) > 100] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_document_tells_nothing_of_the_owner(run: Doc, folder: Path) -> None:
    assert run["command"][:3] == ["python", "-m", "e2e"]
    text = json.dumps({**run, "command": []})
    users = [] if getpass.getuser() == "root" else [getpass.getuser()]
    for word in (socket.gethostname(), f"{Path.home()}/", str(ROOT), str(folder), *users):
        assert word not in text


# ---------------------------------------------------------------- show, compare, resume


def test_show_prints_the_same_again_and_phases_when_asked(
    report: str, run: Doc, folder: Path, capfd: Captured
) -> None:
    assert shown(folder / "run.json", capfd).strip() == report
    phases = shown(folder / "run.json", capfd, "--verbose")
    for phase in ("data", "copy", "forward", "backward", "optimizer"):
        assert phase in phases


def test_the_csv_has_a_line_a_result(run: Doc, folder: Path, capfd: Captured) -> None:
    text = shown(folder / "run.json", capfd, "--csv")
    assert text.split() == (folder / "run.csv").read_text().split()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(run["results"])
    for row, result in zip(rows, run["results"], strict=True):
        assert (row["op"], row["status"]) == ("train", result["status"])
        assert row["recipe"] == result["case"]["recipe"]
        assert row["batch"] == str(result["case"]["batch"])
        if result["status"] == "ok":
            assert float(row["images_per_s"]) == pytest.approx(result["images_per_s"], rel=1e-3)
            assert float(row["step_s"]) == pytest.approx(result["step_s"], rel=1e-3)


def test_markdown_has_a_row_a_recipe(run: Doc, folder: Path, capfd: Captured) -> None:
    text = shown(folder / "run.json", capfd, "--markdown")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for recipe in by_recipe(run):
        assert any(re.search(rf"\| *{recipe} *\|", line) for line in lines), recipe


def test_a_slower_training_fails_a_comparison_when_asked_to(
    run: Doc, folder: Path, tmp_path: Path, capfd: Captured
) -> None:
    same = str(folder / "run.json")
    assert microbench(["compare", same, same, "--fail-on", "slower,faster"]) == 0
    out, err = capfd.readouterr()
    assert (err, "amp-bf16" in out) == ("", True)
    files = []
    for factor in (1, 4):
        changed = json.loads(json.dumps(run))
        for result in changed["results"]:
            if result["status"] == "ok":
                count = sum(result["blocks"])
                times = [1e-3 * factor * (1 + i % 2 * 1e-4) for i in range(count)]
                result.update(times_s=times, wall_times_s=times, step_s=median(times),
                              ci95_s=[min(times), max(times)])  # fmt: skip
                result["images_per_s"] = result["step_units"] / result["step_s"]
        files.append(tmp_path / f"{factor}.json")
        files[-1].write_text(json.dumps(changed))
    a, b = map(str, files)
    assert microbench(["compare", a, b]) == 0
    assert microbench(["compare", a, b, "--fail-on", "slower"]) == 1
    assert "slower" in capfd.readouterr().out
    assert microbench(["compare", b, a, "--fail-on", "slower"]) == 0


def test_nothing_is_left_to_resume_in_a_whole_run(
    run: Doc, folder: Path, tmp_path: Path, capfd: Captured
) -> None:
    file = shutil.copy(folder / "run.json", tmp_path / "whole.json")
    words = ["cnn-cifar", "--amp", "--batch", "8", *CPU, "--seed", "3", "--resume", str(file)]
    assert main([*words, "--csv", str(tmp_path / "again.csv")]) == 0
    assert capfd.readouterr().err == ""
    again = document(Path(file))
    assert json.dumps(again["results"]) == json.dumps(run["results"])
    assert (tmp_path / "again.csv").read_text() == (folder / "run.csv").read_text()


def test_processes_are_fresh_and_resuming_adds_one(tmp_path: Path, capfd: Captured) -> None:
    """Two processes, then a third: the times of those before are kept as they were."""
    file = tmp_path / "several.json"
    words = [*PAIR, "--batch", "2", "--seed", "3"]
    two = by_recipe(in_process("cnn-cifar", *words, "--processes", "2", file=file))
    more = [*map(str, words), *CPU, "--processes", "3", "--resume", str(file), "--quiet"]
    assert main(["cnn-cifar", *more]) == 0
    three = by_recipe(document(file))
    for name, before in two.items():
        after = three[name]
        assert [part["number"] for part in after["processes"]] == [0, 1, 2]
        assert after["processes"][:2] == before["processes"]
        count = len(before["times_s"])
        assert after["times_s"][:count] == before["times_s"]
        assert len(after["times_s"]) > count
        logs = [math.log(part["median_s"]) for part in after["processes"]]
        assert after["step_s"] == pytest.approx(math.exp(fmean(logs)))
    rounds = [part["rounds"] for part in three["fp32"]["processes"]]
    assert rounds == [part["rounds"] for part in three["amp-bf16"]["processes"]]
    each = [
        fmean(math.log(median(slow) / median(fast)) for slow, fast in zip(a, b, strict=True))
        for a, b in zip(*(_split(blocks_of(arm), rounds) for arm in three.values()), strict=True)
    ]
    ratio = three["amp-bf16"]["speedup"]["fp32"]
    assert ratio["ratio"] == pytest.approx(math.exp(fmean(each)), rel=1e-6)
    assert "3 processes" in " ".join(shown(file, capfd).split())


def _split(blocks: list[list[float]], rounds: list[int]) -> list[list[list[float]]]:
    left = iter(blocks)
    return [list(islice(left, count)) for count in rounds]


@pytest.mark.parametrize("number", ["0", "101", "two"])
def test_a_number_of_processes_that_cannot_be_is_one_line(number: str) -> None:
    ran = e2e("cnn-cifar", *CPU, "--processes", number)
    assert ran.returncode == 2
    assert "--processes" in ran.stderr


def test_resume_of_another_training_is_refused(run: Doc, folder: Path, capfd: Captured) -> None:
    """A file of one network is not gone on with by another, or is added to: never mixed up."""
    before = (folder / "run.json").read_bytes()
    words = ["cnn-cifar", "--amp", "--batch", "8", *CPU, "--seed", "4"]
    code = main([*words, "--resume", str(folder / "run.json")])
    out, err = capfd.readouterr()
    assert code == 2, out
    assert err.count("\n") == 1
    assert "seed" in err
    assert (folder / "run.json").read_bytes() == before


# ---------------------------------------------------------------- tokens, in this process


def test_tokens_are_counted(folder: Path, capfd: Captured) -> None:
    file = folder / "tokens.json"
    tokens = in_process("gpt-tiny", "--amp", "--batch", "2", file=file)
    arms = by_recipe(tokens)
    for name in ("fp32", "amp-bf16"):
        result = arms[name]
        assert result["unit"] == "tok"
        assert result["step_units"] == 2 * int(result["case"]["input"])
        assert (result["case"]["layout"], result["case"]["image_size"]) == ("", None)
        check_steps(result)
        check_phases(result)
    check_speedup(arms["amp-bf16"], arms["fp32"], "fp32")
    text = shown(file, capfd)
    assert "tok/s" in text
    assert "img/s" not in text


# ---------------------------------------------------------------- recipes


def test_apex_levels_all_run_or_say_why_not(own: Path, capfd: Captured) -> None:
    file = own / "levels.json"
    words = ["my_networks:build", "--recipe", "O0,O1,O2,O3", *OWN]
    arms = by_recipe(in_process(*words, file=file))
    assert list(arms) == ["O0", "O1", "O2", "O3"]
    assert arms["O0"]["status"] == "ok"
    text = shown(file, capfd)
    for name, result in arms.items():
        assert name in text
        if result["status"] != "ok":
            assert result["status"] == "skipped"
            assert "CPU" in result["reason"]
            continue
        check_steps(result)
        if name != "O0":
            (against,) = result["speedup"]
            check_speedup(result, arms["O0"], against)


def test_options_reach_the_case_the_step_and_the_screen(own: Path, capfd: Captured) -> None:
    file = own / "halves.json"
    words = ["my_networks:build", "--recipe", "fp16,bf16", "--loss-scale", "256", *OWN,
             "--keep-batchnorm-fp32", "--accumulate", "2", "--optimizer", "adamw", "--warmup", "2",
             "--label-smoothing", "0.1", "--layout", "nhwc", "--iterations", "4"]  # fmt: skip
    arms = by_recipe(in_process(*words, file=file))
    assert list(arms) == ["fp16", "bf16"]
    assert arms["fp16"]["case"]["loss_scale"] == 256
    assert "ok" in {result["status"] for result in arms.values()}
    for result in arms.values():
        case = result["case"]
        assert (case["layout"], case["optimizer"], case["label_smoothing"]) == (
            "nhwc", "adamw", 0.1,
        )  # fmt: skip
        assert (case["keep_batchnorm_fp32"], case["accumulate"]) == (True, 2)
        if result["status"] != "ok":
            assert "CPU" in result["reason"]
            continue
        assert result["step_units"] == 8, "accumulation doubles the images of a step"
        check_steps(result)
        (repeat,) = result["repeats"]
        assert repeat["steps"] == 4
        # scaled by 256 and not unscaled, it would be 256 times ln 10
        assert repeat["first_loss"] is None or 1 < repeat["first_loss"] < 5
    text = shown(file, capfd)
    assert "256" in text
    assert re.search(r"adamw", text, re.IGNORECASE)
    assert "accumul" in text


def test_a_range_of_batches_is_a_comparison_each_seen_on_a_terminal(
    folder: Path, capfd: Captured
) -> None:
    file = folder / "batches.json"
    live = on_a_terminal(main, "e2e", "my_networks:build", *PAIR, "--input", "3x8x8",
                         "--batch", "4..16", *CPU, "--json", file, cwd=folder)  # fmt: skip
    assert re.search(r"\d+ ?s left|left", live), "the line tells the time left"
    assert "img/s" in live
    results = document(file)["results"]
    cells = {(r["case"]["batch"], r["case"]["recipe"]): r for r in results}
    assert len(cells) == len(results) == 6
    assert {batch for batch, _ in cells} == {4, 8, 16}
    text = shown(file, capfd)
    for batch in (4, 8, 16):
        fp32, amp = cells[batch, "fp32"], cells[batch, "amp-bf16"]
        assert fp32["step_units"] == batch
        check_steps(fp32)
        check_steps(amp)
        check_speedup(amp, fp32, "fp32")
        assert re.search(rf"^.*\b{batch}\b.*$", text, re.MULTILINE)
    assert len(re.findall(r"^\W*(?:\d+ +)?amp-bf16 ", text, re.MULTILINE)) >= 3


# ---------------------------------------------------------------- the ladder

RUNGS = {
    "fp32": r"fp32", "tf32": r"tf32", "channels_last": r"channels_last|nhwc",
    "amp": r"amp", "fused": r"fused", "compile": r"compile", "graph": r"graph",
}  # fmt: skip


@pytest.mark.slow
def test_a_ladder_adds_one_change_a_rung_and_compares_with_the_one_before(folder: Path) -> None:
    file = folder / "ladder.json"
    ladder = e2e("cnn-cifar", "--ladder", "--batch", "2", *CPU, "--json", file)
    assert (ladder.returncode, ladder.stderr) == (0, "")
    results, text = document(file)["results"], report_of(ladder.stdout)
    for result in results:
        assert result["rung"] in text
        assert result["status"] in ("ok", "skipped"), result["reason"]
    assert [name for name, r in RUNGS.items() if re.search(r, text, re.IGNORECASE) is None] == []
    rungs = {
        name: result for result in results for name, pattern in RUNGS.items()
        if re.search(pattern, result["rung"], re.IGNORECASE)
    }  # fmt: skip
    for name in ("fp32", "channels_last", "amp", "fused"):
        assert rungs[name]["status"] == "ok", rungs[name]["reason"]
    order = list(RUNGS)
    for name, result in rungs.items():  # each keeps what the ones before it added
        case, reached = result["case"], order.index(name)
        for rung in ("fused", "compile", "graph"):
            assert case[rung] == (reached >= order.index(rung))
        assert (case["layout"] == "nhwc") == (reached >= order.index("channels_last"))
        assert (case["recipe"] == "amp-bf16") == (reached >= order.index("amp"))
    for name in ("tf32", "graph"):  # a skip is a result; a rung that is not there is a question
        assert rungs[name]["status"] == "skipped"
        assert "CPU" in rungs[name]["reason"]
    ok = [result for result in results if result["status"] == "ok"]
    for before, result in pairwise(ok):
        check_steps(result)
        assert set(result["speedup"]) >= {"previous", "first"}
        check_speedup(result, before, "previous")
        check_speedup(result, ok[0], "first")
    if shutil.which("g++") is not None:  # which torch.compile needs
        compiled = rungs["compile"]
        assert compiled["status"] == "ok", compiled["reason"]
        assert 0 < compiled["compile_s"] <= compiled["setup_s"]
        assert max(compiled["times_s"]) < compiled["compile_s"]


# ---------------------------------------------------------------- training

SMALL = ("my_networks:small", "--input", "3x32x32", "--data", "generated")
TRAINED = (*SMALL, *PAIR, "--iterations", "12", "--batch", "64")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Ran:
    return e2e(*TRAINED, "--seed", "5", "--repeats", "2", *CPU,
               "--json", folder / "trained.json", cwd=folder)  # fmt: skip


@pytest.fixture(scope="module")
def training(trained: Ran, folder: Path) -> Doc:
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr == ""
    return document(folder / "trained.json")


def test_a_training_lists_its_seeds_and_says_its_data(
    training: Doc, trained: Ran, folder: Path, capfd: Captured
) -> None:
    arms, text = by_recipe(training), report_of(trained.stdout)
    for result in arms.values():
        assert [repeat["seed"] for repeat in result["repeats"]] == [5, 6]
        assert [repeat["steps"] for repeat in result["repeats"]] == [12, 12]
        assert [len(repeat["curve"]) for repeat in result["repeats"]] == [12, 12]
        assert result["case"]["data"] == "generated"
        check_steps(result)
    assert re.search(r"seeds?\D*5\D{1,5}6", text)
    markdown, table = (shown(folder / "trained.json", capfd, f"--{k}") for k in ("markdown", "csv"))
    assert all("generated" in said for said in (text, markdown, table))
    for fp32, amp in zip(arms["fp32"]["repeats"], arms["amp-bf16"]["repeats"], strict=True):
        assert fp32["first_loss"] == pytest.approx(amp["first_loss"], rel=0.05), "the same start"


def test_trainings_of_one_seed_begin_alike_and_resume_keeps_it(folder: Path) -> None:
    file = folder / "same.json"
    words = (*SMALL, "--recipe", "fp32", "--iterations", "3", "--batch", "16", *CPU)
    ran = e2e(*words, "--repeats", "2", "--same-seed", "--json", file, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert e2e("--resume", file, "--repeats", "3", cwd=folder).returncode == 0
    (result,) = document(file)["results"]
    assert [repeat["seed"] for repeat in result["repeats"]] == [1, 1, 1]
    assert len({repeat["curve"][0] for repeat in result["repeats"]}) == 1


def test_held_out_accuracy_is_a_share_and_its_mean_that_of_the_repeats(training: Doc) -> None:
    for result in by_recipe(training).values():
        for name in ("accuracy", "loss"):
            values = [repeat[name] for repeat in result["repeats"]]
            assert result[name]["mean"] == pytest.approx(fmean(values))
            assert result[name]["std"] == pytest.approx(stdev(values), abs=1e-9)
        for repeat in result["repeats"]:
            assert 0 <= repeat["accuracy"] <= 1
            assert repeat["train_s"] > 0
            assert 0 < repeat["loss"] < 100
        assert result["chance"] == pytest.approx(0.1)
        assert result["converged"] is True or result["convergence"]


def test_resume_trains_the_missing_seed_only(training: Doc, own: Path) -> None:
    """What was measured is kept to the last byte; what is new is what a whole run gives."""
    shorter = json.loads(json.dumps(training))
    for result in shorter["results"]:
        del result["repeats"][1:]
        result["accuracy"] = result["loss"] = None
    file = own / "shorter.json"
    file.write_text(json.dumps(shorter))
    words = [*TRAINED, "--seed", "5", "--repeats", "2", *CPU, "--quiet", "--resume", str(file)]
    assert main(words) == 0
    whole = by_recipe(document(file))
    for name, before in by_recipe(training).items():
        after = whole[name]
        for field in ("case", "times_s", "wall_times_s", "blocks", "phases", "speedup"):
            assert json.dumps(after[field]) == json.dumps(before[field])
        assert json.dumps(after["repeats"][0]) == json.dumps(before["repeats"][0])
        assert [repeat["seed"] for repeat in after["repeats"]] == [5, 6]
        for field in ("loss", "train_loss", "first_loss", "accuracy"):  # the same seed: the same
            assert after["repeats"][1][field] == before["repeats"][1][field]


def test_how_it_was_trained_is_in_the_case_and_resume_knows_it(own: Path) -> None:
    """An older file has the rate as a setting of the run: it is the same training."""
    file = own / "scheduled.json"
    how = {"lr": 0.02, "warmup": 2, "schedule": "step:50/2", "clip": 1.5, "held_out": 40}
    words = [*TRAINED, *(w for n, v in how.items() for w in (f"--{n.replace('_', '-')}", str(v)))]
    first = in_process(*words, file=file)
    for result in first["results"]:
        assert {name: result["case"][name] for name in how} == how
        (repeat,) = result["repeats"]
        assert (40 * repeat["accuracy"]).is_integer()
        assert repeat["mean_loss"] == pytest.approx(fmean(repeat["curve"]))
        assert repeat["last_loss"] == repeat["curve"][-1]
    older = json.loads(json.dumps(first))
    for result in older["results"]:
        del result["case"]["lr"], result["case"]["warmup"]
    older["settings"]["training"] |= {"lr": 0.02, "warmup": 2}
    file.write_text(json.dumps(older))
    go_on = [*words, *CPU, "--quiet", "--resume", str(file)]
    assert main(go_on) == 0
    again = document(file)
    assert json.dumps(again["results"]) == json.dumps(first["results"])
    assert main([*go_on, "--clip", "3"]) == 0
    assert sorted(r["case"]["clip"] for r in document(file)["results"]) == [1.5, 1.5, 3.0, 3.0]


def test_fine_tuning_keeps_the_name_of_its_file_and_no_path(own: Path, capfd: Captured) -> None:
    import torch

    from e2e.networks import find

    folder, file = own / "zoo", own / "tuned.json"
    folder.mkdir()
    torch.save(find("cnn-cifar").build().state_dict(), folder / "cnn-cifar.pth")
    words = ["cnn-cifar", "--recipe", "fp32", "--batch", "8", "--iterations", "4",
             "--freeze", "body", "--deterministic", "--count-gradients", "2",
             "--budget", "0.5"]  # fmt: skip
    (result,) = in_process(*words, "--weights", str(folder), file=file)["results"]
    assert result["status"] == "ok", result["reason"]
    assert (result["case"]["weights"], result["case"]["freeze"]) == ("cnn-cifar.pth", "body")
    assert 0 <= result["repeats"][0]["zero_gradients"] < 1
    assert str(folder) not in file.read_text()
    capfd.readouterr()
    bad = folder / "bad.pth"
    torch.save({"weight": torch.ones(2)}, bad)
    for path, said in ((folder / "none.pth", "no such file"), (bad, "it has no")):
        assert main([*words, *CPU, "--weights", str(path)]) == 2
        error = capfd.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--iterations", "2", "--held-out", "4"], "--held-out"),
        (["--schedule", "cosine"], "--schedule"),
        (["--iterations", "2", "--schedule", "cosine:x"], "--schedule"),
        (["--data", "generated", "--iterations", "2", "--held-out", "10001"], "--held-out 10001"),
    ],
)
def test_what_cannot_be_scheduled_or_held_out_is_said_in_a_line(
    words: list[str], said: str, capfd: Captured
) -> None:
    assert main(["cnn-cifar", *words, "--recipe", "fp32", *CPU]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_network_that_can_learn_learns(own: Path) -> None:
    words = [*SMALL, "--recipe", "amp-bf16", "--iterations", "500", "--batch", "64",
             "--optimizer", "adamw", "--lr", "0.003"]  # fmt: skip
    (result,) = in_process(*words, file=own / "learnt.json")["results"]
    (repeat,) = result["repeats"]
    assert repeat["accuracy"] > 0.2, "half of it is guessing"
    assert repeat["train_loss"] < repeat["first_loss"]
    assert result["converged"] is True, result["convergence"]


def in_short(text: str) -> list[str]:
    """The sentences of the verdict."""
    short = text.split("In short")[1].split("\n\n")[0]
    return re.split(r"(?<=[.!])\s+", " ".join(short.split()))


def check_no_gain_is_told(text: str, recipe: str) -> None:
    for sentence in in_short(text):
        if recipe in sentence and re.search(r"faster|pays off|gain", sentence):
            assert re.search(r"not converge|no gain|not a gain|not count", sentence), sentence


def test_a_rate_of_a_million_does_not_converge(folder: Path) -> None:
    file = folder / "diverged.json"
    ran = e2e(*SMALL, *PAIR, "--iterations", "15", "--batch", "64", "--lr", "1e6", *CPU,
              "--json", file, cwd=folder)  # fmt: skip
    assert ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr
    text = report_of(ran.stdout)
    for name, result in by_recipe(document(file)).items():
        assert result["converged"] is False, (name, result["convergence"])
        assert result["convergence"]
        check_no_gain_is_told(text, name)
    assert "not converged" in text


def test_the_speedup_of_what_does_not_learn_is_not_called_a_gain(
    training: Doc, tmp_path: Path, capfd: Captured
) -> None:
    texts = {}
    for converged in (True, False):
        changed = json.loads(json.dumps(training))
        arms = by_recipe(changed)
        for result in arms.values():
            result.update(converged=True, convergence="learns")
        arms["amp-bf16"]["speedup"]["fp32"] = {"ratio": 2.0, "ci95": [1.99, 2.01]}
        if not converged:
            arms["amp-bf16"].update(converged=False, convergence="the loss is not finite")
        file = tmp_path / f"{converged}.json"
        file.write_text(json.dumps(changed))
        texts[converged] = shown(file, capfd)
    gains = [s for s in in_short(texts[True]) if "amp-bf16" in s and "faster" in s]
    assert gains, texts[True]
    assert "not converged" in texts[False]
    assert "not converged" not in texts[True]
    check_no_gain_is_told(texts[False], "amp-bf16")


# ---------------------------------------------------------------- the user's own network


def test_an_own_network_with_an_own_loss(folder: Path) -> None:
    ran = e2e("my_networks:build", "--amp", *OWN, "--loss", "my_networks:squares", *CPU,
              "--iterations", "12", "--repeats", "2",
              "--json", folder / "own.json", cwd=folder)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    arms = by_recipe(document(folder / "own.json"))
    assert arms["fp32"]["case"]["network"] == "my_networks:build"
    assert arms["fp32"]["case"]["input"] == "3x8x8"
    # (sum of squares of 10 outputs about zero, less one) / 10: not a cross-entropy, about 2.3
    for result in (arms["fp32"], arms["amp-bf16"]):
        check_steps(result)
        assert [repeat["seed"] for repeat in result["repeats"]] == [1, 2]
        for repeat in result["repeats"]:
            assert 0.01 < repeat["first_loss"] < 1
            assert repeat["accuracy"] is None or 0 <= repeat["accuracy"] <= 1
    assert "my_networks:build" in ran.stdout


def test_an_own_network_needs_no_loss_and_amp_goes_with_more_recipes(own: Path) -> None:
    """The main comparison, and one more recipe beside it."""
    words = ["my_networks:build", "--amp", "--recipe", "fp32,bf16", *OWN]
    arms = by_recipe(in_process(*words, file=own / "more.json"))
    assert list(arms) == ["fp32", "tf32", "amp-bf16", "bf16"]
    for name in ("fp32", "amp-bf16", "bf16"):
        check_steps(arms[name])
        assert arms[name]["step_units"] == 4


def broken(capfd: Captured, network: str, *words: str, file: Path) -> tuple[int, str, str]:
    """Exit code and what was printed of an own network that cannot train as asked."""
    code = main([f"my_networks:{network}", *OWN, *CPU, *words, "--json", str(file)])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_a_loss_of_nan_is_not_converged(own: Path, capfd: Captured) -> None:
    file = own / "nan.json"
    words = (*PAIR, "--loss", "my_networks:not_a_number", "--iterations", "5")
    code, out, err = broken(capfd, "build", *words, file=file)
    assert code in (0, 1), err
    for result in document(file)["results"]:
        assert result["converged"] is False
        assert all(repeat["loss"] is None for repeat in result["repeats"])
        assert result["loss"] is None
        check_no_gain_is_told(out, result["case"]["recipe"])
    assert "not converged" in out
    assert re.search(r"not finite|NaN|nan", report_of(out))


def test_a_forward_that_fails_says_its_own_error(own: Path, capfd: Captured) -> None:
    code, out, err = broken(capfd, "broken", *PAIR, file=own / "broken.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "forward is broken" in err


def test_a_forward_that_fails_under_one_recipe_fails_that_row_only(
    own: Path, capfd: Captured
) -> None:
    file = own / "picky.json"
    code, out, err = broken(capfd, "picky", *PAIR, file=file)
    assert code == 0, err
    arms = by_recipe(document(file))
    assert arms["fp32"]["status"] == "ok"
    check_steps(arms["fp32"])
    assert arms["amp-bf16"]["status"] == "failed"
    assert "I will not be cast" in arms["amp-bf16"]["reason"]
    assert "\n" not in arms["amp-bf16"]["reason"]
    assert "I will not be cast" in " ".join(report_of(out).split())


def test_a_loss_that_raises_says_its_own_error(own: Path, capfd: Captured) -> None:
    file = own / "no-loss-today.json"
    words = ("--recipe", "fp32", "--loss", "my_networks:failing_loss")
    code, out, err = broken(capfd, "build", *words, file=file)
    assert code == 1  # all that was tried has failed
    assert document(file)["results"][0]["status"] == "failed"
    assert "no loss today" in " ".join((out + err).split())


BAD_OWN = {
    "my_bad_syntax:build": ("my_bad_syntax", "yntax"),
    "my_networks:nothing": ("nothing", "my_networks"),
    "my_networks:raises": ("broken on purpose",),
    "my_networks:leaves": ("my_networks:leaves",),
    "my_networks:number": ("int", "Module"),
    ":build": (":build",),
    "my_networks:build --loss nonsense": ("nonsense",),
}


def refused(words: str, said: tuple[str, ...], capfd: Captured) -> None:
    """Exit code 2, one line on stderr that says what, nothing else."""
    capfd.readouterr()
    code = main(shlex.split(words))
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), out[-1000:] + err
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    for word in said:
        assert word in err


@pytest.mark.parametrize("words", BAD_OWN)
def test_a_bad_module_is_one_line(
    words: str, own: Path, tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refused(f"{words} --device cpu --budget 1", BAD_OWN[words], capfd)
    assert list(tmp_path.rglob("*.json")) == []


# ---------------------------------------------------------------- data folders


def image_folder(top: Path, broken: bool) -> Path:
    for part, count in (("train", 10), ("val", 4)):
        for name in ("cat", "dog"):
            for i in range(count):
                save(noise(i), top / part / name / f"{name}{i}.png")
    if broken:
        cats = top / "train" / "cat"
        whole = (cats / "cat9.png").read_bytes()
        put(cats / "empty.jpg", b"")
        put(cats / "words.png", b"this is no image")
        put(cats / "half.png", whole[: len(whole) // 2])
    return top


@pytest.fixture(scope="module")
def broken_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), broken=True)


FOLDER = ("my_networks:small", "--input", "3x32x32", "--recipe", "fp32", "--batch", "4",
          "--epochs", "1")  # fmt: skip


@pytest.mark.slow
def test_broken_images_are_named_counted_and_left_out(broken_images: Path, folder: Path) -> None:
    ran = e2e(*FOLDER, "--data", f"folder:{broken_images}", "--workers", "1", *CPU,
              "--json", folder / "images.json", cwd=folder)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    text = " ".join(ran.stdout.split())
    for name in ("empty.jpg", "words.png", "half.png"):
        assert name in text
    assert re.search(r"\b3 (broken|images)", text)
    (result,) = document(folder / "images.json")["results"]
    assert (result["case"]["data"], result["case"]["loader"]) == ("folder", "torchvision")
    (repeat,) = result["repeats"]
    assert repeat["steps"] == 6  # 21 of 23, in fours: half.png is known only when it is decoded
    assert 0 <= repeat["accuracy"] <= 1
    assert result["chance"] == pytest.approx(0.5)
    check_steps(result)


def test_strict_ends_at_a_broken_image(
    broken_images: Path, own: Path, tmp_path: Path, capfd: Captured
) -> None:
    words = (*FOLDER, "--data", f"folder:{broken_images}", "--strict", *CPU)
    refused(" ".join([*words, "--json", str(tmp_path / "strict.json")]), ("empty.jpg",), capfd)


def test_strict_has_nothing_against_whole_images(own: Path, tmp_path: Path) -> None:
    """And the loader works without processes of its own."""
    images = image_folder(tmp_path / "images", broken=False)
    words = [*FOLDER, "--data", f"folder:{images}", "--strict", "--workers", "0"]
    run = in_process(*words, file=tmp_path / "run.json")
    (result,) = run["results"]
    assert result["repeats"][0]["steps"] == 5


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.slow
def test_ctrl_c_while_training_keeps_what_is_done_and_says_how_to_go_on(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "my run.json"
    words = ["my_networks:build", *PAIR, *OWN, "--iterations", "1000000", *CPU,
             "--json", str(file)]  # fmt: skip
    ran = interrupted(
        main, "e2e", *words, when=lambda: file.exists() and read_run(file).of(Training),
        cwd=folder,
    )  # fmt: skip
    stderr = ran.stderr
    assert ran.returncode == 130
    assert "Traceback" not in stderr
    run = document(file)
    assert run["finished_at"] is None
    assert {result["op"] for result in run["results"]} == {"train"}
    assert any(result["times_s"] for result in run["results"])
    (command,) = [line for line in stderr.splitlines() if "--resume" in line]
    again = shlex.split(command)
    assert again[:3] == ["python", "-m", "e2e"]
    assert again[again.index("--resume") + 1] == str(file)
    assert "--json" not in again
    for word in ("my_networks:build", "fp32,amp-bf16", "1000000"):
        assert word in again
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


# ---------------------------------------------------------------- bad input

# What each option refuses: tests/e2e/test_case.py.
BAD_WORDS = {
    "cnn-cifr": ("cnn-cifr", "cnn-cifar"),
    "xyzzy": ("xyzzy", "list"),
    "cnn-cifar --recipe fp7": ("fp7", "fp32", "amp", "bf16", "O2"),
    "cnn-cifar --recipe ''": ("--recipe",),
    "cnn-cifar --batch 0": ("--batch", "0"),
    "cnn-cifar --batch 16..4": ("4..16",),
    "cnn-cifar --batch 4.5": ("--batch", "4.5"),
    "cnn-cifar --batch 1..1000000:+1": ("--batch",),
    "cnn-cifar --iterations 1.5": ("--iterations",),
    "cnn-cifar --epochs 0 --data generated": ("--epochs",),
    "cnn-cifar --epochs 1 --iterations 5 --data generated": ("--epochs", "--iterations"),
    "cnn-cifar --epochs 1": ("epochs", "synthetic", "--iterations"),
    "cnn-cifar --repeats 0 --iterations 5": ("--repeats",),
    "cnn-cifar --repeats 3": ("--repeats", "--iterations"),
    "cnn-cifar --input nonsense": ("--input", "nonsense"),
    "cnn-cifar --graph": ("--graph", "CPU"),
    "cnn-cifar --lr fast": ("--lr", "fast"),
    "cnn-cifar --label-smoothing 1.5": ("--label-smoothing", "1.5"),
    "cnn-cifar --seed=-1": ("--seed",),
    "cnn-cifar --seed x": ("--seed",),
    "cnn-cifar --budget soon": ("--budget",),
    "cnn-cifar --device gpu": ("device", "gpu", "cuda"),
    "cnn-cifar --json /nowhere/run.json": ("--json",),
    "cnn-cifar --json /tmp": ("--json",),
    "cnn-cifar --csv /nowhere/run.csv": ("--csv",),
    "cnn-cifar --resume /nowhere/run.json": ("/nowhere/run.json",),
    "cnn-cifar --chart chart.pdf": ("chart.pdf", ".png", ".svg", ".html"),
    "cnn-cifar --chart /nowhere/chart.svg": ("--chart",),
    "cnn-cifar --frobnicate": ("--frobnicate",),
    "cnn-cifar extra": ("extra",),
    "cnn-cifar --batch": ("--batch",),
    "train": ("NETWORK",),
}


# What only the process with the device can tell; all else is told before one is started.
NEEDS_DEVICE = ("--epochs 1", "--graph", "--device")


class Unasked:
    """In the place of the training process: it may be started early, and is asked nothing."""

    def __init__(self, _settings: object, *, here: bool, gpus: int) -> None:
        assert not here
        assert gpus == 1

    def close(self) -> None:
        """As the real one's: after a mistake too."""

    def __getattr__(self, name: str) -> None:
        pytest.fail(f"the training process was asked to {name}")


@pytest.mark.parametrize("words", BAD_WORDS)
def test_bad_words_are_one_line(
    words: str, tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    import e2e.commands.train as commands

    if not any(option in words for option in NEEDS_DEVICE):
        monkeypatch.setattr(commands, "TrainWorker", Unasked)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    no_device = "--device" in words or words == "train" or words.endswith("--batch")
    refused(words if no_device else f"{words} --device cpu", BAD_WORDS[words], capfd)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_bad_words_in_a_real_process() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "e2e", "cnn-cifr"], capture_output=True, text=True, timeout=240,
        cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "cnn-cifar" in ran.stderr


@pytest.mark.parametrize("kind", ["folder", "cifar10"])
@pytest.mark.parametrize("files", [None, (), ("cat/a.png", "dog/a.png")])
def test_a_folder_without_an_image_is_one_line(
    kind: str, files: tuple[str, ...] | None, tmp_path: Path, capfd: Captured
) -> None:
    """One that is not there, an empty one, and one of broken images only."""
    images = tmp_path / "pictures"
    if files is not None:
        images.mkdir()
    for name in [f"{part}/{name}" for part in ("train", "val") for name in files or ()]:
        (images / name).parent.mkdir(parents=True)
        (images / name).write_text("no image")
    words = f"cnn-cifar --device cpu --data {kind}:{images} --json {tmp_path / 'run.json'}"
    refused(words, ("pictures",), capfd)
    assert not (tmp_path / "run.json").exists()


def test_a_gpu_that_is_not_there_is_one_line(capfd: Captured) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused("cnn-cifar --device cuda", ("CUDA", "--device cpu"), capfd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--json {run}", ("--json", "--resume")),
        ("--resume {run} --json {other}", ("--json", "--resume")),
        ("--resume {gemm}", ("gemm.json is not a run of e2e",)),
        ("--resume {notes}", ("notes.json",)),
    ],
)
def test_a_file_that_cannot_be_gone_on_with_stays_as_it_is(
    words: str, said: tuple[str, ...], run: Doc, folder: Path, tmp_path: Path, capfd: Captured
) -> None:
    """A run file that exists, one of kernels, and no run file."""
    names = ("run", "other", "gemm", "notes")
    files = {name: tmp_path / f"{name}.json" for name in names}
    shutil.copy(folder / "run.json", files["run"])
    shutil.copy(ROOT / "results" / "nvidia-h200" / "gemm-fp16.json", files["gemm"])
    files["notes"].write_text("[1, 2")
    before = {name: file.read_bytes() for name, file in files.items() if file.exists()}
    refused(f"cnn-cifar --device cpu {words.format(**files)}", said, capfd)
    assert before == {name: file.read_bytes() for name, file in files.items() if file.exists()}


# ---------------------------------------------------------------- list, explain, help


def test_list_names_every_network(capfd: Captured) -> None:
    from torchvision import models

    assert main(["list"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    named = set(re.findall(r"[\w-]+", out))
    assert set(models.list_models(module=models)) <= named
    assert {
        "resnet18-cifar", "resnet34-cifar", "resnet50-cifar", "vgg16-cifar", "wrn-16-4",
        "wrn-28-10", "vit_b_16", "gpt", "gpt-tiny", "cnn-cifar",
    } <= named  # fmt: skip
    assert "module:function" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_explain_names_every_recipe_and_trains_nothing(
    tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["cnn-cifar", "--explain"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    for recipe in ("fp32", "tf32", "amp", "amp-bf16", "fp16", "bf16", "O0", "O1", "O2", "O3"):
        assert re.search(rf"^\W*{recipe}\s", out, re.MULTILINE), recipe
    for words in ("dynamic", "master", "batch-norm", "--keep-batchnorm-fp32"):
        assert words in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert list(tmp_path.rglob("*.json")) == []


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from e2e.__main__ import main\n"
        "codes = [main([*words, '--help']) for words in ([], ['train'], ['list'])]\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'triton', 'pynvml'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert not any(codes), codes"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("list", "train", "--amp", "--ladder", "--recipe", "--resume", "--keep-batchnorm"):
        assert word in ran.stdout


def test_the_network_may_stand_first_or_after_train(capfd: Captured) -> None:
    assert main(["train", "cnn-cifar", "--explain"]) == 0
    first = capfd.readouterr().out
    assert main(["--amp", "cnn-cifar", "--explain"]) == 0
    assert capfd.readouterr().out == first


def test_quiet_says_nothing_and_keeps_the_run_in_the_state_folder(
    own: Path, tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["my_networks:build", "--recipe", "fp32", *OWN, *CPU, "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    (file,) = tmp_path.rglob("*.json")
    assert read_run(file).finished_at
