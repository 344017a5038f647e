"""Changes that are tried in a training: what is written of them, and that each is taken back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.recording import NEEDED, PROOFS, RECORDER, User, inspected, source
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, dataloader

from e2e.profile import halfway_prove as prove
from e2e.profile.halfway_prove import (
    ABLATIONS,
    COUNTED,
    ENDED,
    LEAST_ROUNDS,
    ROUNDS,
    Ablation,
    StepProbe,
)

BLOCK = prove.DISCARDED + prove.LEAST_STEPS  # steps
BATCH = 4
ON_A_GPU = ("sdpa_efficient", "sdpa_cudnn", "launch")

TRAINING = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
workers, *short = map(int, sys.argv[1:])
count = 4 * short[0] if short else 100
data = TensorDataset(torch.randn(count, 3, 6, 6), torch.arange(count) % 4)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                      nn.Dropout(0.3), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=25)
for epoch in range(1 if short else 1000):
    for images, labels in DataLoader(data, batch_size=4, shuffle=True, num_workers=workers):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
print("END")
"""


@pytest.fixture
def user(tmp_path: Path, quick_python: str) -> User:
    """With copies of the recorder and of what it needs to prove."""
    for name in (RECORDER, PROOFS):
        (tmp_path / name).write_text(source(name))
    return User(tmp_path, quick_python)


def tried(user: User) -> dict[str, Any]:
    return json.loads((user.folder / "a.proofs.json").read_text())


def names(found: dict[str, Any]) -> list[str]:
    return [row["name"] for row in found["tried"]]


def test_a_training_is_tried_with_all_that_it_has_and_ends(user: User) -> None:
    """With a loader's workers, autocast, a schedule that ends before, dropout, batch statistics."""
    (user.folder / "train.py").write_text(TRAINING)
    done = user.record("--prove", "train.py", "1")
    assert "END" not in done.stdout
    found = tried(user)
    assert {row["name"]: row["resident"] for row in found["tried"]} == {
        "loader": False, "optimizer": True, "amp": True, "layout": True,
    }  # fmt: skip
    assert found["not_tried"] == {}
    for row in found["tried"]:
        blocks = row["as_is_s"] + row["changed_s"]
        assert LEAST_ROUNDS <= len(row["as_is_s"]) == len(row["changed_s"]) <= ROUNDS
        assert all(len(block) >= prove.LEAST_STEPS and min(block) > 0 for block in blocks)
    assert found["steps"] > len(found["tried"]) * 2 * LEAST_ROUNDS * BLOCK
    assert user.left == ["a.json.gz", "a.proofs.json"]


def test_a_script_that_ends_first_or_bears_no_change_is_no_failure(user: User) -> None:
    (user.folder / "train.py").write_text(TRAINING)
    done = user.record("--prove", "train.py", "0", str(NEEDED + 1 + COUNTED + 3))
    assert "END" in done.stdout
    assert tried(user)["tried"] == []
    assert set(tried(user)["not_tried"].values()) == {ENDED}
    fragile = 'assert model[0].weight.is_contiguous(), "not made for that"'
    text = TRAINING.replace(
        "        optimizer.step()", f"        {fragile}\n        optimizer.step()"
    )
    (user.folder / "train.py").write_text(text)
    assert "END" not in user.record("--prove", "train.py", "0").stdout
    assert names(tried(user)) == ["loader", "optimizer", "amp"]
    assert tried(user)["not_tried"]["layout"] == "not made for that"


# ---------------------------------------------------------------- the plan


class Steps:
    """Drives a Prover, one empty step after the other."""

    def __init__(self, only: tuple[str, ...] | None = None, compiled: bool = False) -> None:
        self.kept: list[dict[str, Any]] = []
        self.prover = prove.Prover(
            time.perf_counter, lambda begin, end: end - begin, 10.0,
            lambda found: self.kept.append(json.loads(json.dumps(found))),
            only, compiled=compiled,
        )  # fmt: skip

    def __iter__(self) -> Iterator[int]:
        while not self.prover.done:
            yield self.prover.steps
            self.prover.step()

    def run(self, step: Callable[[], object] = lambda: None) -> dict[str, Any]:
        for _ in self:
            step()
        return self.kept[-1]


class Switch:
    """A change that is on or off, and may fail."""

    def __init__(self, fails: str = "", at: str = "") -> None:
        self.on, self.fails, self.at, self.entered = False, fails, at, 0

    @contextmanager
    def change(self, _probe: StepProbe) -> Iterator[None]:
        self.entered += 1
        self.on = True
        try:
            if self.at == "enter":
                raise RuntimeError(self.fails)
            yield
        finally:
            self.on = False
        if self.at == "leave":
            raise RuntimeError(self.fails)

    def trial(self, why: str | None = None, **flags: bool) -> Ablation:
        return Ablation(self.change, "a switch is on", lambda _: why, **flags)


