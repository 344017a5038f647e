"""GEMM by cuBLASLt itself: every algorithm that its heuristic proposes is a candidate.

Where torch takes the heuristic's first proposal, the measuring core times them all, so this is the
best the library has. Two things keep the comparison honest. float32 means CUBLAS_COMPUTE_32F, which
never uses TF32. And where the output is narrower than the accumulator, split-K may add its partial
sums in the accumulator's type only ("float16, float32 accumulate" stays true), while torch's
default lets cuBLAS add them in float16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import torch

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.gemm import check_plain
from kernels.gemm import cublaslt_api as api
from kernels.gemm.operands import Operands
from kernels.precision import DTYPE_BYTES, Capability, Precision

MAX_CANDIDATES = 32
# What NVIDIA advises: 32 MiB from Hopper on, 4 MiB before (cuBLAS documentation,
# cublasSetWorkspace); with less, small problems lose their split-K algorithms.
WORKSPACE_BYTES_HOPPER = 32 << 20
WORKSPACE_BYTES_BEFORE = 4 << 20
# cublasLtMatmul, "To use FP8 kernels" and "To use IMMA kernels": both operands K-major ("TN"), and
# what lies along K and N aligned to 16 bytes (fp8) or in multiples of 4 (int8).
FLOAT8_MULTIPLE = 16
INT8_MULTIPLE = 4
MAX_ALIGNMENT_BYTES = 256  # what the heuristic assumes unless told less


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where cuBLASLt cannot multiply this. Its heuristic may still have
    no algorithm.
    """
    check_plain(case, "cuBLASLt")
    check_8bit(case, "cuBLASLt")


def check_8bit(case: Case, library: str, int8_multiple: int = INT8_MULTIPLE) -> None:
    """CannotRun where `library` has no kernel for an 8-bit case of this layout or size."""
    name, precision = case.precision_name, case.precision
    if precision.bytes_per_element != 1:
        return
    if not case.problem.layout.startswith("nt"):
        raise CannotRun(f"{name} in {library} needs both operands K-major; use --layout nt")
    _, n, k = case.problem.mnk
    multiple = FLOAT8_MULTIPLE if precision.is_float8 else int8_multiple
    if n % multiple or k % multiple:
        raise CannotRun(
            f"{name} in {library} needs N and K in multiples of {multiple}, not {n} and {k}"
        )


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """Every algorithm of the heuristic's, best guess first; `target` must be the current device.

    Labels and tiles in them are the library's, rows x columns of its column-major C;
    `Candidate.tile` is (M, N, K) of ours. Raises CannotRun when the library is missing or has
    nothing for the case.
    """
    require_current_device(target)
    try:
        problem = _Problem(case.precision, operands, target)
        algos = problem.proposed()
    except api.CublasLtError as error:
        raise CannotRun(
            f"cuBLASLt has no {case.precision_name} for {case.group}: {error}"
        ) from error
    if not algos:
        raise CannotRun(f"cuBLASLt's heuristic has no candidate for {case.key}")
    labels = _unique([_label(problem.library, algo) for algo in algos])
    return tuple(
        Candidate(label, problem.launcher(algo), tile=_tile(problem.library, algo))
        for label, algo in zip(labels, algos, strict=True)
    )


def require_current_device(target: Target) -> None:
    """CannotRun unless the target is torch's current device: raw launches go to that one."""
    current = torch.cuda.current_device()
    if current != target.index:
        raise CannotRun(
            f"cuda:{target.index} is not the current device (cuda:{current} is); "
            f"call torch.cuda.set_device({target.index}) first"
        )


@cache
def _handle(index: int) -> int:
    handle = ctypes.c_void_p()
    api.load().call("Create", ctypes.byref(handle))
    assert handle.value is not None, f"no handle for cuda:{index}"
    return handle.value


def workspace_bytes(capability: Capability) -> int:
    """Bytes of scratch memory for an algorithm, by NVIDIA's advice (WORKSPACE_BYTES_*)."""
    return WORKSPACE_BYTES_HOPPER if capability >= (9, 0) else WORKSPACE_BYTES_BEFORE


def reduction_schemes(precision: Precision) -> int:
    """A mask of the split-K reductions (cublasLtReductionScheme_t) that keep the accumulator."""
    if DTYPE_BYTES[precision.output] < DTYPE_BYTES[precision.accumulate]:
        return api.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
    return api.CUBLASLT_REDUCTION_SCHEME_MASK


def alignment_bytes(address: int) -> int:
    """The largest power of two, up to 256, that divides an address in bytes."""
    return min(address & -address, MAX_ALIGNMENT_BYTES) or MAX_ALIGNMENT_BYTES


