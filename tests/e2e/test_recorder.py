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
from e2e.profile.halfway_watch import CALL, OPTIMIZER, PREFIX, compact
from e2e.profile.lines import lines_of_samples
from e2e.profile.step import step_of
from e2e.profile.trace import NOTE, read_trace
from e2e.results.terms import PYTHON

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
IN_BACKWARD = """
net.stem.weight.register_hook(lambda grad: optimizer.step())
for _ in range(STEPS):
    loss = net(batch())
    loss.backward()
    print(loss.item())
"""
NOTHING_BETWEEN = """
weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.01)
weight.register_hook(lambda grad: optimizer.step())
for _ in range(STEPS):
    weight.square().sum().backward()
"""
FORKED = """
import os
if os.fork() == 0:
    for number in range(STEPS):
        step(net, optimizer)
    os._exit(0)
os.wait()
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


ELSEWHERE = """
import os
os.chdir("/")
print(open(__file__).read()[:7])
"""
REPLACED = """
import os
from contextlib import suppress
sys.stdout.flush()
with suppress(OSError):
    os.execv("/nowhere/true", ["true"])
os.execv("/bin/true", ["true"])
"""
OWN_STEPS = """
plan = torch.profiler.schedule(wait=1, warmup=0, active=1, repeat=1)
with torch.profiler.profile(schedule=plan) as own:
    for number in range(STEPS):
        print(step(net, optimizer))
        own.step()
"""
CASES = {
    "elsewhere": Case(ELSEWHERE + PLAIN),
    "own_marks": Case(OWN_STEPS),
    "ends_hard": Case(
        "STEPS = 4" + PLAIN + "import os\nsys.stdout.flush()\nos._exit(status=0)", whole=0,
        says=f"4 steps were seen, {NEEDED} are needed"),
    "replaced": Case(REPLACED, whole=0, says="0 steps were seen"),
    "not_replaced": Case(REPLACED.rpartition("os.execv")[0] + PLAIN),
    "plain": Case(PLAIN),
    "two_optimizers": Case(TWO_OPTIMIZERS, calls=2),
    "accumulated": Case(PLAIN.replace("optimizer)", "optimizer, parts=4)"), calls=4),
    "closure": Case(CLOSURE, calls=3),
    "in_backward": Case(IN_BACKWARD),
    "nothing_between": Case(NOTHING_BETWEEN, whole=0, says="is inside of a backward pass"),
    "forked": Case(FORKED + PLAIN),
    "in_a_child": Case(FORKED, whole=0, says="0 steps were seen, 8 are needed. A step is a step()"),
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
    bare_s = read_trace(trace).seconds("bare_s")
    assert len(bare_s) == 3
    assert min(bare_s) > 0


def forwards(trace: Path) -> Counter[str]:
    """How many forward passes of each module were recorded."""
    notes = read_trace(trace).spans[NOTE]
    return Counter(n.name.removeprefix(PREFIX) for n in notes if n.name.startswith(PREFIX))


@pytest.mark.parametrize("name", CASES)
def test_a_script_runs_as_without_it_and_leaves_whole_steps(user: User, name: str) -> None:
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
    recorded = step_of(read_trace(trace))
    stems = [n for n in recorded.trace.spans[NOTE] if n.name == f"{PREFIX}stem"]
    inside = sum(recorded.start <= stem.start < recorded.end for stem in stems)
    assert inside == case.whole * case.calls, "from the end of a step to that of another"
    seen = {(op.module, op.phase) for op in recorded.ops}
    assert {("stem", "backward"), ("head", "backward")} <= seen
    assert {"forward", "optimizer"} & {phase for _, phase in seen}
    text = gzip.decompress(trace.read_bytes()).decode()
    assert not json.loads(text).get("host_name")
    assert str(user.folder) not in text


CAUGHT = """
for number in range(4 * STEPS):
    try:
        step(net, optimizer)
    except BaseException:
        step(net, optimizer)
        print("caught")
print("END")
"""
IN_A_THREAD = """
import threading, time
over = []
def train():
    for number in range(4 * STEPS):
        step(net, optimizer)
    over.append(True)
threading.Thread(target=train).start()
while not over:
    time.sleep(0.01)
print("END")
"""


@pytest.mark.parametrize(("text", "says"), [(CAUGHT, "caught"), (IN_A_THREAD, "")])
def test_a_script_ends_when_told_to_though_it_catches_that_or_waits_for_a_thread(
    user: User, text: str, says: str
) -> None:
    (user.folder / "train.py").write_text(START + text)
    printed = user.record("--then-exit", "train.py").stdout
    assert printed.splitlines()[1:] == [says] * bool(says)
    check_diagnosis(user.folder / "a.json.gz")


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


def test_what_it_cannot_do_is_said_before_the_script_runs(user: User) -> None:
    (user.folder / "train.py").write_text("print('runs')")
    for words in (
        ("absent.py",),
        ("--bare", "0", "train.py"),
        ("--prove", "train.py"),
        ("--out", "none/a", "train.py"),
    ):
        assert user.run(RECORDER, *words, code=2).stdout == ""


COMPILED = """
from torch._dynamo.utils import counters

