"""Training to convergence: repeats, when a recipe has learnt, weights, and recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.feeding import Batches, Census, convolutions, noise, small_cnn, trainer_of
from torch import Tensor, nn

from e2e.case import FULL, OFF, SHORT, TrainCase
from e2e.data.datasets import Options, open_data
from e2e.data.types import Data, LoadSpec
from e2e.networks import find
from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network, model_bytes
from e2e.recipes import RECIPES, cannot_run, recipe_of
from e2e.results.codec import from_json, to_json
from e2e.results.types import LayerGain, PartGain, Repeat, Training
from e2e.training import once as training_once
from e2e.training.float8 import Way, choice, convert, part_gains
from e2e.training.once import BEHIND_SHARE, CURVE_POINTS, train_once, with_convergence
from e2e.training.step_timer import CpuSteps
from e2e.training.trainer import set_backend_flags
from e2e.training.variant import Variant
from e2e.training.variants import Task, Variants
from kernels.case import Target
from microbench.device.telemetry import Telemetry
from microbench.errors import UserError
from microbench.results.types import Ratio

CPU = torch.device("cpu")
FEATURES, CLASSES, BATCH = 8, 4, 16
HELD_OUT = 1000
Batch = tuple[Tensor, Tensor]


class Drawn(Batches):
    """Batches that a seeded generator draws, and whether it was closed."""

    def __init__(self, draw: Callable[[torch.Generator, int], Batch], seed: int) -> None:
        self._draw, self._generator = draw, torch.Generator().manual_seed(seed)
        self.given, self.closed = 0, False

    def to_device(self, batch: int, channels_last: bool = False) -> Batch:
        return self._draw(self._generator, batch)

    def close(self) -> None:
        self.closed = True


def blobs(generator: torch.Generator, index: int) -> Batch:
    """Four clouds of points, well apart: anything that learns tells them apart."""
    targets = torch.randint(CLASSES, (BATCH,), generator=generator)
    noise = 0.3 * torch.randn(BATCH, FEATURES, generator=generator)
    return noise + nn.functional.one_hot(targets, FEATURES).float(), targets


@dataclass
class Plain(Data):
    """Data in memory. `train_samples` None: endless, as synthetic data."""

    draw: Callable[[torch.Generator, int], Batch] = blobs
    train_samples: int | None = 10 * BATCH
    held_out_samples: int | None = 4 * BATCH
    feeds: list[Drawn] = field(default_factory=list[Drawn])
    name = "plain"
    sample = (FEATURES,)
    classes = CLASSES
    notes: tuple[str, ...] = ()

    def load(self, spec: LoadSpec) -> Drawn:
        assert spec.batch == BATCH
        self.feeds.append(Drawn(self.draw, spec.seed))
        return self.feeds[-1]

    def held_out(self, batch: int, device: torch.device, count: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(77)
        for index in range(4):
            yield blobs(generator, index)


MLP = Network(
    name="own", input=(FEATURES,), classes=CLASSES, loss=classification_loss,
    build=lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES)),
    accuracy=count_right, optimizer="sgd", lr=0.1, weight_decay=0.0, batch=BATCH, cpu_batch=BATCH,
)  # fmt: skip


class Told(nn.Module):
    """Puts out its input, which the loss is then: what the batches tell is what is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0 * self.weight


TOLD = replace(MLP, build=Told, loss=lambda output, _: output.float().mean(), accuracy=None)


def telling(*losses: float) -> Plain:
    """Endless data on which `TOLD` has these losses."""

    def draw(generator: torch.Generator, index: int) -> Batch:
        return torch.full((BATCH, FEATURES), losses[index]), torch.zeros(BATCH, dtype=torch.int64)

    return Plain(draw, train_samples=None)


def held_by(recipe: str, network: Network = MLP, **case: Any) -> Variant:
    trainer = trainer_of(network, recipe, batch=BATCH, **case)
    return Variant(Training(trainer.case, "ok"), trainer, Plain().load(LoadSpec(BATCH, CPU, 1)))


