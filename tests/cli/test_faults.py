"""Damaged files and odd words at random: nothing of what docs/reliability.md rules out happens.

A case is its number: FAULTS=1000 tries so many of each kind in place of a few.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import multiprocessing
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from samples import judge
from samples.commands import ROOT

import e2e.__main__ as training
import microbench.__main__ as kernels
from e2e import halfway
from microbench.errors import UserError
from microbench.results.kinds import document_of
from microbench.results.runfile import as_run

CASES = range(int(os.environ.get("FAULTS", "12")))
PROGRAMS = {"microbench": (kernels.main, kernels.app), "e2e": (training.main, training.app),
            "halfway": (halfway.main, halfway.app)}  # fmt: skip

# What no program should be given: as a text in a file, a name in a trace, a word of a command.
MARKUP = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'<b>&"
TEXTS = (
    "", " ", MARKUP, "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\x1b[31mred",
    "\x1b]0;title\x07", "a\nerror: b", "\x00", "\x7f", "\x9b31m", "a\u202eb", "\u2028", "\ufeff",
    "x" * 5000, "😀" * 40, "é", "\ud800", "|", "[a](javascript:alert(1))", "![a](http://a.invalid)",
    "`", "%s%n", "{0.__class__}", "{{ 7*7 }}", "$(id)", "../../etc/passwd", "__import__('os')",
    "None", "true", "null", "-", "--", "--help", "-1.5", "*", "~", "\\", "'", '"', "[bold]x[/]",
    ":smile:", "\\|", "\u061c", "NaN",
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 7, 0.5, -0.5, 1e-300, 1e308, -1e308, 1e18, 2**31, 2**63, -(2**63),
    10**400, float("nan"), float("inf"), [], {}, [[]], [None], {"": None}, [1, 2], [0.0, 0.0],
    *TEXTS,
)  # fmt: skip
NUMBERS = ("0", "1", "-1", "7", "0.5", "1e-300", "1e300", "-0.0", "nan", "-inf", "2147483648",
           "9223372036854775808", "1" + "0" * 400, "٣", "1_000", " 1", "0x10", "1,5")  # fmt: skip


class Reached(BaseException):
    """The command would now start the process that measures: as far as these cases go."""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a command runs, with a home of its own; none measures."""

    def refuse(*_: object, **__: object) -> None:
        raise Reached

    monkeypatch.setattr(multiprocessing, "get_context", refuse)
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def here(program: str, words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code and output of a command in this process; its streams are as a process has them."""
    raw = io.BytesIO(), io.BytesIO()
    errors = "strict", "backslashreplace"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *words])
        for name, stream, how in zip(("stdout", "stderr"), raw, errors, strict=True):
            patch.setattr(sys, name, io.TextIOWrapper(stream, "utf-8", errors=how))
        try:
            code = PROGRAMS[program][0](list(words))
        except Reached:
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = (one.getvalue().decode("utf-8", "surrogateescape") for one in raw)
    return code, out, err


def check(
    work: Path, program: str, words: Sequence[str], may: Collection[str] = (),
    codes: Collection[int] = judge.DOCUMENTED,
) -> int:  # fmt: skip
    """Run a command, which may change the files `may`; its exit code. Nothing is wrong with it."""
    before = judge.files_in(work.parent)
    code, out, errors = here(program, words)
    after = judge.files_in(work.parent)
    torchs = [name for name in after if name.startswith("tmp/torchinductor")]
    may = {"home/.cache", "home/.local", "home/.cupy", *torchs, *(f"work/{name}" for name in may)}
    wrong = [*judge.in_ending(code, out, errors, codes), *judge.changed(before, after, may)]
    if code in (0, 1):
        wrong += judge.in_csv(out) if "--csv" in words else ()
        wrong += judge.in_markdown(out) if "--markdown" in words else ()
        wrong += in_files(work)
    assert not wrong, (shlex.join([program, *words]), wrong, errors)
    return code


def in_files(work: Path) -> Iterator[str]:
    """What is wrong with the files that a command wrote: all are called new."""
    for path in work.glob("new.*"):
        text = path.read_text("utf-8")
        if path.suffix in (".html", ".svg"):
            yield from judge.in_markup(text)
        if path.suffix == ".svg":
            yield from judge.in_xml(text)
        if path.suffix == ".json":
            yield from judge.in_json(text)


# ---------------------------------------------------------------- damage

LARGEST = 1_000_000  # characters of a published file that is damaged


@cache
def published() -> list[str]:
    """The published files, but for large ones."""
    texts = (path.read_text("utf-8") for path in sorted((ROOT / "results").rglob("*.json")))
    return [text for text in texts if len(text) < LARGEST]


def with_wrong_bytes(rng: random.Random, content: bytes) -> bytes:
    """The file cut off, or with bytes lost, changed or put in; or another file altogether."""
    i, j = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return rng.choice((
        content[:i],
        content[:i] + bytes([rng.randrange(256)]) + content[i + 1 :],
        content[:i] + content[j:],
        content[:j] + content[i:],
        content[:i] + rng.randbytes(20) + content[i:],
        b"\xef\xbb\xbf" + content,
        content.decode(errors="replace").encode("utf-16"),
        b"[" * 100_000,
        b'{"schema_version":' * 5_000,
        content.replace(b'"schema_version": ', b'"schema_version": 1' + b"0" * 5000, 1),
        *(b"null", b"[]", b"{}", b'"x"', b"1", b"", b"\0" * 4096),
    ))  # fmt: skip


def damage(rng: random.Random, data: Any) -> None:
    """Change one value, somewhere: each depth is as likely as the others."""
    holder, key = _place(rng, data)
    deed = rng.random()
    if holder is None:
        return
    if deed < 0.65:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    elif deed < 0.75:
        del holder[key]
    elif deed < 0.85 and isinstance(holder[key], float) and abs(holder[key]) < 1e200:
        holder[key] *= rng.choice((-1, 0, 1e3, 1e-3, 1e12))
    elif deed < 0.92:
        other_holder, other = _place(rng, data)
        holder[key] = copy.deepcopy(other_holder[other])
    elif isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))
    else:
        holder[rng.choice((*TEXTS, *holder))] = holder.pop(key)


def _place(rng: random.Random, data: Any) -> tuple[Any, Any]:
    """A container and a key in it."""
    holder: Any = None
    key: Any = None
    while isinstance(data, (dict, list)) and data and (holder is None or rng.random() < 0.8):
        holder = data
        key = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        data = holder[key]
    return holder, key


def holders_of(data: Any) -> dict[str, list[dict[str, Any]]]:
    """Everything with names in a document, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    left = [data]
    for one in left:
        for name in one if isinstance(one, dict) else ():
            found.setdefault(name, []).append(one)
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return found


def damage_all(rng: random.Random, data: Any) -> None:
    """One name has one value, or a text more, wherever it stands or in places."""
    holders = holders_of(data)
    name, share = rng.choice(sorted(holders)), rng.choice((0.1, 1.0))
    text, value = rng.choice(TEXTS), rng.choice(VALUES)
    for holder in holders[name]:
        if rng.random() < share:
            before = holder[name]
            holder[name] = before + text if isinstance(before, str) else value


# ---------------------------------------------------------------- run files

SHOWN = ([], ["--verbose"], ["--csv"], ["--markdown"], ["--html", "new.html"])
KINDS = ("cpu/gemm-fp16.json", "nvidia-h200/verify-resnet50.json", "nvidia-h200/loaders.json",
         "nvidia-h200/fleet.json",
         "nvidia-h200/diagnose/fp32_island.json")  # fmt: skip
HOSTILE = "=1+1|</script><script src=//x>![a](http://b.invalid)\x1b[31m\x9b\u202e\n[bold]\\|"
COMPARED = ([], ["--markdown"], ["--json", "new.json"], ["--verbose"], ["--html", "new.html"],
            ["--fail-on", "slower"], ["--threshold", "5%"])  # fmt: skip
RESUMED = ("gemm", "conv", "layers", "payoff", "train", "loader", "stalls")


def is_read(data: Any) -> bool:
    """Whether a document is what it says it is."""
    try:
        document = document_of(data)
        if document:
            document.report(data)
        else:
            as_run(data, Path("run.json"))
    except (UserError, ValueError):
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_a_file_stay_texts(work: Path, kind: str) -> None:
    """Planted in every name that may have any text, in every form that is shown."""
    data = json.loads((ROOT / "results" / kind).read_text("utf-8"))
    planted = 0
    for name in holders_of(data):
        changed = copy.deepcopy(data)
        for holder in holders_of(changed)[name]:
            if isinstance(holder[name], str):
                holder[name] = HOSTILE + holder[name]
        if changed != data and is_read(changed):
            data = changed
            planted += 1
    assert planted > 4
    (work / "run.json").write_text(json.dumps(data), encoding="utf-8")
    for form in SHOWN:
        check(work, "halfway", ["show", "run.json", *form], ["new.html"], (0,))
    if "results" in data:
        (work / "new.html").unlink()
        for form in COMPARED[:5]:
            words = ["compare", "run.json", "run.json", *form]
            check(work, "halfway", words, ["new.json", "new.html"], (0,))


@pytest.mark.parametrize("number", CASES)
def test_a_damaged_run_file(work: Path, number: int) -> None:
    rng = random.Random(number)
    text = rng.choice(published())
    content = with_wrong_bytes(rng, text.encode())
    if rng.random() < 0.9:
        data = json.loads(text)
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice((damage, damage_all))(rng, data)
        content = json.dumps(data).encode()
    (work / "whole.json").write_text(text, encoding="utf-8")
    (work / "run.json").write_bytes(content)
    files = rng.choice((["run.json", "whole.json"], ["whole.json", "run.json"], ["run.json"] * 2))
    for words in (
        ["show", "run.json", *rng.choice(SHOWN)], ["compare", *files, *rng.choice(COMPARED)],
        rng.choice((["explain", "run.json"], [rng.choice(RESUMED), "--resume", "run.json"])),
    ):  # fmt: skip
        written = {"run.json"} if words[0] == "explain" else set[str]()
        check(work, "halfway", words, {*written, *(w for w in words if w.startswith("new."))})


# ---------------------------------------------------------------- traces

TRACES = sorted((ROOT / "tests/samples/traces_h200").glob("*.json.gz"))
DIAGNOSED = (*judge.DOCUMENTED, 4)
EVENTS = "traceEvents"


@pytest.mark.parametrize("number", CASES)
def test_a_damaged_trace(work: Path, number: int) -> None:
    rng = random.Random(number)
    text = gzip.decompress(rng.choice(TRACES).read_bytes())
    data = json.loads(text)
    damaged = rng.choice((data[EVENTS], data[EVENTS], data["halfway"], data))
    rng.choice((damage, damage_all))(rng, damaged)
    content = json.dumps(data).encode()
    if rng.random() < 0.1:
        content = with_wrong_bytes(rng, text)
    if packed := rng.random() < 0.5:
        content = gzip.compress(content, 1)
        if rng.random() < 0.2:
            content = with_wrong_bytes(rng, content)
    trace = "t.json.gz" if packed else "t.json"
    (work / trace).write_bytes(content)
    (work / "base.json").write_bytes(text)
    words = rng.choice((["diagnose", trace], ["diagnose", trace], ["diagnose", trace, "--verbose"],
                        ["diagnose", "base.json", "--base", trace],
                        ["diagnose", trace, "--base", "base.json"]))  # fmt: skip
    output = "new.found.json"
    words += ["--json", output]
    if check(work, "halfway", words, [output], DIAGNOSED) in (0, 4):
        shown = ["show", output, *rng.choice(SHOWN)]
        code = check(work, "halfway", shown, ["new.html"], (0, 1))
        assert not code or set(shown) & {"--csv", "--markdown"}


# ---------------------------------------------------------------- command lines

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
    "new.csv", "", "-", ".", "..", "./run.json", "folder/../run.json", "x" * 300,
    "bad\x1b[31m\n.json", "\udcff.json", "run.json/x", "=1+1.json", "a\u202eb.json", "/proc/no/x",
)  # fmt: skip


