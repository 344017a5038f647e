"""What in a divided step costs time: causes with milliseconds, where they are, and what to try.

A trace alone proves no gain. So each finding says what was seen and what it can cost at most; a fix
has to be measured. proofs.py says what was gained where that was tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from e2e.profile.calls import OPTIMIZER
from e2e.profile.compiled import COMPILE, GUARDS, REGION, is_compiled_code
from e2e.profile.finding import (
    LEAST_SHARE,
    LIKELY,
    POSSIBLE,
    Finding,
    Seen,
    cpu_ns_of,
    finding_of,
    largest_of,
    layer_of,
    module_of,
    pieces_of,
    places_of,
    ranked,
)
from e2e.profile.idle import searches, sync_lines
from e2e.profile.operands import ALIGNED, HALF, SINGLE, misaligned, types_of
from e2e.profile.partition import Partition, Piece, is_product
from e2e.profile.product_work import Work, floor_of, norm_time, precision_of, work_of
from e2e.profile.products import product_operator
from e2e.profile.reader import Recording, Span, launches_work
from e2e.results.terms import (
    ALLOCATION,
    COMMUNICATION,
    COMPILATION,
    COPIES,
    EXPOSED,
    IDLE,
    LAUNCH,
    LAYOUT,
    LOADER,
    MODULES,
    RECOMPUTATION,
    SYNC,
    TERMS,
)
from kernels.gpus import find_card
from microbench.device.profiler import is_communication
from microbench.roofline.rates import Rates

MANY_REGIONS = 8  # calls of compiled code in a step
MANY_UPDATES = 20  # kernels of an optimizer in a step
SMALL_NS = 10_000  # a kernel this short does little
SLOW_NORM = 0.5  # of a card's bandwidth: below it normalisation is slow
# What it reaches in good kernels: 3.2 of 4.8 TB/s in results/nvidia-h200/ledger-resnet50.json.
GOOD_NORM = 0.65
MOST_SHAPES = 2


def findings(
    recording: Recording,
    parts: Partition,
    device: str = "",
    rates: Rates | None = None,
    rules: Sequence[Rule] | None = None,
) -> tuple[Finding, ...]:
    """Every cause that costs at least LEAST_SHARE of a step, the costliest first.

    `device` is the name of the card by whose datasheet rates are judged, `rates` those measured.
    `rules` are all unless they are named.
    """
    seen = Seen(recording, parts, find_card(device), rates)
    found = [finding for rule in (RULES if rules is None else rules) for finding in rule(seen)]
    least_ms = LEAST_SHARE * 1e3 * (recording.bare_step_s or parts.step_ns / 1e9)
    large = [f for f in found if f.share >= LEAST_SHARE and f.most_ms >= least_ms]
    return ranked(large)


def not_the_cause(parts: Partition) -> tuple[tuple[str, float], ...]:
    """(what users suspect, its share of a step) for what takes less than LEAST_SHARE.

    A recording of a CPU alone acquits only what it can show.
    """
    whole = parts.end - parts.start
    suspects = (LOADER, SYNC, ALLOCATION, COPIES, TERMS["cast"], LAYOUT, COMMUNICATION)
    if parts.on_cpu:
        suspects = (LOADER, TERMS["cast"])
    shares = [(name, parts.terms.get(name, 0) / whole) for name in suspects]
    return tuple((name, share) for name, share in shares if share < LEAST_SHARE)


def _floor_ns(seen: Seen, pieces: Iterable[Piece]) -> float:
    """The least time of these products in half precision by the datasheet; 0 where unknown."""
    found = [op for piece in pieces if (op := product_operator(piece.caller)) is not None]
    return sum(1e9 * _half_floor_s(seen, op) for op in {id(op): op for op in found}.values())


def _half_floor_s(seen: Seen, op: Span) -> float:
    work = work_of(op)
    if work.dtype == "float32":
        work = Work(work.flops, (work.bytes or 0) // 2, "bfloat16")
    floor = floor_of(work, precision_of(work.dtype, None), seen.card, seen.rates)
    return floor.seconds if floor else 0.0


# ---------------------------------------------------------------- rules


IN_STEPS, LATER = "inside the steps", "record later steps: --after"
# Terms that are causes by themselves: title, where, remedy.
PLAIN = {
    ALLOCATION: (
        "memory allocation", "cudaMalloc or cudaFree inside the steps",
        "PYTORCH_ALLOC_CONF=expandable_segments:True, or inputs of fewer shapes",
    ),
    MODULES: ("loading of kernels", IN_STEPS, LATER),
    RECOMPUTATION: (
        "recomputation of activations", "checkpointing, in the backward pass",
        "checkpoint fewer blocks, as far as memory allows, or only what is cheap to repeat",
    ),
}  # fmt: skip


OWN_LOADER = "_SingleProcessDataLoaderIter"  # in the name of a load without worker processes


def _plain(seen: Seen) -> Iterator[Finding]:
    for term, (title, where, remedy) in PLAIN.items():
        yield from finding_of(seen, title, seen.parts.terms.get(term, 0), where, remedy)


def _loader(seen: Seen) -> Iterator[Finding]:
    where, remedy = (
        "the next batch is not ready when the step needs it",
        "more loader workers, pin_memory, or less work for each sample",
    )
    if any(OWN_LOADER in note.name for note in seen.inside(seen.recording.notes)):
        where, remedy = (
            "num_workers=0: the training process makes each batch itself, and then trains on it",
            "num_workers=4 or more in the DataLoader, or less work for each sample",
        )
    ns = seen.parts.terms.get(LOADER, 0)
    yield from finding_of(
        seen, "data loading", ns, where, remedy, "loader", idle=not seen.parts.on_cpu
    )


def _launch(seen: Seen) -> Iterator[Finding]:
    """The GPU's waits for launches, but for those that an optimizer of many kernels causes."""
    if seen.parts.on_cpu:
        return
    optimizer = _updates(seen)
    waits = [p for p in pieces_of(seen, LAUNCH) if not optimizer or p.caller.phase != OPTIMIZER]
    ns = sum(piece.ns for piece in waits)
    launches = sum(launches_work(span.name) for span in seen.inside(seen.recording.launches))
    short = sum(work.ns < SMALL_NS for work in seen.inside(seen.recording.work))
    where = (
        f"{launches / seen.parts.steps:,.0f} launches a step, "
        f"{short / seen.parts.steps:,.0f} of them of kernels under 10 us"
    )
    yield from finding_of(
        seen, "CPU launch: the GPU waits for the CPU", ns, where,
        "a larger batch, torch.compile, a CUDA graph, or a fused optimizer", "launch",
        LIKELY if "bare_s" in seen.recording.facts else POSSIBLE,  # the profiler slows the CPU
        cpu_ns=ns, idle=True,
    )  # fmt: skip


