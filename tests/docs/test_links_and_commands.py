"""Links of the documentation lead somewhere, its commands parse, its lists are complete."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from samples.pages import PAGES, ROOT, text

import e2e.__main__
import microbench.__main__


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
            assert anchor in {_anchor(heading) for heading in headings}, link


def _anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_every_published_file_is_listed_with_its_command() -> None:
    for path in ROOT.glob("results/*/**/*.json"):
        name = path.relative_to(ROOT / "results").parts[1:]
        listed = name[:2] if name[0] == "studies" else name
        assert f"| {'/'.join(listed)} |" in text("results/README"), path


def test_the_readme_fits_its_screen() -> None:
    assert len(text("README").splitlines()) <= 150
    assert len(text("README").split()) <= 1000


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
        _, first, *words = shlex.split(line.partition(" -- ")[0], comments=True)
        command = next(app.commands[first] for app in apps if first in app.commands)
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        # What follows --other are a script's own arguments; -m is a word of `diagnose`, no option.
        ours = [w for before, w in pairwise(["", *words]) if w[:1] == "-" and before != "--other"]
        assert {word.split("=")[0] for word in ours} <= known | {"--help", "-m"}, line
