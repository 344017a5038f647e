"""Published run files: which are older than the code that they measure, and measured again.

    python results/evidence.py                       # a line for each file; needs git
    python results/evidence.py --out FOLDER NAME...  # measure these again, one after another

A file holds its own command. NAME is its path below results/ without ".json", such as
nvidia-h200/gemm-fp16, a folder of files, or "stale" for all that are older than their code. FOLDER
gets NAME.json, the screen (NAME.txt) and times.txt, and nothing is measured that is there already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parent
TIMING = ("microbench/timing", "microbench/measure.py")
# The command, and the code whose changes can move its figures.
CODE = {
    "microbench gemm": ("kernels/*.py", "kernels/gemm", *TIMING),
    "microbench conv": ("kernels/*.py", "kernels/conv", *TIMING),
    "microbench payoff": ("kernels/*.py", "kernels/conv", *TIMING),
    "microbench layers": ("kernels", *TIMING),
    "microbench": ("kernels", *TIMING),
    "tests.validation.plants": ("microbench/roofline", *TIMING),
    "e2e loader": ("e2e/data",),
    "e2e stalls": ("e2e/data", "e2e/training"),
    "e2e predict": ("e2e/prediction",),
    "e2e validate": ("e2e/prediction",),  # of older files
    "e2e diagnose": ("e2e/profile",),
    "e2e": ("e2e/training", "e2e/networks", "e2e/recipes.py"),
}


def command_of(name: str) -> list[str]:
    """The words after `python -m` that made a file; none if it was not made by one command."""
    document = json.loads((RESULTS / f"{name}.json").read_text())
    command = document.get("command") if isinstance(document, dict) else None
    return command[2:] if command and command[:2] == ["python", "-m"] else []


def names(asked: list[str]) -> list[str]:
    """Those of our files that were asked for; all if none was."""
    found = [str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.rglob("*.json")]
    chosen = [
        name for name in sorted(found) if command_of(name)
        and (not asked or any(name == one or name.startswith(f"{one}/") for one in asked))
    ]  # fmt: skip
    if asked == ["stale"]:
        return [name for name in names([]) if is_stale(name)]
    if not chosen:
        sys.exit(f"no run file below results/ is called {', '.join(asked)}")
    return chosen


def is_stale(name: str) -> bool:
    """Whether its code was changed after the file was committed."""
    words = command_of(name)
    code = CODE.get(" ".join(words[:2])) or CODE.get(words[0], ("kernels", "microbench", "e2e"))
    return changed_at(*code) > changed_at(f"results/{name}.json")


def changed_at(*paths: str) -> int:
    """When git last saw a change of these, in seconds."""
    log = ["git", "log", "-1", "--format=%ct", "--", *(f":(glob){path}" for path in paths)]
    done = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout or 0)


def measure(name: str, folder: Path, limit_s: float) -> None:
    """Run a file's command again; its limit ends it as Ctrl-C does, so what is done is kept."""
    out = folder / f"{name}.json"
    if out.exists():
        print(f"{name}: there already")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    module, *words = command_of(name)
    file = [] if module.startswith("tests.") else ["--json"]
    command = [sys.executable, "-m", module, *file, str(out), *words]
    began_s = time.monotonic()
    with out.with_suffix(".txt").open("w") as screen:
        process = subprocess.Popen(command, cwd=ROOT, stdout=screen, stderr=subprocess.STDOUT)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
    line = f"{name}: exit code {process.wait()}, {time.monotonic() - began_s:.0f} s"
    print(line, flush=True)
    with (folder / "times.txt").open("a") as times:
        print(line, file=times)


def main() -> None:
    """List the files, or measure those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files, folders or 'stale' [all]")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="measure them again, into this")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="each [300]")
    given = parser.parse_args()
    for name in names(given.names):
        if given.out:
            measure(name, given.out, given.limit)
        else:
            words = " ".join(command_of(name))
            print(f"{'stale' if is_stale(name) else 'fresh'}  {name}: python -m {words}")


if __name__ == "__main__":
    main()
