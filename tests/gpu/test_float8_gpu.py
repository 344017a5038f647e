"""FP8 linear layers on the GPU: float64 references, compiled and captured, without waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from samples.commands import run_here
from samples.waiting import no_waits
from torch import nn

from e2e.__main__ import main
from e2e.results.terms import FLOAT8
from e2e.results.types import Training
from e2e.training.float8 import E4M3, ROWWISE, TENSORWISE, convert, multiplied, quantized
from microbench.results.runfile import read_run

# Of two E4M3 factors, each rounded to 3 bits of mantissa, and of the bfloat16 result.
ROUNDING = 2 * 2**-4 + 2**-7
SCALINGS = (TENSORWISE, ROWWISE)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("size", [(16, 16, 16), (48, 80, 4096), (1024, 768, 3072)])
def test_a_product_is_that_of_float64(scaling: str, fast: bool, size: tuple[int, int, int]) -> None:
    m, n, k = size
    torch.manual_seed(0)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    right = a.double() @ b.double().t()
    bound = ROUNDING * (a.abs().double() @ b.abs().double().t())
    factors = (quantized(one.bfloat16(), E4M3, scaling == ROWWISE) for one in (a, b))
    found = multiplied(*factors, fast=fast)
    assert ((found.double() - right).abs() <= bound + 1e-3).all()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.quick), True])
def test_gradients_are_those_of_float64(scaling: str, compiled: bool) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(256, 512).cuda(), nn.Linear(256, 512).cuda()
    exact.load_state_dict(layer.state_dict())
    exact.double()
    convert(layer, scaling)
    inputs = torch.randn(4, 64, 256, device="cuda", requires_grad=True)
    same = inputs.detach().double().requires_grad_()
    run = torch.compile(layer) if compiled else layer
    gradient = torch.randn(4, 64, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output = run(inputs)
    output.backward(gradient.to(output.dtype))
    exact(same).backward(gradient.double())
    for found, wanted in ((inputs.grad, same.grad), (layer.weight.grad, exact.weight.grad)):
        assert found is not None
        assert wanted is not None
        assert ((found.double() - wanted).norm() / wanted.norm()).item() < 0.1


def test_a_layer_never_waits_for_the_device() -> None:
    layer = nn.Linear(64, 64).cuda()
    convert(layer, ROWWISE)
    inputs = torch.randn(32, 64, device="cuda", requires_grad=True)
    layer(inputs).sum().backward()  # libraries are loaded now
    torch.cuda.synchronize()
    with no_waits():
        layer(inputs).sum().backward()


def test_a_gpt_is_trained_and_explained(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    ran = run_here(
        main, "e2e", "gpt-tiny", "--recipe", "amp-bf16,fp8,fp8-rowwise", "--batch", "16",
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
