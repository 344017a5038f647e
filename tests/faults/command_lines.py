"""Command lines at random: of known commands and options, with wrong values among them."""

from __future__ import annotations

import os
import random
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from .forks import Attempt, Kind, here, no_children
from .hostile import NUMBERS, TEXTS, a_text, damaged_text
from .judge import Outcome, changed, files_in

Main = Callable[[list[str]], int]
ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "results" / "cpu" / "gemm-fp16.json"
LIKELY = (
    "fp32,fp16", "fp16,tf32,bf16", "512..4096", "1..16", "8,16", "64x64x64", "cpu", "triton", "amp",
    "resnet50", "cifar-resnet18", "gpt", "made", "generated", "folder:folder", "cifar10:folder",
    "timm:resnet18", "hf:run.json", "json:loads", "nowhere:f", "library", "nhwc", "fprop,dgrad",
    "cuda", "cuda:7", "torchvision", "wgmma", "slower,faster", "5%", "sgd", "3x224x224", "auto",
    "1..1000000000", "1..999999999999999999999", "1,,2", "2..1", "-1..3", ":", "a:", ":b", "a:b:c",
)  # fmt: skip
FILES = (
    "run.json", "run.json", "run.json", "missing.json", "folder", "empty.json", "loop.json",
    "dangling.json", "sparse.json", "no/such/folder/x.json", "new.json", "new.svg", "new.html",
    "new.png", "new.csv", "", "-", ".", "..", "./run.json", "folder/../run.json", "x" * 300,
    "bad\x1b[31m\n.json", "\udcff.json", "run.json/x", "=1+1.json", "a\u202eb.json", "/proc/no/x",
)  # fmt: skip
FIRST_WORDS = ("--help", "-h", "--version", "--", "-", "", "help", "gem", "\x1b[31m", "😀")
ODD_FILES = ("pipe.json", "zero.json")  # opened, they never end


def mains() -> dict[str, tuple[Main, click.Group]]:
    """The programs: how each is called, and its commands."""
    import e2e.__main__ as training
    import microbench.__main__ as kernels
    from e2e import halfway

    return {
        "python -m microbench": (kernels.main, kernels.app),
        "python -m e2e": (training.main, training.app),
        "halfway": (halfway.main, halfway.app),
    }


def prepare() -> None:
    """Load what the commands load, once for all forks."""
    from importlib import import_module

    for name in ("torch", "torchvision", "altair", "vl_convert", "jinja2", "e2e.commands.train",
                 "e2e.commands.stalls", "e2e.commands.validation", "e2e.commands.make_data",
                 "e2e.report.run_report", "e2e.results.loader_types", "microbench.commands",
                 "microbench.run_command", "microbench.ceilings", "microbench.report.page",
                 "microbench.report.drawing", "microbench.selftest.run", "microbench.device.doctor",
                 "microbench.report.export", "e2e.report.causes"):  # fmt: skip
        import_module(name)
    mains()
    no_children()


BEHIND_A_LINK = "nowhere.json"  # what the link dangling.json names


def furnish(folder: Path) -> None:
    """A run file, and files that are none, for a command to be given."""
    shutil.copy(RUN, folder / "run.json")
    (folder / "folder").mkdir()
    (folder / "empty.json").touch()
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "dangling.json").symlink_to(BEHIND_A_LINK)
    with (folder / "sparse.json").open("wb") as file:
        file.truncate(1 << 33)


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One command line. It may write what its options name; all else must stay."""
    furnish(folder)
    program = rng.choice(list(mains()))
    main, app = mains()[program]
    words = line(rng, app)
    before = files_in(folder.parent)
    outcome = here(main, program, words)
    return judged([program, *words], outcome, before, folder, words)


def judged(
    said: Sequence[str], outcome: Outcome, before: dict[str, bytes | str], folder: Path,
    written: Sequence[str],
) -> Attempt:  # fmt: skip
    """What is wrong with how a command ended and what it left beside what its options name."""
    may = {"home/.local/state/halfway/runs", "home/.local/state/halfway", "home/.local/state",
           "home/.local", "home/.cache", "work/new.json", "work/new.svg", "work/new.html",
           "work/new.png", "work/new.csv", "work/no", "home/.cupy"}  # fmt: skip
    if any("dangling.json" in word for word in written):
        may.add(f"work/{BEHIND_A_LINK}")
    for word in written:
        for name in (word, word.partition("=")[2] or word):
            may |= {f"work/{name}", f"work/{os.path.normpath(name).split('/')[0]}"}
    complaints = [*outcome.complaints(), *changed(before, files_in(folder.parent), may)]
    if files_in(folder).get("run.json") != before.get("work/run.json") and "explain" not in written:
        complaints.append("a run file is changed")
    return Attempt(shlex.join(said), complaints)


def line(rng: random.Random, app: click.Group) -> list[str]:
    """The words after the program's name."""
    if rng.random() < 0.05:
        return [rng.choice((*FIRST_WORDS, *TEXTS)) for _ in range(rng.randint(0, 3))]
    name = rng.choice(list(app.commands))
    command = app.commands[name]
    words: list[str] = []
    options = [p for p in command.params if isinstance(p, click.Option)]
    for param in command.params:
        if isinstance(param, click.Argument) and rng.random() < 0.95:
            count = rng.randint(1, 3) if param.nargs == -1 else 1
            words += [_value(rng, param) for _ in range(count)]
        elif isinstance(param, click.Option) and param.required and rng.random() < 0.8:
            words += [param.opts[0], _value(rng, param)]
    for option in rng.choices(options, k=rng.choice((0, 1, 1, 2, 2, 3, 5))) if options else ():
        written = rng.choice([*option.opts, *option.secondary_opts])
        if option.is_flag:
            words.append(written)
        elif rng.random() < 0.3:
            words.append(f"{written}={_value(rng, option)}")
        else:
            words += [written, _value(rng, option)]
    if rng.random() < 0.1 and words:
        i = rng.randrange(len(words))
        words[i] = damaged_text(rng, words[i])
    if rng.random() < 0.05:
        words.insert(rng.randint(0, len(words)), rng.choice(("--help", "--nonsense", "-x", "--")))
    return [name, *(word.replace("\0", "") for word in words)]


def _value(rng: random.Random, param: click.Parameter) -> str:
    chance = rng.random()
    if isinstance(param.type, click.Path):
        return rng.choice(FILES) if chance < 0.9 else a_text(rng)
    if isinstance(param.type, click.Choice) and chance < 0.7:
        return str(rng.choice(list(param.type.choices)))
    if isinstance(param.type, (click.types.IntParamType, click.types.FloatParamType)):
        return rng.choice(NUMBERS) if chance < 0.8 else a_text(rng)
    if chance < 0.15 and isinstance(param.default, str):
        return damaged_text(rng, param.default)
    if chance < 0.6:
        return rng.choice(LIKELY)
    return damaged_text(rng, rng.choice(LIKELY)) if chance < 0.75 else a_text(rng)


LINES = Kind("command lines", attempt, limit_s=30.0, share=0.3, a_fork=40, prepare=prepare)
