"""Configurations of the Triton GEMM: labels, what a problem allows, which one runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import gluon
from kernels.case import CannotRun, Case, Target
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import Problem, parse
from kernels.gpus import architecture
from kernels.precision import PRECISIONS
from kernels.tile_model import LISTED, SAME_TILE

pytest.importorskip("triton")

from kernels.gemm.triton import backend

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
A100 = Target("cuda", "NVIDIA A100", (8, 0), 108)


@pytest.fixture(autouse=True)
def _no_tables_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def case(m: int, n: int, k: int, precision: str = "fp16", layout: str = "nt") -> Case:
    return Case("gemm", {"m": m, "n": n, "k": k}, precision, "triton", layout)


def test_labels_read_back() -> None:
    for precision in PRECISIONS.keys() - {"fp64"}:
        configs = list(cfg.catalogue(precision))
        assert [parse(config.label) for config in configs] == configs


@pytest.mark.parametrize(
    "label", ["", "tma/64x64/s4/w4/g8", "tma/64x64x64/s4/w4/g8/", "wmma/1x1x1/s1/w1/g1"]
)
def test_what_is_not_a_label_is_refused(label: str) -> None:
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
def test_what_is_packed(layout: str, precision: str, size: int, expected: tuple[bool, ...]) -> None:
    assert Problem.of(case(size, size, size, precision, layout)).storage_class == expected


def test_rules_find_something_that_fits() -> None:
    capabilities = ((7, 5), (8, 0), (9, 0), (12, 0))
    for capability, size, precision in itertools.product(
        capabilities, (1, 100, 4095, 32768), ("fp16", "tf32", "int8", "fp32")
    ):
        problem = Problem.of(case(size, size, size, precision))
        found = cfg.choices(problem, capability, 132)
        assert found
        for config in found:
            fits = cfg.shared_memory(config, problem.precision)
            assert fits <= architecture(capability).block_shared_bytes
            assert config.kernel == cfg.POINTER or capability >= (9, 0)
            by_pointers = config.kernel in (cfg.POINTER, *cfg.SLICED)
            assert by_pointers or config.direct >= problem.c_misaligned


@pytest.mark.parametrize(
    ("label", "precision", "k", "capability", "reason"),
    [
        ("gluon/128x192x64/s4/w8/g8", "fp16", 4096, (10, 0), "no wgmma"),
        ("gluon/128x192x64/s4/w8/g8", "fp16-acc16", 4096, (9, 0), "fp16-acc16"),
        ("tma/128x256x64/s7/w8/g8", "fp16", 4096, (9, 0), "shared memory"),
        ("tma/128x128x64/s3/w4/g8", "fp16", 4096, (8, 0), "no TMA"),
        ("split_k/64x64x64/s3/w4/g8/k4", "fp16", 192, (9, 0), "more slices"),
    ],
)
def test_what_cannot_run_has_a_reason(
    label: str, precision: str, k: int, capability: tuple[int, int], reason: str
) -> None:
    found = cfg.why_not(parse(label), Problem.of(case(4096, 4096, k, precision)), capability)
    assert found is not None
    assert reason in found


@pytest.mark.skipif(bool(gluon.missing()), reason="this Triton has no Gluon")
@pytest.mark.parametrize(
    ("size", "how"),
    [
        ((1024, 1024, 1024), "tuned"),
        ((1000, 1000, 1024), "lent"),  # tiles a little less full
        ((1048, 1048, 1048), "modelled"),  # 153 tiles for 128: a second wave
    ],
)
def test_how_a_configuration_is_chosen(size: tuple[int, int, int], how: str) -> None:
    config, choice = backend.chosen(case(*size), H200)
    assert choice.how == how
    assert cfg.valid(config, Problem.of(case(*size)), (9, 0))


def test_a_short_list_has_the_model_s_first_and_few_of_a_tile() -> None:
    what = case(1048, 1048, 1048)
    found = backend.options_of(what, H200).short_list()
    assert len(found) <= LISTED + 1
    assert found[0] == cfg.choices(Problem.of(what), (9, 0), 132)[0]
    kinds = [cfg.tile_kind(config) for config in found[:LISTED]]
    assert max(map(kinds.count, kinds)) <= SAME_TILE


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (17, 4096, 4096)])
@pytest.mark.parametrize("without", [("skinny/*", "split_k/*"), ("gluon/*",)])
def test_what_is_left_out_is_neither_chosen_nor_timed(
    size: tuple[int, int, int], without: tuple[str, ...]
) -> None:
    what, target = case(*size), replace(H200, without=without)
    whole, left = (backend.options_of(what, one).rank() for one in (H200, target))
    assert [config for config in whole if target.has(config.label)] == list(left)
    assert len(left) < len(whole)
    options = backend.options_of(what, target)
    for config in (options.chosen()[0], *options.short_list()):
        assert target.has(config.label)
    with pytest.raises(CannotRun):
        backend.options_of(what, replace(H200, without=("*",))).chosen()


def test_the_users_winner_comes_first() -> None:
    what, label = case(1024, 1024, 1024), "tma/64x64x64/s3/w4/g3"
    assert backend.configuration(what, H200).label != label
    backend.save_tuned(what, H200, label)
    assert backend.configuration(what, H200).label == label
    assert backend.configuration(case(1025, 1025, 1025), H200).label != label
    assert backend.configuration(what, A100).kernel == cfg.POINTER


@pytest.mark.parametrize("text", ["{", '{"fp16": 3}', '{"fp16": {"nt": {"0x64x64": "no/label"}}}'])
def test_a_table_that_cannot_be_read_is_named_and_costs_no_run(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "halfway" / "tuned" / "nvidia-a100.json"
    table.parent.mkdir(parents=True)
    table.write_text(text)
    for _ in range(2):
        assert backend.configuration(case(64, 64, 64), A100).kernel == cfg.POINTER
    (said,) = capsys.readouterr().err.splitlines()
    assert str(table) in said
