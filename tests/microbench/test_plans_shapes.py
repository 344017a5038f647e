"""--shapes: problems from a file; what cannot be read is one line that names the place."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import OPS
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.plans import plan_shapes
from microbench.requests import ConvRequest, GemmRequest, PayoffRequest

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "results" / "shapes"
ASKED = Conditions(dtype="fp16", vs="none", backend="triton")
number = st.integers(1, 10**6)


@given(st.lists(st.tuples(number, number, number), min_size=1, max_size=8))
def test_each_line_is_a_problem_in_order_without_repeats(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, int]]
) -> None:
    file = tmp_path_factory.mktemp("shapes") / "g.csv"
    file.write_text("k, m ,n\n" + "".join(f"{k},{m},{n}\n\n# note\n" for m, n, k in sizes))
    groups = plan_shapes("gemm", ASKED, "cuda", file)
    found = [tuple(group.cases[0].dim(one) for one in "mnk") for group in groups]
    assert found == list(dict.fromkeys(sizes))
    assert {group.cases[0].layout for group in groups} == {"nt"}


def test_a_convolution_has_usual_values_where_none_are_given(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("n,c,k,h,w,r,s,pass,padding\n2,3,8,9,9,3,3,wgrad,\n")
    (group,) = ConvRequest(ASKED, shapes=file).plan("cuda")
    (case,) = group.cases
    assert (case.dims["pass"], case.dims["stride"], case.dims["padding"]) == ("wgrad", 1, 0)
    assert (case.layout, case.precision_name, case.backend) == ("nhwc", "fp16", "triton")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no shape"),
        ("m,n,k\n", "has no shape"),
        ("m,n\n1,2\n", "lacks the column k"),
        ("m,n,kk\n1,2,3\n", "unknown column 'kk'; did you mean k"),
        ("m,n,k\n1,2\n", "line 2: 2 values for 3 columns"),
        ("m,n,k\n1,2,3\n1,x,3\n", "line 3: n must be a number, not 'x'"),
        ("m,n,k\n1,,3\n", "line 2: n must be a number"),
        ("m,n,k\n0,2,3\n", "line 2: "),
        ("m,m,n,k\n1,2,3,4\n", "has a column twice"),
        ('m,n,k\n"64\n64",64,64\n', "line 2: 1 values for 3 columns"),
        ("m,n,k,layout\n1,2,3,xx\n", "line 2: layout must be one of"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "g.csv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        GemmRequest(ASKED, shapes=file).plan("cuda")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00m")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("no.csv", "b.csv", "pipe.csv"):
        with pytest.raises(UserError, match="cannot read it"):
            plan_shapes("gemm", ASKED, "cuda", tmp_path / name)


def test_a_map_takes_no_shapes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="payoff takes no --shapes"):
        PayoffRequest(ASKED, shapes=tmp_path / "c.csv").plan("cuda")


@pytest.mark.parametrize("op", ["gemm", "conv"])
def test_the_published_shapes_are_those_of_the_seed_and_none_is_tuned(op: str) -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "examples" / "draw_shapes.py", op], capture_output=True, check=True
    )
    file = SHAPES / f"{op}.csv"
    assert file.read_bytes() == drawn.stdout
    groups = plan_shapes(op, ASKED, "cuda", file)
    assert len(groups) == len(list(csv.DictReader(file.open()))) >= 60
    tuned = (ROOT / "kernels" / op / "tuned" / "nvidia-h200.json").read_text()
    keys = {OPS[op].size(group.cases[0]) for group in groups}
    assert not [key for key in keys if f'"{key}"' in tuned]
