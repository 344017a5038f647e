"""How far predictions are from measurements, over a matrix of networks: the error table.

Pure functions of a run's trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from microbench.train_results import Training

# What a default validation trains: networks of different kinds at batches from 1 to 512, four of
# them where the host is the limit and where the device is.
MATRIX = {
    "resnet18": "16,128",
    "wrn-16-4": "32,512",
    "gpt": "1,8",
    "vit_b_16": "8,64",
    "densenet121": "8",
    "swin_t": "64",
    "convnext_tiny": "64",
    "resnet50": "128",
    "resnext50_32x4d": "64",
    "mobilenet_v2": "128",
    "efficientnet_b0": "64",
    "vgg16": "32",
}
RECIPES = "fp32,tf32,amp,amp-bf16"


@dataclass(frozen=True)
class Line:
    """One row of the error table: of `count` values, the middle and the largest, in per cent.

    `worst` names the training that is furthest off. `target` is what the project holds itself to:
    (middle, largest).
    """

    what: str
    count: int
    median_pct: float
    largest_pct: float
    worst: str
    target: tuple[float, float]

    @property
    def met(self) -> bool:
        """Whether both are within the target."""
        return self.median_pct <= self.target[0] and self.largest_pct <= self.target[1]


@dataclass(frozen=True)
class Hits:
    """How many of `count` predictions came true."""

    right: int
    count: int


def error_table(trainings: Sequence[Training]) -> list[Line]:
    """Errors of step times by what limits the step, of speed-ups, and of peak memory.

    The limit is the measured one: a step that waits for the host is no easier to predict because
    the prediction took it for another kind.
    """
    both = [t for t in trainings if t.predicted and t.steps]
    gpu = [t for t in both if t.limit == "gpu"]
    host = [t for t in both if t.limit == "host"]
    low = [t for t in gpu if t.case.recipe.startswith("amp")]
    rows = (
        _line("step, limited by the GPU", _plain(gpu), _step_pct, (1.0, 3.0)),
        _line("step, captured as a graph", _captured(gpu), _step_pct, (1.0, 3.0)),
        _line("step, limited by the host", host, _step_pct, (8.0, 20.0)),
        _line("the same, at the host's pace meanwhile", host, _paced_pct, (8.0, 20.0)),
        *(
            _line(f"AMP's speed-up over {base}", low, _speedup_pct(base), (1.5, 4.0))
            for base in ("fp32", "tf32")
        ),
        _line("peak memory", both, _memory_pct, (5.0, 5.0)),
    )
    return [row for row in rows if row is not None]


def limits_named(trainings: Sequence[Training]) -> Hits:
    """Of the trainings that were predicted and measured, those whose limit was foreseen."""
    pairs = [(t.predicted.limit, t.limit) for t in trainings if t.predicted and t.steps and t.limit]
    return Hits(sum(told == found for told, found in pairs), len(pairs))


def intervals_kept(trainings: Sequence[Training], limit: str) -> Hits:
    """Of those whose steps this limits, the steps that were as long as the prediction's interval
    allows.
    """
    pairs = [
        (t.predicted.interval_s, t.step_s)
        for t in trainings
        if t.predicted and t.predicted.interval_s and t.step_s and t.limit == limit
    ]
    return Hits(sum(low <= step_s <= high for (low, high), step_s in pairs), len(pairs))


def _line(
    what: str,
    trainings: Sequence[Training],
    pct: Callable[[Training], float | None],
    target: tuple[float, float],
) -> Line | None:
    known = [(abs(value), t) for t in trainings if (value := pct(t)) is not None]
    if not known:
        return None
    largest, worst = max(known, key=lambda pair: pair[0])
    return Line(what, len(known), median(v for v, _ in known), largest, _named(worst), target)


def _plain(trainings: Sequence[Training]) -> list[Training]:
    return [t for t in trainings if not t.case.graph]


def _captured(trainings: Sequence[Training]) -> list[Training]:
    return [t for t in trainings if t.case.graph]


def _step_pct(training: Training) -> float | None:
    return training.predicted.error_pct if training.predicted else None


def _paced_pct(training: Training) -> float | None:
    told = training.predicted.paced_s if training.predicted else None
    return 100 * (told / training.step_s - 1) if told and training.step_s else None


def _speedup_pct(base: str) -> Callable[[Training], float | None]:
    def pct(training: Training) -> float | None:
        told = training.predicted.speedup.get(base) if training.predicted else None
        found = training.speedup.get(base)
        return 100 * (told / found.ratio - 1) if told and found else None

    return pct


def _memory_pct(training: Training) -> float | None:
    told = training.predicted.memory_bytes if training.predicted else None
    found = training.memory_peak_bytes
    return 100 * (told / found - 1) if told and found else None


def _named(training: Training) -> str:
    case = training.case
    parts = [case.network, case.recipe, case.layout, f"batch {case.batch}", "graph" * case.graph]
    return " ".join(part for part in parts if part)