def furnish(work: Path) -> None:
    """A run file, and files that are none, for a command to be given."""
    shutil.copy(ROOT / "results/cpu/gemm-fp16.json", work / "run.json")
    (work / "folder").mkdir()
    (work / "empty.json").touch()
    (work / "loop.json").symlink_to("loop.json")
    (work / "dangling.json").symlink_to("nowhere.json")
    with (work / "sparse.json").open("wb") as file:
        file.truncate(1 << 33)


def line(rng: random.Random, app: click.Group) -> list[str]:
    """The words after the program's name: a command, and options with values at random."""
    if rng.random() < 0.05:
        return [_word(rng) for _ in range(rng.randint(0, 3))]
    name = rng.choice(list(app.commands))
    params = app.commands[name].params
    arguments = [p for p in params if isinstance(p, click.Argument)]
    options = [p for p in params if isinstance(p, click.Option)]
    words = [_value(rng, p) for p in arguments for _ in range(rng.choice((1, 1, 1, 2, 0)))]
    needed = [p for p in options if p.required]
    for option in [*needed, *rng.sample(options, min(len(options), rng.choice((0, 1, 2, 3, 5))))]:
        written = rng.choice([*option.opts, *option.secondary_opts])
        value = _value(rng, option)
        if option.is_flag:
            words.append(written)
        else:
            words += [f"{written}={value}"] if rng.random() < 0.3 else [written, value]
    if rng.random() < 0.1:
        words.insert(rng.randint(0, len(words)), _word(rng))
    return [name, *words]


