"""docs/loader.md has the run files' numbers."""

from __future__ import annotations

from pathlib import Path

from microbench.report.markdown import to_markdown
from microbench.results import Run
from microbench.runfile import read_run
from microbench.train_results import Training

ROOT = Path(__file__).parents[1]
LOADER = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SAID = " ".join(LOADER.split())


def run_file(name: str) -> Run:
    return read_run(ROOT / "results" / "nvidia-h200" / name)


def fed(run: Run) -> list[Training]:
    return [t for t in run.trainings if t.case.fed and not t.case.cached]


def ms(seconds: list[float]) -> str:
    *first, last = [f"{1e3 * each:.1f}" for each in seconds]
    return f"{', '.join(first)} and {last}"


def test_the_loaders_alone_are_the_run_files_own() -> None:
    assert to_markdown(run_file("loaders.json")).strip() in LOADER


def test_what_a_decoding_gpu_feeds_is_the_run_files_own() -> None:
    run = run_file("train-resnet50-jpeg.json")
    (captured, compiled), (loading,) = fed(run), run.loadings
    assert captured.case.graph
    assert compiled.case.compile
    for training in (captured, compiled):
        assert training.steps is not None
        assert training.steps.unfed_s is not None
        assert training.per_s is not None
        at_hand = f"{training.per_s * training.steps.median_s / training.steps.unfed_s:,.0f}"
        said = [f"trained {training.per_s:,.0f} img/s"]
        if training.case.graph:
            share = 100 * training.steps.unfed_s / training.steps.median_s
            step_ms, unfed_ms = 1e3 * training.steps.median_s, 1e3 * training.steps.unfed_s
            said += [f"{step_ms:.1f} ms a step", f"took {unfed_ms:.1f} ms ({share:.1f} % of"]
        else:
            host_ms = 1e3 * (training.steps.host_s or 0)
            said += [f"would have given {at_hand}", f"needs {host_ms:.0f} ms to launch"]
        for words in said:
            assert words in SAID
    assert f"the loader alone gave {loading.per_s:,.0f}" in SAID
    assert f"ran at {captured.per_s:,.0f} img/s" in " ".join(METHOD.split())
    assert f"trains {captured.per_s:,.0f} img/s" in " ".join(README.split())


def test_two_cores_are_the_run_files_own() -> None:
    run = run_file("stalls-two-cpus.json")
    arms = {t.case.recipe: t.steps for t in fed(run)}
    steps = [steps for name in ("O0", "O1", "O2", "O3") if (steps := arms[name])]
    assert f"took {ms([one.median_s for one in steps])} ms a step, but" in SAID
    assert f"but {ms([one.unfed_s or 0 for one in steps])} ms on a batch that was there" in SAID
    assert {len(one.blocks_s) for one in steps} == {3}
    table = to_markdown(run)
    assert table[table.index("| workers | loader alone") :].strip() in LOADER
