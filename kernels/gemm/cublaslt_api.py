"""cuBLAS in its own terms: enum values, column-major operands, names of tiles; and libcublasLt.

Nothing here is loaded or launched at import. Every constant keeps the name it has in NVIDIA's
headers (cublasLt.h, cublas_api.h and library_types.h of CUDA 13, which pip's nvidia-cublas and
nvidia-cuda-runtime install under nvidia/cu13/include); tests/kernels/test_cublaslt.py compares each
of them, the tables of tiles, stages and clusters and the structures with the installed headers.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kernels.case import CannotRun
from kernels.precision import Precision

# cudaDataType_t, library_types.h
CUDA_R_32F = 0
CUDA_R_64F = 1
CUDA_R_16F = 2
CUDA_R_8I = 3
CUDA_R_32I = 10
CUDA_R_16BF = 14
CUDA_R_8F_E4M3 = 28
CUDA_R_8F_E5M2 = 29

# cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t, cublasMath_t and cublasStatus_t,
# cublas_api.h
CUBLAS_COMPUTE_16F = 64
CUBLAS_COMPUTE_32F = 68
CUBLAS_COMPUTE_64F = 70
CUBLAS_COMPUTE_32I = 72
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLAS_OP_N = 0
CUBLAS_OP_T = 1
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_DEFAULT_MATH = 0
CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
CUBLAS_STATUS_SUCCESS = 0

# Attributes of descriptors and values for them, cublasLt.h
CUBLASLT_MATMUL_DESC_TRANSA = 3
CUBLASLT_MATMUL_DESC_TRANSB = 4
CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17
CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18
CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25
CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
CUBLASLT_REDUCTION_SCHEME_MASK = 7
CUBLASLT_ALGO_CONFIG_ID = 0
CUBLASLT_ALGO_CONFIG_TILE_ID = 1
CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2
CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3
CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING = 4
CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION = 5
CUBLASLT_ALGO_CONFIG_STAGES_ID = 6
CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID = 7
CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID = 8

# Settings of an algorithm that the header has in 16 bits; others have 32
_OF_16_BITS = (CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)

DATA_TYPES: Mapping[str, int] = {
    "float64": CUDA_R_64F, "float32": CUDA_R_32F, "float16": CUDA_R_16F, "bfloat16": CUDA_R_16BF,
    "float8_e4m3fn": CUDA_R_8F_E4M3, "float8_e5m2": CUDA_R_8F_E5M2, "int8": CUDA_R_8I,
    "int32": CUDA_R_32I,
}  # fmt: skip

_HALF_ONE = 0x3C00  # 1.0 as IEEE binary16; ctypes has no half type

# type of alpha and beta -> (how ctypes holds it, the value of one in it)
_ONE_IN = {
    CUDA_R_16F: (ctypes.c_uint16, _HALF_ONE),
    CUDA_R_32F: (ctypes.c_float, 1.0),
    CUDA_R_64F: (ctypes.c_double, 1.0),
    CUDA_R_32I: (ctypes.c_int32, 1),
}


@dataclass(frozen=True)
class Arithmetic:
    """A precision to cuBLAS: `compute`, a cublasComputeType_t; `scale`, alpha's cudaDataType_t."""

    compute: int
    scale: int

    def scalars(self) -> tuple[ctypes._SimpleCData, ctypes._SimpleCData]:
        """(alpha = 1, beta = 0) on the host; the caller, who passes addresses, keeps them alive."""
        held, one = _ONE_IN[self.scale]
        return held(one), held(0)


# CUBLAS_COMPUTE_32F computes in "at least 32 bits" and never rounds float32 operands to TF32: that
# is what _FAST_TF32 is for (cuBLAS documentation, cublasComputeType_t). _32F_PEDANTIC adds only
# that complex products may not use Gauss's trick, so it would exclude nothing that matters here.
_ARITHMETIC = {
    "float64": Arithmetic(CUBLAS_COMPUTE_64F, CUDA_R_64F),
    "float32": Arithmetic(CUBLAS_COMPUTE_32F, CUDA_R_32F),
    "float16": Arithmetic(CUBLAS_COMPUTE_16F, CUDA_R_16F),
    "int32": Arithmetic(CUBLAS_COMPUTE_32I, CUDA_R_32I),
}
_TF32 = Arithmetic(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F)


