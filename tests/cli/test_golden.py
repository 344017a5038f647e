"""What halfway prints of chosen run files is what it printed before.

A difference that is meant is kept by `python tests/samples/golden.py --write`, and its commit says
why. All files are compared by hand, by two dumps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import golden


@pytest.fixture(autouse=True)
def _nothing_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("name", golden.SHEETS)
def test_what_is_printed_is_what_was_printed(name: str) -> None:
    if found := golden.difference(name):
        pytest.fail(found, pytrace=False)


def test_every_kept_sheet_is_compared() -> None:
    assert {path.name for path in golden.SCREENS.iterdir()} == set(
        map(golden.file_name, golden.SHEETS)
    )
