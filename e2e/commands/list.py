"""The known networks and loaders, and what each recipe does."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from e2e.data.loaders import FIXED, LOADERS
from e2e.networks.table import GROUPS
from e2e.recipes import DYNAMIC, NONE, RECIPES, Recipe
from microbench import fmt
from microbench.report.screen import make_console

HEADER = ("recipe", "weights", "GEMMs", "batch-norm", "optimizer", "loss scale")


def cells(recipe: Recipe) -> tuple[str, ...]:
    """A recipe's row under HEADER."""
    products = recipe.autocast or ("tf32" if recipe.tf32 else recipe.weights)
    if recipe.float8:
        products = f"fp8, {products}"
    updated = "fp32 masters" if recipe.masters else recipe.weights
    scale = {DYNAMIC: "dynamic", NONE: "-"}.get(str(recipe.scale), str(recipe.scale))
    return recipe.name, recipe.weights, products, recipe.batchnorm, updated, scale


def print_names() -> None:
    """Print the networks by group, the loaders with what they need, and the recipes."""
    console = make_console(quiet=False)
    for title, known in GROUPS.items():
        console.print(f"{title} ({fmt.count(len(known), 'network')}):")
        console.print("  " + ", ".join(known))
    console.print("With timm installed: timm:NAME. With transformers: hf:path/to/config.json.")
    console.print("Your own: module:function, a function that returns a torch.nn.Module.")
    console.print("Loaders (--loader):")
    for name, says in FIXED.items():
        console.print(f"  {name}: {says}")
    for name, backend in LOADERS.items():
        console.print(f"  {name}: {backend.says}")
    console.print("Recipes (--recipe):")
    table = Table(*HEADER, box=None, pad_edge=False)
    for recipe in RECIPES.values():
        console.print(f"  {recipe.name}: {recipe.text}")
        table.add_row(*cells(recipe))
    for line in console.render_lines(table, pad=False):
        console.print(Text("  " + "".join(segment.text for segment in line).rstrip()))
