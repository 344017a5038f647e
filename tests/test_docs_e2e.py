"""docs/e2e.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from e2e.datasets import KINDS
from e2e.explain import cells
from e2e.recipes import RECIPES

DOCS = (Path(__file__).parents[1] / "docs" / "e2e.md").read_text(encoding="utf-8")


def test_every_recipe_has_its_row() -> None:
    rows = [line for line in DOCS.splitlines() if line.startswith("| ")]
    for recipe in RECIPES.values():
        assert f"| {' | '.join(cells(recipe))} |" in rows


def test_every_kind_of_data_has_its_row() -> None:
    for name in KINDS:
        assert f"| `{name}" in DOCS
