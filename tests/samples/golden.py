"""What halfway says about the committed run files.

    python tests/samples/golden.py              # compare what is kept in screens/ with what it says
    python tests/samples/golden.py --write      # keep what it says now as right
    python tests/samples/golden.py --dump DIR   # of all files, to compare two states with diff -r

Each item has a name ("show/nvidia-h200/gemm-fp16.json --csv") and a text. screens/ has a sheet of
items for each chosen run file: the texts that a person can read, hashes of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import e2e.__main__
import microbench.__main__
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from kernels import OPS
from kernels.case import CannotRun, Case, Target
from kernels.conv.triton import backend as conv
from kernels.gemm.triton import backend as gemm
from microbench.errors import UserError
from microbench.report.report import report_of
from microbench.results.runfile import read_run
from microbench.results.types import Run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SCREENS = Path(__file__).parent / "screens"
LONGEST = 7_500  # characters: of a longer text there is a hash
WIDTH = "80"  # columns
FORMS = ("", "--verbose", "--markdown", "--csv")
HASHED = ("--markdown", "--csv", "--chart")
PROGRAMS = {"microbench": microbench.__main__, "e2e": e2e.__main__}
H200 = ("cuda", "NVIDIA H200", (9, 0), 132)
A100 = ("cuda", "NVIDIA A100-SXM4-80GB", (8, 0), 108)  # the rules choose

Item = tuple[str, str]  # name, text

CHOSEN = """cpu/gemm-fp16 h200/studies/resnet-precisions/runs/table
h200/attention h200/linear-torchao h200/gemm-grouped
h200/cifar-vgg16 h200/conv-fp16 h200/diagnose/mlp_small
h200/diagnose/prove-syncs h200/diagnose/public/accelerate h200/diagnose-scenarios h200/fleet
h200/gemm-fp16 h200/layers-resnet50 h200/ledger-resnet50 h200/loaders h200/gemm-triton
h200/payoff-conv h200/peak h200/predict-gpu-time h200/ranks-resnet50 h200/ranks-strong
h200/stalls-two-cpus h200/timm/amp h200/train-fp8
h200/verify-resnet50-nchw"""
COMPARED = """h200/gemm-all h200/gemm-fp16 h200/ablation/all h200/ablation/no-split
h200/train-resnet50 h200/timm/ours-amp h200/by-hand/ours1 h200/by-hand/ours2"""
PAGES = """h200/gemm-fp16 h200/layers-resnet50 h200/ledger-resnet50 h200/stalls-two-cpus
h200/diagnose/mlp_small"""


def paths(names: str) -> list[Path]:
    """The files of these short names."""
    cards = {"h100": "nvidia-h100", "h200": "nvidia-h200", "cpu": "cpu"}
    parts = (name.split("/", 1) for name in names.split())
    return [RESULTS / cards[card] / f"{name}.json" for card, name in parts]


def run_files() -> list[Path]:
    """The committed JSON files, run files and others."""
    return sorted(path for path in RESULTS.rglob("*.json") if path.name != "study.json")


def name_of(path: Path) -> str:
    """A file's name below results/."""
    return path.relative_to(RESULTS).as_posix()


def printed(program: str, *words: str) -> str:
    """What a command prints, and how it ends. Paths of this checkout are left out."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = PROGRAMS[program].main(list(words))
    text = f"{out.getvalue()}{errors.getvalue()}exit {code}\n"
    return text.replace(f"{ROOT}/", "")


def screens(path: Path) -> Iterator[Item]:
    """A file as `show` prints it, in every form, and its chart."""
    for form in FORMS:
        text = printed("microbench", "show", str(path), *form.split())
        yield f"show/{name_of(path)} {form}".rstrip(), text
    yield f"show/{name_of(path)} --chart", chart(path)


def chart(path: Path) -> str:
    """The Vega-Lite specification of a run's chart, or why there is none."""
    try:
        return json.dumps(report_of(read_run(path)).chart().to_dict(), indent=1, sort_keys=True)
    except UserError as error:
        return f"error: {error}".replace(f"{ROOT}/", "")


def readable() -> list[tuple[Path, Run]]:
    """The run files with their runs."""
    found: list[tuple[Path, Run]] = []
    for path in run_files():
        with contextlib.suppress(UserError):
            found.append((path, read_run(path)))
    return found


def helps() -> Iterator[Item]:
    """Every --help."""
    for program, module in PROGRAMS.items():
        yield f"help/{program}", printed(program, "--help")
        for command in sorted(module.app.commands):
            yield f"help/{program} {command}", printed(program, command, "--help")


def keys_of(run: Run) -> list[str]:
    """The identity of each case that a run measured, of whatever kind."""
    return [r.case.key for r in (*run.results, *run.of(Training), *run.of(Loading))]


def compared(a: Path, b: Path) -> Item:
    """`compare` of two run files."""
    text = printed("microbench", "compare", str(a), str(b))
    return f"compare/{name_of(a)} {name_of(b)}", text


