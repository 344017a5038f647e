"""A trainer: its steps are those of the textbook, whatever recipe, optimizer or layout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from samples.feeding import Batch, Batches, noise, small_cnn, trainer_of
from torch import Tensor, nn

from e2e.networks import find
from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network
from e2e.recipes import RECIPES
from e2e.schedule import parse_schedule
from e2e.training.optimizer import MOMENTUM
from e2e.training.trainer import Trainer

FEATURES, CLASSES = 12, 5
LR, DECAY = 0.05, 0.01
OPTIMIZERS = ("sgd", "adam", "adamw")
DYNAMIC = ("amp", "O2")


def network_of(build: Callable[[], nn.Module], **changes: Any) -> Network:
    """A classifier of FEATURES numbers into CLASSES."""
    made: dict[str, Any] = {
        "input": (FEATURES,), "classes": CLASSES, "loss": classification_loss,
        "accuracy": count_right, "weight_decay": DECAY,
    }  # fmt: skip
    return Network(
        name="own", build=build, optimizer="sgd", lr=LR, batch=8, cpu_batch=8,
        **made | changes,
    )  # fmt: skip


MLP = network_of(lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)))
samples = partial(noise, MLP)
pictures = partial(noise, small_cnn(), batch=6)


@cache
def small_gpt() -> Network:
    return find("gpt-tiny", input=(16,))


def tokens(count: int = 3, batch: int = 2) -> list[Batch]:
    generator = torch.Generator().manual_seed(6)
    drawn = [torch.randint(256, (batch, 16), generator=generator) for _ in range(count)]
    return [(batch, batch) for batch in drawn]


def trained(trainer: Trainer, batches: list[Batch], steps: int) -> list[float]:
    """The losses of so many steps, from the first batch on."""
    feed = Batches(*batches)
    return [trainer.step(feed).item() for _ in range(steps)]


def weights_of(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.module.parameters()]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    """Bit for bit."""
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def assert_close(left: list[Tensor], right: list[Tensor], rtol: float, atol: float) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=rtol, atol=atol)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh memory is filled with NaN here, so that whoever reads it is found out."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- against the textbook


def _sgd(weights: list[Tensor], grads: list[Tensor], memory: dict[str, list[Tensor]]) -> None:
    velocity = memory.setdefault("velocity", [torch.zeros_like(w) for w in weights])
    for w, g, v in zip(weights, grads, velocity, strict=True):
        v.mul_(MOMENTUM).add_(g + DECAY * w)
        w.sub_(LR * v)


def _adam(
    weights: list[Tensor], grads: list[Tensor], memory: dict[str, list[Tensor]], *, decoupled: bool
) -> None:
    means = memory.setdefault("means", [torch.zeros_like(w) for w in weights])
    squares = memory.setdefault("squares", [torch.zeros_like(w) for w in weights])
    memory.setdefault("steps", []).append(torch.ones(()))
    t = len(memory["steps"])
    for w, g, m, s in zip(weights, grads, means, squares, strict=True):
        if decoupled:
            w.mul_(1 - LR * DECAY)
        else:
            g = g + DECAY * w
        m.mul_(0.9).add_(0.1 * g)
        s.mul_(0.999).add_(0.001 * g * g)
        w.sub_(LR * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8))


RULES: dict[str, Callable[..., None]] = {
    "sgd": _sgd,
    "adam": lambda *a: _adam(*a, decoupled=False),
    "adamw": lambda *a: _adam(*a, decoupled=True),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_the_textbook_in_float64(optimizer: str, fused: bool) -> None:
    trainer = trainer_of(MLP, optimizer=optimizer, fused=fused)
    reference = copy.deepcopy(trainer.module).double()
    weights, memory = list(reference.parameters()), {}
    batches = samples()
    found = trained(trainer, batches, 6)
    for i, loss in enumerate(found):
        inputs, targets = batches[i % len(batches)]
        expected = F.cross_entropy(reference(inputs.double()), targets)
        grads = list(torch.autograd.grad(expected, weights))
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        with torch.no_grad():
            RULES[optimizer]([w.data for w in weights], grads, memory)
    # Adam divides by the root of tiny squares, so rounding shows more there.
    assert_close(weights_of(trainer), [w.data for w in weights], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16", "O2"])
def test_two_half_batches_make_the_step_of_the_whole_one(recipe: str, optimizer: str) -> None:
    whole = samples(3, batch=16)
    halves = [(x[i : i + 8], y[i : i + 8]) for x, y in whole for i in (0, 8)]
    one = trainer_of(MLP, recipe=recipe, optimizer=optimizer)
    two = trainer_of(MLP, recipe=recipe, optimizer=optimizer, accumulate=2)
    rtol, atol = (1e-5, 1e-5) if recipe == "fp32" else (2e-2, 5e-3)
    if optimizer != "sgd":
        atol *= 10
    feed = Batches(*halves)
    losses = [two.step(feed).item() for _ in range(3)]
    assert feed.given == 6
    assert two.steps_done == 3
    assert losses == pytest.approx(trained(one, whole, 3), rel=rtol)
    assert_close(weights_of(one), weights_of(two), rtol, atol)


@pytest.mark.parametrize("recipe", ["fp32", "amp", "O2", "bf16"])
def test_layouts_compute_the_same(recipe: str) -> None:
    nchw, nhwc = (trainer_of(small_cnn(), recipe, layout=name) for name in ("nchw", "nhwc"))
    rel = {"fp32": 1e-4, "amp": 5e-3, "O2": 5e-3, "bf16": 5e-2}[recipe]
    first, second = (trained(t, pictures(), 3) for t in (nchw, nhwc))
    assert first == pytest.approx(second, rel=rel)
    for variant, format in ((nchw, torch.contiguous_format), (nhwc, torch.channels_last)):
        kernels = [w for w in variant.module.parameters() if w.dim() == 4 and min(w.shape[:2]) > 1]
        assert kernels
        assert all(w.is_contiguous(memory_format=format) for w in kernels), "also after training"


# ---------------------------------------------------------------- masters and scales


class Lever(nn.Module):
    """One weight of 1, whose gradient is the mean of the input whatever the weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


