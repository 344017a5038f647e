"""The run file: what is written is read back, and what is not a run file is refused in a line."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kernels.case import DATA, Case
from kernels.gemm import LAYOUTS, OP
from kernels.precision import PRECISIONS
from microbench.errors import UserError
from microbench.report.console import print_run
from microbench.report.export import to_csv
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.comparison import compare
from microbench.results.runfile import as_run, check_writable, probe, read_run, write_run
from microbench.results.types import (
    Ceiling,
    Measurement,
    ProcessTime,
    Ratio,
    Result,
    Run,
    Warning,
)

RESULTS = Path(__file__).parents[2] / "results"
RUN_FILES = [
    path for path in sorted(RESULTS.rglob("*.json"))
    if b'"schema_version"' in path.read_bytes()[:200]
]  # fmt: skip
# The names that DESIGN.md promises to readers and other tools.
DOCUMENT_NAMES = {
    "schema_version", "method_version", "command", "started_at", "finished_at", "device",
    "software", "ceilings", "results",
}  # fmt: skip
RESULT_NAMES = {
    "op", "case", "precision", "backend", "status", "reason", "times_s", "median_s", "ci95_s",
    "flops", "min_bytes", "tflops", "gb_per_s", "ceiling_pct", "rel_error", "kernels",
    "tensor_core", "timer", "l2", "regime", "sm_clock_mhz", "power_w", "energy_j", "throttle",
    "speedup", "bound", "why", "warnings",
}  # fmt: skip


def sample_result(size: int = 512, precision: str = "fp16", seconds: float = 1e-5) -> Result:
    case = Case("gemm", {"m": size, "n": size, "k": size}, precision, "cublas")
    return Result(
        case,
        "ok",
        measurement=Measurement(
            times_s=(seconds, 1.01 * seconds, 0.99 * seconds),
            blocks=(2, 1),
            median_s=seconds,
            ci95_s=(0.99 * seconds, 1.01 * seconds),
            timer="events",
            l2="cold",
            regime="sustained",
            timer_overhead_s=2e-6,
            timer_resolution_s=32e-9,
            sm_clock_mhz=1800.0,
            power_w=400.0,
            energy_j=4e-3,
            temperature_c=50.0,
            throttle=("power cap",),
        ),
        flops=2 * size**3,
        min_bytes=6 * size**2,
        rel_error=2e-4,
        variant="torch",
        kernels=("kernel_128x128",),
        tile=(128, 128, 64),
        tensor_core=True,
        speedup={"fp32": Ratio(2.5, (2.4, 2.6)), "tf32": Ratio(1.4, None)},
        vs_backend={"triton": Ratio(1.01, (0.99, 1.03))},
        ceiling_pct=50.0,
        efficiency_pct={"datasheet": 50.0},
        bound="compute",
        why="because",
        warnings=(Warning("symptom", "cause", "remedy"),),
    )


def sample_run(*results: Result) -> Run:
    return Run(
        command=("python", "-m", "microbench", "gemm"),
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:01:00+00:00",
        device={"name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
                "power_limit_w": 700.0, "sm_clock_max_mhz": 1980.0, "driver": "580.1"},
        software={"torch": "2.11", "python": "3.12"},
        settings={"timer": "auto", "l2": "cold", "regime": "sustained", "seed": 3},
        ceilings=(
            Ceiling("dense peak", "datasheet", "fp16", flop_per_s=989.4e12, reference="https://x"),
            Ceiling("memory", "measured", byte_per_s=4e12, reference="copy"),
            Ceiling("latency floor", "measured", "fp16", seconds=5e-6),
        ),
        results=results
        or (
            sample_result(),
            replace(sample_result(256), status="skipped", reason="why", measurement=None),
        ),
    )  # fmt: skip


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_run(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


# ---------------------------------------------------------------- round trip

numbers = st.floats(0, 1e30)
times = st.floats(1e-9, 1e6)
intervals = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
maybe_number = st.none() | numbers
maybe_rate = st.none() | times
words = st.text(max_size=12)
pairs = st.tuples(numbers, numbers)
ratios = st.dictionaries(words, st.builds(Ratio, numbers, st.none() | pairs), max_size=3)
cases = st.builds(
    Case,
    op=st.just("gemm"),
    dims=st.fixed_dictionaries({d: st.integers(1, 10**6) for d in OP.dims}),
    precision_name=st.sampled_from(sorted(PRECISIONS)),
    backend=st.sampled_from(sorted(OP.backends)),
    layout=st.sampled_from(LAYOUTS),
    data=st.sampled_from(DATA),
)


def in_processes(measured: Measurement, medians_s: list[float]) -> Measurement:
    """As several processes measured it, a block each; as one, where there are too few medians."""
    parts = zip(range(len(measured.blocks)), medians_s, strict=False)
    found = tuple(ProcessTime(i, 1, s, 1000 * s if i else None) for i, s in parts)
    return replace(measured, processes=found if len(found) == len(measured.blocks) else ())


measurements = st.builds(
    in_processes,
    st.builds(
        Measurement,
        times_s=st.lists(times, min_size=1, max_size=5).map(tuple),
        blocks=st.lists(st.integers(0, 99), max_size=3).map(tuple),
        median_s=st.floats(1e-9, 1e6),
        ci95_s=st.none() | intervals,
        timer=words,
        l2=words,
        regime=words,
        timer_overhead_s=numbers,
        timer_resolution_s=numbers,
        sm_clock_mhz=maybe_number,
        power_w=maybe_number,
        energy_j=maybe_number,
        temperature_c=maybe_number,
        throttle=st.lists(words, max_size=2).map(tuple),
    ),
    st.lists(times, max_size=3),
)
results = st.builds(
    Result,
    case=cases,
    status=st.sampled_from(["ok", "skipped", "failed"]),
    reason=st.none() | words,
    measurement=st.none() | measurements,
    flops=st.integers(0, 10**18),
    min_bytes=st.integers(0, 10**18),
    rel_error=maybe_number,
    variant=st.none() | words,
    kernels=st.lists(words, max_size=2).map(tuple),
    tile=st.none() | st.tuples(*[st.integers(1, 512)] * 3),
    tensor_core=st.none() | st.booleans(),
    speedup=ratios,
    vs_backend=ratios,
    ceiling_pct=maybe_number,
    efficiency_pct=st.dictionaries(words, numbers, max_size=2),
    bound=st.none() | words,
    why=st.none() | words,
    warnings=st.lists(st.builds(Warning, words, words, words), max_size=2).map(tuple),
)
facts = st.dictionaries(words, st.none() | words | numbers | st.integers(), max_size=4)
runs = st.builds(
    Run,
    command=st.lists(words, max_size=4).map(tuple),
    started_at=words,
    device=facts.map(lambda some: some | {"name": "a device"}),
    software=facts,
    settings=facts,
    ceilings=st.lists(
        st.builds(Ceiling, words, words, st.none() | words, maybe_rate, maybe_rate,
                  maybe_rate, words),
        max_size=3,
    ).map(tuple),
    results=st.lists(results, max_size=3, unique_by=lambda r: r.case.key).map(tuple),
    finished_at=st.none() | words,
)  # fmt: skip


@given(runs)
@settings(max_examples=100)
def test_what_is_written_is_read_back(run: Run) -> None:
    assert run_from_json(json.loads(json.dumps(run_to_json(run), allow_nan=False))) == run


@pytest.mark.parametrize("file", RUN_FILES, ids=[path.stem for path in RUN_FILES])
def test_a_committed_file_is_read_as_it_is_written(file: Path, path: Path) -> None:
    run = read_run(file)
    write_run(run, path)
    assert read_run(path) == run


def test_the_time_model_of_an_older_file_is_ignored(path: Path) -> None:
    document = run_to_json(sample_run())
    overall = {"path": [], "count": 12, "median": 0.05, "p90": 0.1}
    old = {**document, "model": {"fitted": 12, "overall": overall, "by_path": [], "pools": []}}
    assert run_from_json(json.loads(json.dumps(old))) == sample_run()
    assert "model" not in document


def test_the_document_has_the_names_of_the_design(path: Path) -> None:
    write_run(sample_run(), path)
    document = json.loads(path.read_text())
    assert document.keys() >= DOCUMENT_NAMES
    assert document["schema_version"] == 1
    ok = document["results"][0]
    assert ok.keys() >= RESULT_NAMES
    assert ok["case"].items() >= {"m": 512, "n": 512, "k": 512}.items()
    assert ok["tflops"] == pytest.approx(2 * 512**3 / 1e-5 / 1e12)
    assert ok["gb_per_s"] == pytest.approx(6 * 512**2 / 1e-5 / 1e9)
    assert ok["speedup"]["fp32"] == {"ratio": 2.5, "ci95": [2.4, 2.6]}
    assert ok["warnings"] == [{"symptom": "symptom", "cause": "cause", "remedy": "remedy"}]


def test_a_case_that_was_not_measured_has_its_reason_and_no_times(path: Path) -> None:
    write_run(sample_run(), path)
    skipped = json.loads(path.read_text())["results"][1]
    assert (skipped["status"], skipped["reason"]) == ("skipped", "why")
    assert not skipped.get("times_s")
    assert not skipped.get("tflops")


# ---------------------------------------------------------------- at once or not at all


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ((ProcessTime(0, 1, 1e-5), ProcessTime(1, 2, 1e-5)), "blocks"),
        ((ProcessTime(0, 1, 1e-5),), "blocks"),
        ((ProcessTime(0, 1, 1e-5), ProcessTime(1, 1, 0.0)), "above zero"),
    ],
)
def test_processes_that_do_not_account_for_the_blocks_are_refused(
    processes: tuple[ProcessTime, ...], said: str, path: Path
) -> None:
    whole = sample_result().measurement
    assert whole is not None
    write_run(
        sample_run(replace(sample_result(), measurement=replace(whole, processes=processes))), path
    )
    message = complaint(path)
    assert "processes" in message
    assert said in message


def test_a_number_that_json_has_not_never_reaches_the_file(path: Path) -> None:
    write_run(sample_run(), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_run(sample_run(replace(sample_result(), rel_error=math.nan)), path)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(("option", "resumes"), [("--json", True), ("--csv", False)])
def test_a_file_that_is_there_is_never_taken(path: Path, option: str, resumes: bool) -> None:
    path.write_text("precious")
    with pytest.raises(UserError) as caught:
        check_writable(path, option, resumes=resumes)
    assert ("--resume" in str(caught.value)) == resumes  # CSV cannot be resumed
    assert path.read_text() == "precious"


def unwritable(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "file").write_text("")
    yield tmp_path
    yield tmp_path / "missing" / "run.json"
    yield tmp_path / "file" / "run.json"
    yield Path("/proc/run.json")
    yield tmp_path / ("x" * 300)


@pytest.mark.parametrize("which", range(5))
def test_an_unwritable_path_is_found_without_leaving_anything(tmp_path: Path, which: int) -> None:
    target = list(unwritable(tmp_path))[which]
    with pytest.raises(UserError) as caught:
        check_writable(target, "--json")
    assert "\n" not in str(caught.value)
    assert "--json" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_checking_makes_no_file(path: Path) -> None:
    check_writable(path, "--json")
    probe(path, "--resume")
    assert list(path.parent.iterdir()) == []


# ---------------------------------------------------------------- what is not a run file


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    write_run(sample_run(), path)
    whole = path.read_bytes().rstrip(b"\n")
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        complaint(path)


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "[]", "[1, 2]", "null", "true", "42", '"text"', "{}", "{'a': 1}", "not json",
        '{"schema_version": 1}', '{"results": []}', '{"schema_version": "1", "results": []}',
        '{"schema_version": null, "results": []}', '{"schema_version": 1, "results": []}',
        '{"schema_version": 1, "results": {}}', '{"schema_version": 1, "results": null}',
        '{"name": "other tool", "benchmarks": []}', "[" * 100_000, "\ufeff{}",
        '{"schema_version": ' + "9" * 5000 + "}", '{"schema_version": 1e400, "results": []}',
    ],
)  # fmt: skip
def test_foreign_documents_are_refused(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    complaint(path)


def test_no_text_a_folder_and_a_missing_file_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"\x80\x81\xff\x00" * 100)
    complaint(path)
    complaint(tmp_path)
    complaint(tmp_path / "nothing.json")
    complaint(tmp_path / ("x" * 300))


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_schema_says_so(path: Path, version: int) -> None:
    write_run(sample_run(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))
    said = complaint(path)
    assert "schema_version" in said
    assert str(version) in said
    assert "update" in said


def test_a_newer_schema_that_renamed_everything_says_so_too(path: Path) -> None:
    path.write_text('{"schema_version": 2, "measurements": []}')
    assert "update" in complaint(path)


def paths_into(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*before, key)
        if isinstance(inner, dict | list):
            yield from paths_into(inner, (*before, key))


def document_of(path: Path) -> Any:
    write_run(sample_run(), path)
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", sorted(DOCUMENT_NAMES))
def test_each_missing_name_of_the_document_is_refused(path: Path, name: str) -> None:
    document = document_of(path)
    del document[name]
    path.write_text(json.dumps(document))
    complaint(path)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("device", "l2_bytes", []),
        ("device", "sm_clock_max_mhz", {}),
        ("device", "capability", 9.0),
        ("settings", "load", {"load_average_per_core": [1]}),
        ("settings", "notes", 3),
        ("results", "tile", [128, 0]),
        ("settings", "anything", math.nan),
    ],
)
def test_a_value_that_nothing_can_be_computed_from_is_refused(
    path: Path, part: str, name: str, value: object
) -> None:
    document = document_of(path)
    (document[part][0] if part == "results" else document[part])[name] = value
    path.write_text(json.dumps(document))
    said = complaint(path)
    assert value is math.nan or name in said


def test_each_missing_name_of_a_result_is_refused_or_harmless(path: Path) -> None:
    document = document_of(path)
    for name in document["results"][0]:
        changed = copy.deepcopy(document)
        del changed["results"][0][name]
        assert use(changed, path) is None, name


JUNK = (None, "text", -1, 10**400, [], {"a": 1})


def use(document: Any, path: Path, sound: Run | None = None) -> str | None:
    """What a user can do with a run file; None unless it ends in anything but a line."""
    try:
        run = as_run(document, path)
        if run == sound:
            return None
        print_run(run, Console(file=io.StringIO(), width=100), details=True)
        to_csv(run)
        compare(run, run)
    except UserError as error:
        return None if "\n" not in str(error) else "two lines"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:90]
    return None


def test_any_value_of_another_type_is_refused_in_a_line_or_harmless(path: Path) -> None:
    """A file from anywhere never ends in a traceback, whichever one value in it is wrong."""
    document = document_of(path)
    del document["results"][1:]
    sound = as_run(document, path)
    crashes: dict[str, list[str]] = {}
    for place in paths_into(document):
        for junk in JUNK:
            changed = copy.deepcopy(document)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            said = use(changed, path, sound)
            if said:
                name = ".".join(str(key) for key in place)
                crashes.setdefault(name, []).append(f"{str(junk)[:8]!r} -> {said}")
    report = "\n".join(f"{name}: {said[0]} ({len(said)} values)" for name, said in crashes.items())
    assert not crashes, f"{len(crashes)} places crash:\n{report}"


def test_reading_executes_nothing(path: Path) -> None:
    document = document_of(path)
    document["device"]["name"] = "__import__('os').system('touch /tmp/pwned')"
    document["results"][0]["why"] = "[bold]{0.__class__}[/bold] %s \x1b[31m"
    path.write_text(json.dumps(document))
    out = io.StringIO()
    print_run(read_run(path), Console(file=out, width=100), details=True)
    assert "\x1b" not in out.getvalue()
