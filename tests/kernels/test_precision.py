"""The table of precisions: what every entry must keep to."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels import OPS
from kernels.precision import ALIASES, PRECISIONS, Precision, precision

# CUDA C++ Programming Guide: since when Tensor Cores multiply it (fp64 and fp32 need none).
SINCE = {
    "fp64": (5, 0), "fp32": (5, 0), "fp16": (7, 0), "fp16-acc16": (7, 0), "int8": (7, 5),
    "tf32": (8, 0), "bf16": (8, 0), "fp8-e4m3": (8, 9), "fp8-e4m3-precise": (8, 9),
    "fp8-e5m2": (8, 9),
}  # fmt: skip


@pytest.mark.parametrize("kind", PRECISIONS.values(), ids=lambda p: p.name)
def test_each_entry_is_whole(kind: Precision) -> None:
    assert PRECISIONS[kind.name] is precision(kind.name) is kind
    for which in ("storage", "storage_b", "accumulate", "output"):
        assert isinstance(kind.torch_dtype(which), torch.dtype)
    assert kind.bytes_per_element == kind.torch_dtype().itemsize
    assert kind.output_bytes == kind.torch_dtype("output").itemsize
    assert kind.accumulator_bytes == kind.torch_dtype("accumulate").itemsize
    assert kind.is_float8 == (kind.bytes_per_element == 1 and kind.torch_dtype().is_floating_point)
    assert kind.rate_name == ("fp8" if kind.is_float8 else kind.name)
    output = kind.torch_dtype("output")
    if output.is_floating_point:
        assert torch.finfo(output).eps / 8 <= kind.rel_tolerance <= 0.05
    else:
        assert kind.rel_tolerance == 0.0


@pytest.mark.parametrize("kind", PRECISIONS.values(), ids=lambda p: p.name)
def test_each_runs_where_the_hardware_multiplies_it(kind: Precision) -> None:
    lacking = {"cupy", "cudnn"} if kind.is_float8 else {"cudnn"} if kind.name == "int8" else set()
    expected = dict.fromkeys({"cublas", "cublaslt", "cupy", "cudnn"} - lacking, SINCE[kind.name])
    if kind.name not in ("fp64", "fp32", "fp16-acc16", "fp8-e4m3-precise"):
        expected["triton"] = max((7, 0), SINCE[kind.name])  # Triton begins with Volta
    assert kind.min_capability == expected


def test_lanes_without_tensor_cores_do_what_the_storage_allows() -> None:
    """Multiply-adds of a lane and clock, and the datasheets' rate that they are multiples of."""
    lanes = {name: kind.simt_twin for name, kind in PRECISIONS.items() if kind.simt_twin}
    packed = {name: 4 // PRECISIONS[name].bytes_per_element for name in ("tf32", "int8")}
    assert lanes.pop("tf32") == ("fp32", packed["tf32"])
    assert lanes.pop("int8") == ("fp32", packed["int8"])
    assert set(lanes.values()) == {("fp16", 1)}
    assert set(lanes) == {"fp16-acc16", "fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"}


def test_names_say_what_differs() -> None:
    fp32, tf32, fp16, acc16 = (PRECISIONS[n] for n in ("fp32", "tf32", "fp16", "fp16-acc16"))
    assert (fp32.storage, fp32.accumulate, fp32.output) == 3 * ("float32",)
    assert (tf32.storage, tf32.accumulate, tf32.output) == 3 * ("float32",)
    assert (fp32.multiply, tf32.multiply) == ("ieee", "tf32")
    assert (fp16.accumulate, acc16.accumulate) == ("float32", "float16")
    assert PRECISIONS["fp8-e4m3"].fast_accumulate
    assert not PRECISIONS["fp8-e4m3-precise"].fast_accumulate


def test_other_names_lead_to_entries() -> None:
    assert all(target in PRECISIONS for target in ALIASES.values())
    assert not set(ALIASES) & set(PRECISIONS)
    assert precision("half").name == "fp16"
    with pytest.raises(ValueError, match="fp16-acc16"):
        precision("fp4")


def test_importing_ops_imports_no_torch() -> None:
    code = "import sys, kernels; print({'torch', 'numpy', 'triton'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
    assert list(OPS) == ["gemm", "conv"]
