"""Sources of the kernels that do nothing but multiply: wgmma, mma.sync and FFMA.

Operands are loaded once and multiplied `passes` times; accumulators stay in registers and are
written only where `out` is given, so that timing sees the instruction alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.precision import Precision

ROW_BYTES = 128  # of an operand tile in shared memory: one row of the 128-byte swizzle
INSTRUCTION_BYTES = 32  # of a row that one instruction multiplies, in every precision but fp64
STEPS_PER_TILE = ROW_BYTES // INSTRUCTION_BYTES
FMA_CHAINS = 16  # independent accumulators of a thread
FMA_UNROLL = 16
FMA_FACTOR, FMA_TERM = 0.9990234375, 0.3720703125  # exact in float32; keep values finite

_PTX_TYPES = {
    "float64": "f64", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int8": "s8", "float32": "tf32",
}  # fmt: skip
_ACCUMULATORS = {"float64": "f64", "float32": "f32", "float16": "f16", "int32": "s32"}


@dataclass(frozen=True)
class Operands:
    """The types of a matrix multiplication D = A @ B + D as PTX names them: "f16", "f32"."""

    a: str
    b: str
    accumulator: str

    @classmethod
    def of(cls, precision: Precision) -> Operands:
        """The types of a precision that Tensor Cores multiply."""
        return cls(
            _PTX_TYPES[precision.storage],
            _PTX_TYPES[precision.storage_b or precision.storage],
            _ACCUMULATORS[precision.accumulate],
        )

    @property
    def types(self) -> str:
        """The suffix of an instruction: ".f32.f16.f16"."""
        return f".{self.accumulator}.{self.a}.{self.b}"

    @property
    def c_type(self) -> str:
        """The C type of a register of accumulators; float16 has two in one."""
        return {"f64": "double", "f32": "float", "f16": "unsigned", "s32": "int"}[self.accumulator]

    @property
    def constraint(self) -> str:
        """The inline assembly's letter of that type."""
        return {"f64": "d", "f32": "f", "f16": "r", "s32": "r"}[self.accumulator]

    @property
    def per_register(self) -> int:
        """Accumulators in a register."""
        return 2 if self.accumulator == "f16" else 1


def wgmma(operands: Operands, k: int, n: int, groups: int, steps: int, in_flight: int) -> str:
    """m64n`n`k`k` from shared memory by `groups` warpgroups, each with its own rows of A.

    `steps` instructions are committed together; `in_flight` earlier groups may still run.
    """
    registers = 32 * n // 64 // operands.per_register
    listed = ", ".join(f"%{i}" for i in range(registers))
    # scale-a, scale-b; 16-bit types may also be transposed, here they are not.
    scales = {"s8": "", "f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0"}.get(operands.a, ", 1, 1")
    kept = ", ".join(f'"+{operands.constraint}"(d[{i}])' for i in range(registers))
    return _WGMMA % {
        "acc": operands.c_type, "registers": registers, "groups": groups, "n": n, "steps": steps,
        "in_flight": in_flight, "threads": 128 * groups, "per": operands.per_register, "kept": kept,
        "instruction": f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{operands.types} "
        f"{{{listed}}}, %{registers}, %{registers + 1}, p{scales};",
    }  # fmt: skip


_WGMMA = r"""
extern "C" __global__ void __launch_bounds__(%(threads)d, 1)
product(const uint4* a, const uint4* b, %(acc)s* out, int passes) {
    extern __shared__ unsigned char raw[];
    unsigned base = ((unsigned)__cvta_generic_to_shared(raw) + 1023) & ~1023u;
    for (int i = threadIdx.x; i < (64 * %(groups)d + %(n)d) * 8; i += %(threads)d) {
        int row = i >> 3, chunk = i & 7;
        uint4 v = row < 64 * %(groups)d ? a[i] : b[i - 64 * %(groups)d * 8];
        asm volatile("st.shared.v4.b32 [%%0], {%%1, %%2, %%3, %%4};"
            :: "r"(base + row * 128 + ((chunk ^ (row & 7)) << 4)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    // 128-byte swizzle, 1,024 bytes from eight rows to the next eight.
    const unsigned long long fixed = (1ull << 16) | (64ull << 32) | (1ull << 62);
    unsigned long long at_a = fixed | (((base + group * 8192) & 0x3FFFF) >> 4);
    unsigned long long at_b = fixed | (((base + %(groups)d * 8192) & 0x3FFFF) >> 4);
    %(acc)s d[%(registers)d];
    #pragma unroll
    for (int i = 0; i < %(registers)d; ++i) d[i] = 0;
    #pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int step = 0; step < %(steps)d; ++step)
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; %(instruction)s }"
                : %(kept)s : "l"(at_a + 2 * (step & 3)), "l"(at_b + 2 * (step & 3)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned %(in_flight)d;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (out && blockIdx.x == 0) {
        int lane = threadIdx.x & 31, warp = (threadIdx.x / 32) & 3;
        #pragma unroll
        for (int i = 0; i < %(registers)d; ++i) {
            int e = i * %(per)d;  // of the four accumulators of a thread in every eight columns
            int row = 64 * group + 16 * warp + lane / 4 + 8 * ((e >> 1) & 1);
            int column = (e >> 2) * 8 + (lane & 3) * 2 + (e & 1);
            out[(row * %(n)d + column) / %(per)d] = d[i];
        }
    }
}
"""


