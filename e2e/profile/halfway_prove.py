"""Try what may be slow in a training step, one change at a time, in the training that runs.

halfway_watch.py uses this file for --prove, and both are copied together. Like it, this file needs
the standard library and torch alone (Python 3.9 or newer, torch 2.0 or newer).

Steps as they are (A) and steps with one change (B) run in blocks, in the order A B B A. Only times
are written; what they mean is said by `halfway diagnose`, in another process. Where the training
goes on afterwards, its weights, optimizers, loss scaler, random numbers and batches are those that
it would have had.
"""

from __future__ import annotations

import copy
import gc
import gzip
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch as installed
from torch.utils import _pytree
from torch.utils.data import dataloader

torch: Any = installed  # any version from 2.0 on: their names differ
pytree: Any = _pytree
loaders: Any = dataloader

KEY = "halfway_proved"  # of the results in the trace
SCOUTED = 3  # steps in which is seen what there is to change
ROUNDS, LEAST_ROUNDS = 6, 3  # pairs of blocks, one as it is and one changed
DISCARDED = 2  # steps at the start of a block
BLOCK_S, LEAST_STEPS, MOST_STEPS = 0.5, 3, 10  # of a block: its time, and its steps at least, most
MOST_S = 20.0  # of one change: then no further round begins
LITTLE = 0.01  # of a step: data loading below it is not worth trying
MOST_KEPT_BYTES = 4 << 30  # of batches that are kept for the training that goes on
SAME_STEP = 4  # times as many batches as in other steps: it is no longer a training step
ENDED = "the script ended first"
COMPILED = "the model is compiled"
GOES_ON = "it might break a training that goes on"

Steps = Generator[None, None, Any]  # goes on at the end of each step
Function = Callable[..., Any]


class Prover:
    """Runs the changes as `step` is called at the end of each step, until `done`.

    `mark` and `seconds` are a clock: a mark, and the seconds between two. `bare_s` is about a
    step's time. `goes_on`: the training is to continue as if nothing had been tried. `keep` is
    called with the results, as plain data.
    """

    def __init__(
        self, mark: Function, seconds: Function, bare_s: float, goes_on: bool, keep: Function
    ) -> None:
        self._mark, self._seconds, self._keep = mark, seconds, keep
        self._steps = min(MOST_STEPS, max(LEAST_STEPS, round(BLOCK_S / max(bare_s, 1e-9))))
        self._bare_s, self._goes_on = bare_s, goes_on
        self._state = State() if goes_on else None
        self._schedules = _stopped_schedules()
        self._feed = Feed(goes_on)
        self._found: list[dict[str, Any]] = []
        self._failed: dict[str, str] = {}
        self._now: Trial | None = None
        self.done = False
        self.steps = 0  # that have been used
        self._plan = self._run()
        next(self._plan)

    def step(self) -> None:
        """Call it at the end of each step."""
        self.steps += 1
        self._feed.step()
        try:
            next(self._plan)
        except StopIteration:
            self.end()

    def end(self, why: str = ENDED) -> None:
        """Put everything back, and hand over what was found. `why` no more can be tried."""
        if self.done:
            return
        self.done = True
        if self._now is not None:
            self._failed[self._now.name] = why
        self._plan.close()
        self._feed.end()
        for patch in self._schedules:
            patch.remove()
        if self._state is not None:
            self._state.restore()
        self._hand_over()

    def _hand_over(self) -> None:
        self._keep({"steps": self.steps, "tried": self._found, "not_tried": self._failed})

    # ------------------------------------------------------------ the plan

    def _run(self) -> Steps:
        scene = Scene(self._feed, self._bare_s)
        try:
            for _ in range(SCOUTED):
                yield
                scene.step()
        finally:
            scene.leave()
        self._feed.choose(SCOUTED)
        for kind in TRIALS:
            trial = kind(scene)
            why = COMPILED if trial.eager and scene.compiled else None
            why = why or (GOES_ON if trial.risky and self._goes_on else trial.why_not())
            if why:
                self._failed[trial.name] = why
            if why is None:
                if trial.risky:
                    self._hand_over()  # it may be the last one
                self._now = trial
                yield from self._try(trial)
                self._now = None

    def _try(self, trial: Trial) -> Steps:
        """The turns of one change, and what they took."""
        as_is: list[list[float]] = []
        changed: list[list[float]] = []
        began_s = time.perf_counter()
        try:
            for number in range(ROUNDS):
                if number >= LEAST_ROUNDS and time.perf_counter() - began_s > MOST_S:
                    break
                for turn in (False, True) if number % 2 == 0 else (True, False):
                    times = yield from self._block(trial, turn)
                    (changed if turn else as_is).append(times)
        except Exception as error:  # of the change itself: the script's do not come by here
            self._failed[trial.name] = _first_line(error)
        finally:
            rounds = min(len(as_is), len(changed))
            if self._feed.dry and not trial.resident:
                self._failed[trial.name] = self._feed.dry
            elif rounds >= LEAST_ROUNDS:
                self._found.append({
                    "name": trial.name, "change": trial.change,
                    "as_is_s": as_is[:rounds], "changed_s": changed[:rounds],
                })  # fmt: skip
                self._failed.pop(trial.name, None)

    def _block(self, trial: Trial, turn: bool) -> Steps:
        self._feed.resident = trial.resident
        with trial.working() if turn else nullcontext():
            for _ in range(DISCARDED):
                yield
                trial.step()
            marks = [self._mark()]
            for _ in range(self._steps):
                yield
                trial.step()
                marks.append(self._mark())
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        ends = iter(marks[1:])
        return [self._seconds(begin, end) for begin, end in zip(marks, ends)]  # noqa: B905


