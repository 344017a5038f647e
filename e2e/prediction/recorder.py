"""Records the ATen calls of a training step, seen below autograd, and the memory they hold.

A call that is timed over and over finds its arguments in the cache, if they are small enough; in a
step it finds only what was touched shortly before. So the recorder notes which arguments are no
longer in the cache, and which results are written back to memory before they are freed.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from e2e.aten import (
    WARM,
    Call,
    CannotReplay,
    ColdL2,
    TensorSpec,
    describe,
    kind_of,
    movable,
    spec_of,
    tensors_among,
)
from e2e.prediction.fake_tensor_strides import as_when_real
from kernels.gpus import architecture

LAST_PHASE = "optimizer"  # of what comes after the last mark of a step
BACKWARD = "backward"
# What Python reads after that phase: whether a gradient overflowed, and an optimizer's steps.
FINITE, STEPS_DONE = 0.0, 2.0
FUSED = "aten._fused_"
# They look at memory, or make a state that torch keeps for the whole process.
UNFOLLOWED = ("aten._cudnn_rnn", "aten._cudnn_init_dropout_state")
READS = "aten._local_scalar_dense.default"  # a value that Python reads
NOTES = ("prim.", "profiler.")  # questions and marks of ranges: no arithmetic, no launch
LEAST_COLD = 2**20  # bytes: smaller tensors outside the cache cost latency only
WIDE = 4  # times the cache: a call that touches more finds nothing of its last launch
BLOCK_BYTES = 512  # torch's caching allocator rounds up to this


@dataclass(frozen=True)
class TracedOp:
    """One ATen call of a step, in order of launch.

    `allocated` are the bytes of new storages that it returns, `freed` those released since the call
    before. `cold` is what the device's cache does not hold of it.
    """

    call: Call
    outputs: tuple[TensorSpec, ...]
    phase: str
    allocated: int
    freed: int
    cold: ColdL2 = WARM


class Cache:
    """A least-recently-used model of the L2 cache, `size` bytes. Storages have numbers.

    `written_back` has the numbers of the calls whose results left the cache before they were freed.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.written_back: set[int] = set()
        self._held: OrderedDict[int, int] = OrderedDict()
        self._total = 0
        self._written: dict[int, int] = {}  # storage -> the call that wrote it

    def holds(self, storage: int) -> bool:
        """Whether the cache still holds the part of a storage that was last touched."""
        return storage in self._held

    def touch(self, storage: int, size: int, *, new_of: int | None = None) -> None:
        """Note that a call read or wrote `size` bytes of a storage; call `new_of` made it."""
        if new_of is not None:
            self._written[storage] = new_of
        before = self._held.pop(storage, 0)
        self._held[storage] = max(size, before)  # of a part, the rest stays
        self._total += self._held[storage] - before
        while self._total > self.size:
            oldest, gone = self._held.popitem(last=False)
            self._total -= gone
            call = self._written.pop(oldest, None)
            if call is not None:
                self.written_back.add(call)

    def forget(self, storage: int) -> None:
        """Note that a storage was freed: the next one in its memory finds it in the cache."""
        self._total -= self._held.pop(storage, 0)
        self._written.pop(storage, None)

    def begin(self) -> None:
        """Start a new step: calls are numbered from 0 again."""
        self.written_back.clear()
        self._written.clear()


def cache_bytes(device: torch.device) -> int:
    """L2 bytes that one call can keep in a device's cache: half of it where the L2 has two halves.

    0 for a CPU, where no distinction is made.
    """
    if device.type != "cuda":
        return 0
    facts = cast(Any, torch.cuda).get_device_properties(device)
    halves = 2 if architecture((facts.major, facts.minor)).l2_in_halves else 1
    return int(facts.L2_cache_size) // halves


class Storages:
    """The storages that are alive, `total` bytes: it sees every tensor, and notices when a storage
    is freed.
    """

    def __init__(self, cache: Cache) -> None:
        self.total = 0
        self._alive: dict[int, object] = {}
        self._freed = 0
        self._cache = cache

    def see(self, tensor: Tensor, device_type: str) -> int:
        """Bytes that torch's caching allocator takes for the tensor's storage if it is new and on
        this kind of device, else 0.
        """
        storage = tensor.untyped_storage()
        key = id(storage)
        if tensor.device.type != device_type or key in self._alive or not storage.nbytes():
            return 0
        size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        self.total += size

        def gone(_: object) -> None:
            del self._alive[key]
            self._freed += size
            self.total -= size
            self._cache.forget(key)

        self._alive[key] = weakref.ref(storage, gone)
        return size

    def take_freed(self) -> int:
        """Bytes freed since the last call."""
        freed, self._freed = self._freed, 0
        return freed