LEVER = network_of(
    Lever, loss=lambda output, _: output.float().mean(), accuracy=None, weight_decay=0.0
)
# A gradient of 1/2, which the scaler's first scale, 2**16, does not take beyond float16.
HALVES = [(torch.full((8, FEATURES), 0.5), torch.zeros(8, dtype=torch.int64))]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fused", [True, False])
def test_masters_follow_float32_training_on_the_same_gradients(optimizer: str, fused: bool) -> None:
    trainer = trainer_of(MLP, recipe="O2", optimizer=optimizer, fused=fused)
    start = [w.detach().float() for w in trainer.module.parameters()]
    reference, memory = [w.double() for w in start], {}
    feed = Batches(*samples())
    for _ in range(6):
        scale = trainer.optimizer.scaler.get_scale()
        trainer.step(feed)
        assert trainer.skipped_steps == 0
        halves = [w.grad for w in trainer.module.parameters()]
        assert all(g is not None and g.dtype == torch.float16 for g in halves)
        RULES[optimizer](reference, [g.double() / scale for g in halves if g is not None], memory)
    assert_close(trainer.optimizer.masters, reference, rtol=1e-5, atol=1e-5)
    assert_same(weights_of(trainer), [m.detach().half() for m in trainer.optimizer.masters])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("scale", "learns"), [(1.0, False), (2.0**15, True), ("dynamic", True)])
def test_a_scale_saves_tiny_fp16_gradients(scale: float | str, learns: bool, fused: bool) -> None:
    network = replace(LEVER, loss=lambda output, _: 1e-7 * output.float().mean())
    recipe = RECIPES["O2"]
    if scale != "dynamic":
        recipe = replace(recipe, scale=float(scale))
    trainer = trainer_of(network, recipe, lr=1e5, fused=fused)
    trained(trainer, HALVES, 1)
    end = trainer.optimizer.masters[0].item()
    assert end == (pytest.approx(1 - 1e5 * 0.5e-7, rel=1e-4) if learns else 1.0)


# ---------------------------------------------------------------- skipped steps


def planted(batches: list[Batch], place: int) -> list[Batch]:
    """The batches with one more among them, of which one input is infinite."""
    inputs, targets = batches[0]
    broken = inputs.clone()
    broken[0, 0] = float("inf")
    return [*batches[:place], (broken, targets), *batches[place:]]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("recipe", DYNAMIC)
