"""What was measured once, on disk, so that a second network re-uses what the first one needed.

One file for a device, its host and the versions of the software: a time belongs to the library that
was fast or slow, and to the processor that launched it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from e2e.prediction.framework_overhead import COUNTED, FrameworkOverhead
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.queue_model import GraphCosts
from kernels.error_words import first_line
from kernels.files import read_json_file, write_atomically
from kernels.tuned import slug
from kernels.user_folders import cache_folder, warn
from microbench.device.host import cpu_name
from microbench.results.fields import decode

VERSIONS = ("python", "torch", "triton", "cuda", "cudnn", "cublas")
FORMAT = 12  # raised when times are taken in another way
MOST_S = 86_400.0  # no call and no step takes a day
LOST = "the next run measures again what this one did"

T = TypeVar("T")


class Store:
    """Times by a call's key, what captured steps take by theirs, and the host's own.

    Read once, written when something was added. `path` is None where no cache folder is known.
    """

    def __init__(self, device: Mapping[str, Any], software: Mapping[str, Any]) -> None:
        made_by = {name: software.get(name) for name in VERSIONS}
        card = {name: device.get(name) for name in ("power_limit_w", "driver")}
        # Times on a CPU depend on its number of threads; the host of a GPU launches with one.
        threads = torch.get_num_threads() if device.get("kind") == "cpu" else None
        facts = json.dumps([FORMAT, card, cpu_name(), threads, made_by], sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        folder = cache_folder("calls")
        name = f"{slug(str(device.get('name', 'device')))}-{digest}.json"
        self.path = folder and folder / name
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
        if self.path is None:
            warn(f"no home folder is known: {LOST}")
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(content))
        except OSError as error:
            warn(f"{self.path} cannot be written ({error.strerror}): {LOST}")


Read = tuple[dict[str, OpTime], FrameworkOverhead | None, dict[str, GraphCosts]]


def _read(path: Path | None) -> Read:
    """The contents of the file; what cannot be read is measured again, and a warning says so."""
    content: dict[str, Any] = {}
    faults: list[str] = []
    try:
        content = _entries(read_json_file(path) if path else {}, "the file", faults)
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing has been kept
    except (OSError, ValueError) as error:
        faults.append(_said(error))
    times = _decoded(OpTime, _entries(content.get("calls", {}), "calls", faults), faults)
    framework = _framework(content.get("framework"), faults)
    captured = _decoded(
        GraphCosts, _entries(content.get("captured", {}), "captured", faults), faults
    )
    if faults:
        warn(f"{path} has entries that cannot be read ({faults[0]}): they are measured again")
    return times, framework, captured


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else first_line(error)


def _framework(value: object, faults: list[str]) -> FrameworkOverhead | None:
    """The host's calibration; None where there is none that can be used."""
    if value is None:
        return None
    found = _decoded(FrameworkOverhead, {"framework": value}, faults).get("framework")
    if found and (len(found.seconds) != len(COUNTED) or max(map(abs, found.seconds)) > MOST_S):
        faults.append("framework has other seconds than are counted")
        return None
    return found


def _entries(value: object, name: str, faults: list[str]) -> dict[str, Any]:
    """A JSON object; empty for anything else, which is a fault."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    faults.append(f"{name} is no object")
    return {}


def _decoded(kind: type[T], entries: Mapping[str, object], faults: list[str]) -> dict[str, T]:
    """The entries of this type, with numbers in range; the faults of the others are added."""
    found: dict[str, T] = {}
    for key, entry in entries.items():
        try:
            one: T = decode(kind, entry, key)
            for name, number in vars(one).items():
                _check_number(number, f"{key}.{name}")
            found[key] = one
        except (ValueError, OverflowError) as error:
            faults.append(_said(error))
    return found


def _check_number(value: object, where: str) -> None:
    """ValueError for a number that no time, count or size can be; anything else passes."""
    if isinstance(value, float) and not 0 <= value <= MOST_S:
        raise ValueError(f"{where} is {value:g}")
    if isinstance(value, int) and value < where.endswith(".kernels"):
        raise ValueError(f"{where} is {value}")
