"""The command line: python -m tests.scenarios --out DIR [NAME …]."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from microbench.device.device import describe, software
from microbench.results.codec import decode

from .report import summary, table
from .run import Scenario, run
from .table import SCENARIOS, Steps

RUN_FILE, PARTS = "diagnose-scenarios.json", "scenarios"


def main(arguments: list[str] | None = None) -> int:
    """Run the scripts, one on each GPU at a time, write the run file and print its table.

    What ran and is in the folder already is not run again. 1 where a script did not run.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for all files")
    parser.add_argument("names", nargs="*", help="of scenarios  [default: all]")
    parser.add_argument("--gpus", help="numbers of GPUs: 0,1  [default: all; none: the CPU]")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin none after [60]")
    parser.add_argument("--steps", type=int, nargs=3, metavar=("AFTER", "BARE", "TRACED"))
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    names = given.names or list(SCENARIOS)
    if unknown := sorted(set(names) - set(SCENARIOS)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(SCENARIOS)}")
    (given.out / PARTS).mkdir(parents=True, exist_ok=True)
    streams = given.gpus.split(",") if given.gpus else _gpus()
    gpus: SimpleQueue[str] = SimpleQueue()
    for gpu in streams:
        gpus.put(gpu)
    steps = Steps(*given.steps) if given.steps else None
    until_s = time.monotonic() + 60 * given.minutes

    def one(name: str) -> None:
        part = given.out / PARTS / f"{name}.json"
        done = part.exists() and not json.loads(part.read_text())["problem"]
        if done or time.monotonic() > until_s:
            return
        found = run(SCENARIOS[name], given.out, gpus, steps)
        part.write_text(json.dumps(asdict(found)))
        print(f"{name}: {found.wall_s:.1f} s {found.problem}", flush=True)

    # Twice as many as GPUs: what reads traces needs none.
    with ThreadPoolExecutor(2 * len(streams)) as pool:
        list(pool.map(one, names))
    shutil.rmtree(given.out / "full", ignore_errors=True)
    parts = [given.out / PARTS / f"{name}.json" for name in SCENARIOS]
    found = [
        decode(Scenario, json.loads(part.read_text()), part.name) for part in parts if part.exists()
    ]
    (given.out / RUN_FILE).write_text(json.dumps(_document(found, words), separators=(",", ":")))
    print("\n".join([*table(found), "", *summary(found)]))
    lost = set(names) - {each.name for each in found}
    if lost:
        print(f"not run: {', '.join(sorted(lost))}", file=sys.stderr)
    return int(bool(lost) or any(each.problem and not each.may_refuse for each in found))


def _gpus() -> list[str]:
    """The numbers of the GPUs that this process may use; one empty name for the CPU."""
    import torch

    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return (seen.split(",") if seen else [str(n) for n in range(count)]) or [""]


def _document(found: list[Scenario], words: list[str]) -> dict[str, object]:
    return {
        "check": "scenarios",
        "command": ["python", "-m", "tests.scenarios", *(Path(word).name for word in words)],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe().as_dict(),
        "software": software(),
        "scenarios": [asdict(scenario) for scenario in found],
    }


if __name__ == "__main__":
    sys.exit(main())
