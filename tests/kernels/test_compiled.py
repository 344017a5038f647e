"""Triton kernels compiled for sm_90 without a GPU: the instructions meant, and no spills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pytest
from samples.hopper import SHARED_LIMIT, Built, build

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.case import Case, Target  # noqa: E402
from kernels.conv import Conv  # noqa: E402
from kernels.conv.shape import ConvShape  # noqa: E402
from kernels.conv.triton import backend as conv  # noqa: E402
from kernels.conv.triton import data_configs  # noqa: E402
from kernels.conv.triton.problem import ImplicitGemm  # noqa: E402
from kernels.gemm import Gemm  # noqa: E402
from kernels.gemm.triton import backend as gemm  # noqa: E402
from kernels.gemm.triton import config as gemm_config  # noqa: E402
from kernels.triton_util import gluon_missing  # noqa: E402

pytestmark = pytest.mark.usefixtures("hopper")

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
WGMMA = {
    "fp16": "f32.f16.f16", "bf16": "f32.bf16.bf16", "tf32": "f32.tf32.tf32",
    "fp8-e4m3": "f32.e4m3.e4m3", "int8": "s32.s8.s8", "fp8-weights": "f32.bf16.bf16",
}  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A case, and the label of a configuration that runs it."""

    case: Case
    label: str

    def __str__(self) -> str:
        return f"{self.label} {self.case.precision_name} {self.case.problem.layout}"

    @property
    def kernel(self) -> str:
        return self.label.split("/")[0]


def matrices(label: str, precision: str, size: int, layout: str = "nt") -> Tried:
    return Tried(Case(Gemm(size, size, size, layout), precision, "triton"), label)