def once(held: Variant, data: Plain, seed: int = 1, steps: int = 30) -> Repeat:
    return train_once(held, data, seed, steps, lambda step: None)


# ---------------------------------------------------------------- one repeat


@pytest.mark.parametrize(
    ("losses", "first", "last"),
    [
        ([float(i) for i in range(40)], 1.5, 37.5),  # a tenth at each end: four steps
        ([5.0, 4.0, 3.0], 5.0, 3.0),  # fewer than ten: one
        ([7.0], 7.0, 7.0),
    ],
)
def test_losses_are_means_over_the_first_and_last_tenth(
    losses: list[float], first: float, last: float
) -> None:
    repeat = once(held_by("fp32", TOLD), telling(*losses), steps=len(losses))
    assert (repeat.first_loss, repeat.train_loss) == pytest.approx((first, last))
    assert (repeat.last_loss, repeat.mean_loss) == (losses[-1], sum(losses) / len(losses))
    assert repeat.steps == len(losses)
    assert (repeat.loss, repeat.accuracy) == (None, None)


def test_a_loss_that_is_not_finite_is_none_where_it_was_seen_and_in_the_curve() -> None:
    for bad, (place, first, last) in product(
        (math.nan, math.inf, -math.inf), ((0, None, 1.0), (19, 1.0, None), (10, 1.0, 1.0))
    ):
        losses = [1.0] * 20
        losses[place] = bad
        repeat = once(held_by("fp32", TOLD), telling(*losses), steps=20)
        assert (repeat.first_loss, repeat.train_loss) == (first, last)
    few = once(held_by("fp32", TOLD), telling(5.0, math.nan, 3.0), steps=3)
    assert few.curve == (5.0, None, 3.0)
    losses = [float(i) for i in range(3 * CURVE_POINTS)]
    many = once(held_by("fp32", TOLD), telling(*losses), steps=len(losses))
    assert many.curve == pytest.approx([3.0 * i + 1 for i in range(CURVE_POINTS)])


@pytest.mark.parametrize("recipe", ["fp32", "amp", "amp-bf16", "bf16", "fp16", "O2"])
def test_a_network_learns_what_is_easy_under_every_recipe(recipe: str) -> None:
    held, data = held_by(recipe), Plain()
    repeat = once(held, data, steps=60)
    assert repeat.accuracy > 0.95
    assert repeat.train_loss < 0.5 * repeat.first_loss
    assert repeat.loss == pytest.approx(repeat.train_loss, abs=0.2)
    assert repeat.train_s > 0
    # Held-out numbers are those of the trained weights.
    assert (repeat.loss, repeat.accuracy) == held.trainer.evaluate(data.held_out(BATCH, CPU))


def _but_time(repeat: Repeat) -> Repeat:
    return replace(repeat, train_s=0.0)


@pytest.mark.parametrize(("recipe", "optimizer"), [("amp", "sgd"), ("O2", "adamw")])
def test_one_seed_makes_one_training_whatever_was_timed_before(recipe: str, optimizer: str) -> None:
    held, data = held_by(recipe, optimizer=optimizer), Plain()
    first = _but_time(once(held, data, seed=3))
    other = _but_time(once(held, data, seed=4))
    for _ in range(5):
        held.step()
    assert _but_time(once(held, data, seed=3)) == first
    assert _but_time(once(held_by(recipe, optimizer=optimizer), data, seed=3)) == first
    assert other.train_loss != first.train_loss
    assert (first.seed, other.seed) == (3, 4)


