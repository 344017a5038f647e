"""The table: what each writer makes of columns and rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from microbench.report.table import Column, Row, Table, markdown, records, screen, write_csv

Cells = Sequence[str]


def column(place: int, title: str, *, drop: int = 0, key: bool = False) -> Column[Cells]:
    return Column(
        title,
        lambda cells: cells[place],
        right=place > 0,
        drop=drop,
        key=key,
        csv={f"value_{place}": lambda cells: cells[place] or None},
    )


def table(*rows: Row[Cells]) -> Table[Cells]:
    columns = [
        column(0, "name", key=True), column(1, "time", drop=1), column(2, "per\nsecond", drop=3),
        column(3, "power", drop=2),
    ]  # fmt: skip
    found = Table(columns)
    found.block("a block", rows)
    return found


def lines_of(found: Table[Cells], width: int = 100) -> list[str]:
    return [line.plain for line in screen(found, width).lines]


ROWS = (Row[Cells](("first", "1.5", "20", "")), Row[Cells](("no. 2", "12", "3", "")))


def test_columns_are_aligned_under_their_titles_and_empty_ones_left_out() -> None:
    assert lines_of(table(*ROWS)) == [
        "                per",
        "name   time  second",
        "───────────────────",
        "a block",
        "first   1.5      20",
        "no. 2    12       3",
    ]


@pytest.mark.parametrize(
    ("width", "left_out"), [(19, []), (17, []), (16, ["per second"]), (8, ["per second", "time"])]
)
def test_to_fit_gaps_shrink_then_columns_go(width: int, left_out: list[str]) -> None:
    found = screen(table(*ROWS), width)
    assert sorted(found.left_out) == left_out
    assert bool(found.left_out_note(width)) == bool(left_out)


def test_a_sentence_takes_the_place_of_the_other_columns() -> None:
    failed = Row[Cells](("third", "", "", ""), "FAILED: " + "no memory " * 9)
    found = screen(table(*ROWS, failed), 60)
    assert found.lines[-1].plain.startswith("third  FAILED: no memory")
    assert found.lines[-1].cell_len <= 60
    assert found.cut == [failed.item]
    assert screen(table(*ROWS, failed), 120).cut == []
    assert markdown(table(*ROWS, failed)).splitlines()[-1] == f"| third | {failed.sentence} |  |"


def test_markdown_has_one_line_titles_and_escapes_bars() -> None:
    assert markdown(table(Row(("a|b", "1", "2", "")))) == (
        "| name | time | per second |\n| --- | ---: | ---: |\n| a\\|b | 1 | 2 |\n"
    )


def test_names_in_csv_keep_their_places_and_new_ones_follow() -> None:
    found = table(*ROWS)
    found.csv_order = ("value_2", "value_0")
    assert write_csv([records(found), (["more"], [{"more": 0.1 + 0.2}])]) == (
        "value_2,value_0,value_1,value_3,more\n20,first,1.5,,\n3,no. 2,12,,\n,,,,0.3\n"
    )


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=30)


@given(st.lists(st.tuples(texts, texts, texts, texts, texts), max_size=6), st.integers(1, 90))
def test_nothing_is_ever_wider_than_the_screen(rows: list[Cells], width: int) -> None:
    found = table(*(Row(cells[:4], cells[4]) for cells in rows))
    assert all(cell_len(line) <= width for line in lines_of(found, width))
