"""Published run files: the page of their commands, and which are older than what they measure.

    python results/evidence.py                       # a line for each file; needs git
    python results/evidence.py --write               # results/README.md, after a file was added
    python results/evidence.py --out FOLDER NAME...  # measure these again, one after another

A file holds its own command; notes.toml has what files do not hold. NAME is its path below results/
without ".json", such as nvidia-h200/gemm-fp16, a folder of files, or "stale" for all that are older
than their code. FOLDER gets NAME.json, the screen (NAME.txt) and times.txt, and nothing is measured
that is there already.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parent
PAGE = RESULTS / "README.md"
NOTES = tomllib.loads((RESULTS / "notes.toml").read_text())
TIMING = ("microbench/timing", "microbench/measure.py")
# Of a command: its group on the page, and the code whose changes can move its figures.
COMMANDS = {
    "gemm": ("Kernels", ("kernels/*.py", "kernels/gemm", *TIMING)),
    "conv": ("Kernels", ("kernels/*.py", "kernels/conv", *TIMING)),
    "attention": ("Kernels", ("kernels/*.py", "kernels/attention", *TIMING)),
    "payoff": ("Kernels", ("kernels/*.py", "kernels/conv", "kernels/linear", *TIMING)),
    "layers": ("Kernels", ("kernels", *TIMING)),
    "peak": ("Kernels", ("kernels", *TIMING)),
    "ceilings": ("Kernels", ("kernels", *TIMING)),
    "fleet": ("Kernels", ("kernels", *TIMING)),
    "train": ("Training", ("e2e/training", "e2e/networks", "e2e/recipes.py")),
    "benchmark.py": ("Training", ()),
    "loader": ("Data loading", ("e2e/data",)),
    "stalls": ("Data loading", ("e2e/data", "e2e/training")),
    "examples/plain_dataloader.py": ("Data loading", ()),
    "diagnose": ("Diagnoses", ("e2e/profile",)),
    "tests.scenarios": ("Diagnoses", ("e2e/profile",)),
    "study": ("Studies", ()),
    "tests.validation.plants": ("Checks", ("microbench/roofline", *TIMING)),
    "tests.validation.predict": ("Checks", ("e2e/prediction",)),
}
OTHER = ("Checks", ("kernels", "microbench", "e2e"))


@cache
def documents() -> dict[str, Any]:
    """By name, what each file holds. A study is one document, without its run files."""
    found: dict[str, Any] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        if path.parent.name != "runs":
            file = path.parent if path.name == "study.json" else path.with_suffix("")
            found[str(file.relative_to(RESULTS))] = json.loads(path.read_text())
    return found


def command_of(name: str) -> list[str]:
    """What made a file, as it is typed today; none if no command is known."""
    document = documents()[name]
    if "published" in document:
        return ["halfway", "study", document["name"], "--profile", document["run"][0]["profile"]]
    command = NOTES["commands"].get(name, "").split() or document.get("command", [])
    match command:
        case ["python", "-m", "microbench", *words]:
            return ["halfway", *words]
        case ["python", "-m", "e2e", "diagnose" | "loader" | "stalls" | "train" | "validate", *_]:
            return ["halfway", *command[3:]]
        case ["python", "-m", "e2e", *words]:
            return ["halfway", "train", *words]
        case _:
            return command


def kind_of(name: str) -> tuple[str, tuple[str, ...]]:
    """The group of a file, and the code that it measures."""
    words = [word for word in command_of(name) if word not in ("halfway", "python", "-m")]
    return COMMANDS.get(words[0], OTHER) if words else OTHER


def names(asked: list[str]) -> list[str]:
    """Those that can be measured again and were asked for; all if none was."""
    chosen = [
        name for name in documents() if kind_of(name)[1] and command_of(name)
        and (not asked or any(name == one or name.startswith(f"{one}/") for one in asked))
    ]  # fmt: skip
    if asked == ["stale"]:
        return [name for name in names([]) if is_stale(name)]
    if not chosen:
        sys.exit(f"no run file below results/ is called {', '.join(asked)}")
    return chosen


def is_stale(name: str) -> bool:
    """Whether its code was changed after the file was committed."""
    return changed_at(*kind_of(name)[1]) > changed_at(f"results/{name}.json")


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
    first, second, *words = command_of(name)
    command = [first, second, "--json", str(out), *words]
    if first == "python":
        command = [sys.executable, "-m", words[0], str(out), *words[1:]]
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


def page() -> str:
    """results/README.md: the head of notes.toml, and a table for each device and group."""
    return "\n".join([NOTES["head"].strip(), *_tables()]) + "\n"


def _tables() -> Iterator[str]:
    groups = dict.fromkeys(group for group, _ in COMMANDS.values())
    for device in dict.fromkeys(name.split("/")[0] for name in documents()):
        yield f"\n## {device}"
        of_device = [name for name in documents() if name.startswith(f"{device}/")]
        for group in groups:
            rows = [_row(name) for name in of_device if kind_of(name)[0] == group]
            if rows:
                yield "\n".join([f"\n### {group}\n", "| file | command |", "|---|---|", *rows])


def _row(name: str) -> str:
    """A file, its command, whether it is whole, and what notes.toml says of it."""
    document = documents()[name]
    whole = all(run["done"] for run in document["run"]) if "published" in document else (
        "schema_version" not in document or document["finished_at"]
    )  # fmt: skip
    command = shlex.join(command_of(name))
    says = [f"`{command}`" if command else "", "" if whole else "Unfinished",
            NOTES["files"].get(name, "")]  # fmt: skip
    return f"| {name.partition('/')[2]} | {'. '.join(filter(None, says))} |"


def main() -> None:
    """Write the page, list the files, or measure those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files, folders or 'stale' [all]")
    parser.add_argument("--write", action="store_true", help="write results/README.md")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="measure them again, into this")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="each [300]")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page())
        return
    for name in names(given.names):
        if given.out:
            measure(name, given.out, given.limit)
        else:
            age = "stale" if is_stale(name) else "fresh"
            print(f"{age}  {name}: {shlex.join(command_of(name))}")


if __name__ == "__main__":
    main()
