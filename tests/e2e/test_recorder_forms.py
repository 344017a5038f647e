"""Scripts of many forms under the recorder: they run as without it, and their trace is whole.

.ci/recorder.py runs this file under other versions of torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from samples.recording import NEEDED, RECORDER, STEPS, Done, environment, run, run_all

from e2e.__main__ import main
from e2e.profile.halfway_watch import PREFIX
from e2e.profile.reader import read_trace

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

START = f"""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
STEPS = {NEEDED + 4}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x).square().mean()


def batch():
    return torch.randn(4, 8)
"""
PLAIN = """
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for _ in range(STEPS):
    loss = net(batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print(loss.item())
"""
TWO_OPTIMIZERS = """
maker, critic = Net(), Net()
first, second = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (maker, critic))
for _ in range(STEPS):
    for net, optimizer in ((maker, first), (critic, second)):
        loss = net(batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""
ACCUMULATED = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for number in range(4 * STEPS):
    loss = net(batch())
    (loss / 4).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
print(loss.item())
"""
AUTOCAST = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
CLOSURE = """
net = Net()
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

def closure():
    optimizer.zero_grad()
    loss = net(batch())
    loss.backward()
    return loss

for _ in range(STEPS):
    loss = optimizer.step(closure)
print(loss.item())
"""
CHECKPOINTED = """
class Checkpointed(Net):
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(lambda y, block=block: torch.relu(block(y)), x, use_reentrant=REENTRANT)
        return self.head(x).square().mean()

net = Checkpointed()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):
    loss = net(batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
MADE_ANEW = """
net = Net()
for steps in (1, STEPS):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        loss = net(batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""
FORMS = {  # script, and how often it calls the model in a step
    "plain": (PLAIN, 1),
    "two_optimizers": (TWO_OPTIMIZERS, 2),
    "accumulated": (ACCUMULATED, 4),
    "autocast": (AUTOCAST, 1),
    "closure": (CLOSURE, 3),
    "made_anew": (MADE_ANEW, 1),
    "checkpointed": (CHECKPOINTED.replace("REENTRANT", "False"), 1),
    "checkpointed_reentrant": (CHECKPOINTED.replace("REENTRANT", "True"), 1),
}
MODULES = ("", "stem", "blocks.0", "blocks.1", "head")
FAILING = {
    f"fails_after_{seen}": PLAIN.replace("schedule.step()", f"if _ == {seen - 1}: 1 / 0")
    for seen in (4, NEEDED - 1, NEEDED)
}
OWN_PROFILER = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
profiler = torch.profiler.profile()
for number in range(STEPS):
    if number == BEGIN:
        profiler.start()
    loss = net(batch())
    loss.backward()
    optimizer.step()
    if number == BEGIN + LASTS - 1:
        profiler.stop()
        print("own", sum(e.count for e in profiler.key_averages() if e.key == "aten::linear"))
print(loss.item())
"""
WARMING_UP = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
schedule = torch.profiler.schedule(wait=2, warmup=6, active=1)
with torch.profiler.profile(schedule=schedule) as profiler:
    for number in range(STEPS):
        net(batch()).backward()
        optimizer.step()
        profiler.step()
        if number == 8:
            print("own", sum(e.count for e in profiler.key_averages() if e.key == "aten::linear"))
"""
# The script's own profiler, and how many whole steps are left to the recorder.
PROFILING = {
    f"own_{begin}_{lasts}": (
        OWN_PROFILER.replace("BEGIN", str(begin)).replace("LASTS", str(lasts)), lasts, whole
    )
    for begin, lasts, whole in (
        (0, 2, 2), (0, NEEDED + 4, 0), (3, 2, 2), (4, 2, 1), (NEEDED - 2, 4, 0), (NEEDED - 1, 2, 1),
        (NEEDED, 2, 2),
    )
} | {"own_warming_up": (WARMING_UP, 1, 0)}  # fmt: skip
SCRIPTS = {
    **{name: text for name, (text, _) in FORMS.items()},
    **FAILING,
    **{name: text for name, (text, *_) in PROFILING.items()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recorder and every script."""
    made = tmp_path_factory.mktemp("forms")
    (made / RECORDER.name).write_text(RECORDER.read_text())
    for name, text in SCRIPTS.items():
        (made / f"{name}.py").write_text(START + text)
    return made


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, Done]:
    """What each script did under the recorder, and without it as "alone_NAME"."""
    commands: dict[str, tuple[str, ...]] = {}
    for name in SCRIPTS:
        commands[f"alone_{name}"] = (f"{name}.py",)
        commands[name] = (RECORDER.name, *STEPS, "--out", f"{name}.json.gz", f"{name}.py")
    stack = (RECORDER.name, *STEPS, "--stack", "--out", "stack.json.gz", "plain.py")
    return run_all(folder, commands | {"stack": stack})


def check_diagnosis(trace: Path, steps: int = 2) -> None:
    """`diagnose` reads it, and its terms add up to the whole steps."""
    written = trace.parent / f"{trace.name}.diagnosis.json"
    assert main(["diagnose", str(trace), "--json", str(written)]) == 0
    (traced,) = json.loads(written.read_text())["runs"]
    assert traced["steps"] == steps
    assert sum(term["ns"] for term in traced["terms"]) == traced["window_ns"] > 0
    assert traced["bare_step_s"] > 0


