"""Predictions of cases: their steps, each predicted once, and the loaders that feed them."""

from __future__ import annotations

from dataclasses import replace

from e2e.case import RESIDENT, USUAL_LOADER, TrainCase
from e2e.commands.plan import Comparison, Work
from e2e.commands.progress import TrainProgress
from e2e.commands.requests import links_in
from e2e.commands.worker import TrainWorker
from e2e.data.loaders import LOADERS
from e2e.data.loaders.resident import kept_bytes, no_room
from e2e.explain.annotate import Explainer
from e2e.prediction.exchange import not_predicted, with_exchange
from e2e.prediction.prediction import Prediction, with_loader
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.training.speed_readings import SlowdownRange, slowdown_range
from microbench.device.host import usable_cores
from microbench.worker import WorkerDied

LOAD_BUDGET_S = 4.0  # seconds of loading alone, where a prediction needs it


class Predictions:
    """Predicts cases. Each step and each loader is measured once; `loadings` has those by key."""

    def __init__(self, work: Work, worker: TrainWorker, progress: TrainProgress) -> None:
        self.work, self.worker, self.progress = work, worker, progress
        self.loadings: dict[str, Loading] = {}
        self._steps: dict[str, Prediction] = {}  # on a batch that stays on the device
        self._slowdowns: SlowdownRange | None = None  # of the host, for a comparison and its fixes
        asked = work.request
        self._links = links_in(asked.exchange, asked.arms) if asked.exchange else {}
        self.explainer = Explainer(
            self.of_case, work.kind, work.memory_bytes, fixes=work.proposes,
            cores=asked.settings.case.cpus or usable_cores(),
        )  # fmt: skip

    def of(self, comparison: Comparison) -> dict[str, Prediction]:
        """Predictions of all cases, by key, at one host speed: that of all readings together."""
        self._slowdowns = None
        first = self.explainer.predictions(comparison.cases)
        self._slowdowns = slowdown_range(
            {seen for prediction in first.values() for seen in prediction.speed_readings}
        )
        return self.explainer.predictions(comparison.cases)

    def of_case(self, case: TrainCase) -> Prediction:
        """The prediction of a case; where predicting fails or kills the process, the reason."""
        at_hand = {"loader": "synthetic", "workers": 0, "prefetch": 0}
        if reason := not_predicted(case):
            return Prediction(case, reason=reason)
        plain = replace(case, cached=False, cold=False, gpus=1, **at_hand)
        if plain.key not in self._steps:
            self.progress.about((plain,))
            try:
                step = self.worker.predict(plain, self.progress.stage)
            except WorkerDied as death:
                self.worker.restart()
                step = Prediction(plain, reason=death.reason, broke=True)
            self._steps[plain.key] = step
        found = replace(self._steps[plain.key], case=case)
        found = found.predicted_for(self._slowdowns) if self._slowdowns else found
        if case.gpus > 1:
            found = with_exchange(found, self._links[case.gpus])
        if case.loader == RESIDENT and USUAL_LOADER.get(case.data) != RESIDENT:
            return self._with_images_kept(found)
        if not case.fed or found.predicted is None:
            return found
        loading = self.loading(load_case(case), LOAD_BUDGET_S)
        if loading.status != "ok":
            return Prediction(case, reason=loading.reason, runs=False)
        on_gpu = LOADERS[case.loader].on_gpu
        return with_loader(found, loading, case.batch * case.accumulate, on_gpu=on_gpu)

    def loading(self, case: LoadCase, budget_s: float) -> Loading:
        """A loader measured alone, once, for `budget_s` seconds; "failed" if its process died."""
        if case.key not in self.loadings:
            self.progress.loading(case)
            try:
                found = self.worker.load(case, budget_s)
            except WorkerDied as death:
                self.worker.restart()
                found = Loading(case, "failed", death.reason)
            self.loadings[case.key] = found
        return self.loadings[case.key]

    def _with_images_kept(self, found: Prediction) -> Prediction:
        """With the memory of files that are decoded once and stay on the device."""
        count, predicted = self.work.facts.train_samples or 0, found.predicted
        _, height, width = (int(side) for side in found.case.input.split("x"))
        too_large = no_room(count, (height, width), self.work.memory_bytes)
        if too_large:
            return Prediction(found.case, reason=too_large, runs=False)
        if predicted is None or predicted.memory_bytes is None:
            return found
        memory_bytes = predicted.memory_bytes + kept_bytes(count, (height, width))
        return replace(found, predicted=replace(predicted, memory_bytes=memory_bytes))
