"""Opens what a job trains: the network and its data."""

from __future__ import annotations

from dataclasses import replace

import torch

from e2e.data.datasets import open_data
from e2e.data.types import ALL, Data, Options
from e2e.networks import find
from e2e.networks.losses import DefaultLoss
from e2e.networks.network import Network
from e2e.options import TrainOptions
from e2e.training.launch import dist_env
from e2e.training.ranks import Ranks
from e2e.training.variants import Task
from kernels.case import Target
from kernels.messages import one_line
from microbench.device.device import fault_of_gpu
from microbench.errors import UserError
from microbench.network.networks import tensors_in
from microbench.worker import OnStage

STAND_IN = (
    "The loss is a placeholder (the mean square of the output): the speed is that of training, "
    "the accuracy is not. For a real loss give --loss module:function."
)


def open_task(
    options: TrainOptions, target: Target, announce: OnStage, ranks: Ranks | None
) -> tuple[Task, tuple[str, ...]]:
    """The task, and remarks on it. UserError for what is wrong with network or data."""
    name, device, given = options.network, target.torch_device, options.of_case
    announce("", f"building {name}")
    network = find(name, input=options.shape, loss=options.loss)
    classes, stands_in = network.classes, False
    if classes is None:
        announce("", f"running {name} once")
        classes, stands_in = _look_at(network, device)
    announce("", f"opening --data {options.data}")
    try:
        data = open_data(
            options.data,
            Options(
                network.input, classes=classes, tokens=network.tokens,
                workers=given["workers"], loader=given["loader"], device=torch.device(device),
                share=(ranks.rank, ranks.world) if ranks else ALL,
            ),
        )  # fmt: skip
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--data {options.data}: {one_line(error)}") from None
    if data.train_samples is not None and network.tokens is None:
        network = find(name, input=options.shape, loss=options.loss, classes=data.classes)
        if classes and not options.evaluation and isinstance(network.loss, DefaultLoss):
            network.loss(torch.zeros(1, classes), torch.zeros(1, dtype=torch.int64))  # if it can
    network = replace(network, classes=data.classes)
    remarks = (*data.notes, *([STAND_IN] if stands_in and not options.evaluation else []))
    return Task(network, data, options.seed, ranks), remarks


def _look_at(network: Network, device: str) -> tuple[int | None, bool]:
    """(classes, whether the loss is a stand-in), from a user's network's output for two samples.

    UserError with the error that its forward raises.
    """
    shape = (2, *network.input)
    if network.tokens is None:
        inputs = torch.randn(shape, device=device)
    else:
        inputs = torch.randint(network.tokens, shape, device=device)
    try:
        with torch.no_grad():
            output = network.build().to(device)(inputs)
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()  # its kernels' faults are its own
    except Exception as error:
        cause = fault_of_gpu() or error
        raise UserError(f"{network.name}: its forward raised {one_line(cause)}") from None
    first = next(tensors_in(output), None)
    classes = first.shape[1] if first is not None and first.dim() == 2 else None
    target = inputs if network.tokens else torch.zeros(2, dtype=torch.int64, device=device)
    return None if network.tokens else classes, network.stands_in(output, target)


def check_data(options: TrainOptions, data: Data, kind: str) -> None:
    """UserError for options that this data and this machine do not have."""
    held_out, most = data.held_out_samples, options.held_out
    if options.epochs is not None and data.train_samples is None:
        raise UserError(f"--data {data.name} has no epochs; use --iterations")
    if most and held_out is None:
        raise UserError(f"--data {data.name} has no held-out samples; leave out --held-out")
    if most and held_out is not None and most > held_out:
        raise UserError(f"--held-out {most}: --data {data.name} has {held_out} held-out samples")
    count, here = max(options.all_gpus), torch.cuda.device_count()
    if options.train and kind == "cuda" and count > here and dist_env() is None:
        raise UserError(
            f"--gpus {count}: this machine has {here}; start torchrun on each host for more"
        )