def arithmetic(precision: Precision) -> Arithmetic:
    """How cuBLAS is told to compute in this precision."""
    return _TF32 if precision.multiply == "tf32" else _ARITHMETIC[precision.accumulate]


@dataclass(frozen=True)
class Stored:
    """A matrix in memory as BLAS reads it, column by column: [rows, columns], `ld` elements from
    one column to the next.

    `op` (CUBLAS_OP_N or CUBLAS_OP_T) turns it into the operand.
    """

    op: int
    rows: int
    columns: int
    ld: int


@dataclass(frozen=True)
class ColumnMajor:
    """A row-major GEMM as BLAS is asked for it: out[m, n] = op(first) @ op(second).

    Read column by column, row-major C[M, N] is its transpose, and C^T = B^T A^T: so `first` is our
    B, `second` our A, `m` our N and `n` our M.
    """

    m: int
    n: int
    k: int
    first: Stored
    second: Stored
    out: Stored


def _stored(shape: Sequence[int], strides: Sequence[int]) -> Stored:
    """How to get the transpose of a matrix of this shape and strides (in elements)."""
    rows, columns = shape
    if strides[1] == 1 and strides[0] >= columns:
        return Stored(CUBLAS_OP_N, columns, rows, strides[0])
    if strides[0] == 1 and strides[1] >= rows:
        return Stored(CUBLAS_OP_T, rows, columns, strides[1])
    raise ValueError(f"BLAS cannot read a {rows}x{columns} matrix with strides {tuple(strides)}")


def column_major(
    mnk: tuple[int, int, int], a: Sequence[int], b: Sequence[int], c: Sequence[int]
) -> ColumnMajor:
    """C[M, N] = A[M, K] @ B[K, N] with these strides (in elements), as BLAS is asked for it.

    C must be row-major; A and B row-major or transposed. ValueError for other strides.
    """
    m, n, k = mnk
    out = _stored((m, n), c)
    if out.op != CUBLAS_OP_N:
        raise ValueError(f"C must be row-major, not {m}x{n} with strides {tuple(c)}")
    return ColumnMajor(n, m, k, _stored((k, n), b), _stored((m, k), a), out)


def _tile_shapes() -> dict[int, tuple[int, int]]:
    """cublasLtMatmulTile_t: id -> (rows, columns) of C as BLAS reads it."""
    shapes = [
        *((8, 8), (8, 16), (16, 8), (8, 32), (16, 16), (32, 8), (8, 64), (16, 32), (32, 16)),
        *((64, 8), (32, 32), (32, 64), (64, 32), (32, 128), (64, 64), (128, 32), (64, 128)),
        *((128, 64), (64, 256), (128, 128), (256, 64), (64, 512), (128, 256), (256, 128)),
        *((512, 64), (64, 96), (96, 64), (96, 128), (128, 160), (160, 128), (192, 128)),
        *((128, 192), (128, 96), (32, 256), (256, 32)),
    ]
    # The header lists the other 599 one by one; these bounds reproduce its order.
    fine, coarse = range(8, 769, 8), range(64, 769, 64)
    by_rows = [(r, c) for r in fine for c in coarse if r * c <= 49152]
    by_columns = [(r, c) for r in coarse for c in fine if r * c <= 65536]
    shapes = list(dict.fromkeys([*shapes, *by_rows, *by_columns]))
    shapes += [(256, 512), (256, 1024), (512, 512), (512, 1024)]
    return dict(enumerate(shapes, start=1))


TILES = _tile_shapes()

# cublasLtMatmulStages_t: id -> (elements of K a stage, number of stages)
STAGES: dict[int, tuple[int, str]] = {
    **{1 + 6 * i + n: (16 << i, str(n + 1)) for i in range(4) for n in range(6)},
    **{25: (32, "10"), 26: (8, "4"), 27: (16, "10"), 28: (8, "5"), 31: (8, "3")},
    **{32: (8, "AUTO"), 33: (16, "AUTO"), 34: (32, "AUTO"), 35: (64, "AUTO")},
    **{36: (128, "AUTO"), 37: (256, "AUTO"), 38: (768, "AUTO")},
}

