"""The networks of the training benchmark: their sizes, losses and defaults, and users' own."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from samples import feeding
from torch import nn
from torchvision.models.inception import InceptionOutputs

from e2e.networks import find
from e2e.networks.images import AUXILIARY_WEIGHTS
from e2e.networks.losses import first_token_loss
from e2e.networks.network import Network
from e2e.networks.table import FAMILIES, GROUPS, facts_of
from microbench.errors import UserError
from microbench.network.networks import usual_image


def parameters(name: str, classes: int | None = None) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in find(name, classes=classes).build().parameters())


def message(name: str, **options: Any) -> str:
    return feeding.message(lambda: find(name, **options))


def test_names_are_grouped_and_every_one_is_found() -> None:
    for group in GROUPS.values():
        for name, facts in group.items():
            network = find(name)
            assert network.name == name
            assert network.facts == facts == facts_of(name)
            assert network.optimizer in ("sgd", "adamw")
            assert network.lr > 0
            assert network.batch >= network.cpu_batch >= 1
            # batch-norm cannot train on one value a channel
            assert network.cpu_batch >= 2 or network.unit == "tok"
            assert find(name.upper().replace("-", "_")).name == name, "in any spelling"


# ---- torchvision


def test_the_table_is_what_torchvision_says() -> None:
    """Names, sizes of images, and numbers of classes, of all its networks."""
    table = next(iter(GROUPS.values()))
    assert list(table) == sorted(torchvision.models.list_models(module=torchvision.models))
    for name, facts in table.items():
        side = usual_image(name)
        assert facts.input == (3, side, side), name
        weights = torchvision.models.get_model_weights(name)["DEFAULT"]
        assert facts.classes == len(weights.meta["categories"]), name
    assert find("vit_b_16").lr == pytest.approx(0.003 * 128 / 4096, rel=0.02)  # 0.003 for 4096
    assert set(AUXILIARY_WEIGHTS) <= set(table)
    assert all(any(name.startswith(start) for name in table) for start in FAMILIES)


@pytest.mark.parametrize(
    "name",
    ["alexnet", "convnext_tiny", "mnasnet0_5", "resnet18", "squeezenet1_0", "vgg11", "vit_b_32"],
)
def test_families_are_built_for_the_classes_and_take_their_own_input(name: str) -> None:
    network = find(name, classes=7)
    with torch.device("meta"):
        module = network.build()
        assert module.training
        output = module(torch.empty(2, *network.input))
        loss = network.loss(output, torch.empty(2, dtype=torch.int64))
        if name == "vit_b_32":  # its weights fix the size
            small = find(name, input=(3, 64, 64)).build()
            assert small.get_parameter("encoder.pos_embedding").shape == (1, 1 + 4, 768)
    assert output.shape == (2, network.classes) == (2, 7)
    assert (loss.shape, loss.dtype) == ((), torch.float32)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("resnet50", (512,), "resnet50 takes images of 3 channels: --input 3x224x224, not 512"),
        ("vit_b_16", (3, 100, 100), "cannot be built for 100x100 px: AssertionError: Input shape"),
        ("vit_b_16", (3, 224, 256), "vit_b_16 takes square images, not 224x256"),
        ("vgg16-cifar", (3, 16, 16), "does not take --input 3x16x16"),
        ("gpt", (3, 32, 32), "gpt takes tokens: --input 1024 (at least 2), not 3x32x32"),
    ],
)
def test_an_input_that_does_not_fit(
    name: str, shape: tuple[int, ...], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert said in message(name, input=shape)
    assert not caplog.records, "no traceback of torch's beside the one line"


@pytest.mark.parametrize(("name", "weight"), [("googlenet", 0.3), ("inception_v3", 0.4)])
def test_auxiliary_classifiers_count_in_training_only(name: str, weight: float) -> None:
    network = find(name, classes=5)
    target = torch.tensor([1, 3])
    output: Any = InceptionOutputs(torch.randn(2, 5), torch.randn(2, 5))  # Inception takes a second
    alone = output.logits
    if name == "googlenet":
        module = network.build()
        with torch.no_grad():
            output = module(torch.randn(2, 3, 64, 64))
            alone = module.eval()(torch.randn(2, 3, 96, 96))
    main, *others = leaves = [scores.requires_grad_() for scores in output]
    assert len(others) == (1 if name == "inception_v3" else 2)
    loss = network.loss(output, target)
    expected = F.cross_entropy(main, target) + weight * sum(
        F.cross_entropy(other, target) for other in others
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(scores.grad is not None and scores.grad.any() for scores in leaves)
    torch.testing.assert_close(network.accuracy(output, main.argmax(1)), torch.tensor(2))
    torch.testing.assert_close(network.loss(alone, target), F.cross_entropy(alone, target))


# ---- CIFAR


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("cnn-cifar", 0.2425), ("resnet18-cifar", 11.174), ("resnet50-cifar", 23.521),
        ("vgg16-cifar", 14.724), ("wrn-16-4", 2.7489), ("wrn-28-10", 36.4792),
    ],
)  # fmt: skip
def test_cifar_networks_have_the_published_parameters_and_train(name: str, millions: float) -> None:
    assert parameters(name) / 1e6 == pytest.approx(millions, abs=0.001)
    wider = parameters(name, classes=11) - parameters(name)
    assert 0 < wider <= 2049  # one more row of the classifier and its bias
    if name in ("resnet50-cifar", "wrn-28-10"):
        return  # trained they take long, and are of the same blocks
    torch.manual_seed(0)
    network = find(name)
    assert (network.input, network.classes) == ((3, 32, 32), 10)
    assert 0.1 < trained_loss(network, every=True) < 20
    if name == "resnet18-cifar":  # keeps the resolution of its stem
        stem = nn.Sequential(*list(network.build().children())[:4])
        assert stem(torch.randn(2, 3, 32, 32)).shape == (2, 64, 32, 32)


def test_wide_resnet_is_pre_activation() -> None:
    """Without the inner branch a block of unchanged width hands its input on untouched."""
    module = find("wrn-16-4").build().eval()
    block = module.get_submodule("blocks.1")
    nn.init.zeros_(block.get_parameter("conv2.weight"))
    images = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(block(images), images, rtol=0, atol=0)


# ---- losses of tokens, GPT


def test_losses_of_tokens_are_of_the_next_one_and_of_a_text_s_first() -> None:
    network = find("gpt-tiny")
    tokens = torch.randint(0, 256, (3, 8))
    logits = torch.randn(3, 8, 256, dtype=torch.bfloat16)
    expected = F.cross_entropy(logits[:, :-1].float().reshape(-1, 256), tokens[:, 1:].reshape(-1))
    loss = network.loss(logits, tokens)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)

    tokens = torch.tensor([[5, 1], [2, 0]])  # of which the first is the class
    right = torch.tensor([[0.0, 50.0, 0.0, 0.0], [0.0, 0.0, 50.0, 0.0]])
    assert first_token_loss(right, tokens) == pytest.approx(0.0)
    assert first_token_loss(right.half(), tokens.flip(0)) > 10


def test_gpt_is_gpt2_small_starts_as_it_does_and_is_causal() -> None:
    network = find("gpt")
    assert parameters("gpt") == 124_439_808 + (50304 - 50257) * 768  # GPT-2's, and the padding
    assert (network.input, network.tokens, network.classes) == ((1024,), 50257, None)
    assert (network.unit, network.units_per_sample) == ("tok", 1024)
    assert (network.optimizer, network.batch, network.cpu_batch) == ("adamw", 16, 1)
    assert find("gpt", input=(512,)).units_per_sample == 512
    assert "has no classes" in message("gpt", classes=10)
    torch.manual_seed(0)
    module = find("gpt-tiny").build()
    for path, weight in module.named_parameters():
        if path.endswith("bias"):
            assert not weight.any()
        elif "norm" not in path:
            residual = path.endswith("project.weight")
            assert weight.std().item() == pytest.approx(0.01 if residual else 0.02, rel=0.05), path
    tokens = torch.randint(0, 256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    with torch.no_grad():
        before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    moved = (before - after).abs().amax(dim=(0, 2))
    assert (moved[40:] > 1e-4).all()


# ---- the user's own

NETS = """
    import torch
    from torch import nn

    class Split(nn.Module):
        def __init__(self, out):
            super().__init__()
            self.layer = nn.Conv2d(3, out, 1)
        def forward(self, images):
            maps = self.layer(images)
            return {"maps": maps.half(), "mean": maps.mean(), "count": torch.tensor(3)}

    def classifier(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 4))
    def half(): return nn.Linear(6, 4).half(), torch.zeros(2, 6)
    def split(): return Split(5), torch.zeros(2, 3, 8, 8)
    def language(width): return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, width))
    def words(): return language(20), torch.tensor([[3, 0, 19]])
    def narrow(): return language(9), torch.tensor([[3, 0, 19]])
    def integer():
        class Whole(nn.Linear):
            def forward(self, x): return x.argmax(1)
        return Whole(6, 4), torch.zeros(2, 6)
    def pair(): return nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1, 2))
    def no_batch(): return nn.Linear(2, 2), torch.zeros(2)
    def negative(): return nn.Embedding(2, 2), torch.tensor([[-1, 1]])
    def no_weights(): return nn.ReLU()
    def meta(): return nn.Linear(2, 2, device="meta")
    def lazy(): return nn.LazyLinear(2)

    def squared(output, target): return (output - target[:, None]).square().mean()
    def vector(output, target): return output
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Network]]:
    (tmp_path / "own_nets.py").write_text(textwrap.dedent(NETS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: find(f"own_nets:{name}")
    sys.modules.pop("own_nets", None)


def test_own_classifier_and_a_stand_in_without_classes(own: Callable[[str], Network]) -> None:
    network = own("classifier")
    assert (network.input, network.tokens, network.classes) == ((3, 224, 224), None, None)
    assert network.unit == "img"
    output, target = network.build()(torch.randn(2, 3, 224, 224)), torch.tensor([0, 3])
    assert not network.stands_in(output, target)
    torch.testing.assert_close(network.loss(output, target), F.cross_entropy(output, target))
    assert network.accuracy(output, output.argmax(1)) == 2
    wide = find("own_nets:classifier", classes=10)
    with pytest.raises(UserError, match="outputs 4 classes, but the data have 10 classes"):
        wide.loss(output, target)
    network = own("split")
    output, target = network.build()(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1])
    assert network.stands_in(output, target)
    assert not network.stands_in(torch.randn(2, 5), target)
    maps, mean = output["maps"].float(), output["mean"]
    expected = (maps.square().sum() + mean.square()) / (maps.numel() + 1)
    loss = network.loss(output, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    assert network.accuracy(output, target) is None
    whole = own("integer")
    with pytest.raises(UserError, match="outputs no floating-point tensor"):
        whole.loss(whole.build()(torch.randn(2, 6)), target)


def test_own_language_model_and_a_network_with_own_loss(own: Callable[[str], Network]) -> None:
    network = own("words")
    assert (network.input, network.tokens) == ((3,), 20)
    assert (network.unit, network.units_per_sample, network.accuracy) == ("tok", 3, None)
    tokens = torch.randint(0, 20, (4, 3))
    logits = network.build()(tokens)
    assert not network.stands_in(logits, tokens)
    expected = find("gpt-tiny").loss(logits, tokens)
    torch.testing.assert_close(network.loss(logits, tokens), expected)
    narrow = own("narrow")
    with pytest.raises(UserError, match="outputs 9 tokens, but the data have 20 tokens"):
        narrow.loss(narrow.build()(tokens), tokens)
    random_numbers = torch.get_rng_state()
    network = find("own_nets:half", loss="own_nets:squared")
    assert torch.equal(torch.get_rng_state(), random_numbers), "it was looked at on a copy of them"
    assert (network.input, network.unit) == ((6,), "sample")
    module = network.build()
    assert module.training
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}
    assert own("half").input == (6,)
    assert find("own_nets:half", input=(4, 6)).input == (4, 6)
    output, target = torch.full((2, 4), 3.0, dtype=torch.float16), torch.tensor([1, 1])
    assert not network.stands_in(output, target)
    loss = network.loss(output, target)
    assert (loss.item(), loss.dtype) == (4.0, torch.float32)
    wrong = find("own_nets:half", loss="own_nets:vector")
    with pytest.raises(UserError, match=r"returned an object of type Tensor of shape \[2, 4\]"):
        wrong.loss(output, target)
    plain = find("resnet18", loss="torch.nn.functional:cross_entropy")
    torch.testing.assert_close(plain.loss(output, target), F.cross_entropy(output.float(), target))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("pair", "returned 2 example inputs; training feeds one tensor"),
        ("no_batch", "example input of shape [2]; it must be a batch"),
        ("negative", "example input of int64, at least -1"),
        ("no_weights", "nothing to train"),
        ("meta", "weights on the meta device; build it on the CPU"),
        ("lazy", "lazy weights; call it once"),
    ],
)
@pytest.mark.usefixtures("own")
def test_errors_of_own_networks(function: str, said: str) -> None:
    assert said in message(f"own_nets:{function}")


