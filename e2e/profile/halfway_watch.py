"""Watch a training loop: time steps without a profiler, then record a few with torch's profiler.

One file, standard library and torch only (Python 3.9 or newer, torch 2.0 or newer, CPU or CUDA), so
that it can be copied to a cluster where halfway is not installed:

    python halfway_watch.py train.py --your --arguments        # the script runs unchanged
    python halfway_watch.py -m package.module --arguments      # as python -m

    import halfway_watch                                       # or around a loop
    with halfway_watch.watch(out="run.json.gz") as w:
        for batch in loader:
            train_step(batch)
            w.step()

The file that it writes holds operator names, tensor shapes and types, times, settings of torch, and
names and lines of the script's files; no data, no weights, and no paths.
`halfway diagnose run.json.gz` reads it, on any machine.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib.util
import inspect
import json
import os
import re
import runpy
import statistics
import sys
import threading
import time
import types
import warnings
import weakref
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from typing import Any

VERSION = 2
OUT = "halfway-trace.json.gz"
AFTER, BARE, TRACED = 20, 20, 3  # steps: warm-up, timed without the profiler, recorded
Function = Callable[..., Any]
torch: Any = None  # imported by the first Watch: who only reads constants need not wait for it
_is_compiling: Callable[[], bool] = bool  # torch's own since 2.1; in compiled code it is a constant
LEAD_IN = 1  # recorded before those that count: the profiler's first step is slow
PREFIX = "halfway::"  # of the names of modules in the trace
OURS = "ProfilerStep#halfway"  # marks a step; the script's own profiler marks its own
KEY = "halfway"  # of our facts in the trace
PROOFS = "halfway_prove.py"
OPTIMIZER, CALL, LOOP = "optimizer step", "call of the model", "step"  # what a step is
WORK, CALLS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__")
SAMPLE_S = 0.002  # between looks at where the script is
SWITCH_S = 0.0002  # after which a look is let in
# Where a step without the profiler takes so many times as long as usual, it is looked where the
# script is, so often: seconds between looks.
LONG, LONG_LOOK_S = 3, 0.02
COMPILERS = ("_dynamo", "_inductor")  # packages of torch.compile
SAID_S, SAID_LIVE_S = 10.0, 0.5  # between lines of progress, in a file and on a terminal
# What torch writes of the machine, in the first and last bytes of a trace.
NAMES, ENDS = re.compile(rb'"(host_name|traceName|hostname)":\s*"[^"]*"'), 1 << 16
NO_NAME = rb'"\1": ""'
# The profiler writes lines of its own between those of a script, and an error where no GPU is.
PROFILER_LOG, SILENT = "KINETO_LOG_LEVEL", "99"
# Some versions warn that a second cycle replaces the first; each of ours is exported before that.
# acc_events=True would silence it too, but it makes stopping take ten times as long.
CLEARS_EVENTS = "Warning: Profiler clears events"
WHAT_COUNTS = (
    "A step is a step() of the first torch optimizer in this process or, without one, a call of "
    "the model (in a loop without both call halfway_watch's w.step(); where a script starts "
    "processes use torchrun, or run what they run by -m MODULE)."
)
LATE = (
    "The optimizer's step is inside of a backward pass, of compiled code or of a captured graph, "
    "and no module is called between two: call w.step() after each (halfway_watch.watch)."
)


class Watch:
    """Counts steps, times `bare` of them after `after`, records `traced` more, and writes `out`.

    Where CUDA is in use they are recorded twice: kernels and calls of the runtime alone, which
    slows a step least, then operators too. After that it does nothing. `module_names` records which
    module launched what. `then_exit` ends the program (SystemExit) once the file is written.
    `quiet`: only what goes wrong is said; `progress`: how many steps are left, too. `prove`: after
    that, changes are tried in some hundred more steps by halfway_prove.py, which must lie beside
    this file (ValueError), and the program is ended; a list of names: these changes alone.
    """

    def __init__(
        self, out: str = OUT, after: int = AFTER, bare: int = BARE, traced: int = TRACED,
        module_names: bool = True, then_exit: bool = False, quiet: bool = False,
        say: Callable[[str], None] | None = None, prove: bool | Sequence[str] = False,
        progress: bool = False,
    ) -> None:  # fmt: skip
        _import_torch()
        for name, value, least in (("after", after, 0), ("bare", bare, 2), ("traced", traced, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        self._shown = _of_this_rank(out)
        self.out = os.path.abspath(self._shown)  # the script may change its folder
        self.after, self.bare, self.traced = after, bare, traced
        self.module_names, self.then_exit = module_names, then_exit or bool(prove)
        self.model: Any = None  # where it is known before: its parts have their paths in it
        self.bare_s: list[float] = []
        self.steps, self.unit, self.done, self.trying = 0, LOOP, False, ""
        self._say, self._quiet = say or _say, quiet
        self._progress = progress and _rank() == 0
        self._began_s = self._said_s = time.monotonic()
        self._only = None if isinstance(prove, bool) else tuple(prove)
        self._proofs: Any = _proofs() if prove else None
        self._prover: Any = None
        self._process = os.getpid()
        self._open, self._looking = ExitStack(), ExitStack()  # end what is open: in all, in a phase
        self._leaving = False  # SystemExit was raised
        self._on = 0  # steps since: the script may end something, or have caught it and train on
        self.late = False  # a step ended where nothing may begin
        self._was_late = False  # and one has been counted since
        self._profiles: weakref.WeakSet[Any] | None = None  # that were prepared, ours too
        self._met_another = False
        self._bare: _UnprofiledSteps | None = None
        self._profiler: Any = None  # of ours, that runs
        self._naming = False  # whether it is that of the second recording
        self._open_step: Any = None
        self._calls: _Calls | None = None
        self._ends_s: deque[float] = deque(maxlen=AFTER)  # of the last steps
        self._begin(0)

    def step(self) -> None:
        """Call it at the end of each training step. What goes wrong is said, not raised.

        Within a backward pass, a compiled region or the capture of a graph nothing can begin or
        end: the step's end is then taken as the next call of the model begins.
        """
        if _inside():  # torch repeats this assignment where compiled code runs
            self.late = True
        elif os.getpid() == self._process:
            if self._leaving:
                self._on += 1
                if self._on > AFTER:
                    self._leave()
            elif not self.done or self._prover is not None:
                self._guarded(self._step)()

    def count(self, unit: str) -> None:
        """Say what a step is: a call of the model, until there is an optimizer."""
        if unit != self.unit and not self.done:
            self.unit = unit
            self._guarded(self._begin)(0)
            self._calls = self._calls or _Calls(self._open, self._guarded(self._called))

    def excuses(self, error: Exception) -> bool:
        """Whether the script raised it in steps that only serve to try changes; they end then."""
        if self._prover is None:
            return False
        self._prover.end(_first_line(error))
        if self._only is None:
            self._say(f"the script raised this while changes were tried: {_first_line(error)}")
        return True

    def end(self, failed: bool = False) -> None:
        """End the watch. A recording that is not complete is written if a whole step is in it.

        `failed`: the loop raised, which says more than that its steps were too few.
        """
        if os.getpid() == self._process:
            self._guarded(self._end)(failed)

    def _guarded(self, function: Function) -> Function:
        """The same, but what it raises ends the recording and not the training."""

        def guarded(*arguments: Any) -> None:
            if _is_compiling():
                return
            try:
                function(*arguments)
            except Exception as error:
                with suppress(Exception):
                    self._stop()
                self._say(f"nothing more is recorded: {_first_line(error)}")

        return guarded

    # ------------------------------------------------------------ steps

    def _called(self, first: bool) -> None:
        """The model is called, perhaps for the first time, and nothing else is open."""
        if self.late or (self.unit == CALL and not first):
            self.late, self._was_late = False, self.late
            self.step()
        elif self.unit == CALL:
            self._begin(0)  # the first step begins

    def _step(self) -> None:
        if self._prover is not None:
            self._prove()
        elif self._profiler is None and self._another_runs():
            # Its steps are slower than without it: timing begins anew when it has ended.
            self._begin(min(self.steps, self.after - 1))
        else:
            self.steps += 1
            self._ends_s.append(time.monotonic())
            self._tell_progress()
            self._go_on()

    def _go_on(self) -> None:
        if self._bare is not None:
            self._bare.step()
            if self.steps == self.after + self.bare:
                self._finish_bare()
        elif self.steps == self.after:
            self._start_bare()
        elif self._naming:
            self._name_step()
            if self._named > self.traced:
                self._write()
                if self._proofs is not None and os.path.exists(self.out):
                    self._start_proofs()
                if self._prover is None and self.then_exit:
                    self._leave()
        elif self._profiler is not None:
            self._ends.append(time.time_ns())
            if len(self._ends) == LEAD_IN + self.traced:
                self._finish_times()

    def _begin(self, steps: int) -> None:
        """Count from here, and forget what was timed and recorded."""
        self._looking.close()
        self._bare, self._profiler, self._naming = None, None, False
        self._seen: dict[str, Any] = {}  # in the bare steps
        self._ends: list[int] = []  # of steps in the first recording, in ns since the epoch
        self._times = b""  # what torch wrote of it
        self._samples: list[tuple[int, str]] = []
        self.steps = steps
        if self.after == steps == 0:
            self._bare = _UnprofiledSteps(self._looking, self._ends_s)

    def _end(self, failed: bool) -> None:
        if self._prover is not None:
            self._prover.end()
            self._prover = None
            if self._only is None and not failed:
                self._say("the script ended before all changes were tried")
        elif self._naming and self._named > LEAD_IN:
            self.traced = self._named - LEAD_IN
            self._write()
        elif not self.done:
            self._stop()
            alone = " without the script's own profiler" if self._met_another else ""
            advice = "(--after, --bare and --traced lower that)" if self.steps > 0 else WHAT_COUNTS
            advice = LATE if self.late and not self._was_late else advice
            if not failed:
                self._say(
                    f"error: halfway wrote nothing: {max(0, self.steps)} steps were seen{alone}, "
                    f"{self.needed} are needed. {advice}"
                )

    @property
    def needed(self) -> int:
        recordings = 1 + (bool(self._ends) if self._naming else _cuda())
        return self.after + self.bare + recordings * (LEAD_IN + self.traced)

    @property
    def _named(self) -> int:
        """Steps of the second recording, with the one that does not count."""
        return self.steps - self.after - self.bare - len(self._ends)

    def _tell_progress(self) -> None:
        if not self._progress:
            return
        at: Any = self._prover or self
        with suppress(OSError, ValueError, AttributeError):  # a stderr that is closed, or none
            now_s, live = time.monotonic(), sys.stderr.isatty()
            if at.steps <= 1:
                self._began_s = now_s
            elif now_s - self._said_s > (SAID_LIVE_S if live else SAID_S) and at.needed:
                self._said_s = now_s
                left_s = (at.needed - at.steps) * (now_s - self._began_s) / (at.steps - 1)
                text = f"{at.trying}step {at.steps} of {at.needed}, about {left_s:.0f} s left"
                begin, end = ("\r", "\x1b[K\r") if live else ("", "\n")
                print(f"{begin}halfway: {text}", end=end, file=sys.stderr, flush=True)

    # ------------------------------------------------------------ phases

    def _another_runs(self) -> bool:
        """Whether the script profiles by itself now, or its profiler warms up."""
        if self._profiles is None:
            self._profiles = weakref.WeakSet()
            _replace(self._open, torch.autograd.profiler.profile, "_prepare_trace", self._prepared)
        runs = torch.autograd._profiler_enabled() or any(
            profile.kineto_results is None for profile in self._profiles
        )
        self._met_another = self._met_another or runs
        return runs

    def _prepared(self, original: Function, profile: Any, *rest: Any, **named: Any) -> Any:
        """A profiler begins. Torch has one at a time: if it is the script's, ours gives way."""
        if self._profiler is not None:
            self._met_another = True
            begin_anew = functools.partial(self._begin, min(self.steps, self.after - 1))
            self._guarded(functools.partial(self._end, False) if self._naming else begin_anew)()
        if self._profiles is not None:
            self._profiles.add(profile)
        return original(profile, *rest, **named)

    def _start_bare(self) -> None:
        if self._calls and self.unit == OPTIMIZER and not (self._was_late or compiled()):
            self._calls.back()  # steps end where the optimizer's do: calls need no look
        self._bare = _UnprofiledSteps(self._looking, self._ends_s)

    def _finish_bare(self) -> None:
        assert self._bare is not None
        self._looking.close()
        self.bare_s, self._seen = self._bare.found()
        self._bare = None
        if not (_cuda() and self._start(["CUDA"], "kernels alone are not recorded")):
            self._start_names()

    def _finish_times(self) -> None:
        """It is read later: that takes longer, and the loader's workers go on meanwhile."""
        profiler, self._profiler = self._profiler, None
        try:
            self._looking.close()
            self._times = self._exported(profiler)
        except Exception as error:
            self._say(f"kernels alone are not recorded: {_first_line(error)}")
        self._start_names()

    def _start_names(self) -> None:
        activities = ["CPU", "CUDA"] if _cuda() else ["CPU"]
        self._naming = self._start(activities, "no trace: the profiler did not start", shapes=True)
        if not self._naming:
            self._stop()
            return
        self._looking.callback(self._name_step, begins=False)
        if self.module_names and not compiled():
            model = self.model or (self._calls.model() if self._calls else None)
            _ModuleNames(self._looking, model, self._guarded)
        _sample(self._looking, self._samples)
        self._name_step()

    def _start(self, activities: Sequence[str], failed: str, shapes: bool = False) -> bool:
        """Start a profiler; whether it runs."""
        try:
            kinds = [getattr(torch.profiler.ProfilerActivity, name) for name in activities]
            recording = torch.profiler.profile(activities=kinds, record_shapes=shapes)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", CLEARS_EVENTS, UserWarning)
                recording.start()
        except Exception as error:
            self._say(f"{failed}: {_first_line(error)}")
            return False
        self._profiler = recording
        self._looking.callback(recording.stop)
        return True

    def _name_step(self, begins: bool = True) -> None:
        """End the step that is open in the trace, and begin the next one."""
        if self._open_step is not None:
            self._open_step.__exit__(None, None, None)
            self._open_step = None
        if begins:
            self._open_step = torch.profiler.record_function(f"{OURS}{self._named}")
            self._open_step.__enter__()

    def _write(self) -> None:
        profiler = self._profiler
        self._stop()
        try:
            self._settle(self._exported(profiler))
        except Exception as error:
            self._say(f"the trace could not be written: {_first_line(error)}")
            return
        if not self._quiet:
            self._say(
                f"{len(self.bare_s)} steps timed ({1e3 * statistics.mean(self.bare_s):.3f} ms a "
                f"step), {self.traced} recorded in {self._shown}; "
                f"next: halfway diagnose {self._shown}"
            )

    def _exported(self, profiler: Any) -> bytes:
        """What torch writes of a recording."""
        partial = f"{self.out}.{os.getpid()}.part.json"
        try:
            profiler.export_chrome_trace(partial)
            with open(partial, "rb") as file:
                return file.read()
        finally:
            with suppress(FileNotFoundError):
                os.remove(partial)

    def _settle(self, text: bytes) -> None:
        """Put a trace in its place, with our facts and without the machine's name; packed if the
        place says so.
        """
        head, middle, tail = text[:ENDS], text[ENDS:-ENDS], text[max(ENDS, len(text) - ENDS) :]
        before, _, head = NAMES.sub(NO_NAME, head).partition(b"{")
        facts = json.dumps({KEY: self._facts()}, separators=(",", ":")).encode()
        partial = f"{self.out}.{os.getpid()}.part"
        try:
            with (gzip.open if self.out.endswith(".gz") else open)(partial, "wb") as target:
                for part in (before, facts[:-1], b",\n", head, middle, NAMES.sub(NO_NAME, tail)):
                    target.write(part)
            os.replace(partial, self.out)
        finally:
            with suppress(FileNotFoundError):
                os.remove(partial)

    def _start_proofs(self) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 or self.unit == CALL:
            if self._only is None:
                self._say("--prove is for a training in one process: nothing is tried")
            return
        try:
            self._keep({"steps": 0, "tried": [], "not_tried": {}})  # if the script dies of it
            bare_s, only = statistics.mean(self.bare_s), self._only
            self._prover = self._proofs.Prover(
                _mark, _seconds, bare_s, self._keep, only, compiled=compiled()
            )
        except Exception as error:
            self._say(f"nothing can be tried here: {_first_line(error)}")

    def _prove(self) -> None:
        try:
            self._prover.step()
        except Exception as error:  # of ours: the training must not know
            self._say(f"nothing more can be tried: {_first_line(error)}")
            self._prover.end(_first_line(error))
        if self._prover.done:
            self._prover = None
            self._leave()
        self._tell_progress()

    def _leave(self) -> None:
        """End the program. In another thread SystemExit would end that one alone."""
        if not self._leaving and threading.current_thread() is threading.main_thread():
            self._leaving = True
            raise SystemExit(0)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)

    def _keep(self, results: dict[str, Any]) -> None:
        try:
            self._proofs.write_beside(self.out, results)
        except OSError as error:
            self._say(f"what was tried could not be written: {_first_line(error)}")

    def _stop(self) -> None:
        self.done = True
        self._looking.close()
        self._profiler, self._naming = None, False
        if self._proofs is None:
            self._open.close()

    def _facts(self) -> dict[str, Any]:
        """What a trace does not say: steps without the profiler, and the settings of torch."""
        cuda, backends = _cuda(), torch.backends
        facts = {
            "version": VERSION,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "unit": self.unit,
            "bare_s": self.bare_s,
            "lead_in": LEAD_IN,
            "traced": self.traced,
            # Torch does not tell where a script mixes its older and newer names.
            "allow_tf32": _or_none(lambda: bool(backends.cuda.matmul.allow_tf32)) if cuda else None,
            "cudnn_allow_tf32": _or_none(lambda: bool(backends.cudnn.allow_tf32)),
            "cudnn_benchmark": bool(backends.cudnn.benchmark),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "rank": _rank(),
            "compiled": compiled(),
            "samples": self._samples,
            **self._seen,
        }
        times = _or_none(lambda: compact(self._times))
        return {**facts, "times": {"ends": self._ends, **times}} if times else facts