net = torch.compile(net, backend="eager", fullgraph=True)
""" + PLAIN + """
print(dict(counters["stats"]), dict(counters["graph_break"]))
"""  # fmt: skip
COMPILED_OPTIMIZER = COMPILED.replace(
    'net = torch.compile(net, backend="eager", fullgraph=True)',
    'optimizer.step = torch.compile(optimizer.step, backend="eager")',
)


@pytest.mark.parametrize("text", [COMPILED, COMPILED_OPTIMIZER], ids=["model", "optimizer"])
def test_what_is_compiled_is_not_compiled_again_to_record_it(user: User, text: str) -> None:
    (user.folder / "train.py").write_text(START + text)
    is_oldest = user.run("-c", "import torch; print(torch.__version__)").stdout.startswith("2.0.")
    if is_oldest and text == COMPILED_OPTIMIZER:
        pytest.skip("torch 2.0 compiles the hooks of optimizers with them")
    alone, watched = user.run("train.py"), user.record("train.py")
    assert watched.stdout == alone.stdout
    if is_oldest:
        assert "0 steps were seen" in watched.stderr  # there torch.compile turns off step hooks
        return
    assert read_trace(user.folder / "a.json.gz").facts["compiled"] is True


INFERENCE = """
from beside import *

net = NET
for number in range(STEPS):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        print(net(batch()).shape)
"""


@pytest.mark.parametrize("net", ["Net()", 'torch.compile(Net(), backend="eager")'])
def test_without_an_optimizer_a_step_is_a_call_of_the_model(user: User, net: str) -> None:
    (user.folder / "run.py").write_text(INFERENCE.replace("NET", net))
    if net != "Net()" and user.run("-c", "import torch; print(torch.__version__)").stdout < "2.1":
        pytest.skip("torch 2.0 compiles what stands before a call")
    assert user.record("run.py").stdout == user.run("run.py").stdout
    trace = read_trace(user.folder / "a.json.gz")
    assert (trace.facts["unit"], trace.seconds("bare_s")[3:]) == (CALL, [])
    assert forwards(user.folder / "a.json.gz")["head"] == (3 if net == "Net()" else 0)
    assert step_of(trace).steps == 2


def test_an_optimizer_that_comes_later_makes_it_a_training(user: User) -> None:
    (user.folder / "train.py").write_text(
        INFERENCE.replace("NET", "Net()").replace("STEPS", "6") + START + PLAIN
    )
    user.record("train.py", "x")
    trace = read_trace(user.folder / "a.json.gz")
    assert trace.facts["unit"] == OPTIMIZER
    assert {op.phase for op in step_of(trace).ops} >= {"forward", "backward", "optimizer"}


SPINS = """
def spin():
    begun = time.perf_counter()
    while time.perf_counter() < begun + 0.002: pass

import time
torch.set_num_threads(1)
for _ in range(STEPS):
    for _ in range(8):
        spin()
        torch.ones(1)
    step(net, optimizer)
"""


def test_the_line_of_own_code_is_that_which_runs_and_not_the_next_call_of_torch(user: User) -> None:
    (user.folder / "train.py").write_text(START + SPINS)
    user.record("train.py")
    trace = read_trace(user.folder / "a.json.gz")
    begins = 1 + (START + SPINS).splitlines().index("def spin():")
    lines = lines_of_samples(step_of(trace), PYTHON).split(", ")
    assert {f"train.py:{begins + 1}", f"train.py:{begins + 2}"} & set(lines)


PAUSES = """
import time
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, number):
        if number == 15:
            time.sleep(0.4)
            print("interval", sys.getswitchinterval())
        return number

def pause():
    time.sleep(0.5)

for number in DataLoader(Slow()):
    step(net, optimizer)
    if number % 10 == 4:
        pause()
"""


def test_a_step_that_takes_much_longer_is_noted_with_the_line_that_runs(user: User) -> None:
    """But not that of its loader, whose workers would keep what is set to see the line."""
    text = START + PAUSES
    (user.folder / "train.py").write_text(text)
    done = user.record("--after", "10", "--bare", "10", "train.py")
    rows = [row[:3] for row in read_trace(user.folder / "a.json.gz").facts["long_steps"]]
    pauses, loads = (
        [5, f"train.py:{1 + text.splitlines().index(line)}", False]
        for line in ("    time.sleep(0.5)", "            time.sleep(0.4)")
    )
    assert (pauses in rows, loads in rows) == (True, False)
    assert f"interval {sys.getswitchinterval()}" in done.stdout.splitlines()


SEEN = """
import time
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, number):
        time.sleep(0.01)
        return torch.randn(8)

