"""Sizes as people write them, and the cases they make."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.plans import plan_gemm
from microbench.sweep import MAX_SIZES, parse_names, parse_precisions, parse_sizes


def cubes(*sizes: int) -> list[tuple[int, int, int]]:
    return [(n, n, n) for n in sizes]


def complaint(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_sizes(text)
    return str(caught.value)


def plan(**changes: object) -> list[tuple[str, ...]]:
    kind, sizes, layouts = (
        changes.pop(name, usual)
        for name, usual in (("kind", "cuda"), ("sizes", "64"), ("layouts", "nt"))
    )
    groups = plan_gemm(Conditions(**changes), kind, sizes=sizes, layouts=layouts)  # type: ignore[arg-type]
    return [tuple(f"{c.precision_name}/{c.backend}" for c in group.cases) for group in groups]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("256..8192", cubes(256, 512, 1024, 2048, 4096, 8192)),
        ("100..1000", cubes(100, 200, 400, 800)),
        ("64..256:+64", cubes(64, 128, 192, 256)),
        ("63..65:+1", cubes(63, 64, 65)),
        ("64..4096:*4", cubes(64, 256, 1024, 4096)),
        ("64..64", cubes(64)),
        ("1..1:+1", cubes(1)),
        ("63,64,65", cubes(63, 64, 65)),
        ("4096x11008x4096", [(4096, 11008, 4096)]),
        ("4096x11008x4096,63..65:+1", [(4096, 11008, 4096), *cubes(63, 64, 65)]),
        (" 64 , 128 ", cubes(64, 128)),
        ("64,64,64x64x64,32..128", cubes(64, 32, 128)),
        ("1", cubes(1)),
    ],
)
def test_forms_and_mixtures(text: str, sizes: list[tuple[int, int, int]]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        (",", "empty"),
        ("64,,128", "empty"),
        ("64,", "empty"),
        ("0", "at least 1"),
        ("-64", "at least 1"),
        ("0..64", "at least 1"),
        ("64x0x64", "at least 1"),
        ("64x-1x64", "at least 1"),
        ("8192..256", "256..8192"),
        ("64..128:+0", "never reaches"),
        ("64..128:*1", "never reaches"),
        ("64..128:*0", "never reaches"),
        ("64..128:+-8", "never reaches"),
        ("64..", "cannot read"),
        ("..64", "cannot read"),
        ("64...128", "cannot read"),
        ("64..128:8", "cannot read"),
        ("64x64", "cannot read"),
        ("64x64x64x64", "cannot read"),
        ("big", "cannot read"),
        ("6.5", "cannot read"),
        ("64;128", "cannot read"),
        ("64 128", "cannot read"),
        ("64\n128", "cannot read"),
        ("1..100000:+1", "4096"),
        ("1..1000000000000:+1", "4096"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_what_to_write(text: str, said: str) -> None:
    message = complaint(text)
    assert said in message
    assert "\n" not in message


def test_too_many_sizes_in_several_parts_is_one_line() -> None:
    message = complaint("1..3000:+1,\n4001..7000:+1")
    assert str(MAX_SIZES) in message
    assert "\n" not in message


def test_a_number_of_thousands_of_digits_is_a_users_mistake() -> None:
    assert "\n" not in complaint("9" * 5000)


@given(st.text(alphabet="0123456789.,:x+*- \n", max_size=24))
def test_any_text_gives_sizes_or_one_line(text: str) -> None:
    said, sizes = "", []
    try:
        sizes = parse_sizes(text)
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert bool(sizes) != bool(said)
    assert all(number >= 1 for shape in sizes for number in shape)
    assert len(set(sizes)) == len(sizes)


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(2, 500))
def test_steps_cover_the_range_like_pythons(start: int, extra: int, step: int) -> None:
    end = start + extra
    assert parse_sizes(f"{start}..{end}:+{step}") == cubes(*range(start, end + 1, step))


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_doubling_stays_in_the_range(start: int, extra: int) -> None:
    end = start + extra
    sizes = [n for n, _, _ in parse_sizes(f"{start}..{end}")]
    assert sizes[0] == start
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes))
    assert sizes[-1] <= end < 2 * sizes[-1]


# ---------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        (dict(sizes="64,128", layouts="nt,nn"),
         [("fp32/cublas", "tf32/cublas", "fp16/cublas", "fp16/cublaslt", "fp16/triton")] * 4),
        # A baseline that was asked for is measured once.
        (dict(dtype="fp32,fp16", backend="cublas"),
         [("fp32/cublas", "tf32/cublas", "fp16/cublas")]),
        (dict(dtype="half,float16,fp16", backend="cublas,cublas", vs="none"), [("fp16/cublas",)]),
        (dict(kind="cpu"), [("fp32/cpu", "tf32/cpu", "fp16/cpu")]),
    ],
)  # fmt: skip
def test_each_size_and_layout_is_one_comparison_of_every_arm(
    changes: dict[str, str], groups: list[tuple[str, ...]]
) -> None:
    assert plan(**changes) == groups


def test_the_fp8_that_people_write_is_e4m3() -> None:
    assert parse_precisions("fp8, fp8-e5m2") == ["fp8-e4m3", "fp8-e5m2"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "fp7"}, "fp16"),
        ({"dtype": ""}, "--dtype"),
        ({"dtype": ","}, "--dtype"),
        ({"backend": "cudnn"}, "cublaslt"),
        ({"backend": ","}, "--backend"),
        ({"backend": ""}, "--backend"),
        ({"layouts": "nq"}, "tt"),
        ({"layouts": ""}, "--layout"),
        ({"data": "gaussian"}, "uniform"),
        ({"data": "normal,zeros"}, "--data"),
        ({"vs": "fp99"}, "--vs"),
        ({"vs": ""}, "--vs"),
        ({"sizes": "big"}, "--sizes"),
    ],
)
def test_unknown_words_are_refused_with_the_choices(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        plan(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_with_a_line_break_does_not_break_the_message() -> None:
    with pytest.raises(UserError) as caught:
        parse_names("cub\nlas", ["cublas"], "--backend")
    assert "\n" not in str(caught.value)


def test_cases_have_keys_that_tell_them_apart() -> None:
    asked = Conditions(dtype="fp16,bf16,fp8", backend="cublas,triton")
    groups = plan_gemm(asked, "cuda", sizes="64,64x128x64", layouts="nn,nt")
    keys = [case.key for group in groups for case in group.cases]
    assert len(set(keys)) == len(keys)
    assert all(case.group == group.name for group in groups for case in group.cases)
