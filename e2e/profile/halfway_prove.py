"""Try what may be slow in a training step, one change at a time, in the training that runs.

halfway_watch.py loads this file for --prove, and both are copied together. Like it, this file needs
the standard library and torch alone (Python 3.9 or newer, torch 2.0 or newer).

Steps as they are (A) and steps with one change (B) run in blocks, in the order A B B A. Only times
are written; `halfway diagnose` says what they mean, in another process. The script ends afterwards:
its weights and its batches are not those that it would have had.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch as installed
from torch.utils import _pytree
from torch.utils.data import dataloader

torch: Any = installed  # any version from 2.0 on: their names differ
pytree: Any = _pytree
loaders: Any = dataloader

COUNTED = 2  # steps that are inspected, after one that shows the model
ROUNDS, LEAST_ROUNDS = 6, 3  # pairs of blocks, one as it is and one changed
DISCARDED = 2  # steps at the start of a block
BLOCK_S, LEAST_STEPS, MOST_STEPS = 0.5, 3, 10  # of a block: its time, and its steps at least, most
MOST_S = 20.0  # of one change: then no further round begins
LONGEST_S, SLOWER = 60.0, 3.0  # it may take so long, or so many times as long as it should
SAME_STEP = 4  # times as many batches as in other steps: it is no longer a training step
ENDED = "the script ended first"
COMPILED = "the model is compiled"
READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__")  # each waits for the device
ATTENTION = ("flash", "mem_efficient", "cudnn", "math")  # as torch.backends.cuda names back ends

Steps = Generator[None, None, Any]  # goes on at the end of each step
Function = Callable[..., Any]


class Prover:
    """Runs the changes as `step` is called at the end of each step, until `done`.

    `mark` and `seconds` are a clock: a mark, and the seconds between two. `bare_s` is about a
    step's time. `keep` is called with the results after each change, as plain data. `only` names
    the changes to try, and then in few steps. `compiled`: torch.compile has compiled the model.
    """

    def __init__(
        self, mark: Function, seconds: Function, bare_s: float, keep: Function,
        only: tuple[str, ...] | None = None, *, compiled: bool,
    ) -> None:  # fmt: skip
        self._mark, self._seconds, self._keep = mark, seconds, keep
        self._rounds, self._steps = LEAST_ROUNDS, LEAST_STEPS
        if only is None:
            in_time = round(BLOCK_S / max(bare_s, 1e-9))
            self._rounds, self._steps = ROUNDS, min(MOST_STEPS, max(LEAST_STEPS, in_time))
        fewest = 2 * LEAST_ROUNDS * (DISCARDED + self._steps)
        self._longest_s = max(LONGEST_S, SLOWER * fewest * bare_s)
        self._tried: list[dict[str, Any]] = []
        self._not_tried = {name: ENDED for name in ABLATIONS if only is None or name in only}
        self._now = ""  # what is being tried
        self.done = False
        self.steps, self.needed = 0, 0  # that have been used, and are about to be in all
        self.trying = ""  # "trying 2 of 3 changes, "
        self._plan = self._run(StepProbe(compiled))
        next(self._plan)

    def step(self) -> None:
        """Call it at the end of each step."""
        self.steps += 1
        try:
            next(self._plan)
        except StopIteration:
            self.end()

    def end(self, why: str = ENDED) -> None:
        """Put everything back, and hand over what was found. `why` the change of now ended."""
        if self.done:
            return
        self.done = True
        if self._now:
            self._not_tried[self._now] = why
        self._plan.close()
        self._hand_over()

    def _hand_over(self) -> None:
        self._keep({"steps": self.steps, "tried": self._tried, "not_tried": self._not_tried})

    def _run(self, probe: StepProbe) -> Steps:
        loading = _patched(loaders._BaseDataLoaderIter, "__next__", probe.patch.next)
        hook: Any = torch.nn.modules.module.register_module_forward_pre_hook
        with _schedules_stopped(), loading:
            with nullcontext() if probe.compiled else hook(probe.choose_model):
                yield from probe.steps(1)
            with nullcontext() if probe.compiled else probe.counting():
                yield from probe.steps(COUNTED)
            probe.patch.choose(1 + COUNTED)
            names = [name for name in list(self._not_tried) if self._applies(name, probe)]
            for number, name in enumerate(names, 1):
                self._now, self.trying = name, f"trying {number} of {len(names)} changes, "
                blocks = 2 * self._rounds * (len(names) - number + 1)
                self.needed = self.steps + blocks * (DISCARDED + self._steps)
                self._hand_over()  # a crash must not take what was found before
                yield from self._try(name, ABLATIONS[name], probe)
                self._now = ""

    def _applies(self, name: str, probe: StepProbe) -> bool:
        """Whether a change can be tried. If not, the reason is noted, where there is one."""
        ablation = ABLATIONS[name]
        try:
            why = COMPILED if ablation.eager and probe.compiled else ablation.when(probe)
        except Exception as error:
            why = _one_line(error)
        if why:
            self._not_tried[name] = why
        elif why is not None:
            del self._not_tried[name]
        return why is None

    def _try(self, name: str, ablation: Ablation, probe: StepProbe) -> Steps:
        """The rounds of one change. An exception of the change itself is why it was not tried."""
        times_s: dict[bool, list[list[float]]] = {False: [], True: []}  # as it is, changed
        change = ablation.words.format(probe)
        try:
            why = probe.rehearse(ablation) if ablation.may_break else None
            if why is not None:
                self._not_tried[name] = why
                return
            began_s = time.perf_counter()
            for number in range(self._rounds):
                if number >= LEAST_ROUNDS and time.perf_counter() - began_s > MOST_S:
                    break
                for turn in (False, True) if number % 2 == 0 else (True, False):
                    probe.patch.resident = ablation.resident
                    with ablation.change(probe) if turn else nullcontext():
                        times_s[turn].append((yield from self._block(probe, began_s)))
        except Exception as error:  # the script's do not come by here
            self._not_tried[name] = _one_line(error)
        finally:
            rounds = min(map(len, times_s.values()))
            if rounds >= LEAST_ROUNDS:
                resident = ablation.resident and probe.patch.main is not None
                self._tried.append({
                    "name": name, "change": change, "resident": resident,
                    "as_is_s": times_s[False][:rounds], "changed_s": times_s[True][:rounds],
                })  # fmt: skip
                del self._not_tried[name]

    def _block(self, probe: StepProbe, began_s: float) -> Steps:
        """Seconds of each step. TimeoutError where the change takes too long by now."""
        yield from probe.steps(DISCARDED)
        marks = [self._mark()]
        for _ in range(self._steps):
            yield from probe.steps(1)
            marks.append(self._mark())
            if time.perf_counter() - began_s > self._longest_s:
                raise TimeoutError(f"it takes more than {self._longest_s:.0f} s")
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return [self._seconds(*pair) for pair in zip(marks, marks[1:])]  # noqa: B905, RUF007


def write_beside(trace: str, results: dict[str, Any]) -> None:
    """Write results beside a trace: run.json.gz -> run.proofs.json. OSError where that fails."""
    path = trace.removesuffix(".gz").removesuffix(".json") + ".proofs.json"
    partial = f"{path}.{os.getpid()}.part"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(results, file, separators=(",", ":"))
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


# ---------------------------------------------------------------- what there is


class StepProbe:
    """The step inspector: the model and its inputs, autocast, reads of the device, optimizers.

    `at_end` is called at the end of each step. Compiled code is not inspected: who looks on would
    have it compiled again.
    """

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.other_benchmark = not torch.backends.cudnn.benchmark
        self.patch = LoaderPatch()
        self.at_end: list[Callable[[], None]] = []
        # By the type: asking an object for its class may run code of proxies.
        optimizer: Any = torch.optim.Optimizer
        self.optimizers: list[Any] = [
            there for there in gc.get_objects() if issubclass(type(there), optimizer)
        ]
        self.awaited = "cuda"  # a read waits for tensors there
        self.model: Any = None
        self.inputs: tuple[Any, ...] = ()
        self.named_inputs: dict[str, Any] = {}
        self.anomaly: bool = torch.is_anomaly_enabled()  # somewhere in a step
        self.autocast_dtype: Any = None  # around the model; None without autocast
        # In the counted steps: calls of the model, outermost autocasts, reads, calls of attention.
        self.calls = self.autocasts = self.reads = self.attentions = 0
        self.graphed: Function | None = None
        self._largest = (False, -1)

    @property
    def device(self) -> str:
        """Where the model's first parameter is; a GPU in use where no model is known."""
        for parameter in self.model.parameters() if self.model is not None else ():
            return parameter.device.type
        return "cuda" if torch.cuda.is_initialized() else "cpu"

    def steps(self, count: int) -> Steps:
        """Let the training make them."""
        for _ in range(count):
            yield
            self.patch.taken = 0
            for call in self.at_end:
                call()

    def choose_model(self, module: Any, _inputs: Any) -> None:
        """Take the largest module that is called for the model, with gradients if there are any."""
        size = torch.is_grad_enabled(), sum(p.numel() for p in module.parameters())
        if size > self._largest:
            self._largest, self.model = size, module

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count what happens in the steps, and keep the model's last inputs."""
        with ExitStack() as back:
            for name in READS:
                back.enter_context(_patched(torch.Tensor, name, self._read))
            back.enter_context(_patched(torch.autocast, "__enter__", self._entered))
            back.enter_context(_patched(torch, "set_anomaly_enabled", self._detects))
            functional, attention = torch.nn.functional, "scaled_dot_product_attention"
            back.enter_context(_patched(functional, attention, self._attention))
            if self.model is not None:
                back.enter_context(_patched(self.model, "forward", self._called))
            yield

    def rehearse(self, ablation: Ablation) -> str | None:
        """Why the model does not run with a change; None where it does. Gradients stay."""
        grads = [(p, p.grad) for p in self.model.parameters()]
        try:
            for parameter, _ in grads:
                parameter.grad = None
            with ablation.change(self), self.as_called(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                output = self.model(*_detached(self.inputs), **_detached(self.named_inputs))
                outputs = [t for t in _tensors(output) if t.requires_grad]
                if outputs:
                    torch.autograd.backward([t.float().mean() for t in outputs])
        except Exception as error:
            return f"the model does not run with it: {_one_line(error)}"
        finally:
            for parameter, grad in grads:
                parameter.grad = grad
        return None

    def as_called(self, **options: Any) -> Any:
        """The autocast that was around the model."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device, self.autocast_dtype, **options)

    def _called(self, original: Function, *given: Any, **named: Any) -> Any:
        self.inputs, self.named_inputs = given, named
        self.calls += 1
        self.autocast_dtype = _autocast_dtype(self.device)
        return original(*given, **named)

    def _read(self, original: Function, tensor: Any, *rest: Any, **named: Any) -> Any:
        self.reads += tensor.device.type == self.awaited
        return original(tensor, *rest, **named)

    def _attention(self, original: Function, *given: Any, **named: Any) -> Any:
        self.attentions += 1
        return original(*given, **named)

    def _detects(self, original: Function, *given: Any, **named: Any) -> None:
        self.anomaly = self.anomaly or (given[0] if given else named["enabled"])
        original(*given, **named)

    def _entered(self, original: Function, autocast: Any) -> Any:
        self.autocasts += autocast._enabled and _autocast_dtype(autocast.device) is None
        return original(autocast)


class LoaderPatch:
    """Stands between DataLoaders and the loop: if `resident`, one batch comes again and again."""

    def __init__(self) -> None:
        self.resident = False
        self.main: int | None = None  # the source of training batches
        self.taken, self._most = 0, 0.0  # how often the batch was handed out in this step
        self._counts: Counter[int] = Counter()
        self._batch: tuple[Any, ...] = ()
        self._ahead = True  # the loader's workers went on while nothing was taken

    def choose(self, steps: int) -> None:
        """Take the source with the most batches in these steps, at least one a step."""
        for source, count in self._counts.most_common(1):
            if count >= steps:
                self.main, self._most = source, SAME_STEP * count / steps

    def next(self, original: Function, iterator: Any) -> Any:
        """The next batch of a loader's iterator, or the one of before."""
        source = id(getattr(iterator, "_index_sampler", None))
        self._counts[source] += 1
        if source == self.main and self.resident and self.taken < self._most:
            self.taken, self._ahead = self.taken + 1, True
            self._batch = self._batch or (original(iterator),)
            return self._batch[0]
        if source == self.main and self._ahead:  # else their queue would hide that steps wait
            self._ahead = False
            for _ in range(iterator._num_workers * getattr(iterator, "_prefetch_factor", 0)):
                original(iterator)
        return original(iterator)


# ---------------------------------------------------------------- changes


class Ablation:
    """One change: a context in which it is made, and what it is in words.

    `when` says None where it can be tried, "" where there is nothing to change, or a reason.
    `resident`: all its blocks have one batch, so that no data is loaded. `may_break`: the model
    must run with it once before the script does. `eager`: it is not for compiled code.
    """

    def __init__(
        self, change: Callable[[StepProbe], AbstractContextManager[None]], text: str,
        when: Callable[[StepProbe], str | None], *,
        resident: bool = True, may_break: bool = False, eager: bool = False,
    ) -> None:  # fmt: skip
        self.change, self.words, self.when = change, text, when
        self.resident, self.may_break, self.eager = resident, may_break, eager


def _if(there: object) -> str | None:
    return None if there else ""


def loader(probe: StepProbe) -> AbstractContextManager[None]:
    """No data loading."""
    return _set(probe.patch, "resident", True)


@contextmanager
def sync(probe: StepProbe) -> Generator[None]:
    """No synchronisation: the first step reads, later ones get what the same call gave then.

    So a loop that depends on what it reads takes the same course.
    """
    known: dict[Any, Any] = {}
    times: Counter[Any] = Counter()

    def read(name: str, original: Function, tensor: Any, *rest: Any, **named: Any) -> Any:
        if tensor.device.type != probe.awaited:
            return original(tensor, *rest, **named)
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        place = caller.f_code, caller.f_lasti, name
        times[place] += 1
        call = place, times[place]
        if call not in known:
            known[call] = original(tensor, *rest, **named)
        return known[call]

    with ExitStack() as back:
        for name in READS:
            back.enter_context(_patched(torch.Tensor, name, partial(read, name)))
        probe.at_end.append(times.clear)
        back.callback(probe.at_end.remove, times.clear)
        yield


@contextmanager
def tf32(_probe: StepProbe) -> Generator[None]:
    """TF32 in GEMMs and convolutions, by the names that the script uses: torch takes no mixture."""
    with ExitStack() as back:
        try:
            back.enter_context(_set(torch.backends.cuda.matmul, "allow_tf32", True))
            back.enter_context(_set(torch.backends.cudnn, "allow_tf32", True))
        except RuntimeError:
            back.enter_context(_set(torch.backends.cuda.matmul, "fp32_precision", "tf32"))
        yield


def _tf32_is_off(probe: StepProbe) -> str | None:
    if probe.device != "cuda" or torch.cuda.get_device_capability()[0] < 8:
        return ""
    try:
        return _if(not torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # the script has used the newer names
        return _if(torch.backends.cuda.matmul.fp32_precision != "tf32")


def benchmark(probe: StepProbe) -> AbstractContextManager[None]:
    """cuDNN's search for the fastest algorithm, the other way round."""
    return _set(torch.backends.cudnn, "benchmark", probe.other_benchmark)


@contextmanager
def casts(probe: StepProbe) -> Generator[None]:
    """Weights are cast once a step, as if one more autocast were around it."""
    torch.autocast_increment_nesting()
    probe.at_end.append(torch.clear_autocast_cache)
    try:
        yield
    finally:
        probe.at_end.remove(torch.clear_autocast_cache)
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()


@contextmanager
def optimizer(probe: StepProbe) -> Generator[None]:
    """Updates of all parameters together: fused where this torch can, else foreach."""
    groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
    counts: list[tuple[dict[str, Any], Any]] = []
    try:
        for kind, group, states in _one_at_a_time(probe):
            fused = "fused" in group and _fuses(kind, group["params"][0])
            changed = {"foreach": not fused, **({"fused": True} if fused else {})}
            groups.append((group, {name: group[name] for name in changed}))
            group.update(changed)
            for parameter in group["params"] if fused else ():
                state = states.get(parameter, {})
                if torch.is_tensor(state.get("step")):  # a fused kernel counts on the device
                    counts.append((state, state["step"]))
                    state["step"] = state["step"].to(parameter.device)
        yield
    finally:
        for group, old in groups:
            group.update(old)
        for state, count in counts:  # what was counted on the device
            state["step"] = count.copy_(state["step"])


def _one_at_a_time(probe: StepProbe) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """Groups of parameters that torch updates one at a time, though it could all together."""
    for opt in probe.optimizers:
        for group in opt.param_groups:
            on_gpu = any(p.is_cuda for p in group["params"])
            by_default = group.get("foreach") is None and not on_gpu
            is_single = group.get("foreach") is False or by_default
            if "foreach" in group and not group.get("fused") and is_single and group["params"]:
                yield type(opt), group, opt.state


def _fuses(kind: Any, like: Any) -> bool:
    """Whether this torch has a fused step for such parameters: tried on a small one."""
    small = torch.nn.Parameter(torch.zeros(2, dtype=like.dtype, device=like.device))
    small.grad = torch.zeros_like(small)
    try:
        kind([small], lr=1e-3, fused=True).step()
    except Exception:
        return False
    return True


@contextmanager
def anomaly(_probe: StepProbe) -> Generator[None]:
    """No detection of anomalies, also where each step asks for it."""

    def switch(original: Function, *_: Any, **_named: Any) -> None:
        original(False)

    with torch.autograd.set_detect_anomaly(False), _patched(torch, "set_anomaly_enabled", switch):
        yield


@contextmanager
def amp(probe: StepProbe) -> Generator[None]:
    """Autocast that does nothing, also one around the whole loop: what it brings, or costs."""

    def entered(original: Function, autocast: Any) -> Any:
        enabled, autocast._enabled = autocast._enabled, False
        try:
            return original(autocast)
        finally:
            autocast._enabled = enabled

    around = nullcontext() if probe.autocasts else torch.autocast(probe.device, enabled=False)
    with _patched(torch.autocast, "__enter__", entered), around:
        yield


@contextmanager
def float32(probe: StepProbe) -> Generator[None]:
    """Autocast with BF16 around a model that has none; what it returns is float32 as before."""

    def forward(original: Function, *given: Any, **named: Any) -> Any:
        with torch.autocast(probe.device, torch.bfloat16):
            output = original(*given, **named)
        return _mapped(lambda t: t.float() if t.is_floating_point() else t, output)

    with _patched(probe.model, "forward", forward):
        yield


def _float32_alone(probe: StepProbe) -> str | None:
    mixed = probe.autocasts or probe.autocast_dtype is not None
    if probe.device != "cuda" or not probe.calls or mixed or not torch.cuda.is_bf16_supported():
        return ""
    return _if(all(p.dtype == torch.float32 for p in probe.model.parameters()))


@contextmanager
def layout(probe: StepProbe) -> Generator[None]:
    """Weights, what optimizers keep of them, and inputs; what the model returns is as it was."""

    def laid_out(value: Any, layout: Any) -> Any:
        return _mapped(lambda t: t.contiguous(memory_format=layout) if _is_image(t) else t, value)

    def lay_out_weights(layout: Any) -> None:
        probe.model.to(memory_format=layout)
        for opt in probe.optimizers:
            for state in opt.state.values():
                state.update(laid_out(dict(state), layout))

    def forward(original: Function, *given: Any, **named: Any) -> Any:
        given, named = laid_out((given, named), torch.channels_last)
        return laid_out(original(*given, **named), torch.contiguous_format)

    try:
        lay_out_weights(torch.channels_last)
        with _patched(probe.model, "forward", forward):
            yield
    finally:
        lay_out_weights(torch.contiguous_format)


def _layout_is_default(probe: StepProbe) -> str | None:
    """Images in the default layout and a model with convolutions."""
    images = [t for t in _tensors((probe.inputs, probe.named_inputs)) if _is_image(t)]
    weights = _convolutions(probe.model)
    return _if(images and weights and not _is_last(images[0]) and not _is_last(weights[-1]))


@contextmanager
def attention(_probe: StepProbe, backend: str) -> Generator[None]:
    """One back end of scaled_dot_product_attention alone."""
    cuda = torch.backends.cuda
    here = [name for name in ATTENTION if hasattr(cuda, f"{name}_sdp_enabled")]
    old = {name: getattr(cuda, f"{name}_sdp_enabled")() for name in here}
    try:
        for name in old:
            getattr(cuda, f"enable_{name}_sdp")(name == backend)
        yield
    finally:
        for name, enabled in old.items():
            getattr(cuda, f"enable_{name}_sdp")(enabled)


def _attention(backend: str) -> Ablation:
    """Where the model calls it, on a GPU, and this torch has the back end."""

    def when(probe: StepProbe) -> str | None:
        known = hasattr(torch.backends.cuda, f"enable_{backend}_sdp")
        return _if(known and probe.device == "cuda" and probe.calls and probe.attentions)

    text = f"scaled_dot_product_attention by its back end {backend} alone"
    return Ablation(partial(attention, backend=backend), text, when, may_break=True, eager=True)


@contextmanager
def launch(probe: StepProbe) -> Generator[None]:
    """The model's forward and backward as graphs. Other shapes, and evaluation, run as before."""

    def likeness(given: Any) -> Any:
        known = [(t.shape, t.dtype, t.device, t.requires_grad) for t in _tensors(given)]
        return known, probe.model.training, torch.is_grad_enabled()

    def forward(original: Function, *given: Any, **named: Any) -> Any:
        fits = not named and likeness(given) == usual
        return graphed(*given) if fits else original(*given, **named)

    probe.graphed = graphed = probe.graphed or _graphed(probe)
    usual = likeness(probe.inputs)
    with _patched(probe.model, "forward", forward):
        yield


def _can_be_graphed(probe: StepProbe) -> str | None:
    """Torch captures modules that take tensors, once a step."""
    if probe.device != "cuda" or not probe.calls:
        return ""
    if probe.named_inputs or not all(map(torch.is_tensor, probe.inputs)):
        return "the model takes more than tensors in their places"
    if any(isinstance(m, torch.nn.RNNBase) for m in probe.model.modules()):
        return "recurrent layers hold their weights twice"
    return "the model is called several times in a step" if probe.calls > COUNTED else None


def _graphed(probe: StepProbe) -> Function:
    """The model with its parameters as inputs: in the same memory, and without nodes of autograd.

    A loss that the script keeps holds nodes of the model's own parameters. These belong to the
    usual stream, and nothing that meets them can be captured.
    """
    names, parameters = zip(*probe.model.named_parameters())  # noqa: B905
    count = len(probe.inputs)

    def forward(*given: Any) -> Any:
        own = dict(zip(names, given[count:]))  # noqa: B905
        return torch.func.functional_call(probe.model, own, given[:count])

    with probe.as_called(cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(
            forward, _detached((*probe.inputs, *parameters)), allow_unused_input=True
        )
    return lambda *given: graphed(*given, *parameters)


# In order: those that a script may not bear come last.
ABLATIONS: dict[str, Ablation] = {
    "loader": Ablation(
        loader, "the same batch again and again",
        lambda probe: _if(probe.patch.main is not None), resident=False,
    ),
    "sync": Ablation(
        sync, "reads of the device repeat what they gave first, without waiting",
        lambda probe: _if(probe.reads), eager=True,
    ),
    "tf32": Ablation(tf32, "TF32 allowed", _tf32_is_off),
    "benchmark": Ablation(
        benchmark, "torch.backends.cudnn.benchmark = {0.other_benchmark}",
        lambda probe: _if(probe.device == "cuda" and _convolutions(probe.model)), resident=False,
    ),
    "casts": Ablation(
        casts, "casts of weights kept until the optimizer's step",
        lambda probe: _if(probe.autocasts > COUNTED), eager=True,
    ),
    "optimizer": Ablation(
        optimizer, "fused or foreach updates", lambda probe: _if(list(_one_at_a_time(probe))),
    ),
    "anomaly": Ablation(
        anomaly, "autograd's anomaly detection switched off", lambda probe: _if(probe.anomaly),
        eager=True,
    ),
    "amp": Ablation(
        amp, "autocast switched off",
        lambda probe: _if(probe.autocasts or probe.autocast_dtype is not None), eager=True,
    ),
    "float32": Ablation(
        float32, "autocast with BF16 around the model", _float32_alone, may_break=True, eager=True,
    ),
    "layout": Ablation(
        layout, "model and inputs in channels_last", _layout_is_default, may_break=True, eager=True,
    ),
    "sdpa_flash": _attention("flash"),
    "sdpa_efficient": _attention("mem_efficient"),
    "sdpa_cudnn": _attention("cudnn"),
    "launch": Ablation(
        launch, "the model's forward and backward as CUDA graphs", _can_be_graphed,
        may_break=True, eager=True,
    ),
}  # fmt: skip


# ---------------------------------------------------------------- parts


@contextmanager
def _patched(owner: Any, name: str, function: Function) -> Generator[None]:
    """A function in place of one that a class, module or object has; it gets that one first."""
    own: Any = owner.__dict__.get(name)
    original = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        return function(original, *arguments, **named)

    setattr(owner, name, instead)
    try:
        yield
    finally:
        if own is not None:
            setattr(owner, name, own)
        elif name in vars(owner):  # it is its class's or a base's
            delattr(owner, name)


@contextmanager
def _set(holder: Any, name: str, value: Any) -> Generator[None]:
    old = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, old)


@contextmanager
def _schedules_stopped() -> Generator[None]:
    """Learning rates stay as they are: a schedule has an end, and these steps are none of its."""
    kinds = [torch.optim.lr_scheduler.LRScheduler]
    with ExitStack() as back:
        for kind in kinds:
            kinds.extend(kind.__subclasses__())
            if "step" in vars(kind):
                back.enter_context(_patched(kind, "step", lambda *_, **__: None))
        yield


def _autocast_dtype(kind: str) -> Any:
    """Of the autocast around; None without."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def _convolutions(model: Any) -> list[Any]:
    """The weights of convolutions over images."""
    modules = model.modules() if model is not None else ()
    return [m.weight for m in modules if isinstance(m, torch.nn.Conv2d)]


def _is_image(tensor: Any) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def _is_last(tensor: Any) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _detached(value: Any) -> Any:
    return _mapped(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), value)


def _tensors(value: Any) -> list[Any]:
    return [t for t in pytree.tree_flatten(value)[0] if torch.is_tensor(t)]


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A nest of tuples, lists and dictionaries with its tensors changed."""
    leaves, nest = pytree.tree_flatten(value)
    return pytree.tree_unflatten([change(x) if torch.is_tensor(x) else x for x in leaves], nest)


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
