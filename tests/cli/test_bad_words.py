"""What each command refuses: exit code 2, one line that says what, and nothing measured or written.

The one place where these lines are asserted.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from samples.commands import ROOT, no_children, run_here
from samples.feeding import put

from e2e.halfway import main
from microbench.device.host import usable_cores

GEMM = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
TRAINED = GEMM.with_name("train-resnet50.json")
MODULE = """
import torch
from torch import nn

def raises():
    raise ValueError("broken on purpose\\nand on two lines")

def leaves():
    raise SystemExit(0)

def again():
    from e2e.__main__ import main
    return main(["list"])

def number():
    return 3

three = 3

def words():
    return nn.Linear(3, 3), "words"

def wide():
    return nn.Linear(3, 3)

def half():
    return nn.Linear(3, 3).half()

def narrow():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1))

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        raise RuntimeError("forward is broken\\non two lines")

class Sized(Broken):
    def forward(self, x):
        return x[: int(x.sum())]
"""

# command, option -> values that are refused, each with a line that names option or file
VALUES = {
    "gemm": {
        "--dtype": ["fp7", ",", ""], "--backend": ["cudnn", "", ","], "--layout": ["qq", ""],
        "--sizes": ["8192..256", "", "64,,128", "0", "-64", "64x0x64", "64xx64", "64x64",
                    "64..", "64..128:8", "6.5", "64;128", "64..128:+0", "64..128:*1", "64..128:+-8",
                    "1..1000000:+1", "1..3000:+1,4001..7000:+1", "9" * 5000],
        "--data": ["gauss", "normal,zeros"], "--l2": ["hot", "cold,cold", "cold,"],
        "--regime": ["sprint", "burst,"], "--timer": ["sundial", "clock,clock"],
        "--vs": ["fp99", ""], "--budget": ["0", "-5", "nan", "inf", "soon"],
        "--processes": ["0", "-3", "101", "many"], "--tune": ["-1", "1001", "all"],
        "--seed": ["x", "-1", "9" * 23],
        "--json": ["/nowhere/run.json", "/proc/run.json", "/tmp", "loop"],
        "--resume": ["/nowhere/a.json", "broken.json", "other.json", "empty.json", "nested.json",
                     "loop"],
    },
    "conv": {
        "--channels": ["8,,16", "1" + "0" * 22, "8x8x8"], "--image": ["0", "a"],
        "--batch": ["0", "2x2"], "--kernel": ["0"], "--stride": ["0", "1.5", "0x2"],
        "--padding": ["valid", "-1", "1x2x3"], "--dilation": ["0"], "--groups": ["0", "all"],
        "--pass": ["up"], "--layout": ["nn"], "--backend": ["cublas"], "--sizes": ["16"],
    },
    "attention": {"--dtype": ["fp8"], "--heads": ["0x8", "4x3x8", "a", "1x2x3x4", "16"],
                  "--sizes": ["8x8"], "--pass": ["dgrad"], "--layout": ["nt"],
                  "--backend": ["triton"]},
    "payoff": {"--channels": ["64..8"], "--json": ["/nowhere/a.json"]},
    "layers alexnet": {"--batch": ["0"], "--image": ["0"], "--tokens": ["8..1", "0", "few"],
                       "--dtype": ["x"]},
    "train cnn-cifar": {
        "--recipe": ["fp7", "", "fp23"], "--layout": ["chwn"], "--optimizer": ["lion"],
        "--batch": ["0", "16..4", "4.5", "1..1000000:+1"], "--input": ["nonsense"],
        "--iterations": ["1.5", "0"], "--accumulate": ["0"], "--workers": ["-1"],
        "--cpus": ["0", "1000000"],
        "--gpus": ["0", "two"], "--compress": ["bf16"],
        "--loss-scale": ["0", "-1", "nan", "1e30"],
        "--lr": ["fast", "0", "inf", "nan"], "--warmup": ["-1"],
        "--clip": ["0", "-1", "inf", "nan"], "--held-out": ["0", "-3"], "--seed": ["-1", "x"],
        "--memory-limit": ["16", "0GB", "-1GB", "much", "16TB"],
        "--schedule": ["cosin", "cosine", "cosine:0", "cosine:x", "triangle:101", "step:75,50",
                       "step:50/0.5", "step:"],
        "--budget": ["0", "nan", "soon"], "--processes": ["0", "101", "two"],
        "--json": ["/nowhere/run.json", "/tmp"],
        "--resume": ["/nowhere/run.json", "broken.json"],
    },
    "stalls cnn-cifar --data generated": {"--workers": ["some"], "--measure": ["most"],
                                          "--loader": ["pinned", "read", "resident"]},
    "loader --data generated": {"--backend": ["torchvison"]},
    f"show {GEMM}": {"--chart": ["/nowhere/a.png", "a.gif", "plain", "/"]},
}  # fmt: skip
# words -> what the line says
AT_ONCE = {
    "measure": "`halfway --help` lists them",
    "gem --sizes 16": "did you mean gemm?",
    "help": "did you mean halfway --help?",
    "plot": "did you mean halfway show FILE --chart?",
    "explain a.json": "did you mean halfway dev explain?",
    "train.py": "did you mean halfway diagnose train.py?",
    "show train.py": "train.py is a script: halfway diagnose train.py",
    "gemm --dtype": "--dtype",
    "gemm --backend bad:numbr": "did you mean number",
    "gemm --backend no_such_module:f": "no module 'no_such_module'",
    "gemm --backend bad:": "module:function",
    "gemm --backend ./folder/bad.py:gemm": "write folder.bad:gemm",
    "gemm --backend syntax:gemm": "importing syntax raised SyntaxError",
    "gemm --no-tune": "did you mean --tune 0?",
    "gemm --html page.html": "did you mean halfway show FILE --html PAGE?",
    "gemm --resume -": "only --json",
    "gemm --frobnicate": "--frobnicate",
    "layers alexnet --tokens 1 --batch 4": "leave out --batch",
    "gemm extra": "extra",
    "gemm fp16": "did you mean --dtype fp16?",
    "gemm --FP16": "did you mean --dtype fp16?",
    "gemm --size 64": "did you mean --sizes,",
    "gemm --chart a.svg": "did you mean halfway show FILE --chart?",
    "conv --channels-last": "did you mean --layout nhwc?",
    "conv --kernel 9 --image 7 --padding 0": "kernel of 9",
    "conv --kernel 1x9 --image 9x7 --padding 0": "kernel of 9",
    "conv --kernel 3 --dilation 8 --image 7 --padding 0": "dilation",
    "conv --kernel 2": "--padding same needs kernels of odd size",
    "conv --groups 2 --channels 8x9": "K=9",
    "conv --groups 4 --channels 8..32,6": "C=6",
    "conv --groups depthwise --channels 8x12": "K=12",
    "payoff --dtype fp32 --vs fp64": "--vs fp64: the map compares with fp32",
    "payoff --op linear --shapes hf:nowhere.json": "hf:nowhere.json: no such file",
    "payoff --op linear --vs tf32": "--vs tf32: the map compares with bf16",
    "layers": "NETWORK",
    "layers ''": "network",
    "layers resnet5O": "resnet50",
    "layers nosuchnet": "module:function",
    "layers bad:raises": "broken on purpose",
    "layers bad:number": "nn.Module",
    "layers bad:Broken": "forward is broken",
    "layers bad:nothing": "nothing",
    "layers bad:leaves": "SystemExit",
    "layers bad:words": "of type str as an example input",
    "layers bad:three": "not a function",
    "layers microbench.__main__:main": "within itself",
    "layers bad:rises": "bad has no 'rises'; did you mean raises",
    "layers bad:wide": "bad:wide cannot train on 32x3x224x224: RuntimeError",
    "layers bad:half": "without .to(), .half() or .cuda()",
    "layers bad:Sized": "depends on tensor values",
    "layers broken:build": "importing broken raised ModuleNotFoundError",
    "layers fasterrcnn_resnet50_fpn": "boxes",
    "layers timm:resnet18": "pip install timm",
    "layers hf:gone.json": "no such file",
    "layers :build": "module:function",
    "layers no_module_here:net": "no_module_here",
    "layers alexnet --backend cudnn": "library",
    "show": "FILE",
    "show /nowhere.json": "/nowhere.json",
    f"show {GEMM.parent}": f"halfway report {GEMM.parent}",
    "show broken.json": "broken.json",
    "show other.json": "other.json",
    "show binary.json": "binary.json",
    "show 'a\x1b]0;owned\x07\nb.json'": "b.json",
    "show x\udcff\u202e.json": ".json",
    "gemm --sizes \x9b31m" + "9" * 5000: "999",
    "gemm --\x1b[31m": "31m",
    "\x1b[2J": "2J",
    "compare /nowhere.json /nowhere.json": "/nowhere.json",
    f"compare {GEMM}": "compare",
    f"compare {GEMM} {TRAINED}": "no case in common",
    f"compare {GEMM} {GEMM.with_name('aa.json')}":
        "aa.json is not a run file, but the output of a check of the method",
    f"compare {GEMM} {GEMM} --threshold x": "--threshold",
    f"compare {GEMM} {GEMM} --fail-on x": "--fail-on",
    "train": "NETWORK",
    "train cnn-cifr": "cnn-cifar",
    "train xyzzy": "list",
    "train cnn-cifar --recipe fp7": "O2",
    "train cnn-cifar --fp16": "did you mean --recipe fp16?",
    "train cnn-cifar -b 8": "did you mean --batch?",
    "train cnn-cifar --loss nomodule:f": "no module 'nomodule'",
    "train cnn-cifar --data folder:nowhere": "folder:nowhere",
    "train cnn-cifar --data cifar10:nowhere": "cifar10:nowhere",
    "train cnn-cifar --loader nome --data generated": "unknown 'nome'",
    "train cnn-cifar --epochs 0 --data generated": "--epochs",
    "train cnn-cifar --epochs 1 --iterations 5 --data generated": "--iterations",
    "train cnn-cifar --repeats 0 --iterations 5": "--repeats",
    "train cnn-cifar --repeats 3": "--iterations",
    "train cnn-cifar --graph --no-fused": "--no-fused",
    "train cnn-cifar --graph --accumulate 2": "--accumulate",
    "train resnet18 --data made --loader dali --graph": "leave out --graph",
    "train cnn-cifar --gpus 2 --compress zip": "--compress",
    "train cnn-cifar --strong": "--strong",
    **{f"train cnn-cifar --ladder {words}": words.split()[0]
       for words in ("--recipe amp", "--layout nhwc", "--amp", "--compile", "--graph",
                     "--accumulate 2")},
    "train cnn-cifar --cpus 9999": f"this process may use 1 to {usable_cores()} cores",
    "predict": "NETWORK",
    "predict --resume empty.json": "names no NETWORK",
    "predict resnet50 --epochs 3": "--epochs",
    "predict cnn-cifar --gpus 2": "--gpus",
    "stalls cnn-cifar --data synthetic": "has nothing to load",
    "loader --data synthetic": "there is nothing to load",
    "diagnose": "SCRIPT.py",
    "diagnose none.json": "none.json",
    "diagnose a.json b.json --base c.json": "one TRACE",
    "diagnose none.json --base-args x": "--base-args is for a script",
    "diagnose python3 train.py --lr 3": "leave out python3: halfway diagnose train.py -- --lr 3",
    "diagnose torchrun --nproc_per_node 2 a.json": "starts no SCRIPT.py",
    "diagnose none.py": "no such script: none.py",
    "diagnose train.py --html a.html": "did you mean halfway show FILE --html PAGE?",
    "diagnose train.py --lr 3": "options of the script come after --",
    "diagnose train.py --base a.json": "take --base-args ARGS",
    "diagnose train.py --python no/python": "--python no/python",
    "diagnose train.py --fail-on busy": "busy<70",
    "diagnose train.py --fail-on 'bussy<7'": "choose from busy, ",
    "diagnose train.py --base-args ''\"'\"'open'": "--base-args",
    "diagnose train.py --traced 0": "--traced",
    "diagnose train.py --json beside.py": "--json beside.py already exists",
    "diagnose train.py --json none/x": "--json none/x",
    "diagnose train.py --keep beside.py": "--keep beside.py",
    "diagnose train.py --keep /proc/none": "--keep /proc/none",
    "study wrn-level": "no study 'wrn-level'; did you mean wrn-levels?",
    "study wrn-levels --profile fast": "has no profile 'fast'; it has full, short, smoke",
    "study wrn-levels --set bach=3": "no run has 'bach'; did you mean batch?",
    "study wrn-levels --set batch": "write --set OPTION=VALUE",
    "study wrn-levels --set batch=many": "run levels: --batch",
    "study wrn-levels --set data=cifar10:/nowhere": "no such folder",
    "study show": "study takes list, show NAME",
    "study report .": "holds no study",
    "study none.toml": "cannot read none.toml",
    **{f"{command} {option}={shlex.quote(value)}": value if option == "--resume" else option[2:]
       for command, options in VALUES.items() for option, values in options.items()
       for value in values},
}  # fmt: skip
# What only the process with the device can tell.
BY_THE_DEVICE = {
    "gemm --device tpu": "cuda",
    "gemm --device cpu --timer graph": "clock",
    "gemm --device cpu --without tma": "leaves out no Triton configuration",
    "gemm --device cpu --dtype fp32 --vs none --sizes 500000": "free",  # 3 x 10^12 bytes
    "conv --device cpu --channels 8,1000000": "1000000",
    "gemm --device cpu --backend bad:three": "neither a function of",
    "train cnn-cifar --device gpu": "cuda",
    "train cnn-cifar --device cpu --iterations 2 --held-out 4": "--held-out",
    f"train cnn-cifar --device cpu --resume {GEMM}": "gemm-fp16.json is not a run of e2e",
    "train cnn-cifar --device cpu --graph": "CPU",
    "train cnn-cifar --device cpu --epochs 1": "synthetic",
    "train cnn-cifar --device cpu --data generated --iterations 2 --held-out 10001":
        "--held-out 10001",
    "train bad:raises --device cpu": "broken on purpose",
    "train e2e.halfway:main --device cpu": "within itself",
    "predict e2e.__main__:app --device cpu": "within itself",
    "predict bad:again --device cpu": "within itself",
    "train bad:Broken --device cpu --input 3x8x8": "forward is broken",
    "stalls bad:narrow --device cpu --data folder:pets": "outputs 1 classes, but the data have 2",
    "train cnn-cifar --device cpu --loss nonsense": "nonsense",
    "train cnn-cifar --device cpu --data folder:empty": "empty",
    "train cnn-cifar --device cpu --data folder:words": "words",
    "train cnn-cifar --device cpu --data cifar10:empty": "empty",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules and files that are no good, and nothing else."""
    folder = tmp_path_factory.mktemp("bad")
    files = {
        "bad.py": MODULE, "syntax.py": "def build(:\n", "broken.py": "import no_such",
        "train.py": "import no_such",
        "beside.py": "", "shapes.csv": "",
        "broken.json": '{"schema_version": 1, ',
        "other.json": '{"tool": "other"}', "empty.json": "", "binary.json": "\x00\x01",
        "nested.json": "[" * 100_000, "train.json": '{"schema_version": 3, "results": []}',
        "words/train/cat/a.png": "no image", "words/val/dog/a.png": "no image",
    }  # fmt: skip
    for name, text in files.items():
        put(folder / name, text.encode())
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to("loop")
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / "pets" / place).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(folder / "pets" / place / "a.png")
    return folder


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".pyc" and "state" not in path.parts}  # fmt: skip