# ---- timm and transformers

BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100,
    "max_position_embeddings": 24,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1,
    "n_head": 2, "vocab_size": 100, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 2048,
    "dtype": "bfloat16",
}  # fmt: skip


def saved(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder / 'config.json'}"


def trained_loss(network: Network, every: bool = False) -> float:
    """The loss of a step on two samples, with a backward pass that reaches weights in float32."""
    module = network.build()
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}
    if network.tokens is None:
        batch, target = torch.randn(2, *network.input), torch.tensor([0, 3])
    else:
        batch = target = torch.randint(network.tokens, (2, *network.input))
    loss = network.loss(module(batch), target)
    loss.backward()
    grads = [weight.grad for weight in module.parameters()]
    assert any(grad is not None and grad.any() for grad in grads)
    assert all(grad.isfinite().all() if grad is not None else not every for grad in grads)
    return float(loss.detach())


def test_networks_of_timm_train_for_classes_and_input() -> None:
    pytest.importorskip("timm")
    network = find("timm:resnet10t", classes=10)
    assert (network.name, network.input, network.classes) == ("timm:resnet10t", (3, 176, 176), 10)
    assert 0 < trained_loss(network) < 10
    network = find("timm:vit_tiny_patch16_224", input=(3, 64, 64), classes=5)
    assert (network.input, network.optimizer) == ((3, 64, 64), "adamw")
    trained_loss(network)
    assert "did you mean resnet50" in message("timm:resnet5O")
    assert "3x224x224" in message("timm:resnet18", input=(512,))


def test_models_of_transformers_predict_the_next_token_or_a_class(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for config, length in ((GPT2, 16), (LLAMA, 512)):
        network = find(saved(tmp_path / "small", config))
        assert (network.name, network.input) == ("hf:small/config.json", (length,))
        assert trained_loss(network) == pytest.approx(4.6, abs=0.6)  # ln 100: it knows nothing yet
    network = find(saved(tmp_path, BERT | {"num_labels": 4}), input=(8,))
    assert trained_loss(network) == pytest.approx(1.39, abs=0.5)  # ln 4
    assert find(f"hf:{tmp_path}").input == (24,)  # the folder will do
    (tmp_path / "notes.json").write_text("hello")
    assert "no configuration" in message(f"hf:{tmp_path / 'notes.json'}")
    assert "at most 16 tokens" in message(saved(tmp_path / "g", GPT2), input=(17,))
