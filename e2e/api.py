"""What a script or a notebook calls: train, predict, and measure loading, as the commands do.

Options are the command's, by their names, with "_" for "-". With `resume` alone a function goes on
with the settings of that file. Mistakes raise `UserError`. A network is a name, "module:function",
or an importable function; `predict` also takes a module itself.
"""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from e2e.__main__ import app
from e2e.commands.diagnose import document_of_diagnosis
from e2e.commands.stalls import run_loaders, run_stalls
from e2e.commands.train import run_training
from e2e.options import TrainOptions
from e2e.profile import halfway_watch
from e2e.profile.diagnosis import diagnose
from e2e.report.diagnosis import report
from microbench.api import Run
from microbench.command_line import called
from microbench.errors import UserError
from microbench.report.screen import make_console, print_report
from microbench.report.writers import to_markdown
from microbench.results.runfile import write_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    Network = str | Callable[[], object]

HELD = "object"  # the module that stands for one of the caller's own: "object:Sequential"


def train(network: Network | None = None, **options: Any) -> Run:
    """Train a network under several precision recipes, interleaved, and compare them.

    `train("resnet50", recipe=["fp32", "amp"], batch=256)`. UserError for what the user can mend.
    """
    with _values("train", network, options) as values:
        return _run(values)


def predict(
    network: Network | nn.Module | None = None, sample: Tensor | None = None, **options: Any
) -> Run:
    """Predict a network's training steps without training it.

    With a module itself, `sample` is a batch of its input, [batch, ...]: floating, or token ids.
    The module is copied and not changed; it is traced and its operations are timed in this process.
    UserError for what the user can mend.
    """
    from torch import nn

    if not isinstance(network, nn.Module):
        with _values("predict", network, options) as values:
            return _run(values, train=False)
    if sample is None:
        raise UserError("predict(module, sample) needs sample, a batch of the module's input")
    given = {"batch": len(sample)} | options
    with _held(network, sample) as name, _values("predict", name, given) as values:
        return _run(values, train=False, here=True)


def stalls(network: Network | None = None, **options: Any) -> Run:
    """Find how many data-loader workers low precision needs.

    `workers` are numbers or "1..16"; `measure` says with which of them a training is measured:
    "some" (the most), "all" or "none". UserError for what the user can mend.
    """
    with _values("stalls", network, options) as values:
        name, workers, measure = (values.pop(key) for key in ("network", "workers", "measure"))
        return Run.of_done(run_stalls(name, workers, measure, values))


def loader(backend: str | Iterable[str] | None = None, **options: Any) -> Run:
    """Measure data loaders alone, in images per second. UserError for what the user can mend."""
    with _values("loader", None, {"backend": backend, **options}) as values:
        names, workers = (values.pop(key) for key in ("backend", "workers"))
        return Run.of_done(run_loaders(names, workers, values))


class Diagnosis:
    """The diagnosis of recorded steps, which shows itself. `data` is what `--json` writes."""

    def __init__(self, trace: Path) -> None:
        """Read a trace. UserError where it says nothing."""
        document = document_of_diagnosis(diagnose([trace]), [trace.name])
        self.data: dict[str, Any] = json.loads(json.dumps(document))

    def __str__(self) -> str:
        """The screen that `halfway diagnose` prints, 100 columns wide."""
        text = io.StringIO()
        print_report(report(self.data), make_console(file=text))
        return text.getvalue()

    def _repr_markdown_(self) -> str:
        return to_markdown(report(self.data))

    def save(self, path: str | Path) -> None:
        """Write the diagnosis for `halfway show`. UserError where the disk refuses."""
        write_text(json.dumps(self.data), Path(path))


class Watch(halfway_watch.Watch):
    """A recorder whose `diagnosis` explains the steps, once they are recorded."""

    @property
    def diagnosis(self) -> Diagnosis:
        """UserError where no steps were recorded."""
        return Diagnosis(Path(self.out))


@contextmanager
def watch(**options: Any) -> Generator[Watch]:
    """Record some steps of a loop that calls `step()` at the end of each.

    `options` are those of halfway_watch.Watch: `out` is the file of the trace, `after`, `bare` and
    `traced` are numbers of steps. ValueError for one that cannot be.
    """
    settings: dict[str, Any] = {"quiet": True, **options}
    watching = Watch(**settings)
    try:
        yield watching
    finally:
        watching.end()


def _values(
    command: str, network: Network | None, options: dict[str, Any]
) -> AbstractContextManager[dict[str, Any]]:
    """What the command of this name is asked; see `microbench.command_line.called`."""
    name = None if network is None else _name(network)
    return called(app.commands[command], [name], options)


def _run(values: dict[str, Any], *, here: bool = False, **instead: Any) -> Run:
    options = TrainOptions.of(values["network"], values, **instead)
    return Run.of_done(run_training(options, here=here))


def _name(network: Network) -> str:
    """The words by which the child finds a network. UserError for a function it cannot import."""
    if isinstance(network, str):
        return network
    name = getattr(network, "__qualname__", "")
    if network.__module__ == "__main__" or not name.isidentifier():
        raise UserError(
            f"{name or network!r} cannot be imported by another process; put it into a module and "
            "pass the function or 'module:function'"
        )
    return f"{network.__module__}:{name}"


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
