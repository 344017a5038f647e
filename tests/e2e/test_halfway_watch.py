"""The recorder, in processes of its own: what it writes, and that scripts run as without it."""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from samples.recording import NEEDED, RECORDER, STEPS, is_installed, run

from e2e.__main__ import main
from e2e.profile.diagnosis import diagnose
from e2e.profile.partition import partition
from e2e.profile.reader import read_trace

SCRIPT = f"""
import sys
import torch
from beside import FEATURES

assert __name__ == "__main__"
steps = int(sys.argv[1]) if len(sys.argv) > 1 else {NEEDED + 2}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(steps):
    loss = model(torch.randn(8, FEATURES)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item(), sys.argv)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: a script, a module beside it, and a copy of the recorder."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("FEATURES = 16\n")
    (tmp_path / RECORDER.name).write_text(RECORDER.read_text())
    return tmp_path


def test_it_imports_torch_and_the_standard_library_alone_and_is_python_3_9() -> None:
    tree = ast.parse(RECORDER.read_text(), feature_version=(3, 9))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert names <= {*sys.stdlib_module_names, "torch"}


def test_a_script_runs_as_without_it_and_leaves_a_trace_of_whole_steps(folder: Path) -> None:
    alone = run(folder, "train.py", "9")
    watched = run(folder, RECORDER.name, *STEPS, "--out", "a.json.gz", "train.py", "9")
    assert watched.stdout == alone.stdout
    assert "Warning" not in watched.stderr
    found = partition(read_trace(folder / "a.json.gz"))
    assert found.steps == 2
    modules = {(p.caller.module, p.caller.phase) for p in found.pieces}
    assert {("0", "forward"), ("2", "forward"), ("0", "backward"), ("2", "backward")} <= modules
    assert any(p.caller.phase == "optimizer" for p in found.pieces)
    (seen,) = diagnose([folder / "a.json.gz"]).runs
    assert seen.bare_step_s is not None
    assert 0 < seen.bare_step_s < 60
    assert {term.term for term in seen.terms} >= {"matrix products", "activation", "optimizer"}
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".py") == [
        "__pycache__", "a.json.gz",
    ]  # fmt: skip


def test_the_trace_does_not_name_the_machine_or_its_folders(folder: Path) -> None:
    run(folder, RECORDER.name, *STEPS, "--out", "a.json.gz", "train.py")
    text = gzip.decompress((folder / "a.json.gz").read_bytes()).decode()
    data = json.loads(text)
    assert data["halfway"]["traced"] == 2
    assert not data.get("host_name")
    assert str(folder) not in text


@pytest.mark.slow
def test_too_few_steps_write_nothing_and_say_how_many_are_needed(folder: Path) -> None:
    done = run(folder, RECORDER.name, *STEPS, "--out", "a.json", "train.py", "4")
    assert f"4 steps were seen, {NEEDED} are needed" in done.stderr
    assert not (folder / "a.json").exists()
    # A recording that was cut short is kept if a whole step is in it.
    run(folder, RECORDER.name, *STEPS, "--out", "a.json", "train.py", str(NEEDED - 1))
    assert partition(read_trace(folder / "a.json")).steps == 1


@pytest.mark.slow
def test_what_the_script_raises_or_exits_with_is_its_own(folder: Path) -> None:
    (folder / "fails.py").write_text("import torch\nraise KeyError('mine')\n")
    done = run(folder, RECORDER.name, "fails.py", code=1)
    assert "KeyError: 'mine'" in done.stderr
    (folder / "exits.py").write_text("import sys, torch\nsys.exit(7)\n")
    run(folder, RECORDER.name, "exits.py", code=7)
    run(folder, RECORDER.name, "absent.py", code=2)
    run(folder, RECORDER.name, "--bare", "0", "train.py", code=2)


UNEVEN = f"""
import time
import torch