def add_to(path: str, found: dict[str, Any]) -> None:
    """Put results into a trace file, at its head. OSError where it cannot be written."""
    packed = path.endswith(".gz")
    partial = f"{path}.{os.getpid()}.part"
    with (gzip.open if packed else open)(path, "rb") as source:
        text = source.read()
    head, _, tail = text.partition(b"{")
    if tail.startswith(f'"{KEY}":'.encode()):  # what was found before has a line of its own
        tail = tail.partition(b"\n")[2]
    line = json.dumps({KEY: found}, separators=(",", ":")).encode()
    try:
        with (gzip.open if packed else open)(partial, "wb") as target:
            target.write(head + line[:-1] + b",\n" + tail)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


# ---------------------------------------------------------------- what there is


class Scene:
    """What some steps do: the model and its inputs, autocast, reads of the device, optimizers."""

    def __init__(self, feed: Feed, bare_s: float) -> None:
        self.feed, self.bare_s = feed, bare_s
        self.model: Any = None
        self.inputs: tuple[Any, ...] = ()
        self.named_inputs: dict[str, Any] = {}
        self.calls = 0  # of the model
        self.autocast: tuple[str, Any] | None = None  # around it: the device's kind, the type
        self.entered = 0  # outermost enabled autocasts
        self.compiled = _is_compiled()
        self.optimizers = _alive(torch.optim.Optimizer)
        self._depth = self._inside = 0
        self._largest, self._noting = -1, False
        self._handles: list[Any] = []
        if self.compiled:
            return  # who looks on would have it compiled again
        self.reads = Reads(replay=False)
        hooks = torch.nn.modules.module
        self._handles = [
            self.reads,
            hooks.register_module_forward_pre_hook(self._enter),
            _always(hooks.register_module_forward_hook, self._leave),
            Patch(torch.autocast, "__enter__", self._entered),
            Patch(torch.autocast, "__exit__", self._exited),
        ]

    @property
    def cuda(self) -> bool:
        """Whether the model is on a GPU."""
        return self.device.type == "cuda"

    @property
    def device(self) -> Any:
        """Of the model's first parameter; a GPU that is in use where no model is known."""
        found = next(self.model.parameters(), None) if self.model is not None else None
        kind = "cuda" if torch.cuda.is_initialized() else "cpu"
        return found.device if found is not None else torch.device(kind)

    def step(self) -> None:
        """The end of a step; from now on the model's inputs are looked at."""
        self._depth = 0
        if self.model is not None and not self._noting:
            self._noting = True
            note = self.model.register_forward_pre_hook(self._note, with_kwargs=True)
            self._handles.append(note)

    def leave(self) -> None:
        """Take everything away that looks on."""
        for handle in self._handles:
            handle.remove()

    def forward(self) -> Any:
        """Forward and backward once, to see whether the model takes a change. Raises what it does.

        Gradients are those of before.
        """
        grads = [(p, p.grad) for p in self.model.parameters()]
        for parameter, _ in grads:
            parameter.grad = None
        try:
            with self.as_called():
                found = self.model(*_detached(self.inputs), **_detached(self.named_inputs))
            outputs = [t for t in _tensors(found) if t.requires_grad]
            if outputs:
                torch.autograd.backward([t.float().mean() for t in outputs])
        finally:
            for parameter, grad in grads:
                parameter.grad = grad

    def as_called(self, **options: Any) -> Any:
        """The autocast that was around the model."""
        if self.autocast is None:
            return nullcontext()
        kind, dtype = self.autocast
        return torch.autocast(kind, dtype, **options)

    def _enter(self, module: Any, _inputs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return
        count = sum(p.numel() for p in module.parameters())
        if count > self._largest and not self._noting:
            self._largest, self.model = count, module

    def _leave(self, _module: Any, _inputs: Any, _output: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _note(self, _module: Any, inputs: Any, named: Any) -> None:
        self.inputs, self.named_inputs = inputs, named
        self.calls += 1
        kind = self.device.type
        self.autocast = (kind, _autocast_dtype(kind)) if _autocast_is_on(kind) else None

    def _entered(self, original: Function, autocast: Any) -> Any:
        if autocast._enabled:
            self.entered += self._inside == 0
            self._inside += 1
        return original(autocast)

    def _exited(self, original: Function, autocast: Any, *rest: Any) -> Any:
        if autocast._enabled:
            self._inside = max(0, self._inside - 1)
        return original(autocast, *rest)


class Feed:
    """Stands between DataLoaders and the loop: hands out one batch again and again, if `resident`.

    Where the training goes on, batches that were used meanwhile are handed out again later. A
    loader in the training's own process loads them again, so that random numbers agree too.
    """

    def __init__(self, goes_on: bool) -> None:
        self.resident = False
        self.dry = ""  # why batches did not suffice
        self.wait_s = 0.0  # in a step
        self.main: int | None = None  # the source of training batches
        self._goes_on, self._proving = goes_on, True
        self._counts: dict[int, int] = {}
        self._waits_s: dict[int, float] = {}
        self._batches: dict[int, Any] = {}
        self._kept: dict[int, tuple[Any, deque[Any]]] = {}
        self._kept_bytes = 0
        self._this_step, self._a_step = 0, 1.0
        self._patch = Patch(loaders._BaseDataLoaderIter, "__next__", self._next)

    def step(self) -> None:
        """The end of a step."""
        self._this_step = 0

    def choose(self, steps: int) -> None:
        """Take the source with the most batches in these steps for that of the training."""
        if self._counts:
            self.main = max(self._counts, key=lambda source: self._counts[source])
            self._a_step = max(1.0, self._counts[self.main] / steps)
            self.wait_s = self._waits_s[self.main] / steps
            if self._counts[self.main] < steps:  # not one a step
                self.main = None

    def end(self) -> None:
        """Hand out what a loader has next, and before that what it gave meanwhile."""
        self._proving = self.resident = False
        self._batches.clear()
        if not any(kept for _, kept in self._kept.values()):
            self._patch.remove()

    def _next(self, original: Function, iterator: Any) -> Any:
        source = id(getattr(iterator, "_index_sampler", None))
        if not self._proving:
            return self._again(original, iterator)
        self._this_step += 1
        in_step = self._this_step <= SAME_STEP * self._a_step
        is_main = source == self.main and source in self._batches
        if is_main and in_step and (self.resident or self.dry):
            return self._batches[source]
        began_s = time.perf_counter()
        try:
            batch = self._loaded(original, iterator)
        except StopIteration:
            if not (is_main and in_step and self._goes_on):
                raise
            self.dry = "the loader has too few batches left"
            return self._batches[source]
        self._waits_s[source] = self._waits_s.get(source, 0.0) + time.perf_counter() - began_s
        self._counts[source] = self._counts.get(source, 0) + 1
        self._batches[source] = batch
        return batch

    def _loaded(self, original: Function, iterator: Any) -> Any:
        if not self._goes_on:
            return original(iterator)
        _, kept = self._kept.setdefault(id(iterator), (iterator, deque()))
        if iterator._num_workers == 0 and iterator._dataset_kind == 0:  # samples by their numbers
            if "_next_index" not in vars(iterator):
                iterator._next_index = self._indices(iterator._next_index, kept)
            return original(iterator)
        batch = original(iterator)
        kept.append(batch)
        self._kept_bytes += sum(t.numel() * t.element_size() for t in _tensors(batch))
        if self._kept_bytes > MOST_KEPT_BYTES:
            self.dry = "its batches are too large to be kept for the training that goes on"
        return batch

    def _indices(self, real: Function, kept: deque[Any]) -> Function:
        def next_index() -> Any:
            if self._proving:
                kept.append(real())
                return kept[-1]
            return kept.popleft() if kept else real()

        return next_index

    def _again(self, original: Function, iterator: Any) -> Any:
        _, kept = self._kept.get(id(iterator), (None, None))
        if kept and "_next_index" not in vars(iterator):
            return kept.popleft()
        return original(iterator)


class Reads:
    """Reads of tensors on a device: each waits for it. Counted, or, with `replay`, repeated.

    Repeated: the first step reads, later ones get what the same call in the same place got then.
    So a loop that depends on what it reads takes the same course. `on` says which tensors count.
    """

    NAMES = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__")

    def __init__(self, replay: bool, on: Callable[[Any], bool] | None = None) -> None:
        self.count = 0  # that did read
        self._replay, self._first = replay, True
        self._on = on or _on_gpu
        self._known: dict[Any, Any] = {}
        self._times: dict[Any, int] = {}
        self._patches = [Patch(torch.Tensor, name, self._reader(name)) for name in self.NAMES]

    def step(self) -> None:
        """The end of a step."""
        self._times.clear()
        self._first = False

    def remove(self) -> None:
        """Read as before."""
        for patch in self._patches:
            patch.remove()

    def _reader(self, name: str) -> Function:
        def read(original: Function, tensor: Any, *rest: Any, **named: Any) -> Any:
            if not self._on(tensor):
                return original(tensor, *rest, **named)
            caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
            place = (caller.f_code, caller.f_lasti, name)
            self._times[place] = number = self._times.get(place, 0) + 1
            if self._replay and not self._first and (place, number) in self._known:
                return self._known[place, number]
            self.count += 1
            found = original(tensor, *rest, **named)
            if self._replay:
                self._known[place, number] = found
            return found

        return read


# ---------------------------------------------------------------- changes


class Trial:
    """One change; `change` says in words what is done.

    `resident`: all its blocks have the same batch. `risky`: a script may not bear it. `eager`: it
    does nothing to compiled code, or has it compiled again.
    """

    name = change = ""
    resident, risky, eager, at_work = True, False, False, False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._switches: list[Function] = []  # that put back what was switched

    def why_not(self) -> str | None:
        """None where it can be tried, "" where there is nothing to change, or a reason."""
        return None

    def enter(self) -> None:
        """Make the change."""

    def leave(self) -> None:
        """Take it back; also where `enter` has failed."""
        while self._switches:
            self._switches.pop()()

    def step(self) -> None:
        """The end of a step, changed or not."""

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        """The change at work."""
        self.at_work = True
        try:
            self.enter()
            yield
        finally:
            self.at_work = False
            self.leave()

    def switch(self, holder: Any, name: str, value: Any) -> None:
        """Set an attribute until `leave`."""
        self._switches.append(partial(setattr, holder, name, getattr(holder, name)))
        setattr(holder, name, value)

    def switch_item(self, holder: dict[str, Any], name: str, value: Any) -> None:
        """Set an item until `leave`."""
        self._switches.append(partial(holder.__setitem__, name, holder[name]))
        holder[name] = value

    def until_left(self, thing: Any) -> None:
        """Call the thing's `remove` in `leave`."""
        self._switches.append(thing.remove)


class SameBatch(Trial):
    """No data loading."""

    name, change, resident = "loader", "the same batch again and again", False

    def why_not(self) -> str | None:
        """Without a DataLoader, and where its wait is short, there is nothing to try."""
        feed = self.scene.feed
        waits = feed.main is not None and feed.wait_s > LITTLE * self.scene.bare_s
        return None if waits else ""

    def enter(self) -> None:
        """From now on the batch is resident."""
        self.switch(self.scene.feed, "resident", True)


class RepeatedReads(Trial):
    """No synchronisation by reading."""

    name, change = "sync", "reads of the device repeat what they gave first, without waiting"
    eager = True
    _reads: Reads | None = None

    def why_not(self) -> str | None:
        """Without reads there is nothing to repeat."""
        return None if self.scene.reads.count else ""

    def enter(self) -> None:
        """The first step of the block reads."""
        self._reads = Reads(replay=True)
        self.until_left(self._reads)

    def step(self) -> None:
        """As of Reads."""
        if self._reads is not None:
            self._reads.step()


class Tf32(Trial):
    """TF32 in GEMMs and convolutions."""

    name, change = "tf32", "TF32 allowed"

    def why_not(self) -> str | None:
        """A card with TF32 that is not allowed."""
        if not self.scene.cuda or torch.cuda.get_device_capability()[0] < 8:
            return ""
        try:
            return "" if torch.backends.cuda.matmul.allow_tf32 else None
        except RuntimeError:  # the script has used the newer names
            return "" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None

    def enter(self) -> None:
        """By the names that the script uses: torch refuses a mixture."""
        try:
            self.switch(torch.backends.cuda.matmul, "allow_tf32", True)
            self.switch(torch.backends.cudnn, "allow_tf32", True)
        except RuntimeError:
            self.switch(torch.backends.cuda.matmul, "fp32_precision", "tf32")


class Search(Trial):
    """cuDNN's search for the fastest algorithm."""

    name, resident = "benchmark", False

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        is_on = torch.backends.cudnn.benchmark
        self.change = f"torch.backends.cudnn.benchmark = {not is_on}"

    def why_not(self) -> str | None:
        """Only convolutions on a GPU are searched for."""
        return None if self.scene.cuda and _convolutions(self.scene.model) else ""

    def enter(self) -> None:
        """The other way round."""
        self.switch(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)


class CastOnce(Trial):
    """Weights are cast once a step, however often autocast is entered."""

    name, change, eager = "casts", "casts of weights kept until the optimizer's step", True

    def why_not(self) -> str | None:
        """With one autocast around it all they are cast once already."""
        return None if self.scene.entered > SCOUTED else ""

    def enter(self) -> None:
        """As if one more autocast were around the step."""
        torch.autocast_increment_nesting()

    def leave(self) -> None:
        """Balanced, since `enter` cannot fail."""
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()

    def step(self) -> None:
        """The weights are new."""
        if self.at_work:
            torch.clear_autocast_cache()


class Together(Trial):
    """Updates of all parameters together."""

    name, change = "optimizer", "fused or foreach updates"

    def why_not(self) -> str | None:
        """Only where one tensor is updated at a time, and torch's optimizer knows better."""
        return None if list(self._single()) else ""

    def _single(self) -> Iterable[tuple[Any, dict[str, Any]]]:
        for optimizer in self.scene.optimizers:
            for group in optimizer.param_groups:
                on_gpu = any(p.is_cuda for p in group["params"])
                by_default = group.get("foreach") is None and not on_gpu
                is_single = group.get("foreach") is False or by_default
                if "foreach" in group and not group.get("fused") and is_single and group["params"]:
                    yield optimizer, group

    def enter(self) -> None:
        """Fused where this torch can, else foreach."""
        for optimizer, group in self._single():
            fused = "fused" in group and _fuses(type(optimizer), group["params"][0])
            self.switch_item(group, "foreach", not fused)
            if fused:
                self.switch_item(group, "fused", True)
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if torch.is_tensor(state.get("step")):  # a fused kernel counts on the device
                        self.switch_item(state, "step", state["step"].to(parameter.device))
                        self._count_back(state)

    def _count_back(self, state: dict[str, Any]) -> None:
        """What was counted on the device is the count afterwards."""
        put_back = self._switches.pop()

        def counted() -> None:
            now = state["step"]
            put_back()
            state["step"].copy_(now)

        self._switches.append(counted)


class NoAutocast(Trial):
    """Autocast that does nothing: what low precision brings, or costs."""

    name, change, eager = "amp", "autocast switched off", True

    def why_not(self) -> str | None:
        """Without autocast there is none to switch off."""
        return None if self.scene.entered else ""

    def enter(self) -> None:
        """Whoever asks for it."""
        self.until_left(Patch(torch.autocast, "__enter__", self._disabled))

    def _disabled(self, original: Function, autocast: Any) -> Any:
        asked = autocast._enabled
        autocast._enabled = False
        try:
            return original(autocast)
        finally:
            autocast._enabled = asked


class ChannelsLast(Trial):
    """Model and inputs in channels_last; what the model returns is as it was."""

    name, change = "layout", "model and inputs in channels_last"
    risky = eager = True

    def why_not(self) -> str | None:
        """Images in the default layout and a model with convolutions."""
        inputs = [t for t in _tensors((self.scene.inputs, self.scene.named_inputs)) if _image(t)]
        weights = _convolutions(self.scene.model)
        if not inputs or not weights or _is_last(inputs[0]) or _is_last(weights[-1]):
            return ""
        try:
            with self.working():
                self.scene.forward()
        except Exception as error:
            return f"the model does not run in channels_last: {_first_line(error)}"
        return None

    def enter(self) -> None:
        """Weights, what the optimizer keeps of them, and inputs."""
        self._switches.append(lambda: self._to(torch.contiguous_format))
        self._to(torch.channels_last)
        model = self.scene.model
        self.until_left(model.register_forward_pre_hook(self._inputs, with_kwargs=True))
        self.until_left(model.register_forward_hook(self._outputs))

    def _to(self, layout: Any) -> None:
        self.scene.model.to(memory_format=layout)
        for optimizer in self.scene.optimizers:
            for state in optimizer.state.values():
                for name, value in state.items():
                    if torch.is_tensor(value) and _image(value):
                        state[name] = value.contiguous(memory_format=layout)

    def _inputs(self, _module: Any, inputs: Any, named: Any) -> Any:
        return _mapped(_last, inputs), _mapped(_last, named)

    def _outputs(self, _module: Any, _inputs: Any, output: Any) -> Any:
        return _mapped(_plain, output)


class WithAutocast(Trial):
    """Autocast with BF16 around a model that has none; what it returns is float32 as before."""

    name, change = "float32", "autocast with BF16 around the model"
    risky = eager = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._open: list[Any] = []

    def why_not(self) -> str | None:
        """A card with BF16 and a model of float32 without autocast."""
        scene = self.scene
        if not scene.cuda or not scene.calls or scene.entered or not torch.cuda.is_bf16_supported():
            return ""
        if any(p.dtype != torch.float32 for p in scene.model.parameters()):
            return ""
        try:
            with self.working():
                scene.forward()
        except Exception as error:
            return f"the model does not run under autocast: {_first_line(error)}"
        return None

    def enter(self) -> None:
        """Around each call of the model."""
        self._switches.append(self._close)
        self.until_left(self.scene.model.register_forward_pre_hook(self._before))
        self.until_left(self.scene.model.register_forward_hook(self._after))

    def _before(self, _module: Any, _inputs: Any) -> None:
        self._open.append(torch.autocast("cuda", torch.bfloat16))
        self._open[-1].__enter__()

    def _after(self, _module: Any, _inputs: Any, output: Any) -> Any:
        self._close()
        return _mapped(_single, output)

    def _close(self) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)


class Graph(Trial):
    """The model's forward and backward as CUDA graphs; loss and optimizer as they are."""

    name, change = "launch", "the model's forward and backward as CUDA graphs"
    risky = eager = True
    _graphed: Function | None = None

    def why_not(self) -> str | None:
        """Torch captures modules that take tensors, once a step."""
        scene = self.scene
        if not scene.cuda or not scene.calls:
            return ""
        if scene.named_inputs or not all(map(torch.is_tensor, scene.inputs)):
            return "the model takes more than tensors in their places"
        if scene.calls > SCOUTED - 1:  # they are counted from the second step on
            return "the model is called several times in a step"
        try:
            self._graphed = self._captured()
        except Exception as error:
            return f"the model cannot be captured: {_first_line(error)}"
        return None

    def _captured(self) -> Function:
        model, inputs = self.scene.model, _detached(self.scene.inputs)
        own = _own(model, "forward")
        eager = model.forward
        try:
            with self.scene.as_called(cache_enabled=False), _fresh_parameters(model):
                torch.cuda.make_graphed_callables(model, inputs, allow_unused_input=True)
            graphed = model.forward
        finally:
            _put(model, "forward", own)
        wanted = [_likeness(t) for t in inputs]

        def forward(*given: Any, **named: Any) -> Any:
            fits = not named and [_likeness(t) for t in given] == wanted
            return graphed(*given) if fits else eager(*given, **named)

        return forward

    def enter(self) -> None:
        """Other shapes run as before."""
        model = self.scene.model
        own = _own(model, "forward")
        model.forward = self._graphed
        self._switches.append(lambda: _put(model, "forward", own))


@contextmanager
def _fresh_parameters(model: Any) -> Generator[None]:
    """The model with new parameters of the same memory, whose gradients go to the old ones.

    A loss that the script keeps holds autograd's nodes of the old ones, and these belong to the
    usual stream: nothing that meets them can be captured.
    """
    old: list[tuple[Any, str, Any]] = []
    fresh: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                old.append((module, name, parameter))
                if id(parameter) not in fresh:
                    fresh[id(parameter)] = _handing_on(parameter)
    try:
        for module, name, parameter in old:
            module._parameters[name] = fresh[id(parameter)]
        yield
    finally:
        for module, name, parameter in old:
            module._parameters[name] = parameter


def _handing_on(parameter: Any) -> Any:
    """A parameter of the same memory. RuntimeError before torch 2.1, which has no such hook."""
    fresh = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
    if not parameter.requires_grad:
        return fresh
    if not hasattr(fresh, "register_post_accumulate_grad_hook"):
        raise RuntimeError("this needs torch 2.1")

    def hand_on(one: Any) -> None:
        if parameter.grad is None:
            parameter.grad = one.grad
        else:
            parameter.grad.add_(one.grad)
        one.grad = None

    fresh.register_post_accumulate_grad_hook(hand_on)
    return fresh


# In order: those that a script may not bear come last.
TRIALS = (
    SameBatch, RepeatedReads, Tf32, Search, CastOnce, Together, NoAutocast, WithAutocast,
    ChannelsLast, Graph,
)  # fmt: skip


# ---------------------------------------------------------------- state


class State:
    """Copies, in the CPU's memory, of what a training changes; `restore` puts them back."""

    def __init__(self) -> None:
        optimizers = _alive(torch.optim.Optimizer)
        tensors: dict[int, Any] = {}
        for module in _alive(torch.nn.Module):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if torch.is_tensor(tensor):
                    tensors[id(tensor)] = tensor
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                tensors.update((id(p), p) for p in group["params"])
        self._tensors = [(t, _copy(t.detach())) for t in tensors.values()]
        self._optimizers = [(o, _groups(o), _states(o)) for o in optimizers]
        scalers = _alive(torch.cuda.amp.GradScaler, getattr(torch.amp, "GradScaler", None))
        self._scalers = [(scaler, scaler.state_dict()) for scaler in scalers]
        self._random = random.getstate(), torch.get_rng_state()
        self._cuda: Any = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        numpy = sys.modules.get("numpy")
        self._numpy = (numpy.random, numpy.random.get_state()) if numpy is not None else None

    def restore(self) -> None:
        """Everything as it was."""
        with torch.no_grad():
            for tensor, old in self._tensors:
                tensor.detach().copy_(old)
        for optimizer, groups, states in self._optimizers:
            for group, old in zip(optimizer.param_groups, groups):  # noqa: B905
                group.update(old)
            for parameter in list(optimizer.state):
                _restore(optimizer.state[parameter], states.get(parameter, {}))
        for scaler, old in self._scalers:
            scaler.load_state_dict(old)
        random.setstate(self._random[0])
        torch.set_rng_state(self._random[1])
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])


