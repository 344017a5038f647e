"""The back ends cublaslt and cupy: constants against NVIDIA's headers, mapping, a stand-in GPU.

Without a GPU, libcublasLt still makes and reads descriptors. The stand-in below answers the three
calls that need a device; its matmul reads every fact from the library's own descriptors and the
raw addresses that it is given, and multiplies in float64.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.blas import memory, operand
from samples.measuring import refusal

from kernels.case import CannotRun, Case, Target
from kernels.gemm import LAYOUTS, Gemm, cublaslt, cupy_blas
from kernels.gemm import cublaslt_api as api
from kernels.op import Session
from kernels.precision import PRECISIONS

pytestmark = pytest.mark.usefixtures("quick_collection")

OF_GEMM = {name: kind for name, kind in PRECISIONS.items() if not kind.only}
CPU = Target("cpu", "stand-in", capability=(9, 0))
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
DIMS = {"m": 48, "n": 32, "k": 64}


def case(precision: str, layout: str = "nt", backend: str = "cublaslt", **dims: int) -> Case:
    return Case(Gemm(**{**DIMS, **dims}, layout=layout), precision, backend)


# --- The headers --------------------------------------------------------------------------------


def include_folder() -> Path:
    nvidia = importlib.util.find_spec("nvidia")
    for root in (nvidia.submodule_search_locations or ()) if nvidia else ():
        for found in Path(root).glob("*/include/cublasLt.h"):
            return found.parent
    pytest.skip("no cublasLt.h in pip's nvidia packages")


@pytest.fixture(scope="module")
def enums() -> dict[str, int]:
    """Every `NAME = number` of the headers."""
    folder, found = include_folder(), {}
    for header in ("cublasLt.h", "cublas_api.h", "library_types.h"):
        text = (folder / header).read_text(encoding="latin-1")
        for name, value in re.findall(r"^\s*(CU[A-Z0-9x_a-z]+)\s*=\s*(-?\w+)\s*[,/\n]", text, re.M):
            if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", value):
                found[name] = int(value, 0)
    return found


def test_constants_and_names_of_ids_equal_the_headers(enums: dict[str, int]) -> None:
    ours = {name: value for name, value in vars(api).items() if re.match(r"CU(BLAS|DA)", name)}
    ours.pop("CublasLtError", None)
    assert len(ours) > 40
    assert ours == {name: enums.get(name) for name in ours}
    tables: dict[str, dict[int, Any]] = {
        r"MATMUL_TILE_(\d+)x(\d+)": api.TILES, r"MATMUL_STAGES_(\d+)x(\w+)": api.STAGES,
        r"CLUSTER_SHAPE_(\d+)x(\d+)x1": api.CLUSTERS,
    }  # fmt: skip
    for pattern, table in tables.items():
        header = {
            value: "x".join(found.groups())
            for name, value in enums.items()
            if (found := re.fullmatch(f"CUBLASLT_{pattern}", name))
        }
        named = {number: table[number] for number in header}
        assert header == {
            n: x if isinstance(x, str) else "x".join(map(str, x)) for n, x in named.items()
        }


def test_structures_equal_the_compilers(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    # The two structures alone: the whole header needs more of CUDA than pip installs.
    header = (include_folder() / "cublasLt.h").read_text(encoding="latin-1")
    names = ("cublasLtMatmulAlgo_t", "cublasLtMatmulHeuristicResult_t")
    structures = [re.search(rf"typedef struct \{{[^}}]*\}} {name};", header) for name in names]
    assert all(structures)
    fields = [name for name, *_ in api.HeuristicResult._fields_]
    numbers = [*(f"sizeof({name})" for name in names)]
    numbers += [f"offsetof({names[1]}, {field})" for field in fields]
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n"
        "typedef enum { SUCCESS = 0 } cublasStatus_t;\n"
        + "\n".join(match[0] for match in structures if match)
        + "\nint main(void) {\n"
        + "\n".join(f'printf("%zu ", {number});' for number in numbers)
        + "\nreturn 0; }\n"
    )
    built = tmp_path / "sizes"
    subprocess.run([compiler, str(source), "-o", str(built)], check=True)
    printed = subprocess.run([str(built)], capture_output=True, text=True, check=True).stdout
    offsets = [getattr(api.HeuristicResult, field).offset for field in fields]
    ours = [ctypes.sizeof(api.Algo), ctypes.sizeof(api.HeuristicResult), *offsets]
    assert [int(number) for number in printed.split()] == ours


# --- The mapping to column-major ----------------------------------------------------------------


def logical(rows: int, columns: int, letter: str, padding: int) -> torch.Tensor:
    """A rows x columns matrix stored as the layout says, its leading dimension padded."""
    if letter == "t":
        return torch.randn(columns, rows + padding, dtype=torch.float64)[:, :rows].t()
    return torch.randn(rows, columns + padding, dtype=torch.float64)[:, :columns]


SIZE = st.integers(1, 9)


@given(m=SIZE, n=SIZE, k=SIZE, layout=st.sampled_from(LAYOUTS), padding=st.integers(0, 3))
def test_column_major_is_the_same_product(
    m: int, n: int, k: int, layout: str, padding: int
) -> None:
    a, b = logical(m, k, layout[0], padding), logical(k, n, layout[1], padding)
    c = torch.full((m, n + padding), torch.nan, dtype=torch.float64)[:, :n]
    blas = api.column_major((m, n, k), a.stride(), b.stride(), c.stride())
    first = operand(b.data_ptr(), b.dtype, blas.first)
    second = operand(a.data_ptr(), a.dtype, blas.second)
    assert (blas.m, blas.n, blas.k) == (first.shape[0], second.shape[1], first.shape[1])
    for stored in (blas.first, blas.second, blas.out):
        assert stored.ld >= stored.rows
    memory(c.data_ptr(), c.dtype, (blas.m, blas.n), blas.out.ld)[:] = first @ second
    assert torch.allclose(c, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("a", "c"), [((128, 2), (32, 1)), ((1, 40), (32, 1)), ((64, 1), (1, 48))])
def test_other_strides_are_refused(a: tuple[int, int], c: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="strides"):
        api.column_major((48, 32, 64), a, (32, 1), c)


# --- What can run -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "layout", "dims", "words"),
    [
        ("fp8-e4m3", "nn", {}, "use --layout nt"),
        ("int8", "tt", {}, "use --layout nt"),
        ("fp8-e4m3-precise", "nt", {"n": 40}, "multiples of 16, not 40 and 64"),
        ("fp8-e5m2", "nt", {"k": 72}, "multiples of 16, not 32 and 72"),
        ("int8", "nt", {"n": 34}, "multiples of 4, not 34 and 64"),
    ],
)
def test_cannot_run_says_why(precision: str, layout: str, dims: dict[str, int], words: str) -> None:
    reason = refusal(cublaslt.check, case(precision, layout, **dims), H200)
    assert precision in reason
    assert words in reason


def test_precisions_ask_for_their_compute_type_workspace_and_alignment() -> None:
    for precision, kind in OF_GEMM.items():
        for layout in LAYOUTS if kind.bytes_per_element > 1 else ():
            cublaslt.check(case(precision, layout, m=3, n=5, k=7), H200)
        cublaslt.check(case(precision, m=7), H200)
    found = {name: api.arithmetic(kind).compute for name, kind in OF_GEMM.items()}
    assert found == dict.fromkeys(OF_GEMM, api.CUBLAS_COMPUTE_32F) | {
        "fp64": api.CUBLAS_COMPUTE_64F, "tf32": api.CUBLAS_COMPUTE_32F_FAST_TF32,
        "fp16-acc16": api.CUBLAS_COMPUTE_16F, "int8": api.CUBLAS_COMPUTE_32I,
    }  # fmt: skip
    for name, kind in OF_GEMM.items():
        narrow = name in ("fp16", "bf16") or kind.is_float8
        assert cublaslt.reduction_schemes(kind) == (
            api.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
            if narrow
            else api.CUBLASLT_REDUCTION_SCHEME_MASK
        )
    assert cublaslt.workspace_bytes((9, 0)) == cublaslt.workspace_bytes((10, 0)) == 32 << 20
    assert cublaslt.workspace_bytes((8, 9)) == 4 << 20
    assert cublaslt.alignment_bytes(0x7F0000000200) == 256
    assert cublaslt.alignment_bytes(0x7F0000000210) == 16
    assert cublaslt.alignment_bytes(0x7F0000000201) == 1


# --- Finding the library ------------------------------------------------------------------------


def test_the_library_that_torch_has_loaded_is_found_and_none_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, library: api.Library
) -> None:
    assert api.load.__wrapped__().functions.keys() == library.functions.keys()
    monkeypatch.setattr("torch.version.cuda", "99.1")
    with pytest.raises(CannotRun, match=r"libcublasLt cannot be loaded: .*libcublasLt\.so\.99"):
        api.load.__wrapped__()


# --- The library, with a stand-in for the device ------------------------------------------------


@pytest.fixture
def library() -> api.Library:
    """A libcublasLt of the test's own, whose functions it may replace."""
    with suppress(CannotRun):
        return api.load.__wrapped__()
    pytest.skip("no libcublasLt here")