def test_turns_are_a_b_b_a_and_a_change_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is handed over before the next change, which may end the process."""
    switch = Switch()
    monkeypatch.setattr(prove, "ABLATIONS", {"switch": switch.trial(), "next": Switch().trial()})
    steps = Steps()
    course = [switch.on for _ in steps][1 + COUNTED :]
    turns = [set(course[i : i + BLOCK]) for i in range(0, 2 * ROUNDS * BLOCK, BLOCK)]
    assert turns == [{False}, {True}, {True}, {False}] * (ROUNDS // 2)
    assert not switch.on
    _, first, *_, last = steps.kept
    assert (names(first), first["not_tried"]) == (["switch"], {"next": ENDED})
    (row, _), count = last["tried"], last["steps"]
    assert (row["name"], row["change"]) == ("switch", "a switch is on")
    assert not row["resident"], "there is no loader whose batch could come again"
    assert [len(row[side]) for side in ("as_is_s", "changed_s")] == [ROUNDS] * 2
    assert count == steps.prover.needed == len(course) + 1 + COUNTED
    assert steps.prover.trying == "trying 2 of 2 changes, "


def test_after_a_change_that_fails_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    enters, leaves = Switch("no\nsuch thing", "enter"), Switch("cannot go back", "leave")
    idle, refused, last = Switch(), Switch(), Switch()
    monkeypatch.setattr(prove, "ABLATIONS", {
        "enters": enters.trial(), "leaves": leaves.trial(), "idle": idle.trial(""),
        "refused": refused.trial("a reason"), "last": last.trial(),
    })  # fmt: skip
    found = Steps().run()
    assert names(found) == ["last"]
    assert found["not_tried"] == {
        "enters": "no", "leaves": "cannot go back", "refused": "a reason",
    }  # fmt: skip
    assert not any(switch.on for switch in (enters, leaves, last))
    assert (idle.entered, refused.entered) == (0, 0)
    few = Steps(only=("last", "absent"))  # those named take few steps
    assert [last.on for _ in few].count(True) == LEAST_ROUNDS * BLOCK
    assert (names(few.kept[-1]), few.kept[-1]["not_tried"]) == (["last"], {})


def test_a_change_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch()
    monkeypatch.setattr(prove, "ABLATIONS", {"slow": switch.trial()})
    monkeypatch.setattr(prove, "LONGEST_S", 0.0)
    monkeypatch.setattr(prove, "SLOWER", 0.0)
    found = Steps().run()
    assert (found["tried"], list(found["not_tried"]), switch.on) == ([], ["slow"], False)
    assert "more than" in found["not_tried"]["slow"]


@pytest.mark.parametrize("when", [1, 1 + COUNTED + BLOCK + 1, 1 + COUNTED + 8 * BLOCK])
def test_it_can_end_at_any_time(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch()
    monkeypatch.setattr(prove, "ABLATIONS", {"one": switch.trial(), "two": Switch().trial()})
    steps = Steps()
    for number in steps:
        if number == when:
            steps.prover.end("the reason")
            break
    found = steps.kept[-1]
    if when == 1:  # nothing was tried yet
        assert found["not_tried"] == {"one": ENDED, "two": ENDED}
    elif when < 6 * BLOCK:
        assert found["not_tried"] == {"one": "the reason", "two": ENDED}
    else:  # three pairs of blocks are enough
        assert (names(found), found["not_tried"]) == (["one"], {"two": ENDED})
    assert not switch.on
    steps.prover.end("again")
    assert steps.kept[-1] is found


def test_compiled_code_is_neither_inspected_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {"eager": Switch().trial(eager=True), "always": Switch().trial()}
    monkeypatch.setattr(prove, "ABLATIONS", trials)
    training = Training()
    before = state_of(training)["torch"][:3], state_of(training)["reads"]
    steps = Steps(compiled=True)
    for _ in steps:
        assert (state_of(training)["torch"][:3], state_of(training)["reads"]) == before
    assert names(steps.kept[-1]) == ["always"]
    assert steps.kept[-1]["not_tried"] == {"eager": prove.COMPILED}


def test_results_lie_beside_the_trace_and_are_whole(tmp_path: Path) -> None:
    for name in ("run.json.gz", "run.json", "run"):
        prove.write_beside(str(tmp_path / name), {"name": name})
        assert json.loads((tmp_path / "run.proofs.json").read_text()) == {"name": name}
    with pytest.raises(TypeError):
        prove.write_beside(str(tmp_path / "run.json"), {"name": object()})
    assert json.loads((tmp_path / "run.proofs.json").read_text()) == {"name": "run"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.proofs.json"]
    with pytest.raises(OSError, match="absent"):
        prove.write_beside(str(tmp_path / "absent" / "run.json"), {})


# ---------------------------------------------------------------- a training


class Net(nn.Module):
    """Convolution, attention and a head; it notes what its parts get and give."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.seen: dict[str, Any] = {}

    def forward(self, images: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        found = self.conv(images)
        self.seen |= {"input": images, "conv": found, "weight": self.conv.weight}
        tokens = found.flatten(2).transpose(1, 2).contiguous()[:, None]
        mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return {"scores": scale * self.head(mixed.mean((1, 2)))}


class Training:
    """A little training; `entries` of autocast in a step."""

    def __init__(self, entries: int = 0, **options: Any) -> None:
        torch.manual_seed(0)
        self.entries, self.net, self.other = entries, Net(), nn.Linear(2, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, **options)
        self.images = torch.randn(BATCH, 3, 8, 8)

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.no_grad():  # a larger one, but without gradients
            nn.Linear(100, 100)(torch.ones(1, 100))
        for _ in range(max(1, self.entries)):
            with torch.autocast("cpu", torch.bfloat16) if self.entries else nullcontext():
                scores = self.net(self.images, scale=2.0)["scores"]
            scores.float().square().mean().backward()
        self.other(torch.ones(1, 2))
        self.optimizer.step()

    def gradients(self, images: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        self.net.zero_grad()
        self.net(self.images if images is None else images)["scores"].square().mean().backward()
        return [parameter.grad for parameter in self.net.parameters()]


def enabled_back_ends() -> dict[str, bool]:
    cuda = torch.backends.cuda
    return {name: getattr(cuda, f"{name}_sdp_enabled")() for name in prove.ATTENTION}


def state_of(training: Training) -> dict[str, Any]:
    """What a change may touch, of torch, the model and the optimizer."""
    cuda = torch.backends.cuda
    return {
        "forward": vars(training.net).get("forward"),
        "hooks": (len(training.net._forward_hooks), len(training.net._forward_pre_hooks)),
        "strides": [p.stride() for p in training.net.parameters()],
        "ids": [id(p) for p in training.net.parameters()],
        "groups": [
            {k: v for k, v in group.items() if k != "params"}
            for group in training.optimizer.param_groups
        ],
        "state": [
            (k, v.stride(), v.dtype, v.device)
            for state in training.optimizer.state.values() for k, v in state.items()
        ],
        "reads": [vars(torch.Tensor).get(name) for name in prove.READS],
        "torch": (
            torch.autocast.__enter__, torch.autocast.__exit__, nn.Module.__call__,
            nn.functional.scaled_dot_product_attention, torch.optim.lr_scheduler.StepLR.step,
            torch.optim.lr_scheduler.LRScheduler.step,
            dataloader._BaseDataLoaderIter.__next__,
        ),
        "flags": (
            torch.backends.cudnn.benchmark, cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
            *enabled_back_ends().values(),
            torch.is_autocast_enabled("cpu"), torch.autocast_increment_nesting(),
            torch.autocast_decrement_nesting(),
        ),
    }  # fmt: skip


def test_a_training_is_inspected_and_nothing_of_that_stays() -> None:
    training = Training(entries=3)
    training.step()
    before = state_of(training)
    probe = inspected(training.step)
    assert probe.model is training.net
    assert probe.optimizers.count(training.optimizer) == 1
    assert (probe.calls, probe.attentions, probe.autocasts) == (3 * COUNTED,) * 3
    assert probe.autocast_dtype == torch.bfloat16
    assert (probe.inputs[0] is training.images, probe.named_inputs) == (True, {"scale": 2.0})
    assert probe.reads == 0, "nothing waits for a CPU"
    assert probe.patch.main is None
    assert state_of(training) == before


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name not in ON_A_GPU])
@pytest.mark.parametrize("broken", [False, True])
def test_a_change_is_taken_back_and_the_training_goes_on(name: str, broken: bool) -> None:
    """Also where the script raises in the middle of it."""
    training = Training(entries=2 if name in ("casts", "amp") else 0, foreach=False)
    probe = inspected(training.step)
    before = state_of(training)
    try:
        with ABLATIONS[name].change(probe):
            training.step()
            for call in probe.at_end:
                call()
            if broken:
                raise KeyError
            training.step()
    except KeyError:
        assert broken
    assert state_of(training) == before
    assert not probe.at_end
    assert not probe.patch.resident
    training.step()
    steps = {int(state["step"]) for state in training.optimizer.state.values()}
    assert steps == {1 + COUNTED + (2 if broken else 3)}, "counted also by a fused optimizer"