@pytest.mark.parametrize("words", [*AT_ONCE, *BY_THE_DEVICE])
def test_bad_words_are_one_line(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it raises ModuleNotFoundError
    before = files_of(folder)
    with no_children() if words in AT_ONCE else contextlib.nullcontext():
        ran = run_here(main, "halfway", *shlex.split(words), cwd=folder,
                       XDG_STATE_HOME=str(folder / "state"))  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.endswith("\n")
    assert ran.stderr[:-1].isprintable()
    assert len(ran.stderr) <= 2002
    assert {**AT_ONCE, **BY_THE_DEVICE}[words] in ran.stderr
    assert files_of(folder) == before


def test_no_words_show_the_commands() -> None:
    ran = run_here(main, "halfway")
    assert (ran.returncode, ran.stderr) == (2, "")
    assert "gemm" in ran.stdout


# ---------------------------------------------------------------- a package with a name of ours


PROGRAMS = {"halfway": ("bin/halfway",), "e2e": ("-m", "e2e"), "microbench": ("-m", "microbench")}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the console command in its bin/, and a folder e2e that is no package."""
    (tmp_path / "work" / "bin").mkdir(parents=True)
    text = "import sys\nfrom e2e.start import main\nsys.exit(main())\n"
    (tmp_path / "work" / "bin" / "halfway").write_text(text)
    (tmp_path / "work" / "e2e").mkdir()
    return tmp_path / "work"


def run(work: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=work, capture_output=True, text=True, timeout=180,
        env={"PATH": "/usr/bin:/bin", "HOME": str(work), "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "name"),
    [("halfway", "kernels"), ("halfway", "microbench"), ("e2e", "kernels"),
     ("microbench", "kernels"), ("microbench", "e2e")],
)  # fmt: skip
def test_a_foreign_package_is_named_in_one_line(work: Path, program: str, name: str) -> None:
    theirs = work.parent / "theirs"
    (theirs / name).mkdir(parents=True)
    (theirs / name / "__init__.py").write_text("print('theirs')\n")
    path = os.pathsep.join((str(theirs), str(ROOT)))
    done = run(work, *PROGRAMS[program], "list", path=path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"the package {name} " in done.stderr
    assert "environment of its own" in done.stderr


def test_a_folder_beside_the_user_s_module_does_not_take_our_place(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    (work / "mynet.py").write_text("raise RuntimeError('reached')\n")
    (work / "e2e" / "__init__.py").write_text("raise RuntimeError('theirs')\n")
    done = run_here(main, "halfway", "gemm", "--backend", "mynet:build")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "rename it" in done.stderr
    (work / "e2e" / "__init__.py").unlink()
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = run_here(main, "halfway", "gemm", "--backend", "mynet:build")
    assert "reached" in done.stderr, "a folder that is no package"
