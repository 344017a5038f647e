"""On a GPU: kernels that fault or do not end, in back ends, networks and scripts, fail by name.

Endless kernels make it slow: about a minute. Nothing here changes a setting of the card.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from samples.bad_gpu_kernels import NEIGHBOUR
from samples.commands import (
    MARK,
    ROOT,
    Main,
    Ran,
    environment,
    marked,
    run_here,
    wait_for,
    warm_children,
)

from e2e.__main__ import main as training
from e2e.commands import worker as train_worker
from e2e.results.types import Training
from microbench import worker
from microbench.__main__ import main
from microbench.device.host import COMPUTING, LATER, LOAD, PROCESSES
from microbench.results.runfile import read_run
from microbench.results.types import Result
from microbench.roofline.explain import CLOCK_DROP

HANG_S = 15.0  # in place of two minutes
SET_UP_S = 60.0  # in place of ten
# What each fault is called in its reason.
FAULTS = {
    "illegal_address": "illegal memory access",
    "assertion": "device-side assert",
    "endless": "hung: no response for",
    "too_much": "out of memory",
}


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "HANG_S", HANG_S)
    monkeypatch.setattr(train_worker, "SET_UP_S", SET_UP_S)
    with warm_children():
        yield


# ---------------------------------------------------------------- back ends


@pytest.mark.parametrize("later", ["", "_later"])
def test_a_fault_costs_its_own_case_alone(tmp_path: Path, later: str) -> None:
    faults = {f"{name}{later}": said for name, said in FAULTS.items()}
    file = tmp_path / "run.json"
    named = ",".join(f"samples.bad_gpu_kernels:{name}" for name in (*faults, "good"))
    ran = run_here(
        main, "microbench", "gemm", "--sizes", "256,512", "--dtype", "fp16", "--vs", "none",
        "--backend", named, "--budget", "2", "--processes", "1", "--json", file,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr  # an own kernel failed
    assert "Traceback" not in ran.stderr
    run = read_run(file)
    assert run.finished_at
    found = {(r.case.problem.dims["m"], r.case.backend.rpartition(":")[2]): r for r in run.results}
    for size in (256, 512):
        for name, said in faults.items():
            result = found[size, name]
            assert result.status == "failed", (name, result)
            assert said in (result.reason or ""), (name, result.reason)
            assert result.measurement is None
        good = found[size, "good"]
        assert good.status == "ok", good.reason
        assert min(good.measurement.times_s) > 0


def test_a_kernel_that_turns_wrong_on_the_gpu_fails(tmp_path: Path) -> None:
    names = ("wrong_later", "nan_later", "stale_later", "kept_later")
    for result in measured(tmp_path, "512", (*names, "cached", "unless_poisoned"), "2"):
        assert result.turned_wrong, result
        assert result.measurement is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("aside", "work was left on another stream"), ("keeps_l2", "sets a part of the L2 aside")],
)
def test_a_kernel_that_would_fool_the_timer_fails_by_name(
    tmp_path: Path, name: str, said: str
) -> None:
    (result,) = measured(tmp_path, "4096", (name,), "1")
    assert result.status == "failed"
    assert said in (result.reason or "")


def measured(folder: Path, size: str, names: tuple[str, ...], processes: str) -> list[Result]:
    """The results of these bad kernels; a good one beside them is timed all the same."""
    file = folder / "run.json"
    named = ",".join(f"samples.bad_kernels:{name}" for name in (*names, "good"))
    ran = run_here(
        main, "microbench", "gemm", "--sizes", size, "--dtype", "fp16", "--vs", "none",
        "--backend", named, "--budget", "2", "--processes", processes, "--json", file,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr  # an own kernel failed
    found = {r.case.backend.rpartition(":")[2]: r for r in read_run(file).results}
    assert found["good"].measurement is not None
    return [found[name] for name in names]


# ---------------------------------------------------------------- networks


def e2e(command: str, name: str, file: Path, *words: object, recipes: str = "fp32,amp") -> Ran:
    ran = run_here(
        training, "e2e", command, f"samples.bad_gpu_networks:{name}", "--batch", "8", "--recipe",
        recipes, "--json", file, *words,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr
    return ran


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_under_amp_costs_that_arm_alone(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.json"
    ran = e2e("train", f"{name}_in_amp", file, "--budget", "2")
    assert ran.returncode == 0, ran.stderr
    fp32, amp = read_run(file).of(Training)
    assert fp32.status == "ok", fp32.reason
    assert fp32.steps is not None
    assert amp.status == "failed"
    assert FAULTS[name] in (amp.reason or ""), amp.reason
    assert read_run(file).finished_at


@pytest.mark.parametrize(
    ("command", "name"),
    [("train", "assertion"), ("train", "endless"), *(("predict", name) for name in FAULTS)],
)
def test_a_network_that_faults_when_it_is_tried_is_named(
    tmp_path: Path, command: str, name: str
) -> None:
    ran = e2e(command, f"{name}_at_once", tmp_path / "run.json")
    assert ran.returncode == 2
    assert f"samples.bad_gpu_networks:{name}_at_once" in ran.stderr
    assert FAULTS[name] in ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["illegal_address", "endless"])
def test_a_fault_while_its_step_is_predicted_is_its_arms_reason(tmp_path: Path, name: str) -> None:
    """Tracing has fake tensors, but a kernel that torch knows nothing of runs all the same."""
    file = tmp_path / "run.json"
    ran = e2e("predict", f"{name}_traced", file, recipes="fp32")
    assert ran.returncode == 1, ran.stderr
    (arm,) = read_run(file).of(Training)
    assert arm.status == "failed"
    assert FAULTS[name] in (arm.reason or ""), arm.reason


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_middle_of_a_training_keeps_the_times(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.json"
    words = ("--budget", "1", "--iterations", "60000")
    e2e("train", f"{name}_in_training", file, *words, recipes="fp32")
    (arm,) = read_run(file).of(Training)
    assert arm.status == "failed"
    assert "training from seed" in (arm.reason or "")
    assert FAULTS[name] in (arm.reason or "")
    assert arm.steps is not None


# ---------------------------------------------------------------- scripts, under `diagnose`

SCRIPT = """import sys
import torch
from samples import bad_gpu_kernels

