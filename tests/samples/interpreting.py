"""Runs a test file as a script in Triton's interpreter, which must be on before Triton loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def errors_of(file: str) -> dict[str, list[float]]:
    """What the script prints on its last line: [error, tolerance] by the name of a case."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    run = subprocess.run(
        [sys.executable, file], env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])
