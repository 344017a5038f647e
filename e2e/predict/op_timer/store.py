"""What was measured once, on disk, so that a second network re-uses what the first one needed.

One file for a device, its host and the versions of the software: a time belongs to the library that
was fast or slow, and to the processor that launched it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, cast

import torch

from e2e.predict.host_model.framework_overhead import COUNTED, FrameworkOverhead
from e2e.predict.op_timer.op_timer import OpTime
from e2e.predict.queue_model import GraphCosts
from kernels.files import write_atomically
from kernels.tuned import slug, user_directory
from microbench.device.host import cpu_name

VERSIONS = ("python", "torch", "triton", "cuda", "cudnn", "cublas")
CAPTURED = [field.name for field in dataclass_fields(GraphCosts)]
FORMAT = 12  # raised when times are taken in another way


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
        """The time of a call, when it was measured before."""
        return self._times.get(key)

    def add(self, times: Mapping[str, OpTime]) -> None:
        """Keep these too."""
        if times:
            self._times |= times
            self._write()

    def keep(self, framework: FrameworkOverhead) -> None:
        """Keep what the host does beside calls."""
        self.framework = framework
        self._write()

    def keep_captured(self, key: str, captured: GraphCosts) -> None:
        """Keep what a captured step takes."""
        self.captured[key] = captured
        self._write()

    def _write(self) -> None:
        """A disk that cannot be written costs the next run its time, no more."""
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
    found: dict[str, OpTime] = {}
    captured: dict[str, GraphCosts] = {}
    framework = None
    for key, fields in _entries(content.get("calls")).items():
        with suppress(TypeError, ValueError, AttributeError, KeyError):
            found[key] = _op_time(fields)
    with suppress(TypeError, ValueError, KeyError):
        kept = content["framework"]
        seconds = tuple(float(each) for each in kept["seconds"])
        if len(seconds) == len(COUNTED):
            framework = FrameworkOverhead(seconds, _time(kept["error"]))
    for key, fields in _entries(content.get("captured")).items():
        with suppress(TypeError, ValueError, KeyError):
            captured[key] = GraphCosts(*(_time(fields[name]) for name in CAPTURED))
    return found, framework, captured


def _entries(value: object) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _op_time(fields: dict[str, Any]) -> OpTime:
    busy_s, kernels = fields.get("busy_s"), int(_time(fields["kernels"]))
    if kernels < 1:
        raise ValueError(kernels)
    return OpTime(
        _time(fields["gpu_s"]),
        _time(fields["host_s"]),
        int(_time(fields["scratch_bytes"])),
        _time(fields["conversion_s"]),
        None if busy_s is None else _time(busy_s),
        kernels,
        bool(fields["waits"]),
    )


def _time(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(value)
    return number
