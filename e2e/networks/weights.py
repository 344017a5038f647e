"""Weights: those of a file, whether they fit, and how large they are."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from e2e.networks.network import Network
from kernels.messages import one_line
from microbench.errors import UserError

WRAPPED = ("state_dict", "model")  # where checkpoints have the weights
PARALLEL = "module."  # before each name, in files saved from DataParallel
Build = Callable[[], nn.Module]


def with_weights(network: Network, path: Path) -> Network:
    """The network whose `build` has the weights of a file; a head of other classes stays random.

    UserError, in one line, for a file that cannot be read, or whose weights do not fit.
    """
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        module = network.build()
    state = _fitting(_read(path), module, f"--weights {path}: not of {network.name}")
    return dataclasses.replace(network, build=partial(_build, network.build, state))


def _build(build: Build, state: Mapping[str, Tensor]) -> nn.Module:
    module = build()
    module.load_state_dict(state, strict=False)
    return module


def _read(path: Path) -> dict[str, Tensor]:
    """The state dict of a file, by the names that the network itself has."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, ValueError, KeyError) as error:
        raise UserError(f"--weights {path} cannot be read: {one_line(error)}") from None
    named = _as_dict(content)
    for name in WRAPPED:
        named = _as_dict(named[name]) if isinstance(named.get(name), dict) else named
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise UserError(f"--weights {path} is no state dict")
    return {str(name).removeprefix(PARALLEL): value for name, value in named.items()}


def _as_dict(value: Any) -> dict[Any, Any]:
    return cast("dict[Any, Any]", value) if isinstance(value, dict) else {}


def _fitting(state: Mapping[str, Tensor], module: nn.Module, wrong: str) -> dict[str, Tensor]:
    """The weights to load, without a head of another number of classes.

    UserError that begins with `wrong` for a name that is missing or too much, or another shape.
    """
    own = module.state_dict()
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    if missing:
        raise UserError(f"{wrong}: it has no {missing[0]}{_more(missing)}")
    if more := [name for name in state if name not in own]:
        raise UserError(f"{wrong}, which has no {more[0]}{_more(more)}")
    other = [name for name in state if state[name].shape != own[name].shape]
    if other and not _is_head(module, other, state):
        shapes = [list(some[other[0]].shape) for some in (state, own)]
        raise UserError(f"{wrong}: {other[0]} is {shapes[0]}, not {shapes[1]}{_more(other)}")
    return {name: value for name, value in state.items() if name not in other}


def _is_head(module: nn.Module, names: list[str], state: Mapping[str, Tensor]) -> bool:
    """Whether weights of another shape are those of one layer, for another number of classes."""
    own = module.state_dict()
    layer, *others = {name.rpartition(".")[0] for name in names}
    return (
        not others
        and not isinstance(module.get_submodule(layer), nn.Embedding)
        and all(name.endswith(("weight", "bias")) for name in names)
        and all(state[name].shape[1:] == own[name].shape[1:] for name in names)
    )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


# ---------------------------------------------------------------- sizes


def model_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers; what two layers share counts once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
