"""Measures loaders alone, without training: images per second and CPU time."""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from dataclasses import replace

import torch

from e2e.data.loaders import LOADERS
from e2e.data.loaders.cpus import cpu_seconds
from e2e.data.loaders.reading import Read, cold_missing
from e2e.data.types import Data, Files, Loader
from e2e.results.loader_types import LoadBlock, LoadCase, Loading
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.timing.stats import half_width_pct

BLOCK_S = 1.0
WARM_S = 60.0
# As in interleave.INTERIM_LOOKS: to look after every block would stop on lucky streaks.
LOOKS = (3, 5, 10, 20, 30)
ENOUGH_PCT = 1.0  # of the rate: with an interval this narrow nothing more is measured


class LoadMeter:
    """Measures loaders of one data set for one device."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self._data, self._device, self._seed = data, device, seed
        self._read = False

    def measure(self, case: LoadCase, budget_s: float) -> Loading:
        """The loader's rate up to the device, over about `budget_s` seconds of whole rounds.

        A round is one batch per worker. Batches that were ready before the clock started are
        discarded. "skipped", with the reason, if the back end cannot run here; "failed" if it
        raised an error.
        """
        backend = LOADERS[case.loader]
        reason = backend.missing(self._device)
        if case.cold and not reason:
            reason = "no cold reads: this loader reads files itself"
            if not backend.reads_itself:
                reason = cold_missing(self._data.source)
        if reason:
            return Loading(case, "skipped", reason)
        try:
            if not case.cold:
                self._have_read(case)
            with closing(self._data.open(case, self._device, self._seed)) as loader:
                return _measured(loader, case, self._device, budget_s)
        except UserError as error:
            return Loading(case, "failed", str(error))

    def _have_read(self, case: LoadCase) -> None:
        """Read each file once, as far as WARM_S goes: what is read first would else be cold."""
        source = self._data.source
        if self._read or not isinstance(source, Files):
            return
        self._read = True
        read = replace(case, loader="read", workers=usable_cores())
        with closing(self._data.open(read, self._device, self._seed)) as loader:
            until_s = time.perf_counter() + WARM_S
            for _ in range(math.ceil(len(source.pictures) / case.batch)):
                next(loader)
                if time.perf_counter() > until_s:
                    break


def _measured(loader: Loader, case: LoadCase, device: torch.device, budget_s: float) -> Loading:
    def load(batches: int) -> tuple[int, int]:
        """Images of so many batches, and the bytes of those that are only read."""
        images = size_bytes = 0
        for _ in range(batches):
            batch = next(loader)
            if isinstance(batch, Read):
                images, size_bytes = images + batch.files, size_bytes + batch.size_bytes
            else:
                loader.to_device(batch, device.type == "cuda")
                images += case.batch
        return images, size_bytes

    def block() -> LoadBlock:
        """Some loading: as many batches from each worker, as they come in turn."""
        images = size_bytes = 0
        processes = [os.getpid(), *loader.pids]
        start_s, start_cpu_s = time.perf_counter(), cpu_seconds(processes)
        while time.perf_counter() - start_s < min(BLOCK_S, budget_s / LOOKS[0]):
            more, more_bytes = load(max(1, case.workers))
            images, size_bytes = images + more, size_bytes + more_bytes
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        wall_s = time.perf_counter() - start_s
        cpu_s = max(0.0, cpu_seconds(processes) - start_cpu_s)
        # Without workers all is the device's work, which this process spins for.
        spins = device.type == "cuda" and not loader.pids
        return LoadBlock(images, wall_s, None if spins else cpu_s, size_bytes or None)

    began_s = time.perf_counter()
    load(1)
    loading = Loading(case, "ok", first_s=time.perf_counter() - began_s)
    # The rest of the first round: a worker whose batches are taken at once has no second one ready.
    load(case.workers)
    until_s = time.perf_counter() + budget_s
    while not _enough(loading, time.perf_counter() > until_s):
        loading = replace(loading, blocks=(*loading.blocks, block()))
    return loading


def _enough(loading: Loading, late: bool) -> bool:
    """Whether the rate is known to ENOUGH_PCT, or the time is up."""
    if len(loading.blocks) not in LOOKS:
        return late and len(loading.blocks) > LOOKS[0]
    interval, per_s = loading.ci95_per_s, loading.per_s
    known = interval and per_s and half_width_pct(per_s, interval) <= ENOUGH_PCT
    return bool(known) or late or len(loading.blocks) == LOOKS[-1]
