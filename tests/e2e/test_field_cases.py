"""What other people's traces and scripts asked of a diagnosis: the right value of each kind.

Traces are played by hand, so every time in them is known. Scripts run on the CPU.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples.commands import ROOT, run_here
from samples.recording import STEPS, User
from samples.traces import (
    A100,
    BACKWARD,
    BF16,
    FLOAT,
    H200,
    MS,
    SQUARE,
    US,
    V100,
    Made,
    Tape,
    recorded,
)

from e2e.__main__ import main
from e2e.profile.diagnosis import diagnose

LOADER, LAUNCH, SYNC, BETWEEN = "loader wait", "CPU launch", "synchronisation", "between kernels"
PRODUCTS, OPTIMIZER = "matrix products", "optimizer"
CONV, MM = "aten::cudnn_convolution", "aten::mm"
WAITS = ("loader", "own", "launch", "sync", "optimizer", "loops", "benchmark", "exchange", "late")
DATA, OWN = "load|data", r"\bown\b|script|python|outside of operators"
Step = Callable[[Tape], object]
approx = pytest.approx


def diagnosed(made: Made, folder: Path, name: str = "run.json") -> Any:
    """The diagnosis of a trace, which keeps to what is true of each."""
    run = diagnose([made.write(folder / name)]).runs[0]
    assert sum(term.ns for term in run.terms) == run.window_ns
    assert all(term.ns >= 0 for term in run.terms)
    if bare := made.header.get("halfway", {}).get("bare_s"):
        assert run.window_ns / run.steps == approx(1e9 * sum(bare) / len(bare), abs=1)
    waits = sum(one.ms for one in run.findings if one.cause in WAITS)
    assert waits <= 1.0001 * run.step_ms, "no wait is two causes'"
    for first in run.findings[:1]:
        assert run.bottleneck in first.title, "one bottleneck: the first cause"
    return run


@pytest.fixture
def see(tmp_path: Path) -> Callable[..., Any]:
    """The diagnosis of a step that is played."""
    return lambda step, **how: diagnosed(recorded(step, **how), tmp_path)


def ms(run: Any) -> Counter[str]:
    """Milliseconds a step of each term."""
    found: Counter[str] = Counter()
    for term in run.terms:
        found[term.term] += term.ns / run.steps / 1e6
    return found


def has(words: str, text: str) -> bool:
    return bool(re.search(words, text, re.IGNORECASE))


def about(finding: Any, words: str) -> bool:
    return has(words, f"{finding.cause} {finding.title}")


def fed(tape: Tape) -> None:
    """A batch that is ready, and 9 ms of work that the CPU queues at once, then waits for."""
    with tape.inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        tape.now += 50 * US
    for _ in range(9):
        tape.product(MS)
    tape.read()


# Of four steps one waits for four workers; the recorded steps found their batches ready.
BURSTS = [0.01, 0.01, 0.01, 0.37] * 5


def test_data_is_waited_for_as_the_bare_steps_did_and_nothing_shown_has_the_time(see: Any) -> None:
    """F2: 100 ms a step, the mean, of which `__next__` takes 90; less where the GPU works on."""
    run = see(fed, bare_s=BURSTS, loading_s=[1e-4, 1e-4, 1e-4, 0.3597] * 5)
    assert (ms(run)[LOADER], ms(run)[PRODUCTS]) == approx((90, 9), rel=0.02)
    assert about(run.findings[0], DATA)
    hidden = see(fed, bare_s=[0.0095] * 20, loading_s=[0.005] * 20)
    assert ms(hidden)[LOADER] <= 0.5 + 1e-6
    assert ms(hidden)[PRODUCTS] == approx(9, abs=1e-5)
    run = see(fed, bare_s=BURSTS)  # from a source that is no DataLoader: nobody timed it
    assert sum(ms(run)[term] for term in (LAUNCH, SYNC, LOADER, BETWEEN)) < 5
    assert max(ms(run).values()) == approx(90, rel=0.03), "a line of its own"
    assert LAUNCH not in run.bottleneck


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(("reads", "idle_ms"), [(True, 15), (False, 12)])
def test_a_gap_without_operators_or_calls_is_the_script_s_own_code(
    reads: bool, idle_ms: float, foreign: bool, see: Any
) -> None:
    """F3: 15 ms of Python, then 60 small kernels and 3 ms of work, which it may wait for."""

    def step(tape: Tape) -> None:
        tape.python(15 * MS, "feed.py:31")
        for _ in range(60):
            tape.work("aten::relu", 5 * US)
        tape.product(3 * MS)
        if reads:
            tape.read()

    run = see(step, foreign=foreign)
    (own,) = (term for term in run.terms if term.idle and term.ns > run.window_ns / 2)
    assert own.ns / run.steps / 1e6 == approx(idle_ms, rel=0.05)
    assert has(OWN, own.term)
    assert about(run.findings[0], f"{OWN}|data")
    assert foreign or "feed.py:31" in run.findings[0].where + own.where


@pytest.mark.parametrize(("gaps", "named"), [(2, False), (6, True)])
def test_own_code_of_a_cpu_is_what_comes_often_in_a_step(
    gaps: int, named: bool, tmp_path: Path
) -> None:
    """Field 2, an environment of reinforcement learning: 1 ms of Python between two calls."""
    made = on_a_cpu(lambda made, at: [
        made.op("aten::mm", at + (2 * n + 1) * MS, at + (2 * n + (2 if n < gaps else 3)) * MS)
        for n in range(gaps + 1)
    ], (2 * gaps + 3) * MS)  # fmt: skip
    run = diagnose([made.write(tmp_path / "a.json")]).runs[0]
    assert ([one.cause for one in run.findings] == ["own"]) == named


@pytest.mark.parametrize(
    ("product_ms", "update_us", "dtype", "cause", "bottleneck"),
    [
        (8, 50, FLOAT, "optimizer", "CPU"),
        (1, 200, FLOAT, "optimizer", "optimizer"),
        (8, 50, "double", "float64", "float64"),
    ],
)
def test_the_bottleneck_of_a_cpu_is_no_cause_that_takes_less_than_its_products(
    product_ms: int, update_us: int, dtype: str, cause: str, bottleneck: str, tmp_path: Path
) -> None:
    """Field 2: 80 % in GEMMs, and an optimizer with 8 % was the bottleneck; float64 had no name."""

    def step(made: Made, at: int) -> None:
        end = at + product_ms * MS
        made.op("aten::mm", at, end, **{"Input Dims": SQUARE, "Input type": [dtype] * 2})
        made.note("Optimizer.step#Adam.step", end, end + 30 * update_us * US)
        for n in range(30):
            made.op("aten::add_", end + n * update_us * US, end + (n + 1) * update_us * US)

    made = on_a_cpu(step, product_ms * MS + 30 * update_us * US)
    run = diagnose([made.write(tmp_path / "a.json")]).runs[0]
    assert (run.findings[0].cause, run.bottleneck) == (cause, bottleneck)


def on_a_cpu(step: Callable[[Made, int], object], step_ns: int) -> Made:
    """Three recorded steps without a device, as long as those that were timed."""
    made = Made(header={"halfway": {"lead_in": 1, "traced": 2, "bare_s": [step_ns / 1e9] * 20}})
    made.steps(*(step_ns * n for n in (1, 2, 3)))
    for number in range(3):
        step(made, step_ns * number)
    return made


@pytest.mark.parametrize("name", ["hipFree", "cudaFree", "hipHostMalloc", "cudaMallocAsync"])
def test_memory_is_allocated_and_freed_by_many_names(name: str, tmp_path: Path) -> None:
    """F6: the CPU is in that call for 60 ms, while the device has 2 ms to do."""

    def step(tape: Tape) -> None:
        with tape.operator("aten::convolution"):
            tape.work("aten::miopen_convolution", 2 * MS)
            tape.call(name, 60 * MS)
        for _ in range(8):
            tape.work("aten::relu", MS)
        tape.read()

    amd = name.startswith("hip")
    made = recorded(step, card="AMD Instinct MI300X" if amd else H200, foreign=True)
    for call in made.events:
        call["name"] = re.sub("^cuda", "hip" if amd else "cuda", call["name"])
    run = diagnosed(made, tmp_path)
    assert ms(run)["memory allocation"] == approx(58, rel=0.02)
    assert about(run.findings[0], "alloc|memory")
    assert any(has("rocm|amd", line) for line in run.missing) == amd, "untested, and marked so"


@pytest.mark.parametrize(
    ("played", "noted", "updates", "steps"),
    [(5, 0, True, (4, 5)), (1, 1, True, (1,)), (3, 4, True, (2, 3)), (5, 0, False, (1,))],
)
def test_a_trace_with_few_notes_of_steps_is_divided_all_the_same(
    played: int, noted: int, updates: bool, steps: tuple[int, ...], tmp_path: Path
) -> None:
    """F4: the optimizer's notes alone, one step, an empty last one, inference. GEMMs: 80 %."""
    tape = Tape(header={"record_shapes": 1})
    for number in range(played):
        begin = tape.now
        for _ in range(4):
            tape.product(2 * MS)
        tape.now = begin + 9 * MS
        if updates:
            with tape.inside("Optimizer.step#AdamW.step"):
                tape.work("aten::_foreach_add_", MS // 2)
        tape.now = begin + 10 * MS
        if number < noted:
            tape.note(f"ProfilerStep#{number}", begin, tape.now)
    if noted > played:
        tape.note(f"ProfilerStep#{played}", tape.now, tape.now + 3 * US)
    run, step_ms = diagnosed(tape, tmp_path), 10 if updates else 50
    assert run.steps in steps
    assert run.window_ns / run.steps / 1e6 == approx(step_ms, rel=0.08)
    assert ms(run)[PRODUCTS] / step_ms == approx(0.8, rel=0.08)
    assert updates or any("step" in line for line in run.missing), "said: it counts as one"


def training(tape: Tape, closure: bool) -> None:
    begin = tape.now
    with tape.inside("halfway::body"):
        tape.product(2 * MS, number=5)
        tape.work("aten::relu", MS, number=6)
    with tape.node("Relu", 6):
        tape.work("aten::threshold_backward", 2 * MS, tid=BACKWARD)
    with tape.node("Mm", 5):
        tape.product(2 * MS, tid=BACKWARD)
    tape.now += 10 * US
    update = tape.now
    for _ in range(4):
        tape.work("aten::add_", 50 * US)
    tape.note("Optimizer.step#SGD.step", begin if closure else update, tape.now)


@pytest.mark.parametrize("foreign", [False, True])
def test_forward_and_backward_in_the_optimizer_s_step_are_not_its(foreign: bool, see: Any) -> None:
    """F9: `optimizer.step(closure)` holds the same as a plain loop, and its note is longer."""
    closure = see(lambda tape: training(tape, closure=True), foreign=foreign)
    found = ms(closure)
    assert found == ms(see(lambda tape: training(tape, closure=False), foreign=foreign))
    assert (found[PRODUCTS], found["activation"], found[OPTIMIZER]) == approx((4, 3, 0.2), abs=1e-5)
    assert not any(about(finding, "optimizer") for finding in closure.findings)


HEADS, FLAT = [8, 12, 1024, 1024], [96, 1024, 1024]
QUERIES, KEYS = [96, 1024, 64], [96, 64, 1024]
LINEAR = {"dims": [[8192, 768], [768, 50304]], "kind": BF16}


def cast(tape: Tape, shape: list[int], to: str, of: str) -> None:
    with tape.operator("aten::_to_copy"):
        tape.work("aten::copy_", MS, dims=[shape, shape], kind=[to, of])


def transformer(tape: Tape) -> None:
    """26 ms, of which attention written out takes 12."""
    half = {"kind": BF16}
    with tape.inside("halfway::blocks.0.attention"):
        tape.product(3 * MS, number=1, **LINEAR)
        with tape.operator("aten::matmul"):
            tape.work("aten::bmm", MS / 2, dims=[QUERIES, KEYS], number=2, **half)
        tape.work("aten::mul", MS, dims=[HEADS, []], number=3, **half)
        tape.work("aten::add", MS, dims=[HEADS, [1024, 1024]], number=4, **half)
        with tape.operator("aten::softmax"):
            cast(tape, HEADS, FLOAT, BF16)
            tape.work("aten::_softmax", 2 * MS, dims=[HEADS], number=5)
        with tape.operator("aten::matmul"):
            cast(tape, HEADS, BF16, FLOAT)
            tape.work("aten::bmm", MS / 2, dims=[FLAT, QUERIES], number=6, **half)
    tape.product(3 * MS, number=7, **LINEAR)
    for node, number, name, ns, dims in (
        ("Mm", 7, "mm", 4 * MS, LINEAR["dims"]), ("Bmm", 6, "bmm", MS, [QUERIES, KEYS]),
        ("Softmax", 5, "_softmax_backward_data", 2 * MS, [HEADS, HEADS]),
        ("Mul", 3, "mul", MS, [HEADS, []]), ("Bmm", 2, "bmm", MS, [FLAT, QUERIES]),
        ("Mm", 1, "mm", 4 * MS, LINEAR["dims"]),
    ):  # fmt: skip
        with tape.node(node, number):
            tape.work(f"aten::{name}", ns, tid=BACKWARD, dims=dims, **half)


def encoder(tape: Tape) -> None:
    """The same by the operator that nn.TransformerEncoder calls in inference."""
    with tape.operator("aten::_native_multi_head_attention"):
        transformer(tape)


def casting(to: str, of: str) -> Step:
    """4 ms of casts in a layer: of its weights, or of what autocast leaves in float32."""

    def step(tape: Tape) -> None:
        with tape.inside("halfway::layer"):
            for _ in range(4):
                cast(tape, [4096, 768], to, of)
            tape.product(3 * MS, **LINEAR)

    return step


def graphed(tape: Tape) -> None:
    """A model in a CUDA graph: its inputs are float32, its kernels are not."""
    args = {"Input Dims": SQUARE, "Input type": [FLOAT, FLOAT]}
    for _ in range(10):
        with tape.operator("Graphed", **args):
            tape.now += 500 * US  # of which 400 us wait for the CPU
            at = max(tape.now, *tape.free.values(), 0) + 2 * US
            tape.kernel("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_NNT", at, at + 100 * US, tape.now)
            tape.events[-2]["name"], tape.free[7] = "cudaGraphLaunch", at + 100 * US


def attended(tape: Tape) -> None:
    """Attention in float32 in one kernel, of which no setting tells what it computes in."""
    heads = [[8, 16, 512, 64]] * 3
    for _ in range(5):
        name, kernel = "efficient_attention", "fmha_cutlassF_f32_aligned_64x64_rf_sm80"
        tape.work(f"aten::_scaled_dot_product_{name}", 2 * MS, dims=heads, kernel=kernel)


def convolved(channels: int, *size: int) -> Step:
    """A convolution, which changes the layout of a tensor with 64 channels for 4 ms."""
    dims = [[8, channels, *size], [64, channels, *([3] * len(size))]]
    kernels = ("nchwToNhwcKernel", "sm90_xmma_fprop", "nhwcToNchwKernel")

    def step(tape: Tape) -> None:
        with tape.operator(CONV, **{"Input Dims": dims, "Input type": [BF16, BF16]}):
            for kernel in kernels if channels == 64 else kernels[1:2]:
                begin = max(tape.now, *tape.free.values(), 0) + 5 * US
                tape.kernel(f"void {kernel}<bf16>", begin, begin + 2 * MS, tape.now)
                tape.now = begin + 2 * MS
        tape.work("aten::relu", MS)

    return step


def averaged(tape: Tape) -> None:
    """A training that keeps an average of 500 weights itself."""
    training(tape, closure=False)
    begin = tape.now
    for _ in range(500):
        tape.work("aten::mul_", 2 * US)
        tape.work("aten::add_", 2 * US)
    tape.lines += [(at, "ema.py:11") for at in range(begin, tape.now, 2 * MS)]


def float32(operator: str, kernel: str, rate: float) -> Step:
    """Five convolutions of 237 GFLOP each or products of 137, with so many FLOP a second."""
    args: dict[str, Any] = {"dims": SQUARE, "kind": FLOAT, "kernel": kernel}
    if operator == CONV:
        dims = [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7]
        args |= {"dims": dims, "kind": [FLOAT, FLOAT, *[""] * 7]}
        args["Input Strides"] = [[802816, 1, 14336, 256], [2304, 1, 768, 256], *[[]] * 7]
        args["Concrete Inputs"] = ["", "", *["[1, 1]"] * 3, "1", "False", "False", "True"]
    flop = 2 * (4096**3 if operator == MM else 64 * 256 * 256 * 9 * 56 * 56)
    return lambda tape: [tape.work(operator, 1e9 * flop / rate, **args) for _ in range(5)]


CONV_TF32 = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
TENSOROP = "cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4"
SIMT, VOLTA = "cutlass_80_simt_sgemm_256x128_8x4_nn_align1", "volta_sgemm_128x64_nn"
TF32, HIGH = "matmul_precision|allow.{1,3}tf32", {"allow_tf32": True, "matmul_precision": "high"}
FP16, NONE = r"\bfp16|\bfloat16|\bhalf", f"{TF32}|bf16|bfloat16"  # of a V100
LAST, EMA = r"channels_last(?!_3d)", r"(?s)(?=.*_foreach)(?=.*ema\.py:11)(?=.*\b1,?000 launches)"
AGAIN, ONE, NINE = "one autocast", {"autocasts": 1.0}, {"autocasts": 9.0}
CHANGES, V = {"layout changes": 4.0}, {"card": V100}
# Of each: facts; the first cause, what it says, its least share; what no remedy says; terms; type
CASES: dict[str, tuple[Step, dict[str, Any], str, str, float, str, dict[str, float], str]] = {
    # cuDNN's default allows TF32, whatever is said of matrix products
    "F5 conv": (float32(CONV, CONV_TF32, 250e12), {}, "", "", 0, TF32, {}, "tf32"),
    "F5 mm": (float32(MM, TENSOROP, 110e12), {"card": A100, **HIGH}, "", "", 0, TF32, {}, "tf32"),
    "F5 ieee": (float32(MM, SIMT, 45e12), {}, "float32|32", TF32, 0.9, "", {}, "fp32"),
    "F5 V100": (float32(MM, VOLTA, 12e12), V, "float32|fp32", FP16, 0.9, NONE, {}, "fp32"),
    "F5 V100 conv": (float32(CONV, "volta_scudnn_128x128_relu_interior_nn_v1", 12e12), V,
                     "float32|fp32", FP16, 0.9, NONE, {}, "fp32"),
    "F5 attention": (attended, HIGH, "float32", "^attention in float32", 0.9, TF32, {}, ""),
    "F13": (transformer, ONE, "attention", "scaled_dot_product_attention", 0.23, AGAIN, {}, ""),
    "F13 inference": (encoder, ONE, "", "", 0, "scaled_dot_product_attention", {}, ""),
    "F14": (averaged, {}, "", EMA, 0.3, "", {OPTIMIZER: 0.2}, ""),
    "F15 casts": (casting(BF16, FLOAT), NINE, "cast", AGAIN, 0.3, "", {"casts": 4}, ""),
    "F15 autocast": (casting(FLOAT, BF16), ONE, "", "", 0, AGAIN, {"casts": 4}, ""),
    "F15 graph": (graphed, ONE, "CPU launch", "10 launches a step", 0.7, "autocast|graph", {}, ""),
    "F15 image": (convolved(64, 56, 56), ONE, "layout", LAST, 0.3, "", CHANGES, ""),
    "F15 3-D": (convolved(64, 9, 56, 56), ONE, "layout", "", 0.3, LAST, CHANGES, ""),
    "F15 padding": (convolved(3, 224, 224), ONE, "", "", 0, r"\bpad\b", {}, ""),
}  # fmt: skip


CASES |= {f"{name}, foreign": (case[0], case[1] | {"foreign": True}, *case[2:])
          for name, case in CASES.items() if "F5" in name}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_cause_has_the_remedy_that_fits_it_and_no_other(name: str, see: Any) -> None:
    step, facts, cause, wanted, least, unwanted, terms, precision = CASES[name]
    run = see(step, **facts)
    assert {term: ms(run)[term] for term in terms} == approx(terms, abs=1e-5)
    assert {row.precision for row in run.products} == {precision} or not precision
    assert not has(unwanted or "no such word", " ".join(each.remedy for each in run.findings))
    if least:
        first = run.findings[0]
        assert about(first, cause)
        assert has(wanted, f"{first.title} {first.where} {first.remedy}")
        assert least <= first.share <= 1
    assert precision != "tf32" or not any(has("ieee", each.title) for each in run.findings)


def waits_and_updates(tape: Tape) -> None:
    """The CPU waits for 5 ms of work, then updates 100 tensors one by one while the GPU idles."""
    with tape.inside("halfway::body"):
        tape.product(5 * MS)
    tape.read()
    with tape.inside("Optimizer.step#SGD.step"):
        for _ in range(100):
            tape.work("aten::add_", 2 * US, 50 * US)


def test_launches_of_an_optimizer_are_no_wait_s_and_two_gpus_are_two_cards_of_work(
    see: Any, tmp_path: Path
) -> None:
    """Both would be done by then if the CPU had not waited; the closer cause has them."""
    run = see(waits_and_updates)
    optimizer = next(one for one in run.findings if one.cause == OPTIMIZER)
    assert optimizer.ms == approx(5, rel=0.05)
    assert sum(one.ms for one in run.findings if one.cause in WAITS) <= run.step_ms - 5

    # Each has a product of 2 ms, one of them 1 ms later: 4 ms of work in 3.
    def both(tape: Tape) -> None:
        tape.product(2 * MS)
        tape.product(2 * MS, stream=17, after=tape.free[7] - MS)
        tape.free[7] = tape.free[17]

    tape, alone = recorded(both), see(lambda tape: tape.product(2 * MS)).of_card
    for event in tape.events:
        event["args"] |= {"device": 1} if event["tid"] == 17 else {}
    run = diagnosed(tape, tmp_path)
    assert run.of_card == approx(alone * 4 / 3 / 2, rel=0.05)
    assert any("2 GPUs worked" in line for line in run.missing)


def waits_for_data(tape: Tape) -> None:
    """70 ms for the data, then 8 ms of launches, and 2 ms of work."""
    with tape.inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        tape.now += 70 * MS
    for _ in range(400):
        tape.work("aten::relu", 2 * US)
    tape.product(2 * MS)
    tape.read()


@pytest.mark.parametrize("resident", [True, False])
def test_a_gain_of_a_resident_batch_comes_after_the_data_s(resident: bool, tmp_path: Path) -> None:
    """F16, F17: with one batch again and again, data loading is gone from both kinds of blocks."""

    def tried(name: str, as_is: float, changed: float, resident: bool) -> dict[str, Any]:
        blocks = {"as_is_s": as_is, "changed_s": changed}
        times = {name: [[s * by] * 3 for by in (1, 1.01, 0.99) * 2] for name, s in blocks.items()}
        return {"name": name, "change": f"change of {name}", "resident": resident, **times}

    step_s = (0.0109, 0.0029) if resident else (0.0804, 0.0724)
    some = [tried("launch", *step_s, resident), tried("loader", 0.0804, 0.0104, False)]
    (tmp_path / "run.proofs.json").write_text(json.dumps({"steps": 9, "tried": some}))
    run = diagnosed(recorded(waits_for_data), tmp_path, "run.json.gz")
    assert (ms(run)[LOADER], ms(run)[LAUNCH]) == approx((70, 8), rel=0.1)
    assert about(run.findings[0], DATA)
    assert any(about(finding, "launch") for finding in run.findings[1:])
    screen = run_here(main, "e2e", "diagnose", tmp_path / "run.json.gz", "--verbose").stdout
    assert ("after that" in screen) == resident


START = """
import queue, threading, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
"""
IN_BACKWARD = """
def update(p):
    own[p].step(); own[p].zero_grad()
own = {p: torch.optim.Adam([p]) for p in model.parameters()}
for p in own: p.register_post_accumulate_grad_hook(update)
for _ in range(40): model(torch.ones(8, 64)).square().mean().backward()
print("the end")
"""
THREAD = """
def produce():
    while True: time.sleep(0.02); ready.put(torch.ones(8, 64))
ready = queue.Queue(2)
threading.Thread(target=produce, daemon=True).start()
for _ in range(60):
    batch = ready.get()
    loss(batch); optimizer.step()
"""
LINE = 1 + (START + THREAD).split("batch = ready.get()")[0].count("\n")


@pytest.mark.parametrize(
    ("script", "said", "cause", "step_ms"),
    [(IN_BACKWARD, "", "", 0), (THREAD, f"train.py:{LINE}", f"{OWN}|data", 10)],
    ids=["F1", "F3"],
)
def test_a_script_on_the_cpu_is_diagnosed(
    script: str, said: str, cause: str, step_ms: float, tmp_path: Path, quick_python: str
) -> None:
    (tmp_path / "train.py").write_text(START + script)
    words = ("-m", "e2e", "diagnose", *STEPS, "--json", "found.json", "train.py")
    done = User(tmp_path, quick_python).run(*words, PYTHONPATH=str(ROOT))
    assert "Traceback" not in done.stderr, done.stderr
    text = (tmp_path / "found.json").read_text()
    assert said in done.stdout + done.stderr + text
    for run in json.loads(text)["runs"]:
        share = {term["term"]: term["ns"] / run["window_ns"] for term in run["terms"]}
        assert sum(term["ns"] for term in run["terms"]) == run["window_ns"]
        assert run["window_ns"] / run["steps"] >= step_ms * MS
        assert has(cause, run["bottleneck"])
        assert share.get(OPTIMIZER, 0) < 0.3 or script == IN_BACKWARD
        for first in run["findings"][:1]:
            assert run["bottleneck"] in first["title"]
