"""Traces of torch.compile, recorded on a CPU, and of a GPU's fused kernels and CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from samples.traces import MAIN, US, Made
from torch import nn

from e2e.profile import halfway_watch
from e2e.profile.compiled import is_compiling
from e2e.profile.diagnosis import diagnose
from e2e.profile.finding import Finding
from e2e.profile.findings import findings
from e2e.profile.partition import Partition, partition
from e2e.profile.products import products
from e2e.profile.reader import read_trace
from e2e.results.terms import (
    BETWEEN,
    COMPILATION,
    CONVOLUTIONS,
    FUSED_ELEMENTWISE,
    FUSED_KERNELS,
    FUSED_REDUCTIONS,
    LAUNCH,
    MATRIX_PRODUCTS,
    OTHER,
    TERMS,
)

RECORDED = Path(__file__).parents[1] / "samples" / "traces_compiled"
MS = 1_000_000
REGION = "Torch-Compiled Region: 0/0"
GRAPH = "## Call CompiledFxGraph fabc ##"
POINTWISE, REDUCTION = "triton_poi_fused_add_relu_3", "triton_per_fused_native_layer_norm_1"


def divided(made: Made, folder: Path) -> Partition:
    found = partition(read_trace(made.write(folder / "t.json")))
    assert sum(found.terms.values()) == found.end - found.start
    return found


def launched(made: Made, kernel: str, start: int, end: int, at: int) -> None:
    """A kernel that inductor's code launches by the driver, without an operator of its own."""
    made.kernel(kernel, start, end, at)
    made.events[-2].update(cat="cuda_driver", name="cuLaunchKernel")


def compiled_step() -> Made:
    """A step to 10 ms, and one to 20 ms of compiled code: a product and two fused kernels."""
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.op("TorchDynamo Cache Lookup", 9 * MS, 9 * MS + 100 * US)
    made.op(REGION, 10 * MS, 14 * MS)
    made.op("CompiledFunction", 10 * MS + US, 13 * MS)
    made.note(GRAPH, 10 * MS + 2 * US, 13 * MS - US)
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::Half"] * 2}
    made.op("aten::mm", 11 * MS, 11 * MS + 50 * US, **shapes)
    made.kernel("nvjet_hsh_128x128", 12 * MS, 15 * MS, 11 * MS + 10 * US)
    launched(made, POINTWISE, 15 * MS, 17 * MS, 11 * MS + 100 * US)
    launched(made, REDUCTION, 17 * MS, 20 * MS, 11 * MS + 200 * US)
    return made


def test_compiled_code_has_its_products_and_says_what_it_fused(tmp_path: Path) -> None:
    made = compiled_step()
    found = divided(made, tmp_path)
    assert found.terms == {
        MATRIX_PRODUCTS: 3 * MS, FUSED_REDUCTIONS: 3 * MS, FUSED_ELEMENTWISE: 2 * MS,
        LAUNCH: 2 * MS,
    }  # fmt: skip
    assert found.by_place(FUSED_REDUCTIONS) == [("native_layer_norm", 3 * MS)]
    assert found.by_place(FUSED_ELEMENTWISE) == [("add_relu", 2 * MS)]
    (product,) = products(read_trace(tmp_path / "t.json"), found, "NVIDIA H200")
    assert (product.operator, product.phase, product.ns) == ("mm", "forward", 3 * MS)


@pytest.mark.parametrize(
    ("kernel", "term"),
    [
        ("triton_red_fused_mean_2", FUSED_REDUCTIONS),
        ("triton_poi_fused__to_copy_0", TERMS["cast"]),
        ("triton_poi_fused__to_copy_add_0", FUSED_ELEMENTWISE),
        ("triton_poi_fused_convolution_transpose_1", FUSED_ELEMENTWISE),  # no layout change
        ("triton_tem_fused_addmm_relu_5", MATRIX_PRODUCTS),
        ("triton_tem_fused_convolution_5", CONVOLUTIONS),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_for_fused_9", FUSED_KERNELS),
        ("my_triton_kernel", OTHER),
    ],
)
def test_the_name_of_a_kernel_of_inductor_s_is_its_term(
    kernel: str, term: str, tmp_path: Path
) -> None:
    made = compiled_step()
    made.events[-1]["name"] = kernel
    assert [p.term for p in divided(made, tmp_path).pieces if p.name == kernel] == [term]


def graph_step(names: list[str], times: list[tuple[int, int]]) -> Made:
    """A step to 10 ms, and one that replays a graph, launched at 11 ms."""
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.span("cuda_runtime", "cudaGraphLaunch", 11 * MS, 11 * MS + 50 * US, correlation=77)
    for node, (name, (start, end)) in enumerate(zip(names, times, strict=True)):
        made.span(
            "kernel", name, start, end, 7, correlation=77, stream=7, device=0,
            **{"graph id": 3, "graph node id": node},
        )  # fmt: skip
    return made


