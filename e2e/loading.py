"""Loaders alone: how fast batches come, and what they cost the processor, with no training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from e2e.datasets import Data
from e2e.loaders import LOADERS
from e2e.loaders.backend import LoaderFeed
from e2e.loaders.cpus import cpu_seconds
from e2e.loaders.reading import Read
from microbench.errors import UserError
from microbench.load_results import LoadBlock, LoadCase, Loading
from microbench.stats import half_width_pct

BLOCK_S = 1.0
FEWEST_BLOCKS, MOST_BLOCKS = 3, 30
ENOUGH_PCT = 1.0  # of the rate: with an interval this narrow nothing more is measured


def measure_loading(
    data: Data, case: LoadCase, device: torch.device, budget_s: float, seed: int
) -> Loading:
    """The loader's rate to the device, in blocks of whole rounds of its workers.

    What was ready before the clock started is thrown away. "skipped", with the reason, when the
    back end cannot run here; "failed" when it broke.
    """
    backend = LOADERS[case.loader]
    reason = backend.missing(device)
    if reason:
        return Loading(case, "skipped", reason)
    feed: LoaderFeed | None = None
    try:
        feed = data.feed(
            case.batch, device, seed, channels_last=device.type == "cuda", loader=case.loader,
            workers=case.workers, cold=case.cold,
        )  # fmt: skip
        return _measured(feed, case, device, budget_s, trains=backend.trains)
    except UserError as error:
        return Loading(case, "failed", str(error))
    finally:
        if feed is not None:
            feed.close()


def _measured(
    feed: LoaderFeed, case: LoadCase, device: torch.device, budget_s: float, *, trains: bool
) -> Loading:
    def next_batch() -> tuple[int, int | None]:
        """(images, bytes read when they are counted) of one batch."""
        fetched = feed.fetch()
        if isinstance(fetched, Read):
            return fetched.files, fetched.size_bytes
        if trains:
            feed.place(fetched)
        return case.batch, None

    began_s = time.perf_counter()
    next_batch()
    first_s = time.perf_counter() - began_s
    for _ in range(feed.ahead):
        next_batch()
    found = Loading(case, "ok", first_s=first_s)
    until_s = time.perf_counter() + budget_s
    while not _enough(found, time.perf_counter() > until_s):
        block = _block(next_batch, feed, case, device, min(BLOCK_S, budget_s / FEWEST_BLOCKS))
        found = replace(found, blocks=(*found.blocks, block))
    return found


def _block(
    next_batch: Callable[[], tuple[int, int | None]],
    feed: LoaderFeed,
    case: LoadCase,
    device: torch.device,
    block_s: float,
) -> LoadBlock:
    """At least `block_s` of loading; as many batches from each worker, as they come in turn."""
    images, size_bytes = 0, None
    start_s, start_cpu_s = time.perf_counter(), _cpu_s(feed)
    while time.perf_counter() - start_s < block_s:
        for _ in range(max(1, case.workers)):
            count, read = next_batch()
            images += count
            size_bytes = size_bytes if read is None else (size_bytes or 0) + read
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall_s = time.perf_counter() - start_s
    return LoadBlock(images, wall_s, _cpu_s(feed) - start_cpu_s, size_bytes)


def _cpu_s(feed: LoaderFeed) -> float:
    return cpu_seconds([os.getpid(), *feed.pids])


def _enough(loading: Loading, late: bool) -> bool:
    """Whether the rate is known as well as need be, or as the time allows."""
    if len(loading.blocks) < FEWEST_BLOCKS:
        return False
    interval, per_s = loading.ci95_per_s, loading.per_s
    known = interval and per_s and half_width_pct(per_s, interval) <= ENOUGH_PCT
    return bool(known) or late or len(loading.blocks) == MOST_BLOCKS
