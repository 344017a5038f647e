"""The datasheet table against itself, against the chips' geometry, and its look-up by name."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from microbench.roofline.datasheets import DATASHEETS, GIGA, TERA, Datasheet, find

PRECISIONS = {
    "fp64",
    "fp32",
    "tf32",
    "fp16",
    "fp16-acc16",
    "bf16",
    "fp8-e4m3",
    "fp8-e4m3-precise",
    "fp8-e5m2",
    "int8",
}
FP8 = {"fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"}
GEFORCE = {"GeForce RTX 3090", "GeForce RTX 4090", "GeForce RTX 5090"}
WITH_FP8 = {
    "L4",
    "L40S",
    "GeForce RTX 4090",
    "GeForce RTX 5090",
    "H100 SXM",
    "H100 PCIe",
    "H200 SXM",
    "B200",
}
PRINTED_SPARSE = {"L4", "L40S", "H100 SXM", "H100 PCIe", "H200 SXM", "B200"}
BEFORE_AMPERE = {"V100 SXM2", "T4"}
NVIDIA_HOSTS = {
    "images.nvidia.com",
    "nvdam.widen.net",  # NVIDIA's own document store, where nvidia.com links its datasheets
    "resources.nvidia.com",
    "www.nvidia.com",
}

ROUNDING_REL = 0.01  # a sheet prints two to four digits of clock times width
LAST_DIGIT_REL = 0.003  # two figures of one sheet: the L4's prints 242 and 485
B200_TF32_REL = 0.025  # its sheet prints 2.2 PFLOP/s for half of 4.5

BY_TITLE = {sheet.title: sheet for sheet in DATASHEETS}
ALL_NAMES = [name for sheet in DATASHEETS for name in sheet.match]

each_sheet = pytest.mark.parametrize("sheet", DATASHEETS, ids=[s.title for s in DATASHEETS])
each_sheet_with_fp8 = pytest.mark.parametrize("title", sorted(WITH_FP8))


@dataclass(frozen=True)
class Geometry:
    """A chip from the other side: its SMs, their width and the clocks the sheet assumes."""

    sms: int
    fp32_lanes: int  # per SM
    fp16_flop_per_clk: int  # per SM, on the Tensor Cores, dense, FP32 accumulation
    clock_mhz: float
    tensor_clock_mhz: float | None = None  # where it differs


# From the architecture whitepapers, so that a slip of the pen (a sparse figure, a neighbour's row)
# shows. The B200 has no whitepaper: its SMs and width are what the device reports and runs, and its
# tensor clock is worked back from the fp16 figure, so there only the fp32 line is independent.
GEOMETRY = {
    "V100 SXM2": Geometry(80, 64, 1024, 1530),
    "T4": Geometry(40, 64, 1024, 1590),
    "A100 SXM4 80GB": Geometry(108, 64, 2048, 1410),
    "A100 SXM4 40GB": Geometry(108, 64, 2048, 1410),
    "A10": Geometry(72, 128, 1024, 1695),
    "L4": Geometry(58, 128, 1024, 2040),
    "L40S": Geometry(142, 128, 1024, 2520),
    "GeForce RTX 3090": Geometry(82, 128, 512, 1695),
    "GeForce RTX 4090": Geometry(128, 128, 512, 2520),
    "GeForce RTX 5090": Geometry(170, 128, 512, 2407),
    "H100 SXM": Geometry(132, 128, 4096, 1980, 1830),
    "H100 PCIe": Geometry(114, 128, 4096, 1755, 1620),
    "H200 SXM": Geometry(132, 128, 4096, 1980, 1830),
    "B200": Geometry(148, 128, 8192, 1980, 1855),
}

# (bus bits, Gbit/s per pin), from the same whitepapers.
MEMORY = {
    "V100 SXM2": (4096, 1.755),
    "T4": (256, 10.0),
    "A100 SXM4 80GB": (5120, 3.186),
    "A100 SXM4 40GB": (5120, 2.43),
    "A10": (384, 12.5),
    "L4": (192, 12.5),
    "L40S": (384, 18.0),
    "GeForce RTX 3090": (384, 19.5),
    "GeForce RTX 4090": (384, 21.0),
    "GeForce RTX 5090": (512, 28.0),
}


def test_every_gpu_is_there_once() -> None:
    assert len(BY_TITLE) == len(DATASHEETS)
    assert set(BY_TITLE) == set(GEOMETRY)
    assert len(set(ALL_NAMES)) == len(ALL_NAMES)


@each_sheet
def test_reference_is_an_nvidia_document(sheet: Datasheet) -> None:
    parts = urlsplit(sheet.reference)
    assert parts.scheme == "https"
    assert parts.hostname in NVIDIA_HOSTS
    assert len(parts.path) > 1


@each_sheet
def test_note_says_dense_and_when_it_was_halved(sheet: Datasheet) -> None:
    assert "dense" in sheet.note
    assert ("halved" in sheet.note) == (sheet.title in PRINTED_SPARSE)
    assert sheet.note == " ".join(sheet.note.split())
    assert sheet.note.endswith(".")


def test_hopper_sxm_notes_warn_of_more_than_100_percent() -> None:
    geometry = GEOMETRY["H200 SXM"]
    at_boost = geometry.sms * geometry.fp16_flop_per_clk * geometry.clock_mhz * 1e6
    for title in ("H100 SXM", "H200 SXM"):
        assert BY_TITLE[title].flop_per_s["fp16"] < at_boost
        assert f"{at_boost / TERA:.0f} TFLOP/s" in BY_TITLE[title].note
        assert "more than 100 %" in BY_TITLE[title].note


@each_sheet
def test_keys_are_precisions_and_rates_are_in_si_units(sheet: Datasheet) -> None:
    assert set(sheet.flop_per_s) <= PRECISIONS
    assert {"fp64", "fp32", "fp16", "fp16-acc16"} <= set(sheet.flop_per_s)
    assert {"fp64", "fp32"} <= set(sheet.simt_flop_per_s) <= {"fp64", "fp32", "fp16", "bf16"}
    for rate in (*sheet.flop_per_s.values(), *sheet.simt_flop_per_s.values()):
        assert 0.2 * TERA < rate < 10_000 * TERA
    assert 200 * GIGA < sheet.byte_per_s < 10_000 * GIGA


@each_sheet
def test_keys_follow_the_generation(sheet: Datasheet) -> None:
    ampere_or_later = sheet.title not in BEFORE_AMPERE
    assert ("tf32" in sheet.flop_per_s) == ampere_or_later
    assert ("bf16" in sheet.flop_per_s) == ampere_or_later
    assert ("int8" in sheet.flop_per_s) == (sheet.title != "V100 SXM2")
    expected_fp8: set[str] = FP8 if sheet.title in WITH_FP8 else set()
    assert FP8 & set(sheet.flop_per_s) == expected_fp8


@each_sheet
def test_fp32_rate_is_lanes_times_clock(sheet: Datasheet) -> None:
    geometry = GEOMETRY[sheet.title]
    expected = geometry.sms * geometry.fp32_lanes * 2 * geometry.clock_mhz * 1e6
    assert sheet.flop_per_s["fp32"] == pytest.approx(expected, rel=ROUNDING_REL)
    assert sheet.simt_flop_per_s["fp32"] == sheet.flop_per_s["fp32"]


@each_sheet
def test_fp16_rate_is_tensor_width_times_clock(sheet: Datasheet) -> None:
    geometry = GEOMETRY[sheet.title]
    clock_mhz = geometry.tensor_clock_mhz or geometry.clock_mhz
    expected = geometry.sms * geometry.fp16_flop_per_clk * clock_mhz * 1e6
    assert sheet.flop_per_s["fp16"] == pytest.approx(expected, rel=ROUNDING_REL)


@pytest.mark.parametrize("title", sorted(MEMORY))
def test_bandwidth_is_bus_times_data_rate(title: str) -> None:
    bus_bits, gbit_per_s = MEMORY[title]
    expected = bus_bits / 8 * gbit_per_s * GIGA
    assert BY_TITLE[title].byte_per_s == pytest.approx(expected, rel=ROUNDING_REL)


@each_sheet
def test_fp16_accumulation_doubles_the_rate_on_geforce_only(sheet: Datasheet) -> None:
    ratio = sheet.flop_per_s["fp16-acc16"] / sheet.flop_per_s["fp16"]
    assert ratio == pytest.approx(2 if sheet.title in GEFORCE else 1, rel=LAST_DIGIT_REL)


@pytest.mark.parametrize("title", sorted(set(BY_TITLE) - BEFORE_AMPERE))
def test_tf32_is_half_and_bf16_equals_fp16(title: str) -> None:
    rates = BY_TITLE[title].flop_per_s
    tolerance = B200_TF32_REL if title == "B200" else ROUNDING_REL
    assert rates["tf32"] == pytest.approx(rates["fp16"] / 2, rel=tolerance)
    assert rates["bf16"] == rates["fp16"]


@each_sheet_with_fp8
def test_fp8_is_twice_fp16_in_all_three_forms(title: str) -> None:
    rates = BY_TITLE[title].flop_per_s
    assert len({rates[name] for name in FP8}) == 1
    assert rates["fp8-e4m3"] == pytest.approx(2 * rates["fp16"], rel=LAST_DIGIT_REL)


@pytest.mark.parametrize("title", sorted(set(BY_TITLE) - {"V100 SXM2"}))
def test_int8_is_twice_the_full_fp16_rate(title: str) -> None:
    """INT32 accumulation is halved on no part, so int8 follows FP16 accumulation."""
    rates = BY_TITLE[title].flop_per_s
    assert rates["int8"] == pytest.approx(2 * rates["fp16-acc16"], rel=LAST_DIGIT_REL)


@pytest.mark.parametrize(
    ("title", "gemm_per_fp32", "simt_per_fp32"),
    [
        ("V100 SXM2", 1 / 2, 1 / 2),
        ("A100 SXM4 80GB", 1, 1 / 2),
        ("A100 SXM4 40GB", 1, 1 / 2),
        ("H100 SXM", 1, 1 / 2),
        ("H100 PCIe", 1, 1 / 2),
        ("H200 SXM", 1, 1 / 2),
        ("B200", 1 / 2, 1 / 2),
        ("T4", 1 / 32, 1 / 32),
        ("A10", 1 / 64, 1 / 64),
        ("L4", 1 / 64, 1 / 64),
        ("L40S", 1 / 64, 1 / 64),
        ("GeForce RTX 3090", 1 / 64, 1 / 64),
        ("GeForce RTX 4090", 1 / 64, 1 / 64),
        ("GeForce RTX 5090", 1 / 64, 1 / 64),
    ],
)
def test_fp64_share_of_fp32(title: str, gemm_per_fp32: float, simt_per_fp32: float) -> None:
    sheet = BY_TITLE[title]
    fp32 = sheet.flop_per_s["fp32"]
    two_digits = 0.02  # 34 for 33.5, 26 for 25.6
    assert sheet.flop_per_s["fp64"] == pytest.approx(fp32 * gemm_per_fp32, rel=two_digits)
    assert sheet.simt_flop_per_s["fp64"] == pytest.approx(fp32 * simt_per_fp32, rel=two_digits)


def test_packed_simt_rates_as_multiples_of_fp32() -> None:
    multiples = {
        (sheet.title, name): round(rate / sheet.simt_flop_per_s["fp32"], 1)
        for sheet in DATASHEETS
        for name, rate in sheet.simt_flop_per_s.items()
        if name in {"fp16", "bf16"}
    }
    for (title, name), multiple in multiples.items():
        if title.startswith("A100"):
            assert multiple == {"fp16": 4, "bf16": 2}[name]
        else:
            assert multiple == (1 if title in GEFORCE else 2), (title, name)
    assert {title for title, _ in multiples} >= GEFORCE | {"V100 SXM2", "H100 SXM", "H200 SXM"}


def test_the_tensor_cores_are_never_slower_than_simt() -> None:
    for sheet in DATASHEETS:
        for name, simt in sheet.simt_flop_per_s.items():
            assert sheet.flop_per_s[name] >= simt, (sheet.title, name)


def test_memory_is_all_that_differs_between_twins() -> None:
    for small, large in (("A100 SXM4 40GB", "A100 SXM4 80GB"), ("H100 SXM", "H200 SXM")):
        assert BY_TITLE[small].flop_per_s == BY_TITLE[large].flop_per_s
        assert BY_TITLE[small].simt_flop_per_s == BY_TITLE[large].simt_flop_per_s
        assert BY_TITLE[small].byte_per_s < BY_TITLE[large].byte_per_s


@pytest.mark.parametrize(
    ("device_name", "title"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("GeForce RTX 3090", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_find_real_names(device_name: str, title: str) -> None:
    sheet = find(device_name)
    assert sheet is not None
    assert sheet.title == title


@pytest.mark.parametrize(
    "device_name",
    [
        "",
        "NVIDIA",
        "NVIDIA A100",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA A10G",
        "NVIDIA A16",
        "NVIDIA A2",
        "NVIDIA L40",
        "NVIDIA L20",
        "NVIDIA H100",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H200 NVL",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA GH200 480GB",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB200",
        "NVIDIA B300 SXM6 AC",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX 4000 Ada Generation",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "Tesla V100-PCIE-16GB",
        "Tesla V100-SXM3-32GB",
        "Tesla V100S-PCIE-32GB",
        "Tesla T40 24GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM4-80GB MIG 7g.80gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 PCIe MIG 3g.40gb",
        "NVIDIA H200 MIG 2g.35gb",
        "NVIDIA B200 MIG 1g.23gb",
    ],
)
def test_find_takes_no_other_part_for_a_known_one(device_name: str) -> None:
    assert find(device_name) is None


@given(st.sampled_from(ALL_NAMES), st.text(alphabet=" \t\n", max_size=3))
def test_find_ignores_spacing_only(name: str, space: str) -> None:
    sheet = find(name)
    assert sheet is not None
    assert find(space + name + space) is sheet
    assert find(name.replace(" ", " " + space)) is sheet


@given(st.sampled_from(ALL_NAMES), st.text(max_size=12), st.text(max_size=12))
def test_find_wants_the_whole_name(name: str, before: str, after: str) -> None:
    longer = before + name + after
    assume(" ".join(longer.split()) not in ALL_NAMES)
    assert find(longer) is None


@given(st.sampled_from(ALL_NAMES), st.integers(min_value=0), st.integers(min_value=1))
def test_find_wants_no_less_than_the_whole_name(name: str, start: int, drop: int) -> None:
    length = max(0, len(name) - 1 - drop % len(name))
    part = name[start % len(name) :][:length]
    assume(" ".join(part.split()) not in ALL_NAMES)
    assert find(part) is None
