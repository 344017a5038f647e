"""Sources of the kernels that do nothing but move bytes, 16 a thread at a time, and of one that
does nothing; torch's own copy.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.case import Target

WORD_BYTES = 16
PATTERN = 0x9E3779B9  # what `write` writes, each word its own multiple
SHARED_UNROLL = 8
BULK_ALIGNMENT = 128

# `tile` of a block is `unroll` words for each of its threads, side by side. `mask` wraps the words
# read round the working set, whose size is a power of two.
_TRAFFIC = r"""
extern "C" __global__ void __launch_bounds__(%(threads)d)
traffic(const uint4* from, uint4* to, unsigned mask, unsigned tiles, unsigned* out) {
    %(begin)s
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        unsigned first = tile * %(threads)du * %(unroll)du + threadIdx.x;
        uint4 v[%(unroll)d];
        unsigned at[%(unroll)d];
        #pragma unroll
        for (int u = 0; u < %(unroll)d; ++u) {
            at[u] = (first + u * %(threads)du) & mask;
            %(get)s
        }
        #pragma unroll
        for (int u = 0; u < %(unroll)d; ++u) {
            %(put)s
        }
    }
    %(end)s
}
"""
_GET = (
    'asm volatile("ld.global%s.v4.u32 {%%0, %%1, %%2, %%3}, [%%4];" '
    ': "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w) : "l"(from + at[u]));'
)
_PUT = (
    'asm volatile("st.global%s.v4.u32 [%%0], {%%1, %%2, %%3, %%4};" '
    ':: "l"(to + at[u]), "r"(v[u].x), "r"(v[u].y), "r"(v[u].z), "r"(v[u].w) : "memory");'
)
_SUM = "sum += v[u].x + v[u].y + v[u].z + v[u].w;"
_KEEP = "if (out) atomicAdd(out, sum);"
_MAKE = f"v[u].x = at[u] * {PATTERN}u; v[u].y = ~v[u].x; v[u].z = v[u].x + 1; v[u].w = v[u].y - 1;"


def traffic(what: str, threads: int, unroll: int, cache: str) -> str:
    """A kernel that reads, writes or copies; `cache` is the operator of its loads or stores."""
    parts = {
        "read": (_GET % cache, _SUM, "unsigned sum = 0;", _KEEP),
        "write": (_MAKE, _PUT % cache, "", ""),
        "copy": (_GET % cache, _PUT % cache, "", ""),
    }
    get, put, begin, end = parts[what]
    return _TRAFFIC % {
        "threads": threads, "unroll": unroll, "get": get, "put": put, "begin": begin, "end": end,
    }  # fmt: skip


def shared(threads: int, bytes_of_block: int) -> str:
    """16-byte loads from shared memory, a warp's in a row, so that no two meet in a bank.

    A pass loads a window of the block's memory, one of two at least: a compiler would take the
    loads of the same window out of the loop.
    """
    window = threads * WORD_BYTES * SHARED_UNROLL
    return _SHARED % {
        "threads": threads, "unroll": SHARED_UNROLL, "words": bytes_of_block // WORD_BYTES,
        "mask": bytes_of_block // window - 1, "window": window, "row": threads * WORD_BYTES,
    }  # fmt: skip


_SHARED = r"""
extern "C" __global__ void __launch_bounds__(%(threads)d)
traffic(const uint4* from, unsigned step, unsigned passes, unsigned* out) {
    extern __shared__ uint4 kept[];
    for (unsigned i = threadIdx.x; i < %(words)du; i += %(threads)du) kept[i] = from[i];
    __syncthreads();
    unsigned base = (unsigned)__cvta_generic_to_shared(kept) + threadIdx.x * 16, sum = 0, at = 0;
    #pragma unroll 1
    for (unsigned pass = 0; pass < passes; ++pass) {
        uint4 v[%(unroll)d];
        #pragma unroll
        for (int u = 0; u < %(unroll)d; ++u)
            asm volatile("ld.shared.v4.u32 {%%0, %%1, %%2, %%3}, [%%4];"
                : "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w)
                : "r"(base + at * %(window)du + u * %(row)du));
        #pragma unroll
        for (int u = 0; u < %(unroll)d; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        at = (at + step) & %(mask)du;  // known to the host alone, so that no load is left out
    }
    if (out && blockIdx.x == 0) atomicXor(out, sum);
}
"""

EMPTY = 'extern "C" __global__ void nothing() {}'


def bulk_read(tile_bytes: int, stages: int) -> str:
    """The copy engine of Hopper and later (cp.async.bulk) reads into shared memory.

    A warp keeps `stages` tiles in flight, and looks at what came only where a sum is asked for.
    """
    return _BULK % {"bytes": tile_bytes, "stages": stages, "words": tile_bytes // WORD_BYTES}


_BULK = r"""
__device__ void fetch(unsigned to, const uint4* from, unsigned barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%0], %(bytes)d;"
        :: "r"(barrier) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%%0], [%%1], %(bytes)d, [%%2];" :: "r"(to), "l"(from), "r"(barrier) : "memory");
}
__device__ void wait(unsigned barrier, unsigned phase) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%%1], %%2; "
            "selp.u32 %%0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
}
extern "C" __global__ void __launch_bounds__(32)
traffic(const uint4* from, uint4* to, unsigned mask, unsigned tiles, unsigned* out) {
    extern __shared__ unsigned char raw[];
    __shared__ unsigned long long full[%(stages)d];
    unsigned kept = ((unsigned)__cvta_generic_to_shared(raw) + 127) & ~127u;
    unsigned barriers = (unsigned)__cvta_generic_to_shared(full), sum = 0;
    bool first = threadIdx.x == 0;
    if (first) {
        for (int s = 0; s < %(stages)d; ++s)
            asm volatile("mbarrier.init.shared::cta.b64 [%%0], 1;" :: "r"(barriers + 8 * s));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    unsigned next = blockIdx.x;
    for (int s = 0; s < %(stages)d; ++s, next += gridDim.x)
        if (first && next < tiles)
            fetch(kept + s * %(bytes)d, from + (next * %(words)du & mask), barriers + 8 * s);
    unsigned s = 0, phase = 0;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x, next += gridDim.x) {
        wait(barriers + 8 * s, phase);
        if (out)
            for (unsigned i = threadIdx.x; i < %(words)du; i += 32) {
                uint4 v;
                asm volatile("ld.shared.v4.u32 {%%0, %%1, %%2, %%3}, [%%4];"
                    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                    : "r"(kept + s * %(bytes)d + i * 16) : "memory");
                sum += v.x + v.y + v.z + v.w;
            }
        __syncwarp();
        if (first && next < tiles)
            fetch(kept + s * %(bytes)d, from + (next * %(words)du & mask), barriers + 8 * s);
        if (++s == %(stages)d) { s = 0; phase ^= 1; }
    }
    if (out) atomicAdd(out, sum);
}
"""


COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}  # of the source; far beyond any cache


def copy(target: Target) -> tuple[Callable[[], object], int]:
    """(launch, bytes per launch) of a copy within device memory: bytes read plus bytes written.

    torch.OutOfMemoryError where two buffers of COPY_BYTES do not fit.
    """
    import torch

    size = COPY_BYTES[target.kind]
    source = torch.ones(size // 4, dtype=torch.int32, device=target.torch_device)
    destination = torch.empty_like(source)
    return (lambda: destination.copy_(source)), 2 * size
