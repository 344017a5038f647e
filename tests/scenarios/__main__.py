"""The command line: python -m tests.scenarios --out DIR."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.report.scenarios import Scenario, sheet
from microbench.device.device import describe, software
from microbench.errors import UserError
from microbench.report.documents import print_sheet
from microbench.report.screen import make_console

from .run import run
from .table import SCENARIOS, Steps

RUN_FILE, PACKED = "diagnose-scenarios.json", "traces.tar"


def main(arguments: list[str] | None = None) -> int:
    """Run the scripts, write the run file after each, and print it; 1 where one did not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for all files")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="this; may be repeated")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="begin none after [%(default)s]"
    )
    parser.add_argument("--steps", type=int, nargs=3, metavar=("AFTER", "BARE", "TRACED"))
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    names = given.only or [name for name, one in SCENARIOS.items() if not one.extra]
    given.out.mkdir(parents=True, exist_ok=True)
    steps = Steps(*given.steps) if given.steps else None
    until_s = time.monotonic() + 60 * given.minutes
    found: list[Scenario] = []
    document: dict[str, Any] = {}
    for name in names:
        if time.monotonic() > until_s:
            print(f"{name}: no time left", file=sys.stderr)
            continue
        try:
            found.append(run(SCENARIOS[name], given.out, steps))
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        document = _document(found, words)
        (given.out / RUN_FILE).write_text(json.dumps(document, separators=(",", ":")))
        print(f"{name}: {found[-1].wall_s:.1f} s {found[-1].problem}", flush=True)
    if not document:
        return 1
    shutil.rmtree(given.out / "full", ignore_errors=True)
    _archive(given.out)
    print_sheet(sheet(json.loads(json.dumps(document))), make_console())
    return int(len(found) < len(names) or any(one.problem for one in found))


def _document(found: list[Scenario], words: list[str]) -> dict[str, Any]:
    return {
        "check": "scenarios",
        "command": ["python", "-m", "tests.scenarios", *map(_name, words)],  # without paths
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe().as_dict(),
        "software": software(),
        "scenarios": [asdict(scenario) for scenario in found],
    }


def _name(word: str) -> str:
    """The last part of a path; other words as they are."""
    return word.rstrip("/").rpartition("/")[2]


def _archive(out: Path) -> None:
    """One file of everything, for machines that give few files back."""
    with tarfile.open(out / PACKED, "w") as archive:
        for path in sorted(out.rglob("*.json*")):
            archive.add(path, path.relative_to(out))


if __name__ == "__main__":
    sys.exit(main())
