"""Training over several ranks: two processes of gloo on the CPU, started by torchrun."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import rank_training
from samples.commands import ROOT, environment, wait_for
from samples.training_runs import run_of, variant

from e2e.data.loaders.workers import Shuffled
from e2e.report.trainings import exchange_part
from e2e.report.variants import view_of
from e2e.results.baselines import STRONG, WEAK, scaling
from e2e.results.exchange import Exchange
from e2e.results.types import Training
from e2e.training import ranks as limits
from e2e.training.allreduce import exchange_of
from e2e.training.launch import LOST, death_of, dist_env, launch
from e2e.training.ranks import Ranks
from microbench.report.parts import cells
from microbench.results.runfile import read_run

CPU = torch.device("cpu")
# Each rank says which process it is.
NETWORK = """
import os
from pathlib import Path
from torch import nn
def build():
    Path(os.environ.get("RANK", "none") + ".pid").write_text(str(os.getpid()))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 10),
    )
"""
OWN = ("own:build", "--input", "3x8x8", "--recipe", "fp32", "--device", "cpu")


class Launcher:
    """Starts programs as processes, in one folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self.environment = environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo") | {
            "PYTHONPATH": paths, "RANK_DEVICE": "cpu",
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Python with these words."""
        return subprocess.Popen(
            [self.python, *words], env=self.environment, cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        """What it prints; it ends with exit code 0, and says nothing else."""
        out, errors = self.start(*words).communicate(timeout=240)
        assert errors == ""
        return out

    def ranks(self, count: int, *words: str) -> None:
        """Processes of torchrun."""
        with self.start(
            "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *words
        ) as process:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors

    def pids(self) -> dict[int, int]:
        """The processes of the ranks that have built the network last."""
        texts = {int(p.stem): p.read_text() for p in self.folder.glob("[0-9].pid")}
        return {rank: int(text) for rank, text in texts.items() if text}


@pytest.fixture
def launcher(quick_python: str, tmp_path: Path) -> Launcher:
    (tmp_path / "own.py").write_text(NETWORK)
    return Launcher(quick_python, tmp_path)


@pytest.fixture(scope="module")
def two(quick_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks found of themselves."""
    folder = tmp_path_factory.mktemp("ranks")
    Launcher(quick_python, folder).ranks(2, "-m", "samples.rank_training", str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


# ---------------------------------------------------------------- what is computed

ROUNDED = {"amp-bf16": 2e-3, "bf16 gradients": 2e-3, "fp16 gradients": 1e-4}


@pytest.mark.parametrize("name", rank_training.CASES)
def test_two_ranks_train_as_one_with_twice_the_batch(two: list[dict[str, Any]], name: str) -> None:
    changes = {k: v for k, v in rank_training.CASES[name].items() if k != "compress"}
    one = rank_training.trained(changes, CPU, None, 2 * rank_training.BATCH)
    first, second = (rank[name] for rank in two)
    assert (first["weights"] - one["weights"]).abs().max() < ROUNDED.get(name, 1e-6)
    assert torch.equal(first["weights"], second["weights"])
    assert not torch.equal(first["apart"], second["apart"]), "of those that step alone"
    assert torch.equal(first["again"], second["again"])
    assert torch.equal(first["again"], first["apart"])


@pytest.mark.parametrize("name", ["fp32", "accumulate"])
def test_ranks_share_the_held_out_data(two: list[dict[str, Any]], name: str) -> None:
    one = rank_training.trained(rank_training.CASES[name], CPU, None, 2 * rank_training.BATCH)
    for rank in two:
        assert rank[name]["held out"] == pytest.approx(one["held out"], abs=1e-6)
        loss, accuracy = rank_training.of_one_batch(CPU, None)
        assert accuracy is None
        assert rank["one batch"] == (pytest.approx(loss, abs=1e-6), None), "one has no batch"


def test_ranks_agree_on_what_fails_and_not_on_dropout(two: list[dict[str, Any]]) -> None:
    first, second = (rank["agreement"] for rank in two)
    assert first["none"] == second["none"] == "fine"
    for name, kinds in {
        "memory": ("OutOfMemoryError", "OutOfMemoryError"),
        "error": ("RuntimeError", "ValueError"),
        "mistake": ("UserError", "UserError"),
    }.items():
        assert first[name].startswith(f"{kinds[0]}: rank 1: ")
        assert first[name].endswith("planted")
        assert second[name] == f"{kinds[1]}: planted"
    masks = [mask for rank in two for mask in rank["masks"][:1] + rank["masks"][2:]]
    assert not any(torch.equal(a, b) for a, b in combinations(masks, 2)), "they drop other units"
    assert [rank["same"] for rank in two] == [0, 0]
    assert [rank["slowest"] for rank in two] == [1.0, 1.0]


def planted(how: str, folder: str) -> None:
    """A rank's work; rank 1 does what is planted, where rank 0 waits for it."""
    place = dist_env()
    limits.EXCHANGE_S = 2.0
    late_s = 3.0 * (how == "works")  # than who is waited for where nothing is exchanged
    time.sleep(late_s * place.rank)
    ranks = Ranks.join(place, CPU)
    time.sleep(late_s * (1 - place.rank))
    number = ranks.from_rank0(place.rank + 7)
    if place.rank and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if place.rank and how == "raises":
        raise ValueError("planted")
    if place.rank and how == "hangs":
        time.sleep(600)
    found = ranks.gather(place.rank, 2.0 if how == "hangs" else 60.0)
    (Path(folder) / f"{place.rank}.txt").write_text(f"{number} {found}")
    ranks.leave()


def launched(how: str, folder: str) -> None:
    """In a process of its own, whose signals torch's launcher takes."""
    death = launch(2, planted, how, folder)
    (Path(folder) / "end.txt").write_text(death or "fine")


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("works", "fine"),
        ("killed", death_of(1, -signal.SIGKILL)),
        ("raises", death_of(1, 1)),
        ("hangs", death_of(0, LOST)),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_others(
    how: str, end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=launched, args=(how, str(tmp_path))
    )
    process.start()
    process.join(120)
    assert (tmp_path / "end.txt").read_text() == end
    written = [path.read_text() for path in sorted(tmp_path.glob("[01].txt"))]
    assert written == ["7 [0, 1]"] * 2 * (how == "works")
    assert capfd.readouterr() == ("", ""), "the caller says it in a line"


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_the_batches_of_all_ranks_are_one_order(count: int, batch: int, ranks: int) -> None:
    whole = iter(Shuffled(count, batch * ranks, 1))
    parts = [iter(Shuffled(count, batch, 1, (rank, ranks))) for rank in range(ranks)]
    for _ in range(4):
        own = [next(part) for part in parts]
        assert [one for some in zip(*own, strict=True) for one in some] == next(whole)


# ---------------------------------------------------------------- what is measured

seconds = st.floats(1e-4, 10)


@given(st.integers(2, 64), st.integers(1, 10**10), seconds, seconds, st.floats(0, 1))
def test_exchange_by_difference(
    ranks: int, size: int, local_s: float, alone_s: float, hidden: float
) -> None:
    step_s = local_s + (1 - hidden) * alone_s
    found = exchange_of(ranks, [size], [(step_s, local_s, alone_s)] * 5, [local_s] * ranks)
    assert found.exposed_s == pytest.approx((1 - hidden) * alone_s, abs=1e-9)
    assert found.overlapped == pytest.approx(hidden, abs=1e-3)
    assert found.bus_bytes_per_s == pytest.approx(2 * (ranks - 1) / ranks * size / alone_s)


def test_the_interval_of_a_difference_grows_with_its_noise() -> None:
    def width(noise: float) -> float:
        rounds = [(0.10 + noise * (i % 2), 0.08, 0.03) for i in range(8)]
        ends = exchange_of(2, [1], rounds, [0.08, 0.08]).exposed_ci95_s
        return ends[1] - ends[0]

    assert width(0.0) < 1e-6 < width(0.002) < width(0.02)


@given(st.lists(st.tuples(st.floats(0.1, 0.2), st.floats(0.1, 0.2), seconds), min_size=2))
def test_what_the_exchange_adds_is_in_its_interval(rounds: list[tuple[float, ...]]) -> None:
    found = exchange_of(2, [1], [(a, b, c) for a, b, c in rounds], [0.1, 0.1])
    low, high = found.exposed_ci95_s
    assert low - 1e-9 <= found.exposed_s <= high + 1e-9


@given(st.floats(0.1, 3))
def test_the_hidden_share_is_said_where_its_interval_is_narrow(width: float) -> None:
    alone_s = 0.01
    ends = (0.004 - width * alone_s / 2, 0.004 + width * alone_s / 2)
    training = replace(
        timed(2, 8, 1.0), exchange=Exchange(2, 1, 0.1, alone_s, 0.004, ends, (0.1, 0.1))
    )
    found = cells(exchange_part(view_of(run_of(training))))
    place = [column.title for column in found.columns].index("hidden")
    assert (found.texts[0][place] == "?") == (ends[1] - ends[0] > alone_s)


@given(st.integers(0, 7), st.floats(1.06, 3))
def test_a_rank_that_is_slower_than_the_others_is_named(slow: int, by: float) -> None:
    times = [0.1 * (by if rank == slow else 1.0) for rank in range(8)]
    found = Exchange(8, 1, 0.1, 0.01, 0.0, None, tuple(times)).stragglers
    assert found == {slow: pytest.approx(by)}


def timed(gpus: int, batch: int, step_s: float) -> Training:
    units, case = batch * gpus, {"batch": batch, "gpus": gpus}
    return variant("fp32", units / step_s, units=units, half_pct=1.0, case=case)


@given(st.integers(2, 64), st.floats(0.2, 1.0))
def test_efficiency_of_weak_and_strong_scaling(gpus: int, efficiency: float) -> None:
    one = timed(1, 64 * gpus, 1.0)
    weak = timed(gpus, 64 * gpus, 1 / efficiency)
    weak = replace(weak, case=replace(weak.case, lr=0.2))  # whatever their rates
    strong = timed(gpus, 64, 1 / gpus / efficiency)
    found = scaling([one, weak, strong, timed(gpus, 63, 1.0)])
    assert [row.kind for row in found] == [WEAK, STRONG]
    for row in found:
        ratio = row.efficiency
        assert ratio.ratio == pytest.approx(efficiency)
        assert ratio.ci95[0] < efficiency < ratio.ci95[1]


@given(
    st.sampled_from([(1, 2), (1, 2, 4)]), st.sets(st.sampled_from([64, 128, 256, 512]), min_size=1),
    st.booleans(),
)  # fmt: skip
def test_batches_that_double_are_compared_as_the_run_was_asked(
    numbers: tuple[int, ...], batches: set[int], strong: bool
) -> None:
    cases = [(n, batch // n if strong else batch) for n in numbers for batch in sorted(batches)]
    found = scaling([timed(*case, 1.0) for case in cases])
    assert [row.kind for row in found] == [STRONG if strong else WEAK] * len(found)
    assert len(found) == (len(numbers) - 1) * len(batches)


def test_a_strong_run_is_recognised_where_one_gpu_had_no_room() -> None:
    large = replace(timed(1, 1024, 1.0), status="failed", steps=None)
    ones = [timed(1, 256, 1.0), timed(1, 512, 1.0), large]
    found = scaling([*ones, *(timed(2, batch, 1.0) for batch in (128, 256, 512))])
    assert [(row.many.case.batch, row.kind, row.one.case.batch) for row in found] == [
        (128, STRONG, 256), (256, STRONG, 512), (512, WEAK, 512),
    ]  # fmt: skip


# ---------------------------------------------------------------- the command


def results(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["results"]


def test_one_command_over_one_process_and_two(launcher: Launcher) -> None:
    words = ("--batch", "8", "--gpus", "1,2", "--compress", "none,bf16", "--budget", "1")
    words = (*words, "--iterations", "3", "--json", "run.json", "--verbose")
    out = launcher.run("-m", "e2e", *OWN, *words)
    found = results(launcher.folder / "run.json")
    assert [(r["case"]["gpus"], r["case"]["compress"]) for r in found] == [
        (1, "none"), (2, "none"), (2, "bf16"),
    ]  # fmt: skip
    one, two, rounded = found
    assert "exchange" not in one
    assert (one["step_units"], two["step_units"]) == (8, 16)
    assert two["exchange"]["bytes"] == 2 * rounded["exchange"]["bytes"] == one["model_bytes"]
    assert len(two["exchange"]["rank_local_s"]) == 2
    for exchange in (two["exchange"], rounded["exchange"]):
        assert sum(exchange["buckets"]) == exchange["bytes"]
        assert exchange["copies"]["count"] == 4
        assert exchange["copies"]["bytes"] == one["model_bytes"]
        assert exchange["copies"]["all_s"] > 0
    assert [len(r["repeats"]) for r in found] == [1, 1, 1]
    assert "efficiency" in out
    assert "Exchange of gradients" in out


def test_under_torchrun_rank_0_has_screen_and_file(launcher: Launcher) -> None:
    launcher.ranks(
        1, "--redirects", "1", "--log-dir", "log", "-m", "e2e", *OWN, "--batch", "8",
        "--budget", "1", "--json", "run.json",
    )  # fmt: skip
    (found,) = results(launcher.folder / "run.json")
    assert (found["status"], found["case"]["gpus"]) == ("ok", 1)
    assert "exchange" not in found
    (screen,) = launcher.folder.glob("log/**/stdout.log")
    assert screen.read_text().count("Run file:") == 1


def test_a_rank_that_dies_costs_its_variant_and_batches_are_divisible(launcher: Launcher) -> None:
    words = ("--batch", "8,4", "--gpus", "2", "--budget", "4.5", "--json", "run.json")
    with launcher.start("-m", "e2e", *OWN, *words) as ran:
        wait_for(lambda: len(launcher.pids()) == 2)
        time.sleep(0.5)  # they time the steps of a variant, or compare what they have
        os.kill(launcher.pids()[1], signal.SIGKILL)
        _, errors = ran.communicate(timeout=240)
    assert (ran.returncode, errors) == (0, "")
    dead, whole = read_run(launcher.folder / "run.json").of(Training)
    assert (dead.status, whole.status) == ("failed", "ok")
    assert str(dead.reason).startswith("rank 1 ended (SIGKILL)")

    words = ("--gpus", "2", "--strong", "--batch", "9", "--quiet")
    with launcher.start("-m", "e2e", *OWN, *words) as ran:
        _, errors = ran.communicate(timeout=240)
    assert (ran.returncode, errors.count("\n")) == (2, 1)
    assert errors.startswith("error: --strong: a batch of 9 cannot be divided")