def _stopped_schedules() -> list[Patch]:
    """Learning rates stay as they are: a schedule has an end, and these steps are none of its."""
    kinds = _kinds_of(torch.optim.lr_scheduler.LRScheduler)
    return [Patch(kind, "step", _nothing) for kind in kinds if "step" in vars(kind)]


def _nothing(*_arguments: Any, **_named: Any) -> None:
    pass


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    return [
        {name: _copy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _states(optimizer: Any) -> dict[Any, dict[str, Any]]:
    return {
        parameter: {name: _copy(value) for name, value in state.items()}
        for parameter, state in optimizer.state.items()
    }


def _restore(state: dict[str, Any], old: dict[str, Any]) -> None:
    for name in set(state) - set(old):
        del state[name]
    for name, value in old.items():
        if torch.is_tensor(value) and torch.is_tensor(state.get(name)):
            state[name].detach().copy_(value)
        else:
            state[name] = value


def _copy(value: Any) -> Any:
    if torch.is_tensor(value):
        return value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()
    return copy.copy(value)


# ---------------------------------------------------------------- parts


class Patch:
    """A method of a class that another function stands for; that one gets the method first."""

    def __init__(self, owner: Any, name: str, function: Function) -> None:
        self._owner, self._name = owner, name
        self._own = _own(owner, name)
        original = getattr(owner, name)

        def instead(*arguments: Any, **named: Any) -> Any:
            return function(original, *arguments, **named)

        setattr(owner, name, instead)

    def remove(self) -> None:
        """The method as it was."""
        _put(self._owner, self._name, self._own)


def _own(owner: Any, name: str) -> Any:
    """What an object has under this name, and not its class or its bases; None for nothing."""
    return owner.__dict__.get(name)


def _put(owner: Any, name: str, own: Any) -> None:
    """Set what an object had of its own under this name; None for nothing."""
    if own is not None:
        setattr(owner, name, own)
    elif name in vars(owner):
        delattr(owner, name)


def _alive(*kinds: Any) -> list[Any]:
    wanted = tuple(kind for kind in kinds if kind is not None)
    # By the type: asking an object for its class may run code of proxies.
    return [found for found in gc.get_objects() if issubclass(type(found), wanted)]


def _kinds_of(kind: Any) -> list[Any]:
    return [kind, *(below for one in kind.__subclasses__() for below in _kinds_of(one))]


def _is_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo")
    wrapper = getattr(getattr(dynamo, "eval_frame", None), "OptimizedModule", None)
    utils = sys.modules.get("torch._dynamo.utils")
    counters: Any = getattr(utils, "counters", None)
    frames: Any = counters["frames"] if counters else {}
    return bool(frames.get("ok")) or (wrapper is not None and bool(_alive(wrapper)))


def _always(register: Function, hook: Function) -> Any:
    try:  # also where a forward raises
        return register(hook, always_call=True)
    except TypeError:  # torch 2.0
        return register(hook)


def _autocast_is_on(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except TypeError:  # before torch 2.4
        return torch.is_autocast_enabled() if kind == "cuda" else torch.is_autocast_cpu_enabled()


def _autocast_dtype(kind: str) -> Any:
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(kind)
    return torch.get_autocast_gpu_dtype() if kind == "cuda" else torch.get_autocast_cpu_dtype()


def _fuses(kind: Any, like: Any) -> bool:
    """Whether this torch has a fused step for such parameters: tried on a small one."""
    small = torch.nn.Parameter(torch.zeros(2, dtype=like.dtype, device=like.device))
    small.grad = torch.zeros_like(small)
    try:
        kind([small], lr=1e-3, fused=True).step()
    except Exception:
        return False
    return True


def _convolutions(model: Any) -> list[Any]:
    """The weights of convolutions over images."""
    modules = model.modules() if model is not None else ()
    return [m.weight for m in modules if isinstance(m, torch.nn.Conv2d)]


def _image(tensor: Any) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def _last(tensor: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last) if _image(tensor) else tensor


def _plain(tensor: Any) -> Any:
    return tensor.contiguous() if _image(tensor) else tensor


def _single(tensor: Any) -> Any:
    return tensor.float() if tensor.is_floating_point() else tensor


def _on_gpu(tensor: Any) -> bool:
    return tensor.is_cuda


def _is_last(tensor: Any) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _likeness(value: Any) -> Any:
    if not torch.is_tensor(value):
        return None
    return value.shape, value.dtype, value.device, value.requires_grad


def _detached(value: Any) -> Any:
    def one(tensor: Any) -> Any:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    return _mapped(one, value)


def _tensors(value: Any) -> list[Any]:
    return [t for t in pytree.tree_flatten(value)[0] if torch.is_tensor(t)]


def _mapped(change: Function, value: Any) -> Any:
    def one(leaf: Any) -> Any:
        return change(leaf) if torch.is_tensor(leaf) else leaf

    return pytree.tree_map(one, value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
