"""The command line: python -m tests.faults --minutes N --seed S."""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from .back_ends import BACK_ENDS
from .caches import DAMAGED_CACHES
from .command_lines import LINES
from .data_folders import DATA_FOLDERS
from .ends import ENDS
from .forks import Kind, Tried, case, tried
from .limits import LIMITED
from .run_files import RUN_FILES
from .scripts import SCRIPTS_RUN
from .soak import soak
from .traces import TRACES

ALL = (LINES, RUN_FILES, TRACES, DAMAGED_CACHES, DATA_FOLDERS, LIMITED, BACK_ENDS, SCRIPTS_RUN,
       ENDS)  # fmt: skip
KINDS = {kind.name.replace(" ", "-"): kind for kind in ALL}
SHOWN = 40  # different failures


def main(arguments: list[str] | None = None) -> int:
    """Try cases, print what failed and the table; 1 where one failed, or none was tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for all kinds [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of all cases [%(default)s]")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind; may be repeated")
    parser.add_argument("--cases", type=int, help="so many of each kind, however long it takes")
    parser.add_argument("--case", type=int, help="only this one, of the kind that --only names")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="[%(default)s]")
    parser.add_argument("--soak", action="store_true", help="commands in a loop instead of faults")
    asked = parser.parse_args(arguments)
    if asked.soak:
        return soak(asked.minutes, asked.seed)
    names = list(asked.only or KINDS)
    if asked.case is not None:
        return _again(KINDS[names[0]], asked.seed, asked.case)
    shares = sum(KINDS[name].share for name in names)
    rows: list[tuple[str, int, int]] = []
    for name in names:
        kind = KINDS[name]
        began_s = time.monotonic()
        seconds = float("inf") if asked.cases else 60 * asked.minutes * kind.share / shares
        numbers = range(asked.cases) if asked.cases else count()
        found = tried(kind, asked.seed, numbers, until_s=began_s + seconds, jobs=asked.jobs)
        rows.append((kind.name, *_reported(found, name, asked.seed)))
        print(f"{kind.name}: {rows[-1][1]:,} in {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"\n{'kind':20} {'tried':>8} {'failed':>7}")
    for name, number, failed in rows:
        print(f"{name:20} {number:>8,} {failed:>7,}")
    return 1 if any(failed or not number for _, number, failed in rows) else 0


def _reported(found: Iterator[Tried], name: str, seed: int) -> tuple[int, int]:
    """How many were tried and how many failed; each different failure is printed once."""
    number, failed = 0, 0
    seen: Counter[str] = Counter()
    for one in found:
        number += 1
        failed += bool(one.attempt.complaints)
        for complaint in one.attempt.complaints:
            defect = re.sub(r"\d+", "#", complaint)
            seen[defect] += 1
            if seen[defect] == 1 and len(seen) <= SHOWN:
                print(f"FAILED {complaint}\n  {one.attempt.words[:400]}\n"
                      f"  {_command(name, seed, one.number)}", flush=True)  # fmt: skip
    for defect, times in seen.most_common():
        print(f"  {times:>6} x {defect}")
    return number, failed


def _command(name: str, seed: int, number: int) -> str:
    return f"python -m tests.faults --only {name} --seed {seed} --case {number}"


def _again(kind: Kind, seed: int, number: int) -> int:
    """Try one case again, alone; what it had to work on stays."""
    kind.prepare()
    folder = Path(tempfile.mkdtemp(prefix="halfway-fault-"))
    faulthandler.dump_traceback_later(kind.limit_s, file=os.dup(2))
    found = case(kind, seed, number, folder)
    faulthandler.cancel_dump_traceback_later()
    print(f"{found.words}\nin {folder}")
    for complaint in found.complaints or ["nothing is wrong"]:
        print(f"  {complaint}")
    return 1 if found.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
