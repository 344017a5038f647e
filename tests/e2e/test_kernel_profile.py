"""Which kernels of a profile belong to which call."""

from __future__ import annotations

from e2e.prediction.op_timer.kernel_profile import MARK, kernels_of
from microbench.device.profiler import KernelTime


def seen(*names: str) -> list[KernelTime]:
    return [KernelTime(name, 1e-6, i * 1e-6) for i, name in enumerate(names)]


def test_kernels_belong_to_the_call_whose_mark_is_before_them() -> None:
    """Two behind a gate that ends with two marks, then one that waits, then nobody's."""
    profile = seen(
        "fill", "gate", MARK, "x", "y", MARK, "z", MARK, MARK, "copy", MARK, "w", MARK, "fill"
    )
    found = kernels_of(profile, ["a", "b", None, None, "c", None])
    names = {owner: [kernel.name for kernel in kernels] for owner, (kernels,) in found.items()}
    assert names == {"a": ["x", "y"], "b": ["z"], "c": ["w"]}


def test_of_a_profile_that_begins_late_what_came_last_is_known_and_of_a_wrong_one_nothing() -> None:
    late = seen("y", MARK, "z", MARK)
    assert kernels_of(late, ["a", "b", None]) == {"b": [[late[2]]]}
    assert kernels_of([], ["a"]) == {}
    assert kernels_of(seen(MARK, "x", MARK), ["a"]) == {}, "a mark without a launch"
