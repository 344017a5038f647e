"""On a GPU: other programs that take its memory or its time, and a card that holds its clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from samples.bad_gpu_kernels import NEIGHBOUR
from samples.commands import ROOT, Main, environment, run_here, warm_children

from e2e.__main__ import main as train
from microbench.__main__ import main
from microbench.device.host import COMPUTING, LATER, LOAD, PROCESSES
from microbench.results.runfile import read_run
from microbench.roofline.explain import CLOCK_DROP

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


@contextmanager
def neighbour(*words: str) -> Iterator[None]:
    """Another program on the GPU, meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-m", "samples.gpu_neighbour", *words], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"),
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def test_memory_that_another_program_takes_later_costs_the_case_that_needs_it(
    tmp_path: Path,
) -> None:
    """It takes it between two cases: the first has what it needs, and the run goes on."""
    file = tmp_path / "run.json"
    named = "samples.bad_gpu_kernels:hungry_meanwhile,samples.bad_gpu_kernels:good"
    with neighbour("memory", str(tmp_path)):
        ran = run_here(
            main, "microbench", "gemm", "--sizes", "256,512", "--dtype", "fp16", "--vs", "none",
            "--backend", named, "--budget", "1", "--processes", "1", "--json", file,
            **{NEIGHBOUR: str(tmp_path)},
        )  # fmt: skip
    assert ran.returncode == 1, ran.stderr  # an own kernel failed
    assert (tmp_path / "memory is done").exists()
    results = read_run(file).results
    found = {(r.case.problem.dims["m"], r.case.backend.rpartition(":")[2]): r for r in results}
    for key in ((256, "hungry_meanwhile"), (256, "good"), (512, "good")):
        assert found[key].status == "ok", (key, found[key].reason)
    failed = found[512, "hungry_meanwhile"]
    assert failed.status == "failed"
    assert "out of memory" in (failed.reason or "")
    assert "other processes hold" in (failed.reason or "")


@pytest.mark.parametrize(
    ("main", "words"),
    [(train, "e2e cnn-cifar --batch 64 --recipe fp32"),
     (main, "microbench gemm --sizes 512 --dtype fp16 --vs none --backend cublas")],
    ids=["training", "gemm"],
)  # fmt: skip
def test_a_program_that_computes_meanwhile_is_said(main: Main, words: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with neighbour("compute"):
        ran = run_here(
            main, *words.split(), "--budget", "1", "--processes", "1", "--json", file
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    load = read_run(file).settings[LOAD]
    assert load.get(COMPUTING) or load.get(PROCESSES) or load.get(LATER), load
    assert "on the GPU" in ran.stdout


def test_a_card_at_its_power_limit_is_said(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    ran = run_here(
        main, "microbench", "gemm", "--sizes", "8192", "--dtype", "fp16", "--vs", "none",
        "--backend", "cublas", "--budget", "3", "--processes", "1", "--json", file,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    run = read_run(file)
    measurement = run.results[0].measurement
    top = float(run.device.get("sm_clock_max_mhz") or 0)
    held = measurement.throttle and (measurement.sm_clock_mhz or top) < CLOCK_DROP * top
    if not held:
        pytest.skip(f"{torch.cuda.get_device_name()} keeps its clock: {measurement.throttle}")
    assert "clock" in " ".join(warning.symptom for warning in run.results[0].warnings)
    assert "clock" in ran.stdout
