"""The table of GPUs against itself, against the chips' geometry, and its look-up by name."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import gpus
from kernels.gpu_cards import CARDS, GIGA, TERA, Card
from kernels.precision import PRECISIONS, Capability

NVIDIA_HOSTS = {
    "images.nvidia.com",
    "nvdam.widen.net",  # NVIDIA's own document store, where nvidia.com links its datasheets
    "resources.nvidia.com",
    "www.nvidia.com",
}

ROUNDING_REL = 0.01  # a sheet prints two to four digits of clock times width
TWO_DIGITS_REL = 0.025  # the B200's prints 2.2 PFLOP/s for half of 4.5; 26 TFLOP/s for 25.6

BY_TITLE = {card.title: card for card in CARDS}
ALL_NAMES = [name for card in CARDS for name in card.match]

each_card = pytest.mark.parametrize("card", CARDS, ids=[card.title for card in CARDS])


@dataclass(frozen=True)
class Geometry:
    """A chip from the other side: the width of its SMs and the clocks that its sheet assumes.

    `memory` is (bus bits, Gbit/s per pin).
    """

    sms: int
    fp32_lanes: int  # per SM
    fp16_flop_per_clock: int  # per SM, on the Tensor Cores, dense, FP32 accumulation
    clock_mhz: float
    memory: tuple[int, float] | None = None
    tensor_clock_mhz: float | None = None  # where it differs


# From the architecture whitepapers, so that a slip of the pen (a sparse figure, a neighbour's row)
# shows. The B200 has no whitepaper: its SMs and width are what the device reports and runs, and its
# tensor clock is worked back from the fp16 figure, so there only the fp32 line is independent.
GEOMETRY = {
    "V100 SXM2": Geometry(80, 64, 1024, 1530, (4096, 1.755)),
    "T4": Geometry(40, 64, 1024, 1590, (256, 10.0)),
    "A100 SXM4 80GB": Geometry(108, 64, 2048, 1410, (5120, 3.186)),
    "A100 SXM4 40GB": Geometry(108, 64, 2048, 1410, (5120, 2.43)),
    "A10": Geometry(72, 128, 1024, 1695, (384, 12.5)),
    "L4": Geometry(58, 128, 1024, 2040, (192, 12.5)),
    "L40S": Geometry(142, 128, 1024, 2520, (384, 18.0)),
    "GeForce RTX 3090": Geometry(82, 128, 512, 1695, (384, 19.5)),
    "GeForce RTX 4090": Geometry(128, 128, 512, 2520, (384, 21.0)),
    "GeForce RTX 5090": Geometry(170, 128, 512, 2407, (512, 28.0)),
    "H100 SXM": Geometry(132, 128, 4096, 1980, None, 1830),
    "H100 PCIe": Geometry(114, 128, 4096, 1755, None, 1620),
    "H200 SXM": Geometry(132, 128, 4096, 1980, None, 1830),
    "B200": Geometry(148, 128, 8192, 1980, None, 1855),
}


def test_every_gpu_is_there_once_and_twins_differ_in_their_memory_alone() -> None:
    assert set(BY_TITLE) == set(GEOMETRY)
    assert len(BY_TITLE) == len(CARDS)
    assert len(set(ALL_NAMES)) == len(ALL_NAMES)
    assert {card.capability for card in CARDS} <= set(gpus.ARCHITECTURES)
    for small, large in (("A100 SXM4 40GB", "A100 SXM4 80GB"), ("H100 SXM", "H200 SXM")):
        assert BY_TITLE[small].flop_per_s == BY_TITLE[large].flop_per_s
        assert BY_TITLE[small].simt_flop_per_s == BY_TITLE[large].simt_flop_per_s
        assert BY_TITLE[small].byte_per_s < BY_TITLE[large].byte_per_s


@each_card
def test_rates_are_of_precisions_that_the_generation_has_and_of_nvidias_document(
    card: Card,
) -> None:
    parts = urlsplit(card.reference)
    assert (parts.scheme, parts.hostname in NVIDIA_HOSTS) == ("https", True)
    assert len(parts.path) > 1
    asked = {kind.rate_name for kind in PRECISIONS.values()}
    assert set(card.flop_per_s) <= asked
    for kind in (one for one in PRECISIONS.values() if not one.only):
        needed = kind.min_capability["cublas"]
        assert (card.peak(kind) is not None) == (card.capability >= needed), kind.name
    assert {"fp64", "fp32"} <= set(card.simt_flop_per_s) <= {"fp64", "fp32", "fp16", "bf16"}
    assert all(card.flop_per_s[name] >= rate for name, rate in card.simt_flop_per_s.items())
    for rate in (*card.flop_per_s.values(), *card.simt_flop_per_s.values()):
        assert 0.2 * TERA < rate < 10_000 * TERA
    assert 200 * GIGA < card.byte_per_s < 10_000 * GIGA


@each_card
def test_rates_are_width_times_clock(card: Card) -> None:
    """Of the chip's geometry, and of the rates per clock and SM in the whitepapers."""
    geometry = GEOMETRY[card.title]
    tensor_mhz = geometry.tensor_clock_mhz or geometry.clock_mhz
    assert card.sms == geometry.sms
    widths = {"fp32": 2 * geometry.fp32_lanes, "fp16": geometry.fp16_flop_per_clock}
    known = gpus.flop_per_clock(card.capability, card.match[0])
    assert known or card.title == "T4"
    for name, per_clock in [*widths.items(), *known.items()]:
        clock_mhz = geometry.clock_mhz if name in ("fp64", "fp32") else tensor_mhz
        expected = card.sms * per_clock * clock_mhz * 1e6
        rounding = TWO_DIGITS_REL if card.title == "B200" else ROUNDING_REL
        assert card.flop_per_s[name] == pytest.approx(expected, rel=rounding), name
    assert card.simt_flop_per_s["fp32"] == card.flop_per_s["fp32"]
    if geometry.memory:
        bus_bits, gbit_per_s = geometry.memory
        rounding = 2 * GIGA if card.title == "V100 SXM2" else 0.5 * GIGA  # 900 of 898.6
        assert card.byte_per_s == pytest.approx(bus_bits / 8 * gbit_per_s * GIGA, abs=rounding)


