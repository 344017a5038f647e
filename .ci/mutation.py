"""Mutation testing: do the tests notice when a line of a pure module is wrong?

    pip install cosmic-ray
    python .ci/mutation.py run [MODULE ...]  # the mutants that are not known to be killed
    python .ci/mutation.py report > docs/notes/mutation.md

Cosmic Ray makes the mutants, in a copy of the tree. Each is judged in a process forked from this
one, which has loaded torch already. Which tests judge which module, and which mutants do the same
as what they replace, is in mutation.toml. Verdicts are kept in build/mutation.json.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

ROOT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((ROOT / ".ci/mutation.toml").read_text())
VERDICTS = ROOT / "build/mutation.json"
LOADED = ("pytest", "hypothesis", "numpy.random", "torch", "triton", "rich", "click", "jinja2")


class Ours(Operator):
    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class ScaleNumber(Ours):
    """A tolerance, a rate, a share: half as large again, and twice as large."""

    FACTORS = (1.5, 2)

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        number = isinstance(node, parso.python.tree.Number) and set(node.value) & set(".e")
        if number and float(node.value):
            yield from [(node.start_pos, node.end_pos)] * len(self.FACTORS)

    def mutate(self, node: Any, index: int) -> Any:
        value = f"({node.value} * {self.FACTORS[index]})"
        return parso.python.tree.Number(value, node.start_pos, node.prefix)


class DropUpdate(Ours):
    """`x -= y`, and its like, left out."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "expr_stmt" and re.fullmatch(".+=", getattr(node.children[1], "value", "")):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.python.tree.Keyword("pass", node.start_pos, node.get_first_leaf().prefix)


plugins.OPERATOR_PROVIDERS["own"] = {made.__name__: made for made in (ScaleNumber, DropUpdate)}


def mutants(module: str) -> dict[str, tuple[int, str]]:
    """A seeded sample of a module's mutants: its change -> (line, the whole text)."""
    source = (ROOT / module).read_text()
    settings = CONFIG["module"][module]
    chosen, size = settings.get("functions"), settings.get("sample", CONFIG["sample"])
    specs = [item.mutations[0] for item in _all_work_items([ROOT / module], {})]
    random.Random(CONFIG["seed"]).shuffle(specs)
    found: dict[str, tuple[int, str]] = {}
    for spec in specs:
        if re.search(CONFIG["left_out"], spec.operator_name):
            continue
        if chosen and spec.definition_name not in chosen:
            continue
        text = mutate_code(source, plugins.get_operator(spec.operator_name)(), spec.occurrence)
        pairs = enumerate(zip(source.split("\n"), (text or source).split("\n"), strict=False), 1)
        change = next(((line, *pair) for line, pair in pairs if pair[0] != pair[1]), None)
        if change and not re.search(CONFIG["left_out_lines"], change[1]):
            line, old, new = change
            found[f"{line}: {old.strip()} -> {new.strip()}"] = line, text
        if len(found) == size:
            break
    return {name: found[name] for name in sorted(found, key=lambda name: found[name][0])}


def judge(tests: list[str], limit_s: float, *, as_it_is: bool = False) -> str:
    """ "survived", "killed" or "timeout": the verdict of the tests, in a process of their own."""
    child = os.fork()
    if not child:
        os.setpgrp()
        sys.dont_write_bytecode = not as_it_is  # a mutant may be as old and as long as another
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import hypothesis
        import pytest

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # shrinking has no use here
        hypothesis.settings.register_profile(
            "mutants",
            deadline=None,
            phases=phases,
            database=None,
            derandomize=True,
            max_examples=25,
        )
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
        os._exit(int(pytest.main([*options, *tests])))
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def run(modules: list[str]) -> None:
    """Judge the mutants of these modules that no run has killed yet."""
    verdicts = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    for name in LOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as copy:
        skipped = shutil.ignore_patterns(".git", "build", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, copy, dirs_exist_ok=True, ignore=skipped)
        os.chdir(copy)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = f"{copy}:{copy}/tests"
        sys.path[:0] = [copy, f"{copy}/tests"]
        for module in modules:
            tests = CONFIG["module"][module]["tests"]
            source = Path(module).read_text()
            began = time.monotonic()
            if judge(tests, 600.0, as_it_is=True) != "survived":
                print(f"{module}: its tests fail as it is", flush=True)
                continue
            limit_s = 5.0 + 3 * (time.monotonic() - began)
            digest = _digest(Path(module))
            kept = verdicts.get(module, {})
            known = kept.get("verdicts", {}) if kept.get("source") == digest else {}
            found: dict[str, str] = {}
            verdicts[module] = {"source": digest, "verdicts": found}
            for name, (_, text) in mutants(module).items():
                found[name] = known.get(name, "survived")
                if found[name] == "survived":
                    Path(module).write_text(text)
                    found[name] = judge(tests, limit_s)
            Path(module).write_text(source)
            VERDICTS.parent.mkdir(exist_ok=True)
            VERDICTS.write_text(json.dumps(verdicts, indent=1))
            left = [name for name, verdict in found.items() if verdict == "survived"]
            took = time.monotonic() - began
            print(f"{module}: {len(left)} of {len(found)} survived ({took:.0f} s)", flush=True)
            print(*(f"  {name}" for name in left), sep="\n", flush=True)


def report() -> Iterator[str]:
    """The lines of the notes' page: a table of modules, and every mutant that survived."""
    verdicts = json.loads(VERDICTS.read_text())
    rows: list[str] = []
    equal: dict[tuple[str, str], list[str]] = {}
    left: list[str] = []
    sums = [0, 0, 0, 0]
    for module in CONFIG["module"]:
        kept = verdicts.get(module, {})
        found = kept.get("verdicts", {})
        old = " (older)" * bool(found and kept["source"] != _digest(ROOT / module))
        survived = [name for name, verdict in found.items() if verdict == "survived"]
        known = [(name, why) for name in survived if (why := _equivalent(module, name))]
        for name, why in known:
            equal.setdefault((module, why), []).append(name)
        missed = [name for name in survived if not _equivalent(module, name)]
        left += [f"- `{module}` {name}" for name in missed]
        counts = len(found), len(found) - len(survived), len(known), len(missed)
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        rows.append(f"| {module}{old} | {' | '.join(map(str, counts))} |")
    yield from (CONFIG["heading"].strip(), "")
    yield f"{sums[1]} of {sums[0] - sums[2]} mutants killed: {sums[1] / (sums[0] - sums[2]):.1%}."
    yield from (
        "",
        "| module | mutants | killed | equivalent | survived |",
        "|---|--:|--:|--:|--:|",
    )
    yield from (*rows, f"| all | {' | '.join(map(str, sums))} |", "", "## Equivalent", "")
    for (module, why), names in equal.items():
        yield f"- `{module}`: {why}"
        yield from (f"  - `{name}`" for name in names)
    yield from ("", "## Survived", "", *left)


def _digest(path: Path) -> str:
    """Of a source: verdicts on another one are old."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _equivalent(module: str, name: str) -> str | None:
    """Why a mutant does the same as what it replaces, if it is known to."""
    change = name.partition(": ")[2]
    known = CONFIG["equivalent"] | CONFIG["module"][module].get("equivalent", {})
    return next((why for pattern, why in known.items() if re.search(pattern, change)), None)


if __name__ == "__main__":
    command, *asked = sys.argv[1:]
    if command == "run":
        run(asked or list(CONFIG["module"]))
    else:
        print("\n".join(report()))
