"""Steps of trainings on a GPU that the profiler recorded, and the ledgers made of them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch
from samples.commands import run_here
from samples.waiting import no_waits
from torch import nn

from e2e.__main__ import main
from e2e.results.ledger import terms_ms
from e2e.results.terms import BETWEEN, CONVOLUTIONS, FLOAT8, IDLE, OTHER
from e2e.results.types import Training
from e2e.training.float8 import Way, convert, part_gains
from e2e.training.step_timer import CudaSteps
from microbench.device.device import describe
from microbench.results.runfile import read_run
from microbench.results.types import Run


def run_of(tmp_path: Path, *words: str) -> Run:
    file = tmp_path / "run.json"
    options = ["--batch", "64", "--budget", "3", "--quiet", "--json", str(file)]
    assert main(["resnet18-cifar", *words, *options]) == 0
    return read_run(file)


def by_recipe(run: Run) -> dict[str, Training]:
    return {training.case.recipe: training for training in run.of(Training)}


@pytest.mark.alone
def test_a_ledger_is_of_the_steps_that_were_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, "--amp")
    arms = by_recipe(run)
    assert list(arms) == ["fp32", "tf32", "amp"]
    for training in arms.values():
        traced, steps = training.traced, training.steps
        assert traced is not None, training.warnings
        assert training.predicted is None
        assert training.step_s
        assert math.fsum(terms_ms(training).values()) == pytest.approx(1e3 * training.step_s)
        assert traced.launches / traced.steps == pytest.approx(steps.launches or 0, rel=0.05)
        assert traced.busy_ns / traced.steps / 1e9 == pytest.approx(steps.busy_s, rel=0.25)
        layers = {part.layer for part in traced.parts if part.term == CONVOLUTIONS}
        assert "layer1.0.conv1" in layers
    amp = arms["amp"]
    first, *changes, last = (line.ms for line in amp.ledger)
    assert first + math.fsum(changes) == pytest.approx(last, rel=1e-9)
    assert {line.source for line in amp.ledger} == {"measured", "traced"}
    halves = [part for part in amp.traced.parts if part.dtype == "float16"] if amp.traced else []
    assert halves


def test_a_captured_step_has_the_terms_of_its_kernels(tmp_path: Path) -> None:
    arms = by_recipe(run_of(tmp_path, "--recipe", "fp32,amp", "--graph"))
    amp = arms["amp"]
    assert amp.traced is not None, amp.warnings
    assert amp.ledger
    terms = terms_ms(amp)
    assert [term for term in terms if term in IDLE] == [BETWEEN]
    assert terms[CONVOLUTIONS] > terms.get(OTHER, 0)


# ---------------------------------------------------------------- studies gpu


SMALL = ("--set", "network=cnn-cifar", "--set", "batch=128", "--set", "budget=1")


def measured(name: str, folder: Path, *more: str) -> list[dict[str, str]]:
    done = run_here(main, "e2e", "study", name, "--out", "out", *SMALL, *more, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    with (folder / "out/cells.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_in_small_measures_every_cell_that_one_gpu_can_have(tmp_path: Path) -> None:
    found = measured("wrn-levels", tmp_path)
    ran = [row for row in found if row["recipe"]]
    assert {row["status"] for row in found} == {"ok"}
    assert all(float(row["per_s"]) > 0 for row in ran)
    assert any(row["speedup"] for row in ran)
    assert all(float(row["allocated_mb"] or 1) > 0 for row in ran if "allocated_mb" in row)


def test_a_static_scale_of_the_study_is_that_of_the_run(tmp_path: Path) -> None:
    """The loader alone and the resident batch are measured beside O2."""
    found = measured("resnet-static256", tmp_path, "--set", "data=generated")
    assert {row["cell"].rsplit("-", 1)[0] for row in found if row["status"] == "ok"} == {
        "fed", "resident", "loader",
    }  # fmt: skip
    text = (tmp_path / "out/runs/fed.json").read_text()
    assert '"loss_scale":256' in text


# ---------------------------------------------------------------- float8 gpu


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.quick), True])
def test_gradients_are_those_of_float64(scaling: str, compiled: bool) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(256, 512).cuda(), nn.Linear(256, 512).cuda()
    exact.load_state_dict(layer.state_dict())
    exact.double()
    layer, _ = convert(layer, scaling, batch=4)
    inputs = torch.randn(4, 64, 256, device="cuda", requires_grad=True)
    same = inputs.detach().double().requires_grad_()
    run = torch.compile(layer) if compiled else layer
    gradient = torch.randn(4, 64, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output = run(inputs)
    output.backward(gradient.to(output.dtype))
    exact(same).backward(gradient.double())
    weight = layer.get_parameter("weight").grad
    for found, wanted in ((inputs.grad, same.grad), (weight, exact.weight.grad)):
        assert ((found.double() - wanted).norm() / wanted.norm()).item() < 0.1


def test_a_layer_never_waits_for_the_device_and_a_gpt_is_trained_and_explained(
    tmp_path: Path,
) -> None:
    layer, _ = convert(nn.Linear(64, 64).cuda(), "rowwise", batch=32)
    inputs = torch.randn(32, 64, device="cuda", requires_grad=True)
    layer(inputs).sum().backward()  # libraries are loaded now
    torch.cuda.synchronize()
    with no_waits():
        layer(inputs).sum().backward()
    file = tmp_path / "run.json"
    ran = run_here(
        main, "e2e", "gpt-tiny", "--recipe", "amp-bf16,fp8,fp8-rowwise,fp8-auto", "--batch",
        "16",
        "--budget", "2", "--json", file,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = {training.case.recipe: training for training in read_run(file).of(Training)}
    for name in ("fp8", "fp8-rowwise"):
        training = found[name]
        assert training.status == "ok", training.reason
        assert training.traced is not None, training.warnings
        terms = {part.term for part in training.traced.parts}
        assert {"matrix products", FLOAT8} <= terms
    auto = found["fp8-auto"]
    assert auto.status == "ok", auto.reason
    (block,) = auto.fp8_gains
    assert {(one.k, one.n) for one in block.layers} == {(64, 192), (64, 64), (64, 256), (256, 64)}
    assert block.places == 2
    assert auto.float8_layers == 2 * sum(one.converted for one in block.layers)
    assert "fp8-auto" in ran.stdout


@pytest.mark.parametrize(
    ("compiles", "captures"), [(False, False), (True, False), (True, True)],
    ids=["eager", "compiled", "graph"],
)  # fmt: skip
def test_fp8_pays_in_wide_layers_and_not_in_narrow_ones(compiles: bool, captures: bool) -> None:
    narrow = [nn.Linear(64, 64) for _ in range(2)]
    network = nn.Sequential(nn.Linear(8192, 8192), nn.Linear(8192, 64), *narrow).cuda()
    inputs = torch.randn(8192, 8192, device="cuda")

    def forward() -> object:
        with torch.autocast("cuda", torch.bfloat16):
            return network(inputs)

    info = describe("cuda")
    way = Way("tensorwise", 8192, evaluates=False, compiles=compiles, captures=captures)
    timer = CudaSteps(info.index, info.sm_count)
    found, chosen = part_gains(network, forward, way, timer, lambda _: None, lambda _: None)
    wide, _, thin = found.values()
    assert (wide.places, thin.places) == (1, 2)
    assert not {"2", "3"} & chosen
    if compiles:
        assert "0" in chosen
        assert wide.gain.ratio > 1.1
