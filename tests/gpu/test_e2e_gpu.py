"""On a GPU: every recipe trains, graphs and compiled steps compute what plain ones do, and the
numbers that are reported agree with each other.

Correctness and physical bounds only, never an absolute speed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from samples.feeding import Batch, Batches, Census
from samples.waiting import no_waits
from torch import Tensor, nn

from e2e.case import USUAL_LOADER, TrainCase
from e2e.data.datasets import Options, open_data
from e2e.data.datasets.images import InMemory
from e2e.data.datasets.synthetic import Synthetic
from e2e.data.types import IMAGENET, Arrays, Data, LoadSpec
from e2e.networks import find
from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network
from e2e.recipes import RECIPES, Recipe
from e2e.results.types import Training
from e2e.training.feeds import TimedFeed
from e2e.training.once import train_once
from e2e.training.step_timer import BurstTimer, CudaSteps, busy_in, host_time
from e2e.training.trainer import PRE_CAPTURE_STEPS, Trainer, set_tf32
from e2e.training.variant import Variant
from e2e.training.variants import Task, Variants
from microbench.device.device import describe, open_telemetry
from microbench.device.profiler import record
from microbench.results.runfile import read_run

DEVICE = torch.device("cuda:0")
ROOT = Path(__file__).parents[2]
BATCH, FEATURES, CLASSES = 32, 64, 10
LR = 0.01  # low, so that rounding is not amplified from step to step
PRODUCTS = {
    "fp32": torch.float32, "tf32": torch.float32, "amp": torch.float16,
    "amp-bf16": torch.bfloat16, "fp16": torch.float16, "bf16": torch.bfloat16,
    "O0": torch.float32, "O1": torch.float16, "O2": torch.float16, "O3": torch.float16,
}  # fmt: skip
# How far losses of two arms of a recipe may be apart: sums are not made in the same order.
CLOSE = {"fp32": 2e-3, "tf32": 1e-2, "amp": 2e-2, "amp-bf16": 2e-2, "O2": 2e-2, "bf16": 4e-2}


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))


MLP = Network(
    name="own", build=perceptron, input=(FEATURES,), tokens=None, classes=CLASSES,
    loss=classification_loss, accuracy=count_right,
    optimizer="sgd", lr=LR, weight_decay=0.0, batch=BATCH, cpu_batch=BATCH,
)  # fmt: skip


def labelled(count: int, *shape: int) -> list[Batch]:
    """Batches, each of its own classes, so that each has a loss of its own."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    return [
        (
            torch.randn(BATCH, *shape, generator=generator, device=DEVICE),
            torch.full((BATCH,), i % CLASSES, device=DEVICE),
        )
        for i in range(count)
    ]


def samples(count: int) -> list[Batch]:
    """Batches for `MLP`."""
    return labelled(count, FEATURES)


def pictures(count: int) -> list[Batch]:
    """Batches for cnn-cifar."""
    return labelled(count, 3, 32, 32)


def tokens(count: int, batch: int = 8) -> list[Batch]:
    """Batches for gpt-tiny, each of few tokens of its own."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    drawn = [
        torch.randint(8 * i, 8 * i + 8, (batch, 64), generator=generator, device=DEVICE)
        for i in range(count)
    ]
    return [(batch, batch) for batch in drawn]


def trainer_of(
    network: str | Network,
    recipe: str | Recipe,
    *,
    lr: float | None = LR,
    seed: int = 1,
    **case: Any,
) -> Trainer:
    found = find(network) if isinstance(network, str) else network
    made = RECIPES[recipe] if isinstance(recipe, str) else recipe
    images = len(found.input) == 3
    case = {"layout": "nhwc" if images else "", "optimizer": found.optimizer, "lr": lr, **case}
    plan = TrainCase(found.name, made.name, BATCH, "any", **case)
    trainer = Trainer(found, plan, made, DEVICE, seed=seed)
    trainer.set_backend_flags()
    return trainer


def losses_of(trainer: Trainer, feed: Batches, steps: int) -> list[float]:
    trainer.set_backend_flags()
    return [trainer.step(feed).item() for _ in range(steps)]


def near(losses: list[float], recipe: str, optimizer: str = "sgd") -> Any:
    """These losses, but for rounding; Adam makes whole steps of gradients that only round."""
    rel = CLOSE[recipe] * (1 if optimizer == "sgd" else 2)
    return pytest.approx(losses, rel=rel, abs=rel / 2)


def weights_of(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.module.parameters()]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Compiled code and memory stay in a process: let go of them."""
    yield
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def timer_of(network: str, data: Data | None = None) -> Iterator[Variants]:
    """Variants on the GPU, on synthetic data when none is given; all arms are let go after."""
    info = describe("cuda")
    found = find(network)
    feed = data or Synthetic(Options(found.input, found.classes, found.tokens))
    task = Task(found, feed, seed=1)
    with open_telemetry(info, 0.05) as telemetry:
        timer = Variants(task, info.target(), telemetry)
        try:
            yield timer
        finally:
            timer.close()


