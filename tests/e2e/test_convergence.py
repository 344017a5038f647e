"""Training to convergence: what one repeat tells, and when a recipe is said to have learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.feeding import Batches, trainer_of
from torch import Tensor, nn

from e2e.case import TrainCase
from e2e.commands.convergence import BEHIND_SHARE, judged
from e2e.data.types import LoadSpec
from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network
from e2e.results.types import Repeat, Training
from e2e.training import once as training_once
from e2e.training.once import CURVE_POINTS, train_once
from e2e.training.variant import Variant

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
class Plain:
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


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


MLP = Network(
    name="own", build=perceptron, input=(FEATURES,), classes=CLASSES, loss=classification_loss,
    accuracy=count_right, optimizer="sgd", lr=0.1, weight_decay=0.0, batch=BATCH, cpu_batch=BATCH,
)  # fmt: skip


class Told(nn.Module):
    """Puts out its input, which the loss is then: what the batches tell is what is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0 * self.weight


def _told_loss(output: Any, target: Tensor | None) -> Tensor:
    return output.float().mean()


TOLD = replace(MLP, build=Told, loss=_told_loss, accuracy=None)


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
    assert repeat.evaluations == (), "endless data have none"
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
    assert repeat.accuracy is not None
    assert repeat.accuracy > 0.95
    assert repeat.first_loss is not None
    assert repeat.train_loss is not None
    assert repeat.train_loss < 0.5 * repeat.first_loss
    assert repeat.loss == pytest.approx(repeat.train_loss, abs=0.2)
    assert repeat.train_s > 0
    # Held-out numbers are those of the trained weights.
    assert (repeat.loss, repeat.accuracy) == held.trainer.evaluate(data.held_out(BATCH, CPU))


@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16"])
def test_evaluations_after_each_epoch_change_nothing_else(recipe: str) -> None:
    data = Plain()
    whole = once(held_by(recipe), data, steps=25)
    found = train_once(held_by(recipe), data, 1, 25, lambda step: None, 10)
    assert [one.steps for one in found.evaluations] == [10, 20, 25]
    assert replace(_but_time(found), evaluations=()) == _but_time(whole)
    seconds = [one.train_s for one in found.evaluations]
    assert seconds == sorted(seconds)
    assert seconds[-1] == found.train_s
    for one in found.evaluations:
        shorter = once(held_by(recipe), data, steps=one.steps)
        assert (one.loss, one.accuracy) == (shorter.loss, shorter.accuracy)


class Half(nn.Module):
    """A linear layer of which one half never has a gradient; `factor` scales the other's."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.used = nn.Linear(FEATURES, CLASSES, bias=False)
        self.unused = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * self.used(inputs) + 0 * self.unused(inputs)


@pytest.mark.parametrize(
    ("factor", "zeros", "infinite"), [(1.0, 0.5, 0.0), (1e-30, 1.0, 0.0), (math.inf, 0.0, 1.0)]
)
def test_gradients_that_are_zero_or_infinite_are_counted(
    factor: float, zeros: float, infinite: float
) -> None:
    network = replace(MLP, build=lambda: Half(factor), lr=1e-3)
    recipe = "fp16" if factor < 1 else "fp32"
    found = train_once(held_by(recipe, network), Plain(), 1, 6, lambda step: None, None, 2)
    unset = replace(found, zero_gradients=None, infinite_gradients=None)
    assert _but_time(unset) == _but_time(once(held_by(recipe, network), Plain(), steps=6))
    assert found.infinite_gradients is not None
    assert (found.infinite_gradients >= 0.5) == bool(infinite)
    if not infinite:
        assert found.zero_gradients == pytest.approx(zeros, abs=0.05)


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
    monkeypatch.setattr(training_once, "BEAT_S", 0.0)
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
    found = judged(trainings, held_out)
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
    arms, expected, words = VERDICTS[name]
    trainings = [
        training_of(recipe, *(
            repeat_of(CHANCE, last=None) if one is BROKEN else repeat_of(one) for one in accuracies
        ))
        for recipe, accuracies in arms.items()
    ]  # fmt: skip
    assert verdicts(*trainings, held_out=10_000) == expected
    reasons = " ".join(t.convergence or "" for t in judged(trainings, 10_000))
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
    found = judged(trainings, held_out)
    for before, after in zip(trainings, found, strict=True):
        assert replace(after, converged=None, convergence=None) == before
        if not before.repeats:
            assert after == before
            continue
        assert (after.convergence is None) == (after.converged is True)
        if any(r.train_loss is None for r in before.repeats):
            assert after.converged is False
