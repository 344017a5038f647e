"""What an exception says, in a line."""

from __future__ import annotations

import pytest

from kernels.error_words import first_line, one_line


@pytest.mark.parametrize("text", ["", "\n", "  \n \n"])
def test_an_error_without_words_is_named_by_its_type(text: str) -> None:
    assert first_line(NotImplementedError(text)) == "NotImplementedError"
    assert one_line(NotImplementedError(text)) == "NotImplementedError"


def test_of_more_lines_the_first_is_said() -> None:
    error = ValueError("\nwrong size\nat line 3")
    assert first_line(error) == "wrong size"
    assert one_line(error) == "ValueError: wrong size"