def test_a_broken_batch_is_skipped_and_leaves_no_trace(
    recipe: str, optimizer: str, fused: bool, place: int
) -> None:
    batches = samples(4)
    with poisoned_memory():
        clean = trainer_of(MLP, recipe=recipe, optimizer=optimizer, fused=fused)
        broken = trainer_of(MLP, recipe=recipe, optimizer=optimizer, fused=fused)
        scale = broken.optimizer.scaler.get_scale()
        trained(clean, batches, 4)
        feed = Batches(*planted(batches, place))
        for i in range(5):
            before = [*weights_of(broken), *(m.detach().clone() for m in broken.optimizer.masters)]
            broken.step(feed)
            after = [*weights_of(broken), *(m.detach() for m in broken.optimizer.masters)]
            assert broken.skipped_steps == (i >= place)
            if i == place:
                assert_same(before, after)
                assert broken.optimizer.scaler.get_scale() == scale / 2
    assert clean.skipped_steps == 0
    assert_close(weights_of(broken), weights_of(clean), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("option", [{"accumulate": 2}, {"clip": 1.0}])
def test_a_step_of_several_batches_is_skipped_once(option: dict[str, Any], fused: bool) -> None:
    trainer = trainer_of(MLP, recipe="amp", fused=fused, **option)
    start = weights_of(trainer)
    trained(trainer, planted(samples(3), 0), 1)
    assert trainer.skipped_steps == 1
    assert_same(start, weights_of(trainer))


# ---------------------------------------------------------------- the learning rate


def rates(trainer: Trainer, steps: int) -> list[float]:
    """The learning rate of each step, read off the lever: momentum adds gradients of a half."""
    feed = Batches(*HALVES)
    found, velocity = [], 0.0
    weight = next(trainer.module.parameters())
    for _ in range(steps):
        before = weight.item()
        trainer.step(feed)
        velocity = MOMENTUM * velocity + 0.5
        found.append((before - weight.item()) / velocity)
    return found


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("text", "warmup"),
    [("constant", 4), ("cosine", 0), ("cosine:2", 3), ("triangle", 3), ("step:50/10", 1)],
)
def test_a_training_obeys_its_schedule(text: str, warmup: int, fused: bool) -> None:
    trainer = trainer_of(LEVER, lr=0.5, schedule=text, warmup=warmup, fused=fused)
    schedule = parse_schedule(text)
    warm = [min(1.0, (i + 1) / warmup) if warmup else 1.0 for i in range(8)]
    expected = [0.5 * warm[i] * schedule.share(i / 8) for i in range(8)]
    for _ in range(2):
        trainer.restart(1, 8)
        assert rates(trainer, 8) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_steps_of_no_training_are_at_the_full_rate() -> None:
    trainer = trainer_of(LEVER, lr=0.25, schedule="cosine")
    assert rates(trainer, 3) == pytest.approx([0.25] * 3, rel=1e-4)
    trainer.restart(1, 2)
    rates(trainer, 2)
    trainer.restart(1)
    assert rates(trainer, 3) == pytest.approx([0.25] * 3, rel=1e-4)


# ---------------------------------------------------------------- clipped gradients

CLIPPED = [("fp32", None), ("amp", None), ("O2", None), ("fp16", None), ("amp", 256.0)]


def gradients_of(trainer: Trainer) -> Tensor:
    """All gradients that the optimizer saw last, unscaled, as one vector in float64."""
    return torch.cat(
        [m.grad.double().flatten() for m in trainer.optimizer.masters if m.grad is not None]
    )


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("recipe", "scale"), CLIPPED)
def test_clipped_gradients_keep_direction(recipe: str, scale: float | None, fused: bool) -> None:
    made, feed = RECIPES[recipe], samples(1)
    if scale is not None:
        made = replace(made, scale=scale)
    plain, whole = (trainer_of(MLP, recipe=made, clip=clip, fused=fused) for clip in (None, 1e9))
    for trainer in (plain, whole):
        trained(trainer, feed, 1)
        assert not trainer.skipped_steps
    assert_same(weights_of(plain), weights_of(whole))  # a bound that is never met
    before = gradients_of(whole)
    rounding = 2e-3 if recipe == "fp16" else 1e-5
    for share in (0.5, 1e-3):
        most = share * before.norm().item()
        bounded = trainer_of(MLP, recipe=made, clip=most, fused=fused)
        trained(bounded, feed, 1)
        after = gradients_of(bounded)
        assert after.norm().item() <= most * (1 + rounding)
        torch.testing.assert_close(after, before * share, rtol=2 * rounding, atol=rounding * most)


def test_a_gradient_that_overflows_float16_squared_is_clipped_and_not_lost() -> None:
    inputs, targets = samples(1)[0]
    large = [(300 * inputs, targets)]
    trainer = trainer_of(MLP, recipe="fp16", clip=1.0)
    trained(trainer, large, 1)
    norm = gradients_of(trainer).norm().item()
    assert 0 < norm == pytest.approx(1.0, rel=2e-2)


