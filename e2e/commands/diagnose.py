"""`diagnose`: a training script, run and recorded, or traces of one, divided and explained."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from e2e.interrupts import programs_end_with_us
from e2e.profile.diagnosis import Diagnosis, Replay, Traced, diagnose, diagnose_ranks
from e2e.profile.halfway_watch import LEAD_IN
from e2e.profile.step import NothingSeen
from e2e.report.diagnosis import WORDS
from e2e.results.terms import EXCHANGE, IDLE, OP_TERMS, PRODUCTS, RESIDUAL, STEP_TERMS
from microbench import __version__
from microbench.errors import UserError
from microbench.own_packages import ROOT
from microbench.report.documents import print_sheet
from microbench.report.export import write_document
from microbench.report.screen import make_console
from microbench.results.kinds import document_of
from microbench.results.runfile import check_apart, claimed_new, probe, write_text
from microbench.results.types import Json
from microbench.roofline.rates import read_rates
from microbench.run_output import STDOUT
from microbench.stopping import scratch_folder
from microbench.streams import clean

RECORDER, PROOFS = "halfway_watch.py", "halfway_prove.py"
TRACE_ENDING, PROOFS_ENDING = ".json.gz", ".proofs.json"
PYTHON_FILES = (".py", ".pyw")
LAUNCHERS = {  # the module that each runs
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
UNASKED = "amp,float32"  # what is tried after every recording: autocast off, or on
MOST_LABEL = 60  # characters


@dataclass(frozen=True)
class Script:
    """A script or a module, its arguments, and how its steps are recorded.

    `launcher` are the words that start it on several GPUs: ("torchrun", "--nproc_per_node", "2").
    `after`, `bare` and `traced` are numbers of steps: of warm-up, timed without the profiler, and
    recorded. `whole`: it goes on to its end after that. `prove`: changes are tried in more steps.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    launcher: tuple[str, ...] = ()
    python: str | None = None
    after: int = 20
    bare: int = 20
    traced: int = 3
    whole: bool = False
    prove: bool = False
    quiet: bool = False

    def options(self) -> list[str]:
        """The options of `halfway diagnose` that are not as by default: ["--prove"]."""
        numbers = ("after", "bare", "traced")
        given = [name for name in numbers if getattr(self, name) != getattr(Script, name)]
        words = [word for name in given for word in (f"--{name}", str(getattr(self, name)))]
        return words + [f"--{name}" for name in ("whole", "prove") if getattr(self, name)]

    def words(self) -> list[str]:
        """What starts it, without folders: ["torchrun", "train.py"]."""
        name = self.name if self.is_module else Path(self.name).name
        return [*self.launcher, *(["-m"] if self.is_module else []), name]


def script_of(words: Sequence[str], python: str | None, **options: Any) -> Script | None:
    """The script that these words start, with `options` of Script; None where they name no script.

    It is SCRIPT.py, -m MODULE, or a file that Python runs by its first line, such as a command of
    an installed package; the first two also after a launcher. UserError for one without.
    """
    if not words:
        return None
    first, *rest = words
    if first in LAUNCHERS:
        python = python or _interpreter(shutil.which(first))
        for place, word in enumerate(rest):
            is_module = word in ("-m", "--module")
            if is_module or Path(word).suffix in PYTHON_FILES:
                started = script_of(["-m" if is_module else word, *rest[place + 1 :]], python)
                if started:
                    return replace(started, launcher=(first, *rest[:place]), **options)
        raise UserError(f"{first} starts no SCRIPT.py and no -m MODULE here")
    if first == "-m":
        return Script(rest[0], tuple(rest[1:]), True, (), python, **options) if rest else None
    if Path(first).suffix in PYTHON_FILES:
        return Script(first, tuple(rest), False, (), python, **options)
    file = first if Path(first).is_file() else shutil.which(first)
    python = python or _interpreter(file)
    return Script(file, tuple(rest), False, (), python, **options) if file and python else None


