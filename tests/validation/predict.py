"""python -m tests.validation.predict FILE: predicted against measured GPU time of twelve networks.

Nothing was tuned on them: no published file has one. Each is predicted and then trained, under two
recipes, once; FILE is the run file, and the same command goes on with an unfinished one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from e2e.commands.session import Session
from e2e.commands.train import run_training
from e2e.options import TrainOptions
from e2e.report.predictions import error_pct
from e2e.results.types import Training
from microbench.results.runfile import read_run
from microbench.results.types import Run
from tests.validation.evidence import says_mistakes

RECIPES, BUDGET_S = "tf32,amp", 6.0  # seconds of timing both
MEDIAN_PCT, WORST_PCT = 1.0, 5.0  # of the GPU's time, allowed
# By kind, and with a small batch where CPU launch is to be the limit.
NETWORKS = {
    "alexnet": 256,  # few large layers, no normalisation
    "vgg13_bn": 64,  # plain convolutions
    "resnet34": 8,  # residual blocks; small
    "googlenet": 64,  # branches, joined
    "mnasnet1_0": 128,  # depthwise
    "efficientnet_v2_s": 32,  # fused and depthwise blocks with squeeze and excitation
    "regnet_x_400mf": 8,  # groups; small
    "regnet_y_1_6gf": 64,  # groups, squeeze and excitation
    "convnext_small": 32,  # large depthwise kernels, layer-norm
    "vit_l_32": 32,  # attention, large matrix multiplications
    "swin_v2_t": 32,  # attention in windows, cosine
    "maxvit_t": 16,  # convolutions and attention in windows and grids
}


@says_mistakes
def main(arguments: list[str] | None = None) -> int:
    """Predict and measure, and print the errors. 1 where they are larger than allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.validation.predict", description=__doc__)
    parser.add_argument("file", type=Path, help="the run file, new or to go on with")
    parser.add_argument("--networks", help="NAME:BATCH,...  [default: the twelve]")
    parser.add_argument("--recipe", default=RECIPES)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    pairs = [one.split(":") for one in given.networks.split(",")] if given.networks else None
    networks = {name: int(batch) for name, batch in pairs} if pairs else NETWORKS
    # By the name of this module: the measuring process is to find it.
    from tests.validation.predict import predict_and_train as procedure

    for name, batch in networks.items():
        words = {
            "device": given.device, "recipe": given.recipe, "budget": BUDGET_S,
            "batch": str(batch), "resume" if given.file.exists() else "json": given.file,
        }  # fmt: skip
        options = TrainOptions.of(name, words, workers=0, record=False)
        run_training(options, procedure, "predict-gpu-time")
    return 0 if holds(read_run(given.file).of(Training)) else 1


def predict_and_train(session: Session, run: Run) -> Run:
    """In one process: the training finds the algorithms that the prediction searched for."""
    return session.compare(session.predict(run, session.comparisons), session.comparisons)


def holds(trainings: Sequence[Training]) -> bool:
    """Print the errors of GPU time and of peak memory; whether the first are as small as allowed.

    `halfway show` of the file has a row for each step.
    """
    both = [one for one in trainings if error_pct(one) is not None]
    errors = [abs(error_pct(one) or 0.0) for one in both]
    if not errors:
        print("Nothing was both predicted and measured.")
        return False
    met = median(errors) <= MEDIAN_PCT and max(errors) <= WORST_PCT
    print(f"GPU time of {len(errors)} steps: {_said(errors)}; allowed {MEDIAN_PCT:g} and "
          f"{WORST_PCT:g} %: {'met' if met else 'missed'}.")  # fmt: skip
    memory = [
        abs(100 * (one.predicted.memory_bytes / one.memory_peak_bytes - 1))
        for one in both
        if one.predicted and one.predicted.memory_bytes and one.memory_peak_bytes
    ]
    if memory:
        print(f"Peak memory: {_said(memory)}.")
    return met


def _said(errors: list[float]) -> str:
    return f"median {median(errors):.1f} %, worst {max(errors):.1f} %"


if __name__ == "__main__":
    sys.exit(main())
