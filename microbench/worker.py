"""The measuring process. It holds the device; the parent has the screen and the run file.

A kernel that faults or hangs ends its process, so measuring happens in a child: the parent blames
the case announced last, starts another child and continues.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.case import Case, Target
from kernels.messages import one_line
from microbench import precompile
from microbench.errors import UserError
from microbench.requests import Conditions, patterns
from microbench.results.types import Ceiling, Json, Result
from microbench.stopping import die_with_parent, uninterrupted
from microbench.sweep import Group
from microbench.timing import FEWEST_ROUNDS

if TYPE_CHECKING:
    from microbench.device.device import DeviceInfo

OnStage = Callable[[str, str], None]
Serve = Callable[[Connection, Any], None]
# Without an answer or a new stage for so long, beside what sampling takes, a child has hung: a
# kernel that does not end, a lock.
HANG_S = 120.0
START_S = 180.0  # the same, while torch and the driver load
ENDED = "the measuring process ended"
GENTLE_S = 5.0  # that a child gets to end by itself


def unseen(_key: str, _stage: str) -> None:
    """Stages that are not shown."""


@dataclass(frozen=True)
class Greeting:
    """What the child reports of its device before anything is measured: facts, and free bytes."""

    device: Json
    software: Json
    target: Target
    free_bytes: int | None
    load: Json = field(default_factory=dict[str, Any])  # see microbench.device.host


class WorkerDied(Exception):
    """The child ended or hung while it measured the case `key`."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


class Child:
    """A child process that holds the device. It answers one request after another.

    `serve(pipe, settings)` runs in the child: it sends ("ok", Greeting) first, then ("ok", answer)
    to each request it receives, and ("stage", key, stage) in between.
    """

    daemon = True  # False for a process that has children of its own
    _process: Any
    _pipe: Connection

    def __init__(self, serve: Serve, settings: object) -> None:
        self._stage = ("", "starting")
        self._greeting: Greeting | None = None
        self._start(serve, settings)

    def _start(self, serve: Serve, settings: object) -> None:
        """Start the process, and connect to it."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_live, args=(theirs, serve, settings), daemon=self.daemon
        )
        with _no_main(), uninterrupted():
            self._process.start()
        theirs.close()

    def greet(self) -> Greeting:
        """Its greeting, waited for once. UserError without the device; WorkerDied as in `ask`."""
        greeting = self._greeting or self._answer(unseen, START_S)
        self._greeting = greeting
        return greeting

    def ask(self, request: tuple[object, ...], on_stage: OnStage, patience_s: float) -> Any:
        """The child's answer. UserError when the child refuses the request.

        WorkerDied when it ends, or stays in one stage for `patience_s` seconds. One that was not
        greeted yet is greeted first: that is its first answer.
        """
        self.greet()
        self._send(request)
        return self._answer(on_stage, patience_s)

    def close(self) -> None:
        """End the child: first by closing the pipe, then by a signal."""
        self._pipe.close()
        if not self.daemon:  # it may have children of its own to end
            self._process.join(GENTLE_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(GENTLE_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join(GENTLE_S)  # a driver may hold it longer

    def _send(self, request: tuple[object, ...]) -> None:
        with suppress(OSError):  # it has ended: what it said last, or its end, comes as the answer
            self._pipe.send(request)

    def _answer(self, on_stage: OnStage, patience_s: float) -> Any:
        while True:
            try:
                message = self._pipe.recv() if self._pipe.poll(patience_s) else None
            except (EOFError, OSError):
                raise WorkerDied(*self._end(ENDED)) from None
            if message is None:
                self._process.kill()
                key, stage = self._stage
                raise WorkerDied(key, f"hung: no response for {patience_s:.0f} s while {stage}")
            kind, *rest = message
            if kind == "stage":
                self._stage = (rest[0], rest[1])
                on_stage(*self._stage)
            elif kind == "refused":
                raise UserError(rest[0])
            elif kind == "dead":
                raise WorkerDied(*self._end(rest[0]))
            else:
                return rest[0]

    def _end(self, reason: str) -> tuple[str, str]:
        self._process.join(GENTLE_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            reason += f" ({signal.Signals(-code).name})"
        elif code and reason == ENDED:
            reason += f" (exit code {code})"
        key, stage = self._stage
        return key, f"{reason} while {stage}"


@contextmanager
def _no_main() -> Generator[None]:
    """Hide the program from a child that starts meanwhile: it would run a user's script again."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


class Worker(Child):
    """A child process that measures. Start it, ask it, close it."""

    def __init__(
        self,
        settings: Conditions,
        hang_s: float | None = None,
        *,
        early: bool = False,
        compiles: bool = False,
    ) -> None:
        """`early`: only load what it needs, and leave the device alone until it is to greet.
        `compiles`: let a compiler load meanwhile, which its cases will need.
        """
        serve = partial(_measure_on_request, early=early, compiles=compiles)
        super().__init__(serve, settings)
        self._hang_s = HANG_S if hang_s is None else hang_s
        self._early = early

    def greet(self) -> Greeting:
        """Wait for the child's first word. UserError when the device cannot be had."""
        if self._early and self._greeting is None:
            self._send(("begin",))
        return super().greet()

    def expect(self, cases: Sequence[Case]) -> None:
        """These cases are to be measured: load what they need meanwhile. WorkerDied as in `ask`."""
        self.ask(("expect", tuple(cases)), unseen, START_S)

    def calibrate(
        self, precisions: Sequence[str], large: Sequence[str], on_stage: OnStage
    ) -> list[Ceiling]:
        """Measured peaks; see `microbench.roofline.ceilings.calibrate`. WorkerDied as in `ask`."""
        return self.ask(("calibrate", tuple(precisions), tuple(large)), on_stage, START_S)

    def measure(
        self,
        group: Group,
        budget_s: float,
        on_stage: OnStage,
        *,
        checked: Mapping[str, str] = {},
        fewest: int = FEWEST_ROUNDS,
    ) -> list[Result]:
        """A result for every case of the group (see `Measurer.measure`). Raises WorkerDied."""
        request = ("measure", group, budget_s, checked, fewest)
        return self.ask(request, on_stage, self._hang_s + budget_s)

    def others(self) -> int:
        """How many other processes are on the GPU now; 0 where that is unknown."""
        try:
            return self.ask(("others",), unseen, self._hang_s)
        except WorkerDied:
            return 0  # everything is measured