_CLUSTER_SHAPES = (
    "1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16 3x1 5x1 6x1 7x1 9x1 10x1 11x1 "
    "12x1 13x1 14x1 15x1 3x2 5x2 6x2 7x2 1x3 2x3 3x3 4x3 5x3 3x4 1x5 2x5 3x5 1x6 2x6 1x7 2x7 1x9 "
    "1x10 1x11 1x12 1x13 1x14 1x15"
)
# cublasLtClusterShape_t: ids from 2 on; the third dimension is always 1
CLUSTERS = dict(enumerate(_CLUSTER_SHAPES.split(), start=2))


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: one configured algorithm."""

    _fields_ = (
        ("algo", Algo),
        ("workspaceSize", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("wavesCount", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLtError(RuntimeError):
    """A cuBLASLt call returned something other than CUBLAS_STATUS_SUCCESS."""


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SET_ATTRIBUTE = (_POINTER, _INT, _POINTER, _SIZE)

# name without "cublasLt" -> types of its arguments; descriptors and handles are pointers, enums int
_FUNCTIONS: Mapping[str, tuple[type, ...]] = {
    "Create": (_POINTER,),
    "MatmulDescCreate": (_POINTER, _INT, _INT),
    "MatmulDescSetAttribute": _SET_ATTRIBUTE,
    "MatmulDescDestroy": (_POINTER,),
    "MatrixLayoutCreate": (_POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatrixLayoutDestroy": (_POINTER,),
    "MatmulPreferenceCreate": (_POINTER,),
    "MatmulPreferenceSetAttribute": _SET_ATTRIBUTE,
    "MatmulPreferenceDestroy": (_POINTER,),
    "MatmulAlgoGetHeuristic": (*[_POINTER] * 7, _INT, _POINTER, _POINTER),
    "MatmulAlgoConfigGetAttribute": (_POINTER, _INT, _POINTER, _SIZE, _POINTER),
    "Matmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}


class Library:
    """libcublasLt. OSError if it does not load, AttributeError if it lacks a function used here."""

    def __init__(self, name: str) -> None:
        shared = ctypes.CDLL(name)
        self._status_name = shared.cublasLtGetStatusName
        self._status_name.argtypes, self._status_name.restype = (_INT,), ctypes.c_char_p
        self.functions = {name: getattr(shared, f"cublasLt{name}") for name in _FUNCTIONS}
        for name, arguments in _FUNCTIONS.items():
            self.functions[name].argtypes = arguments
            self.functions[name].restype = _INT

    def call(self, name: str, *arguments: object) -> None:
        status = self.functions[name](*arguments)
        if status != CUBLAS_STATUS_SUCCESS:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> CublasLtError:
        text = self._status_name(status)
        return CublasLtError(f"cublasLt{name} returned {text.decode()} ({status})")

    def algo_config(self, algo: Algo, attribute: int) -> int:
        """A setting of an algorithm; 0, the default of most, where the library does not know it."""
        value = ctypes.c_uint16() if attribute in _OF_16_BITS else ctypes.c_uint32()
        status = self.functions["MatmulAlgoConfigGetAttribute"](
            ctypes.byref(algo), attribute, ctypes.byref(value), ctypes.sizeof(value), None
        )
        return int(value.value) if status == CUBLAS_STATUS_SUCCESS else 0


class Descriptor:
    """A cuBLASLt descriptor ("MatmulDesc", "MatrixLayout", "MatmulPreference").

    Destroyed when garbage is collected. Creating it raises CublasLtError where cuBLASLt refuses.
    """

    def __init__(self, library: Library, name: str, *arguments: int) -> None:
        created = ctypes.c_void_p()
        library.call(f"{name}Create", ctypes.byref(created), *arguments)
        assert created.value is not None
        self.address: int = created.value
        self._library, self._kind = library, name
        destroy = weakref.finalize(self, library.functions[f"{name}Destroy"], self.address)
        destroy.atexit = False  # the process gives the memory back; the library may be gone

    def set(self, attribute: int, value: ctypes._SimpleCData) -> None:
        """Set an attribute; the type of `value` must be the one the header names for it. Raises
        CublasLtError where cuBLASLt refuses it.
        """
        held = (ctypes.byref(value), ctypes.sizeof(value))
        self._library.call(f"{self._kind}SetAttribute", self.address, attribute, *held)


@cache
def load() -> Library:
    """The libcublasLt that torch has loaded, else the system's of torch's version of CUDA.
    CannotRun with the reason if there is none.
    """
    from torch.version import cuda

    try:
        return Library(f"libcublasLt.so.{str(cuda).partition('.')[0]}")
    except (OSError, AttributeError) as error:
        raise CannotRun(f"libcublasLt cannot be loaded: {error}") from None
