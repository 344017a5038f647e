"""A stand-in for the GPU's driver, so that Triton compiles for one that is not there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

SHARED_LIMIT = 232448  # bytes, of a block


class FakeHopper:
    """A driver that answers as an H200 would, under a device number no real one has."""

    def get_current_device(self) -> int:
        return 1000

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def assembled(compiled: Any, folder: Path) -> tuple[str, str, int]:
    """A compiled kernel's PTX, what ptxas says of it, and the bytes that it spills."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptx = compiled.asm["ptx"]
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    command = [get_ptxas(90).path, "-v", "-arch=sm_90a", "-o", os.devnull, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    log = run.stdout + run.stderr
    (spilled,) = re.findall(r"(\d+) bytes spill stores", log)
    return ptx, log, int(spilled)
