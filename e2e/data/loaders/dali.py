"""NVIDIA DALI, an optional extra: its own threads read; the GPU decodes, crops and normalises.

Written from its documentation (docs.nvidia.com/deeplearning/dali). Run with DALI 2.4 on a CPU; its
"mixed" decoder and what follows on the GPU have not been run.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from e2e.data.loaders.jpeg_bytes import AREA, FLIPPED, RATIO, TRIES
from e2e.data.types import Files, Source, Tell, Wanted, laid_out
from microbench.errors import UserError


def missing(device: torch.device) -> str | None:
    """Why it cannot run, or None: DALI is not installed."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        return "NVIDIA DALI is not installed; pip install 'halfway[dali]'"
    return None


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> DaliFeed:
    """Shuffled epochs; order and crops are DALI's own, by the seed. `workers` are threads.

    UserError when files should be read cold: DALI reads them itself.
    """
    assert isinstance(source, Files)
    if wanted.cold:
        raise UserError("--loader dali reads files itself and cannot read them cold")
    return DaliFeed(source, wanted)


class DaliFeed:
    """A `LoaderFeed` of a DALI pipeline. A broken file ends it."""

    pids: tuple[int, ...] = ()
    idle_cpu_s = 0.0

    def __init__(self, files: Files, wanted: Wanted) -> None:
        self._files, self._wanted = files, wanted
        self._running: Any = None

    @property
    def ahead(self) -> int:
        """How many batches may be ready before they are fetched."""
        return self._wanted.prefetch

    def fetch(self) -> tuple[Tensor, Tensor]:
        """The next batch, copied on the current stream. UserError for a broken file."""
        if self._running is None:
            self._running = _iterator(self._files, self._wanted)
        try:
            (batch,) = next(self._running)
        except RuntimeError as error:
            raise UserError(
                "DALI ends at a file that it cannot decode and does not name; other loaders name "
                f"it ({_reason(error)})"
            ) from None
        images = batch["images"]
        if self._wanted.channels_last:
            images = images.permute(0, 3, 1, 2)
        return images, batch["labels"].flatten().long()

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """The batch in this feed's memory format: float32 [N, 3, H, W] and classes, int64 [N]."""
        images, labels = cast(tuple[Tensor, Tensor], fetched)
        return laid_out(images, self._wanted.channels_last), labels

    def close(self) -> None:
        """End DALI's threads."""
        self._running = None


def _reason(error: RuntimeError) -> str:
    """The one line that says why, of a text about the pipeline."""
    text = str(error)
    return (text.partition("encountered:")[2] or text).strip().partition("\n")[0]


def _dali(module: str) -> Any:
    """A module of DALI, which is an optional extra without types."""
    return import_module(f"nvidia.dali.{module}")


def _iterator(files: Files, wanted: Wanted) -> Any:
    """Batches without end, as a list of one dictionary."""
    on_gpu = wanted.device.type == "cuda"
    pipeline = _dali("pipeline").pipeline_def(_graph)(
        files,
        wanted,
        batch_size=wanted.batch,
        num_threads=max(1, wanted.workers),
        device_id=(wanted.device.index or 0) if on_gpu else None,
        seed=wanted.seed,
        prefetch_queue_depth=wanted.prefetch,
    )
    pipeline.build()
    iterator = _dali("plugin.pytorch").DALIGenericIterator
    return iterator([pipeline], ["images", "labels"], size=-1)


def _graph(files: Files, wanted: Wanted) -> tuple[Any, Any]:
    """Images, float32, in the layout that is wanted, and int32 classes [1]."""
    fn, types = _dali("fn"), _dali("types")
    generator = torch.Generator().manual_seed(wanted.seed)
    order: list[int] = torch.randperm(len(files.pictures), generator=generator).numpy().tolist()
    encoded, labels = fn.readers.file(
        files=[files.pictures[n].path for n in order],
        labels=[files.pictures[n].label for n in order],
        shuffle_after_epoch=True,  # of all files; `random_shuffle` is of a buffer of them
    )
    on_gpu = wanted.device.type == "cuda"
    images = fn.decoders.image_random_crop(
        encoded,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        random_area=list(AREA),
        random_aspect_ratio=list(RATIO),
        num_attempts=TRIES,
    )
    images = fn.resize(images, size=list(wanted.size), interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="HWC" if wanted.channels_last else "CHW",
        mean=[255 * value for value in wanted.normal.mean],
        std=[255 * value for value in wanted.normal.deviation],
        mirror=fn.random.coin_flip(probability=FLIPPED),
    )
    return images, labels.gpu() if on_gpu else labels