def _sync(seen: Seen) -> Iterator[Finding]:
    pieces = pieces_of(seen, SYNC)
    calls = [
        span for span in seen.inside(seen.recording.ops)
        if span.name in ("aten::item", "aten::nonzero")
    ]  # fmt: skip
    names = Counter(span.name.removeprefix("aten::") for span in calls)
    counted = ", ".join(f"{n / seen.parts.steps:.3g} {name} a step" for name, n in names.items())
    lines = sync_lines(seen.recording, pieces)
    places = largest_of(seen, lines) if lines else places_of(seen, pieces, module_of)
    yield from finding_of(
        seen, "synchronisation: the CPU waits for the GPU, then has to launch anew",
        pieces, "; ".join(text for text in (counted, places) if text),
        "read losses and metrics every 50th step; keep conditions on the device", "sync",
        cpu_ns=cpu_ns_of(pieces), idle=True,
    )  # fmt: skip


def _casts(seen: Seen) -> Iterator[Finding]:
    pieces = pieces_of(seen, TERMS["cast"])
    count = len({(p.caller.ops[-1].start if p.caller.ops else p.start) for p in pieces})
    yield from finding_of(
        seen, "casts between types", pieces,
        f"{count / seen.parts.steps:,.0f} a step; {places_of(seen, pieces, module_of)}",
        "one autocast around the whole forward, so that weights are cast once; or BF16 weights",
        "casts",
    )  # fmt: skip


