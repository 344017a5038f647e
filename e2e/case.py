"""The ONLY list of training options: each is one field, and all else is derived from it.

The class says what an option belongs to: what is compared (`ArmOptions`), what identifies a
training (`TrainCase`), what else the training process needs (`TrainSettings`), or the run as a
whole (`TrainRequest`). A field's metadata define the click option, the check of its value, what a
run file keeps for --resume, and its name in reports; a field of `TrainCase` also defines part of
the case's key, of its object in the run file, and a CSV column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from e2e.schedule import CONSTANT, parse_schedule
from microbench.command_line import (
    AS_FIELD,
    Check,
    Outputs,
    at_least,
    check_budget,
    check_processes,
    check_seed,
    choice,
    one_of,
    option,
)
from microbench.errors import UserError

OP = "train"
ON_CPU = {"amp": "amp-bf16"}  # float16 has no fast arithmetic on most CPUs
LAYOUTS = ("nchw", "nhwc")
OPTIMIZERS = ("sgd", "adam", "adamw")
BODY = "body"
FULL, SHORT, OFF = SEARCHES = ("full", "short", "off")
SEARCH_LABELS = {SHORT: "short search", OFF: "no search"}
NO_COMPRESSION = "none"
COMPRESSIONS = (NO_COMPRESSION, "fp16", "bf16")  # of gradients, on their way to other GPUs
MAX_SCALE = 2.0**24  # beyond it a loss near 1 is no finite float16 gradient any more

# Loaders whose batches cost the host nothing but a launch or a copy, and what each kind of data is
# usually loaded by.
RESIDENT = "resident"
AT_HAND = ("synthetic", "pinned", RESIDENT)
USUAL_LOADER = {
    "synthetic": "synthetic", "generated": RESIDENT, "cifar10": RESIDENT,
    "folder": "torchvision", "made": "torchvision",
}  # fmt: skip

# Kinds of data that reports call otherwise; the option takes both spellings.
DATA_WORDS = {"made": "synthetic JPEG"}
DATA_ALIASES = {"synthetic-jpeg": "made"}

OWN = "dataloader"  # what loads data of the user's own

Label = Callable[["TrainCase"], str]


def is_own(data: str) -> bool:
    """Whether data is of the user's own, "module:function"."""
    kind, _, function = data.partition(":")
    names = [*kind.split("."), *function.split(".")]
    return kind not in USUAL_LOADER and all(name.isidentifier() for name in names)


def kind_and_loader(data: str) -> tuple[str, str]:
    """What a case calls data ("folder" of folder:DIR, all of module:function); its usual loader."""
    kind = data if is_own(data) else data.partition(":")[0]
    return kind, OWN if is_own(data) else USUAL_LOADER.get(kind, kind)


# ---------------------------------------------------------------- names of values


def _count(number: int, noun: str) -> str:
    from microbench.fmt import count

    return count(number, noun)


def _loader(case: TrainCase) -> str:
    """What a loader is called: "one pinned batch", "torchvision-io loader"; "" for the usual."""
    if case.loader == kind_and_loader(case.data)[1]:
        return ""
    at_hand = case.loader in AT_HAND and case.loader != RESIDENT
    return f"one {case.loader} batch" if at_hand else f"{case.loader} loader"


# ---------------------------------------------------------------- checks of values


