"""What each command refuses: exit code 2, one line that says what, and nothing measured or written.

The one place where these lines are asserted.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import pytest
from samples.commands import ROOT, no_children, run_here
from samples.images import put

from e2e.halfway import main
from microbench.device.host import usable_cores

GEMM = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
MODULE = """
import torch
from torch import nn

def raises():
    raise ValueError("broken on purpose\\nand on two lines")

def leaves():
    raise SystemExit(0)

def number():
    return 3

three = 3

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        raise RuntimeError("forward is broken\\non two lines")
"""

# words -> what the line says
AT_ONCE = {
    "measure": "measure",
    "gem --sizes 16": "gemm",
    # -------------------------------------------------------------- gemm
    "gemm --dtype fp7": "fp16",
    "gemm --dtype ,": "--dtype",
    "gemm --dtype": "--dtype",
    "gemm --backend cudnn": "cublaslt",
    "gemm --backend ''": "--backend",
    "gemm --backend bad:numbr": "did you mean number",
    "gemm --backend no_such_module:f": "no module 'no_such_module'",
    "gemm --backend bad:": "module:function",
    "gemm --backend folder/bad.py:gemm": "folder.bad:gemm",
    "gemm --backend syntax:gemm": "importing syntax raised SyntaxError",
    "gemm --sizes 8192..256": "256..8192",
    "gemm --sizes ''": "--sizes",
    "gemm --sizes 0": "0",
    "gemm --sizes=-64": "-64",
    "gemm --sizes 64xx64": "64xx64",
    "gemm --sizes 1..1000000:+1": "4096",
    f"gemm --sizes {'9' * 400}": "cannot read",
    "gemm --layout qq": "nt",
    "gemm --data gauss": "normal",
    "gemm --l2 hot": "error: --l2 must be one of cold, warm, not 'hot'",
    "gemm --l2 cold,cold": "--l2",
    "gemm --l2 cold,": "--l2",
    "gemm --regime burst,": "--regime",
    "gemm --regime sprint": "burst",
    "gemm --timer sundial": "events",
    "gemm --timer clock,clock": "--timer",
    "gemm --vs fp99": "fp32",
    "gemm --budget 0": "--budget",
    "gemm --budget=-5": "--budget",
    "gemm --budget nan": "--budget",
    "gemm --budget inf": "--budget",
    "gemm --budget soon": "--budget",
    "gemm --processes 0": "--processes",
    "gemm --processes 101": "100",
    "gemm --processes many": "--processes",
    "gemm --without warp": "gluon",
    "gemm --without gluon/* --autotune": "--without",
    "gemm --no-tune --autotune": "exclude each other",
    "gemm --seed x": "--seed",
    "gemm --seed 99999999999999999999999": "--seed",
    "gemm --json /nowhere/run.json": "--json",
    "gemm --json /proc/run.json": "--json",
    "gemm --json /tmp": "folder",
    "gemm --json same.json --csv same.json": "--csv",
    "gemm --csv - --json -": "only --json",
    "gemm --csv /nowhere/run.csv": "--csv",
    "gemm --resume /nowhere/run.json": "/nowhere/run.json",
    "gemm --resume broken.json": "broken.json",
    "gemm --resume other.json": "other.json",
    "gemm --resume empty.json": "empty.json",
    "gemm --resume nested.json": "nested.json",
    "gemm --frobnicate": "--frobnicate",
    "gemm extra": "extra",
    # -------------------------------------------------------------- conv, payoff, layers
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
    "conv --sizes 16": "--sizes",
    "conv --chart /nowhere/a.png": "--chart",
    "conv --chart a.gif": "--chart",
    "conv --chart plain": "--chart",
    "conv --chart /": "--chart",
    "payoff --op gemm": "conv",
    "payoff --channels 64..8": "8..64",
    "payoff --groups 3": "3 groups",
    "payoff --json /nowhere/a.json": "--json",
    "layers": "NETWORK",
    "layers ''": "network",
    "layers resnet5O": "resnet50",
    "layers nosuchnet": "module:function",
    "layers bad:raises": "broken on purpose",
    "layers bad:number": "nn.Module",
    "layers bad:Broken": "forward is broken",
    "layers bad:nothing": "nothing",
    "layers bad:": "module:function",
    "layers :build": "module:function",
    "layers no_module_here:net": "no_module_here",
    "layers resnet50 --batch 0": "--batch",
    "layers resnet50 --image 0": "--image",
    "layers alexnet --layout nhwc,nchw": "nhwc,nchw",
    "layers resnet50 --backend cudnn": "library",
    "layers resnet50 extra": "extra",
    # -------------------------------------------------------------- files
    "show": "FILE",
    "show /nowhere.json": "/nowhere.json",
    "show broken.json": "broken.json",
    "show other.json": "other.json",
    "show empty.json": "empty.json",
    "show binary.json": "binary.json",
    "show nested.json": "nested.json",
    "compare /nowhere.json /nowhere.json": "/nowhere.json",
    f"compare {GEMM}": "compare",
    f"compare {GEMM} {GEMM} --threshold x": "--threshold",
    f"compare {GEMM} {GEMM} --fail-on x": "--fail-on",
    # -------------------------------------------------------------- train
    "train": "NETWORK",
    "train cnn-cifr": "cnn-cifar",
    "train xyzzy": "list",
    "train cnn-cifar --recipe fp7": "O2",
    "train cnn-cifar --recipe ''": "--recipe",
    "train cnn-cifar --layout chwn": "chwn",
    "train cnn-cifar --channels-last --layout nchw":
        "error: --channels-last is --layout nhwc: leave out --layout nchw",
    "train cnn-cifar --batch 0": "--batch",
    "train cnn-cifar --batch 16..4": "4..16",
    "train cnn-cifar --batch 4.5": "4.5",
    "train cnn-cifar --batch 1..1000000:+1": "--batch",
    "train cnn-cifar --batch": "--batch",
    "train cnn-cifar --iterations 1.5": "--iterations",
    "train cnn-cifar --iterations 0": "--iterations",
    "train cnn-cifar --epochs 0 --data generated": "--epochs",
    "train cnn-cifar --epochs 1 --iterations 5 --data generated": "--iterations",
    "train cnn-cifar --repeats 0 --iterations 5": "--repeats",
    "train cnn-cifar --repeats 3": "--iterations",
    "train cnn-cifar --input nonsense": "nonsense",
    "train cnn-cifar --optimizer lion": "--optimizer",
    "train cnn-cifar --accumulate 0": "--accumulate",
    "train cnn-cifar --loss-scale nan": "--loss-scale",
    "train cnn-cifar --workers=-1": "--workers",
    "train cnn-cifar --lr fast": "fast",
    "train cnn-cifar --lr nan": "--lr",
    "train cnn-cifar --warmup=-1": "--warmup",
    "train cnn-cifar --clip 0": "--clip",
    "train cnn-cifar --schedule cosine": "--schedule",
    "train cnn-cifar --schedule cosine:x": "--schedule",
    "train cnn-cifar --schedule step:75,50": "--schedule",
    "train cnn-cifar --schedule triangle:101": "--schedule",
    "train cnn-cifar --memory-limit 16TB": "--memory-limit",
    "train cnn-cifar --freeze head": "--freeze",
    "train cnn-cifar --weights no/such/file.pth": "--weights",
    "train cnn-cifar --label-smoothing 2":
        "error: --label-smoothing takes a number from 0 to below 1, not 2.0",
    "train cnn-cifar --graph --accumulate 2": "--accumulate",
    "train cnn-cifar --graph --no-fused": "--no-fused",
    "train cnn-cifar --ladder --recipe amp": "--recipe",
    "train cnn-cifar --ladder --layout nhwc": "--layout",
    "train cnn-cifar --ladder --compile": "--compile",
    "train cnn-cifar --seed=-1": "--seed",
    "train cnn-cifar --seed x": "--seed",
    "train cnn-cifar --budget soon": "--budget",
    "train cnn-cifar --processes 101": "--processes",
    "train cnn-cifar --json /nowhere/run.json": "--json",
    "train cnn-cifar --csv /nowhere/run.csv": "--csv",
    "train cnn-cifar --resume /nowhere/run.json": "/nowhere/run.json",
    "train cnn-cifar --resume broken.json": "broken.json",
    "train cnn-cifar --chart chart.gif": ".png",
    "train cnn-cifar --chart /nowhere/chart.svg": "--chart",
    "train cnn-cifar --verify --no-predict": "--no-predict",
    "train cnn-cifar --cpus 9999": f"this process may use 1 to {usable_cores()} cores",
    "train cnn-cifar --data generated --on-worker-death cry": "takes stop or restart",
    "train cnn-cifar --frobnicate": "--frobnicate",
    "train cnn-cifar extra": "extra",
    # -------------------------------------------------------------- predict, validate
    "predict": "NETWORK",
    "predict resnet5": "resnet50",
    "predict --resume empty.json": "names no NETWORK",
    "predict resnet50 --recipe fp99": "fp99",
    "predict resnet50 --epochs 3": "--epochs",
    "predict cnn-cifar --gpus 2": "--gpus needs --exchange",
    "predict cnn-cifar --exchange train.json": "--exchange needs several GPUs",
    "predict cnn-cifar --gpus 2 --exchange none.json": "none.json",
    "validate-predictions --networks ''": "--networks",
    "validate-predictions --networks resnet5": "resnet50",
    "validate-predictions --cpus 0": "--cpus",
    "validate-predictions --held-out h.json --networks cnn-cifar,resnet18": "resnet18",
    "validate-predictions --held-out h.json --networks timm:mobilenet_v2": "mobilenet_v2",
    "validate-predictions --held-out h.json --json j.json": "--json",
    # -------------------------------------------------------------- data
    "stalls cnn-cifar --measure most": "--measure takes one of some, all, none",
    "stalls cnn-cifar --data generated --loader pinned": "has no workers",
    "stalls cnn-cifar --data generated --loader read": "has no workers",
    "stalls cnn-cifar --data generated --loader resident": "has no workers",
    "stalls cnn-cifar --data generated --workers some": "--workers",
    "stalls cnn-cifar --data synthetic": "has nothing to load",
    "loader --data synthetic": "there is nothing to load",
    "loader --backend torchvison": "--backend: unknown 'torchvison'",
    "loader --data generated --cpus 0": "--cpus 0: this process may use 1 to",
    "loader --data generated --prefetch 0": "--prefetch must be at least 1, not 0",
    "make-data . --images 1 --classes 2": "images",
    # -------------------------------------------------------------- studies
    "study wrn-level": "no study 'wrn-level'; did you mean wrn-levels?",
    "study wrn-levels --profile fast": "has no profile 'fast'; it has full, quick, smoke",
    "study wrn-levels --set bach=3": "unknown factor 'bach'; did you mean batch?",
    "study wrn-levels --set batch": "write FACTOR=VALUE",
    "study wrn-levels --set batch=many": "batch cannot be 'many'",
    "study wrn-levels --data cifar10=/nowhere": "no such folder",
    "study wrn-levels --budget soon": "'soon' is no time",
    "study show": "study takes list, show NAME",
    "study report .": "holds no study",
    "study none.toml": "cannot read none.toml",
}  # fmt: skip
# What only the process with the device can tell.
BY_THE_DEVICE = {
    "doctor --device tpu": "tpu",
    "gemm --device tpu": "cuda",
    "gemm --device cpu --timer graph": "clock",
    "gemm --device cpu --without gluon": "leaves out no Triton configuration",
    "gemm --device cpu --dtype fp32 --vs none --sizes 500000": "free",  # 3 x 10^12 bytes
    "conv --device cpu --channels 8,1000000": "1000000",
    "gemm --device cpu --backend bad:three": "a back end is a function",
    "train cnn-cifar --device gpu": "cuda",
    "train cnn-cifar --device cpu --iterations 2 --held-out 4": "--held-out",
    f"train cnn-cifar --device cpu --resume {GEMM}": "gemm-fp16.json is not a run of e2e",
    "train cnn-cifar --device cpu --graph": "CPU",
    "train cnn-cifar --device cpu --epochs 1": "synthetic",
    "train cnn-cifar --device cpu --data generated --iterations 2 --held-out 10001":
        "--held-out 10001",
    "train syntax:build --device cpu": "yntax",
    "train bad:nothing --device cpu": "nothing",
    "train bad:raises --device cpu": "broken on purpose",
    "train bad:leaves --device cpu": "bad:leaves",
    "train bad:number --device cpu": "Module",
    "train :build --device cpu": ":build",
    "train bad:Broken --device cpu --input 3x8x8": "forward is broken",
    "train cnn-cifar --device cpu --loss nonsense": "nonsense",
    "train cnn-cifar --device cpu --data folder:nowhere": "nowhere",
    "train cnn-cifar --device cpu --data folder:empty": "empty",
    "train cnn-cifar --device cpu --data folder:words": "words",
    "train cnn-cifar --device cpu --data cifar10:nowhere": "nowhere",
    "train cnn-cifar --device cpu --data cifar10:empty": "empty",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules and files that are no good, and nothing else."""
    folder = tmp_path_factory.mktemp("bad")
    files = {
        "bad.py": MODULE, "syntax.py": "def build(:\n", "broken.json": '{"schema_version": 1, ',
        "other.json": '{"tool": "other"}', "empty.json": "", "binary.json": "\x00\x01",
        "nested.json": "[" * 100_000, "train.json": '{"schema_version": 2, "results": []}',
        "words/train/cat/a.png": "no image", "words/val/dog/a.png": "no image",
    }  # fmt: skip
    for name, text in files.items():
        put(folder / name, text.encode())
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("words", [*AT_ONCE, *BY_THE_DEVICE])
def test_bad_words_are_one_line(words: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    with no_children() if words in AT_ONCE else contextlib.nullcontext():
        ran = run_here(main, "halfway", *shlex.split(words), cwd=folder,
                       XDG_STATE_HOME=str(folder / "state"))  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    assert {**AT_ONCE, **BY_THE_DEVICE}[words] in ran.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def test_no_words_show_the_commands() -> None:
    ran = run_here(main, "halfway")
    assert (ran.returncode, ran.stderr) == (2, "")
    assert "gemm" in ran.stdout