def _layout(seen: Seen) -> Iterator[Finding]:
    pieces = pieces_of(seen, LAYOUT)
    yield from finding_of(
        seen, "layout changes between NCHW and NHWC", pieces, places_of(seen, pieces, module_of),
        "model and input in memory_format=torch.channels_last", "layout",
    )  # fmt: skip


def _updates(seen: Seen) -> list[Piece]:
    """All of an optimizer that updates one tensor at a time: its work, and the waits for it."""
    pieces = [piece for piece in seen.parts.pieces if piece.caller.phase == OPTIMIZER]
    names = {op.name for piece in pieces for op in piece.caller.ops}
    count = sum(piece.term == TERMS["optimizer"] for piece in pieces) / seen.parts.steps
    together = any("_foreach_" in name or "_fused_" in name for name in names)
    return pieces if count >= MANY_UPDATES and not together else []


def _optimizer(seen: Seen) -> Iterator[Finding]:
    pieces = _updates(seen)
    count = sum(piece.term == TERMS["optimizer"] for piece in pieces) / seen.parts.steps
    idle = sum(piece.ns for piece in pieces if piece.term in IDLE)
    yield from finding_of(
        seen, "an optimizer that updates one tensor at a time", pieces,
        f"{count:,.0f} kernels a step, and {seen.ms(idle):.3g} ms of waits for them",
        "fused=True, or foreach=True, in the optimizer", "optimizer", cpu_ns=cpu_ns_of(pieces),
    )  # fmt: skip


def _norms(seen: Seen) -> Iterator[Finding]:
    """Normalisation in half precision far below the bandwidth of the card's memory."""
    found = norm_time(seen.parts.pieces)
    if seen.card is None or not found.ns:
        return
    limit = seen.card.byte_per_s
    if found.byte_per_s < SLOW_NORM * limit:
        kind = "BF16" if any("bfloat16" in name.lower() for name in found.types) else "FP16"
        tried = "FP16, for which cuDNN has kernels; or " if kind == "BF16" else ""
        yield from finding_of(
            seen, f"normalisation in {kind}, far below the memory's bandwidth", found.ns,
            f"{found.byte_per_s / 1e12:.2f} of {limit / 1e12:.3g} TB/s",
            f"{tried}a compiled or fused normalisation; then measure",
            "bf16" if kind == "BF16" else "",
            left_ns=min(found.ns, 1e9 * found.bytes / (GOOD_NORM * limit)),
        )  # fmt: skip


def _searches(seen: Seen) -> Iterator[Finding]:
    found = searches(seen.recording, seen.parts)
    more = ", …" if len(found.shapes) > MOST_SHAPES else ""
    yield from finding_of(
        seen, "cuDNN's search for kernels at new shapes", found.ns,
        f"{found.count / seen.parts.steps:.3g} convolutions a step, at "
        f"{', '.join(found.shapes[:MOST_SHAPES])}{more}",
        "inputs of a few sizes (buckets), or torch.backends.cudnn.benchmark = False", "benchmark",
    )  # fmt: skip


def _islands(seen: Seen) -> Iterator[Finding]:
    """Products in float32 while others run in half precision."""
    products = [piece for piece in seen.parts.pieces if is_product(piece)]
    half = sum(piece.ns for piece in products if types_of(piece.caller.ops) & HALF)
    single = [
        piece for piece in products
        if types_of(piece.caller.ops) & SINGLE and not types_of(piece.caller.ops) & HALF
    ]  # fmt: skip
    if half:
        yield from finding_of(
            seen, "GEMMs and convolutions that stayed in float32", single,
            places_of(seen, single, layer_of),
            "let autocast reach them, unless they need the precision", "islands", POSSIBLE,
            left_ns=_floor_ns(seen, single),
        )  # fmt: skip
    elif seen.recording.facts.get("allow_tf32") is False:
        yield from finding_of(
            seen, "GEMMs and convolutions in IEEE float32", single,
            places_of(seen, single, layer_of),
            "torch.set_float32_matmul_precision('high') allows TF32; autocast goes further", "tf32",
        )  # fmt: skip