def case_of(network: str, recipe: str, batch: int, **changes: Any) -> TrainCase:
    found = find(network)
    shape = "x".join(str(side) for side in found.input)
    return TrainCase(
        network, recipe, batch, shape, **{"layout": "nhwc", "optimizer": "sgd", **changes}
    )


def set_up(timer: Variants, *cases: TrainCase) -> list[Training]:
    return timer.set_up(cases, lambda key, stage: None)


# ---------------------------------------------------------------- clocks


def test_the_wall_clock_of_a_block_is_without_its_first_step() -> None:
    """The first step waits on the host for as long as ten of the others take."""
    info = describe("cuda")
    timer = CudaSteps(info.index, info.sm_count)
    a = torch.randn(4096, 4096, device=DEVICE)
    naps_s = [0.2] + [0.0] * 8

    def step() -> None:
        time.sleep(naps_s.pop(0) if naps_s else 0.0)
        for _ in range(20):
            torch.mm(a, a)

    timer.run(step, 3)
    naps_s = [0.2] + [0.0] * 8
    block = BurstTimer(timer, 4, lambda: 0.0).block(step, 8)
    assert block.wall_steps == 8
    assert block.wall_s == pytest.approx(8 * block.times_s[0], rel=0.05)


# ---------------------------------------------------------------- recipes


def converted(recipe: str) -> tuple[str, Batches]:
    """A network that the recipe changes, and two of its batches."""
    if RECIPES[recipe].float8:
        return "gpt-tiny", Batches(*tokens(2))
    return "cnn-cifar", Batches(*pictures(2))


@pytest.mark.quick
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(name: str) -> None:
    network, feed = converted(name)
    trainer = trainer_of(network, name)
    losses = losses_of(trainer, feed, 30)
    assert all(loss == loss and abs(loss) < 100 for loss in losses)
    if name not in ("fp16", "O3"):  # without a scale and masters nobody promises to learn
        assert fmean(losses[-4:]) < 0.8 * fmean(losses[:4])
    assert all(w.isfinite().all() for w in weights_of(trainer))


@pytest.mark.quick
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_run_in_the_recipes_type(name: str) -> None:
    trainer = trainer_of("cnn-cifar", name)
    with Census() as census:
        trainer.forward(pictures(1)[0][0])
    assert census.of("convolution", "addmm", "mm") == {PRODUCTS[name]}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_are_their_masters_rounded_batchnorm_too(optimizer: str, fused: bool) -> None:
    trainer = trainer_of("cnn-cifar", "O2", optimizer=optimizer, fused=fused)
    losses_of(trainer, Batches(*pictures(2)), 5)
    weights = list(trainer.module.parameters())
    assert {weight.dtype for weight in weights} == {torch.float16, torch.float32}
    for weight, master in zip(weights, trainer.optimizer.masters, strict=True):
        assert torch.equal(weight, master.to(weight.dtype))