def check_smoothing(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise UserError(f"{name} takes a number from 0 to below 1, not {share}")


def check_scale(name: str, scale: float) -> None:
    if not 0 < scale <= MAX_SCALE:
        raise UserError(f"{name} takes a number above 0, at most {MAX_SCALE:.0f}, not {scale:g}")


def check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UserError(f"{name} takes a number above 0, not {value:g}")


def check_schedule(_: str, text: str) -> None:
    parse_schedule(text)


def check_memory(_: str, text: str) -> None:
    parse_memory(text)


def parse_memory(text: str) -> int:
    """Bytes of such as "16GB" or "15.9 GiB". UserError for what is no size above 0."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([MG])(i?)B", text.strip(), re.IGNORECASE)
    size = 0
    if found:
        number, prefix, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** (2 if prefix in "mM" else 3))
    if not size:
        raise UserError(f"--memory-limit: cannot read {text!r}; write 16GB or 800MB")
    return size


def check_cpus(name: str, cores: int) -> None:
    from microbench.device.host import usable_cores

    if not 1 <= cores <= usable_cores():
        raise UserError(f"{name} {cores}: this process may use 1 to {usable_cores()} cores")


# ---------------------------------------------------------------- fields


def of_case(
    help: str = "",
    *,
    label: Label | None = None,
    varied: bool = False,
    least: int | None = None,
    default: Any = AS_FIELD,
    check: Check | None = None,
    written: str = "",
    type: Any = None,
    later: bool = False,
) -> dict[str, Any]:
    """Metadata of a field of `TrainCase`; without `help` the field is no option.

    `label` returns the value's text in reports, "" for the usual value (without a label: name and
    value where it is not the default). `varied`: arms of one comparison may differ in it. `least`
    is the smallest value; the option raises UserError below it. `type` is what the option reads,
    where that is not the field's type. `later`: older files have keys
    without it, so keys name it only where it is not the default.
    """
    if least is not None and check is None:
        check = at_least(least)
    asked: dict[str, Any] = {}
    if help:
        asked = option(help, default=default, check=check, written=written, type=type)
    return asked | {"label": label, "varied": varied, "least": least, "later": later}


def setting(
    default: Any, help: str = "", *, label: Label | None = None, asked: Any = AS_FIELD, **said: Any
) -> Any:
    """A field of `TrainCase`; `asked` is the default of its option, where that is another."""
    return field(default=default, metadata=of_case(help, label=label, default=asked, **said))


# ---------------------------------------------------------------- the options


@dataclass(frozen=True)
class TrainCase:
    """What is trained, and how. `batch` is of one forward pass; a step has `accumulate` of them.

    `input` is the shape of one sample ("3x224x224", "1024" for tokens); `layout` is "nchw", "nhwc"
    (torch: channels_last) or "" where the input is no image; `loss_scale` a static scale, None for
    the recipe's own; `fused` whether the optimizer updates all weights in one kernel.

    `data` is what it trains on, `loader` how that becomes batches: one batch that stays on the
    device ("synthetic") or is copied from pinned memory at each step ("pinned"), or a back end of
    `e2e.data.loaders` with `workers` processes. If it is `cached`, the back end runs as fast as it
    can and its batches are thrown away: it trains on a pinned batch. `cold` files are dropped from
    the page cache before they are read. `prefetch` is how many batches each worker is ahead (0: as
    usual), `cpus` how many cores the process may use (0: all). `search` is how many algorithms
    cuDNN tries for a convolution on a GPU: "full" or "short" (`e2e.recipes.SEARCH_LIMITS`).

    `lr` None is the network's own; it rises linearly from 0 over the first `warmup` steps, and
    `schedule` (`e2e.schedule`) is of a training from scratch: timed steps are at `lr`. `clip` is
    the most that the norm of all gradients may be, None for no limit. `held_out` is how many
    samples accuracy is of (0: all). `memory_limit` is in bytes (0: none), of what torch allocates.
    `weights` is the name of the file that a training starts from, "" for random weights; `freeze`
    is BODY where all but the last layer stay as they are.

    Of several `gpus` each has a process, and `batch` samples of each step; gradients go from one
    to the others as they are, or in 16 bits (`compress`, one of COMPRESSIONS). An `evaluation` is
    the forward pass alone, as inference runs it: no loss, no gradients, no optimizer.

    A new field goes to the end: the order is that of keys, run files and CSV columns.
    """

    network: str = field(metadata=of_case(label=lambda case: case.network))
    recipe: str = field(metadata=of_case(label=lambda case: case.recipe, varied=True))
    batch: int = field(metadata=of_case(label=lambda case: f"batch {case.batch}", least=1))
    input: str = field(
        metadata=of_case(label=lambda case: "input " * ("x" not in case.input) + case.input)
    )
    layout: str = setting("nchw", label=lambda case: case.layout, varied=True)
    optimizer: str = setting("sgd", label=lambda case: case.optimizer, varied=True)
    fused: bool = setting(
        True, "Fused optimizer", written="--fused/--no-fused", varied=True,
        label=lambda case: "" if case.fused else "unfused",
    )  # fmt: skip
    compile: bool = setting(
        False, "Use torch.compile in every recipe", varied=True,
        label=lambda case: "+compile" if case.compile else "",
    )  # fmt: skip
    graph: bool = setting(
        False, "Capture the step as a CUDA graph, in every recipe", varied=True,
        label=lambda case: "+graph" if case.graph else "",
    )  # fmt: skip
    accumulate: int = setting(1, "Batches per step (gradient accumulation)", least=1)
    loss_scale: float | None = setting(
        None, "Static loss scale, in place of the recipe's", varied=True, check=check_scale,
        label=lambda case: "" if case.loss_scale is None else f"scale {case.loss_scale:g}",
    )  # fmt: skip
    keep_batchnorm_fp32: bool = setting(
        False, "Keep batch-norm in float32 in every recipe", varied=True,
        label=lambda case: "bn fp32" if case.keep_batchnorm_fp32 else "",
    )  # fmt: skip
    label_smoothing: float = setting(
        0.0, "Label smoothing, 0 to below 1", check=check_smoothing,
        label=lambda c: f"smoothing {c.label_smoothing:g}" if c.label_smoothing else "",
    )  # fmt: skip
    data: str = setting(
        "synthetic", label=lambda case: f"{DATA_WORDS.get(case.data, case.data)} data"
    )
    loader: str = setting(
        "synthetic", "Data loader (see `list`)  [default: by data]", asked=None,
        label=_loader,
    )  # fmt: skip
    workers: int = setting(
        0, "Data-loader workers", asked=4, least=0,
        label=lambda case: _count(case.workers, "worker") if case.workers else "",
    )  # fmt: skip
    cached: bool = setting(False, label=lambda case: "batches discarded" if case.cached else "")
    cold: bool = setting(False, label=lambda case: "cold files" if case.cold else "")
    prefetch: int = setting(
        0, "Batches each worker loads ahead  [default: 2]", asked=None, least=0,
        check=at_least(1),
    )  # fmt: skip
    cpus: int = setting(
        0, "Cores the run may use  [default: all]", asked=None, least=0, check=check_cpus,
        label=lambda case: _count(case.cpus, "core") if case.cpus else "",
    )  # fmt: skip
    gpus: int = setting(
        1, label=lambda case: _count(case.gpus, "GPU") if case.gpus > 1 else "", least=1
    )
    search: str = setting(
        FULL, "How long cuDNN searches for algorithms: short, full or off  [default: short]",
        asked=None, check=one_of(SEARCHES), later=True,
        label=lambda case: SEARCH_LABELS.get(case.search, ""),
    )  # fmt: skip
    lr: float | None = setting(
        None, "Learning rate  [default: by network]", check=check_positive, later=True,
        label=lambda case: "" if case.lr is None else f"lr {case.lr:g}",
    )  # fmt: skip
    warmup: int = setting(0, "Steps of learning-rate warm-up", least=0, later=True)
    schedule: str = setting(
        CONSTANT, "constant, cosine, triangle or step, over the whole training",
        check=check_schedule, later=True,
        label=lambda case: "" if case.schedule == CONSTANT else case.schedule,
    )  # fmt: skip
    clip: float | None = setting(
        None, "Largest norm of the gradients  [default: no limit]", check=check_positive,
        later=True, label=lambda case: "" if case.clip is None else f"clip {case.clip:g}",
    )  # fmt: skip
    held_out: int = setting(
        0, "Held-out samples to evaluate on  [default: all]", asked=None, least=0,
        check=at_least(1), later=True,
        label=lambda case: f"{case.held_out} held out" if case.held_out else "",
    )  # fmt: skip
    memory_limit: int = setting(
        0, "Memory that torch may use of the GPU: 16GB  [default: all]", asked=None, least=0,
        check=check_memory, type=str, later=True,
        label=lambda case: f"limit {case.memory_limit / 1e9:g} GB" if case.memory_limit else "",
    )  # fmt: skip
    deterministic: bool = setting(
        False,
        "Only deterministic algorithms: slower; two runs give the same weights",
        later=True,
    )
    weights: str = setting("", later=True)
    freeze: str = setting(
        "", "What not to train: body (all but the last layer)  [default: nothing]", asked=None,
        check=one_of((BODY,)), later=True,
        label=lambda case: f"frozen {case.freeze}" if case.freeze else "",
    )  # fmt: skip
    compress: str = setting(
        NO_COMPRESSION, varied=True, later=True,
        label=lambda case: "" if case.compress == NO_COMPRESSION else (
            f"{case.compress} gradients"
        ),
    )  # fmt: skip
    evaluation: bool = setting(
        False, later=True, label=lambda case: "forward alone" if case.evaluation else ""
    )

    @property
    def op(self) -> str:
        """The kind of result, as the run file names it."""
        return OP

    @property
    def fed(self) -> bool:
        """Whether batches are loaded during training; they arrive in bursts, one per worker."""
        return self.loader not in AT_HAND

    @cached_property
    def group(self) -> str:
        """Identity of the comparison: cases with the same group are compared with each other."""
        return f"{OP}/{','.join(self._parts(varied=False))}"

    @cached_property
    def key(self) -> str:
        """Stable identity, the same in every run of every version."""
        return f"{self.group}/{','.join(self._parts(varied=True))}"

    def _parts(self, *, varied: bool) -> list[str]:
        return [
            f"{one.name}={value}"
            for one in fields(self)
            if (one.name in VARIED) == varied
            and ((value := getattr(self, one.name)) != one.default or not one.metadata.get("later"))
        ]


# Settings in which arms of one comparison may differ: they do not change the training data.
VARIED = tuple(one.name for one in fields(TrainCase) if one.metadata["varied"])
# The smallest values of a case.
LEAST: Mapping[str, int] = {
    one.name: one.metadata["least"]
    for one in fields(TrainCase)
    if one.metadata["least"] is not None
}


def label_of(case: TrainCase, name: str) -> str:
    """A setting of a case as reports say it; "" where the value is the usual one."""
    one = TrainCase.__dataclass_fields__[name]
    label = cast("Label | None", one.metadata["label"])
    if label is not None:
        return label(case)
    value, words = getattr(case, name), name.replace("_", " ")
    if value == one.default:
        return ""
    return words if value is True else f"{words} {value:g}" if isinstance(value, float) else (
        f"{words} {value}"
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ArmOptions:
    """What decides the arms; None: the network's or device's own.

    Text may name several values; `base` is a case with all settings that every arm takes as given.
    """

    amp: bool = choice(False, "Compare fp32, tf32 and AMP (the default)")
    recipe: str | None = choice(None, "fp32,tf32,amp,amp-bf16,fp16,bf16,fp8,O0..O3 (see --explain)")
    ladder: bool = choice(False, "From fp32 to a CUDA graph, one change at a time")
    batch: str | None = choice(None, "Batch sizes: 256 or 128..2048  [default: by network]")
    layout: str | None = choice(
        None, "nchw, nhwc (channels_last)  [default: nhwc on a GPU]",
        switches={"--channels-last": "nhwc"},
    )  # fmt: skip
    optimizer: str | None = choice(
        None, "sgd, adam or adamw  [default: by network]", check=one_of(OPTIMIZERS)
    )
    gpus: str | None = choice(None, "Numbers of GPUs: 1,2,4  [default: 1]")
    strong: bool = choice(False, "With --gpus: --batch is of all GPUs together")
    compress: str | None = choice(
        None, "Exchange gradients as none (as they are), fp16 or bf16; none,bf16 compares"
    )
    base: TrainCase = TrainCase("", "", 1, "")


@dataclass(frozen=True)
class TrainSettings:
    """What the training process must know beside the cases. None: the network's own.

    `data` is with its folder, `case` says how held-out data is loaded, and what cases load with
    that do not say otherwise.
    """

    device: str = choice("auto", "auto, cuda, cuda:N or cpu")
    network: str = ""
    data: str = choice("synthetic", "synthetic, generated, made, cifar10:DIR or folder:DIR")
    input: tuple[int, ...] | None = choice(
        None, "Sample shape: 3x512x512, or 512 for tokens", type=str
    )
    loss: str | None = choice(None, "module:function, called as loss(output, target)")
    seed: int = choice(
        1, "First seed, of the weights and the order of the data", check=check_seed, kept=True
    )
    weights: Path | None = choice(
        None, "Start from this state dict, or that of NETWORK in this folder"
    )
    strict: bool = choice(False, "Stop at the first broken image")
    case: TrainCase = TrainCase("", "", 1, "")


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Everything that a command was asked for. `budget` in seconds.

    `train` False: predict only. `record` False: no steps are recorded, and there is no ledger.
    """

    arms: ArmOptions
    settings: TrainSettings
    outputs: Outputs
    iterations: int | None = choice(
        None, "Train this many steps, then evaluate", check=at_least(1), kept=True
    )
    epochs: int | None = choice(
        None, "Train this many epochs, then evaluate", check=at_least(1), kept=True
    )
    count_gradients: int | None = choice(
        None, "Count zero and infinite gradients after every N steps of a training",
        check=at_least(1),
    )  # fmt: skip
    repeats: int = choice(1, "Trainings of each recipe, each with its own seed", check=at_least(1))
    same_seed: bool = choice(
        False, "Give all trainings of a recipe the same seed: then no difference is due to it",
        kept=True,
    )  # fmt: skip
    verify: bool = choice(False, "Also measure options that the causes of slow steps propose")
    budget: float | None = choice(
        None,
        "Seconds of timing per comparison and process  [default: 5 per variant, 10 with a loader]",
        check=check_budget,
    )
    processes: int = choice(
        1, "Processes that time each comparison, one after another; 3 or more to compare runs",
        check=check_processes,
    )  # fmt: skip
    train: bool = True
    record: bool = True


SCHEMAS = (ArmOptions, TrainCase, TrainSettings, TrainRequest)
