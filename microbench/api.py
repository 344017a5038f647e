"""What a script or a notebook calls: measure, time your own code, read and compare run files.

Every function does what the command of its name does, and takes the command's options by their
names, with "_" for "-". With `resume` alone it goes on with the settings of that file. Mistakes
raise `UserError`. Results print themselves, also in notebooks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from microbench import fmt
from microbench.__main__ import app
from microbench.command_line import called, check_options
from microbench.device.device import DeviceInfo, describe, open_telemetry
from microbench.errors import UserError as UserError
from microbench.measure import ESTIMATE_SAMPLES, UNMANAGED, measurement_of
from microbench.report import screen, writers
from microbench.report.parts import Column, Part, Row
from microbench.report.report import report_of
from microbench.requests import REQUESTS, Conditions, request_of
from microbench.results import types
from microbench.results.types import Ratio
from microbench.run_output import Done
from microbench.timing.interleave import HEAVY, InterleavedSampler, Variant, VariantFailed
from microbench.timing.stats import median, ratio_interval
from microbench.timing.timers import make_timer

Words = str | int | Iterable[str | int | tuple[int, ...]]
Function = Callable[..., object]
BUDGET_S = 2.0  # of sampling, a callable


def _fields_of(measured: types.Run | types.Measurement) -> dict[str, Any]:
    return {entry.name: getattr(measured, entry.name) for entry in fields(measured)}


@dataclass(frozen=True)
class Run(types.Run):
    """A run that shows itself. `path` is its run file."""

    path: Path | None = None

    @classmethod
    def of_run(cls, run: types.Run, path: Path | None = None) -> Self:
        """The same run with `path`."""
        return cls(**_fields_of(run), path=path)

    @classmethod
    def of_done(cls, done: Done) -> Self:
        """The run of a command that has ended."""
        return cls.of_run(done.run, done.path)

    def __str__(self) -> str:
        """The screen that the command prints, 100 columns wide."""
        text = io.StringIO()
        screen.print_report(report_of(self), screen.make_console(file=text))
        return text.getvalue()

    def _repr_markdown_(self) -> str:
        return writers.to_markdown(report_of(self))

    def to_dataframe(self) -> Any:
        """A pandas DataFrame: one row a result, units in the names of the columns. ImportError
        where pandas is not installed."""
        try:
            import pandas  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]
        except ImportError:
            raise ImportError("to_dataframe needs pandas: pip install pandas") from None
        pd: Any = pandas
        return pd.read_csv(io.StringIO(writers.to_csv(report_of(self))))

    def chart(self) -> Any:
        """The Altair chart that `--chart` draws. UserError where there is nothing to draw."""
        return report_of(self).chart()

    def save(self, path: str | Path) -> None:
        """Write the run file, whole or not at all. OSError where the disk refuses."""
        from microbench.results.runfile import write_run

        write_run(self, Path(path))


@dataclass(frozen=True)
class Measurement(types.Measurement):
    """The time of one callable, in seconds a call, and the state of the device meanwhile."""

    name: str = ""

    def __str__(self) -> str:
        return str(Variants({self.name: self}))

    def _repr_markdown_(self) -> str:
        return writers.part_markdown(Variants({self.name: self}).part)


@dataclass(frozen=True)
class Variants:
    """Callables timed interleaved. `speedups`: how many times as fast as the first each is."""

    measurements: Mapping[str, Measurement]
    speedups: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])

    def __getitem__(self, name: str) -> Measurement:
        """The measurement of one callable."""
        return self.measurements[name]

    def __str__(self) -> str:
        text = io.StringIO()
        screen.print_part(self.part, screen.make_console(file=text))
        return text.getvalue().rstrip("\n")

    def _repr_markdown_(self) -> str:
        return writers.part_markdown(self.part)

    @property
    def part(self) -> Part:
        """A row a callable, as it is shown."""
        return Part(columns=_COLUMNS, rows=[
            Row({"time": measurement, "speedup": self.speedups.get(name)})
            for name, measurement in self.measurements.items()
        ])  # fmt: skip


# ---------------------------------------------------------------- measuring


def gemm(sizes: Words | None = None, dtypes: Words | None = None, **options: Any) -> Run:
    """Measure C[M, N] = A[M, K] @ B[K, N] by precision, size and back end.

    `sizes` are as on the command line ("256..8192"), numbers, or (M, N, K). UserError for an
    invalid value.
    """
    return _measured("gemm", sizes=sizes, dtypes=dtypes, **options)


def conv(channels: Words | None = None, dtypes: Words | None = None, **options: Any) -> Run:
    """Measure 2-D convolutions by channel width: "8..2048", numbers, or (C, K).

    UserError for an invalid value.
    """
    return _measured("conv", channels=channels, dtypes=dtypes, **options)


def attention(sizes: Words | None = None, dtypes: Words | None = None, **options: Any) -> Run:
    """Measure attention by sequence length, in each of torch's back ends: "512..8192" or numbers.

    UserError for an invalid value.
    """
    return _measured("attention", sizes=sizes, dtypes=dtypes, **options)


def payoff(channels: Words | None = None, dtypes: Words | None = None, **options: Any) -> Run:
    """Find the break-even of low precision in convolutions, by channels, image and batch; with
    `op="linear"` in linear layers, by features and tokens.

    UserError for an invalid value.
    """
    return _measured("payoff", channels=channels, dtypes=dtypes, **options)


def layers(network: str | None = None, dtypes: Words | None = None, **options: Any) -> Run:
    """Measure every distinct convolution and GEMM of a network's training step.

    `network` is a torchvision model's name, "timm:NAME", "hf:path/config.json" or
    "module:function". UserError for an invalid value.
    """
    return _measured("layers", network, dtypes=dtypes, **options)


def bench(function: Function, *tensors: Any, **conditions: Any) -> Measurement:
    """Time `function(*tensors)`: the median seconds a call, with a 95 % interval.

    On a GPU: events around each launch behind a gate, so that the CPU's time is not in it, a cold
    L2, settled clocks. `conditions` are `device`, `timer`, `l2`, `regime` and `budget` (seconds) as
    on the command line. UserError for a condition that the device does not have, RuntimeError for a
    function that waits for the GPU; what the function raises is passed on.
    """
    name = getattr(function, "__name__", "function")
    return compare_variants({name: function}, *tensors, **conditions)[name]


def compare_variants(
    variants: Mapping[str, Function],
    *tensors: Any,
    device: str | None = None,
    timer: str = "auto",
    l2: str = "cold",
    regime: str = "sustained",
    budget: float | None = None,
) -> Variants:
    """Time several callables on the same tensors, interleaved in random order.

    The first is the baseline of the speed-ups. Conditions and errors as in `bench`. This runs in
    the caller's process, so a callable may close over anything; each is called once before, so that
    it may compile. `budget` is seconds of sampling in all, 2 a callable by default; `device` is
    that of the tensors by default.
    """
    if not variants:
        raise UserError("nothing to time: pass at least one callable")
    asked = {"timer": timer, "l2": l2, "regime": regime, "budget": budget}
    check_options(asked, Conditions)
    info = _device(device, tensors)
    made = make_timer(timer, l2, info.kind, info.index, info.l2_bytes, info.sm_count)
    sampled: list[Variant] = []
    for name, function in variants.items():
        launch = partial(function, *tensors)
        made.run(launch, 1)
        sampled.append(Variant(name, launch, median(made.block(launch, ESTIMATE_SAMPLES).times_s)))
    with open_telemetry(info) as telemetry:
        budget_s = budget or BUDGET_S * len(sampled)
        sampler = InterleavedSampler(made, regime, budget_s, during=telemetry.during)
        try:
            sampler.take(sampled)
        except VariantFailed as failure:
            raise failure.__cause__ or failure from None
        on_gpu = info.kind == "cuda"
        heavy = on_gpu and sampler.plan(sampled) is HEAVY
        regime = regime if on_gpu else UNMANAGED
        found = {
            each.key: measurement_of(each, made, regime, telemetry.summary(each.key), heavy)
            for each in sampled
        }
    made.forget()
    named = {name: Measurement(**_fields_of(timed), name=name) for name, timed in found.items()}
    first, *others = (
        [[t - made.overhead_s for t in block.times_s] for block in variant.blocks]
        for variant in sampled
    )
    speedups = {
        variant.key: Ratio(*ratio_interval(first, blocks, made.resolution_s))
        for variant, blocks in zip(sampled[1:], others, strict=True)
    }
    return Variants(named, speedups)


def _device(name: str | None, tensors: tuple[Any, ...]) -> DeviceInfo:
    """The device that is named, or that of the first tensor."""
    places = [str(tensor.device) for tensor in tensors if hasattr(tensor, "device")]
    info = describe(name or (places[0] if places else "auto"))
    if info.kind == "cuda":
        import torch

        torch.cuda.set_device(info.index)
    return info


def load(path: str | Path) -> Run:
    """The run in a run file. UserError, in one line, for a file that is none."""
    from microbench.results.runfile import read_run

    return Run.of_run(read_run(Path(path)), Path(path))


def _measured(name: str, /, *arguments: str | None, **options: Any) -> Run:
    from microbench.run import run_request

    with called(app.commands[name], arguments, options, also={"dtypes": "dtype"}) as words:
        return Run.of_done(run_request(request_of(REQUESTS[name], words)))


# ---------------------------------------------------------------- showing

_COLUMNS = (
    Column("", "time.name"),
    Column("time", "time.median_s", fmt.duration),
    Column("±", "time", fmt.half_of),
    Column("times as fast", "speedup", fmt.ratio),
    Column("MHz", "time.sm_clock_mhz", fmt.whole),
    Column("W", "time.power_w", fmt.whole),
    Column("samples", "time.times_s", lambda samples: str(len(samples))),
)
