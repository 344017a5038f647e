"""A user's table of tuned configurations that cannot be read, whole or in part, costs no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.gemm import OP

NAME = "Some GPU"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "halfway" / "tuned" / "some-gpu.json"
    path.parent.mkdir(parents=True)
    return path


def label() -> str:
    """A configuration that the parser takes, from the repository's own table."""
    content = json.loads((OP.tables.repository / "nvidia-h200.json").read_text())
    return next(iter(next(iter(content["fp16"].values())).values()))


def with_entry(key: str, value: Any) -> str:
    return json.dumps({"fp16": {"nt": {"64x64x64": label(), key: value}}})


WHOLE = ["", "{", "[1]", "3", '{"fp16": 3}', '{"fp16": {"nt": []}}', "[" * 5000, "1" * 5000]
IN_PART = [
    ("64x64", "x"), ("0x64x64", "x"), ("9" * 400 + "x1x1", "x"), ("a", "x"), ("32x32x32", 3),
    ("32x32x32", "no/label"), ("32x32x32", None), ("32x32x32", "gemm/0x0x0/s0/w0"),
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_a_table_that_cannot_be_read_is_named_once_and_replaced(
    table: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(text)
    for _ in range(2):
        assert OP.tables.section([NAME], "fp16", "nt") == {}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert str(table) in said[0]
    OP.tables.save(NAME, "fp16", "nt", "64x64x64", label())
    assert OP.tables.section([NAME], "fp16", "nt") == {"64x64x64": label()}


@pytest.mark.parametrize(("key", "value"), IN_PART)
def test_the_other_entries_of_a_damaged_table_are_kept(
    table: Path, key: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(value, str) and value == "x":
        value = label()  # the size alone is wrong
    table.write_text(with_entry(key, value))
    assert OP.tables.section([NAME], "fp16", "nt") == {"64x64x64": label()}
    assert str(table) in capsys.readouterr().err


@pytest.mark.parametrize("op", ["gemm", "conv"])
def test_the_published_tables_are_read_whole(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    from kernels import OPS

    tables = OPS[op].tables
    content = json.loads((tables.repository / "nvidia-h200.json").read_text())
    for precision, sections in content.items():
        for name, labels in sections.items():
            assert tables.section(["NVIDIA H200"], precision, name).items() >= labels.items()
    assert capsys.readouterr().err == ""


def test_without_a_home_the_published_tables_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    assert OP.tables.section(["NVIDIA H200"], "fp16", "nt")
    assert capsys.readouterr().err == ""
    with pytest.raises(OSError, match="Not a directory"):
        OP.tables.save(NAME, "fp16", "nt", "64x64x64", label())
