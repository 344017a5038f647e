"""What is trained, and how: the settings that identify a training.

A field of `TrainCase` is part of the case's key, of its object in the run file, and a CSV column;
its metadata say how reports name it. What a user may ask for is in `e2e.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from e2e.schedule import CONSTANT

OP = "train"
ON_CPU = {"amp": "amp-bf16"}  # float16 has no fast arithmetic on most CPUs
LAYOUTS = ("nchw", "nhwc")
FULL, SHORT, OFF = SEARCHES = ("full", "short", "off")
SEARCH_LABELS = {SHORT: "short search", OFF: "no search"}
NO_COMPRESSION = "none"
COMPRESSIONS = (NO_COMPRESSION, "fp16", "bf16")  # of gradients, on their way to other GPUs

# Loaders whose batches cost the host nothing but a launch or a copy, and what each kind of data is
# usually loaded by.
RESIDENT = "resident"
IN_MEMORY = ("synthetic", "pinned", RESIDENT)
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
    at_hand = case.loader in IN_MEMORY and case.loader != RESIDENT
    return f"one {case.loader} batch" if at_hand else f"{case.loader} loader"


# ---------------------------------------------------------------- the case


def setting(
    default: Any = MISSING,
    *,
    label: str | Label,
    varied: bool = False,
    least: int | None = None,
    later: bool = False,
) -> Any:
    """A field of `TrainCase`.

    `label` is the text of a value that is not the default, with "{}" for the value; or it returns
    the text, "" for the usual value. `varied`: variants of one comparison may differ in it.
    `least` is the smallest value that a run file may have. `later`: older files have keys without
    it, so keys name it only where it is not the default.
    """
    metadata = {"label": label, "varied": varied, "least": least, "later": later}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainCase:
    """What is trained, and how. `batch` is of one forward pass; a step has `accumulate` of them.

    `input` is the shape of one sample ("3x224x224", "1024" for tokens); `layout` is "nchw", "nhwc"
    (torch: channels_last) or "" where the input is no image; `loss_scale` a static scale, None for
    the recipe's own; `fused` whether the optimizer updates all weights in one kernel.

    `data` is what it trains on, `loader` how that becomes batches: one batch that stays on the
    device ("synthetic") or is copied from pinned memory at each step ("pinned"), or a back end of
    `e2e.data.loaders` with `workers` processes. `cold` files are dropped from the page cache before
    they are read. `cpus` is how many cores the process may use (0: all). Of older versions, if it
    is `cached`, the back end ran as fast as it could and its batches were thrown away: it trained
    on a pinned batch.
    `search` is how many algorithms cuDNN tries for a convolution on a GPU: "full" or "short"
    (`e2e.recipes.SEARCH_LIMITS`). What is not described here is of older versions.

    `lr` None is the network's own; it rises linearly from 0 over the first `warmup` steps, and
    `schedule` (`e2e.schedule`) is of a training from scratch: timed steps are at `lr`. `clip` is
    the most that the norm of all gradients may be, None for no limit. `held_out` is how many
    samples accuracy is of (0: all). `memory_limit` is in bytes (0: none), of what torch allocates.
    `weights` is the name of the file that a training starts from, "" for random weights.

    Of several `gpus` each has a process, and `batch` samples of each step; gradients go from one
    to the others as they are, or in 16 bits (`compress`, one of COMPRESSIONS). An `evaluation` is
    the forward pass alone, as inference runs it: no loss, no gradients, no optimizer.

    A new field goes to the end: the order is that of keys, run files and CSV columns.
    """

    network: str = setting(label="{}")
    recipe: str = setting(label="{}", varied=True)
    batch: int = setting(label="batch {}", least=1)
    input: str = setting(label=lambda case: "input " * ("x" not in case.input) + case.input)
    layout: str = setting("nchw", label=lambda case: case.layout, varied=True)
    optimizer: str = setting("sgd", label=lambda case: case.optimizer, varied=True)
    fused: bool = setting(True, label="unfused", varied=True)
    compile: bool = setting(False, label="+compile", varied=True)
    graph: bool = setting(False, label="+graph", varied=True)
    accumulate: int = setting(1, label="accumulate {}", least=1)
    loss_scale: float | None = setting(None, label="scale {:g}", varied=True)
    keep_batchnorm_fp32: bool = setting(False, label="bn fp32", varied=True)
    label_smoothing: float = setting(0.0, label="smoothing {:g}")
    data: str = setting(
        "synthetic", label=lambda case: f"{DATA_WORDS.get(case.data, case.data)} data"
    )
    loader: str = setting("synthetic", label=_loader)
    workers: int = setting(
        0, least=0, label=lambda case: _count(case.workers, "worker") if case.workers else ""
    )
    cached: bool = setting(False, label="batches discarded")
    cold: bool = setting(False, label="cold files")
    prefetch: int = setting(0, label="prefetch {}", least=0)
    cpus: int = setting(
        0, least=0, label=lambda case: _count(case.cpus, "core") if case.cpus else ""
    )
    gpus: int = setting(
        1, least=1, label=lambda case: _count(case.gpus, "GPU") if case.gpus > 1 else ""
    )
    search: str = setting(FULL, later=True, label=lambda case: SEARCH_LABELS.get(case.search, ""))
    lr: float | None = setting(None, label="lr {:g}", later=True)
    warmup: int = setting(0, label="warmup {}", least=0, later=True)
    schedule: str = setting(CONSTANT, label="{}", later=True)
    clip: float | None = setting(None, label="clip {:g}", later=True)
    held_out: int = setting(0, label="{} held out", least=0, later=True)
    memory_limit: int = setting(
        0, least=0, later=True,
        label=lambda case: f"limit {case.memory_limit / 1e9:g} GB" if case.memory_limit else "",
    )  # fmt: skip
    deterministic: bool = setting(False, label="deterministic", later=True)
    weights: str = setting("", label="weights {}", later=True)
    freeze: str = setting("", label="frozen {}", later=True)
    compress: str = setting(NO_COMPRESSION, label="{} gradients", varied=True, later=True)
    evaluation: bool = setting(False, label="forward alone", later=True)

    @property
    def op(self) -> str:
        """The kind of result, as the run file names it."""
        return OP

    @property
    def loads_data(self) -> bool:
        """Whether batches are loaded during training; they arrive in bursts, one per worker."""
        return self.loader not in IN_MEMORY

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
            f"{f.name}={value}"
            for f in fields(self)
            if (f.name in VARIED) == varied
            and ((value := getattr(self, f.name)) != f.default or not f.metadata.get("later"))
        ]


# Settings in which variants of one comparison may differ: they do not change the training data.
VARIED = tuple(f.name for f in fields(TrainCase) if f.metadata["varied"])
# The smallest values of a case.
LEAST: Mapping[str, int] = {
    f.name: f.metadata["least"] for f in fields(TrainCase) if f.metadata["least"] is not None
}


def label_of(case: TrainCase, name: str) -> str:
    """A setting of a case as reports say it; "" where the value is the usual one."""
    attribute = TrainCase.__dataclass_fields__[name]
    value, label = getattr(case, name), cast("str | Label", attribute.metadata["label"])
    if callable(label):
        return label(case)
    return "" if value == attribute.default else label.format(value)