model = torch.nn.Linear(256, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(1, {NEEDED + 2}):
    model(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
    if number == EVALUATED:
        time.sleep(5)
"""


@pytest.mark.parametrize(("evaluated", "named"), [(NEEDED - 1, True), (2, False)])
def test_an_evaluation_among_the_recorded_steps_is_named(
    folder: Path, evaluated: int, named: bool
) -> None:
    (folder / "uneven.py").write_text(UNEVEN.replace("EVALUATED", str(evaluated)))
    run(folder, RECORDER.name, *STEPS, "--out", "a.json", "uneven.py")
    (seen,) = diagnose([folder / "a.json"]).runs
    assert any("evaluation" in sentence for sentence in seen.missing) == named


COMPILED = f"""
import torch
from torch._dynamo.utils import counters

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
fast = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({NEEDED + 2}):
    fast(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(dict(counters["frames"]), dict(counters["graph_break"]))
"""


@pytest.mark.slow
def test_a_compiled_model_is_not_compiled_again_to_record_it(folder: Path) -> None:
    (folder / "compiled.py").write_text(COMPILED)
    alone = run(folder, "compiled.py")
    watched = run(folder, RECORDER.name, *STEPS, "--out", "a.json", "compiled.py")
    assert watched.stdout == alone.stdout
    if run(folder, "-c", "import torch; print(torch.__version__)").stdout.startswith("2.0."):
        assert "0 steps were seen" in watched.stderr  # there torch.compile turns off step hooks
        return
    assert json.loads((folder / "a.json").read_text())["halfway"]["compiled"] is True


LOADED = f"""
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * {NEEDED}

    def __getitem__(self, number):
        row = torch.randn(64, 64)
        for _ in range(100):
            row = (row @ row).softmax(1)
        return row[0]

torch.set_num_threads(1)
model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Rows(), batch_size=2):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_tensors_of_a_loader_without_workers_are_data_loading(folder: Path) -> None:
    (folder / "loaded.py").write_text(LOADED)
    run(folder, RECORDER.name, *STEPS, "--out", "a.json", "loaded.py")
    (seen,) = diagnose([folder / "a.json"]).runs
    assert seen.ms("loader wait") > 0.5 * seen.step_ms
    first, *_ = seen.findings
    assert first.title == "data loading"
    assert "num_workers=0" in first.where


@pytest.mark.slow
def test_a_profiler_of_the_user_s_own_comes_first(folder: Path) -> None:
    own = f"""
import torch
with torch.profiler.profile():
    for number in range({NEEDED + 1}):
        model = torch.nn.Linear(4, 4) if number == 0 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if number == 0 else optimizer
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
print("done")
"""
    (folder / "own.py").write_text(own)
    done = run(folder, RECORDER.name, *STEPS, "--out", "a.json", "own.py")
    assert "done" in done.stdout


LOOP = f"""
import torch
import halfway_watch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()

with halfway_watch.watch(model, out="loop.json", after=2, bare=3, traced=2) as w:
    for _ in range({NEEDED}):
        step()
        w.step()

watched = halfway_watch.watched(out="function.json", after=2, bare=3, traced=2)(step)
for _ in range({NEEDED}):
    watched()
"""


@pytest.mark.slow
def test_a_loop_and_a_function_are_watched_too(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP)
    run(folder, "loop.py")
    for name in ("loop.json", "function.json"):
        assert partition(read_trace(folder / name)).steps == 2


@pytest.mark.slow
def test_each_rank_of_a_distributed_run_has_a_file_of_its_own(folder: Path) -> None:
    run(folder, RECORDER.name, *STEPS, "--out", "a.json.gz", "train.py", RANK="3", WORLD_SIZE="4")
    assert (folder / "a.rank3.json.gz").exists()


def test_the_command_prints_the_recorder_and_reads_what_it_wrote(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--print-recorder"]) == 0
    assert capsys.readouterr().out == RECORDER.read_text()
    for name in ("a", "b"):
        run(folder, RECORDER.name, *STEPS, "--out", f"{name}.json.gz", "train.py")
    first, second = (str(folder / f"{name}.json.gz") for name in "ab")
    written = folder / "diagnosis.json"
    assert main(["diagnose", second, "--base", first, "--json", str(written)]) == 0
    said = capsys.readouterr().out
    assert "matrix multiplications" in said
    data = json.loads(written.read_text())
    assert str(folder) not in written.read_text()
    for one in data["runs"]:
        assert sum(term["ns"] for term in one["terms"]) == one["window_ns"]
    from microbench.__main__ import main as kernels

    assert kernels(["show", str(written)]) == 0
    assert capsys.readouterr().out.splitlines()[:5] == said.splitlines()[:5]


@pytest.mark.parametrize("words", [[], ["none.json"], ["a.json", "b.json"]])
def test_a_mistake_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["diagnose", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "text"),
    [(("transformers", "accelerate"), HUGGING_FACE), (("lightning",), LIGHTNING)],
)
def test_trainers_call_it_once_an_update(folder: Path, packages: Sequence[str], text: str) -> None:
    if not is_installed(*packages):
        pytest.skip(f"{' and '.join(packages)} not installed")
    (folder / "trains.py").write_text(text.replace("NEEDED", str(NEEDED)))
    run(folder, "trains.py")
    found = partition(read_trace(folder / "a.json.gz"))
    assert found.steps == 2
    calls = [p for p in found.pieces if p.caller.phase == "forward" and "layer" in p.caller.module]
    assert calls


def test_a_trainer_that_is_not_installed_is_named(folder: Path) -> None:
    (folder / "transformers.py").write_text("raise ImportError('planted')\n")
    text = "import halfway_watch\nhalfway_watch.TrainerWatch()\n"
    (folder / "asks.py").write_text(text)
    done = run(folder, "asks.py", code=1)
    assert "TrainerWatch needs transformers, which is not installed" in done.stderr
    (folder / "asks.py").write_text("import halfway_watch\nhalfway_watch.OtherWatch()\n")
    assert "no attribute 'OtherWatch'" in run(folder, "asks.py", code=1).stderr