# ---------------------------------------------------------------- starting again


class Tied(nn.Module):
    """A weight that is in two places, one that is not trained, dropout, and batch-norm with a
    weight that float16 cannot hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        nn.init.constant_(self.norm.weight, 0.3)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, CLASSES)
        self.head.bias.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.dropout(self.norm(self.first(inputs)).relu(), 0.3, self.training)
        return self.head(self.second(hidden))


NETWORKS: dict[str, tuple[Callable[[], Network], Callable[[], list[Batch]]]] = {
    "mlp": (lambda: MLP, samples),
    "tied": (lambda: network_of(Tied), samples),
    "cnn": (small_cnn, pictures),
    "gpt-tiny": (small_gpt, tokens),
}
# Network, recipe, optimizer, fused.
RESTARTS = [
    ("mlp", "fp32", "adam", False), ("mlp", "amp", "sgd", False), ("tied", "O2", "sgd", True),
    ("tied", "O2", "adamw", False), ("tied", "amp", "adam", True), ("tied", "bf16", "sgd", True),
    ("cnn", "O2", "sgd", False), ("cnn", "O3", "sgd", True),
    ("gpt-tiny", "amp-bf16", "adamw", True), ("gpt-tiny", "bf16", "adamw", False),
]  # fmt: skip


def _everything(trainer: Trainer) -> list[Tensor]:
    """Weights, buffers, masters and the scaler's scale."""
    scale = torch.tensor(trainer.optimizer.scaler.get_scale())
    masters = [master.detach().clone() for master in trainer.optimizer.masters]
    return [*(t.clone() for t in trainer.module.state_dict().values()), *masters, scale]


@pytest.mark.parametrize(("name", "recipe", "optimizer", "fused"), RESTARTS)
def test_a_restart_repeats_all_bits(name: str, recipe: str, optimizer: str, fused: bool) -> None:
    network, batches = NETWORKS[name][0](), NETWORKS[name][1]()
    layout = "nhwc" if name == "cnn" else ""

    def make(seed: int) -> Trainer:
        return trainer_of(
            network, recipe, seed=seed, layout=layout, optimizer=optimizer, fused=fused, warmup=3
        )

    trainer = make(1)
    start = _everything(trainer)
    losses = trained(trainer, batches, 4)
    end = _everything(trainer)
    trainer.restart(1)
    assert trainer.steps_done == 0
    assert_same(_everything(trainer), start)
    assert trained(trainer, batches, 4) == losses
    assert_same(_everything(trainer), end)

    other = make(2)
    trainer.restart(2)
    assert_same(_everything(trainer), _everything(other))
    torch.manual_seed(9)  # dropout goes on from where the weights' random numbers ended
    others = trained(other, batches, 3)
    torch.manual_seed(9)
    assert trained(trainer, batches, 3) == others
    assert others != losses[:3]


@pytest.mark.parametrize(("optimizer", "fused"), [("sgd", True), ("adam", False), ("adamw", True)])
@pytest.mark.parametrize("recipe", DYNAMIC)
def test_a_restart_mends_what_broken_batches_did(recipe: str, optimizer: str, fused: bool) -> None:
    trainer = trainer_of(MLP, recipe=recipe, optimizer=optimizer, fused=fused)
    losses = trained(trainer, samples(), 4)
    scale = trainer.optimizer.scaler.get_scale()
    trained(trainer, planted(samples(2), 1), 6)
    assert trainer.skipped_steps == 2
    assert trainer.optimizer.scaler.get_scale() < scale
    with torch.no_grad():
        trainer.module.get_parameter("0.weight").fill_(torch.nan)
    trainer.restart(1)
    assert trainer.skipped_steps == 0
    assert trainer.optimizer.scaler.get_scale() == scale
    assert trained(trainer, samples(), 4) == losses


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize("recipe", ["fp32", "amp", "O2", "O3"])
def test_evaluation_leaves_no_trace(recipe: str) -> None:
    plain, watched = (trainer_of(small_cnn(), recipe, layout="nchw") for _ in range(2))
    losses = trained(plain, pictures(), 3)
    feed, found = Batches(*pictures()), []
    for _ in range(3):
        before = _everything(watched)
        watched.evaluate(iter(pictures(2)))
        assert_same(_everything(watched), before)
        assert watched.module.training
        assert all(child.training for child in watched.module.modules())
        found.append(watched.step(feed).item())
    assert found == losses
    assert_same(_everything(plain), _everything(watched))