class Workers:
    """Measuring processes with the same conditions; at most one is kept ready.

    `compiles`: their cases may need a compiler.
    """

    def __init__(self, settings: Conditions, *, compiles: bool = False) -> None:
        self.settings, self.compiles = settings, compiles
        self._spare: Worker | None = None

    def start(self, *, early: bool = False) -> Worker:
        """The first, or the one that is ready: it loads, and opens its device unless `early`."""
        self._spare = self._spare or Worker(self.settings, early=early, compiles=self.compiles)
        return self._spare

    def greet(self) -> Greeting:
        """The greeting of the first. UserError where it cannot start or has no device."""
        try:
            return self.start().greet()
        except WorkerDied as death:
            raise UserError(death.reason) from None

    def next(self) -> Worker:
        """A worker that is ready to measure. WorkerDied or UserError when it cannot start."""
        worker = self.start()
        self._spare = None
        try:
            worker.greet()
        except BaseException:
            worker.close()  # nothing else has it
            raise
        return worker

    def load_ahead(self) -> None:
        """Let the next one load its libraries meanwhile, and leave the GPU alone."""
        self.start(early=True)

    def close(self) -> None:
        """End one that was not used."""
        if self._spare:
            self._spare.close()


# ---------------------------------------------------------------- in the child


def _live(pipe: Connection, serve: Serve, settings: object) -> None:
    die_with_parent()
    if not serve_requests(pipe, serve, settings):
        os._exit(1)  # what would be freed now raises again, where the device is of no more use


def serve_requests(pipe: Connection, serve: Serve, settings: object) -> bool:
    """Answer requests until the parent closes the pipe; False where an error ended that."""
    try:
        serve(pipe, settings)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return True  # the parent has gone
    except UserError as error:
        why = ("refused", str(error))
    except WorkerDied as death:
        why = ("dead", death.reason)
    except BaseException as error:  # a user's code may raise SystemExit or KeyboardInterrupt too
        from microbench.device.device import fault_of_gpu

        why = ("dead", one_line(fault_of_gpu() or error))
    else:
        return True
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, for a reason of its own
        pipe.send(why)
    return False


def greet_parent(pipe: Connection, device: str) -> DeviceInfo:
    """In the child: send the parent a description of the device. UserError if it does not exist."""
    from microbench.device import device as devices
    from microbench.device.host import at_start

    info = devices.describe(device)
    load = at_start(devices.gpu_state(info))  # before this process has a CUDA context
    free_bytes = devices.free_memory_bytes(info)
    pipe.send(("ok", Greeting(info.as_dict(), devices.software(), info.target(), free_bytes, load)))
    if info.kind == "cuda":
        import torch

        torch.cuda.set_device(info.index)
    return info


EARLY = ("torch", "cupy", "microbench.measure", "microbench.roofline.ceilings")


def _begin_driver() -> None:
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


def _measure_on_request(
    pipe: Connection, settings: Conditions, *, early: bool, compiles: bool
) -> None:
    if compiles:
        with suppress(OSError):
            precompile.start()  # first of all: it takes as long as loading torch does here
    if early:
        for name in EARLY:
            with suppress(ImportError):
                import_module(name)
        if compiles:
            precompile.load_compiler()
        pipe.recv()
    else:
        Thread(target=_begin_driver, daemon=True).start()  # while torch loads
    from microbench.device import device as devices
    from microbench.device.host import others_now
    from microbench.measure import Measurer
    from microbench.roofline.ceilings import calibrate
    from microbench.timing.timers import make_timer

    info = greet_parent(pipe, settings.device)
    target = replace(info.target(), without=patterns(settings.without))
    timer = make_timer(
        settings.timer, settings.l2, info.kind, info.index, info.l2_bytes, info.sm_count
    )

    def announce(key: str, stage: str) -> None:
        pipe.send(("stage", key, stage))

    with devices.open_telemetry(info) as telemetry:
        measurer = Measurer(
            target, timer, telemetry, settings.regime, settings.seed or 0, settings.tune,
            tracebacks=settings.outputs.verbose,
        )  # fmt: skip
        while True:
            kind, *rest = pipe.recv()
            if kind == "expect":
                measurer.tuner.expect(rest[0])
                pipe.send(("ok", None))
            elif kind == "calibrate":
                precisions, large = rest
                pipe.send(("ok", calibrate(measurer, precisions, large, announce)))
            elif kind == "others":
                pipe.send(("ok", others_now(devices.gpu_state(info))))
            else:
                group, budget_s, checked, fewest = rest
                results = measurer.measure(
                    group, budget_s, announce, checked=checked, fewest=fewest
                )
                pipe.send(("ok", results))
