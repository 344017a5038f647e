"""What must never happen, whatever a command is given and however it ends (docs/reliability.md)."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

DOCUMENTED = (0, 1, 2)  # exit codes of a command that ends by itself
MOST_CHARACTERS = 2000  # of a line on standard error
BIDIRECTIONAL = "\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
NOT_CAUGHT = ("Traceback (most recent call last)", "Exception ignored in", "Fatal Python error",
              "leaked semaphore")  # fmt: skip
SCRIPTABLE = ("iframe", "object", "embed", "foreignobject", "link", "base", "form", "animate",
              "set", "audio", "video", "frame", "applet")  # fmt: skip
ADDRESSES = ("src", "href", "xlink:href", "srcset", "action", "formaction", "poster", "background",
             "data", "ping")  # fmt: skip
INSIDE = ("data:image/", "data:font/", "#")  # addresses that load nothing
LOADED_BY_STYLES = re.compile(r"@import|url\(\s*[\"']?(?!#|data:)", re.IGNORECASE)
RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")


def in_ending(
    code: int, out: str, errors: str, codes: Collection[int] = DOCUMENTED
) -> Iterator[str]:
    """What is wrong with an exit code and with output, whose wrong UTF-8 is read as surrogates."""
    for name, stream in (("stdout", out), ("stderr", errors)):
        yield from (f"{words} on {name}" for words in NOT_CAUGHT if words in stream)
        if any(_never_shown(c) for c in set(stream)):
            yield f"control characters or invalid UTF-8 on {name}"
    lines = errors.splitlines()
    said = [i for i, line in enumerate(lines) if line.startswith("error:")]
    if code not in codes:
        yield f"exit code {code}"
    if any(len(line) > MOST_CHARACTERS for line in lines):
        yield f"a line of more than {MOST_CHARACTERS} characters on stderr"
    if said and said != [len(lines) - 1]:
        yield "an error of more than one line"
    if code == 2 and not said and not out.startswith("Usage:"):
        yield "exit code 2 without an error"
    if code == 0 and said:
        yield "exit code 0 with an error"


def _never_shown(character: str) -> bool:
    category = unicodedata.category(character)
    return category == "Cs" or character in BIDIRECTIONAL or (
        category == "Cc" and character not in "\n\t"
    )  # fmt: skip


# ---------------------------------------------------------------- what is written


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def in_markup(text: str) -> Iterator[str]:
    """What executes or loads in a page or an SVG."""
    elements = _Elements(text).found
    policy = {"http-equiv": "Content-Security-Policy"}.items()
    for tag, attributes in elements:
        if tag in SCRIPTABLE or (tag == "script" and attributes.get("type") != "application/json"):
            yield f"<{tag}> in a page"
        for name, value in attributes.items():
            if name.startswith("on"):
                yield f"an event handler in a page: {name}"
            if name in ADDRESSES and not (value or "").startswith(INSIDE):
                yield f"an address in a page: {name}"
            if name == "style" and LOADED_BY_STYLES.search(value or ""):
                yield "an address in a style"
        if tag == "meta" and attributes.get("http-equiv") == "refresh":
            yield "a page that goes elsewhere"
    if any(tag == "html" for tag, _ in elements) and not any(
        policy <= attributes.items() for _, attributes in elements
    ):
        yield "a page without a content-security-policy"


def in_xml(text: str) -> Iterator[str]:
    """XML (an SVG) that cannot be read, or in which is what a browser executes."""
    try:
        elements = list(ElementTree.fromstring(text).iter())
    except ElementTree.ParseError as error:
        yield f"not XML: {error}"
        return
    for element in elements:
        if str(element.tag).rpartition("}")[2].lower() in ("script", *SCRIPTABLE):
            yield f"<{element.tag}> in XML"
        yield from (f"{name} in XML" for name in element.attrib if name.lower().startswith("on"))


def in_markdown(text: str) -> Iterator[str]:
    """Raw HTML, links and images, or rows of one table with different numbers of cells."""
    if re.search(r"<[a-zA-Z/!?]", text):
        yield "raw HTML in Markdown"
    if re.search(r"\]\(", text):
        yield "a link in Markdown"
    width = 0  # of the table in which a line is
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) if line.startswith("|") else 0
        if width and cells and cells != width:
            yield "rows of a Markdown table with different lengths"
            return
        width = cells


def in_csv(text: str) -> Iterator[str]:
    """Cells that a spreadsheet runs, rows that are not as long as the header."""
    rows = list(csv.reader(io.StringIO(text)))
    if len({len(row) for row in rows}) > 1:
        yield "rows of CSV with different lengths"
    cells = (cell for row in rows for cell in row)
    if any(cell.startswith(RUN_BY_SPREADSHEETS) and not _is_number(cell) for cell in cells):
        yield "a cell of CSV that a spreadsheet runs"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def in_json(text: str) -> Iterator[str]:
    """Text that is no JSON, as NaN is none."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is none")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        yield f"not JSON: {error}"


# ---------------------------------------------------------------- documents


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of its own stands; of a list the first two items."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:2]):
        yield (*before, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*before, key))


def with_value(whole: Any, place: tuple[Any, ...], value: object) -> Any:
    """The document with this value in this place."""
    changed, (first, *rest) = whole.copy(), place
    changed[first] = with_value(whole[first], tuple(rest), value) if rest else value
    return changed


# ---------------------------------------------------------------- files

Files = dict[str, bytes | str]  # path within the folder -> what is in it, or what it is


def files_in(folder: Path) -> Files:
    """Everything below a folder, links not followed; large files by their size."""
    found: Files = {}
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in [*folders, *names]):
            found[str(path.relative_to(folder))] = _content(path)
    return found


def _content(path: Path) -> bytes | str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if not path.is_file():
        return "folder" if path.is_dir() else "special"
    size = path.stat().st_size
    return path.read_bytes() if size < 1 << 24 else f"{size} bytes"


def changed(before: Files, after: Files, may: Collection[str]) -> Iterator[str]:
    """Files that are gone, changed or new, but for those, and folders, that may be."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not any(
            name == one or name.startswith(f"{one}/") for one in may
        ):
            how = "gone" if name not in after else "left" if name not in before else "changed"
            yield f"a file is {how}: {name!a}"
