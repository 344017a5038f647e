"""Sizes as people write them, and the cases that they make: from a file too; and turns."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import PlantedTimer

from microbench.errors import UserError
from microbench.report.report import report_of
from microbench.report.writers import to_csv
from microbench.requests import Conditions, ConvRequest, GemmRequest
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.types import Result, Run
from microbench.sweep import MAX_SIZES, Group, parse_numbers, parse_sizes
from microbench.timing.interleave import (
    BURST_IDLE_FACTOR,
    BURST_SAMPLES,
    INTERIM_LOOKS,
    MAX_ROUNDS,
    InterleavedSampler,
    Variant,
    VariantFailed,
)
from microbench.timing.interleave import HEAVY as HEAVY_PLAN
from microbench.timing.timers import Block, Launch


def cubes(*sizes: int) -> list[tuple[int, int, int]]:
    return [(n, n, n) for n in sizes]


def plan(**changes: object) -> list[tuple[str, ...]]:
    kind, sizes, layout = (
        changes.pop(name, usual)
        for name, usual in (("kind", "cuda"), ("sizes", "64"), ("layouts", "nt"))
    )
    groups = GemmRequest(Conditions(**changes), sizes, layout).plan(kind)  # type: ignore[arg-type]
    return [tuple(f"{c.precision_name}/{c.backend}" for c in group.cases) for group in groups]


@pytest.mark.parametrize(
    ("text", "rank", "sizes"),
    [
        ("256..8192", 3, cubes(256, 512, 1024, 2048, 4096, 8192)),
        ("100..1000", 3, cubes(100, 200, 400, 800)), ("64..256:+64", 3, cubes(64, 128, 192, 256)),
        ("64..4096:*4", 3, cubes(64, 256, 1024, 4096)), ("64..64", 3, cubes(64)),
        ("1..1:+1", 3, cubes(1)), ("63,64,65", 3, cubes(63, 64, 65)),
        ("4096x11008x4096", 3, [(4096, 11008, 4096)]),
        ("4096x11008x4096,63..65:+1", 3, [(4096, 11008, 4096), *cubes(63, 64, 65)]),
        (" 64 , 128 ", 3, cubes(64, 128)), ("64,64,64x64x64,32..128", 3, cubes(64, 32, 128)),
        ("64x256", 2, [(64, 256)]), ("8,64x256", 2, [(8, 8), (64, 256)]), ("3", 1, [(3,)]),
        ("2x3x4,5", 3, [(2, 3, 4), (5, 5, 5)]), ("1..4", 2, [(1, 1), (2, 2), (4, 4)]),
        ("2x3", 1, None), ("2x3", 3, None), ("2x3x4", 2, None),
    ],
)  # fmt: skip
def test_sizes_have_as_many_numbers_as_their_rank(
    text: str, rank: int, sizes: list[tuple[int, ...]] | None
) -> None:
    if sizes is not None:
        assert parse_sizes(text, "--channels", rank) == sizes
        return
    with pytest.raises(UserError, match=text):
        parse_sizes(text, "--channels", rank)


@given(st.text(alphabet="0123456789.,:x+*- \n", max_size=24))
def test_any_text_gives_sizes_or_one_line(text: str) -> None:
    said, sizes = "", []
    try:
        sizes = parse_sizes(text)
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert bool(sizes) != bool(said)
    assert all(number >= 1 for shape in sizes for number in shape)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("before", ["", "1,", "1..1:+1,"])
def test_a_run_takes_4096_sizes_and_no_more(before: str) -> None:
    """Repeated ones are read too, before they are left out."""
    assert MAX_SIZES == 4096
    last = MAX_SIZES - bool(before)
    assert parse_numbers(f"{before}1..{last}:+1", "--batch") == list(range(1, last + 1))
    with pytest.raises(UserError, match=str(MAX_SIZES)):
        parse_numbers(f"{before}1..{last + 1}:+1", "--batch")


# ---------------------------------------------------------------- GEMMs


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        (dict(sizes="64,128", layouts="nt,nn"),
         [("fp32/cublas", "tf32/cublas", "fp16/cublas", "fp16/cublaslt", "fp16/triton")] * 4),
        # A baseline that was asked for is measured once.
        (dict(dtype="fp32,fp16", backend="cublas"),
         [("fp32/cublas", "tf32/cublas", "fp16/cublas")]),
        (dict(dtype="half,float16,fp16", backend="cublas,cublas", vs="none"), [("fp16/cublas",)]),
        (dict(kind="cpu"), [("fp32/cpu", "tf32/cpu", "fp16/cpu")]),
    ],
)  # fmt: skip
def test_each_size_and_layout_is_one_comparison_of_every_arm(
    changes: dict[str, str], groups: list[tuple[str, ...]]
) -> None:
    assert plan(**changes) == groups


def test_a_batch_is_planned_beside_separate_kernels_and_kept_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "g.csv"
    file.write_text("m , n,k,batch,layout\n64,64,64,,\n\n# note\n8,8,8,4,nt-skewed\n64,64,64,,nt\n")
    asked = Conditions(dtype="bf16", vs="none")
    from_file = GemmRequest(asked, shapes=file).plan("cuda")
    groups = GemmRequest(asked, "64,4x8x8x8", "nt-bias").plan("cuda")
    assert [group.name for group in (*from_file, *groups)] == [
        "gemm/m=64,n=64,k=64/nt/normal", "gemm/batch=4,m=8,n=8,k=8/nt-skewed/normal",
        "gemm/m=64,n=64,k=64/nt-bias/normal", "gemm/batch=4,m=8,n=8,k=8/nt-bias/normal",
    ]  # fmt: skip
    backends = [[case.backend for case in group.cases] for group in from_file]
    assert backends == [["cublas", "cublaslt", "triton"], ["cublas", "separate"]]
    cases = [group.cases[0] for group in from_file]
    run = Run(("gemm",), "now", {"name": "a"}, {}, results=tuple(
        Result(one, "skipped", "no GPU") for one in cases))  # fmt: skip
    read = run_from_json(json.loads(json.dumps(run_to_json(run))))
    assert [result.case for result in read.results] == cases
    assert to_csv(report_of(read)).splitlines()[2].endswith(",4")
    assert "batch" not in to_csv(report_of(replace(run, results=run.results[:1])))
    with pytest.raises(UserError, match="--layout: layout nt-strided is of a batch"):
        GemmRequest(asked, "64", "nt-strided").plan("cuda")


# ---------------------------------------------------------------- convolutions

PLAIN = dict(
    channels="64", passes="fprop", layout="nhwc", image="28", batch="4", kernel="3", stride="1",
    padding="same", dilation="1", groups="1",
)  # fmt: skip


def plan_convs(**changes: object) -> list[Group]:
    words = {**PLAIN, **{name: changes.pop(name) for name in PLAIN.keys() & changes.keys()}}
    return ConvRequest(Conditions(**changes), **words).plan("cuda")  # type: ignore[arg-type]


def test_every_combination_is_planned_once_with_its_baselines_and_what_was_asked() -> None:
    (group,) = plan_convs(dtype="fp16,bf16", backend="cudnn,triton")
    variants = [(case.precision_name, case.backend) for case in group.cases]
    assert variants == [("fp32", "cudnn"), ("tf32", "cudnn"), ("fp16", "cudnn"), ("fp16", "triton"),
                    ("bf16", "cudnn"), ("bf16", "triton")]  # fmt: skip
    assert len({case.group for case in group.cases}) == 1
    groups = plan_convs(
        channels="8..32,16,64x256", passes="fprop,wgrad", layout="nhwc,nchw", image="7,14x28",
        batch="1,2", kernel="1,3",
    )  # fmt: skip
    names = [group.name for group in groups]
    assert len(names) == len(set(names)) == 4 * 2 * 2 * 2 * 2 * 2
    assert {group.cases[0].problem.size for group in groups} == {"8", "16", "32", "64x256"}
    depthwise = plan_convs(channels="8,32", groups="depthwise")  # a group a channel
    dims = [group.cases[0].problem.dims for group in depthwise]
    assert [each["groups"] for each in dims] == [each["c"] for each in dims] == [8, 32]


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding"),
    [
        ("1", "1", 0), ("3", "1", 1), ("7", "1", 3), ("3", "2", 2), ("1x7", "1", "0x3"),
        ("3x5", "2x1", 2), ("1x31", "1", "0x15"), ("3", "1x2", "1x2"),
    ],
)  # fmt: skip
def test_same_padding_keeps_the_image(kernel: str, dilation: str, padding: int | str) -> None:
    (group,) = plan_convs(kernel=kernel, dilation=dilation)
    shape = group.cases[0].problem.shape
    assert (shape.padding, shape.p, shape.q) == (padding, 28, 28)


def test_misaligned_widths_bring_their_padded_twins() -> None:
    groups = plan_convs(channels="60,64,61")
    twins = [group for group in groups if len(group.cases) == 1]
    assert not twins, "61 and 60 are padded to 64, which is there"
    (alone, twin) = plan_convs(channels="60")
    assert len(alone.cases) == 3
    assert [(c.precision_name, c.backend, c.problem.shape.c) for c in twin.cases] == [
        ("fp16", "cudnn", 64)
    ]


# ---------------------------------------------------------------- problems from a file

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "results" / "shapes"
ASKED = Conditions(dtype="fp16", vs="none", backend="triton")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no shape"),
        ("m,n,k\n", "has no shape"),
        ("m,n\n1,2\n", "lacks the column k"),
        ("m,n,kk\n1,2,3\n", "unknown column 'kk'; did you mean k"),
        ("m,n,k\n1,2\n", "line 2: 2 values for 3 columns"),
        ("m,n,k\n1,2,3\n1,x,3\n", "line 3: n must be a number, not 'x'"),
        ("m,n,k\n1,,3\n", "line 2: n must be a number"),
        ("m,n,k\n0,2,3\n", "line 2: "),
        ("m,m,n,k\n1,2,3,4\n", "has a column twice"),
        ('m,n,k\n"64\n64",64,64\n', "line 2: 1 values for 3 columns"),
        ("m,n,k,layout\n1,2,3,xx\n", "line 2: layout must be one of"),
        (b"\xff\xfe\x00m", "cannot read it"),
        (None, "cannot read it"),  # a pipe, which would be waited for
    ],
)
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path, text: str | bytes | None, says: str
) -> None:
    file = tmp_path / "g.csv"
    if text is None:
        os.mkfifo(file)
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for path in (file, tmp_path / "no.csv"):
        with pytest.raises(UserError) as caught:
            GemmRequest(ASKED, shapes=path).plan("cuda")
        assert (says if path == file else "cannot read it") in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("op", ["gemm", "conv"])
def test_the_published_shapes_are_those_of_the_seed(op: str) -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "examples" / "draw_shapes.py", op], capture_output=True, check=True
    )
    file = SHAPES / f"{op}.csv"
    assert file.read_bytes() == drawn.stdout
    groups = (GemmRequest if op == "gemm" else ConvRequest)(ASKED, shapes=file).plan("cuda")
    assert len(groups) == len(list(csv.DictReader(file.open()))) >= 60


# ---------------------------------------------------------------- turns


HEAVY = 1e-3
LIGHT = 5e-6


@dataclass
class FakeClock:
    """Time passes only when somebody sleeps or the timer takes samples."""

    seconds: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


@dataclass
class FakeTimer(PlantedTimer):
    """Takes made-up samples and notes who was asked for how many."""

    clock: FakeClock = field(default_factory=FakeClock)
    times: dict[str, Callable[[int], float]] = field(default_factory=dict)
    taken: list[tuple[str, int]] = field(default_factory=list)
    warmed: list[tuple[str, int]] = field(default_factory=list)

    def block(self, launch: Launch, samples: int) -> Block:
        key = str(launch())
        turn = sum(name == key for name, _ in self.taken)
        self.taken.append((key, samples))
        seconds = self.times[key](turn)
        self.clock.seconds += samples * (seconds + self.flush_s)
        return Block((seconds,) * samples, 1500.0 + turn)

    def run(self, launch: Launch, times: int) -> None:
        key = str(launch())
        self.warmed.append((key, times))
        self.clock.seconds += times * self.times[key](0)


def constant(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


def jumping(seconds: float, share: float) -> Callable[[int], float]:
    return lambda turn: seconds * (1 + share * (-1) ** turn)


def variants_of(*estimates: float) -> list[Variant]:
    return [Variant(f"variant{i}", lambda i=i: f"variant{i}", s) for i, s in enumerate(estimates)]


def set_up(
    times: dict[str, Callable[[int], float]], **changes: object
) -> tuple[FakeClock, FakeTimer]:
    timer = FakeTimer(times=times, **changes)  # type: ignore[arg-type]
    return timer.clock, timer


def rounds_of(timer: FakeTimer, count: int) -> list[list[str]]:
    names = [name for name, _ in timer.taken]
    return [names[i : i + count] for i in range(0, len(names), count)]


def test_every_variant_takes_part_in_every_round_in_an_order_of_its_own() -> None:
    clock, timer = set_up({f"variant{i}": jumping(LIGHT, 0.3) for i in range(4)})
    variants = variants_of(*[LIGHT] * 4)
    rounds = InterleavedSampler(timer, "sustained", 1e9, clock).take(variants)
    orders = rounds_of(timer, 4)
    assert len(orders) == rounds
    assert all(
        sorted(order) == ["variant0", "variant1", "variant2", "variant3"] for order in orders
    )
    assert len({tuple(order) for order in orders}) > len(orders) / 4
    for first in range(4):  # none always goes first, or always after the same other
        assert 0 < sum(order[0] == f"variant{first}" for order in orders) < rounds
    followers = {pair for order in orders for pair in itertools.pairwise(order)}
    assert len(followers) == 12
    assert all(len(variant.blocks) == rounds for variant in variants)

    # Else what happens in one turn of a comparison would fall to the same variant every time.
    def orders(**changes: random.Random) -> list[list[str]]:
        clock, timer = set_up({f"variant{i}": jumping(LIGHT, 0.3) for i in range(2)})
        InterleavedSampler(timer, "sustained", 1e9, clock, **changes).take(
            variants_of(LIGHT, LIGHT)
        )
        return rounds_of(timer, 2)

    assert len({str(orders()) for _ in range(5)}) == 5
    assert orders(chance=random.Random(1)) == orders(chance=random.Random(1))
    firsts = [orders()[0][0] for _ in range(40)]
    assert 5 < firsts.count("variant0") < 35


@pytest.mark.parametrize(
    ("noise", "rounds"),
    # Of the next two, 14 rounds say the median to 0.48 and 0.54 %.
    [(0.2, MAX_ROUNDS), (0.0072, 14), (0.008, 28), (0.0, INTERIM_LOOKS[0])],
)
def test_one_noisy_variant_keeps_all_at_it_and_steady_ones_stop_at_once(
    noise: float, rounds: int
) -> None:
    clock, timer = set_up({"variant0": jumping(HEAVY, noise), "variant1": constant(LIGHT)})
    variants = variants_of(HEAVY, LIGHT)
    assert InterleavedSampler(timer, "sustained", 1e9, clock).take(variants) == rounds
    assert [len(variant.blocks) for variant in variants] == [rounds, rounds], "rounds pair up"


def warm_s(timer: FakeTimer, name: str) -> float:
    return sum(n * timer.times[name](0) for who, n in timer.warmed if who == name)


def test_one_heavy_variant_makes_the_whole_comparison_heavy() -> None:
    """Variants that are warmed differently would be compared at different clocks."""
    clock, timer = set_up({"variant0": constant(HEAVY), "variant1": constant(LIGHT)})
    rounds = InterleavedSampler(timer, "sustained", 1e9, clock).take(variants_of(HEAVY, LIGHT))
    for name in ("variant0", "variant1"):
        assert warm_s(timer, name) >= 0.99 * rounds * HEAVY_PLAN.warm_s
        assert dict(timer.taken)[name] <= HEAVY_PLAN.most
    clock, timer = set_up({"variant0": constant(LIGHT)})
    light = InterleavedSampler(timer, "sustained", 1e9, clock).take(variants_of(LIGHT))
    assert warm_s(timer, "variant0") < 0.3 * light * HEAVY_PLAN.warm_s
    clock, timer = set_up({"variant0": constant(LIGHT)})
    InterleavedSampler(timer, "sustained", 1e9, clock, heavy=True).take(variants_of(LIGHT))
    assert warm_s(timer, "variant0") >= HEAVY_PLAN.warm_s


@pytest.mark.parametrize(("launch_s", "flush_s"), [(2.0, 0.0), (1e-4, 1.0)])
def test_a_very_slow_launch_or_flush_is_taken_once_a_round(launch_s: float, flush_s: float) -> None:
    clock, timer = set_up({"variant0": constant(launch_s)}, flush_s=flush_s, name="clock")
    InterleavedSampler(timer, "sustained", 1.0, clock).take(variants_of(launch_s))
    assert [n for _, n in timer.taken] == [1, 1, 1]


def test_the_first_heavy_round_is_not_kept_and_burst_alone_rests_the_card() -> None:
    """The first block of each falls into a swing of the power limit."""
    names = ("variant0", "variant1")
    clock, timer = set_up(dict.fromkeys(names, lambda turn: HEAVY * (1.0 if turn else 1.4)))
    variants = variants_of(HEAVY, HEAVY)
    rounds = InterleavedSampler(timer, "sustained", 1e9, clock).take(variants)
    for variant in variants:
        assert len(variant.blocks) == rounds
        assert {t for block in variant.blocks for t in block.times_s} == {HEAVY}
    assert len(timer.taken) == 2 * (rounds + HEAVY_PLAN.discarded)
    assert [HEAVY_PLAN.before_s(n) for n in (1, 2, 6)] == pytest.approx([0.65, 0.5, 0.0])
    # And a CPU's clock needs no warming.
    clock, timer = set_up({"variant0": constant(HEAVY)})
    variants = variants_of(HEAVY)
    rounds = InterleavedSampler(timer, "burst", 1e9, clock).take(variants)
    assert timer.warmed == []
    assert all(n == 1 for _, n in timer.taken)
    assert len(clock.slept) == len(timer.taken) == rounds * BURST_SAMPLES
    assert min(clock.slept) >= BURST_IDLE_FACTOR * HEAVY
    assert all(len(block.times_s) == BURST_SAMPLES for block in variants[0].blocks)
    assert variants[0].blocks[0].sm_clock_mhz == pytest.approx(1501.0)
    for name in ("events", "clock"):
        clock, timer = set_up({"variant0": constant(HEAVY)}, name=name)
        InterleavedSampler(timer, "sustained", 1.0, clock).take(variants_of(HEAVY))
        assert clock.slept == []
        assert bool(timer.warmed) == (name == "events")


def test_telemetry_and_progress_follow_the_turns() -> None:
    clock, timer = set_up({"variant0": constant(LIGHT), "variant1": constant(LIGHT)})
    watched: list[str] = []
    said: list[tuple[str, int]] = []

    @contextmanager
    def during(key: str) -> Iterator[None]:
        before = len(timer.taken)
        yield
        assert [name for name, _ in timer.taken[before:]] == [key]
        watched.append(key)

    def begin(key: str, number: int) -> None:
        said.append((key, number))

    sampler = InterleavedSampler(timer, "sustained", 1.0, clock, during=during, begin=begin)
    rounds = sampler.take(variants_of(LIGHT, LIGHT))
    assert watched == [name for name, _ in timer.taken]
    # Round 0 settles the card; after it, whoever was announced last is the one that is timed.
    assert said[0] == ("variant0", 0)
    assert [key for key, _ in said[1:]] == watched
    assert [number for _, number in said[1:]] == [i for i in range(1, rounds + 1) for _ in "ab"]


def test_a_launch_that_fails_is_not_hidden() -> None:
    clock, timer = set_up({})
    bad = Variant("bad", lambda: 1 / 0, LIGHT)
    with pytest.raises(VariantFailed, match="bad") as caught:
        InterleavedSampler(timer, "sustained", 1.0, clock).take([bad])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
