"""What a file may hold: results that other packages measure, and documents that are not runs.

`show`, `compare` and `--resume` read every run file, whichever package measured it. A kind is found
by the `op` of a result; its modules are imported when a file holds one. So microbench imports
nothing of the packages above it, and adding a kind is one entry here. `show` also prints what other
commands write; such a document is recognised by its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from microbench.results.values import Json, Ratio

if TYPE_CHECKING:
    from rich.text import Text

    from microbench.results.types import Run

Section = tuple[str, Sequence["Text"]]  # title, lines


class Codec(Protocol):
    """A module that turns a kind's results into JSON objects and back."""

    def to_json(self, entry: Any) -> Json:
        """The result as the schema writes it."""
        ...

    def from_json(self, data: Json, where: str) -> Any:
        """The inverse of `to_json`.

        ValueError names the field that is invalid; `where` locates the result.
        """
        ...


class Report(Protocol):
    """A module that shows the results of its kinds."""

    FIRST: ClassVar[Mapping[str, str]]  # op -> title of a comparison's column for `cells`'s first

    def conditions(self, run: Run) -> list[str]:
        """The conditions that all of its results share, for the header."""
        ...

    def sections(self, run: Run, width: int, *, details: bool) -> list[Section]:
        """The parts of the screen as (title, lines), no wider than `width` characters."""
        ...

    def parts(self, run: Run) -> list[Any]:
        """Its tables with their titles, as `microbench.report.table.Part`."""
        ...

    def summary(self, run: Run) -> list[str]:
        """Its conclusion in sentences; a detail of the one before begins with a space."""
        ...

    def warnings(self, run: Run) -> list[Text]:
        """What makes its numbers unreliable."""
        ...

    def csv(self, run: Run) -> tuple[Sequence[str], list[dict[str, Any]]]:
        """(names of the columns, rows). Units are in the names; values are raw."""
        ...

    def chart(self, run: Run) -> Any:
        """An Altair chart. UserError when there is nothing to draw."""
        ...

    def cells(self, case: Any) -> tuple[str, str, str]:
        """How a comparison names a case: (what varies most, what was measured, options)."""
        ...

    def ratio(self, op: str, ratio: Ratio) -> str:
        """A ratio of two times of results of kind `op`, with its interval, as text."""
        ...


@dataclass(frozen=True)
class Kind:
    """The modules of one kind of result, by name.

    `noise_pct` is what two runs of one case may differ by, in per cent.
    """

    codec_module: str
    report_module: str
    noise_pct: float

    @property
    def codec(self) -> Codec:
        """The module that reads and writes it."""
        return cast(Codec, import_module(self.codec_module))

    @property
    def report(self) -> Report:
        """The module that shows it."""
        return cast(Report, import_module(self.report_module))


KINDS: Mapping[str, Kind] = {
    "train": Kind("e2e.results.codec", "e2e.report.run_report", noise_pct=3.0),
    # Processes share cores as the system likes.
    "load": Kind("e2e.results.loader_types", "e2e.report.run_report", noise_pct=5.0),
    "ceiling": Kind("microbench.results.ceilings", "microbench.report.ceilings", noise_pct=2.0),
}


def reports(run: Run) -> list[Report]:
    """The modules that show the results in a run that are not kernels', each once."""
    ops = dict.fromkeys(entry.case.op for entry in run.others)
    modules = dict.fromkeys(KINDS[op].report_module for op in ops)
    return [cast(Report, import_module(module)) for module in modules]


@dataclass(frozen=True)
class Document:
    """A file that is not a run: what writes it, and the fields by which it is recognised.

    `sheet_function` is "module:function": it takes the document and returns a Sheet, or raises
    ValueError with the name of an invalid field.
    """

    written_by: str
    fields: Mapping[str, str | None]  # name -> its value; None: whatever it is
    sheet_function: str

    def sheet(self, data: Json) -> Any:
        """The document as a table, a `microbench.report.documents.Sheet`.

        ValueError for an invalid field.
        """
        module, _, function = self.sheet_function.partition(":")
        return getattr(import_module(module), function)(data)


DOCUMENTS = (
    Document("fleet", {"check": "fleet"}, "microbench.report.fleet:sheet"),
    Document("diagnose", {"check": "diagnose"}, "e2e.report.diagnosis:sheet"),
    Document("a check of the method (tests/)", {"check": None},
             "microbench.report.documents:check"),
    Document("compare --json", dict.fromkeys(("counts", "noise_pct", "rows")),
             "microbench.report.documents:comparison"),
    Document("compare --json of several runs", dict.fromkeys(("baseline", "comparisons")),
             "microbench.report.documents:comparisons"),
    Document("timm's benchmark.py", dict.fromkeys(("model", "train_samples_per_sec")),
             "microbench.report.documents:figures"),
    Document("examples/plain_dataloader.py", dict.fromkeys(("workers", "images_per_s", "torch")),
             "microbench.report.documents:figures"),
)  # fmt: skip


def document_of(data: Json) -> Document | None:
    """Which of DOCUMENTS a file holds; None for a run and for anything else."""
    if "schema_version" in data:
        return None
    for document in DOCUMENTS:
        fields = document.fields.items()
        if all(name in data and value in (None, data[name]) for name, value in fields):
            return document
    return None