@contextmanager
def changed(name: str, entries: int = 0, **options: Any) -> Iterator[Training]:
    """A training with a change at work, after a step with it."""
    training = Training(entries, **options)
    probe = inspected(training.step)
    assert name == "float32" or ABLATIONS[name].when(probe) is None
    with ABLATIONS[name].change(probe):
        training.step()
        yield training


def test_the_changes_are_what_their_words_say() -> None:
    with changed("layout") as training:
        for tensor in (training.net.seen["input"], training.net.seen["weight"]):
            assert tensor.is_contiguous(memory_format=torch.channels_last)
        state = training.optimizer.state[training.net.conv.weight]["exp_avg"]
        assert state.is_contiguous(memory_format=torch.channels_last)
    with changed("amp", entries=1) as training:
        assert training.net.seen["conv"].dtype == torch.float32
    with changed("float32") as training:
        assert training.net.seen["conv"].dtype == torch.bfloat16
        assert training.net(training.images)["scores"].dtype == torch.float32
    with changed("optimizer", foreach=False) as training:
        (group,) = training.optimizer.param_groups
        assert group["fused"] or group["foreach"]
    with torch.autograd.set_detect_anomaly(True), changed("anomaly"):
        assert not torch.is_anomaly_enabled()
    probe, before = inspected(Training().step), enabled_back_ends()
    assert ABLATIONS["anomaly"].when(probe) == "", "it is not on"
    for name, backend in (("flash",) * 2, ("efficient", "mem_efficient"), ("cudnn",) * 2):
        trial = ABLATIONS[f"sdpa_{name}"]
        with trial.change(probe):
            assert [one for one, is_on in enabled_back_ends().items() if is_on] == [backend]
        assert enabled_back_ends() == before
        assert trial.when(probe) == "", "not on a CPU"
    with ABLATIONS["benchmark"].change(probe):
        assert torch.backends.cudnn.benchmark


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection_that_each_step_asks_for_is_seen_and_switched_off() -> None:
    seen: list[bool] = []

    def step() -> None:
        with torch.autograd.detect_anomaly():
            seen.append(torch.is_anomaly_enabled())

    probe = inspected(step)
    assert ABLATIONS["anomaly"].when(probe) is None
    with ABLATIONS["anomaly"].change(probe):
        step()
    step()
    assert seen == [True] * (1 + COUNTED) + [False, True]
    assert not torch.is_anomaly_enabled()


