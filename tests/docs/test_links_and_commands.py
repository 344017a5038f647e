"""Links of the documentation lead somewhere, its commands parse, its notebook runs."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples.commands import warm_children
from samples.pages import PAGES, ROOT, Row, rows_in, text

import e2e.__main__
import microbench.__main__
from e2e.results.types import Training
from microbench.errors import UserError
from microbench.report.report import report_of
from microbench.report.writers import to_markdown
from microbench.results.runfile import read_run
from microbench.roofline.explain import annotate
from results import evidence


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            words = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
            assert anchor in {one.replace(" ", "-") for one in words}, link


def test_every_published_file_is_listed_and_the_readme_fits_its_screen() -> None:
    page = text("results/README")
    assert page == evidence.page(), "python results/evidence.py --write"
    assert all(command for _, *rows in rows_in(page) for _, command in rows)
    notes = evidence.NOTES["files"] | evidence.NOTES["commands"]
    assert notes.keys() <= evidence.documents().keys(), "a note on a file that is gone"
    for path in ROOT.glob("results/*/**/*.json"):
        name = path.relative_to(ROOT / "results").with_suffix("").parts[1:]
        listed = name[:2] if name[0] == "studies" else name
        assert f"| {'/'.join(listed)} |" in page, path
    assert len(text("README").splitlines()) <= 150


def test_every_command_has_its_options() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    fences = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
    lines = {
        line for page in pages for block in fences.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines() if line.startswith("halfway ")
    }  # fmt: skip
    assert len(lines) > 50
    apps = (microbench.__main__.app, e2e.__main__.app)
    for line in lines:
        _, *words = shlex.split(line.partition(" -- ")[0].replace(" dev ", " "), comments=True)
        command = next(app.commands[words[0]] for app in apps if words[0] in app.commands)
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        # After --base-args are a script's own arguments; -m is a word of `diagnose`, no option.
        ours = [w for before, w in pairwise(words) if w[:1] == "-" and before != "--base-args"]
        assert {word.split("=")[0] for word in ours} <= known | {"--help", "-m"}, line


# ---------------------------------------------------------------- tables


FOUND = 9  # tables, at least


@cache
def reported(path: Path) -> list[list[Row]]:
    """The tables that halfway makes of a file."""
    try:
        found = read_run(path)
    except UserError:
        return []
    return rows_in(to_markdown(report_of(found)))


def linked(page: Path) -> list[tuple[list[Path], list[Row]]]:
    """The page's tables, each with the run files that its section names, then all of the page's."""
    found: list[tuple[list[Path], list[Row]]] = []
    every: list[Path] = []
    for section in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        links = re.findall(r"\]\(([^)#\s]*results/[^)#\s]*\.json)\)", section)
        paths = [(page.parent / link).resolve() for link in links]
        every += paths
        found += [(paths, table) for table in rows_in(section)]
    return [(paths + every, table) for paths, table in found]


def columns(head: Row, table: list[Row]) -> list[Row] | None:
    """The rows of a report's table, in these of its columns; None if it has not all of them."""
    own = table[0]
    if not set(head) <= set(own) or len(set(own)) < len(own):
        return None
    return [[row[own.index(name)] for name in head] for row in table[1:]]


def test_rows_of_reports_are_those_of_the_run_files() -> None:
    checked = 0
    for page in PAGES:
        for paths, (head, *rows) in linked(page):
            reports = (table for path in dict.fromkeys(paths) for table in reported(path))
            tables = [own for one in reports if (own := columns(head, one)) is not None]
            if tables:
                wrong = min(([row for row in rows if row not in own] for own in tables), key=len)
                assert wrong == [], page
                checked += 1
    assert checked >= FOUND


# ---------------------------------------------------------------- published


RUNS = [
    path
    for path in sorted(ROOT.glob("results/*/**/*.json"))
    if b'"schema_version"' in path.read_bytes()[:200]
]
KERNELS = [path for path in RUNS if path.name.startswith(("gemm-", "conv-", "payoff-", "layers-"))]
EXPLAINED = ["conv-fp16", "payoff-conv", "layers-resnet50", "gemm-fp16", "gemm-all"]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kernels_are_right_and_possible(path: Path) -> None:
    found = read_run(path)
    assert found.finished_at
    for result in found.results:
        case = result.case
        if result.status != "ok":
            assert result.reason
            continue
        assert (result.flops, result.min_bytes) == (case.problem.flops, case.min_bytes)
        assert 0 <= (result.rel_error or 0) <= case.tolerance
        assert 0 < result.efficiency_pct.get("at_clock", 1) <= 105 or case.op == "conv"
        assert (result.byte_per_s or 0) < 8e12
        assert (result.ceiling_pct or 0) <= 105 or case.precision_name in ("fp32", "tf32")


@pytest.mark.parametrize("name", EXPLAINED)
def test_kernels_are_explained_as_this_version_does(name: str) -> None:
    found = read_run(ROOT / f"results/nvidia-h200/{name}.json")
    assert annotate(found).results == found.results


def test_trainings_are_whole_and_possible() -> None:
    found = 0
    for path in RUNS:
        if not any(r.get("op") == "train" for r in json.loads(path.read_text())["results"]):
            continue
        run = read_run(path)
        rows = [line for line in text("results/README").splitlines() if f"{path.stem} |" in line]
        assert run.finished_at is not None or any("Unfinished" in row for row in rows), path
        for training in run.of(Training):
            found += 1
            if training.status != "ok":
                assert training.reason or training.predicted
                continue
            steps = training.steps
            assert sum(steps.times_s) <= 1.001 * steps.wall_s, path
            # Profiled beside `unfed_s`, not in the rounds of `times_s`.
            step_s = max(steps.median_s, steps.unfed_s or 0)
            assert (steps.busy_s or 0) <= 1.05 * step_s, path
            low, high = steps.ci95_s or (steps.median_s, steps.median_s)
            assert low <= steps.median_s <= high
    assert found > 300


# ---------------------------------------------------------------- the notebook


def test_the_cells_of_the_notebook_run_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less time to measure. What a cell ends with is shown, as HTML where it has that."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples/notebooks/halfway.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    pages: list[str] = []
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        *lines, last = ast.parse(re.sub(r"budget=\d+", "budget=0.1", "".join(cell["source"]))).body
        with warm_children():
            exec(compile(ast.Module(lines, []), cell["id"], "exec"), names)
            if isinstance(last, ast.Expr):
                shown = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
                pages += [shown._repr_markdown_()] if hasattr(shown, "_repr_markdown_") else []
            else:
                exec(compile(ast.Module([last], []), cell["id"], "exec"), names)
    assert len(pages) >= 4
    assert all("| ---" in page for page in pages)
