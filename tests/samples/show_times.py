"""How long `show` takes of each committed run file, in every form, slowest first.

    python tests/samples/show_times.py              # CPU seconds in this process
    python tests/samples/show_times.py --processes  # of whole commands, with all that they import

CPU time of user and system together, so that other work on the machine counts for little.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from samples.golden import FORMS, ROOT, name_of, printed, run_files  # noqa: E402


def here_s(path: Path, form: str) -> float:
    """CPU seconds of `show` in this process."""
    began_s = time.process_time()
    printed("microbench", "show", str(path), *form.split())
    return time.process_time() - began_s


def command_s(path: Path, form: str) -> float:
    """CPU seconds of the whole command."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "microbench", "show", str(path), *form.split()],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    """Print a line for each file and form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="time whole commands")
    parser.add_argument("files", nargs="*", type=Path, help="[default: all]")
    words = parser.parse_args()
    take_s = command_s if words.processes else here_s
    files = [path.resolve() for path in words.files] or run_files()
    take_s(files[0], "")  # the first one pays for imports
    times = [(take_s(path, form), f"{name_of(path)} {form}") for path in files for form in FORMS]
    for seconds, name in sorted(times, reverse=True):
        print(f"{seconds:6.2f} s  {name}")


if __name__ == "__main__":
    main()