def mma_sync(operands: Operands, rows: int, words: int, k: int, tiles: tuple[int, int]) -> str:
    """m`rows`n8k`k` from registers; a warp has tiles[0] x tiles[1] independent accumulators.

    An operand's row is `words` registers wide: 32 bytes, or doubles in fp64.
    """
    of_a, of_b = rows // 8 * words // 4, words // 4
    of_d = rows // 4 // operands.per_register
    word, letter = ("double", "d") if operands.a == "f64" else ("unsigned", "r")
    first = 0
    lists: list[str] = []
    for count in (of_d, of_a, of_b):
        lists.append("{" + ", ".join(f"%{first + i}" for i in range(count)) + "}")
        first += count
    d, a, b = lists
    shape = f"m{rows}n8k{k}.row.col{operands.types}.{operands.accumulator}"
    return _MMA_SYNC % {
        "acc": operands.c_type, "word": word, "words": words, "of_a": of_a, "of_b": of_b,
        "of_d": of_d, "rows": rows, "high": rows // 8, "down": tiles[0], "across": tiles[1],
        "per": operands.per_register,
        "instruction": f"mma.sync.aligned.{shape} {d}, {a}, {b}, {d};",
        "kept": ", ".join(f'"+{operands.constraint}"(d[i][j][{r}])' for r in range(of_d)),
        "read": ", ".join(
            [f'"{letter}"(x[i][{r}])' for r in range(of_a)]
            + [f'"{letter}"(y[j][{r}])' for r in range(of_b)]
        ),
    }  # fmt: skip


_MMA_SYNC = r"""
extern "C" __global__ void
product(const %(word)s* a, const %(word)s* b, %(acc)s* out, int passes) {
    int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3;
    %(word)s x[%(down)d][%(of_a)d], y[%(across)d][%(of_b)d];
    %(acc)s d[%(down)d][%(across)d][%(of_d)d];
    #pragma unroll
    for (int i = 0; i < %(down)d; ++i)
        #pragma unroll
        for (int r = 0; r < %(of_a)d; ++r)
            x[i][r] = a[(i * %(rows)d + g + 8 * (r %% %(high)d)) * %(words)d
                        + t + 4 * (r / %(high)d)];
    #pragma unroll
    for (int j = 0; j < %(across)d; ++j)
        #pragma unroll
        for (int r = 0; r < %(of_b)d; ++r) y[j][r] = b[(j * 8 + g) * %(words)d + t + 4 * r];
    #pragma unroll
    for (int i = 0; i < %(down)d; ++i)
        #pragma unroll
        for (int j = 0; j < %(across)d; ++j)
            #pragma unroll
            for (int r = 0; r < %(of_d)d; ++r) d[i][j][r] = 0;
    #pragma unroll 2
    for (int pass = 0; pass < passes; ++pass)
        #pragma unroll
        for (int i = 0; i < %(down)d; ++i)
            #pragma unroll
            for (int j = 0; j < %(across)d; ++j)
                asm volatile("%(instruction)s" : %(kept)s : %(read)s);
    if (out && blockIdx.x == 0 && threadIdx.x < 32) {
        #pragma unroll
        for (int i = 0; i < %(down)d; ++i)
            #pragma unroll
            for (int j = 0; j < %(across)d; ++j)
                #pragma unroll
                for (int r = 0; r < %(of_d)d; ++r) {
                    int e = r * %(per)d;
                    int row = i * %(rows)d + g + 8 * (e >> 1), column = j * 8 + 2 * t + (e & 1);
                    out[(row * %(across)d * 8 + column) / %(per)d] = d[i][j][r];
                }
    }
}
"""

FMA = f"""
extern "C" __global__ void
product(const float* factors, float* out, int passes) {{
    float factor = factors[0], term = factors[1], d[{FMA_CHAINS}];
    #pragma unroll
    for (int i = 0; i < {FMA_CHAINS}; ++i) d[i] = threadIdx.x + i;
    #pragma unroll 1
    for (int pass = 0; pass < passes; ++pass)
        #pragma unroll
        for (int u = 0; u < {FMA_UNROLL}; ++u)
            #pragma unroll
            for (int i = 0; i < {FMA_CHAINS}; ++i) d[i] = fmaf(d[i], factor, term);
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < {FMA_CHAINS}; ++i) {{
        if (out && blockIdx.x == 0) out[threadIdx.x * {FMA_CHAINS} + i] = d[i];
        sum += d[i];
    }}
    if (sum == -1.0f) __trap();  // never: all values are positive
}}
"""
