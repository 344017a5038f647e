"""What is special to commands of kernels, `compare` and the console command."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from samples.commands import ROOT, Ran, environment, run_here
from samples.shop import Shop

import e2e.__main__ as training_line
import microbench.__main__ as kernels_line
from e2e.halfway import SECTIONS, app, dev, main
from microbench import __version__
from microbench.results.runfile import read_run
from microbench.run_output import command_line

MISTAKES = (
    "gemm --dtype fp7", "train resnet5 --amp", "predict mine:build --recipe fp7",
    "stalls resnet18 --loader none", "loader --backend none", "diagnose none.py", "diagnose a.json",
    "layers resnet5", "train resnet50 --recipe amp16", "train none:build", "list --all",
)  # fmt: skip
# What needs torch is in their children.
WITHOUT_TORCH = ("list", "predict cnn-cifar --recipe fp32 --batch 2 --device cpu --quiet")
TINY = ("--dtype", "fp32", "--vs", "none", "--sizes", "16", "--device", "cpu", "--budget", "0.2")


def halfway(*words: object, **environment: str) -> Ran:
    return run_here(main, "halfway", *words, **environment)


# ---------------------------------------------------------------- runs


def test_a_run_for_standard_output_has_it_alone() -> None:
    """And a CPU has no TF32, which is a result with its reason."""
    ran = halfway("gemm", "--dtype", "fp16", *TINY[4:], "--json", "-", "--seed", "3")
    assert ran.returncode == 0, ran.stderr
    run = json.loads(ran.stdout)
    assert run["settings"]["seed"] == 3
    assert "GFLOP/s" in ran.stderr
    found = {result["precision"]: result for result in run["results"]}
    statuses = {name: result["status"] for name, result in found.items()}
    assert statuses == {"fp32": "ok", "tf32": "skipped", "fp16": "ok"}
    assert "CPU" in found["tf32"]["reason"]
    assert found["tf32"]["flops"] == 2 * 16**3, "what was skipped has its work in the file too"
    for name in ("fp32", "fp16"):
        low, high = found[name]["ci95_s"] or (found[name]["median_s"],) * 2
        assert 0 < low <= found[name]["median_s"] <= high
        assert found[name]["bound"]
        assert found[name]["rel_error"] is not None


def test_a_run_file_keeps_no_path_of_its_command() -> None:
    def kept(name: str, *words: str) -> tuple[object, ...]:
        with app.commands[name].make_context(name, list(words)).scope():
            return command_line("e2e")[2:]

    assert kept("train", "hf:/home/me/config.json", "--data", "folder:/home/me/images/", "--batch",
                "16..512:+1", "--json", "/tmp/x.json", "--no-fused", "--budget", "0.5") == (
        "e2e", "train", "hf:config.json", "--batch", "16..512:+1", "--no-fused", "--data",
        "folder:images", "--budget", "0.5",
    )  # fmt: skip
    shapes = ("--shapes=private/s.csv", "--without=tma/*", "--json=/tmp/x.json")
    assert kept("conv", *shapes) == ("e2e", "conv", "--shapes", "s.csv", "--without", "tma/*")


# ---------------------------------------------------------------- the console command


def test_every_command_of_both_packages_is_one_of_halfways() -> None:
    ours = {id(command) for group in (app, dev) for command in group.commands.values()}
    for group in (kernels_line.app, training_line.app):
        assert {id(command) for command in group.commands.values()} <= ours
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted([*listed, "dev"]) == sorted(app.commands)
    assert len(listed) <= 17


def test_it_is_installed_and_says_its_version() -> None:
    program = shutil.which("halfway", path=str(Path(sys.executable).parent))
    assert program, "pip install -e . puts it beside python"
    found = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == f"halfway, version {__version__}"


def test_help_and_bad_words_import_nothing_heavy() -> None:
    code = (
        "import sys; from e2e.halfway import app, main\n"
        "codes = [main([*words, '--help-all']) for words in ([], *([n] for n in app.commands))]\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'triton', 'cupy', 'pynvml', 'rich'}\n"
        "assert not any(codes), codes\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"assert [main(words.split()) for words in {MISTAKES}] == [2] * {len(MISTAKES)}\n"
        f"assert [main(words.split()) for words in {WITHOUT_TORCH}] == [0] * {len(WITHOUT_TORCH)}\n"
        "assert not {'torch', 'torchvision'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("--sizes", "--resume", "--fail-on", "--amp", "--ladder", "--keep-batchnorm"):
        assert word in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 100


def test_bash_completes_commands() -> None:
    environment = {
        "COMP_WORDS": "halfway pre", "COMP_CWORD": "1", "_HALFWAY_COMPLETE": "bash_complete",
        "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from e2e.halfway import app; app(prog_name='halfway')"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.split() == ["plain,predict"]


# ---------------------------------------------------------------- compare


RESULTS = ROOT / "results" / "nvidia-h200"
GEMM, OWN = (RESULTS / f"gemm-{name}.json" for name in ("fp16", "triton"))
TRAINED, EIGHT = RESULTS / "train-resnet50.json", RESULTS / "processes-gemm.json"


def slower(source: Path, path: Path, factor: float) -> Path:
    """A published run that took this many times as long."""
    document = json.loads(source.read_text())
    for result in document["results"]:
        for part in (result, *(result.get("processes") or ())):
            for name in ("median_s", "step_s", "ci95_s", "times_s", "wall_times_s"):
                value = part.get(name)
                if isinstance(value, list):
                    part[name] = [factor * seconds for seconds in value]
                elif value:
                    part[name] = factor * value
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slower(GEMM, tmp_path_factory.mktemp("slow") / "slow.json", 1.2)


def test_exit_codes(slow: Path, tmp_path: Path) -> None:
    assert halfway("compare", GEMM, OWN, slow, "--fail-on", "slower").returncode == 1
    assert halfway("compare", GEMM, OWN).returncode == 0
    assert halfway("compare", GEMM, OWN, "--fail-on", "slower").returncode == 1, "it lacks fp32"
    assert (
        halfway("compare", GEMM, slow, "--fail-on", "slower", "--threshold", "50%").returncode == 0
    )
    assert halfway("compare", slow, GEMM, "--fail-on", "faster").returncode == 1
    trained = slower(TRAINED, tmp_path / "trained.json", 4)
    assert halfway("compare", TRAINED, trained).returncode == 0
    assert halfway("compare", TRAINED, trained, "--fail-on", "slower").returncode == 1
    for a, b in ((GEMM, GEMM), (slow, GEMM), (trained, TRAINED)):
        assert halfway("compare", a, b, "--fail-on", "slower").returncode == 0


def test_json_of_one_run_and_of_several(slow: Path, tmp_path: Path) -> None:
    """Two of one name are kept apart."""
    one, several, twin = (tmp_path / f"{name}.json" for name in ("one", "several", "slow"))
    twin.write_text(slow.read_text())
    halfway("compare", EIGHT, slower(EIGHT, tmp_path / "eight.json", 1.2), "--json", one)
    halfway("compare", GEMM, slow, OWN, twin, slow, "--json", several, "--threshold", "5")
    row = json.loads(one.read_text())["rows"][-1]
    assert row["reason"] == "interval is beyond it"
    assert row["threshold_pct"] == 1.0  # of runs that know how their processes differ
    written = json.loads(several.read_text())
    names = [found["run"] for found in written["comparisons"]]
    assert names[1] == OWN.name
    assert len(set(names)) == 4
    assert written["comparisons"][0]["threshold_pct"] == 5.0


Doc = dict[str, Any]
PASSES = ("fprop", "dgrad", "wgrad")
CPU = ("--device", "cpu", "--quiet")


def check_right(results: list[Doc]) -> None:
    """All ran and are right, but for what a busy machine had no time for."""
    assert any(result["status"] == "ok" for result in results)
    for result in results:
        if result["status"] == "skipped" and "--budget" in result["reason"]:
            continue
        assert result["status"] == "ok", (result["case"], result["reason"])
        assert 0 < result["rel_error"] < (2e-6 if result["precision"] == "fp32" else 8e-3)
        low, high = result["ci95_s"] or (result["median_s"],) * 2
        assert 0 < low <= result["median_s"] <= high


def shown(run: Doc, tmp_path: Path, *words: str) -> str:
    """What `show` prints of a run file with this content."""
    (tmp_path / "changed.json").write_text(json.dumps(run))
    ran = halfway("show", tmp_path / "changed.json", *words)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


# ---------------------------------------------------------------- conv


def test_what_ran_is_right_and_compared(shop: Shop) -> None:
    run = shop.kept("conv").document
    assert run["settings"]["seed"] == 3
    check_right(run["results"])
    asked = Counter((r["case"]["c"], r["case"]["k"], r["case"]["pass"], r["precision"])
                    for r in run["results"])  # fmt: skip
    twins = {(4, 8, passed, "bf16"): 1 for passed in ("fprop", "wgrad")}  # an image's C stays
    assert asked == Counter(twins) + Counter(
        (c, k, passed, precision) for c, k in ((8, 8), (4, 6)) for passed in ("fprop", "wgrad")
        for precision in ("fp32", "bf16")
    )  # fmt: skip
    for result in run["results"]:
        case = result["case"]
        assert (case["layout"], case["r"], case["s"], case["padding"]) == ("nhwc", 3, 3, 1)
        asked = result["precision"] == "bf16" and (case["c"], case["k"]) != (4, 8)
        if asked and all(other["status"] == "ok" for other in run["results"]):
            against = result["speedup"]["fp32"]
            assert against["ci95"][0] <= against["ratio"] <= against["ci95"][1]


# ---------------------------------------------------------------- payoff


def test_a_map_has_every_cell(shop: Shop, tmp_path: Path) -> None:
    run = shop.kept("payoff").document
    check_right(run["results"])
    cells = {(r["case"]["h"], r["case"]["n"], r["case"]["c"]) for r in run["results"]}
    assert cells == set(itertools.product((4, 6), (1, 2), (8, 16, 32)))
    for result in run["results"]:  # an interval without 1 is a difference
        result["speedup"] = {"fp32": {"ratio": 0.97, "ci95": [0.955, 0.985]}}
    assert "=0.97" not in shown(run, tmp_path)


# ---------------------------------------------------------------- layers


CONVS = [  # c, k, kernel, stride, groups, how often, passes
    (3, 8, 3, 1, 1, 1, ("fprop", "wgrad")),  # the first layer, whose images need no gradient
    (8, 8, 3, 1, 1, 2, PASSES),
    (8, 8, 3, 1, 8, 1, PASSES),
    (8, 16, 1, 2, 1, 1, PASSES),
]
# m, n, k of what a Linear of 16 to 32, then 32 to 10, does with 2 images
PRODUCTS = [(2, 32, 16), (2, 16, 32), (32, 16, 2), (2, 10, 32), (2, 32, 10), (10, 32, 2)]


def test_layers_are_the_network_s_and_the_work_of_a_step_is_a_hand_count(shop: Shop) -> None:
    layered = shop.kept("layers")
    run, loaded = layered.document, read_run(layered.file)
    check_right(run["results"])
    raws = dict(zip((r.case.group for r in loaded.results), run["results"], strict=True))
    uses = run["network"]["layers"]
    assert all(use["count"] == len(use["names"]) for use in uses)
    found: Counter[tuple[Any, ...]] = Counter()
    for use in uses:
        raw = raws[use["group"]]
        names = ("c", "k", "r", "stride", "groups", "pass") if raw["op"] == "conv" else "mnk"
        found[*(raw["case"][name] for name in names), raw["flops"]] += use["count"]
        assert raw["op"] == "gemm" or (raw["case"]["n"], raw["case"]["h"]) == (2, 16)
    expected = Counter((m, n, k, 2 * m * n * k) for m, n, k in PRODUCTS)
    for c, k, size, stride, groups, often, passes in CONVS:
        flops = 2 * 2 * k * (16 // stride) ** 2 * c // groups * size**2
        expected.update({(c, k, size, stride, groups, which, flops): often for which in passes})
    assert found == expected
    progress = [line for line in layered.ran.stdout.splitlines() if line.startswith("[")]
    assert len({re.sub(r"\[\d+/\d+\] |:.*", "", line) for line in progress}) == 17
    if any(raw["median_s"] is None for raw in raws.values()):
        pytest.skip("a busy machine: something did not fit the budget")
    whole = halfway("show", layered.file, "--verbose").stdout
    row = next(line for line in whole.splitlines() if line.startswith("total "))
    total = sum(use["count"] * raws[use["group"]]["median_s"] for use in uses)
    assert float(row.split()[1]) == pytest.approx(total * 1e3, rel=0.01)


def test_decode_runs_on_a_cpu_and_says_what_it_is_not(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "decode.json"
    words = ("layers", "shop:layers", "--tokens", "1,3", "--dtype", "bf16,fp8-weights")
    ran = shop.run(*words, "--device", "cpu", "--budget", 0.4, "--json", file)
    assert ran.returncode == 0, ran.stderr
    assert "a CPU says nothing of decode on a GPU" in " ".join(ran.stdout.split())
    run = read_run(file)
    check_right(json.loads(file.read_text())["results"])
    sizes = {(m, n, k) for m in (1, 3) for n, k in ((32, 16), (10, 32))}
    assert {r.case.problem.mnk for r in run.results} == sizes
    for result in run.results:
        (m, n, k), weight = result.case.problem.mnk, 1 + (result.case.precision_name == "bf16")
        assert result.min_bytes == 2 * m * k + weight * n * k + 2 * m * n
    again = shop.run("layers", "--resume", file, "shop:layers")
    assert "is complete" in again.stdout, again.stderr


@pytest.mark.parametrize(("name", "first"), [("layers", -3), ("conv", 0)])
def test_what_was_skipped_says_why(name: str, first: int, shop: Shop, tmp_path: Path) -> None:
    """Three layers, or all of a grid, whose report was two lines of heading, and nothing."""
    run = shop.kept(name).document
    empty = ("times_s", "blocks", "median_s", "ci95_s", "tflops", "gb_per_s", "rel_error",
             "total_error", "bound", "why")  # fmt: skip
    skipped = {"status": "skipped", "reason": "it would take until noon", "warnings": []}
    for result in run["results"][first:]:
        result.update(dict.fromkeys(empty), speedup={}, **skipped)
    assert "until noon" in " ".join(shown(run, tmp_path).split())


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("Sequential(nn.Conv3d(1, 2, 3), nn.ConvTranspose3d(2, 1, 2))", "3-D convolutions are not"),
        ("BatchNorm3d(1)", "there is no convolution and no matrix multiplication"),
    ],
)
def test_a_network_of_which_nothing_can_be_measured_says_why_and_ends_with_1(
    network: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "import torch\nfrom torch import nn\n"
    lines += f"def net():\n    return nn.{network}, torch.randn(2, 1, 5, 5, 5)\n"
    name = f"volumes_{network[:4]}"
    Path(f"{name}.py").write_text(lines)
    ran = halfway("layers", f"{name}:net", *CPU, "--json", "run.json")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: nothing can be measured: ")
    assert reason in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not Path("run.json").exists()


def test_a_kind_of_layer_that_is_not_measured_has_a_line_with_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed.py").write_text(
        """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(8, 4, 3), nn.Conv3d(1, 4, (1, 1, 3), padding=(0, 0, 1))
        self.last = nn.Linear(30, 8)
    def forward(self, x):
        wide = torch.fft.rfft(self.one(x)).real
        return self.last(self.one(x)).sum() + wide.sum() + self.two(x[:, None, None]).sum()
def net():
    return Net(), torch.randn(2, 8, 32)
"""
    )
    words = ("layers", "mixed:net", "--device", "cpu", "--dtype", "bf16", "--budget", "0.5")
    ran = halfway(*words, "--verbose")
    assert ran.returncode == 0, ran.stderr
    said = " ".join(ran.stdout.split())
    shares = dict(re.findall(r"([\d.]+) % of the FLOPs not measured: (.+?)(?: Doubt|;)", said))
    reasons = list(shares.values())
    assert reasons == ["FFTs are not measured", "3-D convolutions are not measured yet"]
    assert 0 < sum(map(float, shares)) < 100
    assert "total over 0" not in said
