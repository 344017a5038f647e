"""The Triton GEMM: right in the interpreter, and its labels and tables.

TRITON_INTERPRET must be set before triton is imported, so the interpreter's products run in a
process of their own: this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import gluon
from kernels.case import CannotRun, Case, Target
from kernels.gemm import LAYOUTS, OP
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import Config, Problem, parse
from kernels.gpus import architecture
from kernels.precision import PRECISIONS
from kernels.tile_model import LISTED, SAME_TILE
from kernels.tuned import nearest

TMA_LABELS = ("tma/32x32x16/s2/w4/g2", "tma_persistent/32x64x16/s2/w4/g8/sub4")
POINTER_LABEL = "pointer/32x32x16/s2/w4/g4"
# These store C by pointers, whatever its rows.
SLICED_LABELS = (
    "split_k/32x16x16/s2/w4/g2/k3", "skinny/16x64x16/s2/w4/g8/k2", "skinny/32x32x32/s2/w4/g2",
    "split_k/64x64x16/s2/w4/g8/k2",
)  # fmt: skip
# bf16 is not here: the interpreter's dot is silently wrong on it.
INTERPRETED = [name for name in PRECISIONS if name not in ("fp64", "bf16")]
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
PROGRAMS = 4  # "SMs" that persistent kernels see


def case(precision: str, m: int, n: int, k: int, layout: str = "nt") -> Case:
    return Case("gemm", {"m": m, "n": n, "k": k}, precision, "triton", layout)


def interpreted() -> dict[str, tuple[str, Case]]:
    """Name -> (label, case): layouts, tails in M, N and K, unequal sizes, size 1, precisions."""
    found = []
    labels = (*TMA_LABELS, POINTER_LABEL, *SLICED_LABELS)
    for layout, label in itertools.product(LAYOUTS, labels):
        direct = "/direct" if label in TMA_LABELS else ""
        tails = ("int8", 67, 33, 50) if len(found) % 6 == 0 else ("fp16", 41, 197, 37)
        found += [
            (label, case("fp16", 96, 208, 48, layout)),
            (label + direct, case(*tails, layout)),
        ]
    for label in (POINTER_LABEL, "tma/32x32x16/s2/w4/g2/sub2/direct"):
        found += [(label, case("fp16", *size)) for size in ((1, 1, 1), (1, 40, 64), (33, 1, 5))]
    found += [(SLICED_LABELS[1], case("fp16", *size)) for size in ((1, 1, 32), (1, 40, 64))]
    for k in (36, 38):  # copies of words of 8 and 4 bytes, and of 2 beside them
        found += [(TMA_LABELS[0] + "/direct", case("fp16", 41, 67, k, lay)) for lay in ("nt", "nn")]
    for precision in INTERPRETED:
        for label in (
            "tma_persistent/32x64x32/s2/w4/g8/sub2", "pointer/32x32x32/s2/w4/g4",
            "split_k/64x32x32/s2/w4/g8/k2",
        ):  # fmt: skip
            found.append((label, case(precision, 48, 80, 40 if precision == "fp16" else 48)))
    return {f"{label} {what.precision_name} {what.group}": (label, what) for label, what in found}


def interpret() -> None:
    """Run all of `interpreted` and print errors and tolerances as JSON."""
    from kernels.checking import poison
    from kernels.gemm.check import relative_error
    from kernels.gemm.operands import OperandPool
    from kernels.gemm.triton.launch import Launcher

    pool = OperandPool(Target("cpu", "cpu"), seed=0)
    pool.sampled = 10_000  # everything
    errors = {}
    for name, (label, what) in interpreted().items():
        operands = pool.get(what)
        launcher = Launcher(Problem.of(what), operands.a, operands.b, operands.c, PROGRAMS)
        steps = launcher.bind(parse(label))
        for _ in range(2):  # a launch leaves its scratch as it found it
            poison(operands.c)
            for step in steps:
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
            by_pointers = config.kernel in (cfg.POINTER, *cfg.SLICED)
            assert by_pointers or config.direct >= problem.c_misaligned


def test_table_entries_are_right_for_their_case():
    pytest.importorskip("kernels.gemm.triton.backend")
    for path in OP.tables.repository.glob("*.json"):
        for precision, layouts in json.loads(path.read_text()).items():
            for layout, sizes in layouts.items():
                for size, label in sizes.items():
                    m, n, k = map(int, size.split("x"))
                    problem = Problem.of(case(precision, m, n, k, layout))
                    reason = cfg.why_not(parse(label), problem, (9, 0))
                    assert reason in (None, gluon.missing()), (precision, size, label)


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


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (1048, 1048, 1048), (17, 4096, 4096)])
@pytest.mark.parametrize("without", [("gluon/*",), ("skinny/*", "split_k/*"), ("*/*x1[46]0x*",)])
def test_what_is_left_out_is_neither_chosen_nor_timed(
    size: tuple[int, int, int], without: tuple[str, ...]
):
    backend = pytest.importorskip("kernels.gemm.triton.backend")
    what, target = case("fp16", *size), replace(H200, without=without)
    whole, left = (backend.options_of(what, one).rank() for one in (H200, target))
    assert [config for config in whole if target.has(config.label)] == list(left)
    assert len(left) < len(whole)
    options = backend.options_of(what, target)
    for config in (options.chosen()[0], *options.short_list()):
        assert target.has(config.label)


def test_a_gpu_without_any_configuration_says_so():
    backend = pytest.importorskip("kernels.gemm.triton.backend")
    with pytest.raises(CannotRun):
        backend.options_of(case("fp16", 1024, 1024, 1024), replace(H200, without=("*",))).chosen()


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


@pytest.mark.parametrize(
    ("label", "precision", "k", "capability", "reason"),
    [
        ("gluon/128x192x64/s4/w8/g8", "fp16", 4096, (10, 0), "no wgmma"),
        ("gluon/128x192x64/s4/w8/g8", "fp16-acc16", 4096, (9, 0), "fp16-acc16"),
        ("gluon/128x256x64/s7/w8/g8", "fp16", 4096, (9, 0), "shared memory"),
        ("tma/128x128x64/s3/w4/g8", "fp16", 4096, (8, 0), "no TMA"),
        ("split_k/64x64x64/s3/w4/g8/k4", "fp16", 192, (9, 0), "more slices"),
    ],
)
def test_what_cannot_run_has_a_reason(
    label: str, precision: str, k: int, capability: tuple[int, int], reason: str
):
    found = cfg.why_not(parse(label), Problem.of(case(precision, 4096, 4096, k)), capability)
    assert found is not None
    assert reason in found


def test_a_table_of_an_earlier_version_names_a_tile_that_is_there():
    problem = Problem.of(case("fp16", 1536, 1536, 1536))
    for old in ("tma_192/128x192x64/s4/w4/g8", "tma_192/128x192x64/s5/w8/g4/sub2/direct"):
        config = parse(old)
        assert config.tile == (128, 192, 64)
        assert cfg.why_not(config, problem, (9, 0)) in (None, gluon.missing())
        assert parse(config.label) == config


def test_without_gluon_the_other_kernels_are_left():
    """In a process of its own, in which Triton's Gluon cannot be imported."""
    script = """
import sys
sys.modules["triton.experimental.gluon"] = None
from kernels.case import Case, Target
from kernels.gemm.triton import backend, config as cfg
target = Target("cuda", "NVIDIA H200", (9, 0), 132)
for size in (1536, 4099, 4096):
    case = Case("gemm", {"m": size, "n": size, "k": size}, "fp16", "triton")
    problem = cfg.Problem.of(case)
    assert {c.kernel for c in cfg.choices(problem, (9, 0), 132)} >= {"pointer", "tma"}
    assert all(c.kernel != "gluon" for c in cfg.choices(problem, (9, 0), 132))
    print(backend.configuration(case, target).kernel)
print(cfg.why_not(cfg.parse("gluon/128x192x64/s4/w8/g8"), problem, (9, 0)))
"""
    pytest.importorskip("triton")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    *kernels, reason = run.stdout.splitlines()
    assert "gluon" not in kernels
    assert reason == "this Triton has no triton.experimental.gluon"


if __name__ == "__main__":
    interpret()
