"""The size of the project beside its budgets, which only fall: above one, CI fails.

    python .ci/size.py          # a table; exit code 1 if a figure is above its budget
    python .ci/size.py --lower  # budgets that are above the figures fall to them

`[tool.size]` of pyproject.toml has them: name = [budget, goal], or [budget] where there is no goal.
Lowering them writes the table in CONTRIBUTING.md too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("kernels", "microbench", "e2e")
SETTINGS = ROOT / "pyproject.toml"
KINDS = ("lines", "files", "functions", "imports", "options", "words")
TITLES = "| | lines | files | functions | imports of ours per 1,000 lines | options | words |"
WORDS = {"README": "README.md", "docs": "docs/*.md", "notes": "docs/notes/*.md"}


def tracked(pattern: str) -> list[Path]:
    """The files in git that match."""
    command = ["git", "ls-files", "--", f":(glob){pattern}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).exists()]


def code(package: str) -> dict[str, float]:
    """Lines, files and functions of a package's Python, and names of ours that it imports."""
    texts = [path.read_text() for path in tracked(f"{package}/**/*.py")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    lines = sum(text.count("\n") for text in texts)
    imported = sum(len(node.names) for node in nodes if isinstance(node, ast.ImportFrom)
                   and (node.module or "").partition(".")[0] in PRODUCT)  # fmt: skip
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    found = {"lines": lines, "files": len(texts), "functions": functions}
    return found if package == "tests" else {**found, "imports": 1000 * imported / lines}


def options(command: click.Command) -> Iterator[click.Option]:
    """Of a command and of the commands in it, without --help."""
    yield from (each for each in command.params if isinstance(each, click.Option))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from options(inner)


def measure() -> dict[str, int]:
    """Each figure by its name, such as "microbench lines"."""
    sys.path.insert(0, str(ROOT))
    found: dict[str, float] = {}
    for package in (*PRODUCT, "tests"):
        found |= {f"{package} {what}": figure for what, figure in code(package).items()}
    for package in ("microbench", "e2e"):
        app = import_module(f"{package}.__main__").app
        found[f"{package} options"] = len(list(options(app)))
    found["options"] = found["microbench options"] + found["e2e options"]
    for name, pattern in WORDS.items():
        found[f"{name} words"] = sum(len(path.read_text().split()) for path in tracked(pattern))
    return {name: round(figure) for name, figure in found.items()}


def lower(sizes: dict[str, int], limits: dict[str, list[int]]) -> None:
    """Write the budgets that are above the figures, and the table of budgets."""
    text = SETTINGS.read_text()
    for name, (budget, *goal) in limits.items():
        lowered = min(budget, sizes[name])
        text = text.replace(f'"{name}" = [{budget}', f'"{name}" = [{lowered}')
        limits[name] = [lowered, *goal]
    SETTINGS.write_text(text)
    page = ROOT / "CONTRIBUTING.md"
    before, _, after = page.read_text().partition(TITLES)
    page.write_text(before + "\n".join([TITLES, *table(limits)]) + after[after.index("\n\n") :])


def table(limits: dict[str, list[int]]) -> Iterator[str]:
    """The rows of the table in CONTRIBUTING.md: "budget -> goal" of each figure."""
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for row in (*PRODUCT, "tests", "", *WORDS):
        names = (f"{row} {what}".strip() for what in KINDS)
        cells = (" → ".join(f"{each:,}" for each in limits.get(name, [])) for name in names)
        yield f"| {' | '.join([row or 'all', *cells])} |"


def main() -> int:
    """Print the table; 1 where a figure is above its budget."""
    limits = tomllib.loads(SETTINGS.read_text())["tool"]["size"]
    sizes = measure()
    if sys.argv[1:] == ["--lower"]:
        lower(sizes, limits)
        return 0
    print(f"{'':24}{'now':>8}{'budget':>8}{'goal':>8}")
    above = 0
    for name, size in sizes.items():
        budget, *goal = limits[name]
        above += size > budget
        note = "  above its budget" if size > budget else ""
        print(f"{name:24}{size:8,}{budget:8,}{''.join(f'{each:8,}' for each in goal)}{note}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
