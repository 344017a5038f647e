"""Everything that halfway says about the committed run files, and the hashes of it.

    python tests/samples/golden.py              # compare with tests/samples/golden.json
    python tests/samples/golden.py --write      # keep what is printed now as right
    python tests/samples/golden.py --dump DIR   # the texts themselves, to compare two states with
    diff -r

Each item has a name ("show/nvidia-h200/gemm-fp16.json --csv") and a text. test_golden.py holds the
hashes, so a change of any output is a difference with a name.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from e2e.results.loader_types import Loading
from e2e.results.types import Training

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]
RESULTS = ROOT / "results"
KEPT = Path(__file__).parent / "golden.json"
FORMS = ("", "--verbose", "--markdown", "--csv")
PROGRAMS = ("microbench", "e2e")
H200 = ("cuda", "NVIDIA H200", (9, 0), 132)
A100 = ("cuda", "NVIDIA A100-SXM4-80GB", (8, 0), 108)  # no tuned tables: the rules choose

Item = tuple[str, str]  # name, text


def run_files() -> list[Path]:
    """The committed JSON files, run files and others."""
    return sorted(path for path in RESULTS.rglob("*.json") if path.name != "study.json")


def name_of(path: Path) -> str:
    """A file's name below results/."""
    return path.relative_to(RESULTS).as_posix()


def printed(program: str, *words: str) -> str:
    """What a command prints, and how it ends. Paths of this checkout are left out."""
    main = importlib.import_module(f"{program}.__main__").main
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(list(words))
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
    from microbench.errors import UserError
    from microbench.report import drawing

    try:
        return json.dumps(drawing.chart_of(read(path)).to_dict(), indent=1, sort_keys=True)
    except UserError as error:
        return f"error: {error}".replace(f"{ROOT}/", "")


def read(path: Path) -> Any:
    """The run in a file."""
    from microbench.results.runfile import read_run

    return read_run(path)


def readable() -> list[tuple[Path, Any]]:
    """The run files with their runs."""
    from microbench.errors import UserError

    found: list[tuple[Path, Any]] = []
    for path in run_files():
        with contextlib.suppress(UserError):
            found.append((path, read(path)))
    return found


def helps() -> Iterator[Item]:
    """Every --help."""
    for program in PROGRAMS:
        app: click.Group = importlib.import_module(f"{program}.__main__").app
        yield f"help/{program}", printed(program, "--help")
        for command in sorted(app.commands):
            yield f"help/{program} {command}", printed(program, command, "--help")


def everything_of(run: Any) -> list[Any]:
    """All that a run measured, of whatever kind."""
    return [*run.results, *run.of(Training), *run.of(Loading)]


def comparisons() -> Iterator[Item]:
    """`compare` of every pair of run files with a case in common."""
    cases = [(path, {r.case.key for r in everything_of(run)}) for path, run in readable()]
    for i, (a, in_a) in enumerate(cases):
        for b, in_b in cases[i + 1 :]:
            if in_a & in_b:
                text = printed("microbench", "compare", str(a), str(b))
                yield f"compare/{name_of(a)} {name_of(b)}", text


def case_keys() -> Iterator[Item]:
    """The identity of each case of each run file."""
    for path, run in readable():
        yield f"keys/{name_of(path)}", "".join(f"{r.case.key}\n" for r in everything_of(run))


def labels() -> Iterator[Item]:
    """Triton's configuration for each case of the run files, on two GPUs."""
    from kernels.case import CannotRun, Target
    from kernels.conv.triton import backend as conv
    from kernels.gemm.triton import backend as gemm

    kinds: dict[str, Any] = {"gemm": gemm, "conv": conv}
    chosen: dict[tuple[str, str, str], str | None] = {}  # back ends of one problem share a choice

    def choice(case: Any, target: Target) -> str | None:
        if kinds[case.op].cannot_run(case, target):
            return None
        try:
            return kinds[case.op].configuration(case, target).label
        except CannotRun as refusal:
            return str(refusal)

    for path, run in readable():
        cases = [r.case for r in run.results if r.case.backend in ("triton", "cublas", "cudnn")]
        if not cases:
            continue
        lines: list[str] = []
        for case in cases:
            for kind, name, capability, sms in (H200, A100):
                problem = (case.group, case.precision_name, name)
                if problem not in chosen:
                    chosen[problem] = choice(case, Target(kind, name, capability, sms))
                if chosen[problem] is not None:
                    lines.append(f"{case.key} {name}: {chosen[problem]}\n")
        yield f"labels/{name_of(path)}", "".join(lines)


