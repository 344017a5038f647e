"""`diagnose`: a training script, run and recorded, or traces of one, divided and explained."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from e2e.commands.record import (
    PROOFS,
    RECORDER,
    TRACE_ENDING,
    Script,
    check_keeps,
    keep,
    other_arguments,
    plan_of,
    record,
    recorder,
)
from e2e.profile.diagnosis import Diagnosis, Replay, Traced, diagnose
from e2e.profile.partition import NothingSeen
from e2e.results.terms import IDLE, OP_TERMS, STEP_TERMS
from microbench import __version__
from microbench.errors import UserError
from microbench.report.documents import print_sheet
from microbench.report.page import write_document
from microbench.report.screen import make_console
from microbench.results.kinds import document_of
from microbench.results.runfile import check_apart, claimed_new, write_text
from microbench.results.values import Json
from microbench.roofline.rates import read_rates
from microbench.run_output import STDOUT
from microbench.stopping import scratch_folder

DIAGNOSED, NOTHING_SEEN, SCRIPT_FAILED, CONDITION_MET = 0, 1, 3, 4  # exit codes; 2 is a mistake
LONGEST_NAME = 200  # bytes of a trace's name; file systems take 255
PYTHON_FILES = (".py", ".pyw")


def print_recorder(prove: bool) -> None:
    """Print the recorder, or the file that it needs to prove: one file that needs torch alone."""
    sys.stdout.write(recorder(PROOFS if prove else RECORDER))


def is_script(path: Path) -> bool:
    """Whether a file is a training script, by its name, and no trace."""
    return path.suffix in PYTHON_FILES


def diagnose_traces(
    report: Report, traces: Sequence[Path], base: Path | None, other: str | None
) -> int:
    """Diagnose a trace, or hold it against that of `base`; return the exit code.

    `other` names the trace where it is not given as the only one. UserError for a file that is no
    trace, and for an output that cannot be written.
    """
    named = [*traces, *([Path(other)] if other else [])]
    if len(named) != 1:
        raise UserError(
            "diagnose takes one TRACE or SCRIPT.py; name the trace to compare it with by --base"
        )
    paths = [*([base] if base else []), *named]
    words = [*(["--base", base.name] if base else []), *(path.name for path in named)]
    return report.of(paths, words)


def diagnose_script(report: Report, script: Script, other: str | None, kept: Path | None) -> int:
    """Run a script, record some steps, and diagnose them; return the exit code.

    `other` are arguments of a second run, which comes first and is what the script is compared
    with. `kept` is a folder that gets the traces. UserError as of `diagnose_traces`.
    """
    runs: list[list[str]] = [] if other is None else [other_arguments(other)]
    words = [*script.options(), *(["--other", other] if other is not None else [])]
    words.append(script.path.name)
    words += ["--", *script.arguments] if script.arguments else []
    check_keeps(kept)
    with scratch_folder() as folder:
        paths: list[Path] = []
        names = [" ".join([script.path.name, *more]) for more in [*runs, []]]
        for number, more in enumerate([*runs, []]):
            (folder / str(number)).mkdir()  # without arguments both have one name
            out = folder / str(number) / _trace_name([script.path.stem, *more])
            last = number == len(runs)  # it alone is explained, so it alone has to prove
            asked = replace(script, prove=script.prove and last)
            report.say(plan_of(asked))
            code = record(asked, more, out, folder)
            if code:
                print(_failure(script.path, code), file=sys.stderr)
                return SCRIPT_FAILED
            if not out.exists():
                return NOTHING_SEEN  # the recorder has said why
            keep(out, kept)
            paths.append(out)
        return report.of(paths, words, names)


def _trace_name(words: Sequence[str]) -> str:
    """A file name of a script's name and arguments: "train --lr 3.json.gz"."""
    name = os.fsencode(" ".join(words).replace("/", "_"))[:LONGEST_NAME]
    return name.decode(errors="ignore") + TRACE_ENDING


