"""What launched each piece of work: the operators around it, the module, and the part of the step.

A launch is joined to its work by the profiler's correlation number, and lies inside the spans of
its own CPU thread. A backward operator belongs to the module of the forward operator that made its
autograd node: both have one sequence number. Operators that make no node carry the number of the
next one, so the maker is the last forward operator with it.

Activation checkpointing runs forward operators again inside a backward node: within a module that
is entered there, or, where modules have no names in the trace, as operators that make autograd
nodes of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from e2e.profile.compiled import GRAPH_CALL, is_compiled_code
from e2e.profile.reader import Recording, Span
from microbench.errors import UserError

MODULE = "halfway::"  # halfway_watch's names of modules
STEP, LOADING = "ProfilerStep#", "enumerate(DataLoader)"
NOTES = (MODULE, "Optimizer.", STEP, LOADING, GRAPH_CALL)  # that are no operators
NODE = "autograd::engine::evaluate_function: "
FORWARD, BACKWARD, OPTIMIZER, ELSEWHERE, RECOMPUTED = PHASES = (
    "forward", "backward", "optimizer", "elsewhere", "recomputation",
)  # fmt: skip
SEQUENCE, MADE_BY = "Sequence number", "Fwd thread id"  # the latter is 0 for what makes a node
NO_SEQUENCE = -1
MAX_OPEN = 500  # operators and modules in one another on one thread


@dataclass(frozen=True, slots=True)
class Caller:
    """What was open on a CPU thread at one moment: `ops` from the outermost to the innermost.

    `module` is the path of the module at work, "" where it is not known. `phase` is one of PHASES.
    """

    ops: tuple[Span, ...]
    module: str
    phase: str


NOBODY = Caller((), "", ELSEWHERE)


def callers(recording: Recording) -> Mapping[int, Caller]:
    """The caller of each launch of the runtime, by its correlation number."""
    makers = _makers(recording)
    found: dict[int, Caller] = {}
    for launch, around in _around(recording.launches, recording):
        if launch.correlation:
            found[launch.correlation] = _caller(around, makers)
    return found


def callers_of_ops(recording: Recording) -> Iterator[tuple[Span, Caller]]:
    """Each operator with its caller, itself the innermost of its `ops`: the work of a CPU.

    Operators that make the next batch are data loading, and no work of the step.
    """
    makers = _makers(recording)
    for op, around in _around(recording.ops, recording):
        if not any(span.name.startswith(LOADING) for span in around):
            yield op, _caller((*around, op), makers)


def _around(some: Sequence[Span], recording: Recording) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Each of these spans with the operators and notes that are open where it begins."""
    return open_around(some, (*recording.notes, *recording.ops), MAX_OPEN)


def open_around(
    some: Sequence[Span], others: Iterable[Span], most: float
) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Each of `some` with all spans that are open where it begins, on its thread.

    UserError where more than `most` are.
    """
    wanted = {id(span) for span in some}
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in (*(other for other in others if id(other) not in wanted), *some):
        lanes[span.lane].append(span)
    for lane in lanes.values():
        # Stable: of spans that begin and end together, those that were put first are around.
        lane.sort(key=lambda span: (span.start, -span.end))
        open_now: list[Span] = []
        for span in lane:
            # A module that an exception left may end after the node that it was entered in.
            open_now = [other for other in open_now if other.end > span.start]
            if id(span) in wanted:
                yield span, tuple(open_now)
            open_now.append(span)
            if len(open_now) > most:
                raise UserError(f"more than {most} operators are open at once: it is damaged")


@dataclass(frozen=True)
class _Makers:
    """The modules of the forward operators that made the autograd nodes, by sequence number.

    Each thread counts anew, so those that recomputation made are kept by thread: its nodes run on
    the thread that made them. `named`: the trace has names of modules.
    """

    named: bool
    forward: dict[int, str] = field(default_factory=dict[int, str])
    again: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    def module(self, node: Span, nested: bool) -> str:
        """The module whose backward work this node is; `nested` inside another node."""
        number = node.args.get(SEQUENCE)
        number = number if isinstance(number, int) else NO_SEQUENCE
        first = self.forward.get(number, "")
        return self.again.get((node.lane, number), first) if nested else first


def _makers(recording: Recording) -> _Makers:
    found = _Makers(any(note.name.startswith(MODULE) for note in recording.notes))
    for op, around in _around(recording.ops, recording):
        if not _makes_node(op):
            continue
        nodes = _nodes(around)
        if not nodes:
            found.forward[op.args[SEQUENCE]] = _module(around)
        elif _recomputed((*around[nodes[-1] :], op), found.named):
            found.again[op.lane, op.args[SEQUENCE]] = _module(around)
    return found


def _nodes(around: Sequence[Span]) -> list[int]:
    """The places of the autograd nodes among these, the innermost last."""
    return [place for place, span in enumerate(around) if span.name.startswith(NODE)]


def _makes_node(op: Span) -> bool:
    """Whether it is a forward operator with a sequence number."""
    number = op.args.get(SEQUENCE, NO_SEQUENCE)
    if not isinstance(number, int) or number < 0 or op.args.get(MADE_BY):
        return False
    return not op.name.startswith(NODE) and not _BACKWARD.search(op.name)


_BACKWARD = re.compile(r"Backward\d*$")


def _recomputed(inside: Sequence[Span], named: bool) -> bool:
    """Whether it is forward work done again: `inside` is a node and what is open in it."""
    node, *spans = inside
    if _in_module(spans):
        return True
    if named and "Checkpoint" not in node.name:
        return False  # a node of a node: gradients of gradients make nodes too
    return any(_makes_node(span) for span in spans)


def _caller(around: Sequence[Span], makers: _Makers) -> Caller:
    ops = tuple(span for span in around if not span.name.startswith(NOTES))
    if nodes := _nodes(around):
        if _recomputed(around[nodes[-1] :], makers.named):
            module = _module(around[nodes[-1] :]) or makers.module(around[nodes[-1]], True)
            return Caller(ops, module, RECOMPUTED)
        return Caller(ops, makers.module(around[nodes[-1]], len(nodes) > 1), BACKWARD)
    if any(span.name.startswith("Optimizer.") for span in around):
        return Caller(ops, "", OPTIMIZER)
    module = _module(around)
    forward = _in_module(around) or any(is_compiled_code(op) for op in ops)
    return Caller(ops, module, FORWARD if forward else ELSEWHERE)


def _module(around: Sequence[Span]) -> str:
    names = [span.name for span in around if span.name.startswith(MODULE)]
    return names[-1].removeprefix(MODULE) if names else ""


def _in_module(around: Sequence[Span]) -> bool:
    return any(span.name.startswith(MODULE) for span in around)
