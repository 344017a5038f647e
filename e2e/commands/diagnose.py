"""`diagnose`: a training script, run and recorded, or traces of one, divided and explained."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from e2e.commands.record import (
    PROOFS,
    RECORDER,
    TRACE_ENDING,
    Script,
    check_keeps,
    keep,
    labels,
    plan_of,
    proofs_of,
    record,
    recorder,
    traces_in,
)
from e2e.results.terms import EXCHANGE, IDLE, LONG_STEPS, OP_TERMS, PRODUCTS, RESIDUAL, STEP_TERMS
from microbench import __version__
from microbench.errors import UserError
from microbench.report.report import report_of_document
from microbench.report.screen import make_console, print_report
from microbench.results.kinds import DOCUMENT_VERSION, document_of
from microbench.results.runfile import claimed_new, write_text
from microbench.results.types import Json
from microbench.run_output import STDOUT, own_path
from microbench.stopping import scratch_folder
from microbench.streams import clean

if TYPE_CHECKING:  # torch is loaded when there is a trace to read
    from e2e.profile.diagnosis import Diagnosis, Traced

DIAGNOSED, NOTHING_SEEN, SCRIPT_FAILED, CONDITION_MET = 0, 1, 3, 4  # exit codes; 2 is a mistake
APART = "these traces share no communication between GPUs: they are not of one run, or of a CPU"
LONGEST_NAME = 200  # bytes of a trace's name; file systems take 255


def print_recorder(prove: bool) -> None:
    """Print the recorder, or the file that it needs to prove: one file that needs torch alone."""
    sys.stdout.write(recorder(PROOFS if prove else RECORDER))


def diagnose_traces(report: Report, traces: Sequence[Path], base: Path | None) -> int:
    """Diagnose a trace, or hold it against that of `base`, or all ranks of one training.

    Returns the exit code. UserError for a file that is no trace, and for an output that cannot be
    written.
    """
    if not traces or (base and len(traces) > 1):
        raise UserError(
            "diagnose takes SCRIPT.py, one TRACE, or those of all ranks of a training; name a "
            "trace to compare one with by --base"
        )
    for path in filter(None, [base, *traces]):
        if not path.exists():
            raise UserError(f"no such trace file: {path}")
    command = [*(["--base", base.name] if base else []), *(path.name for path in traces)]
    return report.of([*([[base]] if base else []), traces], command)


def diagnose_script(
    report: Report, script: Script, base: tuple[str, ...] | None, kept: Path | None
) -> int:
    """Run a script, record some steps, and diagnose them; return the exit code.

    `base` are the arguments of a second run, which comes first and is what the script is compared
    with. `kept` is a folder that gets the traces. UserError as of `diagnose_traces`.
    """
    runs = [script] if base is None else [replace(script, arguments=base, prove=False), script]
    base_args = [] if base is None else ["--base-args", shlex.join(base)]
    command = [*script.options(), *base_args, *script.words()]
    command += ["--", *script.arguments] if script.arguments else []
    check_keeps(kept)
    with scratch_folder() as folder:
        recorded: list[list[Path]] = []
        for number, run in enumerate(runs):
            place = folder / str(number)  # with the same arguments both have one name
            place.mkdir()
            # Such as "train --lr 3.json.gz".
            name = " ".join([Path(run.words()[-1]).stem, *run.arguments]).replace("/", "_")
            name = os.fsencode(name)[:LONGEST_NAME].decode(errors="ignore")
            out = place / f"{name}{TRACE_ENDING}"
            report.console.print(plan_of(run))
            code = record(run, out, folder, tries=run is script)  # it alone is explained
            traces = traces_in(place)
            if code and traces and proofs_of(out).exists():
                print(clean(f"{_failure(run, code)} while changes were tried"), file=sys.stderr)
            elif code:
                why = f"error: {_failure(run, code)}; nothing is diagnosed"
                print(clean(why), file=sys.stderr)
                return SCRIPT_FAILED
            if not traces:
                return NOTHING_SEEN  # the recorder has said why
            for trace in traces:
                keep(trace, kept)
            recorded.append(traces)
        return report.of(recorded, command, labels(runs))


def _failure(script: Script, code: int) -> str:
    """ "train.py failed: exit code 7"."""
    how = f"failed: exit code {code}"
    if code < 0:
        names = {s.value: s.name for s in signal.Signals}  # but of a real-time signal
        how = f"was ended by {names.get(-code, f'signal {-code}')}"
    return f"{shlex.join(script.words())} {how}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a diagnosis goes: the screen, a file, the exit code. Use it while it is `held`."""

    json_path: Path | None
    fail_on: str | None
    verbose: bool
    quiet: bool
    prove: bool

    @cached_property
    def console(self) -> Console:
        """Where the screen goes, unless the command is quiet."""
        return make_console(stderr=self.json_path == STDOUT, quiet=self.quiet)

    @cached_property
    def path(self) -> Path:
        """Its file: the one that is named, or a new one in the user's state folder."""
        if self.json_path and self.json_path != STDOUT:
            return self.json_path
        return own_path("diagnose")

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold its file while the context is open: no other command writes it.

        UserError, before anything runs, for a file that is there already, cannot be written or that
        another command writes; and for what cannot be read.
        """
        if self.fail_on is not None:
            parse_condition(self.fail_on)
        with claimed_new(self.path, "--json"):
            yield

    def of(
        self, runs: Sequence[Sequence[Path]], command: Sequence[str], names: Sequence[str] = ()
    ) -> int:
        """Diagnose the traces of a run, after those of its base if there is one; print and write
        what was found, and return the exit code. A run over several GPUs has one for each.

        `names` is what the runs are called; without it, their files.
        """
        from e2e.profile.diagnosis import diagnose, diagnose_ranks
        from e2e.profile.step import NothingSeen

        *_, last = runs
        try:
            diagnosis = None
            if len(runs) == 1 < len(last):
                diagnosis = diagnose_ranks(last)
                if diagnosis is None and not names:
                    raise UserError(APART)
                if diagnosis is None:
                    self.console.print(f"{APART}: rank 0 alone is explained.")
            if diagnosis is None:
                replay = None
                if self.prove:  # on the first GPU, or on the CPU where there is none
                    self.console.print("The recorded calls run again, with other sizes and types.")
                    from e2e.profile.replay import replayed
                    from microbench.device.device import describe

                    replay = partial(replayed, describe("auto").target())
                diagnosis = diagnose([traces[0] for traces in runs], replay)
        except NothingSeen as error:
            print(clean(f"error: {error}"), file=sys.stderr)
            return NOTHING_SEEN
        if names:
            named = zip(diagnosis.runs, names, strict=True)
            diagnosis = replace(diagnosis, runs=tuple(replace(r, name=n) for r, n in named))
        self._put(document_of_diagnosis(diagnosis, command))
        met = parse_condition(self.fail_on).found_in(diagnosis.runs[-1]) if self.fail_on else ""
        if met:
            print(clean(f"--fail-on: {met}"), file=sys.stderr)
        return CONDITION_MET if met else DIAGNOSED

    def _put(self, document: Json) -> None:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        plain = json.loads(text)
        kind = document_of(plain)
        assert kind is not None
        report = report_of_document(kind, plain)
        if self.json_path == STDOUT:
            print(text)
        write_text(text, self.path)
        print_report(report, self.console, verbose=self.verbose)
        self.console.print(f"Run file: {self.path}")


def document_of_diagnosis(diagnosis: Diagnosis, command: Sequence[str]) -> Json:
    """What `--json` writes of a diagnosis; `command` are what the command was given."""
    return {
        "kind": "diagnose",
        "schema_version": DOCUMENT_VERSION,
        "check": "diagnose",
        "command": ["python", "-m", "e2e", "diagnose", *command],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "halfway": __version__,
        **asdict(diagnosis),
    }


# ---------------------------------------------------------------- --fail-on


BUSY = "busy"
TERMS = {*IDLE, *OP_TERMS, *STEP_TERMS, LONG_STEPS, RESIDUAL} - {EXCHANGE, PRODUCTS}  # of `train`
_CONDITION = re.compile(r"\s*(.+?)\s*([<>])\s*(\d{1,3}(?:\.\d+)?)\s*%?\s*")


@dataclass(frozen=True)
class Condition:
    """The share of the step that a term takes, or that the GPU is busy, below or above `pct`."""

    name: str
    printed: str
    is_below: bool
    pct: float

    def found_in(self, run: Traced) -> str:
        """What meets the condition, such as "busy is 44.1 %"; "" where nothing does."""
        if self.name == BUSY and run.on_cpu:
            raise UserError("--fail-on busy: no GPU was recorded")
        share = run.busy if self.name == BUSY else run.ms(self.name) / run.step_ms
        met = 100 * share < self.pct if self.is_below else 100 * share > self.pct
        return f"{self.printed} is {100 * share:.1f} %" if met else ""


def parse_condition(text: str) -> Condition:
    """The condition that --fail-on names. UserError for what is none."""
    from e2e.report.diagnosis import WORDS

    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UserError(f"--fail-on: cannot read {text!r}; write busy<70, or casts>5 (%)")
    name, sign, number = match.groups()
    printed = {BUSY: BUSY, **{term: WORDS.get(term, term) for term in sorted(TERMS)}}
    wanted = " ".join(name.lower().split())
    for term, title in printed.items():
        if wanted in (term.lower(), title.lower()):
            return Condition(term, title, sign == "<", float(number))
    raise UserError(f"--fail-on: unknown {name!r}; choose from {', '.join(printed.values())}")