def _interpreter(file: str | None) -> str | None:
    """The Python that a file's first line names; None for a file that is no Python script."""
    with suppress(OSError, UnicodeDecodeError), Path(file or "").open(encoding="utf-8") as opened:
        line = opened.readline(1000)
        names = [word for word in line[2:].split() if "python" in Path(word).name]
        if line.startswith("#!") and names:
            return names[0] if Path(names[0]).is_file() else sys.executable
    return None


def labels(runs: Sequence[Script]) -> list[str]:
    """The runs by their arguments: "train.py --amp". Of long ones what differs is shown."""
    same = 0
    if len(runs) > 1 and max(len(shlex.join(run.arguments)) for run in runs) > MOST_LABEL:
        pairs = zip(runs[0].arguments, runs[1].arguments, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    found: list[str] = []
    for run in runs:
        words = [run.words()[-1], *(["…"] if same else []), *run.arguments[same:]]
        text = " ".join(word if word == "…" else shlex.quote(word) for word in words)
        found.append(text if len(text) <= MOST_LABEL else text[: MOST_LABEL - 1] + "…")
    return found


def recorder(name: str = RECORDER) -> str:
    """The text of the recorder, or of what it needs to prove: one file that needs torch alone."""
    return files("e2e.profile").joinpath(name).read_text(encoding="utf-8")


def plan_of(script: Script) -> str:
    """ "train.py runs for 44 steps, or 48 on a GPU (20 of warm-up, …), and is then ended".

    UserError where the script or its interpreter is missing.
    """
    if not script.is_module and not Path(script.name).is_file():
        raise UserError(f"no such script: {script.name}")
    if script.python and not shutil.which(script.python):
        raise UserError(f"--python {script.python}: no such program")
    recorded = LEAD_IN + script.traced
    steps = script.after + script.bare + recorded
    end = "then goes on to its end" if script.whole else "is then ended (--whole lets it go on)"
    end = "is ended after some hundred more, in which changes are tried" if script.prove else end
    return (
        f"{shlex.join(script.words())} runs for {steps} steps, or {steps + recorded} on a GPU "
        f"({script.after} of warm-up, {script.bare} timed, {recorded} recorded, on a GPU twice), "
        f"and {end}."
    )


def record(script: Script, out: Path, folder: Path, tries: bool) -> int:
    """Run the script and return its exit code. `tries`: changes may be tried in it.

    The trace is in `out` then, or in a file beside it for each rank, unless the recorder said why
    there is none. `folder` is for the recorder. UserError where the interpreter does not start.
    """
    for name in (RECORDER, PROOFS):
        (folder / name).write_text(recorder(name), encoding="utf-8")
    words = [str(folder / RECORDER), "--out", str(out), "--quiet"]
    for name in ("after", "bare", "traced"):
        words += [f"--{name}", str(getattr(script, name))]
    words += [] if script.quiet else ["--progress"]
    words += [] if script.whole else ["--then-exit"]
    words += ["--prove"] if tries and not script.whole else []
    words += ["--only", UNASKED] if tries and not script.prove else []
    words += [*(["-m"] if script.is_module else []), script.name, *script.arguments]
    before = ["-m", LAUNCHERS[script.launcher[0]], *script.launcher[1:]] if script.launcher else []
    python = script.python or sys.executable
    sys.stdout.flush()
    try:
        with programs_end_with_us() as begin:
            done = subprocess.run(
                [python, *before, *words], preexec_fn=begin,
                env=_without_ours() if script.python else None,
            )  # fmt: skip
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from None
    return done.returncode


def traces_in(folder: Path) -> list[Path]:
    """The traces that a run has left there, by rank."""
    return sorted(folder.glob("*" + TRACE_ENDING), key=lambda path: (len(path.name), path.name))


def proofs_of(trace: Path) -> Path:
    """Where the recorder writes what was tried: it is there as soon as that begins."""
    return trace.with_name(trace.name.removesuffix(TRACE_ENDING) + PROOFS_ENDING)


def _without_ours() -> dict[str, str]:
    """The environment without our folder in PYTHONPATH: another interpreter has its own packages.

    Where nothing else is in PYTHONPATH it is not set: an empty one would name the working folder.
    """
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(place for place in places if Path(place).resolve() != ROOT)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return others | ({"PYTHONPATH": kept} if kept else {})


def arguments_in(option: str, text: str) -> tuple[str, ...]:
    """The words of an option, as a shell splits them. UserError for an open quotation."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}") from None


def check_keeps(folder: Path | None) -> None:
    """Make the folder that --keep names, if it does. UserError where it takes no file."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--keep {folder}: {error.strerror}") from None
        probe(folder / "trace", "--keep")


