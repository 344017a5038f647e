"""What the checks of the method share: their words, a mistake in one line, what they write."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from microbench.device.device import DeviceInfo, software
from microbench.errors import UserError
from microbench.run_output import now

Main = Callable[..., int]


def new_file(text: str) -> Path:
    """A path for argparse: of a file that is not there yet, in a folder that is."""
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text} already exists; choose another name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def parser_of(script: str, doc: str | None) -> argparse.ArgumentParser:
    """What a script takes first: the new file that it writes."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.validation.{script}", description=doc)
    parser.add_argument("file", type=new_file, help="the file to write")
    return parser


def says_mistakes(main: Main) -> Main:
    """The script's main; a UserError is one line, and exit code 2."""

    @wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        try:
            return main(arguments)
        except UserError as error:
            print(error, file=sys.stderr)
            return 2

    return run


def measured_on(info: DeviceInfo) -> dict[str, Any]:
    """The facts of a check that has just measured on this device."""
    return {"finished_at": now(), "device": info.as_dict(), "software": software()}


def write(path: Path, check: str, words: list[str], facts: dict[str, Any]) -> None:
    """Write the evidence of a check: its command, where it ran, its figures."""
    document = {"check": check, "command": ["python", "-m", *words], **facts}
    path.write_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
    print(f"File: {path}")
