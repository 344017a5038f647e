"""The parts of every check: relative sizes, poison, random signs; and the table of precisions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels import OPS, checking
from kernels.case import Case, Target
from kernels.data import OperandPool
from kernels.gemm import Gemm
from kernels.gemm.operands import Operands
from kernels.messages import first_line, one_line
from kernels.precision import ALIASES, PRECISIONS, Precision, precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_what_was_not_written_is_counted(dtype: torch.dtype) -> None:
    output = torch.zeros(6, 7, dtype=dtype)
    checking.poison(output)
    assert checking.unwritten(output) == 42
    output[:] = torch.arange(-21, 21).reshape(6, 7)
    assert checking.unwritten(output) == 0
    checking.poison(output[1:2, 2:3])
    assert checking.unwritten(output) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_new_operands_are_the_values_of_the_old_ones_in_other_places(dtype: torch.dtype) -> None:
    large = torch.arange(4 * 96).reshape(4, 96).to(dtype)
    small = torch.arange(90.0).reshape(9, 10).to(dtype).t()  # its memory runs the other way
    image = small.reshape(1, 10, 3, 3).contiguous(memory_format=torch.channels_last)
    for tensor in (small, image):
        before, place = tensor.double(), tensor.data_ptr()
        seen = {str(before.tolist())}
        renew = checking.renewal((large, tensor))
        for _ in range(8):
            renew()
            seen.add(str(tensor.double().tolist()))
        assert len(seen) > 4
        assert tensor.data_ptr() == place
        assert torch.equal(tensor.double().flatten().sort()[0], before.flatten().sort()[0])
    assert torch.equal(large, torch.arange(4 * 96).reshape(4, 96).to(dtype))


def test_of_a_large_operand_a_part_is_new_and_signs_are_as_many_of_each_with_a_slack() -> None:
    rows = torch.arange(checking.RENEWED_BYTES).reshape(
        -1, 1024
    )  # int64: eight times what is renewed
    before = rows.clone()
    renew = checking.renewal((rows, rows))
    renew()
    renew()  # one alone may stay where it is
    changed = (rows != before).any(dim=1)
    assert changed[: len(rows) // 8].all()
    assert not changed[len(rows) // 8 :].any()
    one = torch.ones(1, 1)
    checking.renewal((one, one))()
    assert one.item() == 1
    torch.manual_seed(0)
    signs = checking.random_signs(20_000, CPU)
    assert signs.shape == (20_000, checking.CHECKSUMS)
    assert signs.dtype == torch.float64
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert float(signs.mean(0).abs().max()) < 0.03
    assert all(not torch.equal(a, b) for a, b in pairwise(signs.t()))
    # Sums of a right product's rounding, over thousands of rows, in units of their spread.
    rows = 10_000 * checking.CHECKSUMS
    largest = [
        float(np.abs(np.random.default_rng(i).standard_normal(rows)).max()) for i in range(9)
    ]
    assert 1.25 * np.median(largest) < checking.CHECKSUM_SLACK < 1.5 * np.median(largest)
    assert max(largest) < checking.CHECKSUM_SLACK


@pytest.mark.parametrize(
    "returned",
    [torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2), torch.zeros(1, 4),
     torch.zeros(2, 4, 1), torch.zeros(2, 4, dtype=torch.float16),
     torch.zeros(2, 4, dtype=torch.int32)],
)  # fmt: skip
def test_another_shape_or_type_is_refused(returned: torch.Tensor) -> None:
    output = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="returned"):
        checking.results(returned, [output])
    assert checking.results(None, [output])[0] is output
    assert checking.results(right := torch.ones(2, 4), [output])[0] is right


# ---------------------------------------------------------------- what an exception says, in a line


@pytest.mark.parametrize(
    ("error", "first", "whole"),
    [
        *((NotImplementedError(text), "NotImplementedError", "NotImplementedError")
          for text in ("", "\n", "  \n \n")),
        (ValueError("\nwrong size\nat line 3"), "wrong size", "ValueError: wrong size"),
    ],
)  # fmt: skip
def test_an_error_is_its_first_line_or_its_type(error: Exception, first: str, whole: str) -> None:
    assert (first_line(error), one_line(error)) == (first, whole)


# ---------------------------------------------------------------- the table of precisions


@pytest.mark.parametrize("kind", PRECISIONS.values(), ids=lambda p: p.name)
def test_each_entry_is_what_torch_has_of_its_types(kind: Precision) -> None:
    assert PRECISIONS[kind.name] is precision(kind.name) is kind
    for which in ("storage", "storage_b", "accumulate", "output"):
        assert isinstance(kind.torch_dtype(which), torch.dtype)
    assert kind.bytes_per_element == kind.torch_dtype().itemsize
    assert kind.output_bytes == kind.torch_dtype("output").itemsize
    assert kind.accumulator_bytes == kind.torch_dtype("accumulate").itemsize
    assert kind.is_float8 == (kind.bytes_per_element == 1 and kind.torch_dtype().is_floating_point)
    output = kind.torch_dtype("output")
    if output.is_floating_point:
        assert torch.finfo(output).eps / 8 <= kind.rel_tolerance <= 0.05
    else:
        assert kind.rel_tolerance == 0.0


def test_other_names_lead_to_entries_without_torch() -> None:
    assert all(target in PRECISIONS for target in ALIASES.values())
    assert not set(ALIASES) & set(PRECISIONS)
    assert precision("half").name == "fp16"
    with pytest.raises(ValueError, match="fp16-acc16"):
        precision("fp4")
    code = "import sys, kernels; print({'torch', 'numpy', 'triton'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
    assert list(OPS) == ["gemm", "conv", "attention", "linear"]


# ---------------------------------------------------------------- tolerances


ON_CPU = Target("cpu", "a CPU", None, 2)
SIZE = 64  # the sample is the whole matrix
# Of an output in 2, 3, 8 or 10 bits of mantissa the rounding is 2**-bits / 2. Where it is all that
# happens, it may be twice that; sums in the same precision over thousands of terms need more.
TOLERANCE_BITS = {
    "fp64": -39.9, "fp32": -17.6, "tf32": -9.4, "fp16": -10.0, "fp16-acc16": -5.6, "bf16": -7.0,
    "fp8-e4m3": -6.6, "fp8-e4m3-precise": -7.0, "fp8-e5m2": -6.6,
}  # fmt: skip
FLOATS = list(TOLERANCE_BITS)


def operands(name: str, error: float = 0.0, seed: int = 1) -> Operands:
    """Operands whose C is the product with a random error of this relative size."""
    case = Case(Gemm(SIZE, SIZE, SIZE), name, "cpu")
    made = OperandPool(ON_CPU, seed).get(case)
    product = made.a.double() @ made.b.double()
    noise = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).double()
    wrong = product + noise * (error * product.norm() / noise.norm())
    return replace(made, c=wrong.to(made.c.dtype))


@pytest.mark.parametrize("name", FLOATS)
def test_an_error_is_found_from_the_tolerance_on(name: str) -> None:
    kind, tolerance = PRECISIONS[name], 2.0 ** TOLERANCE_BITS[name]
    rounding = checking.relative_error(operands(name))
    assert rounding < 0.5 * tolerance
    for size, passes in ((0.8, True), (1.2, False)):
        planted = (max(0.0, (size * tolerance) ** 2 - rounding**2)) ** 0.5
        found = checking.relative_error(operands(name, planted))
        assert found == pytest.approx(size * tolerance, rel=0.03)
        assert (found <= kind.rel_tolerance) == passes


def test_only_another_arithmetic_is_below_the_least_error() -> None:
    """TF32 keeps 10 bits of the operands' mantissas; a product without that rounding is fp32's."""
    assert [name for name in (*FLOATS, "int8") if PRECISIONS[name].least_error] == ["tf32"]
    made, tf32 = operands("tf32"), PRECISIONS["tf32"]
    bits = (matrix.contiguous().view(torch.int32) for matrix in (made.a, made.b))
    a, b = (((one + (1 << 12)) & -(1 << 13)).view(torch.float32) for one in bits)
    rounded = checking.relative_error(replace(made, c=(a.double() @ b.double()).float()))
    assert checking.relative_error(made) < tf32.least_error / 100
    assert 10 * tf32.least_error < rounded < tf32.rel_tolerance / 4
