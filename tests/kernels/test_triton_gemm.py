"""The Triton GEMM: right in the interpreter, and its labels and tables.

TRITON_INTERPRET must be set before triton is imported, so the interpreter's products run in a
process of their own: this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from kernels.case import Case, Target
from kernels.gemm import LAYOUTS, OP
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import Config, Problem, parse
from kernels.gpus import architecture
from kernels.precision import PRECISIONS
from kernels.tile_model import LISTED, SAME_TILE
from kernels.tuned import nearest

TMA_LABELS = (
    "tma/32x32x16/s2/w4/g2", "tma_persistent/32x64x16/s2/w4/g8/sub4",
    "tma_192/32x192x16/s2/w4/g2/sub2",
)  # fmt: skip
POINTER_LABEL = "pointer/32x32x16/s2/w4/g4"
# bf16 is not here: the interpreter's dot is silently wrong on it.
INTERPRETED = [name for name in PRECISIONS if name not in ("fp64", "bf16")]
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
PROGRAMS = 4  # "SMs" that persistent kernels see


def case(precision: str, m: int, n: int, k: int, layout: str = "nt") -> Case:
    return Case("gemm", {"m": m, "n": n, "k": k}, precision, "triton", layout)


def interpreted() -> dict[str, tuple[str, Case]]:
    """Name -> (label, case): layouts, tails in M, N and K, unequal sizes, size 1, precisions."""
    found = []
    for layout, label in itertools.product(LAYOUTS, (*TMA_LABELS, POINTER_LABEL)):
        direct = "" if label == POINTER_LABEL else "/direct"
        tails = ("fp16", 41, 197, 37) if len(found) % 4 else ("int8", 67, 33, 50)
        found += [
            (label, case("fp16", 96, 208, 48, layout)),
            (label + direct, case(*tails, layout)),
        ]
    for label in (POINTER_LABEL, "tma/32x32x16/s2/w4/g2/sub2/direct"):
        found += [(label, case("fp16", *size)) for size in ((1, 1, 1), (1, 40, 64), (33, 1, 5))]
    for precision in INTERPRETED:
        for label in ("tma_persistent/32x64x32/s2/w4/g8/sub2", "pointer/32x32x32/s2/w4/g4"):
            found.append((label, case(precision, 48, 80, 40 if precision == "fp16" else 48)))
    return {f"{label} {what.precision_name} {what.group}": (label, what) for label, what in found}


def interpret() -> None:
    """Run all of `interpreted` and print errors and tolerances as JSON."""
    from kernels.checking import poison
    from kernels.gemm.check import relative_error
    from kernels.gemm.operands import OperandPool
    from kernels.gemm.triton.backend import Launcher

    pool = OperandPool(Target("cpu", "cpu"), seed=0)
    pool.sampled = 10_000  # everything
    errors = {}
    for name, (label, what) in interpreted().items():
        operands = pool.get(what)
        poison(operands.c)
        launcher = Launcher(Problem.of(what), operands.a, operands.b, operands.c, PROGRAMS)
        for step in launcher.bind(parse(label)):
            step.launch()
        errors[name] = [relative_error(operands), what.precision.rel_tolerance]
    print(json.dumps(errors))


@pytest.mark.parametrize("name", list(interpreted()))
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]):
    error, tolerance = errors[name]
    assert error <= tolerance


def all_configs() -> list[Config]:
    return [c for p in PRECISIONS if p != "fp64" for c in cfg.catalogue(p)]


def test_labels_read_back():
    configs = all_configs()
    assert [parse(config.label) for config in configs] == configs


@pytest.mark.parametrize(
    "label", ["", "tma/64x64/s4/w4/g8", "tma/64x64x64/s4/w4/g8/", "wmma/1x1x1/s1/w1/g1"]
)
def test_what_is_not_a_label_is_refused(label: str):
    with pytest.raises(ValueError, match="not a configuration"):
        parse(label)


@pytest.mark.parametrize(
    ("layout", "precision", "size", "expected"),
    [
        ("nt", "fp16", 4096, (False, False, False)),
        ("tn", "fp16", 4096, (False, False, False)),
        ("tn", "fp8-e4m3", 4096, (True, True, False)),
        ("nn", "tf32", 4096, (False, True, False)),
        ("nt", "fp16", 4095, (True, True, True)),
        ("nt", "int8", 4104, (True, True, False)),
    ],
)
def test_what_is_packed(layout: str, precision: str, size: int, expected: tuple[bool, ...]):
    assert Problem.of(case(precision, size, size, size, layout)).storage_class == expected


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("size", [1, 100, 1024, 4095, 32768])
def test_rules_find_something_that_fits(capability: tuple[int, int], size: int):
    for precision in ("fp16", "tf32", "int8", "fp32"):
        problem = Problem.of(case(precision, size, size, size))
        found = cfg.choices(problem, capability, 132)
        assert found
        for config in found:
            fits = cfg.shared_memory(config, problem.precision)
            assert fits <= architecture(capability).block_shared_bytes
            assert config.kernel == cfg.POINTER or capability >= (9, 0)
            assert config.kernel == cfg.POINTER or config.direct >= problem.c_misaligned


def test_table_entries_are_right_for_their_case():
    pytest.importorskip("kernels.gemm.triton.backend")
    for path in OP.tables.repository.glob("*.json"):
        for precision, layouts in json.loads(path.read_text()).items():
            for layout, sizes in layouts.items():
                for size, label in sizes.items():
                    m, n, k = map(int, size.split("x"))
                    problem = Problem.of(case(precision, m, n, k, layout))
                    assert cfg.valid(parse(label), problem, (9, 0)), (precision, size, label)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1024, 1024, 1024), "a"),
        ((1100, 1024, 1024), "a"),
        ((2048, 2048, 2048), "b"),
        ((1024, 1024, 4096), None),
        ((4096, 4096, 4096), None),
    ],
)
def test_nearest(size: tuple[int, int, int], expected: str | None):
    listed = {"1024x1024x1024": "a", "2048x2048x2048": "b", "4096x4096x4096": "unusable"}
    found = nearest(listed, size, lambda _, label: label != "unusable")
    assert (found and found[1]) == expected


@pytest.mark.parametrize(
    ("size", "how"),
    [
        ((1024, 1024, 1024), "tuned"),
        ((1024, 1024, 1120), "lent"),  # the same tiles
        ((1000, 1000, 1024), "lent"),  # tiles a little less full
        ((1048, 1048, 1048), "modelled"),  # 153 tiles for 128: a second wave
        ((904, 904, 904), "modelled"),  # as many waves, but tiles half empty at the edges
        ((1024, 4096, 1024), "modelled"),  # too far
    ],
)
def test_what_is_lent_agrees_in_waves_and_padding(size: tuple[int, int, int], how: str):
    backend = pytest.importorskip("kernels.gemm.triton.backend")
    what = case("fp16", *size)
    config, choice = backend.chosen(what, H200)
    assert choice.how == how
    assert cfg.valid(config, Problem.of(what), (9, 0))
    if how == "modelled":
        first = cfg.choices(Problem.of(what), (9, 0), 132)[0]
        clocks = [cfg.estimated_clocks(c, Problem.of(what), 132) for c in (config, first)]
        assert clocks[0] <= clocks[1]


def test_a_short_list_has_the_model_s_first_and_the_nearest_tuned_one():
    backend = pytest.importorskip("kernels.gemm.triton.backend")
    what = case("fp16", 1048, 1048, 1048)
    found = backend.options_of(what, H200).short_list()
    tuned = OP.tables.section([H200.name], "fp16", "nt")["1024x1024x1024"]
    assert parse(tuned) in found
    assert len(found) <= LISTED + 1
    ranked = cfg.choices(Problem.of(what), (9, 0), 132)
    assert found[0] == ranked[0]
    kinds = [cfg.tile_kind(config) for config in found[:LISTED]]
    assert max(map(kinds.count, kinds)) <= SAME_TILE
    exact = case("fp16", 1024, 1024, 1024)
    assert backend.options_of(exact, H200).short_list() == (parse(tuned),)


def test_the_users_winner_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backend = pytest.importorskip("kernels.gemm.triton.backend")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, what = Target("cuda", "NVIDIA H200", (9, 0), 132), case("fp16", 1024, 1024, 1024)
    label = "tma/64x64x64/s3/w4/g3"
    assert backend.configuration(what, target).label != label
    path = backend.save_tuned(what, target, label)
    assert path == tmp_path / "halfway" / "tuned" / "nvidia-h200.json"
    assert backend.configuration(what, target).label == label
    near = case("fp16", 1024, 1024, 1152)
    assert backend.configuration(near, target).label == label
    odd = case("fp16", 1025, 1025, 1025)
    assert backend.configuration(odd, target).label != label
    old = Target("cuda", "NVIDIA A100", (8, 0), 108)
    assert backend.configuration(what, old).kernel == cfg.POINTER


if __name__ == "__main__":
    interpret()
