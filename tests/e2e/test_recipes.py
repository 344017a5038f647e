"""Recipes: every part of a step is stored and computed in the precision that its recipe names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples.feeding import Batches, Census, convolutions, noise, small_cnn, trainer_of
from torch import nn

from e2e.case import FULL, OFF, SHORT, TrainCase
from e2e.data.datasets import Options, open_data
from e2e.networks import find
from e2e.recipes import RECIPES, cannot_run, recipe_of
from e2e.training.float8 import convert
from e2e.training.switches import switch_process
from e2e.training.variants import Task, Variants
from kernels.case import Target
from microbench.device.telemetry import Telemetry

CPU = torch.device("cpu")
HOPPER, VOLTA = (9, 0), (7, 0)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Of a recipe: weights, batch-norm, the optimizer's weights and state, and the products.
STORAGE: dict[str, tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype]] = {
    "fp32": (F32, F32, F32, F32),
    "tf32": (F32, F32, F32, F32),
    "amp": (F32, F32, F32, F16),
    "amp-bf16": (F32, F32, F32, BF16),
    "fp16": (F16, F16, F16, F16),
    "bf16": (BF16, BF16, BF16, BF16),
    "O0": (F32, F32, F32, F32),
    "O1": (F32, F32, F32, F16),
    "O2": (F16, F32, F32, F16),
    "O3": (F16, F16, F16, F16),
}
FLOAT8 = {"fp8", "fp8-rowwise"}
NEEDS = {"tf32": (8, 0), "amp-bf16": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp8-rowwise": (9, 0)}
SMALL = small_cnn()
PRODUCTS = ("convolution", "convolution_backward", "addmm", "mm")


# ---------------------------------------------------------------- names and words


def test_a_static_scale_is_for_float16_gradients_alone_and_changes_no_recipe() -> None:
    before = dict(RECIPES)
    assert STORAGE.keys() == RECIPES.keys() - FLOAT8
    for name in RECIPES:
        recipe = recipe_of(
            TrainCase("small", name, 2, "3x8x8", loss_scale=256, keep_batchnorm_fp32=True)
        )
        float16 = name in ("amp", "fp16", "O1", "O2", "O3")
        assert recipe.scale == (256.0 if float16 else RECIPES[name].scale)
        assert recipe.half == float16
        assert recipe.batchnorm == "fp32"
    assert before == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_device_cannot_run(name: str) -> None:
    recipe = RECIPES[name]
    least = NEEDS.get(name, (0, 0))
    assert cannot_run(recipe, "cuda", HOPPER) is None
    for card in (VOLTA, (8, 0), (8, 9)):
        reason = cannot_run(recipe, "cuda", card)
        assert (reason is not None) == (card < least)
        if reason:
            assert "{}.{}".format(*least) in reason
            assert "{}.{}".format(*card) in reason
    assert (cannot_run(recipe, "cpu", None) is not None) == (name == "tf32")


def test_arms_that_take_turns_set_tf32_and_the_search_of_cudnn_each_time() -> None:
    fp32, tf32 = trainer_of(SMALL, "fp32"), trainer_of(SMALL, "tf32")
    for arm, on in ((fp32, False), (tf32, True), (fp32, False)):
        arm.switch()
        assert torch.backends.cudnn.allow_tf32 is on
        assert torch.backends.cuda.matmul.allow_tf32 is on
        assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    tried = {}
    for search in (FULL, SHORT):
        switch_process(RECIPES["fp32"], "cuda", search)
        assert torch.backends.cudnn.benchmark
        tried[search] = torch.backends.cudnn.benchmark_limit
    assert 1 < tried[SHORT] < tried[FULL] == 10  # torch's own
    none = [("fp32", None), ("fp32", OFF), ("tf32", SHORT), ("amp", SHORT), ("bf16", SHORT)]
    for recipe, search in none:
        switch_process(RECIPES[recipe], "cuda", search)
        assert not torch.backends.cudnn.benchmark


# ---------------------------------------------------------------- storage


def _stored(module: nn.Module) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """The types of convolutions and linear layers, and of batch-norm with its statistics."""
    norms = {child for child in module.modules() if isinstance(child, nn.BatchNorm2d)}
    others = {c for c in module.modules() if isinstance(c, nn.Conv2d | nn.Linear)}
    running = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
    return (
        {weight.dtype for child in others for weight in child.parameters()},
        {t.dtype for t in (*running, *(w for norm in norms for w in norm.parameters()))},
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", STORAGE)
def test_storage_before_and_after_a_step(name: str, optimizer: str) -> None:
    weights, batchnorm, updated, _ = STORAGE[name]
    torch.manual_seed(1)
    fresh = list(SMALL.build().parameters())
    trainer = trainer_of(SMALL, name, optimizer=optimizer)
    for weight, start in zip(trainer.module.parameters(), fresh, strict=True):
        assert torch.equal(weight, start.to(weight.dtype)), "all recipes start alike"
    for _ in range(2):
        assert _stored(trainer.module) == ({weights}, {batchnorm})
        trainer.step(Batches(*noise(SMALL)))
    parameters = trainer.optimizer.torch_optimizer.param_groups[0]["params"]
    assert len(parameters) == len(list(trainer.module.parameters()))
    assert {p.dtype for p in parameters} == {updated}
    state = [
        value
        for values in trainer.optimizer.torch_optimizer.state.values()
        for key, value in values.items()
        if key != "step"
    ]
    assert len(state) == len(parameters) * (1 if optimizer == "sgd" else 2)
    assert {value.dtype for value in state} == {updated}


@pytest.mark.parametrize("name", ["fp16", "bf16", "amp", "O2"])
def test_keep_batchnorm_fp32_keeps_batchnorm_alone_and_never_rounds_it(name: str) -> None:
    """Of weights that float16 cannot hold, as pretrained ones have."""

    def build() -> nn.Module:
        net = convolutions()
        nn.init.constant_(net.get_parameter("1.weight"), 0.3)
        return net

    recipe = replace(RECIPES[name], batchnorm="fp32")
    trainer = trainer_of(replace(SMALL, build=build), recipe)
    assert torch.equal(trainer.module.get_parameter("1.weight"), torch.full((8,), 0.3))
    loss = trainer.step(Batches(*noise(SMALL)))
    assert _stored(trainer.module) == ({STORAGE[name][0]}, {F32})
    assert torch.isfinite(loss)


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("name", STORAGE)
def test_products_run_in_the_recipes_type_and_the_loss_in_float32(name: str) -> None:
    _, batchnorm, _, products = STORAGE[name]
    trainer = trainer_of(SMALL, name)
    with Census() as census:
        loss = trainer.step(Batches(*noise(SMALL)))
    assert set(PRODUCTS) <= census.seen.keys()
    assert census.of(*PRODUCTS) == {products}
    norms = [op for op in census.seen if "batch_norm" in op]
    assert norms
    assert census.of(*norms) == {products, batchnorm}
    assert loss.dtype == F32
    assert census.of("_log_softmax") == {F32}
    with Census() as census:
        trainer.evaluate(iter(noise(SMALL, 1)))
    assert census.of("convolution", "addmm", "mm") == {products}, "evaluation too"


@pytest.mark.parametrize("name", ["amp-bf16", "bf16", "O2"])
def test_tokens_stay_integers_and_products_of_a_transformer_follow_the_recipe(name: str) -> None:
    network = find("gpt-tiny")
    trainer = trainer_of(network, name, optimizer="adamw")
    tokens = torch.arange(128).reshape(2, 64)
    with Census() as census:
        loss = trainer.step(Batches((tokens, tokens)))
    assert torch.isfinite(loss)
    assert census.of("addmm", "mm", "bmm") == {STORAGE[name][3]}


# ---------------------------------------------------------------- FP8


def test_without_torchao_fp8_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.recipes.find_spec", lambda name: None)
    refused = {name: cannot_run(RECIPES[name], "cuda", HOPPER) for name in RECIPES}
    assert {name for name, reason in refused.items() if reason} == FLOAT8
    assert all("pip install 'halfway[fp8]'" in (refused[name] or "") for name in FLOAT8)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("rows", [(2, 16), (7,)], ids=["batch", "odd"])
def test_a_layer_and_its_gradients_are_those_of_float64(
    scaling: str, rows: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(64, 48), nn.Linear(64, 48)
    exact.load_state_dict(layer.state_dict())
    exact.double()
    layer, counts = convert(layer, scaling, batch=rows[0])
    assert counts == (1, 1)
    inputs = torch.randn(*rows, 64, requires_grad=True)
    same = inputs.detach().double().requires_grad_()
    gradient = torch.randn(*rows, 48)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(inputs)
    right = exact(same)
    output.backward(gradient.to(output.dtype))
    right.backward(gradient.double())
    assert output.dtype == torch.bfloat16
    weight, bias = (layer.get_parameter(name).grad for name in ("weight", "bias"))
    pairs = [(output, right), (inputs.grad, same.grad), (weight, exact.weight.grad),
             (bias, exact.bias.grad)]  # fmt: skip
    for found, wanted in pairs:
        assert found is not None
        assert wanted is not None
        assert found.shape == wanted.shape
        assert off(found, wanted) < 0.1
    assert off(output, right) > 0.01, "it really is FP8 that multiplies"


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


def test_only_linear_layers_of_fitting_sizes_are_converted() -> None:
    network = nn.ModuleDict({
        "fits": nn.Linear(32, 64), "odd": nn.Linear(32, 50), "narrow": nn.Linear(24, 32),
        "attention": nn.MultiheadAttention(32, 2), "conv": nn.Conv2d(16, 16, 3),
    })  # fmt: skip
    before, kinds = list(network.state_dict()), {name: type(m) for name, m in network.items()}
    converted, counts = convert(network, "tensorwise", batch=16)
    assert counts == (1, 4)
    assert [name for name in kinds if type(converted.get_submodule(name)) is not kinds[name]] == [
        "fits"
    ]
    assert list(converted.state_dict()) == before


def test_a_gpt_learns_as_with_bfloat16() -> None:
    """One batch by heart."""
    network, options = find("gpt-tiny", input=(64,)), {"fused": False, "lr": 1e-3, "accumulate": 2}
    losses: dict[str, list[float]] = {}
    for recipe in ("amp-bf16", "fp8", "fp8-rowwise"):
        trainer = trainer_of(network, recipe, seed=3, optimizer="adamw", **options)
        torch.manual_seed(4)
        tokens = torch.randint(0, 100, (2, 65))
        feed = Batches((tokens[:, :-1], tokens[:, 1:]))
        losses[recipe] = [trainer.step(feed).item() for _ in range(12)]
    base = losses.pop("amp-bf16")
    assert base[-1] < 0.8 * base[0]
    for found in losses.values():
        assert found != base
        assert found == pytest.approx(base, rel=0.05)


def test_a_network_without_a_layer_for_it_is_skipped() -> None:
    data = open_data("synthetic", Options((3, 8, 8), classes=10))
    cases = [TrainCase("small", name, 2, "3x8x8") for name in ("amp-bf16", "fp8", "fp8-rowwise")]
    arms = Variants(Task(SMALL, data, 1), Target("cpu", "a processor"), Telemetry(None))
    found = arms.set_up(cases, lambda key, stage: None)
    assert [training.status for training in found] == ["ok", "skipped", "skipped"]
    assert all("linear layers" in (training.reason or "") for training in found[1:])
