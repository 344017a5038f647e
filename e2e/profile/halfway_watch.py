"""Watch a training loop: time steps without a profiler, then record a few with torch's profiler.

One file, standard library and torch only (Python 3.9 or newer, torch 2.0 or newer, CPU or CUDA), so
that it can be copied to a cluster where halfway is not installed:

    python halfway_watch.py train.py --your --arguments        # the script runs unchanged

    import halfway_watch                                       # or around a loop
    with halfway_watch.watch(out="run.json.gz") as w:
        for batch in loader:
            train_step(batch)
            w.step()

The file that it writes holds operator names, tensor shapes and types, times, and settings of torch;
no data, no weights, and no paths but, with --stack, those of Python files.
`halfway diagnose run.json.gz` reads it, on any machine.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import importlib.util
import json
import os
import platform
import re
import runpy
import statistics
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

VERSION = 1
OUT = "halfway-trace.json.gz"
AFTER, BARE, TRACED = 20, 20, 3  # steps: warm-up, timed without the profiler, recorded
Function = Callable[..., Any]
LEAD_IN = 1  # recorded before those that count: the profiler's first step is slow
PREFIX = "halfway::"  # of the names of modules in the trace
KEY = "halfway"  # of our metadata in the trace
PROOFS = "halfway_prove.py"
# What torch writes of the machine, in the first and last bytes of a trace.
NAMES, ENDS = re.compile(rb'"(host_name|traceName|hostname)":\s*"[^"]*"'), 1 << 16
NO_NAME = rb'"\1": ""'
# The profiler writes lines of its own between those of a script, and an error where no GPU is.
PROFILER_LOG, SILENT = "KINETO_LOG_LEVEL", "99"
# Some versions warn that a second cycle would replace the first; we have one. acc_events=True would
# silence that too, but it makes stopping take ten times as long.
CLEARS_EVENTS = "Warning: Profiler clears events"


class Watch:
    """Counts steps, times `bare` of them after `after`, records `traced` more, and writes `out`.

    After that it does nothing. Steps are timed by events on the GPU's clock, or by the CPU's clock
    where there is no GPU. `stack` also records the Python stack, which makes the file twice as long
    and the steps slower. `module_names` records which module launched what. `then_exit` ends the
    program (SystemExit) once the file is written. `quiet`: only what goes wrong is said. `prove`:
    after that, changes are tried in some hundred more steps by halfway_prove.py, which must lie
    beside this file (ValueError), and their times are added to `out`.
    """

    def __init__(
        self, out: str = OUT, after: int = AFTER, bare: int = BARE, traced: int = TRACED,
        stack: bool = False, module_names: bool = True, then_exit: bool = False,
        quiet: bool = False, say: Callable[[str], None] | None = None, prove: bool = False,
    ) -> None:  # fmt: skip
        for name, value, least in (("after", after, 0), ("bare", bare, 2), ("traced", traced, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        self.out = _of_this_rank(out)
        self.after, self.bare, self.traced = after, bare, traced
        self.stack, self.module_names, self.then_exit = stack, module_names, then_exit
        self.model: Any = None  # where it is known before: its parts have their paths in it
        self.bare_s: list[float] = []
        self.steps = 0
        self.done = False
        self._say, self._quiet = say or _say, quiet
        self._proofs: Any = _proofs() if prove else None
        self._prover: Any = None
        self._marks: list[Any] = []
        self._profiler: Any = None
        self._modules: _ModuleNames | None = None
        self._others: _OtherProfilers | None = None
        self._met_another = False
        self._open_step: Any = None

    def step(self) -> None:
        """Call it at the end of each training step."""
        if self._prover is not None:
            self._prove()
        if self.done:
            return
        if self._profiler is None and self._another_runs():
            # Its steps are slower than without it: timing begins anew when it has ended.
            self.steps, self._marks = min(self.steps, self.after - 1), []
            return
        self.steps += 1
        timed_until = self.after + self.bare
        if self.after <= self.steps <= timed_until:
            self._marks.append(_mark())
        if self.steps == timed_until:
            self._finish_timing()
            self._start()
        elif self.steps > timed_until and self._profiler is not None:
            self._name_step()
            if self.steps == timed_until + LEAD_IN + self.traced:
                self._write()
                if self._proofs is not None and os.path.exists(self.out):
                    self._start_proofs()
                if self._prover is None and self.then_exit:
                    raise SystemExit(0)

    @property
    def proving(self) -> bool:
        """Whether changes are being tried in the steps of now."""
        return self._prover is not None

    def excuses(self, error: Exception) -> bool:
        """Whether the script raised it in steps that only serve to try changes; they end then."""
        if self._prover is None or not self.then_exit:
            return False
        self._prover.end(_first_line(error))
        self._say(f"the script raised this while changes were tried: {_first_line(error)}")
        return True

    def end(self, failed: bool = False) -> None:
        """End the watch. A recording that is not complete is written if a whole step is in it.

        `failed`: the loop raised, which says more than that its steps were too few.
        """
        if self._prover is not None:
            self._prover.end()
            self._prover = None
        if self.done:
            return
        whole = self.steps - (self.after + self.bare) - LEAD_IN
        if self._profiler is not None and whole >= 1:
            self.traced = whole
            self._write()
            return
        self._stop()
        if failed:
            return
        needed = self.after + self.bare + LEAD_IN + self.traced
        alone = " without the script's own profiler" if self._met_another else ""
        self._say(
            f"nothing written: {max(0, self.steps)} steps were seen{alone}, {needed} are needed "
            "(--after, --bare and --traced lower that)"
        )

    # ------------------------------------------------------------ phases

    def _another_runs(self) -> bool:
        """Whether the script profiles by itself now."""
        self._others = self._others or _OtherProfilers(self._give_way)
        running = self._others.running
        self._met_another = self._met_another or running
        return running

    def _give_way(self) -> None:
        """The script begins to profile: torch has one profiler at a time, and the script's runs."""
        if self._profiler is not None:
            self._met_another = True
            self.end()

    def _finish_timing(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends = iter(self._marks[1:])  # of the steps that the other marks begin
        self.bare_s = [_seconds(begin, end) for begin, end in zip(self._marks, ends)]  # noqa: B905
        self._marks = []

    def _start(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        try:
            recording = profile(activities=activities, record_shapes=True, with_stack=self.stack)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", CLEARS_EVENTS, UserWarning)
                recording.start()
            self._profiler = recording
        except Exception as error:
            self._stop()
            self._say(f"no trace: the profiler did not start ({_first_line(error)})")
            return
        if self.module_names and not _compiled():
            self._modules = _ModuleNames(self.model)
        self._name_step()

    def _name_step(self) -> None:
        """End the step that is open in the trace and begin the next one."""
        import torch

        if self._open_step is not None:
            self._open_step.__exit__(None, None, None)
        number = self.steps - (self.after + self.bare)
        self._open_step = torch.profiler.record_function(f"ProfilerStep#{number}")
        self._open_step.__enter__()

    def _write(self) -> None:
        profiler = self._profiler
        if hasattr(profiler, "add_metadata_json"):
            profiler.add_metadata_json(KEY, json.dumps(self._facts()))
        self._stop()
        partial = f"{self.out}.{os.getpid()}.part.json"
        try:
            profiler.export_chrome_trace(partial)
            _settle(partial, self.out)
        except Exception as error:
            self._say(f"the trace could not be written: {_first_line(error)}")
            return
        finally:
            if os.path.exists(partial):
                os.remove(partial)
        if self._quiet:
            return
        self._say(
            f"{len(self.bare_s)} steps timed (median {1e3 * statistics.median(self.bare_s):.3f} "
            f"ms), {self.traced} recorded in {self.out}; next: halfway diagnose {self.out}"
        )

    def _start_proofs(self) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._say("--prove is for one process: nothing is tried in a distributed run")
            return
        try:
            self._prover = self._proofs.Prover(
                _mark, _seconds, statistics.median(self.bare_s), not self.then_exit, self._keep
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
            if self.then_exit:
                raise SystemExit(0)

    def _keep(self, found: dict[str, Any]) -> None:
        try:
            self._proofs.add_to(self.out, found)
        except OSError as error:
            self._say(f"what was tried could not be written: {_first_line(error)}")

    def _stop(self) -> None:
        self.done = True
        if self._modules is not None:
            self._modules.remove()
            self._modules = None
        if self._open_step is not None:
            self._open_step.__exit__(None, None, None)
            self._open_step = None
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
        if self._others is not None:
            self._others.remove()
            self._others = None

    def _facts(self) -> dict[str, Any]:
        """What a trace does not say: steps without the profiler, and the settings of torch."""
        import torch

        cuda = torch.cuda.is_available()
        return {
            "version": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "capability": list(torch.cuda.get_device_capability()) if cuda else None,
            "bare_s": self.bare_s,
            "lead_in": LEAD_IN,
            "traced": self.traced,
            "allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32) if cuda else None,
            "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            "memory_peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "rank": int(os.environ.get("RANK", "0")),
            "stack": self.stack,
            "compiled": _compiled(),
        }


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


def watched(**options: Any) -> Callable[[Function], Function]:
    """A decorator for the function that does one training step; `options` are those of Watch."""

    def wrap(function: Function) -> Function:
        watching = Watch(**options)

        @functools.wraps(function)
        def one_step(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            watching.step()
            while watching.proving:  # the same step again: the training does not go on meanwhile
                function(*arguments, **named)
                watching.step()
            return found

        one_step.watch = watching  # type: ignore[attr-defined]
        return one_step

    return wrap


# ---------------------------------------------------------------- callbacks

BASES = {  # callback -> what it may be made of: the first class whose package is there
    "LightningWatch": (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback")),
    "TrainerWatch": (("transformers", "TrainerCallback"),),
}


def __getattr__(name: str) -> Any:
    """LightningWatch and TrainerWatch, made when they are first asked for.

    Give one to a Lightning or Hugging Face Trainer: `callbacks=[TrainerWatch(out="run.json.gz")]`.
    Options are those of Watch. ImportError where the package is not installed.
    """
    if name not in BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package, base in BASES[name]:
        try:
            found = getattr(importlib.import_module(package), base)
        except ImportError:
            continue
        globals()[name] = type(name, (_Calls, found), {})
        return globals()[name]
    packages = " or ".join(package for package, _ in BASES[name])
    raise ImportError(f"{name} needs {packages}, which is not installed")


class _Calls:
    """What both kinds of trainer call; a step ends when the optimizer's count has gone up."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.watch = Watch(**options)
        self._seen = 0

    def on_train_start(self, _trainer: Any, module: Any) -> None:
        """Of Lightning, which calls the module's training_step and not the module itself."""
        self.watch.model = module

    def on_step_end(self, *_arguments: Any, **_named: Any) -> None:
        """Of the Hugging Face Trainer: after each update of the weights."""
        self.watch.step()

    def on_train_batch_end(self, trainer: Any, *_arguments: Any, **_named: Any) -> None:
        """Of Lightning: after each batch, of which several may make an update."""
        if trainer.global_step != self._seen:
            self._seen = trainer.global_step
            self.watch.step()

    def on_train_end(self, *_arguments: Any, **_named: Any) -> None:
        """Of both."""
        self.watch.end()


# ---------------------------------------------------------------- a script


def run_script(path: str, arguments: Sequence[str], watching: Watch) -> None:
    """Run a training script unchanged and watch it. A step ends where its optimizer's step does.

    With several optimizers, or several parts of a step, a step ends with the optimizer that was
    stepped first, as long as it exists. Whatever the script raises is raised.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(path))  # not this file's own folder
    import torch

    first: list[Any] = []
    optimizers: Any = torch.optim.Optimizer

    def on_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
        if not first or first[0]() is None:
            first[:] = [weakref.ref(optimizer)]
        if first[0]() is optimizer:
            watching.step()

    made = optimizers.__init__

    @functools.wraps(made)
    def remember(optimizer: Any, *rest: Any, **named: Any) -> None:
        made(optimizer, *rest, **named)
        optimizer.register_step_post_hook(on_step)

    optimizers.__init__ = remember
    sys.argv = [path, *arguments]
    failed = True
    try:
        runpy.run_path(path, run_name="__main__")
        failed = False
    except SystemExit as ended:
        failed = ended.code not in (None, 0)
        raise
    except Exception as error:
        if not watching.excuses(error):
            raise
    finally:
        optimizers.__init__ = made
        watching.end(failed)


def main(words: Sequence[str] | None = None) -> None:
    """The command line: options of ours, the script, and the script's own arguments."""
    parser = argparse.ArgumentParser(
        prog="halfway_watch.py", description="Record a few steps of a training script."
    )
    parser.add_argument("--out", default=OUT, help="file to write")
    parser.add_argument("--after", type=int, default=AFTER, help="steps of warm-up")
    parser.add_argument("--bare", type=int, default=BARE, help="steps timed without the profiler")
    parser.add_argument("--traced", type=int, default=TRACED, help="steps recorded")
    parser.add_argument("--stack", action="store_true", help="record Python's stack too")
    parser.add_argument(
        "--then-exit", action="store_true", help="end the script once the file is written"
    )
    parser.add_argument(
        "--prove", action="store_true", help="then try what may be slow (needs halfway_prove.py)"
    )
    parser.add_argument("--quiet", action="store_true", help="say only what goes wrong")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(words)
    if not os.path.isfile(given.script):
        parser.error(f"no such script: {given.script}")
    arguments = given.arguments[1:] if given.arguments[:1] == ["--"] else given.arguments
    try:
        watching = Watch(
            out=given.out, after=given.after, bare=given.bare, traced=given.traced,
            stack=given.stack, then_exit=given.then_exit, quiet=given.quiet, prove=given.prove,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    os.environ.setdefault(PROFILER_LOG, SILENT)
    run_script(given.script, arguments, watching)


# ---------------------------------------------------------------- parts


def _paths(model: Any) -> dict[int, str]:
    """Each module's path in a model, by its id: the same where it is spread over several GPUs."""
    import torch

    kinds: Any = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    whole: Any = model.module if isinstance(model, kinds) else model
    return {id(model): "", **{id(part): path for path, part in whole.named_modules()}}


class _ModuleNames:
    """Names every module's forward in the trace, by its path from the outermost module called."""

    def __init__(self, model: Any) -> None:
        from torch.nn.modules import module

        self._names: dict[int, str] = _paths(model) if model is not None else {}
        self._open: list[tuple[int, Any]] = []
        try:  # checkpointing ends a forward by an exception
            left = module.register_module_forward_hook(self._leave, always_call=True)
        except TypeError:  # torch 2.0
            left = module.register_module_forward_hook(self._leave)
        enter = module.register_module_forward_pre_hook(self._enter)
        self._handles = [enter, left]

    def remove(self) -> None:
        """Take the hooks away and close what an exception left open."""
        for handle in self._handles:
            handle.remove()
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _enter(self, module: Any, _inputs: Any) -> None:
        import torch

        if not self._open and id(module) not in self._names:
            # Checkpointing calls parts of the model again by themselves: they keep their paths.
            self._names.update(_paths(module))
        # A module that is called inside another but is no part of it has its class's name.
        path = self._names.get(id(module), type(module).__name__)
        record = torch.profiler.record_function(PREFIX + path)
        record.__enter__()
        self._open.append((id(module), record))

    def _leave(self, module: Any, _inputs: Any, _output: Any) -> None:
        # Where a forward raised and was caught, its record is still open: close it too.
        while self._open:
            key, record = self._open.pop()
            record.__exit__(None, None, None)
            if key == id(module):
                return


def _compiled() -> bool:
    """Whether torch.compile has compiled anything.

    Then hooks that come later would compile all of it again, in the steps that are recorded; and
    a compiled forward calls no modules.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return any(dict(counters.get("frames", {})).values())


def _proofs() -> Any:
    """The module halfway_prove beside this file. ValueError where there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), PROOFS)
    if not os.path.isfile(path):
        raise ValueError(f"--prove needs {PROOFS} beside {os.path.basename(__file__)}")
    found = importlib.util.spec_from_file_location("halfway_prove", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class _OtherProfilers:
    """Sees each profiler that starts, ours too; `begins` is called before one does."""

    def __init__(self, begins: Callable[[], None]) -> None:
        from torch.autograd import profiler

        kind: Any = profiler.profile  # torch.profiler has one inside
        prepare, leave = kind._prepare_trace, kind.__exit__
        self._kind, self._made = kind, {"_prepare_trace": prepare, "__exit__": leave}
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

        @functools.wraps(prepare)
        def on_prepare(one: Any, *rest: Any, **named: Any) -> Any:
            begins()
            self._seen.add(one)
            return prepare(one, *rest, **named)

        @functools.wraps(leave)
        def on_leave(one: Any, *rest: Any, **named: Any) -> Any:
            self._seen.discard(one)
            return leave(one, *rest, **named)

        kind._prepare_trace, kind.__exit__ = on_prepare, on_leave

    @property
    def running(self) -> bool:
        """Whether one runs or warms up; also one that began before we looked."""
        import torch

        autograd: Any = torch.autograd
        return bool(self._seen) or autograd._profiler_enabled()

    def remove(self) -> None:
        """Put torch's own functions back."""
        for name, function in self._made.items():
            setattr(self._kind, name, function)


def _mark() -> Any:
    import torch

    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return end - start
    return start.elapsed_time(end) / 1e3


def _of_this_rank(out: str) -> str:
    """The file of this rank of a distributed run: run.json.gz -> run.rank3.json.gz."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return out
    folder, name = os.path.split(out)
    stem, dot, endings = name.partition(".")
    rank = os.environ.get("RANK", "0")
    return os.path.join(folder, f"{stem}.rank{rank}{dot}{endings}")


def _settle(partial: str, out: str) -> None:
    """Put a finished trace in its place without the machine's name; packed if its name says so."""
    with open(partial, "rb") as source:
        text = source.read()
    head, middle, tail = text[:ENDS], text[ENDS:-ENDS], text[max(ENDS, len(text) - ENDS) :]
    text = NAMES.sub(NO_NAME, head) + middle + NAMES.sub(NO_NAME, tail)
    packed = partial + ".gz"
    try:
        with (gzip.open if out.endswith(".gz") else open)(packed, "wb") as target:
            target.write(text)
        os.replace(packed, out)
    finally:
        if os.path.exists(packed):
            os.remove(packed)


def _say(text: str) -> None:
    print(f"halfway: {text}", file=sys.stderr)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main()