def _misaligned(seen: Seen) -> Iterator[Finding]:
    if seen.parts.on_cpu:  # it has no Tensor Cores
        return
    pieces = [
        piece for piece in seen.parts.pieces
        if is_product(piece) and types_of(piece.caller.ops) & HALF and misaligned(piece.caller.ops)
    ]  # fmt: skip
    yield from finding_of(
        seen, f"sizes that are no multiple of {ALIGNED}", pieces,
        places_of(seen, pieces, lambda p: f"{layer_of(p)} {misaligned(p.caller.ops)}"),
        f"pad channels, features and the vocabulary to multiples of {ALIGNED}; then measure",
        "misaligned", POSSIBLE, left_ns=_floor_ns(seen, pieces),
    )  # fmt: skip


def _copies(seen: Seen) -> Iterator[Finding]:
    pieces = pieces_of(seen, COPIES)
    pageable = any("Pageable" in piece.name for piece in pieces)
    yield from finding_of(
        seen, "copies to and from the device that nothing hides",
        pieces, "from pageable memory" if pageable else "",
        "pin_memory=True and non_blocking=True" if pageable else "copy the next batch meanwhile",
    )  # fmt: skip


def _communication(seen: Seen) -> Iterator[Finding]:
    exposed = sum(piece.ns for piece in pieces_of(seen, COMMUNICATION))
    ran = [work for work in seen.inside(seen.recording.work) if is_communication(work.name)]
    whole = max(exposed, sum(work.ns for work in ran))
    types = dict.fromkeys(str(work.args["dtype"]) for work in ran if work.args.get("dtype"))
    where = f"between GPUs; {seen.ms(whole):.3g} ms in all, the rest is behind other work"
    where += f"; in {', '.join(types)}" if types else ""
    yield from finding_of(
        seen, EXPOSED, exposed, where,
        "larger buckets, a compressed gradient, or more work for each exchange",
    )  # fmt: skip


def _compilation(seen: Seen) -> Iterator[Finding]:
    frames = (op for op in seen.recording.ops if op.name.startswith(COMPILE))
    count = sum(op.end > seen.parts.start and op.start < seen.parts.end for op in frames)
    yield from finding_of(
        seen, "compilation inside the steps", pieces_of(seen, COMPILATION),
        f"{count} in all" if count else "",
        "record later steps (--after); if it stays, sizes change from step to step: pad them, or "
        "torch.compile(dynamic=True)",
    )  # fmt: skip


def _regions(seen: Seen) -> Iterator[Finding]:
    """Compiled code in many small parts: entering them is what takes the time."""
    ops = list(seen.inside(seen.recording.ops))
    regions = sum(op.name.startswith(REGION) for op in ops) / seen.parts.steps
    guards = sum(op.ns for op in ops if op.name == GUARDS)
    waits = [
        piece for piece in seen.parts.pieces
        if piece.term == LAUNCH and any(is_compiled_code(op) for op in piece.caller.ops)
    ]  # fmt: skip
    if regions >= MANY_REGIONS:
        yield from finding_of(
            seen, "many small compiled regions: the GPU waits until each is entered",
            sum(piece.ns for piece in waits) or guards,
            f"{regions:,.0f} a step, a graph break or uncompiled code between each and the next; "
            f"their guards take {seen.ms(guards):.3g} ms of the CPU's time",
            "TORCH_LOGS=graph_breaks names the breaks; compile the whole model, not its parts",
        )  # fmt: skip


Rule = Callable[[Seen], Iterator[Finding]]
RULES: Sequence[Rule] = (
    _plain, _loader, _launch, _sync, _casts, _layout, _optimizer, _norms, _searches, _islands,
    _misaligned, _copies, _communication, _compilation, _regions,
)  # fmt: skip


def rules_of_training(channels_last: bool) -> Sequence[Rule]:
    """Those for a training of ours: the others follow from two steps (`e2e.explain.causes`).

    A remedy that it has already, the layout, is not proposed.
    """
    layout = () if channels_last else (_layout,)
    return (
        _plain, _sync, _casts, *layout, _optimizer, _norms, _searches, _copies, _communication,
        _compilation, _regions,
    )  # fmt: skip