def layer(label: str, precision: str, which: str, sizes: tuple[int, int, int, int, int]) -> Tried:
    """Of 64 images; sizes are channels, filters, image, kernel and stride."""
    c, k, image, kernel, stride = sizes
    shape = ConvShape(64, c, image, image, k, kernel, kernel, stride, kernel // 2)
    return Tried(Case(Conv(shape, which), precision, "triton"), label)


@cache
def built(tried: Tried) -> Built:
    """Compiled once, for all tests that read it."""
    if "gluon" in tried.kernel and gluon_missing():
        pytest.skip(str(gluon_missing()))
    backend = gemm if tried.case.op == "gemm" else conv
    return build(lambda: backend.compiled(tried.case, H200, tried.label))


SQUARE, ODD, STRIDED = (64, 64, 56, 3, 1), (131, 67, 14, 3, 1), (48, 80, 31, 5, 2)
TRIED = (
    matrices("pointer/128x64x64/s4/w4/g8", "fp16", 2048),
    matrices("tma/128x128x64/s4/w4/g8", "fp16", 2048, "tt"),
    matrices("tma_persistent/128x256x64/s3/w8/g8", "bf16", 8192, "nn"),
    matrices("tma_persistent/128x256x64/s3/w8/g8/sub4/direct", "fp16", 4095),
    matrices("tma_persistent/128x256x128/s3/w8/g8", "fp8-e4m3", 8192, "nn"),
    matrices("tma_persistent/128x256x32/s3/w8/g8/sub4/direct", "tf32", 4098),
    matrices("tma_persistent/128x256x128/s3/w8/g8/sub2", "int8", 4100),
    matrices("split_k/128x128x64/s4/w8/g8/k8", "fp16", 4096, "tn"),
    matrices("split_k/32x64x128/s5/w4/g8/k4/swapped", "fp16", 4096),
    matrices("split_k/16x64x128/s5/w4/g8/k4/swapped", "fp8-weights", 4096),
    matrices("split_k/128x128x32/s4/w8/g8/k5", "tf32", 4096),
    matrices("split_k/128x128x128/s4/w8/g8/k6", "int8", 4096),
    matrices("split_k/64x64x64/s4/w4/g8", "fp16", 4096),
    matrices("odd_width/272x128x64/s4/w8/g8/swapped", "fp16", 272),
    matrices("odd_width/128x144x64/s6/w8/g8", "bf16", 1536),
    matrices("odd_width/128x320x32/s4/w8/g8", "tf32", 1536),
    matrices("pointer/64x128x64/s4/w4/g8", "fp16", 1000, "tn"),
    layer("conv_persistent/4x8x8x64x64/s3/w4/sub2", "fp16", "fprop", SQUARE),
    layer("conv_persistent/4x8x8x64x64/s3/w4/sub2", "bf16", "dgrad", SQUARE),
    layer("conv_persistent/4x8x8x64x64/s3/w4/sub2/p2", "fp8-e4m3", "fprop", SQUARE),
    layer("conv_gather/1x1x64x16x64/s3/w4", "fp16", "fprop", (8, 8, 28, 3, 1)),
    layer("conv_gather/1x1x64x16x64/s3/w4", "fp16", "dgrad", (4, 4, 28, 3, 1)),
    layer("conv_gather/1x1x256x16x32/s3/w8", "bf16", "dgrad", (3, 64, 224, 7, 2)),
    layer("conv_gluon/4x8x8x96x64/s4/w8", "bf16", "fprop", (96, 96, 40, 3, 1)),
    layer("conv_gluon/1x8x8x96x32/s4/w4/p2", "fp16", "fprop", (96, 96, 40, 3, 1)),
    layer("conv_gluon/16x2x4x144x64/s5/w8/padded", "fp16", "dgrad", ODD),
    layer("conv_gluon/1x16x16x64x64/s4/w8", "fp16", "dgrad", STRIDED),
    layer("wgrad_tma/1x32x128x128/t3/r1/s3/w8/x14", "bf16", "wgrad", (128, 128, 28, 3, 1)),
    layer("wgrad_tma/64x1x128x64/t1/r1/s4/w4/x10/padded", "fp16", "wgrad", STRIDED),
    layer("wgrad_gather/1x64x128x128/t1/r1/s4/w8/x14", "fp16", "wgrad", (128, 128, 28, 3, 1)),
    layer("wgrad_exchanged/1x64x128x128/t1/r1/s4/w8/x66", "bf16", "wgrad", (128, 8, 28, 5, 1)),
)  # fmt: skip
BY_POINTERS = ("pointer", "conv_gather", "wgrad_gather", "wgrad_exchanged")


@pytest.mark.parametrize("tried", TRIED, ids=str)
def test_it_multiplies_by_wgmma_and_spills_nothing(tried: Tried) -> None:
    found = built(tried)
    assert found.shared <= SHARED_LIMIT
    assert found.spilled == 0, found.log
    assert {name.split(".", 1)[1] for name in found.wgmma} == {WGMMA[tried.case.precision_name]}
    assert "mma.sync.aligned.m16" not in found.ptx
    assert ("cp.async.bulk.tensor" in found.ptx) == (tried.kernel not in BY_POINTERS)
    assert ("setmaxnreg" in found.ptx) == ("gluon" in tried.kernel)
    if not tried.kernel.startswith("wgrad"):
        assert "serialized" not in found.log


@pytest.mark.parametrize("tried", [tried for tried in TRIED if "gluon" in tried.kernel], ids=str)
def test_a_gluon_tile_is_as_wide_as_it_says_and_stored_by_tma_on_16_bytes(tried: Tried) -> None:
    config = data_configs.parse(tried.label)
    parts = data_configs.split_n(config.bk)
    estimated = data_configs.shared_memory(config, ImplicitGemm.of(tried.case))
    found = re.findall(r"m64n(\d+)k", " ".join(built(tried).wgmma))
    assert set(map(int, found)) == {width for width in parts if width}
    assert built(tried).shared <= estimated
    channels = tried.case.problem.dims["c" if tried.case.problem.dims["pass"] == "dgrad" else "k"]
    aligned = channels * tried.case.precision.bytes_per_element % 16 == 0
    assert (".global.shared::cta.bulk_group" in built(tried).ptx) == aligned


@pytest.mark.parametrize(
    "tried", [tried for tried in TRIED if tried.kernel == gemm_config.SPLIT_K], ids=str
)
def test_slices_are_counted_and_their_values_never_added_atomically(tried: Tried) -> None:
    """So their order is always the same; and all in the one launch."""
    atomics = re.findall(r"(?:atom|red)\.global\S+", built(tried).ptx)
    assert atomics == ["atom.global.gpu.acq_rel.add.u32"] * ("/k" in tried.label)
    assert len(built(tried).kernels) == 1
    config = gemm_config.parse(tried.label)
    assert built(tried).shared <= gemm_config.shared_memory(config, tried.case.precision)


def test_rows_that_no_16_divides_are_loaded_and_stored_by_16_bytes() -> None:
    (tried,) = (each for each in TRIED if each.case.problem.dims.get("m") == 1000)
    ptx = built(tried).ptx
    assert set(re.findall(r"cp\.async\.c\w\.\S+ [^;]*, (0x[0-9a-f]+|\d+), ", ptx)) == {"0x10"}
    assert set(re.findall(r"(?:ld|st)\.global\.(\S+)", ptx)) == {"v4.b32"}


@pytest.mark.parametrize(("size", "load"), [(4095, "b16"), (4100, "b32"), (4098, "b64")])
def test_copies_load_the_widest_word_and_store_16_bytes(size: int, load: str) -> None:
    (tried,) = (each for each in TRIED if each.case.problem.dims.get("m") == size)
    copy, _ = built(tried).kernels
    assert set(re.findall(r"ld\.global\.(\S+)", copy.asm["ptx"])) == {load}
    assert set() < set(re.findall(r"st\.global\.(\S+)", copy.asm["ptx"])) <= {"v4.b32", "v2.b64"}


def test_only_the_operand_that_wgmma_cannot_read_is_transposed() -> None:
    copies = {
        (tried.case.precision_name, tried.case.problem.layout): len(built(tried).kernels) - 1
        for tried in TRIED
        if tried.case.op == "gemm" and tried.case.problem.dims["m"] % 16 == 0
    }
    assert copies == {
        ("fp16", "nt"): 0, ("fp16", "tt"): 0, ("fp16", "tn"): 0, ("bf16", "nn"): 0,
        ("bf16", "nt"): 0, ("fp8-e4m3", "nn"): 1, ("tf32", "nt"): 0, ("int8", "nt"): 0,
        ("fp8-weights", "nt"): 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "load"), [(8, "cp.async.cg.shared.global"), (4, "ld.global.v2.b32")]
)
def test_gathered_channels_are_loaded_several_at_once(channels: int, load: str) -> None:
    (tried,) = (each for each in TRIED if each.case.problem.dims.get("c") == channels)
    assert load in built(tried).ptx
