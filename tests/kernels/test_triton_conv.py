"""The Triton convolution as a back end: its tuned table, what it refuses, what a search tries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import OPS  # noqa: E402
from kernels.case import Case, Target  # noqa: E402
from kernels.conv import OP  # noqa: E402
from kernels.conv.triton import backend  # noqa: E402

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
A100 = Target("cuda", "NVIDIA A100-SXM4-80GB", (8, 0), 108)
TABLE = OP.tables.repository / "nvidia-h200.json"
SIZE = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)-(\d+)x(\d+)x(\d+)-s(\d+)p(\d+)d(\d+)")


def entries() -> Iterator[tuple[Case, str]]:
    for precision, passes in json.loads(TABLE.read_text()).items():
        for which, sizes in passes.items():
            for key, label in sizes.items():
                yield case_of(precision, which, key), label


def case_of(precision: str, which: str, key: str) -> Case:
    found = SIZE.fullmatch(key)
    assert found, key
    n, h, w, c, k, r, s, stride, padding, dilation = map(int, found.groups())
    dims = dict(n=n, c=c, h=h, w=w, k=k, r=r, s=s, stride=stride, padding=padding,
                dilation=dilation, groups=1) | {"pass": which}  # fmt: skip
    return Case("conv", dims, precision, "triton", "nhwc")


def test_the_table_holds_every_layer_of_resnet50() -> None:
    """But the stem: no gradient of its input, and that of its weights has a new kernel."""
    found = [str(case.dims["pass"]) for case, _ in entries()]
    assert {which: found.count(which) for which in set(found)} == {
        "fprop": 23, "dgrad": 22, "wgrad": 22,
    }  # fmt: skip


@pytest.mark.parametrize("case", [case for case, _ in entries()], ids=lambda c: c.key[5:60])
def test_a_tuned_label_is_valid_and_is_what_a_default_run_takes(case: Case) -> None:
    label = next(label for other, label in entries() if other.key == case.key)
    config = backend.parse(label)
    assert config.label == label
    assert OP.tuned_key(case)[0] == case.dims["pass"]
    assert backend.configuration(case, H200) == config
    half = Case("conv", case.dims, "bf16", "triton", "nhwc")
    assert backend.configuration(half, H200) == config  # bf16 lies in memory as fp16 does


def test_other_sizes_and_gpus_get_the_cost_model_s_choice() -> None:
    case = next(case for case, _ in entries())
    other = Case("conv", {**case.dims, "n": 3}, "fp16", "triton", "nhwc")
    for target in (H200, A100):
        assert backend.valid(backend.configuration(other, target), other, target)


def test_a_user_s_own_table_comes_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = next(case for case, _ in entries())
    ranked = backend.ranked(case, H200)
    mine = next(c for c in ranked if c != backend.configuration(case, H200))
    path = OPS["conv"].save_tuned(case, H200, mine.label)
    assert path.is_relative_to(tmp_path)
    assert backend.configuration(case, H200) == mine


@pytest.mark.parametrize(
    ("precision", "dims", "said"),
    [("fp32", {}, "fp16, bf16, tf32"), ("fp16", {"groups": 32}, "multiples of 4"),
     ("fp8-e4m3", {"groups": 4}, "without groups"),
     ("fp8-e4m3", {"pass": "wgrad"}, "fprop and dgrad")],
)  # fmt: skip
def test_what_it_cannot_run_it_says(precision: str, dims: dict[str, int | str], said: str) -> None:
    plain = next(case for case, _ in entries())
    case = Case("conv", {**plain.dims, "c": 64, **dims}, precision, "triton", "nhwc")
    assert said in (backend.cannot_run(case, H200) or "")


@pytest.mark.parametrize("groups", [4, 8, 16])
def test_groups_run_on_hopper_and_share_no_tuned_entry(groups: int) -> None:
    plain = next(case for case, _ in entries())
    for which in ("fprop", "dgrad", "wgrad"):
        dims = {**plain.dims, "c": 64, "k": 64, "groups": groups, "pass": which}
        case = Case("conv", dims, "fp16", "triton", "nhwc")
        assert backend.cannot_run(case, H200) is None
        assert backend.cannot_run(case, A100)
        assert backend.valid(backend.configuration(case, H200), case, H200)
        dense = Case("conv", {**dims, "groups": 1}, "fp16", "triton", "nhwc")
        assert OP.tuned_key(case) != OP.tuned_key(dense)


@pytest.mark.parametrize(
    "label",
    ["", "conv_tma", "gemm_tma/1x2x3", "wgrad_tma/x", "wgrad_tma/1x64x64/s4/w4",
     "wgrad_tma/1x16x64x32/t1/r1/s2/w4/x2/", "conv_tma/64x64x64/s4/w4",
     "conv_tma/1x1x1x1x1/s1/w1/", "conv_tma/1x8x8x64/t1/r1/s2/w4/x2"],
)  # fmt: skip
def test_an_unknown_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="not a configuration"):
        backend.parse(label)
