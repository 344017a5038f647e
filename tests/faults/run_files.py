"""Run files with something wrong in them, read by every command that reads one."""

from __future__ import annotations

import copy
import json
import random
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .command_lines import ROOT, mains, prepare
from .forks import Attempt, Kind, here
from .hostile import TEXTS
from .judge import Outcome, changed, files_in, in_csv, in_markdown, in_markup, in_xml

LARGEST = 120_000  # bytes of a file that is damaged: larger ones are cut to a few results
FEW = 3
VALUES = (
    None, True, False, 0, 1, -1, 7, 0.5, -0.5, 1e-300, 1e308, -1e308, 1e18, 2**31, 2**63, -(2**63),
    10**400, float("nan"), float("inf"), "", [], {}, [[]], [None], {"": None}, [1, 2], [0.0, 0.0],
    "x", "nan",
)  # fmt: skip
OUTPUTS = {"--html": "new.html", "--chart": "new.svg", "--json": "new.json", "--junit": "new.xml"}


@cache
def sources() -> list[tuple[str, str]]:
    """The published files, those that are large cut to a few of their results: (name, JSON)."""
    found: list[tuple[str, str]] = []
    for path in sorted((ROOT / "results").rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        if len(text) > LARGEST:
            data = json.loads(text)
            results = data.get("results", data.get("rows", []))
            step = max(1, len(results) // FEW)
            del results[FEW * step :]
            results[:] = results[::step]
            text = json.dumps(data)
        if len(text) < 2 * LARGEST:
            found.append((path.name, text))
    return found


def _prepare() -> None:
    prepare()
    sources()


# ---------------------------------------------------------------- damage


def damaged(rng: random.Random, text: str) -> bytes:
    """The JSON with a few values wrong; or, one time in eight, bytes."""
    if rng.random() < 0.125:
        return with_wrong_bytes(rng, text.encode())
    data: Any = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        damage(rng, data)
    return json.dumps(data).encode()


def with_wrong_bytes(rng: random.Random, content: bytes) -> bytes:
    """The file cut off, or with bytes lost, changed or put in; or another file altogether."""
    i, j = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return rng.choice((
        lambda: content[:i],
        lambda: content[:i] + bytes([rng.randrange(256)]) + content[i + 1 :],
        lambda: content[:i] + content[j:],
        lambda: content[:j] + content[i:],
        lambda: content[:i] + bytes(rng.randrange(256) for _ in range(20)) + content[i:],
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.decode(errors="replace").encode("utf-16"),
        lambda: b"[" * 100_000,
        lambda: b'{"schema_version":' * 5_000,
        lambda: content.replace(b'"schema_version": ', b'"schema_version": 1' + b"0" * 5000, 1),
        lambda: rng.choice((b"null", b"[]", b"{}", b'"x"', b"1", b"", b"\0" * 4096)),
    ))()  # fmt: skip


def damage(rng: random.Random, data: Any) -> None:
    """Change one value, somewhere: each depth is as likely as the others."""
    holder, key = _place(rng, data)
    if holder is None:
        return
    deed = rng.random()
    if deed < 0.35:
        holder[key] = rng.choice(TEXTS)
    elif deed < 0.65:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    elif deed < 0.75:
        del holder[key]
    elif deed < 0.85:
        holder[key] = _scaled(rng, holder[key])
    elif deed < 0.92:
        other_holder, other = _place(rng, data)
        holder[key] = copy.deepcopy(other_holder[other])
    elif isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))
    else:
        holder[rng.choice((*TEXTS, *holder))] = holder.pop(key)