def variants() -> Iterator[Item]:
    """What cuBLASLt's algorithms are called, for the cases that it measured."""
    for path, run in readable():
        found = [f"{r.case.key} {r.variant}\n" for r in run.results if r.variant]
        if found:
            yield f"variants/{name_of(path)}", "".join(found)


def torch_version() -> str:
    """ "torch-2.15" """
    return "torch-" + ".".join(metadata.version("torch").split(".")[:2])


def ops_of(network: str) -> str:
    """How the names of a network's recorded calls begin, with the torch that is installed."""
    return f"ops/{torch_version()} {network}"


def op_lists(networks: Sequence[str]) -> Iterator[Item]:
    """The ATen calls recorded of a step of each network, under each recipe, as this torch has them.

    The name holds torch's version: another version's lists are others.
    """
    import torch

    from e2e.case import TrainCase
    from e2e.networks import find
    from e2e.networks.network import written
    from e2e.prediction.trace.fake_trace import trace

    for name in networks:
        network = find(name)
        layout = "" if network.tokens is not None else "nhwc"
        for recipe in ("fp32", "amp"):
            case = TrainCase(
                network.name, recipe, 2, written(network.input), layout,
                optimizer=network.optimizer,
            )  # fmt: skip
            found = trace(network, case, torch.device("cpu"), network.classes or 1000)
            lines = [f"{found.held_bytes} {found.batch_bytes} {found.module_calls}\n"]
            lines += [f"{op}\n" for op in found.ops]
            yield f"{ops_of(name)} {recipe}", "".join(lines)


def product_lists(networks: Sequence[str]) -> Iterator[Item]:
    """The convolutions and GEMMs that `layers` finds in each network."""
    from microbench.network.trace import trace

    for name in networks:
        found = trace(name, 2)
        lines = [f"{item}\n" for item in (*found.layers, *found.skipped)]
        yield f"products/{torch_version()} {name}", "".join(lines)


IMAGES = (
    "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "swin_t", "vit_b_16", "convnext_tiny",
    "mobilenet_v2", "efficientnet_b0", "vgg16",
)  # fmt: skip
VALIDATED = ("resnet18", "wrn-16-4", "gpt", "vit_b_16", "densenet121", "swin_t", "convnext_tiny",
             "resnet50", "resnext50_32x4d", "mobilenet_v2", "efficientnet_b0", "vgg16")  # fmt: skip


def shown() -> Iterator[Item]:
    """Every run file, as `show` prints it."""
    for path in run_files():
        yield from screens(path)


GROUPS: dict[str, Callable[[], Iterator[Item]]] = {
    "show": shown,
    "help": helps,
    "compare": comparisons,
    "keys": case_keys,
    "labels": labels,
    "variants": variants,
    "ops": lambda: op_lists(VALIDATED),
    "products": lambda: product_lists(IMAGES),
}


def digest(text: str) -> str:
    """Enough of a hash to tell two texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kept() -> dict[str, str]:
    """The hashes that are right, by name."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def differences(items: Iterable[Item], names: Iterable[str]) -> list[str]:
    """What is printed otherwise than it is kept, what is new, and which of `names` is missing."""
    known = kept()
    found = {name: digest(text) for name, text in items}
    changed = [f"{n}: printed otherwise" for n, h in found.items() if known.get(n, h) != h]
    new = [f"{name}: new" for name in found if name not in known]
    return changed + new + [f"{name}: missing" for name in names if name not in found]


def main() -> int:
    """Compare, keep or dump; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep what is printed now")
    parser.add_argument("--dump", type=Path, help="write the texts below this folder")
    parser.add_argument("--only", action="append", choices=GROUPS, help="of a group or several")
    words = parser.parse_args()
    os.environ.pop("COLUMNS", None)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # no tuned tables of this user's
        groups = words.only or list(GROUPS)
        items = [item for group in groups for item in GROUPS[group]()]
    if words.dump:
        for name, text in items:
            path = words.dump / f"{name.replace('/', '__').replace(' ', '_')}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return 0
    if words.write:
        others = {n: h for n, h in kept().items() if n.split("/")[0] not in groups}
        hashes = others | {name: digest(text) for name, text in items}
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    found = differences(items, [n for n in kept() if n.split("/")[0] in groups])
    print("\n".join(found) or f"{len(items)} items as they were")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
