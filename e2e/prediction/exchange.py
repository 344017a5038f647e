"""The exchange of gradients that a step over several GPUs adds to the predicted one over one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from e2e.case import NO_COMPRESSION, TrainCase
from e2e.prediction.prediction import Prediction
from e2e.prediction.queue_model import OpCost
from e2e.results.exchange import Gradient, Links, exposed_s

# Of torch's DistributedDataParallel: the size from which a bucket is full, of the first and later.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20

Ready = tuple[int, float]  # bytes of a bucket, the second from which on it can be reduced


def not_predicted(case: TrainCase) -> str | None:
    """Why a step over several GPUs is not predicted; None where it is, and for one GPU."""
    if case.gpus == 1:
        return None
    if case.graph:
        return "captured steps are of one GPU"
    if case.fed:
        return "steps with a loader are predicted for one GPU"
    if case.compress != NO_COMPRESSION:
        return "the exchange of compressed gradients is not predicted"
    return None


def with_exchange(prediction: Prediction, links: Links) -> Prediction:
    """The prediction of a step over several GPUs, of which each takes the step of one.

    `not_predicted` must have nothing against the case. `links` are what all-reduces and copies take
    over these GPUs. What the exchange adds is taken to be added to any step: where CPU launch is
    the bottleneck some of it would hide, and the step is shorter.
    """
    assert not_predicted(prediction.case) is None
    predicted = prediction.predicted
    if predicted is None or prediction.simulated is None or prediction.case.gpus == 1:
        return prediction
    of_host = prediction.simulated.limit == "host"
    costs_s = [op.host_s if of_host else op.device_s for op in prediction.ops]
    last_s, end_s = _ends(prediction.ops, costs_s, prediction.simulated.step_s)
    buckets = buckets_of(_in_order(prediction.gradients, last_s, end_s))
    added_s = exposed_s(buckets, end_s, links.curve)
    if links.copies:
        bytes_ = sum(gradient.bytes for gradient in prediction.gradients)
        added_s += links.copies.seconds(len(prediction.gradients), bytes_)
    ends, memory_bytes = predicted.interval_s, predicted.memory_bytes
    over_several = replace(
        predicted,
        step_s=predicted.step_s + added_s,
        interval_s=ends and (ends[0] + added_s, ends[1] + added_s),
        # Buckets are memory beside the gradients.
        memory_bytes=memory_bytes and memory_bytes + sum(bytes_ for bytes_, _ in buckets),
        exchange_s=added_s,
    )
    return replace(prediction, predicted=over_several)


def _ends(
    ops: Sequence[OpCost], costs_s: Sequence[float], step_s: float
) -> tuple[dict[str, float], float]:
    """(seconds to the end of the last backward op of each layer, and of all), in a step so long."""
    total_s = sum(costs_s)
    pace = step_s / total_s if total_s else 0.0
    done_s = [pace * so_far_s for so_far_s in accumulate(costs_s)]
    ends_s = [
        (op.layer, end_s) for op, end_s in zip(ops, done_s, strict=True) if op.phase == "backward"
    ]
    return dict(ends_s), ends_s[-1][1] if ends_s else 0.0


def _in_order(
    gradients: Iterable[Gradient], last_s: Mapping[str, float], end_s: float
) -> list[tuple[Gradient, float]]:
    """The gradients with the second at which each is ready, the first one first.

    That is when its layer's last backward op ends, or where it has none, that of the layer around.
    """

    def ready_s(layer: str) -> float:
        while layer and layer not in last_s:
            layer = layer.rpartition(".")[0]
        return last_s.get(layer, end_s) if layer else end_s

    # Of one layer the last weight comes first, as in torch's own first guess.
    found = [(gradient, ready_s(gradient.layer)) for gradient in gradients]
    return sorted(reversed(found), key=lambda pair: pair[1])


def buckets_of(gradients: Iterable[tuple[Gradient, float]]) -> list[Ready]:
    """The buckets of these gradients, each with the second at which it is ready, as
    DistributedDataParallel fills them: by type, in order, until the bucket is full.
    """
    full: list[Ready] = []
    filling: dict[str, Ready] = {}
    limits: dict[str, int] = {}
    for gradient, ready_s in gradients:
        bytes_, before_s = filling.pop(gradient.dtype, (0, 0.0))
        bucket = (bytes_ + gradient.bytes, max(before_s, ready_s))
        if bucket[0] < limits.setdefault(gradient.dtype, FIRST_BUCKET_BYTES):
            filling[gradient.dtype] = bucket
        else:
            full.append(bucket)
            limits[gradient.dtype] = BUCKET_BYTES
    return [*full, *filling.values()]
