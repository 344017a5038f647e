"""What a script or a notebook calls: train, predict, and measure loading, as the commands do.

Options are the command's, by their names, with "_" for "-". Mistakes raise `UserError`. A network
is a name, "module:function", or an importable function; `predict` also takes a module itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from e2e.commands.stalls import loaded, stalled
from microbench.api import Run
from microbench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    Network = str | Callable[[], object]

HELD = "halfway_held_network"  # the module that stands for one of the caller's own


def train(network: Network, **options: Any) -> Run:
    """Train a network under several precision recipes, interleaved, and compare them.

    `train("resnet50", recipe=["fp32", "amp"], batch=256)`. UserError for what the user can mend.
    """
    return _run(_name(network), options, allow_run=True)


def predict(network: Network | nn.Module, sample: Tensor | None = None, **options: Any) -> Run:
    """Predict a network's training steps without training it.

    With a module itself, `sample` is a batch of its input, [batch, ...]: floating, or token ids.
    The module is copied and not changed; it is traced and its operations are timed in this process.
    UserError for what the user can mend.
    """
    from torch import nn

    if not isinstance(network, nn.Module):
        return _run(_name(network), options, train=False)
    if sample is None:
        raise UserError("predict(module, sample) needs a sample: a batch of the module's input")
    with _held(network, sample) as name:
        return _run(name, {"batch": len(sample)} | options, train=False, here=True)


def stalls(network: Network, workers: Any = None, measure: str = "some", **options: Any) -> Run:
    """Find how many data-loader workers low precision needs. UserError for bad values."""
    return _shown(stalled(_name(network), _words(workers), measure, _options(options)))


def loader(backend: Any = "all", workers: Any = None, cold: bool = False, **options: Any) -> Run:
    """Measure data loaders alone, in images per second. UserError for bad values."""
    return _shown(loaded(_words(backend), _words(workers), cold, _options(options)))
