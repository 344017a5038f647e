"""The optimizer's side of a recipe: master weights, loss scale, learning rate, skipped updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from e2e.case import TrainCase
from e2e.recipes import DYNAMIC, NONE, Recipe
from e2e.schedule import parse_schedule

MOMENTUM = 0.9  # of SGD
CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it
SCALE = ("_scale", "_growth_tracker")  # of torch's GradScaler
foreach_copy: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
foreach_norm: Any = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
foreach_multiply: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


class RecipeOptimizer:
    """Turns the gradients of `weights` into new weights, under a recipe.

    The learning rate is `lr`, rising linearly from 0 over the case's `warmup` updates, and in a
    training whose length is known as its `schedule` has it. `clip` bounds the norm of all
    gradients.
    """

    def __init__(
        self,
        weights: list[Tensor],
        case: TrainCase,
        recipe: Recipe,
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        self._weights, self._recipe, self._lr = weights, recipe, lr
        self._warmup, self._schedule = case.warmup, parse_schedule(case.schedule)
        self._share: float | None = None  # of `lr`, as it is set now
        self._length: int | None = None  # updates of a training, where it is known
        self._clip = case.clip
        self._fused = case.fused
        device = weights[0].device
        self.masters: list[Tensor] = weights
        if recipe.masters:
            self.masters = [nn.Parameter(weight.detach().float()) for weight in weights]
        # A float32 weight (batch-norm's) is its own master: `float` made no copy of it.
        self._pairs = [
            (weight, master)
            for weight, master in zip(weights, self.masters, strict=True)
            if weight.dtype != master.dtype
        ]
        self.torch_optimizer = _optimizer(self.masters, case, lr, weight_decay)
        dynamic = recipe.scale == DYNAMIC
        self.scaler = torch.amp.GradScaler(device.type, enabled=dynamic)
        self._fresh_scaler = self.scaler.state_dict()
        self._static = None if recipe.scale in (DYNAMIC, NONE) else float(recipe.scale)
        self._skipped = torch.zeros((), device=device)
        self._not_called = 0
        if dynamic:
            self.torch_optimizer.register_step_post_hook(self._note_call)

    @property
    def waits(self) -> bool:
        """Whether an update waits for the device, as torch's scaler does for unfused optimizers."""
        return self._recipe.scale == DYNAMIC and not self._fused

    def set_rate(self, done: int) -> None:
        """Set the learning rate of the next update, when `done` updates have been made.

        A rate that stays as it is costs no launch.
        """
        share = min(1.0, (done + 1) / self._warmup) if self._warmup else 1.0
        if self._length:
            share *= self._schedule.share(done / self._length)
        if share == self._share:
            return
        self._share = share
        for group in self.torch_optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self._lr * share)
            else:
                group["lr"] = self._lr * share

    def clear(self) -> None:
        """Drop the gradients."""
        for weight in (*self._weights, *self.masters):
            weight.grad = None

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of the scaled loss, a scalar."""
        if self._static is not None:
            (loss * self._static).backward()  # pyright: ignore[reportUnknownMemberType]
        else:
            self.scaler.scale(loss).backward()  # pyright: ignore[reportUnknownMemberType]

    def apply(self) -> None:
        """Update the weights, unless the dynamic loss scale finds a gradient that is not finite."""
        if self._recipe.masters:
            self._hand_gradients_on()
        if self._static is not None:
            gradients = [m.grad for m in self.masters if m.grad is not None]
            foreach_multiply(gradients, 1 / self._static)
        if self._clip is not None:
            self._clip_gradients(self._clip)
        self._not_called += 1
        self.scaler.step(self.torch_optimizer)
        self.scaler.update()
        self._round_masters()

    @torch.no_grad()
    def _clip_gradients(self, most: float) -> None:
        """Scale all gradients so that their norm is at most `most`. Never waits for the device.

        The scaler would unscale inside the fused update, which is too late. Of gradients that are
        not finite the norm is not either: the scaler has noted them, and skips the update.
        """
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.torch_optimizer)
        gradients = [m.grad for m in self.masters if m.grad is not None]
        norm = total_norm(gradients)
        factor = (most / (norm + CLIP_EPSILON)).clamp(max=1.0)
        for some in _by_type(gradients):
            foreach_multiply(some, factor.to(some[0].dtype))

    # One list of one type each: torch copies lists of mixed types one tensor after another, and in
    # versions before 2026 wrongly.

    @torch.no_grad()
    def _hand_gradients_on(self) -> None:
        """Copy the weights' gradients, as float32, to the master weights."""
        for weight, master in zip(self._weights, self.masters, strict=True):
            if weight.dtype == master.dtype:
                master.grad = weight.grad
        pairs = [(w.grad, master) for w, master in self._pairs if w.grad is not None]
        if not pairs:
            return
        copies = [torch.empty_like(gradient, dtype=torch.float32) for gradient, _ in pairs]
        foreach_copy(copies, [gradient for gradient, _ in pairs])
        for copy, (_, master) in zip(copies, pairs, strict=True):
            master.grad = copy

    @torch.no_grad()
    def _round_masters(self) -> None:
        """Copy the masters, rounded, to the weights."""
        if self._pairs:
            foreach_copy([w for w, _ in self._pairs], [master for _, master in self._pairs])

    def _note_call(self, optimizer: Any, *_: object) -> None:
        """A fused optimizer reads on the device whether to skip; an unfused one is not called."""
        self._not_called -= 1
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            self._skipped.add_(found_inf.reshape(()))

    @property
    def skipped(self) -> int:
        """The number of updates that the dynamic loss scale skipped. Waits for the device."""
        if self._recipe.scale != DYNAMIC:
            return 0
        return int(self._skipped.item()) if self._fused else self._not_called

    def tensors(self) -> Iterator[Tensor]:
        """What it keeps on the device between updates, without the weights themselves."""
        yield from (master for _, master in self._pairs)
        for state in self.torch_optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield self._skipped

    def state(self) -> Iterator[Tensor]:
        """All that decides the next update beside weights and gradients: the loss scale too."""
        yield from self.tensors()
        scaler: Any = vars(self.scaler)  # which makes these two at its first step
        yield from (scaler[name] for name in SCALE if scaler.get(name) is not None)

    @torch.no_grad()
    def restart(self, length: int | None = None) -> None:
        """Begin again from the weights as they are now; its tensors are reset in place.

        `length` is the number of updates to come, which a schedule needs.
        """
        self._length = length
        if self._pairs:
            foreach_copy([master for _, master in self._pairs], [w for w, _ in self._pairs])
        for state in self.torch_optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.scaler.load_state_dict(self._fresh_scaler)
        self._skipped.zero_()
        self._not_called = 0


def _by_type(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        yield [tensor for tensor in tensors if tensor.dtype == dtype]


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together, a float32 scalar on the device.

    The squares are added in float32: in float16 they overflow beyond 256.
    """
    norms = [
        norm for some in _by_type(gradients) for norm in foreach_norm(some, 2, dtype=torch.float32)
    ]
    return cast("Tensor", torch.stack(norms).norm())  # pyright: ignore[reportUnknownMemberType]


def _optimizer(
    weights: list[Tensor], case: TrainCase, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    how: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    how["fused" if case.fused else "foreach"] = True
    if case.optimizer == "sgd":
        optimizer = torch.optim.SGD(weights, momentum=MOMENTUM, **how)
        # Torch's fused SGD makes these buffers without setting them, and an update that the loss
        # scale skips leaves them so: the next one would add what lay in memory.
        for weight in weights:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    else:
        kind = torch.optim.AdamW if case.optimizer == "adamw" else torch.optim.Adam
        optimizer = kind(weights, capturable=case.graph, **how)
    if case.graph:
        # A captured step reads its learning rate from the device; only fused kernels do so.
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(lr, device=weights[0].device)
    return optimizer
