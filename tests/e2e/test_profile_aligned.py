"""Two recordings: what matches, an exact ledger, layers, and recordings that are refused."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.random_traces import traces
from samples.traces import US, Made

from e2e.__main__ import main
from e2e.profile.aligned import Side, align, in_common
from e2e.profile.diagnosis import Diagnosis, changes, diagnose
from e2e.profile.partition import partition
from e2e.profile.reader import read_trace
from microbench.__main__ import main as shows
from microbench.errors import UserError

MS = 1_000_000
BF16 = "c10::BFloat16"


def of(folder: Path, *made: Made, shift_ns: int = 0) -> Diagnosis:
    paths = [one.write(folder / f"{n}.json", shift_ns) for n, one in enumerate(made)]
    return diagnose(paths)


def training(
    steps: int = 2, batch: int = 64, dtype: str = "float", gemm_us: int = 100, casts: bool = False,
    modules: bool = True, shapes: bool = True,
) -> Made:  # fmt: skip
    """Steps of two layers, a product and a relu each, and what ends them."""
    made, now, ends = Made(), 0, []
    for _ in range(steps + 1):
        for layer in ("body", "head"):
            begin = now
            calls = [("aten::mm", gemm_us), ("aten::relu", 20)]
            if casts:
                calls.insert(0, ("aten::copy_", 30))
            for name, gpu_us in calls:
                args: dict[str, Any] = {"Input Dims": [[batch, 32], [32, 16]]} if shapes else {}
                args["Input type"] = [dtype, "float" if name == "aten::copy_" else dtype]
                made.op(name, now, now + 5 * US, **args)
                made.kernel(name, now + 10 * US, now + (10 + gpu_us) * US, now + US)
                now += (gpu_us + 20) * US
            if modules:
                made.note(f"halfway::{layer}", begin, now - US)
        ends.append(now)
    made.steps(*ends)
    return made


def test_amp_matches_float32_whatever_it_casts(tmp_path: Path) -> None:
    base, other = training(), training(steps=3, dtype=BF16, gemm_us=40, casts=True)
    found = of(tmp_path, base, other)
    assert found.aligned
    assert found.aligned.share == 1.0
    times = 2 * 120 * US, 3 * (40 + 20 + 30) * US
    layers = [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.aligned.layers]
    assert layers == [("body", "forward", *times), ("head", "forward", *times)]
    of_term = {change.term: change.ns for change in changes(*found.runs)}
    assert of_term["matrix products"] == -2 * 60 * US
    assert of_term["casts"] == 2 * 30 * US


@pytest.mark.parametrize(("changed", "matched"), [(4, 17), (3, 38)])
def test_recordings_of_which_less_than_half_matches_are_refused_in_a_line(
    changed: int, matched: int, tmp_path: Path
) -> None:
    other = training()
    calls = [e for e in other.events if (e["cat"], e["name"]) == ("cpu_op", "aten::mm")]
    for call in calls[2 : 2 + changed]:  # of the four in two steps
        call["args"]["Input Dims"] = [[64, 99], [99, 16]]
    with pytest.raises(UserError, match=rf"^the two .* different shapes \(matched {matched} %"):
        of(tmp_path, training(), other)
    with pytest.raises(UserError, match="matched 0 %"):
        of(tmp_path, training(), training(batch=128))


def test_without_names_of_modules_operations_match_and_layers_are_not_told(tmp_path: Path) -> None:
    found = of(tmp_path, training(), training(modules=False))
    assert found.aligned
    assert (found.aligned.share, found.aligned.layers) == (1.0, ())
    assert "names no modules" in found.runs[1].missing[0]


def test_without_shapes_nothing_is_matched_and_a_sentence_says_so(tmp_path: Path) -> None:
    found = of(tmp_path, training(), training(shapes=False))
    assert found.aligned is None
    base, other = found.runs
    assert base.missing == ()
    assert "record_shapes" in other.missing[0]
    assert other.products == ()


def test_a_synchronisation_has_the_line_of_the_user_s_script(tmp_path: Path) -> None:
    made = training()
    end = max(e["ts"] + e["dur"] for e in made.events if e["cat"] == "kernel")
    made.op("aten::item", end, end + 500 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", end + US, end + 400 * US)
    made.op("aten::mm", end + 600 * US, end + 610 * US)
    made.kernel("gemm", end + 620 * US, end + 630 * US, end + 601 * US)
    made.events = [e for e in made.events if not e["name"].startswith("ProfilerStep")]
    made.steps(end // 3, 2 * end // 3, end + 611 * US)
    (without,) = of(tmp_path, made).runs
    assert any("no Python stack" in text for text in without.missing)
    python = "python_function"
    made.span(python, "runpy.py(88): _run_code", 0, end + 999 * US)
    made.span(python, "/home/someone/work/train.py(80): main", end - US, end + 900 * US)
    made.span(python, "torch/_tensor.py(10): item", end, end + 500 * US)
    (old,) = of(tmp_path, made).runs
    assert "train.py:80 " in _sync(old.findings)
    made.events[-1]["args"]["CallFrom"] = "/home/someone/work/train.py:88"
    (new,) = of(tmp_path, made).runs
    assert "train.py:88 " in _sync(new.findings)
    assert "someone" not in str(new)
    assert new.missing == ()


def _sync(findings: Any) -> str:
    return next(found.where for found in findings if "synchronisation" in found.title)


# ---------------------------------------------------------------- on the screen


@pytest.mark.parametrize("alike", [True, False])
def test_the_screen_has_the_layers_where_enough_matches(
    alike: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = training(dtype=BF16, gemm_us=40, casts=True) if alike else training()
    if not alike:  # one of the four products in two steps
        calls = [e for e in made.events if (e["cat"], e["name"]) == ("cpu_op", "aten::mm")]
        calls[2]["args"]["Input Dims"] = [[64, 99], [99, 16]]
    paths = [training().write(tmp_path / "base.json"), made.write(tmp_path / "other.json")]
    aligned = diagnose(paths).aligned
    assert aligned
    assert aligned.share == pytest.approx(1 if alike else 380 / 480)
    words = ["diagnose", str(paths[1]), "--base", str(paths[0])]
    out = tmp_path / "out.json"
    assert main([*words, "--json", str(out), "--html", str(tmp_path / "page.html")]) == 0
    brief = capsys.readouterr().out
    assert shows(["show", str(out), "--verbose"]) == 0
    whole, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    assert ("too little to compare layers" in " ".join(brief.split())) != alike
    for text in (brief, whole, page):
        assert ("Layers that changed most" in text) == alike
    assert "64x32 32x16" not in brief, "products are a detail"
    assert "64x32 32x16" in whole
    assert "64x32 32x16" in page


# ---------------------------------------------------------------- properties


def _side(path: Path) -> Side:
    recording = read_trace(path)
    return Side(recording, partition(recording))


@settings(max_examples=25)
@given(made=traces(), other=traces(types=BF16))
def test_changes_add_up_exactly_and_flip_with_the_recordings(
    made: Made, other: Made, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other.header = {"halfway": {"bare_s": [0.000123, 0.000321], "traced": 2}}
    folder = tmp_path_factory.mktemp("t")
    paths = made.write(folder / "a.json"), other.write(folder / "b.json")
    runs = [diagnose([path]).runs[0] for path in paths]
    there, back = changes(*runs), changes(*reversed(runs))
    for ledger in (there, back):
        *lines, step = ledger
        assert sum((line.ns for line in lines), Fraction()) == step.ns
    signs = {change.term: change.ns for change in there}
    assert {change.term: -change.ns for change in back} == signs
    sides = [_side(path) for path in paths]
    found, swapped = align(*sides), align(*reversed(sides))
    if found is None or swapped is None:  # all work is a cast or a copy
        assert found == swapped
        return
    assert found.alike == swapped.alike
    assert found.matched_ns == swapped.matched_ns[::-1]
    assert [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.layers] == [
        (x.module, x.phase, x.other_ns, x.base_ns) for x in swapped.layers
    ]


@settings(max_examples=25)
@given(made=traces(), shift=st.integers(0, 10**15), seed=st.integers(0, 99))
def test_a_recording_is_itself_in_any_order_at_any_time_on_any_stream(
    made: Made, shift: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("t")
    first = made.write(folder / "t.json")
    (before,) = diagnose([first]).runs
    random.Random(seed).shuffle(made.events)
    for event in made.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] += 13
    (folder / "again").mkdir()
    again = made.write(folder / "again" / "t.json", shift)
    found = diagnose([first, again])
    assert found.runs == (before, before)
    assert all(change.ns == 0 for change in changes(*found.runs))
    if found.aligned:  # None where all work is a cast or a copy
        assert found.aligned.share == 1.0
        assert all(layer.base_ns == layer.other_ns for layer in found.aligned.layers)
        busy = sum(term.ns for term in before.terms if not term.idle)
        assert sum(layer.base_ns for layer in found.aligned.layers) in (0, busy)


# ---------------------------------------------------------------- a longest common sequence

lists = st.lists(st.integers(0, 3), max_size=12)


@given(one=lists, other=lists)
def test_what_is_in_common_is_in_both_in_order_and_the_longest(
    one: list[int], other: list[int]
) -> None:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        if one[i] == other[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    places, rest = in_common(one, other), iter(other)
    assert places == sorted(set(places))
    assert all(one[place] in rest for place in places)
    assert len(places) == longest(0, 0) == len(in_common(other, one))


def test_lists_with_little_in_common_are_matched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.profile.aligned.MOST_EDITS", 2)
    assert in_common([1, 2, 3, 9, 4, 5], [1, 7, 8, 3, 4, 6]) == [0, 2, 4]