@contextmanager
def watch(model: Any = None, **options: Any) -> Generator[Watch]:
    """A Watch whose `step` the loop calls; `options` are those of Watch.

    `model` is needed only where the loop calls parts of it, and not the model itself.
    """
    watching = Watch(**options)
    watching.model = model
    try:
        yield watching
    finally:
        watching.end()


# ---------------------------------------------------------------- a script


def _leave(watching: Watch, original: Function, *arguments: Any, **named: Any) -> None:
    """End the watch before os._exit or exec. What ends a program that hangs is not held up."""
    whither = arguments[0] if arguments else named.get("status")
    ends = os.access(whither, os.X_OK) if isinstance(whither, str) else whither == 0
    if ends and threading.current_thread() is threading.main_thread():
        watching.end()
    original(*arguments, **named)


def run_script(name: str, arguments: Sequence[str], watching: Watch, is_module: bool) -> None:
    """Run a script, or a module as `python -m` does, unchanged, and watch it.

    A step ends where its optimizer's step does: that of the one that was stepped first, as long as
    it exists. Until there is an optimizer, each call of the model begins a step. Whatever the
    script raises is raised.
    """
    first: list[Any] = []

    def on_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
        if not first or first[0]() is None:
            first[:] = [weakref.ref(optimizer)]
        if first[0]() is optimizer:
            watching.step()

    def remember(made: Function, optimizer: Any, *rest: Any, **named: Any) -> None:
        made(optimizer, *rest, **named)
        watching.count(OPTIMIZER)
        optimizer.register_step_post_hook(on_step)

    watching.count(CALL)
    sys.argv = [name, *arguments]
    failed = True
    try:
        with ExitStack() as patched:
            _replace(patched, torch.optim.Optimizer, "__init__", remember)
            for ending in ("_exit", "execv", "execve"):
                _replace(patched, os, ending, functools.partial(_leave, watching))
            if is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                _run_file(name)
        failed = False
    except SystemExit as ended:
        failed = ended.code not in (None, 0)
        raise
    except Exception as error:
        if not watching.excuses(error):
            raise
    finally:
        watching.end(failed)


