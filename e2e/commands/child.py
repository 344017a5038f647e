"""The training process. It has the device, the data and the arms; the parent has the screen."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock
from typing import TYPE_CHECKING, Any

from click import Context
from click.globals import push_context

from e2e.case import TrainSettings
from e2e.networks.table import NetworkFacts
from e2e.results.terms import TracedStep
from e2e.training.distributed import place_of
from kernels.error_words import one_line
from microbench.command_line import Program
from microbench.device.device import fault_of_gpu
from microbench.errors import UserError
from microbench.worker import OnStage, WorkerDied, greet_parent

if TYPE_CHECKING:
    from e2e.training.distributed.ranks import Ranks
    from microbench.device.device import DeviceInfo

STAND_IN = (
    "The loss is a placeholder (the mean square of the output): the speed is that of training, "
    "the accuracy is not. For a real loss give --loss module:function."
)
# Steps that are recorded; one on a CPU, where they are long.
TRACED_STEPS, CPU_TRACED_STEPS = 2, 1
RECORDINGS = 2  # at most: the profiler loses kernels now and then
# cuBLAS reads it when it is loaded; without it torch refuses GEMMs in deterministic mode.
CUBLAS_DETERMINISTIC = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
SILENT = "9"  # of the profiler's own messages on standard error
# Requests that all ranks answer, where there are several.
SHARED = ("open", "set_up", "time", "trace", "train")
# Those of them in which a rank that hangs is known from an exchange alone.
EXCHANGING = ("trace", "train")
POLL_S = 0.05  # sensors are read less often than for kernels: the host has a loop to run


@dataclass(frozen=True)
class DataFacts:
    """What the parent must know of the network and its data. `train_samples` None: endless.

    `devices` are the GPUs of this machine, None where it trains on the CPU.
    """

    network: NetworkFacts
    name: str
    classes: int
    train_samples: int | None
    held_out: int | None
    notes: tuple[str, ...]
    devices: int | None = None


def train_on_request(pipe: Connection, settings: TrainSettings) -> None:
    """Answer a `TrainWorker`. Under torchrun this process is rank 0, and tells the others."""
    place = place_of(os.environ)
    if place is None:
        _train(pipe, settings, greet_parent(pipe, settings.device), None)
        return
    from e2e.commands.rank import LeadingPipe
    from e2e.training.distributed.ranks import Ranks, RanksLost, device_of

    device = device_of(place, settings.device)
    info = greet_parent(pipe, str(device))
    sending = Lock()

    def missed(reason: str) -> None:
        with sending:
            pipe.send(("dead", reason))

    ranks = Ranks.join(place, device, missed)
    try:
        ranks.tell((settings,))
        _train(LeadingPipe(pipe, ranks, sending), settings, info, ranks)
    except EOFError:
        ranks.leave()
        raise
    except RanksLost as error:
        raise WorkerDied("", str(error)) from error


def follow_requests(pipe: Any, ranks: Ranks) -> None:
    """On another rank: do what rank 0 is asked for. EOFError when it ends."""
    from microbench.device import device as devices

    (settings,) = ranks.hear()
    info = devices.describe(str(ranks.device))
    _train(pipe, settings, info, ranks)


def _train(pipe: Any, settings: TrainSettings, info: DeviceInfo, ranks: Ranks | None) -> None:
    push_context(Context(Program()))  # the network's code cannot start the program within itself
    os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)  # torch reads it when it is loaded
    if settings.case.deterministic:
        os.environ.setdefault(*CUBLAS_DETERMINISTIC)
    from e2e.data.loader_bench import LoadMeter
    from e2e.data.loaders.cpus import limit_cpus
    from e2e.training.arm_timer import ArmTimer
    from e2e.training.distributed.ranks import AGREE_S, ALONE_S
    from e2e.training.host_speed import SmallStepSpeed
    from microbench.device import device as devices
    from microbench.device.load import others_now

    if settings.case.cpus:
        limit_cpus(settings.case.cpus)
    if settings.case.memory_limit and info.memory_bytes:
        devices.limit_memory(info.index, settings.case.memory_limit)
    kind, *_ = pipe.recv()
    assert kind == "open"

    def announce(key: str, stage: str) -> None:
        pipe.send(("stage", key, stage))

    def opened() -> tuple[Any, DataFacts]:
        return _opened(settings, info.target().torch_device, announce, ranks)

    task, facts = ranks.together(opened) if ranks else opened()
    pipe.send(("ok", facts))
    # On a computer without CUDA it warns at every compilation.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with devices.open_telemetry(info, POLL_S) as telemetry:
        timer = ArmTimer(task, info.target(), telemetry)
        meter = LoadMeter(task.data, timer.device, task.seed)
        predictor: Any = None
        # Read beside timed steps: what the CPU limits compares at one speed.
        own_speed = (
            SmallStepSpeed(timer.device) if timer.cuda and (not ranks or ranks.leads) else None
        )
        try:
            while True:
                kind, *rest = pipe.recv()
                if kind == "predict":
                    predictor = predictor or _make_predictor(task, info)
                    pipe.send(("ok", predictor.predict(rest[0], announce)))
                elif kind == "others":
                    pipe.send(("ok", others_now(devices.gpu_state(info))))
                else:
                    answer = partial(_answer, timer, meter, own_speed, kind, rest, announce)
                    if ranks and kind in SHARED:
                        wait_s = AGREE_S if kind in EXCHANGING else ALONE_S
                        pipe.send(("ok", ranks.together(answer, wait_s)))
                    else:
                        pipe.send(("ok", answer()))
        finally:
            timer.end_loading()
            # After a failed graph capture, freeing memory raises errors that say nothing new.
            with suppress(RuntimeError):
                timer.close()


def _make_predictor(task: Any, info: DeviceInfo) -> Any:
    from e2e.prediction.predictor import Predictor
    from e2e.prediction.store import Store
    from microbench.device.device import software

    store = Store(info.as_dict(), software())
    return Predictor(task.network, info.target(), task.data.classes, store, info.memory_bytes)


def _answer(
    timer: Any, meter: Any, host_speed: Any, kind: str, rest: Sequence[Any], announce: OnStage
) -> object:
    from e2e.training.once import train_once
    from microbench import fmt

    if kind == "load":
        timer.close()  # arms would be beside it
        return meter.measure(*rest)
    if kind == "set_up":
        return timer.set_up(rest[0], announce)
    if kind == "time":
        return timer.time(rest[0], announce, host_speed)
    if kind == "trace":
        return {key: _traced(timer, key, announce) for key in timer.held}
    if kind == "train":
        timer.end_loading()
        key, seed, steps, epoch, count_every = rest
        held = timer.held[key]

        began_s = time.perf_counter()

        def on_step(step: int) -> None:
            left_s = (time.perf_counter() - began_s) / max(1, step) * (steps - step)
            left = f", about {fmt.rough_duration(left_s)} left" if step else ""
            announce(key, f"training, seed {seed}, step {step} of {steps}{left}")

        on_step(0)
        return train_once(held, timer.task.data, seed, steps, on_step, epoch, count_every)
    assert kind == "notes"
    return tuple(timer.task.data.notes)


def _traced(timer: Any, key: str, announce: OnStage) -> TracedStep | str:
    """Recorded steps of an arm, or why there are none.

    RuntimeError after a fault that the device does not survive.
    """
    from e2e.profile.step import NothingSeen
    from e2e.profile.training_steps import traced_step

    announce(key, "recording steps")
    trainer = timer.held[key].trainer
    why = ""
    found: TracedStep | None = None
    for _ in range(RECORDINGS):
        again = False
        try:
            found = traced_step(
                timer.step_alone(key),
                trainer.module,
                TRACED_STEPS if timer.cuda else CPU_TRACED_STEPS,
                # Hooks of modules would be compiled with them.
                named=not trainer.case.compile,
            )
        except Exception as error:
            timer.raise_if_dead(error)
            why, again = one_line(error), isinstance(error, NothingSeen)
        # Every rank takes the same steps: rank 0 says whether there are more.
        if not (timer.ranks.same(again) if timer.ranks else again):
            break
    return found or why


def _opened(
    settings: TrainSettings, device: str, announce: OnStage, ranks: Ranks | None
) -> tuple[Any, DataFacts]:
    """The task and the facts of its data. UserError for what is wrong with network or data."""
    from dataclasses import replace

    import torch

    from e2e.data.datasets import Options, open_data
    from e2e.data.types import ALL
    from e2e.networks import find
    from e2e.networks.weights import with_weights
    from e2e.training.arms import Task

    announce("", f"building {settings.network}")
    network = find(settings.network, input=settings.input, loss=settings.loss)
    classes, stands_in = network.classes, False
    if classes is None:
        announce("", f"running {settings.network} once")
        classes, stands_in = _look_at(network, device)
    options = Options(
        network.input,
        classes=classes,
        tokens=network.tokens,
        strict=settings.strict,
        workers=settings.case.workers,
        loader=settings.case.loader,
        device=torch.device(device),
        share=(ranks.rank, ranks.world) if ranks else ALL,
    )
    announce("", f"opening --data {settings.data}")
    try:
        data = open_data(settings.data, options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--data {settings.data}: {one_line(error)}") from None
    if data.train_samples is not None and network.tokens is None:
        network = find(
            settings.network, input=settings.input, loss=settings.loss, classes=data.classes
        )
    network = replace(network, classes=data.classes)
    if settings.weights:
        announce("", f"loading {settings.weights.name}")
        network = with_weights(network, settings.weights)
    task = Task(network, data, settings.seed, ranks)
    notes = [*data.notes, *([STAND_IN] if stands_in else [])]
    return task, DataFacts(
        network.facts, data.name, data.classes, data.train_samples, data.held_out_samples,
        tuple(notes),
        torch.cuda.device_count() if torch.device(device).type == "cuda" else None,
    )  # fmt: skip


def _look_at(network: Any, device: str) -> tuple[int | None, bool]:
    """(classes, whether the loss is a stand-in), from a user's network's output for two samples.

    UserError with the error that its forward raises.
    """
    import torch

    from microbench.network.networks import tensors_in

    shape = (2, *network.input)
    if network.tokens is None:
        inputs = torch.randn(shape, device=device)
    else:
        inputs = torch.randint(network.tokens, shape, device=device)
    try:
        with torch.no_grad():
            output = network.build().to(device)(inputs)
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()  # its kernels' faults are its own
    except Exception as error:
        cause = fault_of_gpu() or error
        raise UserError(f"{network.name}: its forward raised {one_line(cause)}") from None
    first = next(tensors_in(output), None)
    classes = first.shape[1] if first is not None and first.dim() == 2 else None
    target = inputs if network.tokens else torch.zeros(2, dtype=torch.int64, device=device)
    return None if network.tokens else classes, network.stands_in(output, target)
