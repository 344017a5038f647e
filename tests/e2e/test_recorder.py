"""The recorder: scripts of many forms run as without it, and their trace is whole.

.ci/recorder.py runs this file under other versions of torch.
"""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from samples.recording import NEEDED, PROOFS, RECORDER, STEPS, User, source
from samples.traces import US, Made

from e2e.__main__ import main
from e2e.profile.diagnosis import diagnose
from e2e.profile.halfway_watch import PREFIX
from e2e.profile.partition import partition
from e2e.profile.reader import read_trace

ROOT = Path(__file__).parents[2]

BESIDE = f"""
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


def step(net, optimizer, parts=1):
    for _ in range(parts):
        loss = net(batch())
        (loss / parts).backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
"""
START = """
import sys
from beside import *

print(__name__, sys.argv)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
"""
PLAIN = """
for number in range(STEPS):
    print(step(net, optimizer))
"""
TWO_OPTIMIZERS = """
critic = Net()
second = torch.optim.AdamW(critic.parameters(), lr=0.01)
for _ in range(STEPS):
    print(step(net, optimizer), step(critic, second))
"""
CLOSURE = """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

def closure():
    optimizer.zero_grad()
    loss = net(batch())
    loss.backward()
    return loss

for _ in range(STEPS):
    print(optimizer.step(closure).item())
"""
MADE_ANEW = """
step(net, optimizer)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
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
"""
OWN_PROFILER = """
profiler = torch.profiler.profile()
for number in range(STEPS):
    if number == BEGIN:
        profiler.start()
    print(step(net, optimizer))
    if number == BEGIN + LASTS - 1:
        profiler.stop()
        print("own", sum(e.count for e in profiler.key_averages() if e.key == "aten::linear"))
"""
WARMING_UP = """
schedule = torch.profiler.schedule(wait=2, warmup=6, active=1)
with torch.profiler.profile(schedule=schedule) as profiler:
    for number in range(STEPS):
        print(step(net, optimizer))
        profiler.step()
        if number == 8:
            print("own", sum(e.count for e in profiler.key_averages() if e.key == "aten::linear"))
"""


@dataclass(frozen=True)
class Case:
    """A script, and what comes of it.

    `calls` of the model in a step, of each block in one of those; `whole` steps in the trace;
    the exit code; what the recorder says.
    """

    text: str
    calls: int = 1
    of_blocks: int = 1
    whole: int = 2
    code: int = 0
    says: str = ""


def profiling(begin: int, lasts: int, whole: int) -> Case:
    """The script's own profiler comes first: the recorder ends before it, or begins after."""
    text = OWN_PROFILER.replace("BEGIN", str(begin)).replace("LASTS", str(lasts))
    return Case(text, whole=whole, says="" if whole else "the script's own profiler")


CASES = {
    "plain": Case(PLAIN),
    "two_optimizers": Case(TWO_OPTIMIZERS, calls=2),
    "accumulated": Case(PLAIN.replace("optimizer)", "optimizer, parts=4)"), calls=4),
    "closure": Case(CLOSURE, calls=3),
    "made_anew": Case(MADE_ANEW + PLAIN),
    "checkpointed": Case(CHECKPOINTED.replace("REENTRANT", "False") + PLAIN, of_blocks=2),
    "reentrant": Case(CHECKPOINTED.replace("REENTRANT", "True") + PLAIN, of_blocks=2),
    "exits": Case("sys.exit(7)", whole=0, code=7),
    "too_few": Case("STEPS = 4" + PLAIN, whole=0, says=f"4 steps were seen, {NEEDED} are needed"),
    "cut_short": Case(f"STEPS = {NEEDED - 1}" + PLAIN, whole=1),
    **{
        f"fails_after_{NEEDED - 2 + whole}":
            Case(f"{PLAIN}    1 / (number - {NEEDED - 3 + whole})", whole=whole, code=1)
        for whole in (0, 1, 2)
    },
    "own_first": profiling(0, 2, 2),
    "own_always": profiling(0, NEEDED + 4, 0),
    "own_while_timed": profiling(4, 2, 1),
    "own_while_recorded": profiling(NEEDED - 2, 4, 0),
    "own_last": profiling(NEEDED - 1, 2, 1),
    "own_afterwards": profiling(NEEDED, 2, 2),
    "own_warming_up": Case(WARMING_UP, whole=0, says="the script's own profiler"),
}  # fmt: skip


@pytest.fixture
def user(tmp_path: Path, quick_python: str) -> User:
    (tmp_path / RECORDER).write_text(source(RECORDER))
    (tmp_path / "beside.py").write_text(BESIDE)
    return User(tmp_path, quick_python)


