"""Caches with something wrong in them: an entry that cannot be read is as one that is not there."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from .command_lines import mains, prepare
from .forks import Attempt, Kind, here
from .judge import changed, files_in
from .run_files import damaged

DEVICE = {"name": "A card", "kind": "cuda", "driver": "1", "power_limit_w": 100.0}


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One damaged cache, read and then written."""
    name = rng.choice(list(CACHES))
    return CACHES[name](rng, folder)


def _calls(rng: random.Random, folder: Path) -> Attempt:
    """What was measured of calls and of the host."""
    from e2e.prediction.op_timer.op_timer import OpTime
    from e2e.prediction.op_timer.store import Store

    path = Store(DEVICE, {}).path
    assert path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(damaged(rng, _stored()))

    def use(_words: list[str]) -> int:
        store = Store(DEVICE, {})
        store.get("call 1")
        store.add({"new": _example(OpTime)})
        assert Store(DEVICE, {}).get("new") == _example(OpTime), "what was added is lost"
        return 0

    return _used("calls", use, path)


def _tuned(rng: random.Random, folder: Path) -> Attempt:
    """Configurations that a user has tuned."""
    op = import_module(rng.choice(("kernels.gemm", "kernels.conv"))).OP
    section, key, label = _a_config(op.name)
    path = op.tables.save(DEVICE["name"], "fp16", section, key, label)
    path.write_bytes(damaged(rng, path.read_text(encoding="utf-8")))
    _forget()

    def use(_words: list[str]) -> int:
        op.tables.section((DEVICE["name"],), "fp16", section)
        op.tables.save(DEVICE["name"], "fp16", section, key, label)
        found = op.tables.section((DEVICE["name"],), "fp16", section)
        assert found[key] == label, "what was added is lost"
        return 0

    return _used(f"tuned {op.name}", use, path)


def _quick(rng: random.Random, folder: Path) -> Attempt:
    """What quick tunes found."""
    from kernels import quick_cache
    from kernels.case import Case, Target

    case = Case("gemm", {"m": 96, "n": 96, "k": 96}, "fp16", "triton")
    target = Target("cuda", DEVICE["name"], (9, 0), 132)
    label = _a_config("gemm")[2]
    quick_cache.save(case, target, label, 6)
    path = quick_cache.path(case, target)
    assert path
    path.write_bytes(damaged(rng, path.read_text(encoding="utf-8")))
    quick_cache.forget()

    def use(_words: list[str]) -> int:
        quick_cache.find(case, target)
        quick_cache.save(case, target, label, 6)
        quick_cache.forget()
        assert quick_cache.find(case, target) == (label, 6), "what was kept is lost"
        return 0

    return _used("quick tunes", use, path)


def _a_config(op: str) -> tuple[str, str, str]:
    """(section, key, label) of the repository's own."""
    path = next((Path(import_module(f"kernels.{op}").__file__ or "").parent / "tuned").glob("*"))
    table = json.loads(path.read_text(encoding="utf-8"))["fp16"]
    section = next(iter(table))
    return (section, *next(iter(table[section].items())))


def _forget() -> None:
    """Tables are read once a process."""
    import kernels.tuned

    for value in vars(kernels.tuned).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def _used(name: str, use: Callable[[list[str]], int], path: Path) -> Attempt:
    outcome = here(use, "cache", [])
    complaints = list(outcome.complaints((0,)))
    if len({line for line in outcome.err.splitlines() if path.name.encode() in line}) > 1:
        complaints.append("more than one warning of a file")
    return Attempt(f"{name}: {path.name}", complaints)


def _manifest(rng: random.Random, folder: Path) -> Attempt:
    """What a folder of generated images is said to hold."""
    made = folder / "made"
    (made / "train").mkdir(parents=True)
    (made / "train" / "mine.txt").write_text("mine")
    (folder / "victim.txt").write_text("not ours")
    shards: Any = rng.choice((0, 2, [{"name": name} for name in (
        "../victim.txt", str(folder / "victim.txt"), "train/mine.txt", "..", "\0")]))  # fmt: skip
    text = {"what": _dataset().WHAT, "format": _dataset().FORMAT, "images": 20, "classes": 2,
            "seed": 1, "shards": shards, "files_sha256": rng.choice((None, "0" * 64))}  # fmt: skip
    content = damaged(rng, json.dumps(text)) if rng.random() < 0.8 else json.dumps(text).encode()
    (made / "manifest.json").write_bytes(content)
    words = ["make-data", "made", "--images", "20", "--classes", "2"]
    before = files_in(folder.parent)
    outcome = here(mains()["halfway"][0], "halfway", words)
    may = () if outcome.code == 2 else ("work/made/manifest.json", "home/.cache")
    wrong = [*outcome.complaints(), *changed(before, files_in(folder.parent), may)]
    return Attempt(f"manifest: {' '.join(words)}", wrong)


def _dataset() -> Any:
    return import_module("e2e.data.synthetic_jpeg.dataset")


@cache
def _stored() -> str:
    """A file of the call store."""
    from e2e.prediction.framework_overhead import COUNTED, FrameworkOverhead
    from e2e.prediction.op_timer.op_timer import OpTime
    from e2e.prediction.queue_model import GraphCosts

    framework = {**_as_json(FrameworkOverhead), "seconds": [1e-6] * len(COUNTED)}
    return json.dumps({
        "calls": {f"call {i}": _as_json(OpTime) for i in range(3)},
        "framework": framework,
        "captured": {"a step": _as_json(GraphCosts)},
    })  # fmt: skip


def _as_json(kind: Any) -> dict[str, Any]:
    values = {"float": 1e-5, "int": 2, "bool": False, "str": "x"}
    return {one.name: values.get(str(one.type).removesuffix(" | None"), []) for one in fields(kind)}


def _example(kind: Any) -> Any:
    from microbench.results.fields import decode

    return decode(kind, _as_json(kind), "")


def _prepare() -> None:
    prepare()
    sys.setrecursionlimit(1000)
    _stored()


CACHES = {"calls": _calls, "tuned": _tuned, "quick": _quick, "manifest": _manifest}
DAMAGED_CACHES = Kind("caches", attempt, limit_s=20.0, share=0.06, a_fork=40, prepare=_prepare)