def _scaled(rng: random.Random, value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or abs(value) > 1e200:
        return rng.choice(VALUES[:8])
    return value * rng.choice((-1, 0, 1e3, 1e-3, 1e12))


def _place(rng: random.Random, data: Any) -> tuple[Any, Any]:
    """A container and a key in it."""
    holder: Any = None
    key: Any = None
    while isinstance(data, (dict, list)) and data and (holder is None or rng.random() < 0.8):
        holder = data
        key = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        data = holder[key]
    return holder, key


# ---------------------------------------------------------------- commands


def words_for(rng: random.Random) -> list[str]:
    """A command that reads run.json; beside it is whole.json, the same without damage."""
    name = rng.choices(
        ("show", "compare", "explain", "resume", "validate"), weights=(55, 25, 10, 8, 2)
    )[0]
    if name == "show":
        form = rng.choices(
            ([], ["--verbose"], ["--csv"], ["--markdown"], ["--html", "new.html"],
             ["--chart", "new.svg"], ["--chart", "new.html"]),
            weights=(40, 15, 18, 18, 5, 2, 2),
        )[0]  # fmt: skip
        return ["show", "run.json", *form]
    if name == "compare":
        files = rng.choice((["run.json", "whole.json"], ["whole.json", "run.json"],
                            ["run.json", "run.json"],
                            ["whole.json", "run.json", "run.json"]))  # fmt: skip
        form = rng.choices(
            ([], ["--markdown"], ["--verbose"], ["--json", "new.json"], ["--junit", "new.xml"],
             ["--html", "new.html"], ["--fail-on", "slower"], ["--threshold", "5%"]),
            weights=(40, 20, 10, 8, 8, 4, 5, 5),
        )[0]  # fmt: skip
        return ["compare", *files, *form]
    if name == "explain":
        return ["explain", "run.json"]
    if name == "validate":
        what = rng.choice(("compare", "power"))
        return ["validate-method", what, "run.json", "--tries", "2", "--json", "new.json"]
    command = rng.choice(("gemm", "conv", "layers", "payoff", "train", "loader", "ceilings",
                          "stalls", "validate-predictions"))  # fmt: skip
    return [command, "--resume", "run.json"]


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One damaged file and one command that reads it."""
    name, text = rng.choice(sources())
    content = damaged(rng, text)
    (folder / "whole.json").write_text(text, encoding="utf-8")
    (folder / "run.json").write_bytes(content)
    words = words_for(rng)
    before = files_in(folder.parent)
    outcome = here(mains()["halfway"][0], "halfway", words)
    may = {f"work/{word}" for word in words if word.startswith("new.")}
    may |= {"home/.cache", "home/.local"}
    if words[0] == "explain":
        may.add("work/run.json")
    complaints = [
        *outcome.complaints(),
        *changed(before, files_in(folder.parent), may),
        *_written(words, outcome, folder, content),
    ]
    return Attempt(f"{name}: {shlex.join(['halfway', *words])}", complaints)


def _written(words: list[str], outcome: Outcome, folder: Path, content: bytes) -> Iterator[str]:
    """What is wrong with what it printed or wrote."""
    if outcome.code not in (0, 1):
        return
    out = outcome.out.decode(errors="replace")
    if "--csv" in words:
        yield from in_csv(out)
    if "--markdown" in words:
        yield from in_markdown(out)
    if words[-1] in ("new.html", "new.svg"):
        file = folder / words[-1]
        own = 2 if words[-2] == "--chart" and file.suffix == ".html" else 0
        yield from in_markup(file.read_text("utf-8"), own) if file.exists() else ["no file"]
        if file.suffix == ".svg" and file.exists():
            yield from in_xml(file.read_text("utf-8"))
    if words[-1] == "new.xml":
        file = folder / "new.xml"
        yield from in_xml(file.read_text("utf-8")) if file.exists() else ["no file"]
    file = folder / ("run.json" if words[0] == "explain" else "new.json")
    if file.exists() and file.read_bytes() != content:
        try:
            json.loads(file.read_text("utf-8"), parse_constant=_no_constant)
        except (OSError, ValueError) as error:
            yield f"what it wrote is not JSON: {error}"


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


RUN_FILES = Kind("run files", attempt, limit_s=30.0, share=0.3, a_fork=40, prepare=_prepare)