GET = {"MatmulDesc": "cublasLtMatmulDescGetAttribute", "Layout": "cublasLtMatrixLayoutGetAttribute"}
LAYOUT_TYPE, LAYOUT_ROWS, LAYOUT_COLS, LAYOUT_LD = 0, 2, 3, 4
DESC_COMPUTE_TYPE, DESC_SCALE_TYPE = 0, 1


class StandIn:
    """Two algorithms, and a matmul that believes nothing but the descriptors."""

    def __init__(self, library: api.Library) -> None:
        self.shared = ctypes.CDLL(f"libcublasLt.so.{str(torch.version.cuda).partition('.')[0]}")
        self.proposals = 2
        self.status = 0
        self.seen: dict[str, int] = {}

    def get(self, kind: str, address: int, attribute: int, held: type) -> int:
        value, written = held(), ctypes.c_size_t()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        where = ctypes.c_void_p(address), attribute, ctypes.byref(value), size
        assert self.shared[GET[kind]](*where, ctypes.byref(written)) == 0
        return value.value

    def create(self, handle: object) -> int:
        handle._obj.value = 0xC0DE  # type: ignore[attr-defined]
        return 0

    def heuristic(self, handle: int, *arguments: object) -> int:
        assert handle == 0xC0DE
        results, count = (argument._obj for argument in arguments[-2:])  # type: ignore[attr-defined]
        # The last one repeats the first: duplicates are dropped.
        for index in range(self.proposals):
            results[index].algo.data[0] = 7 + index % max(self.proposals - 1, 1)
        count.value = self.proposals
        return self.status

    def matrix(self, data: int, layout: int, description: int, which: int) -> torch.Tensor:
        names = {number: name for name, number in api.DATA_TYPES.items()}
        dtype = names[self.get("Layout", layout, LAYOUT_TYPE, ctypes.c_uint32)]
        stored = api.Stored(
            self.get("MatmulDesc", description, which, ctypes.c_int32),
            self.get("Layout", layout, LAYOUT_ROWS, ctypes.c_uint64),
            self.get("Layout", layout, LAYOUT_COLS, ctypes.c_uint64),
            self.get("Layout", layout, LAYOUT_LD, ctypes.c_int64),
        )
        return operand(data, getattr(torch, dtype), stored)

    def matmul(self, handle: int, description: int, alpha: int, *rest: int) -> int:
        a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, _, size, _ = rest
        assert (handle, c, c_layout) == (0xC0DE, d, d_layout)
        assert size == cublaslt.WORKSPACE_BYTES_HOPPER
        assert ctypes.c_uint64.from_address(algo).value == 7
        scale = self.get("MatmulDesc", description, DESC_SCALE_TYPE, ctypes.c_int32)
        held, one = api._ONE_IN[scale]
        assert held.from_address(alpha).value == one
        assert held.from_address(beta).value == 0
        for name, attribute, kind in (
            ("compute", DESC_COMPUTE_TYPE, ctypes.c_int32),
            ("scale_a", api.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, ctypes.c_uint64),
            ("scale_b", api.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, ctypes.c_uint64),
            ("fast", api.CUBLASLT_MATMUL_DESC_FAST_ACCUM, ctypes.c_int8),
        ):
            self.seen[name] = self.get("MatmulDesc", description, attribute, kind)
        first = self.matrix(a, a_layout, description, api.CUBLASLT_MATMUL_DESC_TRANSA)
        second = self.matrix(b, b_layout, description, api.CUBLASLT_MATMUL_DESC_TRANSB)
        names = {number: name for name, number in api.DATA_TYPES.items()}
        dtype = getattr(torch, names[self.get("Layout", d_layout, LAYOUT_TYPE, ctypes.c_uint32)])
        ld = self.get("Layout", d_layout, LAYOUT_LD, ctypes.c_int64)
        out = memory(d, dtype, (first.shape[0], second.shape[1]), ld)
        out[:] = (first @ second).to(dtype)
        return self.status