fault = bad_gpu_kernels.FAULTS[sys.argv[1]]
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(100):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == int(sys.argv[2]):
        print("now", flush=True)
        fault(x)
        torch.cuda.synchronize()
"""
AT = {"before it is timed": 1, "while it is timed": 8, "while it is recorded": 16}
WORDS = ("--after", "4", "--bare", "8", "--traced", "6")
LIMIT_S = 120


def started(folder: Path, fault: str, step: int) -> subprocess.Popen[str]:
    """`diagnose` of the script, as a process of its own."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "tmp").mkdir()
    more = {"TMPDIR": str(folder / "tmp"), MARK: str(folder),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "e2e", "diagnose", *WORDS, "train.py", "--json", "found.json", "--",
         fault, str(step)],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(**more),
    )  # fmt: skip


@pytest.mark.parametrize("step", AT.values(), ids=AT.keys())
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "endless"])
def test_a_fault_is_the_scripts_and_ends_the_diagnosis(
    tmp_path: Path, fault: str, step: int
) -> None:
    process = started(tmp_path, fault, step)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3, errors
    assert FAULTS[fault] in errors  # as the script itself says
    *_, last = errors.splitlines()
    assert last.startswith("error: train.py ")
    assert last.endswith("nothing is diagnosed")
    assert not (tmp_path / "found.json").exists()
    assert not list((tmp_path / "tmp").glob("halfway-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_kernel_that_does_not_end_ends_with_the_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = started(tmp_path, "endless", 8)
    while (line := process.stdout.readline()) != "now\n":  # the plan is said first
        assert line, "it ended"
    time.sleep(2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    wait_for(lambda: not marked(str(tmp_path)))  # a driver may hold it for a while
    assert not list((tmp_path / "tmp").glob("halfway-*"))


# ---------------------------------------------------------------- other programs


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


@pytest.mark.alone
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


@pytest.mark.alone
@pytest.mark.parametrize(
    ("main", "words"),
    [(training, "e2e cnn-cifar --batch 64 --recipe fp32"),
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


@pytest.mark.alone
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
