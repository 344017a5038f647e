"""Checks of the method itself: against an independent tool, and against a known answer.

Commands, not tests: they take device time, and their outputs are committed under results/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from microbench.errors import UserError
from microbench.results.runfile import check_writable, write_text


def validate_method(what: str, path: Path, device: str, tries: int) -> None:
    """Run the check called `what`, print its summary and write its figures to `path`."""
    from microbench.device.device import describe, software
    from microbench.selftest.aa import same_kernel_twice
    from microbench.selftest.ncu import timer_against_ncu

    checks: Mapping[str, Callable[..., tuple[dict[str, Any], str]]] = {
        "aa": same_kernel_twice,
        "timer": timer_against_ncu,
    }
    if tries < 1:
        raise UserError(f"--tries takes a number above 0, not {tries}")
    check_writable(path, "--json")
    try:
        info = describe(device)
    except ValueError as error:
        raise UserError(str(error)) from None
    figures, summary = checks[what](info, tries)
    document = {
        "check": what,
        "command": ["python", "-m", "microbench", "validate", what, "--tries", str(tries)],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": info.as_dict(),
        "software": software(),
        **figures,
    }
    write_text(json.dumps(document, separators=(",", ":"), allow_nan=False), path)
    print(summary)
    print(f"Written: {path}")