def _value(rng: random.Random, param: click.Parameter) -> str:
    kind = param.type
    if rng.random() < 0.15:
        return _word(rng)
    if isinstance(kind, click.Path):
        return rng.choice(FILES)
    if isinstance(kind, click.Choice):
        return str(rng.choice(list(kind.choices)))
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        return rng.choice(NUMBERS)
    text = rng.choice(LIKELY)
    i = rng.randrange(len(text) + 1)
    return rng.choice((text, text, text[:i] + text[i + 1 :], text[:i] + _word(rng) + text[i:]))


def _word(rng: random.Random) -> str:
    """A text that should not be there, of characters that an argument can hold."""
    return rng.choice((*TEXTS, *NUMBERS)).replace("\0", "").replace("\ud800", "\udcff")


@pytest.mark.parametrize("number", CASES)
def test_a_command_line(work: Path, number: int) -> None:
    rng = random.Random(number)
    furnish(work)
    program = rng.choice(list(PROGRAMS))
    words = line(rng, PROGRAMS[program][1])
    named = [name for word in words for name in (word, word.partition("=")[2] or word)]
    written = {os.path.normpath(name).split("/")[0] for name in named} - {"run.json"}
    if "explain" in words:
        written.add("run.json")
    check(work, program, words, {*written, "nowhere.json"})
