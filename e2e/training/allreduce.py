"""The exchange of gradients: DistributedDataParallel, its hooks, and its all-reduce alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, cast
from warnings import filterwarnings

import torch
from torch import Tensor, nn

from e2e.case import NO_COMPRESSION
from e2e.results.exchange import BucketCopies, Exchange
from e2e.training.ranks import Ranks
from e2e.training.step_timer import StepTimer
from microbench.timing.stats import median, median_interval

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}  # what a hook makes of a gradient
COPIED = 20  # times that the copies around an exchange are timed


def wrap_ddp(module: nn.Module, ranks: Ranks, compress: str) -> nn.Module:
    """The module as torch's DistributedDataParallel, with torch's hook for the compression.

    Buffers, such as the statistics of batch-norm, stay each rank's own.
    """
    from torch.nn.parallel import DistributedDataParallel

    # Of 1x1 convolutions in channels_last, whose strides may be read in two ways.
    filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    own = [ranks.device.index] if ranks.device.type == "cuda" else None
    make: Any = DistributedDataParallel
    # Torch renamed the option after 2.11.
    newer = "forward_sync_buffers" in signature(make.__init__).parameters
    apart = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    ddp_model = make(module, device_ids=own, **apart)
    if compress != NO_COMPRESSION:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        ddp_model.register_comm_hook(None, getattr(default_hooks, f"{compress}_compress_hook"))
    return ddp_model


def buckets_of(ddp_model: Any, compress: str) -> list[Tensor]:
    """Tensors of zeros, one for each bucket that a step exchanges, in the type that it does.

    Two steps must have been done: the first one's order decides the buckets.
    """
    whole = [bucket.buffer() for bucket in ddp_model.reducer._get_zeros_like_grad_buckets()]
    return [bucket.to(WIRE.get(compress, bucket.dtype)) for bucket in whole]


def all_reduce_of(buckets: Sequence[Tensor]) -> Callable[[], object]:
    """A launch that adds the buckets up over all ranks, as a step does, and nothing else."""
    from torch import distributed

    def launch() -> None:
        under_way = [
            cast("Any", distributed).all_reduce(bucket, async_op=True) for bucket in buckets
        ]
        for work in under_way:
            work.wait()

    return launch


def copies_of(
    weights: Sequence[Tensor], buckets: Sequence[Tensor], timer: StepTimer, ranks: Ranks
) -> BucketCopies | None:
    """The copies around an exchange, timed alone on every rank: those of the slowest one. None
    where a rank has no memory for them.

    They are what torch's DistributedDataParallel does with each gradient, and what its hook does
    with each bucket whose type is not that of the weights. On a GPU they are captured, so
    that launching them from Python takes no time.
    """
    wire = [bucket for bucket in buckets if bucket.dtype not in {w.dtype for w in weights}]
    least = [weight.flatten()[:1] for weight in weights]
    times_s: list[float] = []
    for some in (weights, least):
        try:
            with ranks.fail_together():
                launch = _copying(some, wire, ranks)
        except torch.OutOfMemoryError:
            return None
        times_s.append(ranks.slowest(median(timer.block(launch, COPIED).times_s)))
    return BucketCopies(len(weights), sum(w.nbytes for w in weights), *times_s)


def _copying(
    weights: Sequence[Tensor], wire: Sequence[Tensor], ranks: Ranks
) -> Callable[[], object]:
    """A launch that divides gradients of these weights into their places in a bucket, compresses
    buckets to those of `wire` and back, and copies the gradients back.
    """
    pairs = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    whole = [torch.zeros_like(bucket, dtype=weights[0].dtype) for bucket in wire]
    share = 1 / ranks.world

    def launch() -> None:
        for gradient, place in pairs:
            torch.mul(gradient, share, out=place)
        for bucket, small in zip(whole, wire, strict=True):
            bucket.copy_(bucket.to(small.dtype).div_(ranks.world))
        for gradient, place in pairs:
            gradient.copy_(place)

    launch()
    if ranks.device.type != "cuda":
        return launch
    torch.cuda.synchronize(ranks.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def exchange_of(
    world: int,
    buckets: Sequence[int],
    rounds: Sequence[tuple[float, float, float]],
    ranks_s: Sequence[float],
) -> Exchange:
    """The exchange of `buckets` (bytes) a step, from rounds of (step, step without exchange,
    all-reduce alone) in seconds, and the step of each rank without exchange.
    """
    steps_s, locals_s, alones_s = (list(times) for times in zip(*rounds, strict=True))
    exposed = [with_s - local_s for with_s, local_s, _ in rounds]
    # The interval of a difference, which may be below 0: moved so that its logarithm is nearly the
    # difference itself.
    whole = 100 * median(steps_s)
    ends = median_interval([[whole + difference] for difference in exposed])
    return Exchange(
        world, sum(buckets), median(locals_s), median(alones_s), median(exposed),
        ends and (ends[0] - whole, ends[1] - whole), tuple(ranks_s), tuple(buckets),
    )  # fmt: skip