def check_diagnosis(trace: Path, steps: int = 2) -> None:
    """`diagnose` reads it, its terms add up to the whole steps, and 3 steps were timed before."""
    (seen,) = diagnose([trace]).runs
    assert seen.steps == steps
    assert sum(term.ns for term in seen.terms) == seen.window_ns > 0
    bare_s = read_trace(trace).facts["bare_s"]
    assert len(bare_s) == 3
    assert min(bare_s) > 0


def forwards(trace: Path) -> Counter[str]:
    """How many forward passes of each module were recorded."""
    notes = read_trace(trace).notes
    return Counter(n.name.removeprefix(PREFIX) for n in notes if n.name.startswith(PREFIX))


@pytest.mark.parametrize("name", CASES)
def test_a_script_runs_as_without_it_and_leaves_a_trace_of_whole_steps(
    user: User, name: str
) -> None:
    case = CASES[name]
    (user.folder / "train.py").write_text(START + case.text)
    alone = user.run("train.py", "9", "--odd", "x y", code=case.code)
    watched = user.record("train.py", "9", "--odd", "x y", code=case.code)
    assert watched.stdout == alone.stdout
    if case.code == 1:
        assert watched.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    assert case.says in watched.stderr
    assert ("Warning" in watched.stderr) == ("Warning" in alone.stderr)
    assert "ERROR" not in watched.stderr, "the profiler's log"
    assert user.left == ["a.json.gz"] * bool(case.whole)
    if not case.whole:
        return
    trace = user.folder / "a.json.gz"
    check_diagnosis(trace, case.whole)
    passes = (case.whole + 1) * case.calls
    inner = dict.fromkeys(("blocks.0", "blocks.1"), passes * case.of_blocks)
    assert forwards(trace) == {"": passes, "stem": passes, "head": passes} | inner
    seen = {(p.caller.module, p.caller.phase) for p in partition(read_trace(trace)).pieces}
    assert {("stem", "backward"), ("head", "backward")} <= seen
    assert {"forward", "optimizer"} & {phase for _, phase in seen}
    text = gzip.decompress(trace.read_bytes()).decode()
    assert not json.loads(text).get("host_name")
    assert str(user.folder) not in text


@pytest.mark.parametrize("name", [RECORDER, PROOFS])
def test_it_imports_torch_and_the_standard_library_alone_and_is_python_3_9(name: str) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source(name), feature_version=(3, 9))):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
    assert "torch" in found
    assert found <= {*sys.stdlib_module_names, "torch"}


def test_the_stack_names_the_script_s_lines(user: User) -> None:
    (user.folder / "train.py").write_text(START + PLAIN)
    user.run(RECORDER, *STEPS, "--stack", "--out", "a.json", "train.py")
    check_diagnosis(user.folder / "a.json")
    assert any("train.py" in span.name for span in read_trace(user.folder / "a.json").stack)


def test_what_it_cannot_do_is_said_before_the_script_runs(user: User) -> None:
    (user.folder / "train.py").write_text("print('runs')")
    for words in (("absent.py",), ("--bare", "0", "train.py"), ("--prove", "train.py")):
        assert user.run(RECORDER, *words, code=2).stdout == ""


COMPILED = """
from torch._dynamo.utils import counters

net = torch.compile(net, backend="eager")
""" + PLAIN + """
print(dict(counters["frames"]), dict(counters["graph_break"]))
"""  # fmt: skip


def test_a_compiled_model_is_not_compiled_again_to_record_it(user: User) -> None:
    (user.folder / "train.py").write_text(START + COMPILED)
    alone, watched = user.run("train.py"), user.record("train.py")
    assert watched.stdout == alone.stdout
    if user.run("-c", "import torch; print(torch.__version__)").stdout.startswith("2.0."):
        assert "0 steps were seen" in watched.stderr  # there torch.compile turns off step hooks
        return
    assert read_trace(user.folder / "a.json.gz").facts["compiled"] is True


LOOP = f"""
import halfway_watch

with halfway_watch.watch(net, out="loop.json", after=2, bare=3, traced=2) as w:
    for _ in range({NEEDED}):
        step(net, optimizer)
        w.step()

watched = halfway_watch.watched(out="function.json", after=2, bare=3, traced=2)(step)
for _ in range({NEEDED}):
    watched(net, optimizer)
"""


def test_a_loop_and_a_function_are_watched_too(user: User) -> None:
    (user.folder / "loop.py").write_text(START + LOOP)
    user.run("loop.py")
    for name in ("loop.json", "function.json"):
        check_diagnosis(user.folder / name)


