"""The precisions: how numbers are stored, multiplied and added up. One entry each.

Importing this module does not import torch; `Precision.torch_storage` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Capability = tuple[int, int]


@dataclass(frozen=True)
class Precision:
    """How one variant computes.

    `storage`, `accumulate` and `output` are torch dtype names. `multiply` names the arithmetic of
    the multiplication: "ieee" is what the storage type says, "tf32" rounds float32 operands to 10
    mantissa bits, "fp8" and "fp4" cast to that first, "bf16" widens. `rel_tolerance` bounds
    ||out - ref|| / ||ref|| against a float64 GEMM of the *rounded* operands, so it covers
    accumulation and output rounding, not the storage rounding.
    `min_capability` maps each GPU back end that can run the precision to the compute capability it
    needs there; a back end not listed cannot run it. `rate` names the row of a GPU's rates that
    several precisions share. `simt_twin` is the precision, and how many times its rate, that the
    SMs reach without Tensor Cores where datasheets give no such rate.
    """

    name: str
    title: str
    storage: str
    multiply: str
    accumulate: str
    output: str
    rel_tolerance: float
    min_capability: Mapping[str, Capability] = field(hash=False)
    fast_accumulate: bool = False
    storage_b: str | None = None  # where the second operand is stored differently
    least_error: float = 0.0  # on random data; below it another arithmetic must have run
    rate: str | None = None
    simt_twin: tuple[str, int] | None = None
    only: str = ""  # the op that alone has it

    def torch_dtype(self, which: str = "storage") -> torch.dtype:
        """The torch dtype of "storage", "storage_b", "accumulate" or "output". Imports torch."""
        import torch

        return getattr(torch, getattr(self, which) or self.storage)

    @property
    def rate_name(self) -> str:
        """Its name in the rate tables of gpus.py and gpu_cards.py."""
        return self.rate or self.name

    @property
    def factors(self) -> Precision:
        """What is multiplied: its own numbers, or what they are cast to first."""
        return PRECISIONS.get({"fp8": "fp8-e4m3"}.get(self.multiply, self.multiply), self)

    def bytes_of(self, which: str) -> int:
        """Of an element in the dtype that `torch_dtype` says."""
        return DTYPE_BYTES[getattr(self, which) or self.storage]

    @property
    def accumulator_bytes(self) -> int:
        return DTYPE_BYTES[self.accumulate]

    @property
    def bytes_per_element(self) -> int:
        return DTYPE_BYTES[self.storage]

    @property
    def output_bytes(self) -> int:
        return DTYPE_BYTES[self.output]

    @property
    def casts(self) -> bool:
        """Whether its numbers are cast to fewer bits, with scales, before they are multiplied."""
        return self.multiply in ("fp8", "fp4")

    @property
    def widens(self) -> bool:
        """Whether the second operand is stored in fewer bits than it is multiplied in."""
        return self.multiply == "bf16"

    @property
    def is_float8(self) -> bool:
        return self.storage.startswith("float8")


DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "int8": 1,
}  # fmt: skip

# Capabilities: Tensor Cores take fp16 from 7.0 (Volta), int8 from 7.5 (Turing), tf32 and bf16 from
# 8.0 (Ampere), fp8 from 8.9 (Ada); CUDA C++ Programming Guide, "Element Types and Matrix Sizes".
_AS_FP16 = ("fp16", 1)  # without Tensor Cores fp8 is no faster than the type it is widened to


def _since(*capability: int, backends: str = "cublas cublaslt cupy cudnn") -> dict[str, Capability]:
    return dict.fromkeys(backends.split(), (capability[0], capability[1]))


_ALL = "cublas cublaslt cupy cudnn triton"
_FLOAT8 = "cublas cublaslt"
# Name, title; storage, multiply, accumulate, output; rel_tolerance, min_capability; what differs.
_ALL_PRECISIONS = (
    Precision(
        "fp64", "float64", "float64", "ieee", "float64", "float64", 1e-12, _since(5, 0)
    ),
    Precision(
        "fp32", "float32, IEEE (TF32 off)", "float32", "ieee", "float32", "float32", 5e-6,
        _since(5, 0),
    ),
    Precision(
        "tf32", "float32 rounded to TF32", "float32", "tf32", "float32", "float32", 1.5e-3,
        _since(8, 0, backends=_ALL), least_error=2e-5, simt_twin=("fp32", 1),
    ),
    Precision(
        "fp16", "float16, float32 accumulate", "float16", "ieee", "float32", "float16", 1e-3,
        _since(7, 0, backends=_ALL),
    ),
    Precision(
        "fp16-acc16", "float16, float16 accumulate", "float16", "ieee", "float16", "float16", 2e-2,
        _since(7, 0), simt_twin=("fp16", 1),
    ),
    Precision(
        "bf16", "bfloat16, float32 accumulate", "bfloat16", "ieee", "float32", "bfloat16", 8e-3,
        _since(8, 0, backends=_ALL),
    ),
    Precision(
        "fp8-e4m3", "float8 e4m3, fast accumulate", "float8_e4m3fn", "ieee", "float32", "bfloat16",
        1e-2, _since(8, 9, backends=f"{_FLOAT8} triton"), rate="fp8", simt_twin=_AS_FP16,
        fast_accumulate=True,
    ),
    Precision(
        "fp8-e4m3-precise", "float8 e4m3, float32 accumulate", "float8_e4m3fn", "ieee", "float32",
        "bfloat16", 8e-3, _since(8, 9, backends=_FLOAT8), rate="fp8", simt_twin=_AS_FP16,
    ),
    # cuBLASLt has no e5m2 x e5m2 (its documentation's table of fp8 types); training never
    # multiplies two gradients, so e5m2 stands for A alone.
    Precision(
        "fp8-e5m2", "float8 e5m2 x e4m3 (gradient x weight), fast accumulate", "float8_e5m2",
        "ieee", "float32", "bfloat16", 1e-2, _since(8, 9, backends=f"{_FLOAT8} triton"),
        rate="fp8", simt_twin=_AS_FP16, fast_accumulate=True, storage_b="float8_e4m3fn",
    ),
    # Of a decoder's weights; a scale, which is not here, is one product more for each result.
    Precision(
        "fp8-weights", "bfloat16 x float8 e4m3, multiplied as bfloat16", "bfloat16", "bf16",
        "float32", "bfloat16", 8e-3, _since(9, 0, backends="triton"), rate="bf16",
        simt_twin=("bf16", 1), storage_b="float8_e4m3fn", only="gemm",
    ),
    # Of linear layers: bfloat16 in and out, cast with scales from the largest values. The casts err
    # by 0.037 on random data, to fp4 by 0.135 (kernels/linear).
    *(Precision(
        name, f"bfloat16 multiplied as {kind.replace('fp', 'float')}, one scale a {part}",
        "bfloat16", kind, "float32", "bfloat16", 1e-2, _since(*since, backends="cublas"),
        least_error=least, rate=kind, simt_twin=_AS_FP16, only="linear",
    ) for name, kind, part, since, least in (
        ("fp8-tensor", "fp8", "tensor", (8, 9), 1e-2), ("fp8-row", "fp8", "row", (9, 0), 1e-2),
        ("fp8-block", "fp8", "block of 128, of weights 128x128", (9, 0), 1e-2),
        ("mxfp8", "fp8", "block of 32, a power of two", (10, 0), 1e-2),
        ("nvfp4", "fp4", "block of 16, in float8, and one a tensor", (10, 0), 5e-2),
    )),
    Precision(  # simt_twin: DP4A, four multiply-adds a lane
        "int8", "int8, int32 accumulate", "int8", "ieee", "int32", "int32", 0.0,
        _since(7, 5, backends="cublas cublaslt cupy triton"), simt_twin=("fp32", 4),
    ),
)  # fmt: skip

PRECISIONS: Mapping[str, Precision] = {p.name: p for p in _ALL_PRECISIONS}

ALIASES: Mapping[str, str] = {
    "fp8": "fp8-e4m3", "float64": "fp64", "double": "fp64", "float32": "fp32", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip


def precision(name: str) -> Precision:
    """The precision called `name` (or an alias such as "fp8"); ValueError lists the choices."""
    found = PRECISIONS.get(ALIASES.get(name, name))
    if found is None:
        raise ValueError(f"unknown precision {name!r}; choose from {', '.join(PRECISIONS)}")
    return found