def _run_file(name: str) -> None:
    """As `python name` does: __file__ is its whole path, sys.argv[0] what was given."""
    if zipfile.is_zipfile(name) or name.endswith(".pyc"):
        runpy.run_path(name, run_name="__main__")
        return
    script: Any = types.ModuleType("__main__")
    script.__file__ = os.path.abspath(name)
    sys.modules["__main__"] = script
    with open(name, "rb") as file:
        exec(compile(file.read(), script.__file__, "exec", dont_inherit=True), script.__dict__)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line: options of ours, the script, and the script's own arguments."""
    parser = argparse.ArgumentParser(
        prog="halfway_watch.py", description="Record a few steps of a training script."
    )
    option = parser.add_argument
    option("--out", default=OUT, help="file to write")
    option("--after", type=int, default=AFTER, help="steps of warm-up")
    option("--bare", type=int, default=BARE, help="steps timed without the profiler")
    option("--traced", type=int, default=TRACED, help="steps recorded")
    option("--then-exit", action="store_true", help="end the script once the file is written")
    option("--prove", action="store_true", help="then try changes, and end the script")
    option("--only", metavar="NAMES", help="with --prove: try these alone, as amp,tf32")
    option("--quiet", action="store_true", help="say only what goes wrong")
    option("--progress", action="store_true", help="say how many steps are left, also if quiet")
    option("-m", dest="module", action="store_true", help="SCRIPT is a module, as of python -m")
    option("script", metavar="SCRIPT", help="the training script")
    option("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(argv)
    if not given.module and not os.path.isfile(given.script):
        parser.error(f"no such script: {given.script}")
    if not os.path.isdir(os.path.dirname(os.path.abspath(given.out))):
        parser.error(f"--out {given.out}: no such folder")
    arguments = given.arguments[1:] if given.arguments[:1] == ["--"] else given.arguments
    os.environ.setdefault(PROFILER_LOG, SILENT)
    if given.module or not getattr(sys.flags, "safe_path", False):  # not this file's own folder
        sys.path[0] = os.path.dirname(os.path.abspath("here" if given.module else given.script))
    try:
        watching = Watch(
            out=given.out, after=given.after, bare=given.bare, traced=given.traced,
            then_exit=given.then_exit, quiet=given.quiet,
            prove=given.only.split(",") if given.prove and given.only else given.prove,
            progress=given.progress or not given.quiet,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    try:
        run_script(given.script, arguments, watching, given.module)
    except Exception as error:
        frames = error.__traceback__
        while frames and any(frames.tb_frame.f_globals is g for g in (globals(), vars(runpy))):
            frames = frames.tb_next  # ours and runpy's: the user's come after them
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


# ---------------------------------------------------------------- what is looked at


class _UnprofiledSteps:
    """Times steps, and in them what only the CPU knows: data loading, reads that wait, autocasts.

    Only the thread that makes it counts. Where torch.compile is in use, reads and autocasts are
    left alone. `ends_s` are those of the last steps: of one that takes much longer it is noted
    where the script is.
    """

    def __init__(self, stack: ExitStack, ends_s: deque[float]) -> None:
        loaders = torch.utils.data
        self._thread = threading.get_ident()
        self._marks = [_mark()]
        self._loading_s = [0.0]
        self._loads, self._is_loading = 0, False
        self._reads: dict[tuple[str, str], list[Any]] = {}
        self._ends_s = ends_s
        self._long: Counter[tuple[int, str, bool]] = Counter()
        _look(stack, LONG_LOOK_S, self._look_at_long)
        self._compiled, self._autocasts = compiled(), int(_autocast_is_on())  # around the loop
        _replace(stack, loaders.dataloader._BaseDataLoaderIter, "__next__", self._load)
        _replace(stack, loaders.DataLoader, "__iter__", self._load)  # which starts its workers
        if not self._compiled:
            _replace(stack, torch.autocast, "__enter__", self._enter)
            for name in READS:
                _replace(stack, torch.Tensor, name, functools.partial(self._read, name))

    def step(self) -> None:
        """The end of a step."""
        self._marks.append(_mark())
        self._loading_s.append(0.0)

    def found(self) -> tuple[list[float], dict[str, Any]]:
        """The steps' seconds, and facts."""
        if _cuda():
            torch.cuda.synchronize()
        bare_s = [_seconds(*ends) for ends in zip(self._marks, self._marks[1:])]  # noqa: B905
        return bare_s, {
            "loading_s": self._loading_s[:-1] if self._loads else [],
            "reads": [[*key, *read] for key, read in self._reads.items()],
            "long_steps": [[*key, looks] for key, looks in self._long.items()],
            "autocasts": None if self._compiled else self._autocasts / len(bare_s),
        }

    def _look_at_long(self, frame: Any) -> None:
        """Note the line of a step that takes much longer than usual, and whether it compiles."""
        ends_s = list(self._ends_s)
        usual_s = [end - start for start, end in zip(ends_s, ends_s[1:])]  # noqa: B905, RUF007
        looks = usual_s and not self._is_loading  # which is timed
        if looks and time.monotonic() - ends_s[-1] > LONG * statistics.median(usual_s):
            line, compiles = _line(frame), False
            while frame is not None and not compiles:
                compiles = bool({*COMPILERS} & {*re.split(r"[\\/]", frame.f_code.co_filename)})
                frame = frame.f_back
            self._long[len(self._marks) - 1, line, compiles] += 1

    def _load(self, original: Function, *arguments: Any) -> Any:
        if self._is_loading or threading.get_ident() != self._thread:
            return original(*arguments)
        self._is_loading, began_s = True, time.perf_counter()
        try:
            return original(*arguments)
        finally:
            self._is_loading = False
            self._loads += 1
            self._loading_s[-1] += time.perf_counter() - began_s

    def _enter(self, original: Function, autocast: Any) -> Any:
        self._autocasts += autocast._enabled and not _autocast_is_on()
        return original(autocast)

    def _read(self, name: str, original: Function, tensor: Any, *rest: Any, **named: Any) -> Any:
        if not tensor.is_cuda or threading.get_ident() != self._thread:
            return original(tensor, *rest, **named)
        began_s = time.perf_counter()
        try:
            return original(tensor, *rest, **named)
        finally:
            took_s = time.perf_counter() - began_s
            read = self._reads.setdefault(
                (_line(inspect.currentframe()), name.strip("_")), [0, 0.0]
            )
            read[0] += 1
            read[1] += took_s


class _Calls:
    """Sees the calls of the model: of the module with parameters that is called first.

    It stands before its class's call. Hooks would be copied and saved with the model, be compiled
    with it, and open a module before the step begins.
    """

    def __init__(self, stack: ExitStack, called: Callable[[bool], None]) -> None:
        self.model: Callable[[], Any] = lambda: None  # until it is called
        self._stack, self._called = stack, called
        self.back = _replace(stack, torch.nn.Module, "__call__", self._find)

    def _find(self, original: Function, module: Any, *arguments: Any, **named: Any) -> Any:
        if _is_compiling is bool and "torch._dynamo" in sys.modules:
            self.back()  # torch 2.0 would compile what stands before a call
        elif not _inside() and self.model() is None and any(True for _ in module.parameters()):
            self.back()
            self.model = weakref.ref(module)
            self.back = _replace(self._stack, type(module), "__call__", self._call)
            self._called(True)
        return original(module, *arguments, **named)

    def _call(self, original: Function, module: Any, *arguments: Any, **named: Any) -> Any:
        if not _is_compiling() and module is self.model() and not _inside():
            self._called(False)
        return original(module, *arguments, **named)


class _ModuleNames:
    """Names every module's forward in the trace, by its path from the outermost module called."""

    def __init__(self, stack: ExitStack, model: Any, guarded: Callable[[Function], Function]):
        module = torch.nn.modules.module
        self._names: dict[int, str] = _paths(model) if model is not None else {}
        self._open: list[tuple[int, Any]] = []
        stack.callback(self._close)
        stack.callback(module.register_module_forward_pre_hook(guarded(self._enter)).remove)
        leave = guarded(self._leave)
        try:  # checkpointing ends a forward by an exception
            left = module.register_module_forward_hook(leave, always_call=True)
        except TypeError:  # torch 2.0
            left = module.register_module_forward_hook(leave)
        stack.callback(left.remove)

    def _enter(self, module: Any, _inputs: Any) -> None:
        if not self._open and id(module) not in self._names:
            # Checkpointing calls parts of the model again by themselves: they keep their paths.
            self._names.update(_paths(module))
        # A module that is called inside another but is no part of it has its class's name.
        path = self._names.get(id(module), type(module).__name__)
        record = torch.profiler.record_function(PREFIX + path)
        record.__enter__()
        self._open.append((id(module), record))

    def _leave(self, module: Any, _inputs: Any, _output: Any) -> None:
        self._close(id(module))

    def _close(self, module: int | None = None) -> None:
        """Close a module and, where a forward raised and was caught, what is open in it."""
        while self._open:
            key, record = self._open.pop()
            record.__exit__(None, None, None)
            if key == module:
                return


def _sample(stack: ExitStack, rows: list[tuple[int, str]]) -> None:
    """Note now and then which line of the user's runs in this thread, until the stack ends."""

    def note(frame: Any) -> None:
        if line := _line(frame):
            rows.append((time.time_ns(), line))

    # Without it Python's own code gives way only as it calls torch, and the lines would be those.
    stack.callback(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(SWITCH_S)
    _look(stack, SAMPLE_S, note)


def _look(stack: ExitStack, every_s: float, note: Callable[[Any], None]) -> None:
    """Call `note` with what runs in this thread, now and then, until the stack ends."""
    system: Any = sys
    runs, ended = threading.get_ident(), threading.Event()

    def look() -> None:
        while not ended.wait(every_s):
            note(system._current_frames().get(runs))

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    stack.callback(looks.join, 1.0)
    stack.callback(ended.set)


# ---------------------------------------------------------------- parts


def _import_torch() -> None:
    global torch, _is_compiling
    import torch as installed

    torch = installed
    _is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)


def _replace(stack: ExitStack, owner: Any, name: str, function: Function) -> Callable[[], None]:
    """Let a function stand for a method, until the stack ends; it gets the method first.

    What is returned puts the method back before.
    """
    own, original = owner.__dict__.get(name), getattr(owner, name)

    @functools.wraps(original)
    def instead(*arguments: Any, **named: Any) -> Any:
        return function(original, *arguments, **named)

    def back() -> None:
        if owner.__dict__.get(name) is instead:  # and no other one stands before it
            delattr(owner, name) if own is None else setattr(owner, name, own)

    setattr(owner, name, instead)
    stack.callback(back)
    return back


def compiled() -> bool:
    """Whether torch.compile has compiled anything.

    Then hooks that come later would compile all of it again, in the steps that are recorded; and
    a compiled forward calls no modules.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    counts = {**counters.get("frames", {}), **counters.get("stats", {})}
    return bool(counts.get("ok") or counts.get("unique_graphs"))  # "ok" is not of fullgraph=True


def _inside() -> bool:
    """Whether a compiled region, a backward pass or the capture of a CUDA graph is open."""
    if _is_compiling() or torch._C._current_graph_task_id() != -1:
        return True
    return _cuda() and torch.cuda.is_current_stream_capturing()


def _cuda() -> bool:
    """Whether this process uses CUDA."""
    return torch.cuda.is_initialized()


def _autocast_is_on() -> bool:
    return bool(_or_none(torch._C._is_any_autocast_enabled))


def _paths(model: Any) -> dict[int, str]:
    """Each module's path in a model, by its id: the same where it is spread over several GPUs."""
    kinds: Any = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    whole: Any = model.module if isinstance(model, kinds) else model
    return {id(model): "", **{id(part): path for path, part in whole.named_modules()}}


def _line(frame: Any) -> str:
    """The innermost line of the user's: "train.py:12"; "" for none."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


@functools.lru_cache(None)
def _is_users(file: str) -> bool:
    """Whether a file is not torch's, another package's, the standard library's or ours."""
    folders = (os.path.dirname(os.__file__), os.path.dirname(torch.__file__))
    packages = {"site-packages", "dist-packages"} & set(re.split(r"[\\/]", file))
    ours = os.path.basename(file) in (os.path.basename(__file__), PROOFS)
    return not (file.startswith(("<", *folders)) or packages or ours)


def compact(text: bytes) -> dict[str, Any]:
    """A recording of kernels and calls of the runtime as rows, in whole ns since the epoch."""
    trace = json.loads(text.decode(errors="replace"), parse_float=Decimal)
    base = int(trace.get("baseTimeNanoseconds", 0))  # older torch: times are since the epoch
    names: dict[str, int] = {}
    work: list[list[Any]] = []
    calls: list[list[Any]] = []
    for event in trace["traceEvents"]:
        kind = event.get("cat")
        if event.get("ph") == "X" and kind in (*WORK, *CALLS):
            name = names.setdefault(event["name"], len(names))
            times = base + int(event["ts"] * 1000), int(event["dur"] * 1000)
            given = event.get("args", {})
            number = given.get("correlation", 0)
            if kind in WORK:
                place = f"{given.get('device')}/{given.get('stream')}"
                work.append([name, kind, *times, place, number])
            else:
                calls.append([name, *times, event.get("tid"), number])
    work.sort(key=lambda row: row[2])
    calls.sort(key=lambda row: row[1])
    return {"names": list(names), "work": work, "calls": calls}


def _or_none(tell: Callable[[], Any]) -> Any:
    try:
        return tell()
    except Exception:
        return None


def _proofs() -> Any:
    """The module halfway_prove beside this file. ValueError where there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), PROOFS)
    if not os.path.isfile(path):
        raise ValueError(f"--prove needs {PROOFS} beside {os.path.basename(__file__)}")
    spec = importlib.util.spec_from_file_location("halfway_prove", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _mark() -> Any:
    """A point in time: on the CPU's clock and, where it is in use, on the GPU's."""
    event = torch.cuda.Event(enable_timing=True) if _cuda() else None
    if event is not None:
        event.record()
    return time.perf_counter(), event


def _seconds(start: Any, end: Any) -> float:
    if start[1] is None or end[1] is None:
        return end[0] - start[0]
    return start[1].elapsed_time(end[1]) / 1e3


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _of_this_rank(out: str) -> str:
    """The file of this rank of a distributed run: run.json.gz -> run.rank3.json.gz."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return out
    folder, name = os.path.split(out)
    stem, dot, endings = name.partition(".")
    return os.path.join(folder, f"{stem}.rank{_rank()}{dot}{endings}")


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text if text.startswith("error:") else f"halfway: {text}", file=sys.stderr)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main()