def comparisons() -> Iterator[Item]:
    """`compare` of every pair of run files with a case in common."""
    cases = [(path, set(keys_of(run))) for path, run in readable()]
    for i, (a, in_a) in enumerate(cases):
        yield from (compared(a, b) for b, in_b in cases[i + 1 :] if in_a & in_b)


def keys(path: Path, run: Run) -> Item:
    """The identity of each case of a run file, each in a line."""
    return f"keys/{name_of(path)}", "".join(f"{key}\n" for key in keys_of(run))


def page(path: Path) -> Item:
    """A file's page, but for its images."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page.html"
        printed("microbench", "show", str(path), "--html", str(out))
        text = out.read_text(encoding="utf-8")
    return f"page/{name_of(path)}", re.sub(r"base64,[\w+/=]+", "base64,", text)


def labels(every: int = 1) -> Iterator[Item]:
    """Triton's configuration for each case of the run files, on two GPUs; or for one problem in
    `every`, once.
    """
    chosen: dict[tuple[str, str], list[str]] = {}  # back ends of one problem share a choice
    for path, run in readable():
        cases = [r.case for r in run.results if r.case.op in ("gemm", "conv")
                 and r.case.backend in ("triton", "cublas", "cudnn")]  # fmt: skip
        lines: list[str] = []
        for case in cases:
            problem = (case.group, case.precision_name)
            new = problem not in chosen
            if new:
                chosen[problem] = [] if len(chosen) % every else choices(case)
            if new or every == 1:
                lines += [f"{case.key} {choice}\n" for choice in chosen[problem]]
        if cases:
            yield f"labels/{name_of(path)}", "".join(lines)


def choices(case: Case) -> list[str]:
    """The configuration for a case, on each of two GPUs that can run it."""
    own = gemm if case.op == "gemm" else conv
    found: list[str] = []
    for kind, name, capability, sms in (H200, A100):
        target = Target(kind, name, capability, sms)
        try:
            OPS[case.op].check(replace(case, backend="triton"), target)
        except CannotRun:
            continue
        try:
            found.append(f"{name}: {own.configurations(case, target).chosen[0].label}")
        except CannotRun as refusal:
            found.append(f"{name}: {refusal}")
    return found


GROUPS: dict[str, Callable[[], Iterator[Item]]] = {
    "show": lambda: (item for path in run_files() for item in screens(path)),
    "help": helps,
    "compare": comparisons,
    "keys": lambda: (keys(path, run) for path, run in readable()),
    "labels": labels,
}


def of_file(path: Path) -> Iterator[Item]:
    """What is kept of a chosen file."""
    yield from screens(path)
    with contextlib.suppress(UserError):
        yield keys(path, read_run(path))


SHEETS: dict[str, Callable[[], Iterable[Item]]] = {
    **{name_of(path): partial(of_file, path) for path in paths(CHOSEN)},
    "help": helps,
    "compare": lambda: map(compared, paths(COMPARED)[::2], paths(COMPARED)[1::2]),
    "labels": lambda: labels(every=20),
    "pages": lambda: map(page, paths(PAGES)),
}


def file_name(name: str) -> str:
    """Under which a text is written."""
    return f"{name.replace('/', '__').replace(' ', '_')}.txt"


def sheet(name: str) -> str:
    """The items of a sheet, each under its name."""
    return "".join(f"===== {item}\n{readable_text(item, text)}" for item, text in SHEETS[name]())


def readable_text(name: str, text: str) -> str:
    """The text, or a line with its hash where it is long or for programs."""
    if name.startswith("page/") or name.endswith(HASHED) or len(text) > LONGEST:
        return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}\n"
    return text


def difference(name: str) -> str:
    """How a sheet differs from the kept one, line by line; empty if it does not."""
    path = SCREENS / file_name(name)
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = (text.splitlines(keepends=True) for text in (kept, sheet(name)))
    return "".join(difflib.unified_diff(*lines, f"{name} as kept", f"{name} now", n=1))


def main() -> int:
    """Compare, keep or dump; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep what is printed now")
    parser.add_argument("--dump", type=Path, help="write all texts below this folder")
    parser.add_argument("--only", action="append", choices=GROUPS, help="dump a group or several")
    words = parser.parse_args()
    os.environ["COLUMNS"] = WIDTH
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # no winners of this user's
        if words.dump:
            words.dump.mkdir(parents=True, exist_ok=True)
            for group in words.only or list(GROUPS):
                for name, text in GROUPS[group]():
                    (words.dump / file_name(name)).write_text(text, encoding="utf-8")
            return 0
        if words.write:
            SCREENS.mkdir(exist_ok=True)
            for name in SHEETS:
                (SCREENS / file_name(name)).write_text(sheet(name), encoding="utf-8")
            return 0
        found = "".join(map(difference, SHEETS))
    print(found or f"{len(SHEETS)} sheets as they were")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
