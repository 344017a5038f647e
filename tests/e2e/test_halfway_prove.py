"""Changes that are tried in a training: what is proven, and that the training goes on unchanged."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.__main__ import main
from e2e.profile import halfway_prove, halfway_watch

RECORDER, PROOFS = Path(halfway_watch.__file__), Path(halfway_prove.__file__)
STEPS = ["--after", "2", "--bare", "3", "--traced", "2"]
BEFORE = 2 + 3 + 1 + 2  # steps before something is tried
SLEEP_S = 0.002  # for a sample of a slow loader
SAMPLES = 4  # in a batch

TRAINING = """
import random
import sys
import numpy
import torch
from torch import nn

torch.manual_seed(0), random.seed(0), numpy.random.seed(0)


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * int(sys.argv[2])

    def __getitem__(self, number):
        noise = torch.rand(1).item() + random.random() + numpy.random.rand()
        return torch.full((3, 6, 6), noise + number), number % 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.head = nn.Linear(4 * 16, 4)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))


model = Model()
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=2 * int(sys.argv[2]))
for epoch in range(2):
    loader = torch.utils.data.DataLoader(
        Drawn(), batch_size=4, shuffle=True, num_workers=int(sys.argv[1])
    )
    for images, labels in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        print(repr(loss.item()), repr(optimizer.param_groups[0]["lr"]), flush=True)
rest = (p.double().sum().item() for m in (model, average) for p in m.state_dict().values())
print(random.random(), numpy.random.rand(), torch.rand(1).item(), *rest)
"""

SLOW = f"""
import sys
import time
import torch
from torch import nn


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        time.sleep({SLEEP_S})
        return torch.ones(16), number % 4


def batches():
    if "--fixed" not in sys.argv:
        yield from torch.utils.data.DataLoader(Slow(), batch_size={SAMPLES})
    for _ in range(2000):
        yield torch.ones({SAMPLES}, 16), torch.arange({SAMPLES}) % 4


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
for x, y in batches():
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with copies of the recorder and of what it needs to prove."""
    for file in (RECORDER, PROOFS):
        (tmp_path / file.name).write_text(file.read_text())
    return tmp_path


def run(folder: Path, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1", **more},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def tried(trace: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(trace.read_bytes()))[halfway_prove.KEY]


def test_it_imports_torch_and_the_standard_library_alone_and_is_python_3_9() -> None:
    tree = ast.parse(PROOFS.read_text(), feature_version=(3, 9))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.split(".")[0]
        for node in found
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert names <= {*sys.stdlib_module_names, "torch"}


@pytest.mark.parametrize(
    ("workers", "batches", "changes"),
    [
        ("0", "100", {"loader", "optimizer", "amp"}),
        pytest.param("2", "100", {"loader", "optimizer", "amp"}, marks=pytest.mark.slow),
        # An epoch that ends meanwhile would end the loop.
        pytest.param("0", "12", {"optimizer", "amp"}, marks=pytest.mark.slow),
    ],
)
def test_a_training_goes_on_bit_for_bit_after_changes_were_tried(
    folder: Path, workers: str, batches: str, changes: set[str]
) -> None:
    (folder / "train.py").write_text(TRAINING)
    script = ("train.py", workers, batches)
    alone = run(folder, *script).stdout.splitlines()
    words = (RECORDER.name, *STEPS, "--prove", "--out", "a.json.gz", *script)
    watched = run(folder, *words).stdout.splitlines()
    found = tried(folder / "a.json.gz")
    assert {row["name"] for row in found["tried"]} == changes
    assert {"layout": halfway_prove.GOES_ON}.items() <= found["not_tried"].items()
    # The last line before is printed after the optimizer's step, when changes are tried already.
    begin = BEFORE - 1
    assert watched[:begin] == alone[:begin]
    assert len(watched) == len(alone) + found["steps"]
    assert watched[begin + 1 + found["steps"] :] == alone[begin + 1 :]


def test_a_slow_loader_is_proven_and_its_gain_is_what_it_took(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    written = folder / "found.json"
    words = ["diagnose", str(folder / "slow.py"), "--prove", "--json", str(written), *STEPS]
    assert main(words) == 0
    (traced,) = json.loads(written.read_text())["runs"]
    first = traced["findings"][0]
    assert (first["cause"], first["status"]) == ("loader", "proven")
    gain = first["gain"]
    assert 0 < gain["low_ms"] <= gain["ms"] <= gain["high_ms"]
    assert gain["step_ms"] > 1e3 * SLEEP_S * SAMPLES
    assert gain["ms"] > gain["step_ms"] / 2, "sleeping is most of such a step"


def test_without_a_cause_nothing_is_proven(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    written = folder / "found.json"
    words = ["diagnose", str(folder / "slow.py"), "--prove", "--json", str(written), *STEPS]
    assert main([*words, "--", "--fixed"]) == 0
    (traced,) = json.loads(written.read_text())["runs"]
    assert traced["tried_steps"] > 0
    assert not [one for one in traced["findings"] if one["status"] == "proven"]


FRAGILE = """
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
for _ in range(2000):
    optimizer.zero_grad()
    model(torch.randn(2, 3, 8, 8)).square().mean().backward()
    assert model[0].weight.is_contiguous(), "not made for that"
    optimizer.step()
