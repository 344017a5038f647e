"""`diagnose`: traces of a training, read, divided and explained; and the recorder to make them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from e2e.profile.diagnosis import diagnose
from microbench import __version__
from microbench.errors import UserError
from microbench.report.documents import print_sheet
from microbench.report.page import write_document
from microbench.report.screen import make_console
from microbench.results.kinds import document_of
from microbench.results.runfile import check_apart, check_writable, write_text
from microbench.run_output import STDOUT

RECORDER = "halfway_watch.py"


def print_recorder() -> None:
    """Print the recorder, one file that needs torch alone."""
    sys.stdout.write(files("e2e.profile").joinpath(RECORDER).read_text(encoding="utf-8"))


def run_diagnose(
    traces: Sequence[Path],
    base: Path | None,
    *,
    json_path: Path | None,
    html: Path | None,
    verbose: bool,
    quiet: bool,
) -> None:
    """Diagnose a trace, or hold it against that of `base`; print it, and write it where asked.

    UserError for a file that is no trace, and for an output that cannot be written.
    """
    if len(traces) != 1:
        raise UserError("diagnose takes one TRACE; name the one to compare it with by --base")
    check_apart({"--json": json_path, "--html": html})
    for name, path in (("--json", json_path), ("--html", html)):
        if path and path != STDOUT:
            check_writable(path, name)
    paths = [*([base] if base else []), *traces]
    found = diagnose(paths)
    words = [*(["--base", base.name] if base else []), *(path.name for path in traces)]
    document = {
        "check": "diagnose",
        "command": ["python", "-m", "e2e", "diagnose", *words],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "halfway": __version__,
        **asdict(found),
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    plain = json.loads(text)
    kind = document_of(plain)
    assert kind is not None
    if json_path == STDOUT:
        print(text)
    elif json_path:
        write_text(text, json_path)
    console = make_console(stderr=json_path == STDOUT, quiet=quiet)
    print_sheet(kind.sheet(plain), console, details=verbose)
    if html:
        write_document(plain, html)
        console.print(f"Page: {html}")
