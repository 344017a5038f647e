"""What NVIDIA prints about each GPU: dense peak rates and memory bandwidth, with the source.

Every figure is dense: where a sheet prints Tensor Core figures with 2:4 sparsity alone, they are
halved here (`_sparse`). FLOP/s and byte/s are SI; int8 counts integer operations. A figure assumes
the sheet's boost clock: a card that clocks higher passes 100 % of it, one that its power cap holds
back (T4, A10, L4, H100 PCIe) cannot reach it. What the sheets leave open:

* "fp16", "bf16" and "fp8" accumulate in FP32. GeForce parts print that rate apart, at half of
  "fp16-acc16"; others print one FP16 rate, which both get.
* All fp8 precisions share one rate, "fp8-e4m3-precise" too, whose promotion to FP32 costs time.
* FP64 of parts without fast units is a share of FP32, by the architectures' whitepapers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.precision import Capability, Precision

TERA = 1e12
GIGA = 1e9

TURING_FP64, GRAPHICS_FP64 = 1 / 32, 1 / 64  # of the fp32 rate

IMAGES = "https://images.nvidia.com"
SHEETS = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
RESOURCES = "https://resources.nvidia.com"
AMPERE_WHITEPAPER = (
    f"{IMAGES}/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
HOPPER_WHITEPAPER = f"{RESOURCES}/en-us-tensor-core/gtc22-whitepaper-hopper"


@dataclass(frozen=True)
class Card:
    """One GPU as NVIDIA describes it in the document `reference`.

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

    def peak(self, precision: Precision) -> float | None:
        """The dense peak of a precision in FLOP/s; None where the card lacks it."""
        return self.flop_per_s.get(precision.rate_name)


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


_A100 = _tera(fp64=19.5, fp32=19.5, tf32=156, fp16=312, fp16_acc16=312, bf16=312, int8=624)
_A100_SIMT = _tera(fp64=9.7, fp32=19.5, fp16=78, bf16=39)
# Tensor figures at 1.83 GHz, the others at 1.98, up to which it may run: 1071 TFLOP/s in fp16.
_GH100_SXM = _sparse(fp64=67, fp32=67, tf32=989, fp16=1979, fp8=3958)
_GH100_SXM_SIMT = _tera(fp64=34, fp32=67, fp16=133.8, bf16=133.8)  # of the whitepaper


def _simt(fp64_share: float, fp32: float, **more: float) -> dict[str, float]:
    return _tera(fp64=fp32 * fp64_share, fp32=fp32, **more)


CARDS: tuple[Card, ...] = (
    Card(
        "V100 SXM2", ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), (7, 0), 80,
        _tera(fp64=7.8, fp32=15.7, fp16=125, fp16_acc16=125), _tera(fp64=7.8, fp32=15.7, fp16=31.4),
        900 * GIGA,
        f"{IMAGES}/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    Card(  # the sheet prints 300 GB/s; 256 bits at 10 Gbit/s, and NVIDIA's page, are 320
        "T4", ("Tesla T4",), (7, 5), 40,
        _tera(fp64=8.1 * TURING_FP64, fp32=8.1, fp16=65, fp16_acc16=65, int8=130),
        _simt(TURING_FP64, 8.1), 320 * GIGA,
        f"{SHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    Card(
        "A100 SXM4 80GB", ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), (8, 0), 108,
        _A100, _A100_SIMT, 2039 * GIGA,
        f"{SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    Card(
        "A100 SXM4 40GB", ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), (8, 0), 108,
        _A100, _A100_SIMT, 1555 * GIGA, AMPERE_WHITEPAPER,
    ),
    Card(
        "A10", ("NVIDIA A10",), (8, 6), 72,
        _tera(fp64=31.2 * GRAPHICS_FP64, fp32=31.2, tf32=62.5, fp16=125, fp16_acc16=125, bf16=125,
              int8=250),
        _simt(GRAPHICS_FP64, 31.2), 600 * GIGA, f"{SHEETS}/a10/pdf/a10-datasheet.pdf",
    ),
    Card(
        "L4", ("NVIDIA L4",), (8, 9), 58,
        _sparse(fp64=30.3 * GRAPHICS_FP64, fp32=30.3, tf32=120, fp16=242, fp8=485),
        _simt(GRAPHICS_FP64, 30.3), 300 * GIGA,
        "https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652",
    ),
    Card(  # its dense column prints 362.05 for fp16, short of half of 733, and of width x clock
        "L40S", ("NVIDIA L40S",), (8, 9), 142,
        _sparse(fp64=91.6 * GRAPHICS_FP64, fp32=91.6, tf32=366, fp16=733, fp8=1466),
        _simt(GRAPHICS_FP64, 91.6), 864 * GIGA, f"{RESOURCES}/en-us-l40s/l40s-datasheet-28413",
    ),
    Card(
        "GeForce RTX 3090", ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"), (8, 6), 82,
        _geforce(35.6, fp16=71, fp16_acc16=142, int8=284),
        _simt(GRAPHICS_FP64, 35.6, fp16=35.6, bf16=35.6), 936 * GIGA,
        "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    ),
    Card(
        "GeForce RTX 4090", ("NVIDIA GeForce RTX 4090",), (8, 9), 128,
        _geforce(82.6, fp16=165.2, fp16_acc16=330.3, fp8=330.3, int8=660.6),
        _simt(GRAPHICS_FP64, 82.6, fp16=82.6, bf16=82.6), 1008 * GIGA,
        f"{IMAGES}/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
    Card(
        "GeForce RTX 5090", ("NVIDIA GeForce RTX 5090",), (12, 0), 170,
        _geforce(104.8, fp16=209.5, fp16_acc16=419, fp8=419, int8=838),
        _simt(GRAPHICS_FP64, 104.8, fp16=104.8, bf16=104.8), 1792 * GIGA,
        f"{IMAGES}/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
    ),
    Card(
        "H100 SXM", ("NVIDIA H100 80GB HBM3",), (9, 0), 132, _GH100_SXM, _GH100_SXM_SIMT,
        3350 * GIGA, f"{RESOURCES}/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
    ),
    Card(  # later datasheets have the H100 NVL in its place; printed as 2 TB/s
        "H100 PCIe", ("NVIDIA H100 PCIe",), (9, 0), 114,
        _sparse(fp64=51, fp32=51, tf32=756, fp16=1513, fp8=3026),
        _tera(fp64=26, fp32=51, fp16=102.4, bf16=102.4), 2000 * GIGA, HOPPER_WHITEPAPER,
    ),
    Card(
        "H200 SXM", ("NVIDIA H200",), (9, 0), 132, _GH100_SXM, _GH100_SXM_SIMT, 4800 * GIGA,
        "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446",
    ),
    Card(  # one GPU of an HGX B200 at 1000 W, to two digits; an earlier edition printed 8 TB/s
        "B200", ("NVIDIA B200",), (10, 0), 148,
        _sparse(fp64=37, fp32=75, tf32=2200, fp16=4500, fp8=9000), _tera(fp64=37, fp32=75),
        7700 * GIGA, f"{RESOURCES}/en-us-blackwell-architecture/datasheet",
    ),
)  # fmt: skip