OTHERS = (
    "", "NVIDIA", "NVIDIA A100", "NVIDIA A100 80GB PCIe", "NVIDIA A10G", "NVIDIA A2", "NVIDIA L40",
    "NVIDIA H100", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H20", "NVIDIA GH200 144G HBM3e",
    "NVIDIA GB200", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU", "Tesla V100-SXM3-32GB", "Tesla V100S-PCIE-32GB",
    "Tesla T40 24GB", "NVIDIA A100-SXM4-80GB MIG 7g.80gb", "NVIDIA H200 MIG 2g.35gb",
)  # fmt: skip


@given(st.sampled_from(ALL_NAMES), st.text(alphabet=" \t\n", max_size=3))
def test_spacing_alone_is_ignored_and_no_other_part_taken_for_a_known_one(
    name: str, space: str
) -> None:
    assert [gpus.find_card(other) for other in OTHERS] == [None] * len(OTHERS)
    card = gpus.find_card(name)
    assert name in card.match
    assert gpus.find_card(space + name + space) is card
    assert gpus.find_card(name.replace(" ", " " + space)) is card


# ---------------------------------------------------------------- architectures


def test_each_capability_has_its_own_facts_and_others_the_least_since_ampere() -> None:
    for capability, found in gpus.ARCHITECTURES.items():
        assert gpus.architecture(capability) is found
        assert 0 < found.block_shared_bytes <= found.sm_shared_bytes
        assert all(rate.bit_count() == 1 for rate in found.flop_per_clock.values())
        assert found.l2_in_halves == (capability in ((8, 0), (9, 0)))
    assert gpus.HOPPER is gpus.architecture((9, 0))
    assert gpus.LINE_BYTES == 4 * gpus.SECTOR_BYTES == 128
    assert [gpus.has_tma(each) for each in ((8, 9), (9, 0), (10, 0), (12, 0))] == [
        False,
        *[True] * 3,
    ]
    for capability in (None, (0, 0), (6, 1), (99, 0)):
        assert gpus.architecture(capability) is gpus.UNKNOWN
    assert (gpus.UNKNOWN.flop_per_clock, gpus.UNKNOWN.l2_in_halves) == ({}, False)
    since_ampere = [of for capability, of in gpus.ARCHITECTURES.items() if capability >= (8, 0)]
    assert gpus.UNKNOWN.block_shared_bytes == min(of.block_shared_bytes for of in since_ampere)


@pytest.mark.parametrize(
    ("capability", "threads", "accumulators", "shared", "blocks"),
    [
        ((9, 0), 256, 128, 0, 1),  # 184 registers a thread
        ((9, 0), 128, 72, 0, 4),  # 128
        ((9, 0), 129, 300, 0, 1),  # 255: one more would let two in
        ((9, 0), 32, 8, 99 * 1024, 2),  # of 228 KB, and 1 KB for each block
        ((9, 0), 1024, 255, 10**6, 1),
        ((7, 0), 128, 72, 0, 4),
        ((7, 0), 32, 8, 48 * 1024, 2),  # of 96 KB, nothing taken
    ],
)
def test_blocks_share_the_registers_and_the_memory_of_an_sm(
    capability: Capability, threads: int, accumulators: float, shared: int, blocks: int
) -> None:
    assert gpus.architecture(capability).blocks_per_sm(threads, accumulators, shared) == blocks