class _Problem:
    """A GEMM as cuBLASLt is asked for it. It owns everything that a launch points at, so that a
    launch keeps that alive.
    """

    def __init__(self, precision: Precision, operands: Operands, target: Target) -> None:
        self.library, self.operands, self.index = api.load(), operands, target.index
        self.handle = _handle(target.index)
        self.bound: list[api.Algo] = []
        a, b, c = operands.a, operands.b, operands.c
        blas = api.column_major(operands.mnk, a.stride(), b.stride(), c.stride())
        how = api.arithmetic(precision)
        self.alpha, self.beta = how.scalars()
        self.reductions = reduction_schemes(precision)
        size = workspace_bytes(target.capability or (0, 0))
        self.workspace = torch.empty(size, dtype=torch.uint8, device=c.device)
        self.description = api.Descriptor(self.library, "MatmulDesc", how.compute, how.scale)
        self.description.set(api.CUBLASLT_MATMUL_DESC_TRANSA, ctypes.c_int32(blas.first.op))
        self.description.set(api.CUBLASLT_MATMUL_DESC_TRANSB, ctypes.c_int32(blas.second.op))
        if precision.is_float8:
            one = ctypes.c_void_p(operands.one.data_ptr())
            self.description.set(api.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, one)
            self.description.set(api.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, one)
            fast = ctypes.c_int8(precision.fast_accumulate)
            self.description.set(api.CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast)
        self.first = self._layout(precision.storage_b or precision.storage, blas.first)
        self.second = self._layout(precision.storage, blas.second)
        self.out = self._layout(precision.output, blas.out)

    def _layout(self, dtype: str, stored: api.Stored) -> api.Descriptor:
        sizes = (stored.rows, stored.columns, stored.ld)
        return api.Descriptor(self.library, "MatrixLayout", api.DATA_TYPES[dtype], *sizes)

    def _preference(self) -> api.Descriptor:
        preference = api.Descriptor(self.library, "MatmulPreference")
        size = ctypes.c_uint64(self.workspace.numel())
        preference.set(api.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size)
        reductions = ctypes.c_uint32(self.reductions)
        preference.set(api.CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)
        for attribute, tensor in (
            (api.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, self.operands.b),
            (api.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, self.operands.a),
            (api.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, self.operands.c),
            (api.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, self.operands.c),
        ):
            preference.set(attribute, ctypes.c_uint32(alignment_bytes(tensor.data_ptr())))
        return preference

    def proposed(self) -> list[api.Algo]:
        """The heuristic's algorithms, best guess first, each once. Raises CublasLtError."""
        results = (api.HeuristicResult * MAX_CANDIDATES)()
        count = ctypes.c_int()
        preference = self._preference()
        layouts = (self.first.address, self.second.address, self.out.address, self.out.address)
        self.library.call(
            "MatmulAlgoGetHeuristic", self.handle, self.description.address, *layouts,
            preference.address, MAX_CANDIDATES, ctypes.byref(results), ctypes.byref(count),
        )  # fmt: skip
        usable = [r for r in results[: count.value] if r.state == api.CUBLAS_STATUS_SUCCESS]
        by_content = {bytes(result.algo): result.algo for result in usable}
        return [api.Algo.from_buffer_copy(content) for content in by_content]

    def launcher(self, algo: api.Algo) -> Callable[[], None]:
        """One cublasLtMatmul on torch's current stream, its arguments bound beforehand."""
        self.bound.append(algo)  # its address is among the arguments
        matmul, out = self.library.functions["Matmul"], self.operands.c.data_ptr()
        arguments = (
            self.handle, self.description.address, ctypes.addressof(self.alpha),
            self.operands.b.data_ptr(), self.first.address,
            self.operands.a.data_ptr(), self.second.address, ctypes.addressof(self.beta),
            out, self.out.address, out, self.out.address,
            ctypes.addressof(algo), self.workspace.data_ptr(), self.workspace.numel(),
        )  # fmt: skip

        def launch() -> None:
            # The raw stream of torch.cuda.current_stream(), without making a Stream object of it.
            stream = torch._C._cuda_getCurrentRawStream(self.index)
            status = matmul(*arguments, stream)
            if status != api.CUBLAS_STATUS_SUCCESS:
                raise self.library.error("Matmul", status)

        return launch


def _label(library: api.Library, algo: api.Algo) -> str:
    def read(attribute: int) -> int:
        return library.algo_config(algo, attribute)

    tile = read(api.CUBLASLT_ALGO_CONFIG_TILE_ID)
    stages = read(api.CUBLASLT_ALGO_CONFIG_STAGES_ID)
    cluster = read(api.CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)
    parts = [
        f"algo{read(api.CUBLASLT_ALGO_CONFIG_ID)}",
        "tile" + _times(api.TILES.get(tile), tile),
        "stages" + _times(api.STAGES.get(stages), stages),
        f"splitk{read(api.CUBLASLT_ALGO_CONFIG_SPLITK_NUM)}",
        "cluster" + (api.CLUSTERS.get(cluster) or (f"#{cluster}" if cluster else "auto")),
    ]
    for name, attribute in (
        ("reduce", api.CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
        ("swizzle", api.CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
        ("custom", api.CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
        ("inner", api.CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
    ):
        if value := read(attribute):
            parts.append(f"{name}{value}")
    return "/".join(parts)


def _times(pair: tuple[object, object] | None, number: int) -> str:
    """ "128x256", or "#700" for an id that the table does not have."""
    return f"{pair[0]}x{pair[1]}" if pair else f"#{number}"


def _unique(labels: Sequence[str]) -> list[str]:
    """The labels, those seen before numbered: settings that cuBLASLt does not show differ."""
    before = [labels[:index].count(label) for index, label in enumerate(labels)]
    return [f"{one}~{n + 1}" if n else one for one, n in zip(labels, before, strict=True)]


def _tile(library: api.Library, algo: api.Algo) -> tuple[int, int, int] | None:
    tile = api.TILES.get(library.algo_config(algo, api.CUBLASLT_ALGO_CONFIG_TILE_ID))
    stages = api.STAGES.get(library.algo_config(algo, api.CUBLASLT_ALGO_CONFIG_STAGES_ID))
    return (tile[1], tile[0], stages[0]) if tile and stages else None