def test_kernels_of_a_graph_are_told_by_their_names(tmp_path: Path) -> None:
    names = [
        "nvjet_hsh_64x64", "sm90_xmma_fprop_implicit_gemm_f16f16", POINTWISE,
        "void at::native::vectorized_elementwise_kernel<4, add>", "mystery",
    ]  # fmt: skip
    times = [(start * MS, (start + 1) * MS - 5 * US) for start in range(12, 17)]
    found = divided(graph_step(names, times), tmp_path)
    each = MS - 5 * US
    assert found.terms == {
        LAUNCH: 2 * MS, MATRIX_PRODUCTS: each, CONVOLUTIONS: each, FUSED_ELEMENTWISE: each,
        TERMS["elementwise"]: each, OTHER: each, BETWEEN: 4 * 5 * US,
    }  # fmt: skip


def test_a_graph_of_which_no_kernel_was_seen_is_lost(tmp_path: Path) -> None:
    made = graph_step([], [])
    with pytest.raises(Exception, match="lost 1 of 2 kernels"):
        divided(made, tmp_path)


# ---------------------------------------------------------------- what it costs


def caused(made: Made, folder: Path, word: str) -> list[Finding]:
    recording = read_trace(made.write(folder / "t.json"))
    return [f for f in findings(recording, partition(recording)) if word in f.title]


def test_compilation_inside_a_step_is_neither_launch_nor_synchronisation(tmp_path: Path) -> None:
    made = compiled_step()
    made.op("dynamo", 10 * MS - 500 * US, 10 * MS + 900 * US)
    made.op("_compile.compile_inner (dynamo_timed)", 10 * MS - 400 * US, 10 * MS + 800 * US)
    made.span("cuda_runtime", "cudaDeviceSynchronize", 10 * MS, 10 * MS + 500 * US, MAIN)
    made.events = [e for e in made.events if e["name"] not in (REGION, "CompiledFunction", GRAPH)]
    terms = divided(made, tmp_path).terms
    assert terms[COMPILATION] == 900 * US
    assert terms[LAUNCH] == 2 * MS - 900 * US
    (finding,) = caused(made, tmp_path, "compilation")
    assert finding.where == "1 in all"


@pytest.mark.parametrize("regions", [1, 20])
def test_many_small_regions_are_a_cause_and_one_is_not(regions: int, tmp_path: Path) -> None:
    made = Made()
    made.steps(9 * MS, 20 * MS)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    each = 8 * MS // regions
    for start in range(10 * MS, 10 * MS + regions * each, each):
        made.op("TorchDynamo Cache Lookup", start, start + each // 4)
        made.op(REGION, start + each // 4, start + each)
        launched(made, POINTWISE, start + each // 2 + 2 * US, start + each, start + each // 2)
    found = caused(made, tmp_path, "compiled regions")
    assert len(found) == (regions > 1)
    if found:
        assert "20 a step" in found[0].where
        assert found[0].ms == pytest.approx(4, abs=0.1)


# ---------------------------------------------------------------- recorded


@pytest.mark.parametrize("name", ["steady", "broken"])
def test_a_cpu_s_compiled_code_has_products_by_layer_and_loops_of_its_own(name: str) -> None:
    path = RECORDED / f"{name}.json.gz"
    found, (run,) = partition(read_trace(path)), diagnose([path]).runs
    assert found.on_cpu
    assert sum(found.terms.values()) == found.end - found.start
    assert COMPILATION not in found.terms
    phases = {piece.caller.phase for piece in found.pieces if piece.term == FUSED_KERNELS}
    assert phases == {"forward", "backward"}
    products = {(p.operator, p.phase) for p in run.products if p.flops}
    assert {("addmm", "forward"), ("mm", "backward")} <= products
    assert all(found.title != "compilation inside the steps" for found in run.findings)


def test_the_same_products_match_with_and_without_graph_breaks() -> None:
    found = diagnose([RECORDED / "steady.json.gz", RECORDED / "broken.json.gz"])
    assert found.aligned is not None
    assert found.aligned.alike > 0.5


def test_a_recompilation_is_the_first_cause() -> None:
    (run,) = diagnose([RECORDED / "recompiled.json.gz"]).runs
    assert run.findings[0].title == "compilation inside the steps"
    assert run.ms(COMPILATION) > 0.5 * run.step_ms
    # Tensors that dynamo only traces with are no work of the step.
    assert run.ms(MATRIX_PRODUCTS) < 0.1 * run.step_ms


class Net(nn.Sequential):
    """Of parts that are compiled each by itself, as a loop with a graph break is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self:
            x = part(x)
            torch._dynamo.graph_break()
        return x


class Part(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_the_recorder_s_hooks_are_not_compiled_in_the_steps(tmp_path: Path) -> None:
    net = Net(*(Part(8, 8) for _ in range(10)))
    compiled, out = torch.compile(net, backend="eager"), tmp_path / "t.json"
    with halfway_watch.watch(out=str(out), after=2, bare=2, traced=2) as watch:
        for _ in range(7):
            compiled(torch.randn(4, 8)).sum().backward()
            watch.step()
    recording = read_trace(out)
    assert any(op.name.startswith("Torch-Compiled Region") for op in recording.ops)
    assert not any(is_compiling(op) for op in recording.ops)
    assert COMPILATION not in partition(recording).terms