def _failure(path: Path, code: int) -> str:
    """ "error: train.py failed: exit code 7; nothing is diagnosed"."""
    how = f"was ended by {_signal_name(-code)}" if code < 0 else f"failed: exit code {code}"
    return f"error: {path} {how}; nothing is diagnosed"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Report:
    """Where a diagnosis goes: the screen, files, and the exit code.

    UserError, before anything runs, for two outputs of one name and for a condition that cannot be
    read. Whoever uses it does so while it is `held`.
    """

    def __init__(
        self, *, json_path: Path | None, html: Path | None, fail_on: str | None, verbose: bool,
        quiet: bool, prove: bool, ceilings: Path | None = None,
    ) -> None:  # fmt: skip
        check_apart({"--json": json_path, "--html": html})
        self._ceilings = ceilings
        if ceilings:
            read_rates(ceilings)
        self._json, self._html, self._verbose = json_path, html, verbose
        self._prove = prove
        self._condition = parse_condition(fail_on) if fail_on is not None else None
        self._console = make_console(stderr=json_path == STDOUT, quiet=quiet)

    def say(self, text: str) -> None:
        """Print a sentence where the screen goes, unless the command is quiet."""
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold its files while the context is open: no other command writes them.

        UserError for one that is there already, cannot be written, or that another command writes.
        """
        with ExitStack() as stack:
            for name, path in (("--json", self._json), ("--html", self._html)):
                if path and path != STDOUT:
                    stack.enter_context(claimed_new(path, name))
            yield

    def of(self, paths: Sequence[Path], words: Sequence[str], names: Sequence[str] = ()) -> int:
        """Diagnose these traces, print and write what was found, and return the exit code.

        `names` is what the runs are called; without it, their files.
        """
        try:
            found = diagnose(paths, self._ceilings, _replay() if self._prove else None)
        except NothingSeen as error:
            print(f"error: {error}", file=sys.stderr)
            return NOTHING_SEEN
        runs = (replace(run, name=name) for run, name in zip(found.runs, names, strict=True))
        found = replace(found, runs=tuple(runs)) if names else found
        self._put(document_of_diagnosis(found, words))
        *_, last = found.runs
        met = self._condition.found_in(last) if self._condition else ""
        if met:
            print(f"--fail-on: {met}", file=sys.stderr)
        return CONDITION_MET if met else DIAGNOSED

    def _put(self, document: Json) -> None:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        plain = json.loads(text)
        kind = document_of(plain)
        assert kind is not None
        if self._json == STDOUT:
            print(text)
        elif self._json:
            write_text(text, self._json)
        print_sheet(kind.sheet(plain), self._console, details=self._verbose)
        if self._html:
            write_document(plain, self._html)
            self._console.print(f"Page: {self._html}")


def _replay() -> Replay:
    """Replays on the first GPU, or on the CPU where there is none."""
    from e2e.profile.replays import replayed
    from microbench.device.device import describe

    return partial(replayed, describe("auto").target())


def document_of_diagnosis(found: Diagnosis, words: Sequence[str]) -> Json:
    """What `--json` writes of a diagnosis; `words` are what the command was given."""
    return {
        "check": "diagnose",
        "command": ["python", "-m", "e2e", "diagnose", *words],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "halfway": __version__,
        **asdict(found),
    }


# ---------------------------------------------------------------- --fail-on


BUSY = "busy"
NAMES = (BUSY, *IDLE, *OP_TERMS, *STEP_TERMS)
_CONDITION = re.compile(r"\s*([a-z ]+?)\s*([<>])\s*(\d{1,3}(?:\.\d+)?)\s*%?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Condition:
    """The share of the step that a term takes, or that the GPU is busy, below or above `pct`."""

    name: str
    is_below: bool
    pct: float

    def found_in(self, run: Traced) -> str:
        """What meets the condition, such as "busy is 44.1 %"; "" where nothing does."""
        share = run.busy if self.name == BUSY else run.ms(self.name) / run.step_ms
        met = 100 * share < self.pct if self.is_below else 100 * share > self.pct
        return f"{self.name} is {100 * share:.1f} %" if met else ""


def parse_condition(text: str) -> Condition:
    """The condition that --fail-on names. UserError for what is none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UserError(f"--fail-on: cannot read {text!r}; write busy<70, or loader wait>5 (%)")
    name, sign, number = found.groups()
    name = " ".join(name.lower().split())
    if name not in NAMES:
        raise UserError(f"--fail-on: unknown {name!r}; choose from {', '.join(NAMES)}")
    return Condition(name, sign == "<", float(number))