HUGGING_FACE = """
import torch
import transformers
from halfway_watch import TrainerWatch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}


rows = [{"x": torch.randn(8), "labels": 0} for _ in range(64)]
options = transformers.TrainingArguments(
    "out", max_steps=NEEDED, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
watch = TrainerWatch(out="a.json.gz", after=2, bare=3, traced=2)
transformers.Trainer(Model(), options, train_dataset=rows, callbacks=[watch]).train()
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch
from halfway_watch import LightningWatch


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


rows = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=2)
watch = LightningWatch(out="a.json.gz", after=2, bare=3, traced=2)
pl.Trainer(
    accelerator="cpu", max_steps=NEEDED, accumulate_grad_batches=2, callbacks=[watch], logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
).fit(Model(), rows)
"""


@pytest.mark.parametrize(
    ("imports", "text"),
    [("import accelerate; from transformers import Trainer", HUGGING_FACE),
     ("import lightning.pytorch", LIGHTNING)],
    ids=["transformers", "lightning"],
)  # fmt: skip
def test_trainers_call_it_once_an_update(user: User, imports: str, text: str) -> None:
    """.ci/recorder.py installs them; not each version runs with each torch."""
    attempt = f"try:\n    {imports}\nexcept Exception as error:\n    print(error)"
    if problem := user.run("-c", attempt).stdout:
        pytest.skip(problem)
    (user.folder / "trains.py").write_text(text.replace("NEEDED", str(NEEDED)))
    user.run("trains.py")
    found = partition(read_trace(user.folder / "a.json.gz"))
    assert found.steps == 2
    assert any(p.caller.phase == "forward" and "layer" in p.caller.module for p in found.pieces)


def test_a_trainer_that_is_not_installed_is_named(user: User) -> None:
    (user.folder / "transformers.py").write_text("raise ImportError('planted')\n")
    done = user.run("-c", "import halfway_watch\nhalfway_watch.TrainerWatch()", code=1)
    assert "TrainerWatch needs transformers, which is not installed" in done.stderr


# It leaves at once: now and then torch's threads of gloo abort a process that ends by itself, also
# without the recorder.
DISTRIBUTED = """
import os
import torch.distributed as dist

dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
""" + PLAIN + """
dist.destroy_process_group()
os._exit(0)
"""  # fmt: skip


def test_ranks_of_torchrun_have_a_file_each(user: User) -> None:
    (user.folder / "train.py").write_text(START + DISTRIBUTED)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    user.run(*launcher, RECORDER, *STEPS, "--out", "a.json.gz", "train.py")
    for rank in (0, 1):
        trace = user.folder / f"a.rank{rank}.json.gz"
        check_diagnosis(trace)
        facts = read_trace(trace).facts
        assert (facts["rank"], facts["world_size"]) == (rank, 2)
        assert forwards(trace)["head"] == 3


FOREIGN = """
import e2e, kernels, microbench, sys

assert [m.WHOSE for m in (e2e, kernels, microbench)] == 3 * ["theirs"]
"""
CHECK = """
print("ours", [m for m in sys.modules if m.startswith(("e2e.", "kernels.", "microbench."))])
"""


def test_an_environment_with_packages_of_our_names_meets_none_of_ours(
    user: User, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has them installed; halfway is found by PYTHONPATH."""
    find = "import torch, sysconfig; print(sysconfig.get_path('purelib'))"
    made = user.folder / "environment"
    user.run("-m", "venv", "--without-pip", str(made))
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(user.run("-c", find).stdout)
    for name in ("e2e", "kernels", "microbench"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (user.folder / "train.py").write_text(FOREIGN + START + PLAIN + CHECK)
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    python = str(made / "bin/python")
    assert main(["diagnose", "--python", python, *STEPS, "--whole", "train.py"]) == 0
    out = capfd.readouterr().out
    assert "ours []" in out
    assert "ms a step" in out
    for name in ("e2e", "kernels", "microbench"):
        assert [p.name for p in (packages / name).iterdir() if p.suffix] == ["__init__.py"]


@pytest.mark.parametrize(("last_ms", "named"), [(27, False), (28, True)])
def test_a_step_much_longer_than_the_others_is_named(
    tmp_path: Path, last_ms: int, named: bool
) -> None:
    """Perhaps with an evaluation in it: more than three times as long."""
    made = Made(header={"halfway": {"lead_in": 1, "traced": 2}})
    made.steps(*(ms * 1000 * US for ms in (9, 18, 18 + last_ms)))
    for start in (1, 10, 19):
        made.op("aten::mm", start * 1000 * US, (start + 1) * 1000 * US)
    (seen,) = diagnose([made.write(tmp_path / "a.json")]).runs
    assert any("evaluation" in sentence for sentence in seen.missing) == named