print("the end")
"""


def test_a_change_that_the_script_does_not_bear_is_no_failure_of_the_script(folder: Path) -> None:
    (folder / "train.py").write_text(FRAGILE)
    words = (RECORDER.name, *STEPS, "--prove", "--out", "a.json.gz")
    run(folder, *words, "--then-exit", "train.py")
    assert tried(folder / "a.json.gz")["not_tried"]["layout"] == "not made for that"
    # A training that goes on is not put at risk.
    assert "the end" in run(folder, *words, "train.py").stdout
    assert "layout" not in {row["name"] for row in tried(folder / "a.json.gz")["tried"]}


SHORT = FRAGILE.replace("2000", str(BEFORE + 5))


@pytest.mark.slow
def test_a_script_that_ends_first_keeps_its_trace_and_says_why(folder: Path) -> None:
    (folder / "train.py").write_text(SHORT.replace("foreach=True", "foreach=False"))
    run(folder, RECORDER.name, *STEPS, "--prove", "--out", "a.json.gz", "train.py")
    found = tried(folder / "a.json.gz")
    assert found["tried"] == []
    assert found["not_tried"] == {"optimizer": halfway_prove.ENDED}


FUNCTION = """
import sys
import torch
import halfway_watch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)


@halfway_watch.watched(out="a.json.gz", after=2, bare=3, traced=2, prove="--prove" in sys.argv)
def step(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


for _ in range(20):
    step(torch.randn(8, 4))
print([p.tolist() for p in model.parameters()], torch.rand(1).item())
"""


def test_a_step_that_is_a_function_is_called_again_and_the_loop_is_as_long(folder: Path) -> None:
    (folder / "function.py").write_text(FUNCTION)
    alone = run(folder, "function.py").stdout
    assert run(folder, "function.py", "--prove").stdout == alone
    assert [row["name"] for row in tried(folder / "a.json.gz")["tried"]] == ["optimizer"]


@pytest.mark.slow
def test_what_proving_needs_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(SHORT)
    words = (RECORDER.name, *STEPS, "--prove", "--out", "a.json.gz", "train.py")
    done = run(folder, *words, RANK="0", WORLD_SIZE="2")
    assert "--prove is for one process" in done.stderr
    (folder / PROOFS.name).unlink()
    assert (
        f"--prove needs {PROOFS.name} beside {RECORDER.name}" in run(folder, *words, code=2).stderr
    )
    assert main(["diagnose", "--print-recorder", "--prove"]) == 0
    assert capsys.readouterr().out == PROOFS.read_text()


def test_repeated_reads_take_the_course_of_the_first_step_without_reading() -> None:
    def course(values: list[float]) -> list[float]:
        seen: list[float] = []
        for value in values:
            seen.append(torch.tensor(value).item())
            if torch.tensor(value) > 2:  # of a loop that ends by what it reads
                break
        return seen

    reads = halfway_prove.Reads(replay=True, on=lambda tensor: True)
    try:
        first = course([1.0, 2.0, 3.0, 4.0])
        reads.step()
        count = reads.count
        assert course([7.0, 8.0, 9.0, 10.0]) == first == [1.0, 2.0, 3.0]
        assert reads.count == count, "nothing was read"
        # What the first step has not read is read.
        assert torch.tensor(5.0).item() == 5.0
        assert reads.count == count + 1
    finally:
        reads.remove()
    assert torch.tensor(5.0).item() == 5.0
    assert "item" not in vars(torch.Tensor)


def test_turns_are_a_b_b_a_and_a_change_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = []

    class Toggle(halfway_prove.Trial):
        name, change = "toggle", "a toggle is on"
        on = False

        def why_not(self) -> str | None:
            return None

        def enter(self) -> None:
            self.switch(Toggle, "on", True)

    monkeypatch.setattr(halfway_prove, "TRIALS", (Toggle,))
    prover = halfway_prove.Prover(
        time.perf_counter, lambda begin, end: end - begin, 10.0, False, found.append
    )
    course: list[bool] = []
    while not prover.done:
        course.append(Toggle.on)
        prover.step()
    block = halfway_prove.DISCARDED + halfway_prove.LEAST_STEPS
    tried = course[halfway_prove.SCOUTED :]
    turns = [set(tried[i : i + block]) for i in range(0, len(tried), block)]
    assert turns == [{False}, {True}, {True}, {False}] * (halfway_prove.ROUNDS // 2)
    assert not Toggle.on
    (row,) = found[-1]["tried"]
    assert [len(row[side]) for side in ("as_is_s", "changed_s")] == [halfway_prove.ROUNDS] * 2
