"""What launched each piece of work: the operators around it, the module, and the part of the step.

A launch is joined to its work by the profiler's correlation number, and lies inside the spans of
its own CPU thread. A backward operator belongs to the module of the forward operator that made its
autograd node: both have one sequence number. Operators that make no node carry the number of the
next one, so the maker is the last forward operator with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from e2e.profile.reader import Recording, Span

MODULE = "halfway::"  # halfway_watch's names of modules
STEP, LOADING = "ProfilerStep#", "enumerate(DataLoader)"
NODE = "autograd::engine::evaluate_function: "
FORWARD, BACKWARD, OPTIMIZER, ELSEWHERE = PHASES = ("forward", "backward", "optimizer", "elsewhere")
SEQUENCE = "Sequence number"
NO_SEQUENCE = -1


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
    """Each operator with its caller, itself the innermost of its `ops`: the work of a CPU."""
    makers = _makers(recording)
    for op, around in _around(recording.ops, recording):
        yield op, _caller((*around, op), makers)


def _around(some: Sequence[Span], recording: Recording) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Each of these spans with the operators and notes that are open around it on its thread."""
    wanted = {id(span) for span in some}
    lanes: dict[str, list[Span]] = defaultdict(list)
    others = [span for span in recording.ops if id(span) not in wanted]
    for span in (*recording.notes, *others, *some):
        lanes[span.lane].append(span)
    for lane in lanes.values():
        # Stable: of spans that begin and end together, those that were put first are around.
        lane.sort(key=lambda span: (span.start, -span.end))
        open_now: list[Span] = []
        for span in lane:
            open_now = [other for other in open_now if other.end >= span.end]
            if id(span) in wanted:
                yield span, tuple(open_now)
            open_now.append(span)


def _makers(recording: Recording) -> Mapping[int, str]:
    """Sequence number -> module of the forward operator that made the autograd node."""
    found: dict[int, str] = {}
    for op, around in _around(recording.ops, recording):
        number = op.args.get(SEQUENCE, NO_SEQUENCE)
        backward = op.name.startswith(NODE) or any(o.name.startswith(NODE) for o in around)
        if isinstance(number, int) and number >= 0 and not backward:
            found[number] = _module(around)
    return found


def _caller(around: Sequence[Span], makers: Mapping[int, str]) -> Caller:
    ops = tuple(span for span in around if not _is_note(span))
    node = next((span for span in ops if span.name.startswith(NODE)), None)
    if node is not None:
        return Caller(ops, makers.get(node.args.get(SEQUENCE, NO_SEQUENCE), ""), BACKWARD)
    if any(span.name.startswith("Optimizer.") for span in around):
        return Caller(ops, "", OPTIMIZER)
    module = _module(around)
    return Caller(ops, module, FORWARD if _in_module(around) else ELSEWHERE)


def _is_note(span: Span) -> bool:
    return span.name.startswith((MODULE, "Optimizer.", STEP, LOADING))


def _module(around: Sequence[Span]) -> str:
    names = [span.name for span in around if span.name.startswith(MODULE)]
    return names[-1].removeprefix(MODULE) if names else ""


def _in_module(around: Sequence[Span]) -> bool:
    return any(span.name.startswith(MODULE) for span in around)