def keep(trace: Path, folder: Path | None) -> None:
    """Copy a trace, and what was tried, to the folder that --keep names, if it does.

    A file of its name stays, and the trace gets a number. UserError where it cannot be written.
    """
    if folder is None:
        return
    stem = trace.name.removesuffix(TRACE_ENDING)
    try:
        for number in itertools.count(1):
            kept = folder / f"{stem}{'' if number == 1 else f'-{number}'}{TRACE_ENDING}"
            with suppress(FileExistsError), kept.open("xb") as file, trace.open("rb") as whole:
                try:
                    shutil.copyfileobj(whole, file)
                    file.flush()
                except BaseException:
                    kept.unlink(missing_ok=True)
                    raise
                if proofs_of(trace).exists():
                    shutil.copyfile(proofs_of(trace), proofs_of(kept))
                return
    except OSError as error:
        raise UserError(f"--keep {folder}: {error.strerror}") from None


DIAGNOSED, NOTHING_SEEN, SCRIPT_FAILED, CONDITION_MET = 0, 1, 3, 4  # exit codes; 2 is a mistake
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
    words = [*(["--base", base.name] if base else []), *(path.name for path in traces)]
    return report.of([*([[base]] if base else []), traces], words)


def diagnose_script(
    report: Report, script: Script, base: tuple[str, ...] | None, kept: Path | None,
    said: Sequence[str],
) -> int:  # fmt: skip
    """Run a script, record some steps, and diagnose them; return the exit code.

    `base` are the arguments of a second run, which comes first and is what the script is compared
    with; `said` are the options that name them. `kept` is a folder that gets the traces. UserError
    as of `diagnose_traces`.
    """
    runs = [script] if base is None else [replace(script, arguments=base, prove=False), script]
    words = [*script.options(), *said, *script.words()]
    words += ["--", *script.arguments] if script.arguments else []
    check_keeps(kept)
    with scratch_folder() as folder:
        found: list[list[Path]] = []
        for number, run in enumerate(runs):
            place = folder / str(number)  # with the same arguments both have one name
            place.mkdir()
            out = place / _trace_name([Path(run.words()[-1]).stem, *run.arguments])
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
            found.append(traces)
        return report.of(found, words, labels(runs))


def _trace_name(words: Sequence[str]) -> str:
    """A file name of a script's name and arguments: "train --lr 3.json.gz"."""
    name = os.fsencode(" ".join(words).replace("/", "_"))[:LONGEST_NAME]
    return name.decode(errors="ignore") + TRACE_ENDING


