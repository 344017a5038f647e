"""What was measured once, on disk, so that a second network re-uses what the first one needed.

One file for a device, its host and the versions of the software: a time belongs to the library that
was fast or slow, and to the processor that launched it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from e2e.prediction.framework_overhead import COUNTED, FrameworkOverhead
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.queue_model import GraphCosts
from kernels.files import write_atomically
from kernels.tuned import slug, user_directory
from microbench.device.host import cpu_name
from microbench.results.fields import decode

VERSIONS = ("python", "torch", "triton", "cuda", "cudnn", "cublas")
FORMAT = 12  # raised when times are taken in another way

T = TypeVar("T")


class Store:
    """Times by a call's key, what captured steps take by theirs, and the host's own.

    Read once, written when something was added.
    """

    def __init__(self, device: Mapping[str, Any], software: Mapping[str, Any]) -> None:
        made_by = {name: software.get(name) for name in VERSIONS}
        card = {name: device.get(name) for name in ("power_limit_w", "driver")}
        # Times on a CPU depend on its number of threads; the host of a GPU launches with one.
        threads = torch.get_num_threads() if device.get("kind") == "cpu" else None
        facts = json.dumps([FORMAT, card, cpu_name(), threads, made_by], sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        folder = user_directory("calls")
        self.path = folder / f"{slug(str(device.get('name', 'device')))}-{digest}.json"
        self._times, self.framework, self.captured = _read(self.path)

    def __len__(self) -> int:
        return len(self._times)

    def get(self, key: str) -> OpTime | None:
        """The stored time of a call, or None."""
        return self._times.get(key)

    def add(self, times: Mapping[str, OpTime]) -> None:
        """Store times of calls."""
        if times:
            self._times |= times
            self._write()

    def keep(self, framework: FrameworkOverhead) -> None:
        """Store the framework overhead."""
        self.framework = framework
        self._write()

    def keep_captured(self, key: str, captured: GraphCosts) -> None:
        """Store the costs of a captured step."""
        self.captured[key] = captured
        self._write()

    def _write(self) -> None:
        """A disk that cannot be written only costs the next run its time."""
        known, framework, captured = _read(self.path)
        self._times = known | self._times
        self.framework = self.framework or framework
        self.captured = captured | self.captured
        content = {
            "calls": {key: asdict(time) for key, time in self._times.items()},
            "framework": asdict(self.framework) if self.framework else None,
            "captured": {key: asdict(step) for key, step in self.captured.items()},
        }
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(content))


def _read(path: Path) -> tuple[dict[str, OpTime], FrameworkOverhead | None, dict[str, GraphCosts]]:
    """The contents of the file; damaged entries are measured again."""
    content: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        content = _entries(json.loads(path.read_text(encoding="utf-8")))
    times = _decoded(OpTime, _entries(content.get("calls")))
    framework = _decoded(FrameworkOverhead, {"": content.get("framework")}).get("")
    if framework is not None and len(framework.seconds) != len(COUNTED):
        framework = None
    captured = _decoded(GraphCosts, _entries(content.get("captured")))
    return {key: one for key, one in times.items() if one.kernels >= 1}, framework, captured


def _entries(value: object) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _decoded(kind: type[T], entries: Mapping[str, object]) -> dict[str, T]:
    """The entries of this type, without those with negative times or counts."""
    found: dict[str, T] = {}
    for key, entry in entries.items():
        with suppress(ValueError, OverflowError):
            one: T = decode(kind, entry, key)
            if all(value >= 0 for value in vars(one).values() if isinstance(value, (int, float))):
                found[key] = one
    return found
