"""The prediction of a fed step where one term alone decides, and its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.case import TrainCase
from e2e.input_stalls import Alone, busy_points, measured_points, pays_from, predict_together
from e2e.results.loader_types import LoadBlock, LoadCase, Loading
from e2e.results.types import Predicted, StepTimes, Training

BATCH = 100
CORES = 10**6  # processor time never decides


def training(
    step_s: float, half: float | None = None, loaded_per_s: float | None = None
) -> Training:
    """Steps of this length, known to `half` of it either way."""
    steps = StepTimes(
        (step_s,) * 3, (step_s,) * 3, (1, 1, 1), step_s,
        None if half is None else (step_s * (1 - half), step_s * (1 + half)),
        3 * step_s, 3, loaded_per_s=loaded_per_s,
    )  # fmt: skip
    case = TrainCase("resnet50", "amp", BATCH, "3x224x224", data="folder", loader="pinned")
    return Training(case, "ok", step_units=BATCH, steps=steps, limit="gpu")


def loading(
    load_s: float, workers: int = 4, cpu_s: float | None = None, blocks: int = 3
) -> Loading:
    """Blocks of a batch each, 10 % more and less than this."""
    factors = (1.0, 0.9, 1.1)[:blocks]
    case = LoadCase("folder", batch=BATCH, input="3x224x224", workers=workers, loader="torchvision")
    return Loading(case, "ok", blocks=tuple(LoadBlock(BATCH, load_s * f, cpu_s) for f in factors))


def predict(alone: Alone, loader: Loading, cores: int = CORES) -> Predicted:
    found = predict_together(alone, loader, cores)
    assert found is not None
    return found


def test_the_interval_is_that_of_the_term_that_decides() -> None:
    step = predict(Alone(training(1.0, half=0.02)), loading(0.001))
    assert step.step_s == pytest.approx(1.0)
    assert step.interval_s == pytest.approx((0.98, 1.02))
    loader = loading(10.0)
    assert loader.ci95_per_s
    found = predict(Alone(training(1.0, half=0.02)), loader)
    assert found.step_s == pytest.approx(10.0)
    low, high = loader.ci95_per_s
    assert low < 10 < high
    assert found.interval_s == pytest.approx((BATCH / high, BATCH / low))


def test_what_was_measured_once_has_no_width() -> None:
    for load_s in (0.001, 10.0):
        found = predict(Alone(training(1.0)), loading(load_s, blocks=1))
        assert found.interval_s == pytest.approx((found.step_s, found.step_s))


@pytest.mark.parametrize(("load_s", "limit"), [(1.049, "gpu"), (1.051, "data"), (0.5, "gpu")])
def test_a_loader_is_waited_for_from_five_per_cent_on(load_s: float, limit: str) -> None:
    assert predict(Alone(training(1.0)), loading(load_s, blocks=1)).limit == limit
    unknown = replace(training(1.0), limit=None)
    assert predict(Alone(unknown), loading(load_s, blocks=1)).limit == limit


def test_processor_time_is_shared_by_the_cores() -> None:
    alone = Alone(training(1.0), host_s=2.0)
    for cores, step_s in ((1, 6.0), (2, 3.0), (4, 1.5), (100, 1.0)):
        found = predict(alone, loading(0.5, cpu_s=4.0, blocks=1), cores)
        assert found.step_s == pytest.approx(step_s)
    assert predict(alone, loading(0.5, blocks=1), 1).step_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("workers", "slowed"), [(0, 1.0), (2, 1.25), (4, 1.5), (6, 1.75), (8, 2.0), (16, 2.0)]
)
def test_how_much_a_training_slows_a_loader_is_interpolated(workers: int, slowed: float) -> None:
    """Beside the training the loader of 8 workers gives half, that of 4 two thirds."""
    own = {4: loading(0.3, 4, blocks=1), 8: loading(0.2, 8, blocks=1)}
    busy = {
        4: training(0.1, loaded_per_s=BATCH / 0.3 / 1.5),
        8: training(0.1, loaded_per_s=BATCH / 0.2 / 2.0),
    }
    found = predict(Alone(training(0.1), busy, loadings=own), loading(5.0, workers, blocks=1))
    assert found.step_s == pytest.approx(5.0 + (slowed - 1) * 0.1)


def test_a_loader_that_is_no_slower_beside_a_training_is_not_made_faster() -> None:
    busy = {4: training(0.1, loaded_per_s=2 * BATCH / 0.3)}
    alone = Alone(training(0.1), busy, loadings={4: loading(0.3, 4, blocks=1)})
    assert predict(alone, loading(0.3, 4, blocks=1)).step_s == pytest.approx(0.3)


def test_a_loader_stands_for_itself_where_it_was_not_measured_alone() -> None:
    busy = {4: training(0.1, loaded_per_s=BATCH / 0.6)}
    for workers, step_s in ((4, 0.4), (8, 0.3)):  # of 8, 4 say nothing
        found = predict(Alone(training(0.1), busy), loading(0.3, workers, blocks=1))
        assert found.step_s == pytest.approx(step_s)


@pytest.mark.parametrize(
    ("workers", "busy"),
    [([1, 3, 8], [3, 8]), ([0, 8], [8]), ([0], []), ([2, 6, 8], [2, 8]), ([2, 3, 8, 8], [3, 8]),
     ([1], [1]), ([-1], []), ([16, 1, 2], [2, 16]), ([1, 2, 3], [1, 3])],
)  # fmt: skip
def test_the_points_to_keep_busy(workers: list[int], busy: list[int]) -> None:
    assert busy_points(workers) == busy


@pytest.mark.parametrize(
    ("speedups", "start", "points"),
    [
        ({1: 0.9, 2: 1.0, 4: 1.1, 8: 1.2, 16: 1.3}, 4, [1, 2, 4, 16]),
        ({1: 1.1, 2: 1.2, 4: 1.3}, 1, [1, 4]),
        ({1: 1.1, 2: 0.9, 4: 1.3, 8: 1.3}, 4, [1, 2, 4, 8]),
        ({1: 0.9, 2: 0.9, 4: 1.019}, None, [1, 4]),
        ({1: 0.9, 2: 0.9, 4: 1.02}, 4, [1, 2, 4]),
        ({4: 1.5}, 4, [4]),
        ({}, None, []),
    ],
)  # fmt: skip
def test_the_points_to_measure(
    speedups: dict[int, float], start: int | None, points: list[int]
) -> None:
    assert pays_from(speedups) == start
    assert measured_points(speedups) == points
