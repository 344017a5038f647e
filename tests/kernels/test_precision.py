"""The table of precisions: what every entry must keep to."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels import OPS
from kernels.precision import ALIASES, PRECISIONS, Precision, precision

ENTRIES = list(PRECISIONS.values())
GPU_BACKENDS = {name for op in OPS.values() for name in op.backends} - {"cpu"}


@pytest.mark.parametrize("kind", ENTRIES, ids=lambda p: p.name)
def test_each_entry_is_whole(kind: Precision) -> None:
    assert PRECISIONS[kind.name] is kind
    assert precision(kind.name) is kind
    assert kind.title
    for which in ("storage", "storage_b", "accumulate", "output"):
        dtype = kind.torch_dtype(which)
        assert isinstance(dtype, torch.dtype)
    assert kind.bytes_per_element == torch.empty(0, dtype=kind.torch_dtype()).element_size()
    assert kind.output_bytes == torch.empty(0, dtype=kind.torch_dtype("output")).element_size()
    assert kind.multiply in ("ieee", "tf32")
    assert kind.simt_twin is None or kind.simt_twin[0] in PRECISIONS
    assert kind.is_float8 == (kind.bytes_per_element == 1 and kind.torch_dtype().is_floating_point)
    assert set(kind.min_capability) <= GPU_BACKENDS
    assert "cublas" in kind.min_capability
    assert all((5, 0) <= need <= (12, 0) for need in kind.min_capability.values())


@pytest.mark.parametrize("kind", ENTRIES, ids=lambda p: p.name)
def test_the_tolerance_is_about_what_the_arithmetic_can_do(kind: Precision) -> None:
    output = kind.torch_dtype("output")
    if not output.is_floating_point:
        assert kind.rel_tolerance == 0.0
        return
    rounding = torch.finfo(output).eps / 2
    assert rounding / 4 <= kind.rel_tolerance <= 0.05


def test_capabilities_are_those_of_the_hardware() -> None:
    need = {name: min(p.min_capability.values()) for name, p in PRECISIONS.items()}
    assert need["fp16"] == (7, 0)
    assert need["int8"] == (7, 5)
    assert need["tf32"] == need["bf16"] == (8, 0)
    assert need["fp8-e4m3"] == need["fp8-e5m2"] == (8, 9)


def test_ieee_float32_and_tf32_differ_in_the_multiply_only() -> None:
    fp32, tf32 = PRECISIONS["fp32"], PRECISIONS["tf32"]
    assert (fp32.storage, fp32.accumulate, fp32.output) == (
        tf32.storage, tf32.accumulate, tf32.output,
    )  # fmt: skip
    assert (fp32.multiply, tf32.multiply) == ("ieee", "tf32")
    assert fp32.rel_tolerance < tf32.rel_tolerance


def test_accumulation_is_what_tells_the_half_precisions_apart() -> None:
    assert PRECISIONS["fp16"].accumulate == "float32"
    assert PRECISIONS["fp16-acc16"].accumulate == "float16"
    assert PRECISIONS["fp8-e4m3"].fast_accumulate
    assert not PRECISIONS["fp8-e4m3-precise"].fast_accumulate


def test_other_names_lead_to_entries() -> None:
    assert all(target in PRECISIONS for target in ALIASES.values())
    assert not set(ALIASES) & set(PRECISIONS)
    assert precision("half").name == "fp16"


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="fp16-acc16"):
        precision("fp4")


def test_importing_ops_imports_no_torch() -> None:
    code = "import sys, kernels; print({'torch', 'numpy', 'triton'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
    assert list(OPS) == ["gemm", "conv"]
