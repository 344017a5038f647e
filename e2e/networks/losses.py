"""Losses, always in float32 for any output type, and the count of right answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from microbench.errors import UserError
from microbench.network.networks import find_attribute, kind_of, tensors_in

NO_TARGET = -100  # F.cross_entropy leaves out positions with this target
CLASSES, TOKENS = "classes", "tokens"


def classification_loss(output: Any, target: Tensor, *, auxiliary_weight: float = 0.0) -> Tensor:
    """Cross-entropy of logits [batch, classes] with targets int64 [batch], a scalar in float32.

    Of several outputs the first is the main one; the loss of each other one, an auxiliary
    classifier's, is added times `auxiliary_weight`. In evaluation there is only one.
    """
    losses = (F.cross_entropy(logits.float(), target) for logits in tensors_in(output))
    loss = next(losses)
    return sum((auxiliary_weight * other for other in losses), loss) if auxiliary_weight else loss


def next_token_loss(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of the logits [batch, T, vocabulary] with each next token of [batch, T].

    A scalar in float32: the mean over the first T-1 positions.
    """
    logits = next(tensors_in(output))
    # The targets are shifted, not the logits: a slice of those would be copied, 3 GB for gpt.
    following = F.pad(target[:, 1:], (0, 1), value=NO_TARGET)
    return F.cross_entropy(
        logits.float().flatten(0, 1), following.flatten(), ignore_index=NO_TARGET
    )


def first_token_loss(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of logits [batch, labels], where the class of tokens [batch, T] is their first
    token modulo the number of labels: a scalar in float32. Data of tokens have no other classes.
    """
    labels = target[:, 0] % output.shape[-1]
    return F.cross_entropy(output.float(), labels)


def count_right(output: Any, target: Tensor) -> Tensor | None:
    """How many samples have their greatest logit at the target's class: int64 scalar on the device.

    Only the main output counts. None when it is not [batch, classes] for targets int64 [batch].
    """
    if scored(output, target) != CLASSES:
        return None
    return (next(tensors_in(output)).argmax(1) == target).sum()


def scored(output: object, target: Tensor) -> str | None:
    """What the first tensor of an output has scores of: CLASSES if it is floating [batch, classes]
    for targets int64 [batch], TOKENS if [batch, T, vocabulary] for int64 [batch, T], else None.
    """
    main = next(tensors_in(output), None)
    if main is None or target.dtype != torch.int64:
        return None
    if not main.is_floating_point() or main.shape[:-1] != target.shape:
        return None
    return {1: CLASSES, 2: TOKENS}.get(target.dim())


@dataclass(frozen=True)
class DefaultLoss:
    """The loss of a user's network that brings none.

    Cross-entropy where the first tensor of the output is floating [batch, classes], next-token
    cross-entropy where it is [batch, T, vocabulary] for tokens [batch, T]. For anything else it is
    a stand-in, the mean of squares of all floating outputs: steps take as long as in training, but
    learn nothing useful. `labels` is the number of classes or tokens of the data, None if unknown.
    """

    name: str
    labels: int | None

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Reduce an output to a scalar in float32.

        UserError for logits with fewer columns than the data has labels, and without floating
        output.
        """
        what = scored(output, target)
        if what is not None:
            width = next(tensors_in(output)).shape[-1]
            if self.labels is not None and width < self.labels:
                raise UserError(
                    f"{self.name} outputs {width} {what}, but the data have {self.labels} {what}"
                )
            loss = classification_loss if what == CLASSES else next_token_loss
            return loss(output, target)
        floating = [tensor.float() for tensor in tensors_in(output) if tensor.is_floating_point()]
        if not floating:
            raise UserError(
                f"{self.name} outputs no floating-point tensor; give --loss module:function"
            )
        count = sum(tensor.numel() for tensor in floating)
        return torch.stack([tensor.square().sum() for tensor in floating]).sum() / count


class UserLoss:
    """The loss that "module:function" names, called as function(output, target).

    Floating tensors of the output, in tuples, lists and dicts too, are cast to float32 before.
    UserError if it cannot be imported or called.
    """

    def __init__(self, name: str) -> None:
        function = find_attribute(name)
        if not callable(function):
            raise UserError(f"{name} is {kind_of(function)}, not a function of output and target")
        self.name, self.function = name, function

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Call the function. UserError when it returns no scalar."""
        loss = self.function(tree_map(_in_float32, output), target)
        if not isinstance(loss, Tensor) or not loss.is_floating_point() or loss.numel() != 1:
            shape = f" of shape {list(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise UserError(f"{self.name} returned {kind_of(loss)}{shape}, not a scalar loss")
        return loss.float().reshape(())


def _in_float32(leaf: object) -> object:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