@pytest.fixture
def stand_in(library: api.Library, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    device = StandIn(library)
    library.functions |= {
        "Create": device.create,
        "MatmulAlgoGetHeuristic": device.heuristic,
        "Matmul": device.matmul,
    }
    monkeypatch.setattr(api, "load", lambda: library)
    monkeypatch.setattr(cublaslt, "_handle", cublaslt._handle.__wrapped__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return device


RUNNABLE = [
    (precision, layout)
    for precision in OF_GEMM
    for layout in LAYOUTS
    if not refusal(cublaslt.check, case(precision, layout), H200)
]


@pytest.mark.parametrize(("precision", "layout"), RUNNABLE)
def test_the_descriptors_say_the_right_product(
    stand_in: StandIn, precision: str, layout: str
) -> None:
    prepared = Session(CPU, seed=1).prepare(case(precision, layout))
    assert len(prepared.candidates) == 1
    gc.collect()  # what a launch points at must be alive by its own doing
    kind = PRECISIONS[precision]
    assert prepared.rel_error(prepared.candidates[0]) <= kind.rel_tolerance
    assert stand_in.seen["compute"] == api.arithmetic(kind).compute
    assert stand_in.seen["fast"] == kind.fast_accumulate
    assert bool(stand_in.seen["scale_a"]) == bool(stand_in.seen["scale_b"]) == kind.is_float8


def test_labels_and_tiles_are_read_from_the_algorithm(
    stand_in: StandIn, library: api.Library
) -> None:
    settings = {
        api.CUBLASLT_ALGO_CONFIG_ID: 66, api.CUBLASLT_ALGO_CONFIG_TILE_ID: 23,
        api.CUBLASLT_ALGO_CONFIG_STAGES_ID: 35, api.CUBLASLT_ALGO_CONFIG_SPLITK_NUM: 4,
        api.CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: 2, api.CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: 3,
    }  # fmt: skip

    def read(algo: object, attribute: int, value: object, size: int, written: object) -> int:
        value._obj.value = settings.get(attribute, 0)  # type: ignore[attr-defined]
        return 0

    def found() -> tuple[str, object]:
        (candidate,) = Session(CPU, 1).prepare(case("fp16")).candidates
        return candidate.label, candidate.tile

    library.functions["MatmulAlgoConfigGetAttribute"] = read
    label = "algo66/tile128x256/stages64xAUTO/splitk4/cluster2x1/reduce2"
    assert found() == (label, (256, 128, 64))
    settings[api.CUBLASLT_ALGO_CONFIG_TILE_ID] = 9999
    assert found() == (label.replace("128x256", "#9999"), None)


@pytest.mark.parametrize(
    ("proposals", "status", "reason"),
    [(0, 0, "has no candidate"), (2, 15, r"fp16.*CUBLAS_STATUS_NOT_SUPPORTED \(15\)")],
)
def test_no_proposal_and_a_refusal_are_reasons(
    stand_in: StandIn, proposals: int, status: int, reason: str
) -> None:
    stand_in.proposals, stand_in.status = proposals, status
    with pytest.raises(CannotRun, match=reason):
        Session(CPU, 1).prepare(case("fp16"))


def test_every_preference_is_accepted_and_a_failed_launch_and_another_device_are_named(
    stand_in: StandIn,
) -> None:
    # _preference sets all six; the library refuses an attribute or a size it does not know.
    stand_in.proposals = 3
    found = Session(CPU, 1).prepare(case("bf16")).candidates
    assert len({candidate.label for candidate in found}) == len(found) == 2
    stand_in.status = 13
    with pytest.raises(RuntimeError, match=r"cublasLtMatmul .* CUBLAS_STATUS_EXECUTION_FAILED"):
        found[0].call()
    with pytest.raises(CannotRun, match=r"set_device\(1\)"):
        cublaslt.require_current_device(Target("cpu", "stand-in", (9, 0), index=1))


def test_descriptors_are_destroyed(stand_in: StandIn, library: api.Library) -> None:
    destroyed: list[str] = []

    def counted(name: str, real: Callable[[int], int]) -> Callable[[int], int]:
        return lambda address: destroyed.append(name) or real(address)

    for name, real in library.functions.items():
        if name.endswith("Destroy"):
            library.functions[name] = counted(name, real)
    session = Session(CPU, 1)
    prepared = session.prepare(case("bf16"))
    gc.collect()
    assert destroyed == ["MatmulPreferenceDestroy"]
    del prepared
    session.close()
    gc.collect()
    assert sorted(destroyed[1:]) == ["MatmulDescDestroy", *["MatrixLayoutDestroy"] * 3]


# ---------------------------------------------------------------- cupy


STREAM = 0x5EED
CUPY = [name for name, kind in PRECISIONS.items() if "cupy" in kind.min_capability]


@pytest.fixture
def cupy_installed() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("no CuPy")


@pytest.mark.usefixtures("cupy_installed")
def test_what_cannot_run_has_a_reason() -> None:
    def reason(precision: str, layout: str = "nt", **dims: int) -> str:
        return refusal(cupy_blas.check, case(precision, layout, "cupy", **dims), H200)

    for name, kind in PRECISIONS.items():
        if kind.is_float8:
            assert reason(name) == f"cublasGemmEx has no {name}; use --backend cublaslt"
        elif name != "int8":
            assert not reason(name, "tn", m=3, n=5, k=7)
    assert not reason("int8", m=7)
    assert "use --layout nt" in reason("int8", "nn")
    assert "multiples of 4, not 32 and 66" in reason("int8", k=66)


def test_a_cupy_that_does_not_load_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy_backends.cuda.libs", None)
    with pytest.raises(CannotRun, match="CuPy cannot be imported"):
        cupy_blas._binding.__wrapped__()


# --- gemmEx, with a stand-in for cuBLAS ---------------------------------------------------------


def stored(op: int, rows: int, columns: int, ld: int) -> api.Stored:
    """A matrix that is rows x columns after the operation."""
    swapped = op == api.CUBLAS_OP_T
    return api.Stored(op, *((columns, rows) if swapped else (rows, columns)), ld)


class CupyStandIn:
    """cuBLAS as CuPy binds it; multiplies in float64 what the addresses point at."""

    class CUBLASError(RuntimeError):
        pass

    NAMES: ClassVar = {number: name for name, number in api.DATA_TYPES.items()}
    SCALES: ClassVar = {64: api.CUDA_R_16F, 70: api.CUDA_R_64F, 72: api.CUDA_R_32I}

    def __init__(self) -> None:
        self.mode = 0
        self.compute = 0
        self.stream = 0
        self.refusal = ""

    def create(self) -> int:
        return 0xC0DE

    def setMathMode(self, handle: int, mode: int) -> None:
        assert handle == 0xC0DE
        self.mode = mode

    def gemmEx(self, handle: int, *arguments: int) -> None:
        if self.refusal:
            raise self.CUBLASError(self.refusal)
        op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta = arguments[:13]
        c, c_type, ldc, compute, algo = arguments[13:]
        assert (handle, algo, self.stream) == (0xC0DE, -1, STREAM)
        self.compute = compute
        held, one = api._ONE_IN[self.SCALES.get(compute, api.CUDA_R_32F)]
        assert held.from_address(alpha).value == one
        assert held.from_address(beta).value == 0
        sides = (op_a, m, k, lda, a, a_type), (op_b, k, n, ldb, b, b_type)
        first, second = (
            operand(data, getattr(torch, self.NAMES[kind]), stored(op, rows, columns, ld))
            for op, rows, columns, ld, data, kind in sides
        )
        dtype = getattr(torch, self.NAMES[c_type])
        memory(c, dtype, (m, n), ldc)[:] = (first @ second).to(dtype)


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> CupyStandIn:
    library = CupyStandIn()

    @contextmanager
    def stream(address: int) -> Iterator[None]:
        library.stream = address
        yield
        library.stream = 0

    monkeypatch.setattr(cupy_blas, "_binding", lambda: library)
    monkeypatch.setattr(cupy_blas, "_handle", cupy_blas._handle.__wrapped__)
    monkeypatch.setattr(cupy_blas, "_cupy_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return library


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", CUPY)
def test_gemm_ex_is_asked_for_the_right_product(
    binding: CupyStandIn, precision: str, layout: str
) -> None:
    prepared = Session(CPU, seed=1).prepare(case(precision, layout, "cupy"))
    gc.collect()  # what a launch points at must be alive by its own doing
    (candidate,) = prepared.candidates
    assert prepared.rel_error(candidate) <= PRECISIONS[precision].rel_tolerance
    assert binding.compute == api.arithmetic(PRECISIONS[precision]).compute
    assert binding.mode == 16  # the default, TF32 off, and no reductions in the output's type


def test_a_refusal_is_a_reason(binding: CupyStandIn) -> None:
    binding.refusal = "CUBLAS_STATUS_NOT_SUPPORTED"
    with pytest.raises(CannotRun, match=r"rejects gemm/.*/int8/cupy: CUBLAS_STATUS_NOT_SUPPORTED"):
        Session(CPU, 1).prepare(case("int8", backend="cupy"))


@pytest.mark.usefixtures("cupy_installed")
def test_the_constants_are_cupy_s_and_it_reads_a_stream_s_address() -> None:
    real = cupy_blas._binding()
    names = [name for name in vars(api) if name.startswith("CUBLAS_") and hasattr(real, name)]
    assert len(names) >= 8
    assert {n: getattr(api, n) for n in names} == {n: getattr(real, n) for n in names}
    assert cupy_blas._cupy_stream(STREAM).ptr == STREAM
    assert cupy_blas._cupy_stream(0).ptr == 0
