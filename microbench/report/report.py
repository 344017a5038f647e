"""The report of a file: of its kernels or other results, or of the document that it is.

What all kinds share is added here: what was measured on, and what makes the whole run doubtful.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from microbench import fmt
from microbench.errors import UserError
from microbench.report import kernels, parts
from microbench.results import runfile
from microbench.results.codec import decode
from microbench.results.kinds import DOCUMENT_VERSION, Document, document_of, kinds
from microbench.results.types import Json, Run
from microbench.verdict import load_warnings

SOFTWARE = {
    "torch": "torch",
    "cuda": "CUDA",
    "triton": "Triton",
    "cublas": "cuBLAS",
    "cupy": "CuPy",
    "python": "Python",
    "project": "halfway",
}
HEADER = ("command", "device", "software", "finished_at")  # of a document that says them


def report_of(run: Run) -> parts.Report:
    """The report of a run: of its kernels, or of its other results."""
    ops = [entry.case.op for entry in run.others]
    whole: parts.Report = kinds()[ops[0]].report(run) if ops else kernels.report(run)
    load = [(warning, "") for warning in load_warnings(run.settings)]
    unfinished = "the run is not finished: continue it with --resume FILE"
    doubtful = [parts.Line("Doubt", unfinished)] if run.finished_at is None else []
    notes: Sequence[str] = run.settings.get("notes", ())
    return replace(
        whole,
        title=whole.title or _title(run),
        answer=[*whole.answer, *doubtful, *parts.doubts(load, len(run.entries))],
        parts=[*whole.parts, parts.Part("Notes on the data", below=notes, level=parts.VERBOSE)],
        about=_about(run, whole.about),
        device=run.device_name,
    )


def report_of_document(document: Document, data: Json) -> parts.Report:
    """The report of a file that is not a run. ValueError names an invalid field."""
    made: parts.Report = document.report(data)
    title = made.title or f"Output of {document.written_by}"
    if not {"device", "command"} <= data.keys():
        return replace(made, title=title)
    *names, when = HEADER
    facts = {name: data.get(name) for name in names}
    at = data.get(when)
    run = decode(Run, {**facts, "started_at": at, "finished_at": at}, "")
    return replace(made, title=title, about=_about(run, made.about), device=run.device_name)


def report_of_file(path: Path) -> parts.Report:
    """The report of a run file or of another document. UserError for what cannot be read."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: halfway report {path}")
    data = runfile.read_json(path)
    document = document_of(data)
    if document is None:
        return report_of(runfile.as_run(data, path))
    if "schema_version" in data:
        runfile.check_version(data, DOCUMENT_VERSION, path)
    try:
        return report_of_document(document, data)
    except (ValueError, OverflowError) as error:
        raise runfile.damaged(path, error) from None


def overview(reports: Mapping[str, parts.Report]) -> parts.Report:
    """What several files, by name, say: each its finding, below its name."""
    cards = list(dict.fromkeys(report.device for report in reports.values()))
    title = ", ".join(filter(None, [fmt.count(len(reports), "file"), *cards]))
    findings = [parts.Part(name, below=[report.finding]) for name, report in reports.items()]
    return parts.Report(title, [parts.Line("", title)], findings)


def _title(run: Run) -> str:
    """ "gemm on NVIDIA H200", "resnet50 on NVIDIA H200": the command's first words."""
    words = run.command[3:] if "-m" in run.command else run.command[1:]
    named = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), words))
    return f"{named or 'A run'} on {run.device_name}"


def _about(run: Run, conditions: Sequence[str]) -> list[str]:
    """The device and the software; the conditions and when; the command."""
    software = [
        f"{title} {run.software[name]}"
        for name, title in SOFTWARE.items()
        if run.software.get(name)
    ]
    driver, limit = run.device.get("driver"), run.device.get("power_limit_w")
    machine = [
        run.device_name,
        *([f"driver {driver}"] if driver else []),
        *software,
        *([f"power limit {limit:.0f} W"] if isinstance(limit, int | float) else []),
    ]
    when = run.started_at.replace("T", " ").replace("+00:00", " UTC")
    return [", ".join(machine), ", ".join([*conditions, when]), f"$ {' '.join(run.command)}"]
