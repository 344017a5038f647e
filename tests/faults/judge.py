"""What counts as a failure, whatever was tried."""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

DOCUMENTED = (0, 1, 2)  # exit codes of a command that ends by itself
MOST_CHARACTERS = 2000  # of a line on standard error
BIDIRECTIONAL = "\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
TRACEBACK = b"Traceback (most recent call last)"
NOT_CAUGHT = (b"Exception ignored in", b"Fatal Python error", b"leaked semaphore")
SCRIPTABLE = ("script", "iframe", "object", "embed", "foreignobject", "link", "base", "form",
              "animate", "set", "audio", "video", "frame", "applet")  # fmt: skip
ADDRESSES = ("src", "href", "xlink:href", "srcset", "action", "formaction", "poster", "background",
             "data", "ping")  # fmt: skip
LOADED_BY_STYLES = re.compile(r"@import|url\(\s*[\"']?(?!#|data:)", re.IGNORECASE)
RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Outcome:
    """How a command ended; `code` is negative for a signal."""

    code: int
    out: bytes
    err: bytes

    def complaints(self, codes: Collection[int] = DOCUMENTED) -> Iterator[str]:
        """What must not be: in short sentences, the same for the same defect."""
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            if TRACEBACK in stream:
                yield f"traceback on {name}: {_last_line(stream)}"
                return
            yield from unclean(stream, name)
        if self.code not in codes:
            yield f"exit code {self.code}"
        lines = self.err.decode(errors="replace").splitlines()
        if any(len(line) > MOST_CHARACTERS for line in lines):
            yield f"a line of more than {MOST_CHARACTERS} characters on stderr"
        errors = [i for i, line in enumerate(lines) if line.startswith("error:")]
        if len(errors) > 1 or (errors and errors[0] != len(lines) - 1):
            yield "an error of more than one line"
        if self.code == 2 and not errors and not self.out.startswith(b"Usage:"):
            yield "exit code 2 without an error"
        if self.code == 0 and errors:
            yield "exit code 0 with an error"
        for words in NOT_CAUGHT:
            if words in self.err:
                yield f"{words.decode()} on stderr"


def _last_line(stream: bytes) -> str:
    line = stream.decode(errors="replace").strip().splitlines()[-1]
    return re.sub(r"'[^']*'", "'*'", line)[:200]


def unclean(stream: bytes, name: str) -> Iterator[str]:
    """Bytes that no terminal must get: control characters but line break and tab, no UTF-8."""
    try:
        text = stream.decode()
    except UnicodeDecodeError:
        yield f"invalid UTF-8 on {name}"
        return
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return
    found = {
        c for c in text if (unicodedata.category(c) == "Cc" and c not in "\n\t")
        or c in BIDIRECTIONAL
    }  # fmt: skip
    if found:
        yield f"control characters on {name}"


# ---------------------------------------------------------------- what is written


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Mapping[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def in_markup(text: str, scripts: int = 0) -> Iterator[str]:
    """What executes or loads in a page or an SVG, beside `scripts` scripts of its own."""
    elements = _Elements(text).found
    tags = [tag for tag, said in elements if said.get("type") != "application/json"]
    if tags.count("script") > scripts:
        yield "a script in a page"
    for tag, attributes in elements:
        if tag in SCRIPTABLE[1:]:
            yield f"<{tag}> in a page"
        for name, value in attributes.items():
            if name.startswith("on"):
                yield f"an event handler in a page: {name}"
            if name in ADDRESSES and not (value or "").startswith(("data:image/", "data:font/")):
                yield f"an address in a page: {name}"
            if name == "style" and LOADED_BY_STYLES.search(value or ""):
                yield "an address in a style"
        if tag == "meta" and attributes.get("http-equiv") == "refresh":
            yield "a page that goes elsewhere"
    if "html" in tags and not any(
        attributes.get("http-equiv") == "Content-Security-Policy" for _, attributes in elements
    ):
        yield "a page without a content-security-policy"


def in_xml(text: str) -> Iterator[str]:
    """XML (SVG, JUnit) that cannot be read, or in which is what a browser executes."""
    try:
        elements = list(ElementTree.fromstring(text).iter())
    except ElementTree.ParseError as error:
        yield f"not XML: {re.sub(r'[0-9]+', '#', str(error))}"
        return
    for element in elements:
        tag = str(element.tag).rpartition("}")[2].lower()
        if tag in SCRIPTABLE:
            yield f"<{tag}> in XML"
        for name in element.attrib:
            if name.lower().startswith("on"):
                yield f"an event handler in XML: {name}"


def in_markdown(text: str) -> Iterator[str]:
    """Raw HTML, or links and images, in Markdown."""
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
    for cell in (cell for row in rows for cell in row):
        if cell.startswith(RUN_BY_SPREADSHEETS) and not _is_number(cell):
            yield "a cell of CSV that a spreadsheet runs"
            return


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- files

Files = dict[str, bytes | str]  # path within the folder -> what is in it, or what it is


def files_in(folder: Path) -> Files:
    """Everything below a folder, links not followed; large files by their size."""
    found: Files = {}
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = os.path.join(root, name)
            found[os.path.relpath(path, folder)] = _content(path)
    return found


def _content(path: str) -> bytes | str:
    if os.path.islink(path):
        return f"-> {os.readlink(path)}"
    if not os.path.isfile(path):
        return "folder" if os.path.isdir(path) else "special"
    if os.path.getsize(path) > 1 << 24:
        return f"{os.path.getsize(path)} bytes"
    with open(path, "rb") as file:
        return file.read()


def changed(before: Files, after: Files, may: Collection[str]) -> Iterator[str]:
    """Files that are gone, changed or new, but for those, and folders, that may be.

    torch makes a folder of its own where temporary files are.
    """
    for name in sorted(before.keys() | after.keys()):
        if (
            name in may
            or name.startswith("tmp/torchinductor")
            or any(name.startswith(f"{one}/") for one in may)
        ):
            continue
        if name not in after:
            yield f"a file is gone: {_shown(name)}"
        elif name not in before:
            yield f"a file is left: {_shown(name)}"
        elif before[name] != after[name]:
            yield f"a file is changed: {_shown(name)}"


def _shown(name: str) -> str:
    """A name without its random part, so that equal defects are counted as one."""
    short = re.sub(r"[0-9a-f]{8}$", "*", ascii(name)[1:-1])[:80]
    return short if name.startswith("home") else f"{short.split('/')[0]}/*{Path(short).suffix}"
