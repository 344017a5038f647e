"""Networks of timm and transformers; where a package is absent, what is said of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.networks import find
from e2e.networks.hub import class_of_first_token_loss
from e2e.networks.network import Network
from microbench.errors import UserError

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


def need(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")


def saved(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder / 'config.json'}"


def refusal(name: str, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        find(name, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def trained_loss(network: Network) -> float:
    """The loss of a step on two samples, with a backward pass that reaches every weight."""
    module = network.build()
    assert module.training
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}
    if network.tokens is None:
        batch = torch.randn(2, *network.input)
        assert network.classes is not None
        target = torch.randint(network.classes, (2,))
    else:
        batch = target = torch.randint(network.tokens, (2, *network.input))
    loss = network.loss(module(batch), target, 0.0)
    loss.backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in module.parameters())
    return float(loss.detach())


# ---------------------------------------------------------------- timm


def test_networks_of_timm_train_for_classes_and_input() -> None:
    need("timm")
    network = find("timm:resnet10t", classes=10)
    assert (network.name, network.input, network.classes) == ("timm:resnet10t", (3, 176, 176), 10)
    assert 0 < trained_loss(network) < 10
    network = find("timm:vit_tiny_patch16_224", input=(3, 64, 64), classes=5)
    assert (network.input, network.optimizer) == ((3, 64, 64), "adamw")
    trained_loss(network)
    assert "did you mean resnet50" in refusal("timm:resnet5O")
    assert "3x224x224" in refusal("timm:resnet18", input=(512,))
    assert "--input" in refusal("timm:vit_tiny_patch16_224", input=(3, 5, 5))


# ---------------------------------------------------------------- transformers


@pytest.mark.parametrize(("config", "length"), [(GPT2, 16), (LLAMA, 512)], ids=["gpt2", "llama"])
def test_a_causal_model_predicts_the_next_token(
    tmp_path: Path, config: dict[str, Any], length: int
) -> None:
    need("transformers")
    network = find(saved(tmp_path / "small", config))
    assert (network.name, network.input, network.tokens) == (
        "hf:small/config.json", (length,), 100,
    )  # fmt: skip
    assert trained_loss(network) == pytest.approx(4.6, abs=0.6)  # ln 100: it knows nothing yet


def test_another_model_is_a_classifier(tmp_path: Path) -> None:
    need("transformers")
    network = find(saved(tmp_path, BERT | {"num_labels": 4}), input=(8,))
    assert network.input == (8,)
    assert trained_loss(network) == pytest.approx(1.39, abs=0.5)  # ln 4
    assert find(f"hf:{tmp_path}").input == (24,)  # the folder will do


def test_the_class_of_a_text_is_its_first_token() -> None:
    tokens = torch.tensor([[5, 1], [2, 0]])
    right = torch.tensor([[0.0, 50.0, 0.0, 0.0], [0.0, 0.0, 50.0, 0.0]])
    assert class_of_first_token_loss(right, tokens, 0.0) == pytest.approx(0.0)
    assert class_of_first_token_loss(right.half(), tokens.flip(0), 0.0) > 10


def test_what_is_no_configuration_or_does_not_fit(tmp_path: Path) -> None:
    need("transformers")
    (tmp_path / "notes.json").write_text("hello")
    assert "no configuration" in refusal(f"hf:{tmp_path / 'notes.json'}")
    assert "at most 16 tokens" in refusal(saved(tmp_path / "g", GPT2), input=(17,))
    vit = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    assert "no text model" in refusal(saved(tmp_path / "v", vit))


# ---------------------------------------------------------------- without the packages


@pytest.mark.parametrize("package", ["timm", "transformers"])
def test_a_missing_package_is_a_line_that_says_how_to_get_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *more)

    monkeypatch.setattr("microbench.network.hub.import_module", without)
    name = "timm:resnet50" if package == "timm" else saved(tmp_path, BERT)
    assert f"pip install {package}" in refusal(name)
    assert "hf:path/to/config.json" in refusal("hf:bert-base-uncased"), "needs no package"
