"""Modules of timm and transformers, without trained weights: "timm:NAME", "hf:path/config.json".

Both packages are optional; each is imported when one of its networks is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernels.error_words import one_line, suggest
from microbench.errors import UserError
from microbench.network.networks import DEFAULT_IMAGE, silent

TIMM, HF = "timm", "hf"
CLASSES = 1000
LONGEST = 512  # tokens of a sequence where nothing else is asked
CONFIG = "config.json"
# How the name of an architecture that predicts the next token ends (config.json, "architectures").
CAUSAL = ("ForCausalLM", "LMHeadModel")


def is_hub(name: str) -> bool:
    """Whether a name is of a network of timm or transformers."""
    return name.startswith((f"{TIMM}:", f"{HF}:"))


def _package(name: str, asked: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = f"pip install {name}" if missing else one_line(error)
        raise UserError(f"{asked} needs {name}: {why}") from None


# ---------------------------------------------------------------- timm


def timm_image(name: str) -> tuple[int, int, int]:
    """The shape (C, H, W) of an image of timm's model. UserError for a missing package or an
    unknown name, with near ones.
    """
    timm = _package("timm", f"{TIMM}:{name}")
    if not timm.is_model(name):
        known: Sequence[str] = timm.list_models()
        near = suggest(name.lower(), known) or "; timm.list_models() names them"
        raise UserError(f"timm has no model {name!r}{near}")
    config = timm.models.get_pretrained_cfg(name)
    size: Any = getattr(config, "input_size", None) or (3, DEFAULT_IMAGE, DEFAULT_IMAGE)
    return int(size[0]), int(size[1]), int(size[2])


def build_timm(name: str, shape: tuple[int, int, int], classes: int = CLASSES) -> nn.Module:
    """timm's model for images of `shape` (C, H, W), in training mode. Raises what timm raises."""
    timm: Any = import_module("timm")
    options: dict[str, Any] = {}
    fixed = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    if fixed and shape != timm_image(name):
        options["img_size"] = shape[1:]
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **options)
    return network.train()


# ---------------------------------------------------------------- transformers


class Text(nn.Module):
    """A transformers model that takes token ids [batch, T] and returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, T, vocabulary] of a causal model, [batch, labels] of a classifier."""
        return self.model(input_ids=tokens).logits


def text_config(place: str) -> tuple[str, Any]:
    """The name, "hf:folder/config.json", and the configuration in a file or folder.

    UserError for a missing file or package, and for what is no configuration of a text model.
    """
    path = Path(place) / CONFIG if Path(place).is_dir() else Path(place)
    name = f"{HF}:{'/'.join(path.parts[-2:])}"  # a published file need not say where it lay
    if not path.is_file():
        raise UserError(
            f"{HF}:{place}: no such file; give a local configuration, {HF}:path/to/{CONFIG}"
        )
    transformers = _package("transformers", name)
    transformers.logging.set_verbosity_error()  # it warns of token ids that nothing here uses
    try:
        with silent():
            config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        raise UserError(f"{name} is no configuration of transformers: {one_line(error)}") from None
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise UserError(f"{name} is no text model (it has no vocab_size)")
    if not is_causal(config) and config.pad_token_id is None:
        config.pad_token_id = 0  # a classifier of a decoder looks for the last token
    return name, config


def is_causal(config: Any) -> bool:
    """Whether the model of a configuration predicts the next token; else it is a classifier."""
    names: Sequence[str] = getattr(config, "architectures", None) or ()
    return any(one.endswith(CAUSAL) for one in names)


def most_tokens(config: Any) -> int | None:
    """The longest sequence that the model takes, in tokens; None where it does not say."""
    most: Any = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def usual_tokens(config: Any) -> int:
    """The length of a sequence where nothing else is asked."""
    return min(LONGEST, most_tokens(config) or LONGEST)


def build_text(config: Any, name: str) -> nn.Module:
    """The model of a configuration, in float32 and training mode. UserError where transformers
    builds none.
    """
    transformers: Any = import_module("transformers")
    kind = "AutoModelForCausalLM" if is_causal(config) else "AutoModelForSequenceClassification"
    config.use_cache = False
    try:
        model: nn.Module = getattr(transformers, kind).from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise UserError(f"{name}: {kind} does not build it: {one_line(error)}") from None
    return Text(model).train()