def test_autocast_is_seen_around_the_loop_and_casts_weights_once_a_step() -> None:
    training = Training()
    with torch.autocast("cpu", torch.bfloat16):
        probe = inspected(training.step)
        assert (probe.autocasts, probe.autocast_dtype) == (0, torch.bfloat16)
        assert ABLATIONS["amp"].when(probe) is None
        for change, kind in ((ABLATIONS["amp"].change(probe), torch.float32),
                             (nullcontext(), torch.bfloat16)):  # fmt: skip
            with change:
                training.step()
            assert training.net.seen["conv"].dtype == kind
    assert ABLATIONS["casts"].when(inspected(Training(entries=1).step)) == ""
    assert ABLATIONS["casts"].when(inspected(Training(entries=0).step)) == ""
    probe = inspected(Training(entries=2).step)
    assert ABLATIONS["casts"].when(probe) is None

    weight, ones = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)

    def cast() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            node: Any = nn.functional.linear(ones, weight).grad_fn
        while "ToCopy" not in node.name():
            node = next(before for before, _ in node.next_functions if before is not None)
        return node

    with ABLATIONS["casts"].change(probe):
        first, again = cast(), cast()
        assert first is again
        for call in probe.at_end:
            call()
        assert cast() is not again, "the weights are new"
    assert cast() is not cast()


def test_a_model_that_does_not_run_with_a_change_is_not_tried_with_it() -> None:
    """A rehearsal leaves gradients as they are."""
    training = Training()
    probe, before = inspected(training.step), training.gradients()
    assert probe.rehearse(ABLATIONS["layout"]) is None
    after = [parameter.grad for parameter in training.net.parameters()]
    assert all(one is old is not None for one, old in zip(after, before, strict=True))
    forward = training.net.conv.forward

    def picky(images: torch.Tensor) -> torch.Tensor:
        if images.is_contiguous(memory_format=torch.channels_last):
            raise RuntimeError("not in this layout\n(a long story)")
        return forward(images)

    training.net.conv.forward = picky  # type: ignore[method-assign]
    found = Steps(only=("layout",)).run(training.step)
    assert found["tried"] == []
    assert found["not_tried"] == {"layout": "the model does not run with it: not in this layout"}
    assert all(p.is_contiguous() for p in training.net.parameters())


