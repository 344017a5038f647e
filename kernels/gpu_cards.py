"""What NVIDIA prints about each GPU: dense peak rates and memory bandwidth, with the source.

Every figure is dense: where a sheet prints the 2:4 sparsity figure alone it is halved here and the
note says so. FLOP/s and byte/s are SI (1 TFLOP/s = 1e12); int8 counts integer operations. A figure
assumes the boost clock of the sheet, so a card that clocks higher can pass 100 % of it and one held
back by its power cap cannot reach it. A GPU that was not looked up has no entry, and ceilings
measured on the machine itself replace it.

Three conventions that the sheets leave open:

* Accumulator. "fp16", "bf16" and "fp8" mean FP32 accumulation. GeForce parts print that rate apart
  from the FP16-accumulate one and at half of it. Data-centre parts print one FP16 rate, equal to
  the BF16 one (which always accumulates in FP32), so nothing is halved there and "fp16-acc16"
  repeats the "fp16" figure.
* FP8. All fp8 precisions share one rate: the formats differ in range, and "fp8-e4m3-precise" (no
  fast accumulation) is held to the same Tensor Core peak although promotion to FP32 costs time.
* FP64 of parts without fast FP64 units. Sheets omit it; the architecture whitepapers give it as a
  share of FP32 (Turing 1/32; GA10x, Ada and RTX Blackwell 1/64), applied here in plain sight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.precision import Capability, Precision

TERA = 1e12
GIGA = 1e9

TURING_FP64, GRAPHICS_FP64 = 1 / 32, 1 / 64  # of the fp32 rate

AMPERE_WHITEPAPER = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf"
)
HOPPER_WHITEPAPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"


@dataclass(frozen=True)
class Card:
    """One GPU as NVIDIA describes it; `reference` and `note` say where the figures are from.

    `match` holds its whole device names (NVML, torch.cuda.get_device_name). `flop_per_s` is the
    best dense rate a GEMM can reach, by `Precision.rate_name`; `simt_flop_per_s` the rate outside
    the Tensor Cores where a source states it; `byte_per_s` the DRAM bandwidth.
    """

    title: str
    match: tuple[str, ...]
    capability: Capability
    sms: int
    flop_per_s: Mapping[str, float]
    simt_flop_per_s: Mapping[str, float]
    byte_per_s: float
    reference: str
    note: str

    def peak(self, kind: Precision) -> float | None:
        """The dense peak of a precision in FLOP/s; None where the card lacks it."""
        return self.flop_per_s.get(kind.rate_name)


def _tera(**rates: float) -> dict[str, float]:
    """FLOP/s of rates in TFLOP/s (TOP/s of int8); `fp16_acc16` is "fp16-acc16"."""
    return {name.replace("_", "-"): rate * TERA for name, rate in rates.items()}


def _sparse(fp64: float, fp32: float, tf32: float, fp16: float, fp8: float) -> dict[str, float]:
    """FLOP/s where a sheet prints Tensor Core figures with sparsity: halved, but for fp64 and fp32.

    In TFLOP/s; bf16 and fp16's accumulation are as fast as fp16, int8 as fp8.
    """
    dense16, dense8 = fp16 / 2, fp8 / 2
    return _tera(
        fp64=fp64, fp32=fp32, tf32=tf32 / 2, fp16=dense16, fp16_acc16=dense16, bf16=dense16,
        fp8=dense8, int8=dense8,
    )  # fmt: skip


def _geforce(fp32: float, fp16: float, fp16_acc16: float, **more: float) -> dict[str, float]:
    """FLOP/s of a GeForce part, in TFLOP/s: tf32 is as fast as fp32, bf16 as fp16."""
    return _tera(
        fp64=fp32 * GRAPHICS_FP64, fp32=fp32, tf32=fp32, fp16=fp16, fp16_acc16=fp16_acc16,
        bf16=fp16, **more,
    )  # fmt: skip


_A100_GEMM = _tera(fp64=19.5, fp32=19.5, tf32=156, fp16=312, fp16_acc16=312, bf16=312, int8=624)
_A100_SIMT = _tera(fp64=9.7, fp32=19.5, fp16=78, bf16=39)

# The H100 SXM and H200 sheets print the same rates: one GH100 configuration, two memories.
_GH100_SXM_GEMM = _sparse(fp64=67, fp32=67, tf32=989, fp16=1979, fp8=3958)
_GH100_SXM_SIMT = _tera(fp64=34, fp32=67, fp16=133.8, bf16=133.8)

_GH100_SXM_CLOCK_NOTE = (
    "The tensor figures assume about 1.83 GHz. The card may run up to 1.98 GHz "
    "(132 SMs x 4096 FLOP/clk x 1.98 GHz = 1071 TFLOP/s in fp16), so more than 100 % of this "
    "figure is possible while the power cap allows it. The fp32 and fp64 figures assume 1.98 GHz. "
)

CARDS: tuple[Card, ...] = (
    Card(
        title="V100 SXM2",
        match=("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        capability=(7, 0),
        sms=80,
        flop_per_s=_tera(fp64=7.8, fp32=15.7, fp16=125, fp16_acc16=125),
        simt_flop_per_s=_tera(fp64=7.8, fp32=15.7, fp16=31.4),
        byte_per_s=900 * GIGA,
        reference=(
            "https://images.nvidia.com/content/technologies/volta/pdf/"
            "volta-v100-datasheet-update-us-1165301-r5.pdf"
        ),
        note=(
            "Printed dense (Volta has no sparsity feature), at 1530 MHz; 16 GB and 32 GB alike. "
            f"SIMT fp16 and the accumulators are from the V100 column of {AMPERE_WHITEPAPER}."
        ),
    ),
    Card(
        title="T4",
        match=("Tesla T4",),
        capability=(7, 5),
        sms=40,
        flop_per_s=_tera(fp64=8.1 * TURING_FP64, fp32=8.1, fp16=65, fp16_acc16=65, int8=130),
        simt_flop_per_s=_tera(fp64=8.1 * TURING_FP64, fp32=8.1),
        byte_per_s=320 * GIGA,
        reference=(
            "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/"
            "t4-tensor-core-datasheet-951643.pdf"
        ),
        note=(
            "Printed dense (Turing has no sparsity feature), at 1590 MHz, which the 70 W cap does "
            "not let a GEMM sustain. Bandwidth: this sheet prints 300 GB/s; 256 bits at 10 Gbit/s "
            "are 320 GB/s, as NVIDIA's T4 page prints. fp64 is 1/32 of fp32."
        ),
    ),
    Card(
        title="A100 SXM4 80GB",
        match=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        capability=(8, 0),
        sms=108,
        flop_per_s=_A100_GEMM,
        simt_flop_per_s=_A100_SIMT,
        byte_per_s=2039 * GIGA,
        reference=(
            "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
            "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
        ),
        note=(
            "The dense column of the sheet (the starred one is sparse), at 1410 MHz; 80 GB HBM2e. "
            f"SIMT fp16 and bf16 are from {AMPERE_WHITEPAPER}."
        ),
    ),
    Card(
        title="A100 SXM4 40GB",
        match=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        capability=(8, 0),
        sms=108,
        flop_per_s=_A100_GEMM,
        simt_flop_per_s=_A100_SIMT,
        byte_per_s=1555 * GIGA,
        reference=AMPERE_WHITEPAPER,
        note="The dense figure of each dense/sparse pair, at 1410 MHz; 40 GB HBM2.",
    ),
    Card(
        title="A10",
        match=("NVIDIA A10",),
        capability=(8, 6),
        sms=72,
        flop_per_s=_tera(
            fp64=31.2 * GRAPHICS_FP64,
            fp32=31.2,
            tf32=62.5,
            fp16=125,
            fp16_acc16=125,
            bf16=125,
            int8=250,
        ),
        simt_flop_per_s=_tera(fp64=31.2 * GRAPHICS_FP64, fp32=31.2),
        byte_per_s=600 * GIGA,
        reference=(
            "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/"
            "a10-datasheet.pdf"
        ),
        note=(
            "The dense column of the sheet (the starred one is sparse), at 1695 MHz, which the "
            "150 W cap does not let a GEMM sustain. Not the A10G. fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="L4",
        match=("NVIDIA L4",),
        capability=(8, 9),
        sms=58,
        flop_per_s=_sparse(fp64=30.3 * GRAPHICS_FP64, fp32=30.3, tf32=120, fp16=242, fp8=485),
        simt_flop_per_s=_tera(fp64=30.3 * GRAPHICS_FP64, fp32=30.3),
        byte_per_s=300 * GIGA,
        reference="https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652",
        note=(
            "The sheet prints its Tensor Core figures with sparsity; halved here to dense. They "
            "assume 2040 MHz, which the 72 W cap does not let a GEMM sustain. fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="L40S",
        match=("NVIDIA L40S",),
        capability=(8, 9),
        sms=142,
        flop_per_s=_sparse(fp64=91.6 * GRAPHICS_FP64, fp32=91.6, tf32=366, fp16=733, fp8=1466),
        simt_flop_per_s=_tera(fp64=91.6 * GRAPHICS_FP64, fp32=91.6),
        byte_per_s=864 * GIGA,
        reference="https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413",
        note=(
            "The sparse column of the sheet, halved to dense, at 2520 MHz. Its own dense column "
            "agrees but for fp16 and bf16, where it prints 362.05, short of half of its 733 and "
            "of 142 SMs x 1024 FLOP/clk x 2.52 GHz = 366. fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="GeForce RTX 3090",
        match=("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        capability=(8, 6),
        sms=82,
        flop_per_s=_geforce(35.6, fp16=71, fp16_acc16=142, int8=284),
        simt_flop_per_s=_tera(fp64=35.6 * GRAPHICS_FP64, fp32=35.6, fp16=35.6, bf16=35.6),
        byte_per_s=936 * GIGA,
        reference=(
            "https://www.nvidia.com/content/PDF/"
            "nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
        ),
        note=(
            "The dense figure of each dense/sparse pair, at 1695 MHz (Founders Edition). FP32 "
            "accumulation runs at half the FP16-accumulate rate. fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="GeForce RTX 4090",
        match=("NVIDIA GeForce RTX 4090",),
        capability=(8, 9),
        sms=128,
        flop_per_s=_geforce(82.6, fp16=165.2, fp16_acc16=330.3, fp8=330.3, int8=660.6),
        simt_flop_per_s=_tera(fp64=82.6 * GRAPHICS_FP64, fp32=82.6, fp16=82.6, bf16=82.6),
        byte_per_s=1008 * GIGA,
        reference=(
            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
        ),
        note=(
            "The dense figure of each dense/sparse pair, at 2520 MHz; many cards run higher. FP32 "
            "accumulation, fp8 included, runs at half the FP16-accumulate rate (the paper "
            "corrected its fp8 row to that in v2.02). fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="GeForce RTX 5090",
        match=("NVIDIA GeForce RTX 5090",),
        capability=(12, 0),
        sms=170,
        flop_per_s=_geforce(104.8, fp16=209.5, fp16_acc16=419, fp8=419, int8=838),
        simt_flop_per_s=_tera(fp64=104.8 * GRAPHICS_FP64, fp32=104.8, fp16=104.8, bf16=104.8),
        byte_per_s=1792 * GIGA,
        reference=(
            "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
            "nvidia-rtx-blackwell-gpu-architecture.pdf"
        ),
        note=(
            "The dense figure of each dense/sparse pair, at 2407 MHz; many cards run higher and "
            "pass 100 % of it. FP32 accumulation, fp8 included, runs at half the FP16-accumulate "
            "rate. fp64 is 1/64 of fp32."
        ),
    ),
    Card(
        title="H100 SXM",
        match=("NVIDIA H100 80GB HBM3",),
        capability=(9, 0),
        sms=132,
        flop_per_s=_GH100_SXM_GEMM,
        simt_flop_per_s=_GH100_SXM_SIMT,
        byte_per_s=3350 * GIGA,
        reference="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
        note=(
            "The sheet prints its Tensor Core figures (fp64 excepted) with sparsity; halved here "
            f"to dense. {_GH100_SXM_CLOCK_NOTE}80 GB HBM3. "
            f"SIMT fp16 and bf16 are from {HOPPER_WHITEPAPER}."
        ),
    ),
    Card(
        title="H100 PCIe",
        match=("NVIDIA H100 PCIe",),
        capability=(9, 0),
        sms=114,
        flop_per_s=_sparse(fp64=51, fp32=51, tf32=756, fp16=1513, fp8=3026),
        simt_flop_per_s=_tera(fp64=26, fp32=51, fp16=102.4, bf16=102.4),
        byte_per_s=2000 * GIGA,
        reference=HOPPER_WHITEPAPER,
        note=(
            "The H100 datasheet printed its PCIe Tensor Core figures (fp64 excepted) with "
            "sparsity; halved here to dense. Later editions replaced PCIe by the H100 NVL, hence "
            "the whitepaper as reference. The tensor figures assume about 1.62 GHz of the "
            "1.755 GHz boost clock, which the 350 W cap does not let a GEMM sustain. 80 GB HBM2e, "
            "printed as 2 TB/s; the memory clock gives 2039 GB/s."
        ),
    ),
    Card(
        title="H200 SXM",
        match=("NVIDIA H200",),
        capability=(9, 0),
        sms=132,
        flop_per_s=_GH100_SXM_GEMM,
        simt_flop_per_s=_GH100_SXM_SIMT,
        byte_per_s=4800 * GIGA,
        reference="https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446",
        note=(
            "The sheet prints its Tensor Core figures (fp64 excepted) with sparsity; halved here "
            f"to dense. {_GH100_SXM_CLOCK_NOTE}141 GB HBM3e. SIMT fp16 and bf16 are those of the "
            f"H100 SXM, the same GH100 configuration, from {HOPPER_WHITEPAPER}."
        ),
    ),
    Card(
        title="B200",
        match=("NVIDIA B200",),
        capability=(10, 0),
        sms=148,
        flop_per_s=_sparse(fp64=37, fp32=75, tf32=2200, fp16=4500, fp8=9000),
        simt_flop_per_s=_tera(fp64=37, fp32=75),
        byte_per_s=7700 * GIGA,
        reference="https://resources.nvidia.com/en-us-blackwell-architecture/datasheet",
        note=(
            "One GPU of an HGX B200 at 1000 W, 180 GB HBM3e. The sheet prints its Tensor Core "
            "figures (fp64 excepted) with sparsity and to two digits; halved here to dense. An "
            "earlier edition printed 80 (fp32), 40 (fp64) TFLOP/s and 8 TB/s. The tensor figures "
            "assume about 1.86 GHz, so a card at its 1.98 GHz limit may pass 100 % of them."
        ),
    ),
)
