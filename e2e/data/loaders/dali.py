"""NVIDIA DALI, an optional extra: its own threads read; the GPU decodes, crops and normalises.

Written from its documentation (docs.nvidia.com/deeplearning/dali). Run with DALI 2.4 on an H200 and
on a CPU. Batches stay in DALI's memory, which it uses again when all that the device was given
before torch let go of them is done: a step may still read one while the host is ahead.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from e2e.data.types import PREFETCH, Files, Loader, LoadSpec, Source, laid_out
from microbench.errors import UserError


def missing(device: torch.device) -> str | None:
    """Why it cannot run, or None: DALI is not installed."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        return "NVIDIA DALI is not installed; pip install 'halfway[dali]'"
    return None


def open_loader(source: Source, spec: LoadSpec) -> Dali:
    """Shuffled epochs; order and crops are DALI's own, by the seed. `workers` are threads."""
    assert isinstance(source, Files)
    assert not spec.cold, "it reads files itself"
    return Dali(source, spec)


class Dali(Loader):
    """Channels-last batches of DALI. Broken files end it; a GPU decodes truncated JPEGs in part.

    Images come upright by EXIF, grey, CMYK and 16-bit ones in RGB, as Pillow has them.
    """

    def __init__(self, files: Files, spec: LoadSpec) -> None:
        self._files, self._spec = files, spec
        self._batches: Any = None

    @property
    def queue_depth(self) -> int:
        """How many batches may be ready before they are fetched."""
        return PREFETCH

    def __next__(self) -> tuple[Tensor, Tensor]:
        """The next batch, which the current stream waits for. UserError for a broken file."""
        try:
            if self._batches is None:
                self._batches = _iterator(self._files, self._spec)  # makes the first batch
            (batch,) = next(self._batches)
        except RuntimeError as error:  # a text about the pipeline, of which one line says why
            text = str(error)
            reason = (text.partition("encountered:")[2] or text).strip().partition("\n")[0]
            raise UserError(
                f"DALI cannot go on ({reason}); it ends at a file that it cannot read, --loader "
                "torchvision does not"
            ) from None
        return batch["images"].permute(0, 3, 1, 2), batch["labels"].flatten().long()

    def to_device(
        self, batch: tuple[Tensor, Tensor], channels_last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The batch in this memory format: float32 [N, 3, H, W] and classes, int64 [N]."""
        return laid_out(batch[0], channels_last), batch[1]

    def close(self) -> None:
        """End DALI's threads."""
        self._batches = None


def _dali(module: str) -> Any:
    """A module of DALI, which is an optional extra without types."""
    return import_module(f"nvidia.dali.{module}")


def _iterator(files: Files, spec: LoadSpec) -> Any:
    """Batches without end, as a list of one dictionary."""
    on_gpu = spec.device.type == "cuda"
    pipeline = _dali("pipeline").pipeline_def(_graph)(
        files,
        spec,
        batch_size=spec.batch,
        num_threads=max(1, spec.workers),
        device_id=(spec.device.index or 0) if on_gpu else None,
        seed=spec.seed,
        prefetch_queue_depth=PREFETCH,
    )
    pipeline.build()
    iterator = _dali("plugin.pytorch").DALIGenericIterator
    return iterator([pipeline], ["images", "labels"], size=-1)


def _graph(files: Files, spec: LoadSpec) -> tuple[Any, Any]:
    """Images, float32 [H, W, 3], and int32 classes [1]; areas and ratios are torchvision's too."""
    fn, types = _dali("fn"), _dali("types")
    generator = torch.Generator().manual_seed(spec.seed)
    order: list[int] = torch.randperm(len(files.pictures), generator=generator).numpy().tolist()
    encoded, labels = fn.readers.file(
        files=[files.pictures[n].path for n in order],
        labels=[files.pictures[n].label for n in order],
        shuffle_after_epoch=True,  # of all files; `random_shuffle` is of a buffer of them
    )
    on_gpu = spec.device.type == "cuda"
    images = fn.decoders.image_random_crop(
        encoded, device="mixed" if on_gpu else "cpu", output_type=types.RGB
    )
    images = fn.resize(images, size=list(spec.size), interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="HWC",
        mean=[255 * value for value in spec.normal.mean],
        std=[255 * value for value in spec.normal.deviation],
        mirror=fn.random.coin_flip(),
    )
    return images, labels.gpu() if on_gpu else labels