for x in DataLoader(Slow(), batch_size=2):
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
            loss = net(x)
    loss.backward()
    time.sleep(0.05)
    optimizer.step()
methods = (torch.nn.Module.__call__, DataLoader.__iter__, torch.autocast.__enter__,
           torch.utils.data.dataloader._BaseDataLoaderIter.__next__, type(net).__call__,
           torch.optim.Optimizer.__init__, torch.autograd.profiler.profile._prepare_trace)
codes = [f.__code__.co_filename for f in methods]
left = ["watch" in code for code in codes]
print(sum(left[:5] + left[6:]), "item" in vars(torch.Tensor))
"""


def test_what_only_the_cpu_knows_is_noted_and_everything_is_put_back(user: User) -> None:
    """A batch takes 20 ms to load, the script sleeps for 50 at a line of its own."""
    text = START + SEEN.replace("STEPS", str(2 * NEEDED + 8))
    (user.folder / "train.py").write_text(text)
    assert user.record("train.py").stdout.splitlines()[-1] == "0 False"
    trace = read_trace(user.folder / "a.json.gz")
    loading_s = trace.seconds("loading_s")
    assert len(loading_s) == 3
    assert min(loading_s) > 0.02
    assert (float(trace.facts["autocasts"]), trace.facts["reads"]) == (2, [])
    lines = Counter(line for _, line in trace.facts["samples"])
    sleeps = 1 + text.splitlines().index("    time.sleep(0.05)")
    assert lines.most_common(1)[0][0] == f"train.py:{sleeps}"


def test_a_package_is_run_as_python_m_does(user: User) -> None:
    package = user.folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text(BESIDE)
    says = "\nprint(__spec__.name, __package__, sys.path[0] == sys.argv[1])\n"
    (package / "train.py").write_text(START.replace("from beside", "from .beside") + says + PLAIN)
    words = ("-m", "package.train", str(user.folder), "--odd")
    few = ("--after", "0", "--bare", "5", "--traced", "1", "--out", "a.json.gz")  # no warm-up
    assert user.run(RECORDER, *few, *words).stdout == user.run(*words).stdout
    trace = read_trace(user.folder / "a.json.gz")
    assert len(trace.seconds("bare_s")) == 5
    assert step_of(trace).steps == 1


def test_what_goes_wrong_in_it_is_a_line_and_the_training_goes_on(user: User) -> None:
    (user.folder / "train.py").write_text(START + PLAIN)
    (user.folder / "a.json.gz").mkdir()
    watched = user.record("train.py")
    assert watched.stdout == user.run("train.py").stdout
    assert watched.stderr.count("\n") == 1
    assert "the trace could not be written" in watched.stderr


# A GPU that is none: what is recorded of it is said by the script, in the words of kineto.
FAKED = """
import json
import torch.profiler as profilers

class Recording:
    def __init__(self, activities, **options):
        self.alone = activities == [profilers.ProfilerActivity.CUDA]
        self.real = None if self.alone else own(activities=activities[:1], **options)

    def start(self):
        assert not (self.alone and FAILS), "no CUPTI"
        return self.real and self.real.start()

    def stop(self):
        return self.real and self.real.stop()

    def export_chrome_trace(self, path):
        if self.real:
            return self.real.export_chrome_trace(path)
        with open(path, "w") as file:
            json.dump({"traceEvents": [{
                "ph": "X", "cat": "kernel", "name": "mm", "ts": 2, "dur": 1.5,
                "args": {"device": 0, "stream": 7, "correlation": 5},
            }]}, file)

class Event:
    def __init__(self, enable_timing):
        pass

    def record(self):
        pass

    def elapsed_time(self, other):
        return 1.0