def _failure(script: Script, code: int) -> str:
    """ "train.py failed: exit code 7"."""
    how = f"failed: exit code {code}"
    if code < 0:
        names = {one.value: one.name for one in signal.Signals}  # but of a real-time signal
        how = f"was ended by {names.get(-code, f'signal {-code}')}"
    return f"{shlex.join(script.words())} {how}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a diagnosis goes: the screen, files, and the exit code. Use it while it is `held`."""

    json_path: Path | None
    html: Path | None
    fail_on: str | None
    verbose: bool
    quiet: bool
    prove: bool
    ceilings: Path | None = None

    @cached_property
    def console(self) -> Console:
        """Where the screen goes, unless the command is quiet."""
        return make_console(stderr=self.json_path == STDOUT, quiet=self.quiet)

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold its files while the context is open: no other command writes them.

        UserError, before anything runs, for a file that is there already, cannot be written, that
        another command writes or that has two names; and for what cannot be read.
        """
        outputs = {"--json": self.json_path, "--html": self.html}
        check_apart(outputs)
        if self.ceilings:
            read_rates(self.ceilings)
        if self.fail_on is not None:
            parse_condition(self.fail_on)
        with ExitStack() as stack:
            for name, path in outputs.items():
                if path and path != STDOUT:
                    stack.enter_context(claimed_new(path, name))
            yield

    def of(
        self, runs: Sequence[Sequence[Path]], words: Sequence[str], names: Sequence[str] = ()
    ) -> int:
        """Diagnose the traces of a run, after those of its base if there is one; print and write
        what was found, and return the exit code. A run over several GPUs has one for each.

        `names` is what the runs are called; without it, their files.
        """
        *_, last = runs
        try:
            found = self._of_ranks(last, bool(names)) if len(runs) == 1 < len(last) else None
            if found is None:
                replay = _replay() if self.prove else None
                found = diagnose([traces[0] for traces in runs], self.ceilings, replay)
        except NothingSeen as error:
            print(clean(f"error: {error}"), file=sys.stderr)
            return NOTHING_SEEN
        if names:
            named = (replace(run, name=name) for run, name in zip(found.runs, names, strict=True))
            found = replace(found, runs=tuple(named))
        self._put(document_of_diagnosis(found, words))
        met = parse_condition(self.fail_on).found_in(found.runs[-1]) if self.fail_on else ""
        if met:
            print(clean(f"--fail-on: {met}"), file=sys.stderr)
        return CONDITION_MET if met else DIAGNOSED

    def _of_ranks(self, traces: Sequence[Path], or_first: bool) -> Diagnosis | None:
        """None, where the first is to do, if they have nothing in common: on a CPU, say."""
        try:
            return diagnose_ranks(traces, self.ceilings)
        except NothingSeen:
            raise
        except UserError as error:
            if not or_first:
                raise
            self.console.print(f"{error}: rank 0 alone is explained.")
            return None

    def _put(self, document: Json) -> None:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        plain = json.loads(text)
        kind = document_of(plain)
        assert kind is not None
        if self.json_path == STDOUT:
            print(text)
        elif self.json_path:
            write_text(text, self.json_path)
        print_sheet(kind.sheet(plain), self.console, details=self.verbose)
        if self.html:
            write_document(plain, self.html)
            self.console.print(f"Page: {self.html}")


def _replay() -> Replay:
    """Replays on the first GPU, or on the CPU where there is none."""
    from e2e.profile.replay import replayed
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
# As reports print them, and as files have them.
TERMS = {*IDLE, *OP_TERMS, *STEP_TERMS, RESIDUAL} - {EXCHANGE, PRODUCTS}  # these are of `train`
PRINTED = {term: WORDS.get(term, term) for term in sorted(TERMS)}
NAMES = {BUSY: BUSY, **{name.lower(): term for term in PRINTED for name in (term, PRINTED[term])}}
_CONDITION = re.compile(r"\s*(.+?)\s*([<>])\s*(\d{1,3}(?:\.\d+)?)\s*%?\s*")


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
        return f"{PRINTED.get(self.name, self.name)} is {100 * share:.1f} %" if met else ""


def parse_condition(text: str) -> Condition:
    """The condition that --fail-on names. UserError for what is none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UserError(f"--fail-on: cannot read {text!r}; write busy<70, or casts>5 (%)")
    name, sign, number = found.groups()
    term = NAMES.get(" ".join(name.lower().split()))
    if term is None:
        known = ", ".join([BUSY, *PRINTED.values()])
        raise UserError(f"--fail-on: unknown {name!r}; choose from {known}")
    return Condition(term, sign == "<", float(number))
