"""What a convolution sweep plans, and what it refuses in one line."""

from __future__ import annotations

import pytest

from kernels import OPS
from kernels.conv.shape import ConvShape
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.plans import plan_conv
from microbench.sweep import Group

PLAIN = dict(
    channels="64", passes="fprop", layouts="nhwc", image="28", batch="4", kernel="3", stride=1,
    padding="same", dilation=1, groups="1",
)  # fmt: skip


def plan(**changes: object) -> list[Group]:
    words = {**PLAIN, **{name: changes.pop(name) for name in PLAIN.keys() & changes.keys()}}
    return plan_conv(Conditions(**changes), "cuda", **words)  # type: ignore[arg-type]


def test_the_arms_are_the_baselines_and_what_was_asked() -> None:
    (group,) = plan(dtype="fp16,bf16", backend="cudnn,triton")
    arms = [(case.precision_name, case.backend) for case in group.cases]
    assert arms == [("fp32", "cudnn"), ("tf32", "cudnn"), ("fp16", "cudnn"), ("fp16", "triton"),
                    ("bf16", "cudnn"), ("bf16", "triton")]  # fmt: skip
    assert len({case.group for case in group.cases}) == 1


def test_every_combination_is_planned_once() -> None:
    groups = plan(channels="8..32,16,64x256", passes="fprop,wgrad", layouts="nhwc,nchw",
                  image="7,14x28", batch="1,2", kernel="1,3")  # fmt: skip
    names = [group.name for group in groups]
    assert len(names) == len(set(names)) == 4 * 2 * 2 * 2 * 2 * 2
    assert {OPS["conv"].size(group.cases[0]) for group in groups} == {"8", "16", "32", "64x256"}


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding"), [("1", 1, 0), ("3", 1, 1), ("7", 1, 3), ("3", 2, 2)]
)
def test_same_padding_keeps_the_image(kernel: str, dilation: int, padding: int) -> None:
    (group,) = plan(kernel=kernel, dilation=dilation)
    shape = ConvShape.of(group.cases[0])
    assert (shape.padding, shape.p, shape.q) == (padding, 28, 28)


def test_depthwise_has_a_group_a_channel() -> None:
    for group in plan(channels="8,32", groups="depthwise"):
        case = group.cases[0]
        assert case.dim("groups") == case.dim("c")


def test_misaligned_widths_bring_their_padded_twins() -> None:
    groups = plan(channels="60,64,61")
    twins = [group for group in groups if len(group.cases) == 1]
    assert not twins, "61 and 60 are padded to 64, which is there"
    (alone, twin) = plan(channels="60")
    assert len(alone.cases) == 3
    assert [(c.precision_name, c.backend, c.dim("c")) for c in twin.cases] == [
        ("fp16", "cudnn", 64)
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channels": "60", "groups": "7"}, "is not divisible into 7 groups"),
        ({"kernel": "31", "padding": "0"}, "does not fit"),
        ({"channels": "0"}, "at least 1"),
        ({"channels": "64..8"}, "backwards"),
        ({"channels": ""}, "empty"),
        ({"channels": "8x8x8"}, "cannot read"),
        ({"image": "a"}, "--image: cannot read"),
        ({"batch": "2x2"}, "--batch: cannot read"),
        ({"passes": "backward"}, "--pass: unknown 'backward'; choose from fprop, dgrad, wgrad"),
        ({"layouts": "nt"}, "--layout: unknown 'nt'; choose from nchw, nhwc"),
        ({"backend": "cublas"}, "--backend: unknown 'cublas'; choose from cudnn"),
        ({"padding": "-1"}, "--padding must be a number or same"),
        ({"groups": "all"}, "--groups must be a number or depthwise"),
        ({"kernel": "2"}, "--padding same needs a square kernel of odd size"),
        ({"kernel": "1x3"}, "--padding same needs a square kernel of odd size"),
        ({"dtype": "fp3"}, "unknown precision 'fp3'"),
        ({"data": "ones"}, "--data must be one of"),
    ],
)
def test_what_cannot_be_is_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        plan(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
