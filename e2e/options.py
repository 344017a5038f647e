"""The ONLY list of training options: each is one field of `TrainOptions`.

A field's metadata define the click option, the check of its value, and whether a run file keeps it
for --resume. Fields with the name of a field of `TrainCase` are what every case takes as given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from e2e.case import (
    COMPRESSIONS,
    DATA_ALIASES,
    IN_MEMORY,
    SEARCHES,
    SHORT,
    TrainCase,
    kind_and_loader,
)
from e2e.schedule import CONSTANT, parse_schedule
from e2e.training.launch import dist_env
from microbench.command_line import (
    Outputs,
    above_0,
    at_least,
    check_options,
    check_processes,
    check_seed,
    choice,
    filled,
    one_of,
    options_of,
)
from microbench.errors import UserError
from microbench.sweep import parse_names, parse_numbers

OPTIMIZERS = ("sgd", "adam", "adamw")
MAX_SCALE = 2.0**24  # beyond it a loss near 1 is no finite float16 gradient any more
MAX_SIDES = 4
# What says how a network learns, and has no meaning for its forward pass alone.
OF_LEARNING = (
    "ladder", "iterations", "epochs", "accumulate", "loss", "loss_scale", "optimizer", "fused",
    "lr", "warmup", "schedule", "clip", "gpus", "compress",
)  # fmt: skip


# ---------------------------------------------------------------- checks of values


def _check_schedule(_: str, text: str) -> None:
    parse_schedule(text)


def _check_memory(_: str, text: str) -> None:
    parse_memory(text)


def _check_cpus(name: str, cores: int) -> None:
    from microbench.device.host import usable_cores

    if not 1 <= cores <= usable_cores():
        raise UserError(f"{name} {cores}: this process may use 1 to {usable_cores()} cores")


def parse_memory(text: str) -> int:
    """Bytes of such as "16GB" or "15.9 GiB". UserError for what is no size above 0."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([MG])(i?)B", text.strip(), re.IGNORECASE)
    size = 0
    if match:
        number, prefix, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** (2 if prefix in "mM" else 3))
    if not size:
        raise UserError(f"--memory-limit: cannot read {text!r}; write 16GB or 800MB")
    return size


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Such as "3x512x512" as numbers; UserError for anything else."""
    if text is None:
        return None
    shape = text.strip().lower()
    if not re.fullmatch(rf"\d{{1,9}}(x\d{{1,9}}){{0,{MAX_SIDES - 1}}}", shape):
        raise UserError(f"--input: cannot read {text!r}; write 3x512x512, or 512 for tokens")
    return tuple(int(side) for side in shape.split("x"))


# ---------------------------------------------------------------- the options


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Everything that a command was asked for, as it was written; None: by network or device.

    Text may name several values. `train` False: predict only. `record` False: no steps are
    recorded, and there is no ledger.
    """

    network: str = ""
    amp: bool = choice(False, "Compare fp32, tf32 and AMP (the default)")
    recipe: str | None = choice(None, "fp32,tf32,amp,amp-bf16,fp16,bf16,fp8,O0..O3 (see `list`)")
    ladder: bool = choice(False, "From fp32 to a CUDA graph, one change at a time")
    evaluation: bool = choice(
        False, "The forward pass alone, as inference runs it: batches 1 and the network's own",
        written="--eval",
    )  # fmt: skip
    batch: str | None = choice(None, "Batch sizes: 256 or 128..2048  [default: by network]")
    input: str | None = choice(None, "Sample shape: 3x512x512, or 512 for tokens")
    layout: str | None = choice(None, "nchw, nhwc (channels_last)  [default: nhwc on a GPU]")
    optimizer: str | None = choice(
        None, "sgd, adam or adamw  [default: by network]", check=one_of(OPTIMIZERS)
    )
    accumulate: int = choice(1, "Batches per step (gradient accumulation)", check=at_least(1))
    loss: str | None = choice(None, "module:function, called as loss(output, target)")
    loss_scale: float | None = choice(
        None, "Static loss scale, in place of the recipe's", check=above_0(MAX_SCALE)
    )
    keep_batchnorm_fp32: bool = choice(False, "Keep batch-norm in float32 in every recipe")
    fused: bool = choice(True, "Fused optimizer", written="--fused/--no-fused")
    compile: bool = choice(False, "Use torch.compile in every recipe")
    graph: bool = choice(False, "Capture the step as a CUDA graph, in every recipe")
    search: str = choice(
        SHORT, "How long cuDNN searches for algorithms: short, full or off",
        check=one_of(SEARCHES),
    )  # fmt: skip
    device: str = choice("auto", "auto, cuda, cuda:N or cpu")

    data: str = choice(
        "synthetic", "synthetic, generated, made, cifar10:DIR, folder:DIR or module:function"
    )
    loader: str | None = choice(None, "Data loader (see `list`)  [default: by data]")
    workers: int = choice(4, "Data-loader workers", check=at_least(0))
    cpus: int | None = choice(None, "Cores the run may use  [default: all]", check=_check_cpus)

    iterations: int | None = choice(
        None, "Train this many steps, then evaluate", check=at_least(1), kept=True
    )
    epochs: int | None = choice(
        None, "Train this many epochs, then evaluate", check=at_least(1), kept=True
    )
    held_out: int | None = choice(
        None, "Held-out samples to evaluate on  [default: all]", check=at_least(1)
    )
    repeats: int = choice(1, "Trainings of each recipe, each with its own seed", check=at_least(1))
    seed: int = choice(
        1, "First seed, of the weights and the order of the data", check=check_seed, kept=True
    )
    lr: float | None = choice(None, "Learning rate  [default: by network]", check=above_0())
    warmup: int = choice(0, "Steps of learning-rate warm-up", check=at_least(0))
    schedule: str = choice(
        CONSTANT, "constant, cosine, triangle or step, over the whole training",
        check=_check_schedule,
    )  # fmt: skip
    clip: float | None = choice(
        None, "Largest norm of the gradients  [default: no limit]", check=above_0()
    )
    memory_limit: str | None = choice(
        None, "Memory that torch may use of the GPU: 16GB  [default: all]", check=_check_memory
    )

    budget: float | None = choice(
        None,
        "Seconds of timing per comparison and process  [default: 5 per variant, 10 with a loader]",
        check=above_0(),
    )
    processes: int = choice(
        1, "Processes that time each comparison, one after another; 3 or more to compare runs",
        check=check_processes,
    )  # fmt: skip
    gpus: str | None = choice(None, "Numbers of GPUs: 1,2,4  [default: 1]")
    strong: bool = choice(False, "With --gpus: --batch is of all GPUs together")
    compress: str | None = choice(
        None, "Exchange gradients as none (as they are), fp16 or bf16; none,bf16 compares"
    )

    outputs: Outputs = field(default_factory=Outputs)
    train: bool = True
    record: bool = True

    @staticmethod
    def of(network: str, values: Mapping[str, Any], **instead: Any) -> TrainOptions:
        """The options of these words; those not given are as usual, or as `instead` has them.

        UserError for whatever can be found wrong before torch is loaded.
        """
        given = {name: value for name, value in values.items() if value is not None}
        if given.get("data") in DATA_ALIASES:
            given["data"] = DATA_ALIASES[given["data"]]
        merged = instead | given
        check_options(merged, TrainOptions)
        options = filled(TrainOptions, merged, network=network, outputs=filled(Outputs, merged))
        _check_together(options)
        _check_ranks(options)
        return options

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample, where it is given. UserError for what is none."""
        return parse_shape(self.input)

    @property
    def all_gpus(self) -> list[int]:
        """The numbers of GPUs: torchrun's where it started this. UserError for what is none."""
        env = dist_env()
        if self.gpus is None:
            return [env.world if env else 1]
        return list(dict.fromkeys(parse_numbers(self.gpus, "--gpus")))

    @property
    def of_case(self) -> dict[str, Any]:
        """The fields of a case that say what every case takes as given; plans set the others."""
        kind, usual = kind_and_loader(self.data)
        loader = self.loader or usual
        workers = 0 if loader in IN_MEMORY else self.workers  # what is at hand has no processes
        known = {f.name: getattr(self, f.name, None) for f in fields(TrainCase)}
        known |= {
            "data": kind, "loader": loader, "workers": workers,
            "memory_limit": parse_memory(self.memory_limit) if self.memory_limit else None,
        }  # fmt: skip
        return {name: value for name, value in known.items() if value is not None}