class Recorder(TorchDispatchMode):
    """Records each call below autograd. `mark(phase)` ends a phase, called by `Trainer.step`.

    `scaled`: a loss scaler reads the gradients before an unfused optimizer is called. `cache_bytes`
    is the size of the device's cache; with 0, nothing is noted of it.
    """

    def __init__(self, device_type: str, *, scaled: bool = False, cache_bytes: int = 0) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.ops: list[TracedOp] = []
        self._cache = Cache(cache_bytes)
        self.storages = Storages(self._cache)
        self._device_type = device_type
        self._pending: list[TracedOp] = []
        self._last_mark, self._reads, self._scaled = "", 0, scaled

    def begin(self) -> int:
        """Start a step; returns the bytes alive before it."""
        self.ops, self._pending = [], []
        self.storages.take_freed()
        self._cache.begin()
        return self.storages.total

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors that exist before the first step."""
        for tensor in tensors:
            self.storages.see(tensor, self._device_type)

    def mark(self, phase: str) -> None:
        """Assign the calls since the last mark to this phase."""
        self._last_mark, self._reads = phase, 0
        self.ops += [replace(op, phase=phase) for op in self._pending]
        self._pending.clear()

    def end(self) -> tuple[TracedOp, ...]:
        """End the step and return its calls."""
        self.mark(LAST_PHASE)
        return tuple(
            replace(op, cold=replace(op.cold, results=True, cache_bytes=self._cache.size))
            if i in self._cache.written_back
            else op
            for i, op in enumerate(self.ops)
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one call and record it. CannotReplay for tensors that cannot be described."""
        name, kwargs = str(func), kwargs or {}
        if name.startswith(NOTES):
            return func(*args, **kwargs)
        call = describe(func, args, kwargs)
        freed = self.storages.take_freed()
        taken = tensors_among(args, kwargs)
        out = self._run(name, func, args, kwargs)
        made = tensors_among(out)
        outputs = _specs(name, made)
        new = [self.storages.see(tensor, self._device_type) for tensor in made]
        self._pending.append(
            TracedOp(
                call,
                outputs,
                phase="",  # set by the next mark
                allocated=sum(new),
                freed=freed,
                cold=self._touched(call, taken, list(zip(made, new, strict=True))),
            )
        )
        return out

    def _touched(
        self, call: Call, taken: Sequence[Tensor], made: Sequence[tuple[Tensor, int]]
    ) -> ColdL2:
        """The arguments that the cache does not hold; afterwards it holds what the call touched.

        A call that touches much more than the cache holds leaves nothing for its next launch.
        """
        cache, number = self._cache, len(self.ops) + len(self._pending)
        if not cache.size or kind_of(call) == "view":
            return WARM
        touched: dict[int, int] = {}  # bytes by storage; an argument may be passed twice
        for tensor in (*taken, *(tensor for tensor, _ in made)):
            if tensor.device.type == self._device_type:
                most, before = tensor.untyped_storage().nbytes(), touched.get(_storage(tensor), 0)
                touched[_storage(tensor)] = min(most, before + _touched_bytes(tensor))
        narrow = sum(touched.values()) <= WIDE * cache.size
        gone = [
            i
            for i, tensor in enumerate(taken)
            if narrow
            and _touched_bytes(tensor) >= LEAST_COLD
            and _storage(tensor) in touched
            and not cache.holds(_storage(tensor))
        ]
        new = {_storage(tensor) for tensor, size in made if size >= LEAST_COLD} if narrow else ()
        for storage, size in touched.items():
            cache.touch(storage, size, new_of=number if storage in new else None)
        moving = tuple(i for i in movable(call) if i in gone) if gone else ()
        return ColdL2(moving, cache_bytes=cache.size) if moving else WARM

    def _run(
        self, name: str, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        fake = any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(args))
        if name.startswith(UNFOLLOWED) and detect_fake_mode(args) is not None:
            raise RuntimeError(f"{name} needs tensors that are in memory")
        if fake and name.startswith(FUSED):
            return None  # some have no fake kernel, and torch would run them for real
        if fake and name == READS and self._last_mark == BACKWARD:
            self._reads += 1
            return FINITE if self._scaled and self._reads == 1 else STEPS_DONE
        return as_when_real(func, args, func(*args, **kwargs))


def _specs(name: str, tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    """The specs of a call's results. CannotReplay, with the call's name."""
    try:
        return tuple(spec_of(tensor) for tensor in tensors)
    except CannotReplay as error:
        reason = str(error).replace("takes", "gives", 1)
        raise CannotReplay(f"{name} {reason}") from None


def _storage(tensor: Tensor) -> int:
    return id(tensor.untyped_storage())


def _touched_bytes(tensor: Tensor) -> int:
    spec = spec_of(tensor)
    return spec.distinct * spec.itemsize