def test_each_training_has_a_feed_of_its_own_which_is_closed_when_a_step_fails_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It tells each step, where a beat is over."""
    monkeypatch.setattr(training_once, "HEARTBEAT_S", 0.0)
    held, data, told = held_by("fp32", accumulate=3), Plain(), list[int]()
    assert train_once(held, data, 1, 4, told.append).steps == len(told) == told[-1] == 4
    once(held, data, steps=5)

    def broken(generator: torch.Generator, index: int) -> Batch:
        if index == 2:
            raise ValueError("a broken image")
        return blobs(generator, index)

    data.draw = broken
    with pytest.raises(ValueError, match="a broken image"):
        once(held, data)
    assert [feed.given for feed in data.feeds] == [12, 15, 3]
    assert all(feed.closed for feed in data.feeds)


# ---------------------------------------------------------------- the verdict


def repeat_of(
    accuracy: float | None = None, *, first: float | None = 2.3, last: float | None = 0.5
) -> Repeat:
    return Repeat(1, 100, 10.0, first, last, None, accuracy)


def training_of(recipe: str, *repeats: Repeat, chance: float | None = 0.1) -> Training:
    return Training(TrainCase("net", recipe, 64, "3"), "ok", repeats=repeats, chance=chance)


def verdicts(*trainings: Training, held_out: int | None = HELD_OUT) -> list[bool | None]:
    found = with_convergence(trainings, held_out)
    for training in found:
        assert (training.convergence is None) == (
            training.converged is True or not training.repeats
        )
    return [training.converged for training in found]


GOOD, CLOSE, BEHIND, CHANCE = 0.9, 0.8, 0.3, 0.1
BROKEN = None  # a loss that is not finite
Accuracies = list[float | None]  # of the repeats of a recipe
# What is compared, by recipe; the verdicts; words of the reasons.
VERDICTS: dict[str, tuple[dict[str, Accuracies], list[bool | None], list[str]]] = {
    "what learns has converged": ({"fp32": [GOOD], "amp": [CLOSE]}, [True, True], []),
    "a loss that is not finite has not": (
        {"fp32": [GOOD, GOOD], "O3": [GOOD, BROKEN]}, [True, False], ["1 of 2"],
    ),
    "guessing is not learning": (
        {"fp32": [GOOD], "O3": [0.11]}, [True, False], ["11.0%", "10.0%"],
    ),
    "nor is far behind the baseline": (
        {"fp32": [GOOD], "O3": [BEHIND]}, [True, False], ["30.0%", "fp32", "90.0%"],
    ),
    "means over repeats decide": (
        {"fp32": [GOOD, GOOD], "amp": [GOOD, 0.6], "O3": [GOOD, CHANCE]}, [True, True, True], [],
    ),
    "a poor mean": ({"fp32": [GOOD, GOOD], "O3": [0.5, CHANCE]}, [True, False], []),
    "a baseline that learns nothing excuses others": (
        {"fp32": [CHANCE], "amp": [CHANCE], "O3": [BROKEN]}, [False, None, False],
        ["fp32", "longer"],
    ),
    "but none that breaks": ({"fp32": [BROKEN], "O3": [BROKEN]}, [False, False], []),
    "one that breaks excuses too": ({"fp32": [BROKEN], "O3": [CHANCE]}, [False, None], []),
    "what learns without it": ({"fp32": [CHANCE], "amp": [GOOD]}, [False, True], []),
    "O0 is a baseline": ({"O1": [BEHIND], "O0": [GOOD]}, [False, True], ["O0"]),
    "tf32 is one": ({"amp": [BEHIND], "tf32": [GOOD]}, [False, True], ["tf32"]),
    "fp32 is the one of several": ({"tf32": [BEHIND], "fp32": [GOOD]}, [False, True], []),
    "without any only guessing is seen": ({"bf16": [GOOD], "O3": [BEHIND]}, [True, True], []),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_on_recipes(name: str) -> None:
    variants, expected, words = VERDICTS[name]
    trainings = [
        training_of(recipe, *(
            repeat_of(CHANCE, last=None) if one is BROKEN else repeat_of(one) for one in accuracies
        ))
        for recipe, accuracies in variants.items()
    ]  # fmt: skip
    assert verdicts(*trainings, held_out=10_000) == expected
    reasons = " ".join(t.convergence or "" for t in with_convergence(trainings, 10_000))
    assert [word for word in words if word not in reasons] == []


@pytest.mark.parametrize(
    ("held_out", "chance", "lucky", "learnt"),
    [
        # Right answers that 1 in 10,000 guessers has, as in a table of the binomial distribution.
        (100, 0.1, 23, 24), (10_000, 0.1, 1113, 1114), (16, 0.5, 15, 16),
    ],
)  # fmt: skip
def test_how_far_beyond_guessing_hangs_on_the_number_of_samples(
    held_out: int, chance: float, lucky: int, learnt: int
) -> None:
    for right, converged in ((lucky, False), (learnt, True)):
        seen = training_of("O3", repeat_of(right / held_out), chance=chance)
        assert verdicts(seen, held_out=held_out) == [converged]
    fp32 = training_of("fp32", repeat_of(GOOD))
    for above, converged in ((-0.01, False), (0.01, True)):
        seen = CHANCE + BEHIND_SHARE * (GOOD - CHANCE) + above
        assert verdicts(fp32, training_of("amp", repeat_of(seen))) == [True, converged]


def test_without_accuracy_the_loss_must_fall() -> None:
    falls, rises = repeat_of(first=2.0, last=1.0), repeat_of(first=2.0, last=2.1)
    fp32, amp = training_of("fp32", falls, chance=None), training_of("amp", rises, chance=None)
    assert verdicts(fp32, amp, held_out=None) == [True, False]
    assert verdicts(replace(fp32, repeats=(rises,)), amp, held_out=None) == [False, None]
    assert verdicts(fp32, training_of("O3", repeat_of(last=None)), held_out=None) == [True, False]
    learnt = training_of("fp32", repeat_of(GOOD, first=1.0, last=1.5))
    assert verdicts(learnt) == [True], "accuracy counts where there is one"


losses = st.floats(0, 10) | st.none()
any_repeats = st.builds(repeat_of, st.floats(0, 1) | st.none(), first=losses, last=losses)
repeat_lists = st.lists(any_repeats, max_size=3)


@given(repeat_lists, repeat_lists, st.integers(1, 10**5) | st.none())
def test_a_verdict_always_has_its_reason_and_nan_never_converges(
    one: list[Repeat], other: list[Repeat], held_out: int | None
) -> None:
    trainings = [training_of("fp32", *one), training_of("amp", *other)]
    found = with_convergence(trainings, held_out)
    for before, after in zip(trainings, found, strict=True):
        assert replace(after, converged=None, convergence=None) == before
        if not before.repeats:
            assert after == before
            continue
        assert (after.convergence is None) == (after.converged is True)
        if any(r.train_loss is None for r in before.repeats):
            assert after.converged is False


# ---------------------------------------------------------------- weights


CNN = find("cnn-cifar")
SMALL = small_cnn()


def test_a_network_that_brings_its_weights_has_them_again_after_a_restart() -> None:
    state = CNN.build().state_dict()

    def build() -> nn.Module:
        module = CNN.build()
        module.load_state_dict(state)
        return module

    trainer = trainer_of(replace(CNN, build=build))
    for _ in range(2):
        found = trainer.module.state_dict()
        assert all(torch.equal(found[name], state[name]) for name in state)
        trainer.step(Batches(*noise(CNN)))
        trainer.restart(8)


# ---------------------------------------------------------------- dropout


def test_dropout_is_an_option_of_the_network() -> None:
    assert find("wrn-16-4@dropout=0.3").name == "wrn-16-4@dropout=0.3"
    first, second = (find(name).build().train() for name in ("wrn-16-4", "wrn-16-4@dropout=0.3"))
    ((images, _),) = noise(CNN, 1)
    assert not torch.equal(second(images), second(images))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(images), second.eval()(images)), "none in evaluation"
    with torch.device("meta"):
        own = find("vgg11@dropout=.25", input=(3, 32, 32)).build()
    assert [layer.p for layer in own.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.25]
    for name in ("cnn-cifar@dropout=0.3", "wrn-16-4@dropout=1", "wrn-16-4@dropout=x"):
        with pytest.raises(UserError):
            find(name)


# ---------------------------------------------------------------- sizes


def test_a_model_is_as_large_as_its_weights() -> None:
    """11,173,962 weights of four bytes, statistics of batch-norm, and its counters."""
    with torch.device("meta"):
        module = find("resnet18-cifar").build()
    weights = sum(weight.numel() for weight in module.parameters())
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    statistics = sum(8 * norm.num_features + 8 for norm in norms)
    assert weights == 11_173_962
    assert model_bytes(module) == 4 * weights + statistics
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert model_bytes(tied) == 8 * 8 * 4, "shared weights count once"


# ---------------------------------------------------------------- recipes


HOPPER, VOLTA = (9, 0), (7, 0)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Of a recipe: weights, batch-norm, the optimizer's weights and state, and the products.
STORAGE: dict[str, tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype]] = {
    "fp32": (F32, F32, F32, F32),
    "tf32": (F32, F32, F32, F32),
    "amp": (F32, F32, F32, F16),
    "amp-bf16": (F32, F32, F32, BF16),
    "fp16": (F16, F16, F16, F16),
    "bf16": (BF16, BF16, BF16, BF16),
    "O0": (F32, F32, F32, F32),
    "O1": (F32, F32, F32, F16),
    "O2": (F16, F32, F32, F16),
    "O3": (F16, F16, F16, F16),
}
FLOAT8 = {"fp8", "fp8-rowwise", "fp8-auto"}
NEEDS = {
    "tf32": (8, 0), "amp-bf16": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp8-rowwise": (9, 0),
    "fp8-auto": (8, 9),
}  # fmt: skip
PRODUCTS = ("convolution", "convolution_backward", "addmm", "mm")


# ---------------------------------------------------------------- names and words


def test_a_static_scale_is_for_float16_gradients_alone_and_changes_no_recipe() -> None:
    before = dict(RECIPES)
    assert STORAGE.keys() == RECIPES.keys() - FLOAT8
    for name in RECIPES:
        recipe = recipe_of(
            TrainCase("small", name, 2, "3x8x8", loss_scale=256, keep_batchnorm_fp32=True)
        )
        float16 = name in ("amp", "fp16", "O1", "O2", "O3")
        assert recipe.scale == (256.0 if float16 else RECIPES[name].scale)
        assert recipe.needs_loss_scaling == float16
        assert recipe.batchnorm == "fp32"
    assert before == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_device_cannot_run(name: str) -> None:
    recipe = RECIPES[name]
    least = NEEDS.get(name, (0, 0))
    assert cannot_run(recipe, "cuda", HOPPER) is None
    for card in (VOLTA, (8, 0), (8, 9)):
        reason = cannot_run(recipe, "cuda", card)
        assert (reason is not None) == (card < least)
        if reason:
            assert "{}.{}".format(*least) in reason
            assert "{}.{}".format(*card) in reason
    assert (cannot_run(recipe, "cpu", None) is not None) == (name == "tf32")


def test_variants_that_take_turns_set_tf32_and_the_search_of_cudnn_each_time() -> None:
    fp32, tf32 = trainer_of(SMALL, "fp32"), trainer_of(SMALL, "tf32")
    for variant, on in ((fp32, False), (tf32, True), (fp32, False)):
        variant.set_backend_flags()
        assert torch.backends.cudnn.allow_tf32 is on
        assert torch.backends.cuda.matmul.allow_tf32 is on
        assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    tried = {}
    for search in (FULL, SHORT):
        set_backend_flags(RECIPES["fp32"], "cuda", search)
        assert torch.backends.cudnn.benchmark
        tried[search] = torch.backends.cudnn.benchmark_limit
    assert 1 < tried[SHORT] < tried[FULL] == 10  # torch's own
    none = [("fp32", None), ("fp32", OFF), ("tf32", SHORT), ("amp", SHORT), ("bf16", SHORT)]
    for recipe, search in none:
        set_backend_flags(RECIPES[recipe], "cuda", search)
        assert not torch.backends.cudnn.benchmark


# ---------------------------------------------------------------- storage


def _stored(module: nn.Module) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """The types of convolutions and linear layers, and of batch-norm with its statistics."""
    norms = {child for child in module.modules() if isinstance(child, nn.BatchNorm2d)}
    others = {c for c in module.modules() if isinstance(c, nn.Conv2d | nn.Linear)}
    running = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
    return (
        {weight.dtype for child in others for weight in child.parameters()},
        {t.dtype for t in (*running, *(w for norm in norms for w in norm.parameters()))},
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", STORAGE)
def test_storage_before_and_after_a_step(name: str, optimizer: str) -> None:
    weights, batchnorm, updated, _ = STORAGE[name]
    torch.manual_seed(1)
    fresh = list(SMALL.build().parameters())
    trainer = trainer_of(SMALL, name, optimizer=optimizer)
    for weight, start in zip(trainer.module.parameters(), fresh, strict=True):
        assert torch.equal(weight, start.to(weight.dtype)), "all recipes start alike"
    for _ in range(2):
        assert _stored(trainer.module) == ({weights}, {batchnorm})
        trainer.step(Batches(*noise(SMALL)))
    parameters = trainer.optimizer.torch_optimizer.param_groups[0]["params"]
    assert len(parameters) == len(list(trainer.module.parameters()))
    assert {p.dtype for p in parameters} == {updated}
    state = [
        value
        for values in trainer.optimizer.torch_optimizer.state.values()
        for key, value in values.items()
        if key != "step"
    ]
    assert len(state) == len(parameters) * (1 if optimizer == "sgd" else 2)
    assert {value.dtype for value in state} == {updated}


@pytest.mark.parametrize("name", ["fp16", "bf16", "amp", "O2"])
def test_keep_batchnorm_fp32_keeps_batchnorm_alone_and_never_rounds_it(name: str) -> None:
    """Of weights that float16 cannot hold, as pretrained ones have."""

    def build() -> nn.Module:
        net = convolutions()
        nn.init.constant_(net.get_parameter("1.weight"), 0.3)
        return net

    recipe = replace(RECIPES[name], batchnorm="fp32")
    trainer = trainer_of(replace(SMALL, build=build), recipe)
    assert torch.equal(trainer.module.get_parameter("1.weight"), torch.full((8,), 0.3))
    loss = trainer.step(Batches(*noise(SMALL)))
    assert _stored(trainer.module) == ({STORAGE[name][0]}, {F32})
    assert torch.isfinite(loss)


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("name", STORAGE)
def test_products_run_in_the_recipes_type_and_the_loss_in_float32(name: str) -> None:
    _, batchnorm, _, products = STORAGE[name]
    trainer = trainer_of(SMALL, name)
    with Census() as census:
        loss = trainer.step(Batches(*noise(SMALL)))
    assert set(PRODUCTS) <= census.seen.keys()
    assert census.of(*PRODUCTS) == {products}
    norms = [op for op in census.seen if "batch_norm" in op]
    assert norms
    assert census.of(*norms) == {products, batchnorm}
    assert loss.dtype == F32
    assert census.of("_log_softmax") == {F32}
    with Census() as census:
        trainer.evaluate(iter(noise(SMALL, 1)))
    assert census.of("convolution", "addmm", "mm") == {products}, "evaluation too"


@pytest.mark.parametrize("name", ["amp-bf16", "bf16", "O2"])
def test_tokens_stay_integers_and_products_of_a_transformer_follow_the_recipe(name: str) -> None:
    network = find("gpt-tiny")
    trainer = trainer_of(network, name, optimizer="adamw")
    tokens = torch.arange(128).reshape(2, 64)
    with Census() as census:
        loss = trainer.step(Batches((tokens, tokens)))
    assert torch.isfinite(loss)
    assert census.of("addmm", "mm", "bmm") == {STORAGE[name][3]}


# ---------------------------------------------------------------- FP8


def test_without_torchao_fp8_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.recipes.find_spec", lambda name: None)
    refused = {name: cannot_run(RECIPES[name], "cuda", HOPPER) for name in RECIPES}
    assert {name for name, reason in refused.items() if reason} == FLOAT8
    assert all("pip install 'halfway[fp8]'" in (refused[name] or "") for name in FLOAT8)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("rows", [(2, 16), (7,)], ids=["batch", "odd"])
def test_a_layer_and_its_gradients_are_of_float64(scaling: str, rows: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(64, 48), nn.Linear(64, 48)
    exact.load_state_dict(layer.state_dict())
    exact.double()
    layer, counts = convert(layer, scaling, batch=rows[0])
    assert counts == (1, 1)
    inputs = torch.randn(*rows, 64, requires_grad=True)
    same = inputs.detach().double().requires_grad_()
    gradient = torch.randn(*rows, 48)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(inputs)
    right = exact(same)
    output.backward(gradient.to(output.dtype))
    right.backward(gradient.double())
    assert output.dtype == torch.bfloat16
    weight, bias = (layer.get_parameter(name).grad for name in ("weight", "bias"))
    pairs = [(output, right), (inputs.grad, same.grad), (weight, exact.weight.grad),
             (bias, exact.bias.grad)]  # fmt: skip
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        assert off(found, wanted) < 0.1
    assert off(output, right) > 0.01, "it really is FP8 that multiplies"


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


def test_only_linear_layers_that_fit_are_converted_and_a_gpt_learns_as_in_bfloat16() -> None:
    network = nn.ModuleDict({
        "fits": nn.Linear(32, 64), "odd": nn.Linear(32, 50), "narrow": nn.Linear(24, 32),
        "attention": nn.MultiheadAttention(32, 2), "conv": nn.Conv2d(16, 16, 3),
    })  # fmt: skip
    before, kinds = list(network.state_dict()), {name: type(m) for name, m in network.items()}
    converted, counts = convert(network, "tensorwise", batch=16)
    assert counts == (1, 4)
    assert [name for name in kinds if type(converted.get_submodule(name)) is not kinds[name]] == [
        "fits"
    ]
    assert list(converted.state_dict()) == before
    # One batch by heart.
    network, options = find("gpt-tiny", input=(64,)), {"fused": False, "lr": 1e-3, "accumulate": 2}
    losses: dict[str, list[float]] = {}
    for recipe in ("amp-bf16", "fp8", "fp8-rowwise"):
        trainer = trainer_of(network, recipe, seed=3, optimizer="adamw", **options)
        torch.manual_seed(4)
        tokens = torch.randint(0, 100, (2, 65))
        feed = Batches((tokens[:, :-1], tokens[:, 1:]))
        losses[recipe] = [trainer.step(feed).item() for _ in range(12)]
    base = losses.pop("amp-bf16")
    assert base[-1] < 0.8 * base[0]
    for found in losses.values():
        assert found != base
        assert found == pytest.approx(base, rel=0.05)
    data = open_data("synthetic", Options((3, 8, 8), classes=10))
    cases = [TrainCase("small", name, 2, "3x8x8") for name in ("amp-bf16", "fp8", "fp8-rowwise")]
    variants = Variants(Task(SMALL, data, 1), Target("cpu", "a processor"), Telemetry(None))
    found = variants.set_up(cases, lambda key, stage: None)
    assert [training.status for training in found] == ["ok", "skipped", "skipped"]
    assert all("linear layers" in (training.reason or "") for training in found[1:])


gain_ratios = st.builds(
    lambda ratio, half: Ratio(ratio, (ratio - half, ratio + half)),
    st.floats(0.5, 2.0), st.floats(0, 0.4),
)  # fmt: skip


@given(st.lists(gain_ratios, min_size=1, max_size=5), gain_ratios, gain_ratios, gain_ratios)
def test_what_is_converted_gains_for_sure_and_never_less_than_all_would(
    alone: list[Ratio], every: Ratio, some: Ratio, again: Ratio
) -> None:
    asked: list[frozenset[int]] = []

    def both(places: frozenset[int]) -> tuple[Ratio, Ratio]:
        asked.append(places)
        return some, again

    converted, gain = choice(alone, every, both)
    gaining = {place for place, one in enumerate(alone) if one.ratio > 1}
    whole = set(range(len(alone)))
    assert asked == [gaining] * (gaining not in (set(), whole))
    assert converted in (set(), gaining, whole)
    last = [some, again] if asked else [every]
    sure = [one.ratio for one in last if one.ci95 and one.ci95[0] > 1]
    assert bool(converted) == bool(sure)
    assert (gain and gain.ratio) == max(sure, default=None)


class PlantedGains:
    """What is known of each part: layers that FP8 is for, by K and N."""

    def __init__(self, converted: Mapping[tuple[int, int], bool]) -> None:
        self.converted = converted

    def get(self, key: str) -> PartGain | None:
        gain = Ratio(1.2, (1.1, 1.3))
        layers = tuple(LayerGain(32, *shape, 1, gain, has) for shape, has in self.converted.items())
        return PartGain(1, 1e-3, layers, gain if any(self.converted.values()) else None)

    def add(self, times: Mapping[str, PartGain]) -> None:
        assert not times


@pytest.mark.parametrize("converted", [{"expand", "attention.query_key_value"}, set[str]()])
def test_what_pays_is_converted_and_nothing_else(converted: Collection[str]) -> None:
    shapes = {
        "attention.query_key_value": (64, 192), "attention.project": (64, 64),
        "expand": (64, 256), "project": (256, 64),
    }  # fmt: skip
    planted = PlantedGains({shape: name in converted for name, shape in shapes.items()})
    data = open_data("generated", Options((16,), tokens=256))
    network = find("gpt-tiny", input=(16,))
    variants = Variants(
        Task(network, data, 1), Target("cpu", "a processor"), Telemetry(None), planted
    )
    cases = [
        TrainCase("gpt-tiny", recipe, 2, "16", "", "adamw", data="generated", loader="resident")
        for recipe in ("amp-bf16", "fp8-auto")
    ]
    evaluated = replace(cases[1], evaluation=True)
    plain, auto, inference = variants.set_up([*cases, evaluated], lambda key, stage: None)
    assert inference.status == "ok", inference.reason
    assert (auto.status, auto.float8_layers, auto.linear_layers) == ("ok", 2 * len(converted), 8)
    assert [one.places for one in auto.fp8_gains] == [2]
    assert plain.fp8_gains == ()
    module = variants.held[cases[1].key].trainer.module
    assert {name for name, one in module.named_modules() if "Float8" in type(one).__name__} == {
        f"blocks.{place}.{name}" for place in (0, 1) for name in converted
    }
    assert from_json(to_json(auto), "") == auto


def test_layers_are_timed_in_the_part_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.training.float8.ROUNDS", 2)
    monkeypatch.setattr("e2e.training.float8.WARM_S", 0.0)
    monkeypatch.setattr("e2e.training.float8.BLOCK_S", 0.0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.odd = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 7)

        def forward(self, given: Tensor) -> Tensor:
            return given + self.down(self.up(given).relu()) + self.odd(given).sum()

    network = nn.Sequential(Twice(), Twice(), nn.Linear(32, 16))
    inputs = torch.randn(3, 8, 32, requires_grad=True)
    kept, said = dict[str, PartGain](), list[str]()
    way = Way("tensorwise", 3, evaluates=False, compiles=False, captures=False)
    for _ in range(2):
        found, chosen = part_gains(
            network, lambda: network(inputs), way, CpuSteps(), kept.get, said.append
        )
        block, last = found.values()
        assert (block.places, last.places) == (2, 1)
        assert {(one.rows, one.k, one.n, one.count) for one in block.layers} == {
            (24, 32, 64, 1), (24, 64, 32, 1)
        }  # fmt: skip
        assert [(one.k, one.n) for one in last.layers] == [(32, 16)]
        counts = [part.places * one.converted for part in (block, last) for one in part.layers]
        assert len(chosen) == sum(counts)
        kept |= found
    assert len(said) == 2  # a block and the last layer; the second time all is known
    assert all(type(one) is not nn.Linear or one.weight.grad is None for one in network.modules())