def forwards(trace: Path) -> Counter[str]:
    """How many forward passes of each module were recorded."""
    notes = read_trace(trace).notes
    return Counter(n.name.removeprefix(PREFIX) for n in notes if n.name.startswith(PREFIX))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_and_returns_what_it_does_without(ran: dict[str, Done], name: str) -> None:
    watched, alone = ran[name], ran[f"alone_{name}"]
    assert (watched.stdout, watched.code) == (alone.stdout, alone.code), watched.stderr
    assert alone.code == (name in FAILING)


@pytest.mark.parametrize("name", FORMS)
def test_the_trace_of_each_form_has_whole_steps_and_all_modules(
    folder: Path, ran: dict[str, Done], name: str
) -> None:
    trace = folder / f"{name}.json.gz"
    assert trace.exists(), ran[name].stderr
    check_diagnosis(trace)
    found = forwards(trace)
    for module in MODULES:
        repeated = 2 if name.startswith("checkpointed") and module.startswith("blocks.") else 1
        assert found[module] == 3 * FORMS[name][1] * repeated, (module, found)
    assert set(found) == set(MODULES)


def test_the_stack_names_the_script_s_lines(folder: Path, ran: dict[str, Done]) -> None:
    trace = folder / "stack.json.gz"
    assert trace.exists(), ran["stack"].stderr
    check_diagnosis(trace)
    assert any("plain.py" in span.name for span in read_trace(trace).stack)
    assert not read_trace(folder / "plain.json.gz").stack


@pytest.mark.parametrize("name", FAILING)
def test_a_script_that_fails_leaves_the_whole_steps_before_that(
    folder: Path, ran: dict[str, Done], name: str
) -> None:
    assert ran[name].stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    whole = max(0, int(name.rpartition("_")[2]) - (NEEDED - 2))
    trace = folder / f"{name}.json.gz"
    assert trace.exists() == bool(whole)
    if whole:
        check_diagnosis(trace, whole)


@pytest.mark.parametrize("name", PROFILING)
def test_a_profiler_of_the_script_s_own_comes_first(
    folder: Path, ran: dict[str, Done], name: str
) -> None:
    """It sees all of its steps. The recorder keeps the whole steps before it, or begins after."""
    _, lasts, whole = PROFILING[name]
    assert f"own {4 * lasts}\n" in ran[name].stdout
    trace = folder / f"{name}.json.gz"
    assert trace.exists() == bool(whole), ran[name].stderr
    if whole:
        check_diagnosis(trace, whole)
    else:
        assert "the script's own profiler" in ran[name].stderr


# It leaves at once: now and then torch's threads of gloo abort a process that ends by itself, also
# without the recorder.
DISTRIBUTED = """
import os
import torch.distributed as dist

dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):
    loss = net(batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
os._exit(0)
"""


def test_ranks_of_torchrun_have_a_file_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(START + DISTRIBUTED)
    (tmp_path / RECORDER.name).write_text(RECORDER.read_text())
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    run(tmp_path, *launcher, RECORDER.name, *STEPS, "--out", "a.json.gz", "train.py")
    for rank in (0, 1):
        trace = tmp_path / f"a.rank{rank}.json.gz"
        check_diagnosis(trace)
        facts = read_trace(trace).facts
        assert (facts["rank"], facts["world_size"]) == (rank, 2)
        assert forwards(trace)["head"] == 3


FOREIGN = """
import e2e, kernels, microbench, sys

assert [m.WHOSE for m in (e2e, kernels, microbench)] == 3 * ["theirs"]
"""
CHECK = """
ours = [m for m in sys.modules if m.startswith(("e2e.", "kernels.", "microbench."))]
print("ours", ours)
"""


@pytest.mark.parametrize("found_by", ["installed", "PYTHONPATH"])
def test_an_environment_with_packages_of_our_names_meets_none_of_ours(
    tmp_path: Path, found_by: str
) -> None:
    """One has them installed; halfway is installed in its own, or found by PYTHONPATH."""
    find = "import torch, sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = Path(run(tmp_path, "-c", find).stdout.strip())
    made = tmp_path / "environment"
    run(tmp_path, "-m", "venv", "--without-pip", str(made))
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{theirs}\n")
    for name in ("e2e", "kernels", "microbench"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (tmp_path / "train.py").write_text(START + FOREIGN + PLAIN + CHECK)
    start = f"sys.path.insert(0, {str(ROOT)!r})" if found_by == "installed" else ""
    (tmp_path / "halfway").mkdir()
    (tmp_path / "halfway/start.py").write_text(
        f"import sys\n{start}\nfrom e2e.start import main\nsys.exit(main())\n"
    )
    path = {} if found_by == "installed" else {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "halfway/start.py", "diagnose", "--python", str(made / "bin/python"),
         *STEPS, "--whole", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env=environment(tmp_path, **path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ours []" in done.stdout
    assert "ms a step" in done.stdout
    for name in ("e2e", "kernels", "microbench"):
        assert [p.name for p in (packages / name).iterdir() if p.suffix] == ["__init__.py"]
