"""The cells of the notebook under examples/ run from top to bottom, with less time to measure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples.commands import warm_children

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with warm_children():
        yield


def test_the_notebook_runs() -> None:
    """What a cell ends with is shown, as HTML where it has that."""
    cells = json.loads((ROOT / "examples/notebooks/halfway.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    pages: list[str] = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        *lines, last = ast.parse(re.sub(r"budget=\d+", "budget=0.1", "".join(cell["source"]))).body
        exec(compile(ast.Module(lines, []), cell["id"], "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
            pages += [shown._repr_html_()] if hasattr(shown, "_repr_html_") else []
        else:
            exec(compile(ast.Module([last], []), cell["id"], "exec"), names)
    assert len(pages) >= 4
    assert all("<table" in page for page in pages)
