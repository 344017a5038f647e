"""Networks of timm and transformers, without trained weights: "timm:NAME", "hf:path/config.json".

Both packages are optional; each is imported when one of its networks is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from e2e.networks.losses import classification_loss, count_right, next_token_loss
from e2e.networks.network import (
    Network,
    check_input,
    class_count,
    image_input,
    written,
)
from e2e.networks.own import BATCH, CPU_BATCH, TOKEN_TRAINING
from e2e.networks.torchvision_nets import FAMILIES, LR_BATCH, USUAL
from kernels.error_words import one_line, suggest
from microbench.errors import UserError
from microbench.network.networks import DEFAULT_IMAGE, silent

TIMM, HF = "timm", "hf"
CLASSES = 1000
LONGEST = 512  # tokens of a sequence when --input does not say
CONFIG = "config.json"
# How the name of an architecture that predicts the next token ends (config.json, "architectures").
CAUSAL = ("ForCausalLM", "LMHeadModel")


def is_hub(name: str) -> bool:
    """Whether a name begins with "timm:" or "hf:"."""
    return name.partition(":")[0] in _MAKERS and ":" in name


def hub_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network of "timm:NAME" or "hf:path/to/config.json", with random weights.

    `input` is the shape of one sample, (3, H, W) or (T,); None is the network's own. UserError for
    a missing package, an unknown name (with near ones), a file that is no configuration, or an
    input that the network does not take.
    """
    kind, _, rest = name.partition(":")
    return _MAKERS[kind](rest, input, classes)


def _package(name: str, asked: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = f"pip install {name}" if missing else one_line(error)
        raise UserError(f"{asked} needs {name}: {why}") from None


# ---------------------------------------------------------------- timm


def _timm_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    asked = f"{TIMM}:{name}"
    timm = _package("timm", asked)
    if not timm.is_model(name):
        known: Sequence[str] = timm.list_models()
        near = suggest(name.lower(), known) or "; timm.list_models() names them"
        raise UserError(f"timm has no model {name!r}{near}")
    config = timm.models.get_pretrained_cfg(name)
    size: Any = getattr(config, "input_size", None) or (3, DEFAULT_IMAGE, DEFAULT_IMAGE)
    usual = (int(size[0]), int(size[1]), int(size[2]))
    shape = image_input(asked, input, usual[1]) if input or usual[0] == 3 else usual
    options: dict[str, Any] = {}
    if shape != usual and getattr(config, "fixed_input_size", False):
        options["img_size"] = shape[1:]
    classes = class_count(asked, classes, CLASSES)
    build = partial(_build_timm, name, classes, options)
    check_input(asked, build, shape)
    training = next((FAMILIES[start] for start in FAMILIES if name.startswith(start)), USUAL)
    return Network(
        name=asked,
        build=build,
        input=shape,
        classes=classes,
        loss=classification_loss,
        accuracy=count_right,
        optimizer=training.optimizer,
        lr=training.lr * BATCH / LR_BATCH,
        weight_decay=training.weight_decay,
        batch=BATCH,
        cpu_batch=CPU_BATCH,
    )


def _build_timm(name: str, classes: int, options: dict[str, Any]) -> nn.Module:
    timm: Any = import_module("timm")
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **options)
    return network.train()


# ---------------------------------------------------------------- transformers


class Text(nn.Module):
    """A transformers model that takes token ids [batch, T] and returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens, int64 [batch, T], to logits: [batch, T, vocabulary] of a causal model, [batch,
        labels] of a classifier.
        """
        return self.model(input_ids=tokens).logits


def _hf_network(place: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    path = Path(place) / CONFIG if Path(place).is_dir() else Path(place)
    name = f"{HF}:{'/'.join(path.parts[-2:])}"  # a published file need not say where it lay
    if not path.is_file():
        raise UserError(
            f"{HF}:{place}: no such file; give a local configuration, {HF}:path/to/{CONFIG}"
        )
    _package("transformers", name)
    config = _config(path, name)
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise UserError(f"{name} is no text model (it has no vocab_size)")
    names: Sequence[str] = getattr(config, "architectures", None) or ()
    causal = any(one.endswith(CAUSAL) for one in names)
    if not causal and config.pad_token_id is None:
        config.pad_token_id = 0  # a classifier of a decoder looks for the last token
    shape = _sequence(name, config, input)
    build = partial(_build_text, config, name, causal)
    check_input(name, build, shape, torch.int64)
    optimizer, lr, weight_decay = TOKEN_TRAINING
    return Network(
        name=name,
        build=build,
        input=shape,
        tokens=vocabulary,
        loss=next_token_loss if causal else class_of_first_token_loss,
        unit="tok",
        units_per_sample=shape[0],
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        batch=BATCH,
        cpu_batch=CPU_BATCH,
    )


def class_of_first_token_loss(output: Any, target: Tensor | None, label_smoothing: float) -> Tensor:
    """Cross-entropy of logits [batch, labels], where the class of tokens [batch, T] is their first
    token modulo the number of labels: a scalar in float32. Data of tokens have no other classes.
    """
    assert target is not None, "a text classifier is trained with tokens"
    labels = target[:, 0] % output.shape[-1]
    return F.cross_entropy(output.float(), labels, label_smoothing=label_smoothing)


def _config(path: Path, name: str) -> Any:
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()  # it warns of token ids that nothing here uses
    try:
        with silent():
            return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        raise UserError(f"{name} is no configuration of transformers: {one_line(error)}") from None


def _sequence(name: str, config: Any, input: tuple[int, ...] | None) -> tuple[int]:
    """The shape of a sample: (T,)."""
    most: Any = getattr(config, "max_position_embeddings", None)
    if input is None:
        return (min(LONGEST, most) if isinstance(most, int) and most > 0 else LONGEST,)
    if len(input) != 1 or input[0] < 1:
        raise UserError(f"{name} takes tokens: --input 128, not {written(input)}")
    if isinstance(most, int) and input[0] > most:
        raise UserError(f"{name} takes at most {most} tokens: not --input {input[0]}")
    return (input[0],)


def _build_text(config: Any, name: str, causal: bool) -> nn.Module:
    transformers: Any = import_module("transformers")
    kind = "AutoModelForCausalLM" if causal else "AutoModelForSequenceClassification"
    config.use_cache = False
    try:
        model: nn.Module = getattr(transformers, kind).from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise UserError(f"{name}: {kind} does not build it: {one_line(error)}") from None
    return Text(model).train()


_MAKERS: dict[str, Callable[[str, tuple[int, ...] | None, int | None], Network]] = {
    TIMM: _timm_network,
    HF: _hf_network,
}
