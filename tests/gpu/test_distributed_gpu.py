"""Training over ranks by NCCL, and a fleet: one GPU is enough for most, the rest needs two."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import rank_training
from samples.commands import ROOT, environment, is_gone, wait_for

from e2e.results.types import Training
from microbench.__main__ import main
from microbench.device.device import gpu_for
from microbench.report.fleet import COPY, FAILED, SLOW
from microbench.results.runfile import read_run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
CUDA = torch.device("cuda", 0)
COUNT = torch.cuda.device_count()
TWO = pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
FOUR = pytest.mark.skipif(COUNT < 4, reason="needs four GPUs")
ROUNDED = 2e-3  # TF32 is off, but sums are in another order; hooks and bfloat16 round


def found_here() -> dict[str, str]:
    return environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=found_here(), cwd=cwd, capture_output=True, text=True, timeout=280
    )


def results(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["results"]


def ranks(count: int, folder: Path) -> list[dict[str, Any]]:
    done = run(*TORCHRUN, str(count), "-m", "samples.rank_training", str(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=TWO), pytest.param(4, marks=FOUR)])
def test_ranks_train_as_one_with_their_batches_together(count: int, tmp_path: Path) -> None:
    found = ranks(count, tmp_path)
    for name, changes in rank_training.CASES.items():
        plain = {k: v for k, v in changes.items() if k != "compress"}
        one = rank_training.trained(plain, CUDA, None, count * rank_training.BATCH)
        for rank in found:
            assert (rank[name]["weights"] - one["weights"]).abs().max() < ROUNDED, name
            assert torch.equal(rank[name]["weights"], found[0][name]["weights"]), name
            assert torch.equal(rank[name]["again"], found[0][name]["again"]), name


def test_amp_under_torchrun_with_one_rank(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = run(
        *TORCHRUN, "1", "-m", "e2e", "resnet18", "--recipe", "tf32,amp,O2", "--batch", "32",
        "--budget", "3", "--iterations", "5", "--json", str(path), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(path)
    assert [r["status"] for r in found] == ["ok"] * 3
    assert all(result["repeats"] and "exchange" not in result for result in found)


@TWO
def test_one_command_over_one_gpu_and_two(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = run(
        sys.executable, "-m", "e2e", "resnet18", "--recipe", "tf32,amp", "--batch", "32",
        "--gpus", "1,2", "--compress", "none,bf16", "--budget", "6", "--data", "generated",
        "--input", "3x32x32", "--iterations", "5", "--json", str(path), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(path)
    assert [(r["case"]["gpus"], r["case"]["compress"]) for r in found] == [
        (1, "none"), (1, "none"), (2, "none"), (2, "bf16"), (2, "none"), (2, "bf16"),
    ]  # fmt: skip
    for result in found[2:]:
        assert result["status"] == "ok"
        assert result["exchange"]["bus_bytes_per_s"] > 0
        assert len(result["exchange"]["rank_local_s"]) == 2
        terms = [part["term"] for part in result["traced"]["parts"]]
        assert "gradient exchange" in terms


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in tasks for word in path.read_text().split()]


def ranks_of(pid: int) -> list[int]:
    """The processes of the ranks that a command's training process has started, rank 0 first."""
    below = [one for child in children(pid) for one in children(child)]
    return sorted(p for p in below if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes())


@TWO
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "rank 1 ended (SIGKILL)"), (signal.SIGSTOP, "rank 0 waited for another")],
)
def test_a_rank_of_nccl_that_dies_or_hangs_costs_its_variant_alone(
    number: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    ran = subprocess.Popen(
        [sys.executable, "-m", "e2e", "resnet18", "--recipe", "amp", "--batch", "32,16",
         "--gpus", "2", "--budget", "40", "--json", str(path)],
        env=found_here(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in ran.stdout:
        if "variant" in line:  # the ranks have joined
            break
    before = ranks_of(ran.pid)
    time.sleep(15)  # and train: a rank that hangs while it sets up is waited for much longer
    os.kill(before[1], number)
    wait_for(lambda: is_gone(before[0]))
    _, errors = ran.communicate(timeout=180)
    assert (ran.returncode, errors) == (0, "")
    broken, whole = read_run(path).of(Training)
    assert (broken.status, whole.status) == ("failed", "ok")
    assert str(broken.reason).startswith(said)


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    count = COUNT + 1
    done = run(sys.executable, "-m", "e2e", "resnet18", "--gpus", f"1,{count}", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"--gpus {count}" in done.stderr


# ---------------------------------------------------------------- a fleet


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    assert not [row for row in rows if row["finding"] == FAILED]
    return rows


def test_every_gpu_has_rows_with_rates_and_no_name_of_card_or_host(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    words = ("--sizes", "4096", "--budget", "1", "--threshold", "1000%")
    assert main(["fleet", *words, "--json", str(path)]) == 0
    rows = rows_of(path)
    assert [row["gpu"] for row in rows[::2]] == list(range(torch.cuda.device_count()))
    for copied, gemm in zip(rows[::2], rows[1::2], strict=True):
        assert copied["case"] == COPY
        assert 1e11 < copied["work"] / copied["median_s"] < 1e13
        assert gemm["median_s"]
        if gpu_for(gemm["gpu"]):
            assert gemm["sm_clock_mhz"]
        assert (gemm["vs_others_pct"] is None) == (torch.cuda.device_count() == 1)
    text, card = path.read_text(), gpu_for(0)
    assert socket.gethostname() not in text
    assert card is None or (str(card.ask("nvmlDeviceGetUUID")) not in text)
    assert card is None or str(card.card()) not in text


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_gpu_that_another_process_keeps_busy_is_named_slow(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert busy.stdout.readline()
        assert main(["fleet", "--sizes", "8192", "--budget", "3", "--json", str(path)]) == 1
    finally:
        busy.kill()
        busy.wait()
    assert {row["gpu"] for row in rows_of(path) if row["finding"] == SLOW} == {1}


BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda:1", dtype=torch.float16)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(1)
"""
