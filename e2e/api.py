"""What a script or a notebook calls: train, predict, and measure loading, as the commands do.

Options are the command's, by their names, with "_" for "-". Mistakes raise `UserError`. A network
is a name, "module:function", or an importable function; `predict` also takes a module itself.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from e2e.case import SCHEMAS
from e2e.commands.requests import request_of
from e2e.commands.stalls import run_loaders, run_stalls
from e2e.commands.train import run_training
from microbench.api import Run, words_of
from microbench.command_line import Outputs
from microbench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    Network = str | Callable[[], object]

HELD = "object"  # the module that stands for one of the caller's own: "object:Sequential"


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
    _start_profiler()
    with _held(network, sample) as name:
        return _run(name, {"batch": len(sample)} | options, train=False, here=True)


def stalls(network: Network, workers: Any = None, measure: str = "some", **options: Any) -> Run:
    """Find how many data-loader workers low precision needs.

    `workers` are numbers or "1..16"; `measure` says which points are measured: "some", "all" or
    "none". UserError for what the user can mend.
    """
    asked = {"recipe": "fp32,amp"} | options
    counts = _counts(workers)
    return Run.of_done(
        run_stalls(_name(network), counts, measure, _words({"data": "made"} | asked))
    )


def loader(backend: Any = "all", workers: Any = None, cold: bool = False, **options: Any) -> Run:
    """Measure data loaders alone, in images per second. UserError for what the user can mend."""
    asked = _words({"data": "made", "batch": "128"} | options)
    names = backend if isinstance(backend, str) else ",".join(backend)
    return Run.of_done(run_loaders(names, _counts(workers), cold, asked))


def _counts(workers: Any) -> str | None:
    if workers is None or isinstance(workers, str):
        return workers
    return ",".join(map(str, [workers] if isinstance(workers, int) else workers))


def _run(name: str, options: dict[str, Any], *, here: bool = False, **instead: Any) -> Run:
    return Run.of_done(run_training(request_of(name, _words(options), **instead), here=here))


def _words(options: dict[str, Any]) -> dict[str, Any]:
    return words_of(options, *SCHEMAS, Outputs)


def _name(network: Network) -> str:
    """The words by which the child finds a network. UserError for a function it cannot import."""
    if isinstance(network, str):
        return network
    name = getattr(network, "__qualname__", "")
    if network.__module__ == "__main__" or not name.isidentifier():
        raise UserError(
            f"{name or network!r} cannot be imported by another process: put it into a module, and "
            "give the function or 'module:function'"
        )
    return f"{network.__module__}:{name}"


def _start_profiler() -> None:
    """Here, in the main thread: started in another, it complains on standard error."""
    import torch

    if torch.cuda.is_available():
        with torch.profiler.profile():
            pass


@contextmanager
def _held(module: nn.Module, sample: Tensor) -> Generator[str]:
    """The module under a name that `e2e.networks.find` finds; each use gets a copy."""
    holder: Any = ModuleType(HELD)
    kind = type(module).__name__
    setattr(holder, kind, lambda: (copy.deepcopy(module), sample))
    sys.modules[HELD] = holder
    try:
        yield f"{HELD}:{kind}"
    finally:
        del sys.modules[HELD]
