"""Consoles: width, colour, and terminals that know few characters."""

from __future__ import annotations

import io
import re

import pytest
from rich.text import Text
from samples.kernel_runs import h200_run

from microbench.report.chart import chart
from microbench.report.console import print_run
from microbench.report.screen import WIDTH, is_live, make_console


@pytest.mark.parametrize(
    ("asked", "width"), [(None, WIDTH), ("40", 40), ("160", 160), ("0", WIDTH), ("wide", WIDTH)]
)
def test_a_file_is_as_wide_as_asked_else_100(
    asked: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked is not None:
        monkeypatch.setenv("COLUMNS", asked)
    assert make_console(file=io.StringIO()).width == width


def test_a_file_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    console = make_console(file=file)
    assert console.width == WIDTH
    assert not is_live(console)
    console.print(Text("hello", "bold red"))
    console.print("[bold]brackets stay[/bold] 1 2 3")
    assert file.getvalue() == "hello\n[bold]brackets stay[/bold] 1 2 3\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal() -> str:
    file = Terminal()
    print_run(h200_run(), make_console(file=file))
    return file.getvalue()


def test_colour_is_only_an_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    coloured = on_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_a_terminal()
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert WIDTH < max(map(len, plain.splitlines())) <= 120, "tables may be wider than prose"


def test_quiet_prints_nothing() -> None:
    file = io.StringIO()
    console = make_console(file=file, quiet=True)
    console.print("hello")
    assert file.getvalue() == ""


def test_a_terminal_without_unicode_keeps_columns_aligned() -> None:
    raw = io.BytesIO()
    console = make_console(file=io.TextIOWrapper(raw, encoding="ascii"))
    lines = chart(h200_run(), WIDTH)
    for line in lines:
        console.print(line)
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert [len(line) for line in text.splitlines()] == [line.cell_len for line in lines]
    assert "?" not in text
