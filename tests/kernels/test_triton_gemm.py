"""Configurations of the Triton GEMM: labels, what a problem allows, which one runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import tune
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.gemm import Gemm
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import GemmConfig, GemmProblem, parse
from kernels.gpus import architecture
from kernels.precision import PRECISIONS
from kernels.triton_util import bound
from kernels.tune import MODELLED, NONE, QUICK, SAME_TILE, WIDE

pytest.importorskip("triton")

from kernels.gemm.triton import backend

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)


@pytest.fixture(autouse=True)
def _no_winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tune.forget()


RUN = [name for name, kind in PRECISIONS.items() if "triton" in kind.min_capability]


def case(m: int, n: int, k: int, precision: str = "fp16", layout: str = "nt") -> Case:
    return Case(Gemm(m, n, k, layout), precision, "triton")


def test_labels_read_back_and_what_is_none_is_refused() -> None:
    for precision in RUN:
        configs = list(cfg.catalogue(precision))
        assert [parse(config.label) for config in configs] == configs
    for label in ("", "tma/64x64/s4/w4/g8", "tma/64x64x64/s4/w4/g8/", "wmma/1x1x1/s1/w1/g1",
                  "/swapped"):  # fmt: skip
        with pytest.raises(ValueError, match="not a configuration"):
            parse(label)


@pytest.mark.parametrize(
    ("layout", "precision", "size", "expected"),
    [
        ("nt", "fp16", 4096, (False, False, False)), ("tn", "fp16", 4096, (False, False, False)),
        ("tn", "fp8-e4m3", 4096, (True, True, False)), ("nn", "tf32", 4096, (False, True, False)),
        ("nt", "fp16", 4095, (True, True, True)), ("nt", "int8", 4104, (True, True, False)),
    ],
)  # fmt: skip
def test_what_is_packed(layout: str, precision: str, size: int, expected: tuple[bool, ...]) -> None:
    problem = GemmProblem.of(case(size, size, size, precision, layout))
    assert (problem.a.packed, problem.b.packed, problem.c_misaligned) == expected


def test_a_narrow_operand_is_not_copied_and_slices_fill_the_sms() -> None:
    """100,000 rows of 2 to 32 bytes would become as many lines of 128."""
    vector = GemmProblem.of(case(1, 4096, 100000, layout="tn"))
    assert vector.a.k_major
    assert not vector.a.packed
    assert not GemmProblem.of(case(4096, 1, 100000)).b.packed
    for m in (2, 4, 15):
        (operand,) = GemmProblem.of(case(m, 4096, 100000, layout="tn")).copied
        assert operand.copy.k_major
        assert operand.copied_bytes <= 1.01 * 2 * m * 100000 * 2
    (operand,) = GemmProblem.of(case(33, 4096, 100000, layout="tn")).copied
    assert not operand.copy.k_major
    assert not GemmProblem.of(case(16, 4096, 100000, layout="tn")).copied  # TMA reads it as it lies
    first = cfg.choices(GemmProblem.of(case(640, 640, 32768)), (9, 0), 132)[0]
    assert first.split_k == 5, "where powers of two do not"
    assert GemmProblem.of(case(640, 640, 32768)).tiles(first) * first.split_k == 125
    listed = backend.configurations(case(8192, 8192, 8192), H200).tried(QUICK)
    large = {(c.stages, c.group_m) for c in listed if c.tile == (128, 256, 64)}
    assert large >= {(3, 8), (4, 8), (3, 16), (4, 16)}


@pytest.mark.parametrize(
    ("size", "widths"),
    [((257, 14336, 4096), {272}), ((1536, 1536, 1536), {144}), ((4096, 4096, 4096), set())],
)
def test_widths_between_powers_of_two_are_timed_where_they_save_tiles(
    size: tuple[int, int, int], widths: set[int]
) -> None:
    listed = backend.configurations(case(*size), H200).tried(QUICK)
    odd = [config for config in listed if config.kernel == cfg.ODD_WIDTH]
    assert {config.bm if config.swapped else config.bn for config in odd} == widths
    assert len(listed) == QUICK
    assert listed[: len(odd)] == tuple(odd)


def test_rules_find_what_fits_and_pointers_load_whole_words_of_rows_of_16_bytes() -> None:
    for size, slow in ((1024, False), (1000, False), (1004, True), (1001, True)):
        problem = GemmProblem.of(case(size, size, size))
        ranked = cfg.choices(problem, (9, 0), 132)
        pointer = next(config for config in ranked if config.kernel == cfg.POINTER)
        times = [cfg.estimated_clocks(config, problem, 132) for config in (pointer, ranked[0])]
        assert (times[0] > 1.3 * times[1]) == slow, size
    capabilities = ((7, 5), (8, 0), (9, 0), (12, 0))
    for capability, size, precision in itertools.product(
        capabilities, (1, 100, 4095, 32768), ("fp16", "tf32", "int8", "fp8-e5m2")
    ):
        problem = GemmProblem.of(case(size, size, size, precision))
        found = cfg.choices(problem, capability, 132)
        assert found
        for config in found:
            fits = cfg.shared_memory(config, problem.precision)
            assert fits <= architecture(capability).block_shared_bytes
            assert config.kernel == cfg.POINTER or capability >= (9, 0)
            by_pointers = config.kernel in (cfg.POINTER, *cfg.EITHER_WAY)
            assert by_pointers or config.direct >= problem.c_misaligned


@pytest.mark.parametrize(
    ("label", "n", "k", "capability"),
    [
        ("tma/128x256x64/s7/w8/g8", 4096, 4096, (9, 0)),  # more shared memory than a block has
        ("tma/128x128x64/s3/w4/g8", 4096, 4096, (8, 0)),  # no TMA
        ("tma/128x128x64/s3/w4/g8", 4095, 4096, (9, 0)),  # rows of C that TMA cannot store
        ("split_k/64x64x64/s3/w4/g8/k4", 4096, 192, (9, 0)),  # more split_k than steps
        ("tma/64x64x64/s4/w4/g8/swapped", 4096, 4096, (9, 0)),  # a kernel of one order alone
    ],
)
def test_what_cannot_run_is_not_valid(
    label: str, n: int, k: int, capability: tuple[int, int]
) -> None:
    config = parse(label)
    assert not cfg.valid(config, GemmProblem.of(case(4096, n, k)), capability)
    able = replace(config, stages=3, split_k=1, swapped=False)
    assert cfg.valid(able, GemmProblem.of(case(4096, 4096, 4096)), (9, 0))


def test_a_short_list_has_the_model_s_first_and_a_winner_is_what_runs() -> None:
    what = case(1048, 1048, 1048)
    options = backend.configurations(what, H200)
    ranked = cfg.choices(GemmProblem.of(what), (9, 0), 132)
    assert options.chosen[0] == ranked[0]
    assert options.chosen[1].how == MODELLED
    assert options.tried(NONE) == (ranked[0],)
    found = options.tried(QUICK)
    assert len(found) == QUICK
    assert found[0] == ranked[0]
    kinds = [cfg.tile_kind(config) for config in found]
    assert max(map(kinds.count, kinds)) <= SAME_TILE
    assert list(options.tried(WIDE)) == list(ranked[:WIDE])
    assert [len(options.tried(search)) for search in (1, 3, 12)] == [1, 3, 12]  # --tune N
    what = case(1048, 1048, 1048)
    last = cfg.choices(GemmProblem.of(what), (9, 0), 132)[-1]
    tune.save(what, H200, last.label, WIDE)
    options = backend.configurations(what, H200)
    assert options.known == (last, tune.Choice(tune.TUNED, WIDE))
    assert options.tried(QUICK) == options.tried(NONE) == (last,)
    assert options.tried(WIDE)[0] == last
    assert len(options.tried(WIDE)) == WIDE + 1
    for label in ("no label", "tma/256x256x64/s9/w8/g8"):  # the second does not fit
        tune.save(what, H200, label, 6)
        assert backend.configurations(what, H200).known is None


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (17, 4096, 4096)])
@pytest.mark.parametrize("without", [("*/swapped", "split_k/*"), ("tma/*",)])
def test_what_is_left_out_is_neither_chosen_nor_timed(
    size: tuple[int, int, int], without: tuple[str, ...]
) -> None:
    what, target = case(*size), replace(H200, without=without)
    whole, left = (backend.configurations(what, one).ranked for one in (H200, target))
    assert [config for config in whole if target.has(config.label)] == list(left)
    assert len(left) < len(whole)
    options = backend.configurations(what, target)
    for config in (options.chosen[0], *options.tried(QUICK)):
        assert target.has(config.label)
    with pytest.raises(CannotRun, match="leaves no"):
        _ = backend.configurations(what, replace(H200, without=("*",))).chosen


def test_what_does_not_fit_the_memory_is_left_out_and_a_bug_is_not() -> None:
    def bind(error: Exception) -> Callable[[GemmConfig], Candidate]:
        def bound_or_not(config: GemmConfig) -> Candidate:
            if config is found[1]:
                raise error
            return Candidate(config.label, lambda: None)

        return bound_or_not

    found = cfg.choices(GemmProblem.of(case(1048, 1048, 1048)), (9, 0), 132)[:3]
    left = bound(found, bind(torch.OutOfMemoryError("32 GiB")))
    assert [candidate.label for candidate in left] == [found[0].label, found[2].label]
    with pytest.raises(torch.OutOfMemoryError):
        bound(found[1:2], bind(torch.OutOfMemoryError("32 GiB")))
    with pytest.raises(IndexError):
        bound(found, bind(IndexError("a bug")))