def test_evaluation_counts_each_sample_once_and_a_loss_that_is_not_finite_is_none() -> None:
    trainer = trainer_of(small_cnn(), layout="nchw")
    trained(trainer, pictures(), 3)
    held_out = [*pictures(2, batch=6), *pictures(1, batch=1)]  # the last batch is short
    inputs, targets = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    reference = copy.deepcopy(trainer.module).double().eval()
    with torch.no_grad():
        outputs = reference(inputs.double())
    loss, share = trainer.evaluate(iter(held_out))
    assert loss == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-4)
    assert share == pytest.approx((outputs.argmax(1) == targets).double().mean().item())
    assert all(p.grad is None or p.grad.isfinite().all() for p in trainer.module.parameters())
    trainer = trainer_of(MLP)
    inputs, targets = samples()[0]
    loss, share = trainer.evaluate(iter([(inputs * float("nan"), targets)]))
    assert loss is None
    assert share is not None
    gpt = trainer_of(small_gpt(), optimizer="adamw")
    loss, share = gpt.evaluate(iter(tokens(2)))
    assert share is None
    assert loss == pytest.approx(math.log(256), rel=0.05), "untrained: every token as likely"


# ---------------------------------------------------------------- the parts of a step


def test_a_step_tells_its_phases_in_order_and_its_loss_hangs_on_no_graph() -> None:
    phases: list[str] = []
    loss = trainer_of(MLP, accumulate=2).step(Batches(*samples()), phases.append)
    assert (loss.shape, loss.requires_grad) == ((), False)
    batch = ["data", "copy", "forward", "backward"]
    assert phases == [*batch, *batch, "optimizer"]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("recipe", ["fp32", "bf16", "amp-bf16"])
@pytest.mark.usefixtures("_no_code_generation")
def test_an_evaluation_is_the_forward_pass_alone(recipe: str, compile: bool) -> None:
    """With batch-norm's and dropout's behaviour of evaluation; nothing learns."""
    network = network_of(
        lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    )
    phases: list[str] = []
    batches = samples()
    trainer = trainer_of(network, recipe=recipe, evaluation=True, compile=compile)
    before = copy.deepcopy(trainer.module.state_dict())
    plain = trainer_of(network, recipe=recipe).module.eval()
    feed = Batches(*batches)
    for inputs, _ in batches:
        output = trainer.step(feed, phases.append)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe == "amp-bf16"):
            expected = plain(inputs.to(next(plain.parameters()).dtype))
        assert output.dtype == expected.dtype
        torch.testing.assert_close(output, expected.to(output.dtype))
        assert not output.requires_grad
    assert phases == ["data", "copy", "forward"] * len(batches)
    assert_same([*trainer.module.state_dict().values()], [*before.values()])
    assert all(weight.grad is None for weight in trainer.module.parameters())
    assert trainer.is_finite(feed)
    with torch.no_grad():
        next(trainer.module.parameters()).fill_(math.inf)
    assert not trainer.is_finite(feed), "of its outputs"


@pytest.fixture
def _no_code_generation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of torch.compile: Dynamo decides as ever, and it takes no minutes."""
    real = torch.compile

    def compile(*args: Any, **options: Any) -> Any:
        return real(*args, **{**options, "backend": "eager"})

    monkeypatch.setattr(torch, "compile", compile)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_no_code_generation")
def test_every_compiled_variant_has_a_graph_of_its_own() -> None:
    """Not one made general because two batches were seen, nor none beyond Dynamo's limit of 8."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    variants = [(name, size) for size in (8, 16) for name in ("fp32", "tf32", "amp", "bf16", "O2")]
    trainers = [trainer_of(MLP, recipe=name, compile=True) for name, _ in variants]
    for steps in (2, 1):  # nothing is compiled twice
        for trainer, (_, size) in zip(trainers, variants, strict=True):
            trainer.set_backend_flags()
            trained(trainer, samples(batch=size), steps)
        assert counters["stats"]["unique_graphs"] == len(variants)


@pytest.mark.usefixtures("_no_code_generation")
def test_a_compiled_variant_learns_the_same() -> None:
    compiled, plain = (trainer_of(MLP, recipe="amp", compile=how) for how in (True, False))
    for _ in range(2):
        found = [trained(t, samples(), 3) for t in (compiled, plain)]
        assert found[0] == pytest.approx(found[1], rel=1e-5)
        assert_close(weights_of(compiled), weights_of(plain), rtol=1e-3, atol=1e-4)
        compiled.restart(1)
        plain.restart(1)