def test_an_update_of_masters_is_few_kernels_not_one_a_weight() -> None:
    """Torch copies lists of one type in a few kernels, and a mixed list tensor by tensor."""
    trainer = trainer_of("resnet18-cifar", "O2")
    feed = Batches(*pictures(1))
    losses_of(trainer, feed, 2)
    inputs, targets = feed.batches[0]
    trainer.optimizer.clear()
    trainer.optimizer.backward(trainer.network.loss(trainer.forward(inputs), targets))
    kernels = record(trainer.optimizer.apply)
    assert 1 < len(kernels) < len(trainer.optimizer.masters)


def _relative_error(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def _product() -> float:
    generator = torch.Generator(DEVICE).manual_seed(4)
    a, b = (torch.randn(1024, 1024, generator=generator, device=DEVICE) for _ in range(2))
    return _relative_error(a @ b, a.double() @ b.double())


def _convolution() -> float:
    generator = torch.Generator(DEVICE).manual_seed(5)
    x = torch.randn(16, 64, 56, 56, generator=generator, device=DEVICE)
    w = torch.randn(64, 64, 3, 3, generator=generator, device=DEVICE)
    x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    exact = nn.functional.conv2d(x.double(), w.double(), padding=1)
    return _relative_error(nn.functional.conv2d(x, w, padding=1), exact)


@pytest.mark.quick
@pytest.mark.parametrize("operation", [_product, _convolution])
def test_the_tf32_switch_changes_what_is_computed(operation: Callable[[], float]) -> None:
    for _ in range(2):  # there and back: arms take turns
        set_tf32(False)
        assert operation() < 3e-5
        set_tf32(True)
        assert 1e-4 < operation() < 5e-3


@pytest.mark.quick
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_never_waits_for_the_device(name: str, optimizer: str) -> None:
    """Nor where gradients are clipped."""
    network, feed = converted(name)
    clip = 0.1 if name == "amp" else None
    trainer = trainer_of(network, name, optimizer=optimizer, clip=clip)
    losses_of(trainer, feed, 3)
    with no_waits():
        for _ in range(3):
            trainer.step(feed)


def _colours(count: int, seed: int) -> Arrays:
    """Noise round a colour that is the class's own, as bytes."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % CLASSES
    colours = torch.randint(40, 216, (CLASSES, 3), generator=torch.Generator().manual_seed(0))
    noise = torch.randint(-30, 31, (count, 3, 32, 32), generator=generator)
    return Arrays((colours[classes][:, :, None, None] + noise).to(torch.uint8), classes)


def coloured() -> InMemory:
    """A data set that is easy to learn, smaller than a few steps, so that epochs end."""
    return InMemory("coloured", _colours(200, 1), _colours(100, 2), IMAGENET, CLASSES)


@pytest.mark.parametrize("graph", [False, True])
def test_resident_data_never_makes_a_step_wait(graph: bool) -> None:
    trainer = trainer_of("cnn-cifar", "amp", graph=graph)
    feed = coloured().load(LoadSpec(BATCH, DEVICE, 1))
    for _ in range(3):
        trainer.step(feed)
    if graph:
        trainer.capture(feed)
    trainer.step(feed)
    with no_waits():
        for _ in range(12):  # nearly two epochs
            trainer.step(feed)


# ---------------------------------------------------------------- captured steps

CAPTURED: list[tuple[str, str, str, Callable[[int], list[Batch]]]] = [
    ("cnn-cifar", "fp32", "sgd", pictures), ("cnn-cifar", "tf32", "sgd", pictures),
    ("cnn-cifar", "O2", "adam", pictures), ("gpt-tiny", "amp-bf16", "adamw", tokens),
    ("cnn-cifar", "amp", "adamw", pictures),
]  # fmt: skip


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("network", "recipe", "optimizer", "batches"), CAPTURED)
def test_a_replayed_step_trains_as_a_plain_one(
    network: str, recipe: str, optimizer: str, batches: Callable[[int], list[Batch]], count: int
) -> None:
    """On one batch, as synthetic data is, and on batches that change."""
    lr = LR if optimizer == "sgd" else 3e-3
    plain, graph = (
        trainer_of(network, recipe, optimizer=optimizer, lr=lr, warmup=5, graph=how)
        for how in (False, True)
    )
    given = batches(count)
    graph_feed = Batches(*given)
    graph.capture(graph_feed)
    assert graph.steps_done == PRE_CAPTURE_STEPS
    losses_of(plain, Batches(given[0]), PRE_CAPTURE_STEPS)
    plain_feed = Batches(*given)
    next(plain_feed)  # the one that capture took
    expected = losses_of(plain, plain_feed, 6)
    assert losses_of(graph, graph_feed, 6) == near(expected, recipe, optimizer)
    assert graph.skipped_steps == plain.skipped_steps

    for arm in (plain, graph):
        arm.restart(7)
    fresh = trainer_of(network, recipe, optimizer=optimizer, lr=lr, warmup=5, seed=7)
    expected = losses_of(fresh, Batches(*given), 8)
    assert losses_of(graph, Batches(*given), 8) == near(expected, recipe, optimizer)
    assert losses_of(plain, Batches(*given), 8) == near(expected, recipe, optimizer)
    assert max(expected) > 1.05 * min(expected), "a loss that stays would prove nothing"


@pytest.mark.parametrize("recipe", ["fp32", "amp", "O2"])
@pytest.mark.parametrize("schedule", ["cosine:2", "triangle", "step:50/10"])
def test_a_replayed_step_obeys_schedule_and_bound(recipe: str, schedule: str) -> None:
    """The rate is read from the device, and gradients are clipped there, in a captured step too."""
    how: dict[str, Any] = {"schedule": schedule, "clip": 0.1, "warmup": 2}
    plain, graph = (trainer_of("cnn-cifar", recipe, graph=one, **how) for one in (False, True))
    free = trainer_of("cnn-cifar", recipe)
    given = pictures(3)
    graph.capture(Batches(*given))
    for arm in (plain, graph, free):
        arm.restart(7, 8)
    expected = losses_of(plain, Batches(*given), 8)
    assert losses_of(graph, Batches(*given), 8) == near(expected, recipe)
    assert losses_of(free, Batches(*given), 8) != near(expected, recipe), "it would prove nothing"


def test_a_replay_reads_the_feed_it_is_given() -> None:
    """Also one that was given before, when another came in between."""
    one, other = (Batches(batch) for batch in samples(2))
    graph, plain = (trainer_of(MLP, "fp32", graph=how) for how in (True, False))
    graph.capture(one)
    losses_of(plain, one, PRE_CAPTURE_STEPS)
    order = [one, other, one, one, other, one]
    found = [losses_of(graph, feed, 1)[0] for feed in order]
    assert found == pytest.approx([losses_of(plain, feed, 1)[0] for feed in order], rel=1e-3)


def test_evaluation_between_replays_changes_nothing() -> None:
    watched, alone = (trainer_of("cnn-cifar", "amp", graph=True) for _ in range(2))
    given = pictures(3)
    for arm in (watched, alone):
        arm.capture(Batches(*given))
    expected = losses_of(alone, Batches(*given), 4)
    feed, found = Batches(*given), []
    for _ in range(4):
        before = weights_of(watched)
        loss, share = watched.evaluate(iter(given))
        assert loss is not None
        assert share is not None
        assert all(torch.equal(a, b) for a, b in zip(before, weights_of(watched), strict=True))
        found += losses_of(watched, feed, 1)
    assert found == near(expected, "amp")


@pytest.mark.parametrize("recipe", ["fp32", "amp", "bf16"])
def test_a_captured_evaluation_has_the_outputs_of_the_network(recipe: str) -> None:
    plain, graph = (trainer_of(MLP, recipe, evaluation=True, graph=how) for how in (False, True))
    given = samples(3)
    graph.capture(Batches(*given))
    plain_feed, graph_feed = Batches(*given), Batches(*given)
    for _ in given:
        assert torch.equal(graph.step(graph_feed), plain.step(plain_feed))
    assert graph.is_finite(graph_feed)


def broken(batch: Batch) -> Batch:
    inputs, targets = batch[0].clone(), batch[1]
    inputs[0, 0] = float("inf")
    return inputs, targets


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("recipe", ["amp", "O2"])
@pytest.mark.parametrize("graph", [False, True])
def test_skipped_steps_are_counted_and_leave_no_trace(
    recipe: str, optimizer: str, graph: bool
) -> None:
    trainer = trainer_of(MLP, recipe, optimizer=optimizer, graph=graph)
    good = samples(2)
    if graph:
        trainer.capture(Batches(*good))
    losses_of(trainer, Batches(*good), 3)
    before, skipped = weights_of(trainer), trainer.skipped_steps
    scale = trainer.optimizer.scaler.get_scale()
    losses_of(trainer, Batches(broken(good[0])), 2)
    assert trainer.skipped_steps == skipped + 2
    assert trainer.optimizer.scaler.get_scale() == scale / 4
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True))
    losses = losses_of(trainer, Batches(*good), 2)
    assert trainer.skipped_steps == skipped + 2
    assert all(loss == loss for loss in losses)
    trainer.restart(1)
    assert trainer.skipped_steps == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("recipe", ["amp", "O2"])
def test_a_first_step_that_is_skipped_leaves_no_trace(recipe: str, optimizer: str) -> None:
    """Fresh memory is filled with NaN here, so that whoever reads it is found out."""
    good = samples(4)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        one, other = (trainer_of(MLP, recipe, optimizer=optimizer) for _ in range(2))
        losses_of(one, Batches(broken(good[0])), 1)
        assert one.skipped_steps == 1
        found, expected = (losses_of(arm, Batches(*good), 4) for arm in (one, other))
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == pytest.approx(expected, rel=1e-2)
    assert (one.skipped_steps, other.skipped_steps) == (1, 0)


# ---------------------------------------------------------------- compiled steps


@pytest.mark.parametrize("recipe", ["fp32", pytest.param("amp", marks=pytest.mark.quick), "O2"])
def test_a_compiled_arm_trains_as_a_plain_one(recipe: str) -> None:
    plain, compiled = (trainer_of("cnn-cifar", recipe, compile=how) for how in (False, True))
    given = pictures(3)
    expected = losses_of(plain, Batches(*given), 6)
    assert losses_of(compiled, Batches(*given), 6) == near(expected, recipe)
    for arm in (plain, compiled):
        arm.restart(2)
    expected = losses_of(plain, Batches(*given), 4)
    assert losses_of(compiled, Batches(*given), 4) == near(expected, recipe)


def test_a_compiled_arm_is_captured_too() -> None:
    plain = trainer_of("cnn-cifar", "amp")
    both = trainer_of("cnn-cifar", "amp", compile=True, graph=True)
    given = pictures(3)
    losses_of(both, Batches(given[0]), 2)
    both.capture(Batches(*given))
    for arm in (plain, both):
        arm.restart(1)
    expected = losses_of(plain, Batches(*given), 6)
    assert losses_of(both, Batches(*given), 6) == near(expected, "amp")


def test_tf32_is_off_in_compiled_fp32_and_on_in_compiled_tf32() -> None:
    """Arms that are compiled in one process, after each other, keep to their own arithmetic."""
    targets = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)
    wide = torch.randn(BATCH, 2048, device=DEVICE)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, CLASSES))

    network = replace(MLP, build=build, input=(2048,))
    errors: dict[str, float] = {}
    for name in ("fp32", "tf32"):
        trainer = trainer_of(network, name, compile=True)
        exact = trainer.module.double()(wide.double()).detach()
        trainer.module.float()
        outputs = torch.compile(trainer.forward)(wide).detach()
        errors[name] = _relative_error(outputs, exact)
        assert torch.isfinite(trainer.step(Batches((wide, targets))))
    assert errors["fp32"] < 3e-5
    assert 1e-4 < errors["tf32"] < 5e-3


# ---------------------------------------------------------------- memory

LIMIT_BYTES = 3 * 1024**3
HUGE = 2**15  # of cnn-cifar: more than half a megabyte a sample


@contextmanager
def little_memory() -> Iterator[None]:
    """As on a card of LIMIT_BYTES."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total, DEVICE)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)


@pytest.mark.quick
def test_out_of_memory_is_a_row_that_names_a_batch_that_fits() -> None:
    small, huge = (case_of("cnn-cifar", "fp32", batch) for batch in (BATCH, HUGE))
    before = torch.cuda.memory_allocated(DEVICE)
    with little_memory(), timer_of("cnn-cifar") as timer:
        fine, failed = set_up(timer, small, huge)
        assert fine.status == "ok", fine.reason
        assert failed.status == "failed"
        assert failed.reason is not None
        assert "out of memory" in failed.reason
        assert "\n" not in failed.reason
        fits = failed.fits_batch
        assert str(fits) in failed.reason
        assert BATCH < fits < HUGE
        assert HUGE % fits == 0
        assert 0 < failed.memory_peak_bytes <= LIMIT_BYTES
        # Others go on, and what is said to fit does.
        assert timer.held.keys() == {small.key}
        assert torch.isfinite(timer.held[small.key].trainer.step(timer.held[small.key].feed))
        (other,) = set_up(timer, case_of("cnn-cifar", "fp32", fits))
        assert other.status == "ok", other.reason
    gc.collect()
    assert torch.cuda.memory_allocated(DEVICE) - before < 100e6, "nothing is kept but workspaces"


def _peaks(network: str, *cases: TrainCase, data: Data | None = None) -> list[int]:
    """What memory each case takes, while those before it are held."""
    with timer_of(network, data) as timer:
        found = set_up(timer, *cases)
        assert [t.status for t in found] == ["ok"] * len(cases), [t.reason for t in found]
        return [t.memory_peak_bytes or 0 for t in found]


def test_memory_holds_the_weights_grows_with_the_batch_and_halves_with_the_type() -> None:
    network = "resnet18-cifar"
    parameters = sum(p.numel() * 4 for p in find(network).build().parameters())
    batches = (128, 256, 512, 1024)
    cases = [*(case_of(network, "fp32", batch) for batch in batches), case_of(network, "amp", 512)]
    *peaks, amp = _peaks(network, *cases)
    assert min(peaks) > 3 * parameters, "weights, gradients and momentum"
    assert peaks == sorted(peaks)
    assert 2.5 < peaks[3] / peaks[1] < 4.5, peaks
    assert 0.4 < amp / peaks[2] < 0.85


@pytest.mark.parametrize("spec", ["synthetic", "generated"])
def test_equal_arms_take_equal_memory_whichever_comes_first(spec: str) -> None:
    """What arms share (the data set on the device, cuBLAS's workspace) is charged to none."""
    data = open_data(spec, Options((3, 32, 32), classes=10))
    fed = {"data": spec, "loader": USUAL_LOADER[spec]}
    cases = [case_of("cnn-cifar", recipe, 512, **fed) for recipe in ("fp32", "O0")]
    first, second = _peaks("cnn-cifar", *cases, data=data)
    assert first == pytest.approx(second, rel=0.02)


# ---------------------------------------------------------------- numbers that must agree

TIMED: list[tuple[str, bool]] = [("fp32", False), ("amp", False), ("amp", True)]  # recipe, graph
TIMED_BATCH = 256  # the card usually takes longer than the host, whose speed varies


@pytest.fixture(scope="module")
def timed() -> list[Training]:
    """Three arms of resnet18, timed in turns as a run does it."""
    cases = [case_of("resnet18", recipe, TIMED_BATCH, graph=graph) for recipe, graph in TIMED]
    with timer_of("resnet18") as timer:
        set_up(timer, *cases)
        found = {t.case.key: t for t in timer.time(4.0, lambda key, stage: None)}
    return [found[case.key] for case in cases]


@pytest.mark.alone
@pytest.mark.parametrize("arm", range(len(TIMED)))
def test_numbers_of_a_timed_arm_agree(timed: list[Training], arm: int) -> None:
    training = timed[arm]
    steps = training.steps
    assert steps is not None, training.reason
    assert sum(steps.blocks) == len(steps.times_s) == steps.wall_steps == len(steps.wall_times_s)
    assert min(steps.times_s) > 0
    assert sum(steps.times_s) <= 1.001 * steps.wall_s
    assert training.step_units == TIMED_BATCH
    assert training.wall_per_s == pytest.approx(TIMED_BATCH * steps.wall_steps / steps.wall_s)
    assert 0.1 * steps.median_s < steps.busy_s <= 1.1 * steps.median_s
    assert (steps.launches or 0) > 50
    plain = ["data", "copy", "forward", "backward", "optimizer"]
    names = [phase.name for phase in training.phases]
    assert names == (["data", "copy", "graph"] if training.case.graph else plain)
    total_s = sum(phase.gpu_s or 0.0 for phase in training.phases)
    assert total_s == pytest.approx(training.step_s, rel=0.3)
    assert 0 <= training.skipped_steps <= (0 if training.case.recipe == "fp32" else 16)


@pytest.mark.quick
def test_host_and_busy_time_of_a_step_that_is_known() -> None:
    """A kernel of milliseconds takes the host microseconds to launch."""
    a = torch.randn(8192, 8192, device=DEVICE)
    set_tf32(False)

    def launch() -> None:
        torch.mm(a, a)

    launch()
    torch.cuda.synchronize()
    busy_s, launches = busy_in(record(lambda: [launch() for _ in range(5)]), 5)
    host_s = host_time(launch)
    assert launches >= 1
    assert busy_s > 1.1e12 / 200e12, "no card does 200 TFLOP/s in IEEE float32"
    assert host_s < 0.5 * busy_s


# ---------------------------------------------------------------- the whole way


@pytest.mark.parametrize("graph", [False, True])
def test_a_training_from_scratch_learns(graph: bool) -> None:
    data = coloured()
    trainer = trainer_of("cnn-cifar", "amp", graph=graph, data="generated", loader="resident")
    feed = data.load(LoadSpec(BATCH, DEVICE, 1))
    for _ in range(3):
        trainer.step(feed)
    if graph:
        trainer.capture(feed)
    held = Variant(Training(trainer.case, "ok"), trainer, TimedFeed(feed, feed.close))
    repeats = [train_once(held, data, seed, 60, lambda step: None) for seed in (1, 2, 1)]
    for repeat in repeats:
        assert repeat.accuracy >= 0.8
        assert repeat.first_loss is not None
        assert repeat.train_loss < 0.5 * repeat.first_loss
    first, other, again = (repeat.first_loss for repeat in repeats)
    assert again == pytest.approx(first, rel=0.05)
    assert other != first


def test_a_memory_limit_makes_the_card_smaller(tmp_path: Path) -> None:
    """What does not fit is a row, with a batch that does."""
    path = tmp_path / "run.json"
    command = [
        sys.executable, "-m", "e2e", "resnet18-cifar", "--recipe", "fp32", "--batch", "64,16384",
        "--memory-limit", "4GB", "--clip", "1", "--budget", "2", "--json", str(path),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=240
    )
    assert "Traceback" not in done.stderr
    small, large = read_run(path).of(Training)
    assert small.status == "ok", small.reason
    assert large.status == "failed"
    assert "out of memory" in (large.reason or "")
    assert 64 <= large.fits_batch < 16384
    assert (large.memory_peak_bytes or 0) <= 4 * 10**9


@pytest.mark.quick
def test_the_whole_command(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    command = [
        sys.executable, "-m", "e2e", "cnn-cifar", "--amp", "--budget", "3", "--json", str(path),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    run = read_run(path)
    assert run.device["kind"] == "cuda"
    found = {training.case.recipe: training for training in run.of(Training)}
    assert list(found) == ["fp32", "tf32", "amp"]
    for training in found.values():
        assert training.status == "ok", training.reason
        assert training.case.layout == "nhwc"
        assert training.per_s is not None
        assert training.memory_peak_bytes
        used = training.memory_process_bytes
        assert used is None or used > training.memory_peak_bytes
        assert training.model_bytes
        assert (training.first_step_s or 0) > 0
        assert training.limit in ("gpu", "host")
        assert training.traced is not None, training.warnings
    assert set(found["amp"].speedup) == {"fp32", "tf32"}
    assert found["amp"].speedup["fp32"].ratio > 0.5
    for word in ("fp32", "tf32", "amp", "img/s"):
        assert word in done.stdout
