"""What a file may hold: results that other packages measure, and documents that are not runs.

`show`, `compare` and `--resume` read every run file, whichever package measured it. A kind is found
by the `op` of a result, a document by its fields. The packages above this one add theirs in
the modules that REGISTERING names, which load when a file is no run of kernels alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from microbench.results.types import Json, Ratio, Run

DOCUMENT_VERSION = 1  # the `schema_version` of what is no run; older files name none
REGISTERING = ("e2e.kinds", "microbench.report.fleet")  # e2e may be absent


@dataclass(frozen=True)
class Kind:
    """One kind of result: what reads and shows it.

    `to_json` makes a result what the schema has, `from_json` is its inverse: ValueError names the
    field that is invalid, its second argument locates the result. `report` is what a run says of
    all its other results, as `microbench.report.parts.Report`. `cells` name a case in a comparison:
    (what varies most, what was measured, options). `ratio` is that of two times of an `op`, with
    its interval, as text. `noise_pct` is what two runs of one case may differ by, in per cent.
    """

    to_json: Callable[[Any], Json]
    from_json: Callable[[Json, str], Any]
    report: Callable[[Run], Any]
    cells: Callable[[Any], tuple[str, str, str]]
    ratio: Callable[[str, Ratio], str]
    noise_pct: float


@dataclass(frozen=True)
class Document:
    """A file that is not a run: what writes it, and the fields by which it is recognised.

    `report` makes a `microbench.report.parts.Report` of it; ValueError names an invalid field.
    """

    written_by: str
    fields: Mapping[str, str | None]  # name -> its value; None: whatever it is
    report: Callable[[Json], Any]


KINDS: dict[str, Kind] = {}  # by `op`; see `kinds`
DOCUMENTS: list[Document] = []  # of several that a file may be, one known by a value counts


@cache
def _load() -> None:
    for module in REGISTERING:
        if find_spec(module.partition(".")[0]):
            import_module(module)


def kinds() -> Mapping[str, Kind]:
    """Every kind by its `op`, but kernels'."""
    _load()
    return KINDS


def document_of(data: Json) -> Document | None:
    """Which document a file holds; None for a run and for anything else."""
    if "schema_version" in data and "check" not in data:
        return None
    _load()
    matching = [
        document for document in DOCUMENTS
        if all(name in data and value in (None, data[name])
               for name, value in document.fields.items())
    ]  # fmt: skip
    return max(matching, key=lambda document: any(document.fields.values()), default=None)