def words_of(name: str) -> str:
    """An option as it is typed."""
    return options_of(TrainOptions)[name].words.partition("/")[0]


def _check_ranks(options: TrainOptions) -> None:
    """UserError for what cannot run over several GPUs, or under torchrun."""
    env = dist_env()
    if env and env.rank:
        raise UserError("under torchrun there is train only: torchrun -m e2e NETWORK")
    if env and (options.gpus is not None or options.processes > 1):
        option = "--processes" if options.gpus is None else "--gpus"
        raise UserError(f"torchrun started {env.world} processes; leave out {option}")
    if options.strong and options.gpus is None:
        raise UserError("--strong needs --gpus, such as --gpus 1,2,4")
    several = max(options.all_gpus) > 1
    if options.compress is not None:
        parse_names(options.compress, COMPRESSIONS, "--compress")
        if not several:
            raise UserError("--compress needs several GPUs: --gpus 2, or torchrun")
    if options.evaluation and several:
        raise UserError("--eval runs on one GPU, not under torchrun")


def _check_together(options: TrainOptions) -> None:
    """UserError for options that do not go together."""
    usual = TrainOptions()

    def changed(name: str) -> bool:
        return getattr(options, name) != getattr(usual, name)

    trains = options.iterations is not None or options.epochs is not None
    if options.iterations is not None and options.epochs is not None:
        raise UserError("--iterations and --epochs exclude each other; give one of them")
    if options.evaluation and (name := next(filter(changed, OF_LEARNING), None)):
        word = "--no-fused" if name == "fused" else words_of(name)
        raise UserError(f"--eval runs the forward pass alone; leave out {word}")
    if options.repeats > 1 and not trains:
        raise UserError("--repeats needs --iterations or --epochs")
    for name in ("schedule", "held_out"):
        if changed(name) and not trains:
            raise UserError(f"{words_of(name)} needs --iterations or --epochs")
    loader = options.of_case["loader"]
    if options.data == "synthetic" and loader not in ("synthetic", "pinned"):
        raise UserError(
            f"--data synthetic is one batch: --loader {loader} has nothing to load; "
            "try --data made or --data folder:DIR"
        )