def test_a_model_as_graphs_gives_parameters_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured is a function of inputs and parameters; here it is called as it is."""
    training, captured = Training(), list[int]()

    def capture(function: Callable[..., Any], arguments: Any, **_options: Any) -> Any:
        captured.append(len(arguments))
        function(*arguments)

        def graphed(*given: Any) -> Any:
            captured.append(len(given))
            instead = vars(training.net).pop("forward")  # a graph calls no Python
            found = function(*given)
            training.net.forward = instead
            return found

        return graphed

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    probe = inspected(training.step)
    probe.named_inputs = {}
    images, few = torch.randn(BATCH, 3, 8, 8), torch.randn(1, 3, 8, 8)
    plain, count = training.gradients(images), 1 + len(list(training.net.parameters()))
    for _ in range(2):  # captured once
        with ABLATIONS["launch"].change(probe):
            torch.testing.assert_close(training.gradients(images), plain)
            training.gradients(few)
            training.net.eval()
            training.gradients(images)
            training.net.train()
    assert captured == [count] * 3
    training.net.recurrent = nn.LSTM(2, 2)  # its forward has the weights in another list too
    monkeypatch.setattr(StepProbe, "device", "cuda")
    assert "recurrent" in str(ABLATIONS["launch"].when(probe))


def test_repeated_reads_take_the_course_of_the_first_step_without_reading() -> None:
    def course(values: list[float]) -> list[float]:
        seen: list[float] = []
        for value in values:
            seen.append(torch.tensor(value).item())
            if torch.tensor(value) > 2:  # of a loop that ends by what it reads
                break
        return seen

    probe = inspected(Training().step)
    probe.awaited = "cpu"
    with ABLATIONS["sync"].change(probe):
        first = course([1.0, 2.0, 3.0, 4.0])
        for call in probe.at_end:
            call()
        assert course([7.0, 8.0, 9.0, 10.0]) == first == [1.0, 2.0, 3.0]
        # What the first step has not read is read.
        assert torch.tensor(5.0).item() == 5.0
    assert course([7.0, 8.0]) == [7.0]


# ---------------------------------------------------------------- data


def batches_of(loader: DataLoader[Any]) -> Iterator[int]:
    while True:
        yield from (int(batch[0][0]) for batch in loader)


def data(workers: int, count: int = 1000) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(count)), batch_size=1, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_batch_comes_again_but_to_load(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the queue that workers have filled meanwhile is not taken for a loader that is fast."""
    rest = Switch()
    monkeypatch.setattr(prove, "ABLATIONS", {"loader": ABLATIONS["loader"], "rest": rest.trial()})
    batches = batches_of(data(workers))
    course = [next(batches) for _ in Steps(only=("loader", "rest"))][1 + COUNTED :]
    blocks = [course[i : i + BLOCK] for i in range(0, len(course), BLOCK)]
    queued = 2 * workers  # batches are loaded ahead by each of them
    last = COUNTED
    for number, block in enumerate(blocks[: 2 * LEAST_ROUNDS]):
        if number in (0, 3, 4):
            skipped = queued + (number != 0)  # the batch of the blocks before was taken too
            begin = last + skipped * (number in (0, 3)) + 1
            assert block == list(range(begin, begin + BLOCK)), number
            last = block[-1]
        else:
            assert len(set(block)) == 1, number
    assert len({batch for block in blocks[2 * LEAST_ROUNDS :] for batch in block}) == 1


def test_evaluations_get_batches_and_schedules_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "ABLATIONS", {"rest": Switch().trial()})
    train, held_out, training = data(0, 50), data(0, 5), Training()
    schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 1.0, total_steps=5)
    batches, taken, rates = batches_of(train), list[int](), set[Any]()

    def step() -> None:
        taken.append(next(batches))
        training.optimizer.step()
        schedule.step()
        rates.update(schedule.get_last_lr())
        if len(taken) == 20:
            assert [int(batch[0][0]) for batch in held_out] == [0, 1, 2, 3, 4]
            assert len([batch for batch in train]) < 100, "also of the training data"

    Steps().run(step)
    assert (len(set(taken[1 + COUNTED :])), len(rates)) == (1, 1)
    schedule.step()
    assert not rates & set(schedule.get_last_lr())
