"""A loader's measurement as an object of the run file's `results`, and back; checked on the way."""

from __future__ import annotations

from dataclasses import asdict

from e2e.results.loader_types import OP, Loading
from microbench.results.fields import decode
from microbench.results.types import STATUSES
from microbench.results.values import Json


def to_json(loading: Loading) -> Json:
    """The measurement as the schema writes it: raw blocks and the rates that readers want."""
    bytes_per_s = loading.bytes_per_s
    return {
        "op": OP,
        "case": asdict(loading.case),
        "status": loading.status,
        "reason": loading.reason,
        "images_per_s": loading.per_s,
        "ci95_images_per_s": loading.ci95_per_s,
        "images_per_s_per_core": loading.per_s_per_core,
        "read_mb_per_s": bytes_per_s / 1e6 if bytes_per_s is not None else None,
        "first_s": loading.first_s,
        "blocks": [asdict(block) for block in loading.blocks],
        "warnings": [asdict(warning) for warning in loading.warnings],
    }


def from_json(data: Json, where: str) -> Loading:
    """The inverse of `to_json`; ValueError says which field is not what it should be."""
    loading: Loading = decode(Loading, data, where)
    if loading.status not in STATUSES:
        raise ValueError(f"{where}.status is {loading.status!r}")
    if loading.status == "ok" and not loading.blocks:
        raise ValueError(f"{where} is ok and has no blocks")
    case = loading.case
    if case.batch < 1 or min(case.workers, case.prefetch, case.cpus) < 0:
        raise ValueError(f"{where}.case has a batch, workers, prefetch or cpus that cannot be")
    if (loading.first_s or 0) < 0:
        raise ValueError(f"{where}.first_s is {loading.first_s}")
    for i, block in enumerate(loading.blocks):
        if block.images < 1 or block.wall_s <= 0:
            raise ValueError(f"{where}.blocks[{i}] has no images, or no time above zero")
        if (block.cpu_s or 0) < 0 or (block.read_bytes or 0) < 0:
            raise ValueError(f"{where}.blocks[{i}] has a time or bytes under zero")
    return loading
