"""What the checks of the method share: a new file, and what is written into it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from microbench.device.device import DeviceInfo, software
from microbench.run_output import now


def new_file(text: str) -> Path:
    """A path for argparse: of a file that is not there yet, in a folder that is."""
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text} already exists; choose another name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def measured_on(info: DeviceInfo) -> dict[str, Any]:
    """The facts of a check that has just measured on this device."""
    return {"finished_at": now(), "device": info.as_dict(), "software": software()}


def write(path: Path, check: str, words: list[str], facts: dict[str, Any]) -> None:
    """Write the evidence of a check: its command, where it ran, its figures."""
    document = {"check": check, "command": ["python", "-m", *words], **facts}
    path.write_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
    print(f"File: {path}")
