"""Times on disk, of calls or layers, so that a second network re-uses what the first one needed.

One file for a device and the versions of the software: a time belongs to the library that was fast
or slow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar, cast

import torch

from kernels.files import cache_folder, read_json_file, warn, write_atomically
from kernels.messages import first_line
from kernels.tune import slug
from microbench.device.host import cpu_name
from microbench.results.codec import decode

VERSIONS = ("python", "torch", "triton", "cuda", "cudnn", "cublas")
FORMAT = 14  # raised when times are taken in another way
T = TypeVar("T")
LOST = "the next run measures again what this one did"


class Store(Generic[T]):
    """Times of a kind by their keys, in a folder. Read once, written when something was added.

    `path` is None where no cache folder is known. Two processes that write at once may lose times,
    which are measured again.
    """

    def __init__(
        self, device: Mapping[str, Any], software: Mapping[str, Any], folder: str, kind: type[T]
    ) -> None:
        made_by = {name: software.get(name) for name in VERSIONS}
        card = {name: device.get(name) for name in ("power_limit_w", "driver")}
        on_cpu = device.get("kind") == "cpu"
        host = (cpu_name(), torch.get_num_threads()) if on_cpu else None
        facts = json.dumps([FORMAT, card, host, made_by], sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        kept = cache_folder(folder)
        self.path = kept and kept / f"{slug(str(device.get('name', 'device')))}-{digest}.json"
        self._kind = kind
        self._times = self._read()

    def get(self, key: str) -> T | None:
        """The stored time, or None."""
        return self._times.get(key)

    def add(self, times: Mapping[str, T]) -> None:
        """Store times. A disk that cannot be written only costs the next run its time."""
        if not times:
            return
        self._times = self._read() | self._times | dict(times)
        if self.path is None:
            warn(f"no home folder is known: {LOST}")
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = {key: asdict(cast(Any, time)) for key, time in self._times.items()}
            write_atomically(self.path, json.dumps({"calls": content}))
        except OSError as error:
            warn(f"{self.path} cannot be written ({error.strerror}): {LOST}")

    def _read(self) -> dict[str, T]:
        """What the file has; where it cannot be read, nothing, and a warning says so."""
        path = self.path
        if path is None:
            return {}
        try:
            whole = decode(dict[str, dict[str, Any]], read_json_file(path), "")
            return decode(dict[str, self._kind], whole["calls"], "calls")
        except (FileNotFoundError, NotADirectoryError):
            return {}  # nothing has been kept
        except (OSError, ValueError, KeyError) as error:
            why = (isinstance(error, OSError) and error.strerror) or first_line(error)
            warn(f"{path} cannot be read ({why}): its times are measured again")
            return {}
