"""What a run file's results must keep to, and the rates that are written beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from samples.kernel_runs import case, measured, run_of

from microbench.results.codec import result_to_json, run_from_json, run_to_json
from microbench.results.types import Json, Run

RUN = run_of([measured(case(512, "fp16", "cublas"), 37.0)])


def timed(median_s: float, rounds: int, number: int = 0) -> Json:
    """One process of a result, as its file has it."""
    return {"number": number, "rounds": rounds, "median_s": median_s, "sm_clock_mhz": 1980.0}


def changed(change: Callable[[Json], object], run: Run = RUN) -> Json:
    """The document of a run, with its first result changed."""
    document = json.loads(json.dumps(run_to_json(run)))
    change(document["results"][0])
    return document


@pytest.mark.parametrize(
    "fields",
    [
        {"median_s": 0.0}, {"median_s": -1e-6}, {"times_s": []}, {"ci95_s": [0.0, 1.0]},
        {"ci95_s": [-1.0, 1.0]}, {"ci95_s": [2e-6, 1e-6]}, {"status": "good"}, {"op": "sum"},
        {"precision": "fp4"}, {"case": {"m": 1, "n": 1}}, {"case": {"m": 1, "n": 1, "k": "1"}},
        {"case": {"m": 0, "n": 1, "k": 1}}, {"case": {"m": 1, "n": 1, "k": 1, "layout": "xy"}},
        {"processes": [timed(1e-6, 2)]},
        {"processes": [timed(1e-6, 4)]},
        {"processes": [timed(0.0, 3)]},
        {"processes": [timed(-1.0, 3)]},
        {"processes": [timed(1e-6, 1), timed(1e-6, 2)]},  # both of process 0
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused(fields: Json) -> None:
    with pytest.raises(ValueError, match=r"results|precision"):
        run_from_json(changed(lambda result: result.update(fields)))


@pytest.mark.parametrize("name", ["flop_per_s", "byte_per_s", "seconds", "flop_per_clock"])
@pytest.mark.parametrize("value", [0.0, -1e12])
def test_a_ceiling_that_is_not_above_zero_is_refused(name: str, value: float) -> None:
    document = json.loads(json.dumps(run_to_json(RUN)))
    document["ceilings"] = [{"name": "a peak", "source": "measured", name: value}]
    with pytest.raises(ValueError, match=rf"ceilings\[0\]\.{name} is .*, not above zero"):
        run_from_json(document)


@pytest.mark.parametrize(
    "fields",
    [
        {"ci95_s": [1e-6, 1e-6]}, {"ci95_s": None}, {"median_s": 1e-12},
        {"processes": [timed(1e-6, 3)]},
        {"processes": [timed(1e-6, 1), timed(1e-9, 2, 1)]},
        {"case": {"m": 1, "n": 1, "k": 1}}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_can_be_is_read(fields: Json) -> None:
    document = changed(lambda result: result.update(fields))
    (found,) = run_from_json(document).results
    assert found.measurement
    written = json.loads(json.dumps(result_to_json(found)))
    kept = fields.keys() - {"case", "unknown"}
    assert {name: written[name] for name in kept} == {name: fields[name] for name in kept}
    assert found.case.layout == "nt"
    assert found.case.data == "normal"


def test_rates_are_in_the_units_of_their_names() -> None:
    result = RUN.results[0]
    written = result_to_json(result)
    assert result.median_s
    assert written["tflops"] == pytest.approx(2 * 512**3 / result.median_s / 1e12)
    assert written["gb_per_s"] == pytest.approx(result.min_bytes / result.median_s / 1e9)
    skipped = result_to_json(replace(result, measurement=None, status="skipped", reason="x"))
    rates = ("tflops", "gb_per_s", "median_s", "times_s", "blocks", "timer")
    assert {name: skipped[name] for name in rates} == dict.fromkeys(rates)


@pytest.mark.parametrize("name", ["method_version", "finished_at", "ceilings", "results"])
def test_a_document_without_its_heads_is_refused(name: str) -> None:
    document = changed(lambda result: None)
    del document[name]
    with pytest.raises(ValueError, match=name):
        run_from_json(document)


def test_a_device_has_a_name_and_finite_numbers() -> None:
    document = changed(lambda result: None)
    for device in ({}, {"name": 3}, {"name": "x", "power_limit_w": float("nan")}):
        with pytest.raises(ValueError, match="device"):
            run_from_json(document | {"device": device})
    assert run_from_json(document | {"device": {"name": "x", "power_limit_w": 3}}).device