own, profilers.profile = profilers.profile, Recording
cuda = torch.cuda
cuda.Event, cuda.is_initialized, cuda.synchronize = Event, lambda: True, lambda: None
cuda.is_current_stream_capturing = cuda.is_available = lambda: False
cuda.get_device_name = lambda: "faked"
"""


@pytest.mark.parametrize("fails", [False, True])
def test_where_cuda_is_in_use_kernels_alone_are_recorded_first(user: User, fails: bool) -> None:
    text = START + FAKED.replace("FAILS", str(fails)) + PLAIN
    (user.folder / "train.py").write_text(text)
    watched = user.record("train.py")
    facts = read_trace(user.folder / "a.json.gz").facts
    assert [float(s) for s in facts["bare_s"]] == [0.001] * 3
    assert forwards(user.folder / "a.json.gz")["head"] == 3
    assert ("kernels alone are not recorded: no CUPTI" in watched.stderr) == fails
    assert ("times" in facts) == (not fails)
    if not fails:
        ends = facts["times"].pop("ends")
        assert len(ends) == 3
        assert ends == sorted(ends)
        assert facts["times"] == {
            "names": ["mm"],
            "work": [[0, "kernel", 2000, 1500, "0/7", 5]],
            "calls": [],
        }


@pytest.mark.parametrize("base", [0, 1_700_000_000_000_000_000])
def test_a_recording_of_kernels_is_rows_of_whole_nanoseconds(base: int) -> None:
    """Newer torch writes times after a base, older ones since the epoch, with less digits."""
    event = (
        '{"ph": "X", "cat": "%s", "name": "%s", "ts": %s, "dur": 2.250, "tid": 3, '
        '"args": {"device": 1, "stream": 7, "correlation": %d}}'
    )
    since = base or 1_700_000_000_000_000_000
    at = "5001.001" if base else f"{since // 1000 + 5001}.001"
    events = [
        event % ("gpu_memcpy", "copy", at, 9), event % ("cuda_runtime", "launch", "1", 8),
        event % ("cpu_op", "aten::mm", at, 9),
    ]  # fmt: skip
    header = f'"baseTimeNanoseconds": {base}, ' if base else ""
    found = compact(f'{{{header}"traceEvents": [{", ".join(events)}]}}'.encode())
    assert found == {
        "names": ["copy", "launch"],
        "work": [[0, "gpu_memcpy", since + 5_001_001, 2250, "1/7", 9]],
        "calls": [[1, base + 1000, 2250, 3, 8]],
    }


HUGGING_FACE = """
import torch
import transformers
import halfway_watch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}


class Watched(transformers.TrainerCallback):
    def on_step_end(self, *_arguments, **_named):
        w.step()


rows = [{"x": torch.randn(8), "labels": 0} for _ in range(64)]
options = transformers.TrainingArguments(
    "out", max_steps=NEEDED, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
with halfway_watch.watch(out="a.json.gz", after=2, bare=3, traced=2) as w:
    transformers.Trainer(Model(), options, train_dataset=rows, callbacks=[Watched()]).train()
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch
import halfway_watch


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watched(pl.Callback):
    def on_train_batch_end(self, *_arguments):
        w.step()


rows = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=2)
model = Model()
with halfway_watch.watch(model, out="a.json.gz", after=2, bare=3, traced=2) as w:
    pl.Trainer(
        accelerator="cpu", max_steps=NEEDED, callbacks=[Watched()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    ).fit(model, rows)
"""


@pytest.mark.parametrize(
    ("imports", "text"),
    [("import accelerate; from transformers import Trainer", HUGGING_FACE),
     ("import lightning.pytorch", LIGHTNING)],
    ids=["transformers", "lightning"],
)  # fmt: skip
def test_trainers_call_it_once_a_step(user: User, imports: str, text: str) -> None:
    """.ci/recorder.py installs them; not each version runs with each torch."""
    attempt = f"try:\n    {imports}\nexcept Exception as error:\n    print(error)"
    if problem := user.run("-c", attempt).stdout:
        pytest.skip(problem)
    (user.folder / "trains.py").write_text(text.replace("NEEDED", str(NEEDED)))
    user.run("trains.py")
    found = step_of(read_trace(user.folder / "a.json.gz"))
    assert found.steps == 2
    assert any(op.phase == "forward" and "layer" in op.module for op in found.ops)


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
import atexit
ours = ("e2e.", "kernels.", "microbench.")
atexit.register(lambda: print("ours", [m for m in sys.modules if m.startswith(ours)]))
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
    (user.folder / "train.py").write_text(FOREIGN + CHECK + START + PLAIN)
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    python = str(made / "bin/python")
    assert main(["diagnose", "--python", python, *STEPS, "train.py"]) == 0
    out = capfd.readouterr().out
    assert "ours []" in out
    assert "ms a step" in out
    for name in ("e2e", "kernels", "microbench"):
        assert [p.name for p in (packages / name).iterdir() if p.suffix] == ["__init__.py"]


@pytest.mark.parametrize(("last_ms", "named"), [(27, False), (28, True)])
def test_a_step_much_longer_than_others_is_named(tmp_path: Path, last_ms: int, named: bool) -> None:
    """Perhaps with an evaluation in it: more than three times as long."""
    made = Made(header={"halfway": {"lead_in": 1, "traced": 2}})
    made.steps(*(ms * 1000 * US for ms in (9, 18, 18 + last_ms)))
    for start in (1, 10, 19):
        made.op("aten::mm", start * 1000 * US, (start + 1) * 1000 * US)
    (seen,) = diagnose([made.write(tmp_path / "a.json")]).runs
    assert any("evaluation" in sentence for sentence in seen.missing) == named
