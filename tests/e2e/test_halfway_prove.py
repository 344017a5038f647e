"""Changes that are tried in a training: what is proven, and that the training goes on unchanged."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.recording import NEEDED, PROOFS, RECORDER, STEPS, User, source

from e2e.profile import halfway_prove

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
def user(tmp_path: Path, quick_python: str) -> User:
    """With copies of the recorder and of what it needs to prove."""
    for name in (RECORDER, PROOFS):
        (tmp_path / name).write_text(source(name))
    return User(tmp_path, quick_python)


def tried(user: User) -> dict[str, Any]:
    return json.loads(gzip.decompress((user.folder / "a.json.gz").read_bytes()))[halfway_prove.KEY]


def test_a_training_goes_on_bit_for_bit_after_changes_were_tried(user: User) -> None:
    """With a loader's workers, autocast, dropout and batch statistics."""
    (user.folder / "train.py").write_text(TRAINING)
    alone = user.run("train.py", "2", "100").stdout.splitlines()
    watched = user.record("--prove", "train.py", "2", "100").stdout.splitlines()
    found = tried(user)
    assert {row["name"] for row in found["tried"]} == {"loader", "optimizer", "amp"}
    assert found["not_tried"]["layout"] == halfway_prove.GOES_ON
    # The last line before is printed after the optimizer's step, when changes are tried already.
    begin = NEEDED - 1
    assert watched[:begin] == alone[:begin]
    assert len(watched) == len(alone) + found["steps"]
    assert watched[begin + 1 + found["steps"] :] == alone[begin + 1 :]


def proven(user: User, *options: str) -> dict[str, Any]:
    """What `diagnose --prove` finds in the slow script."""
    (user.folder / "slow.py").write_text(SLOW)
    words = ("-m", "e2e", "diagnose", "slow.py", "--prove", "--json", "found.json", *STEPS)
    user.run(*words, *options, PYTHONPATH=str(Path(__file__).parents[2]))
    (traced,) = json.loads((user.folder / "found.json").read_text())["runs"]
    return traced


def test_a_slow_loader_is_proven_and_its_gain_is_what_it_took(user: User) -> None:
    first = proven(user)["findings"][0]
    assert (first["cause"], first["status"]) == ("loader", "proven")
    gain = first["gain"]
    assert 0 < gain["low_ms"] <= gain["ms"] <= gain["high_ms"]
    assert gain["step_ms"] > 1e3 * SLEEP_S * SAMPLES


def test_without_a_cause_nothing_is_proven(user: User) -> None:
    traced = proven(user, "--", "--fixed")
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


def test_a_change_that_the_script_does_not_bear_is_no_failure_of_the_script(user: User) -> None:
    (user.folder / "train.py").write_text(FRAGILE)
    user.record("--prove", "--then-exit", "train.py")
    assert tried(user)["not_tried"]["layout"] == "not made for that"


def test_a_script_that_ends_first_keeps_its_trace_and_says_why(user: User) -> None:
    short = FRAGILE.replace("2000", str(NEEDED + 5)).replace("foreach=True", "foreach=False")
    (user.folder / "train.py").write_text(short)
    user.record("--prove", "train.py")
    assert (tried(user)["tried"], tried(user)["not_tried"]) == (
        [], {"optimizer": halfway_prove.ENDED}
    )  # fmt: skip
    done = user.record("--prove", "train.py", RANK="0", WORLD_SIZE="2")
    assert "--prove is for one process" in done.stderr


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


def test_a_step_that_is_a_function_is_called_again_and_the_loop_is_as_long(user: User) -> None:
    (user.folder / "function.py").write_text(FUNCTION)
    alone = user.run("function.py").stdout
    assert user.run("function.py", "--prove").stdout == alone
    assert [row["name"] for row in tried(user)["tried"]] == ["optimizer"]


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
