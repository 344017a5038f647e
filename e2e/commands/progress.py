"""Progress of a run: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from rich.console import Console

from e2e.case import TrainCase
from e2e.commands.job import Begun, Stage
from e2e.report.loading import unit_of
from e2e.report.run_report import cells
from e2e.report.variants import in_words
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Repeat, Training
from microbench import fmt
from microbench.report.live import LiveLine
from microbench.report.screen import is_live

SAY_EVERY_S = 10.0  # of images that are made, where nothing can be redrawn
RECORDING_S = 2.5  # about, of a variant, before any was recorded
FIRST = (Stage.SETTING_UP, Stage.TRAINING, Stage.LOADING, Stage.PREDICTING)  # what a result has
# The kind of result that comes of what begins, where it is another.
KINDS: Mapping[str, str] = {
    Stage.SETTING_UP: Stage.TIMING,
    Stage.RECORDING: Stage.TIMING,
    Stage.HOLDING: Stage.TRAINING,
}


class TimeLeft:
    """About how long it is to the end, from how long the parts took that are done.

    Nothing is known in the first third. Results of a kind (timed, trained, loaded) are taken to
    need as long as those before; of a comparison its variants' set-ups and recordings likewise.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._took_s: dict[str, list[float]] = {}  # by what was done
        self._to_come: Counter[str] = Counter()
        self._result, self._result_s = "", self._began_s  # which kind is under way, since when
        self._part, self._part_s = "", self._began_s  # of a comparison, likewise
        self._key = ""  # of the variant that is set up or recorded
        self._variants, self._variants_done = 0, 0
        self._budget_s = 0.0
        self._end_s: float | None = None  # of what is under way, where it says so itself
        self._after_s: float | None = None  # what comes after it, likewise

    def expect(self, kind: str, more: int) -> None:
        """So many more results of a kind are to come."""
        self._to_come[kind] += more

    def restart(self) -> None:
        """Another process begins: it says what is to come."""
        self._to_come.clear()
        self._after_s = None

    def begin(self, begun: Begun) -> None:
        """A part begins."""
        now_s = self._clock()
        self._variant_ends(now_s)
        kind = KINDS.get(begun.what, begun.what)
        if kind != self._result or begun.what in FIRST:
            self._result, self._result_s = kind, now_s
        self._part, self._part_s = begun.what, now_s
        if self._after_s is None:
            self._end_s = None
        self._variants, self._variants_done, self._key = len(begun.cases), 0, ""
        self._budget_s = begun.budget_s or self._budget_s

    def variant(self, key: str) -> None:
        """A variant of the part is at work."""
        if key != self._key and self._part in (Stage.SETTING_UP, Stage.RECORDING):
            now_s = self._clock()
            self._variant_ends(now_s)
            self._key, self._part_s = key, now_s

    def _variant_ends(self, now_s: float) -> None:
        if self._key:
            self._took_s.setdefault(self._part, []).append(now_s - self._part_s)
            self._variants_done += 1
            self._key = ""

    def ends_in(self, seconds: float, after_s: float | None = None) -> None:
        """What is under way ends in about this many seconds; all after it takes `after_s` more."""
        self._end_s = self._clock() + seconds
        if after_s is not None:
            self._after_s = after_s

    def done(self) -> None:
        """A result was saved."""
        now_s = self._clock()
        self._variant_ends(now_s)
        self._took_s.setdefault(self._result, []).append(now_s - self._result_s)
        self._to_come[self._result] -= 1
        self._part, self._result_s = "", now_s

    def seconds(self) -> float | None:
        """Seconds to the end of all that is to come; None while too little is known."""
        now_s = self._clock()
        rest_s, left = 0.0, +self._to_come
        if self._after_s is not None and self._end_s is not None:
            return self._known(max(0.0, self._end_s - now_s) + self._after_s)
        if not self._part and not left:
            return None
        if self._part:
            part_s = self._of_part(now_s)
            if part_s is None:
                return None
            rest_s = part_s
            left[self._result] -= 1
        for kind, count in (+left).items():
            each_s = self._mean_s(kind)
            if each_s is None and self._part and kind == self._result:
                each_s = now_s - self._result_s + rest_s
            if each_s is None:
                return None
            rest_s += count * each_s
        return self._known(rest_s)

    def _known(self, rest_s: float) -> float | None:
        """The rest, from a third of all on."""
        return rest_s if rest_s <= 2 * (self._clock() - self._began_s) else None

    def _mean_s(self, what: str) -> float | None:
        took_s = self._took_s.get(what)
        return sum(took_s) / len(took_s) if took_s else None

    def _of_part(self, now_s: float) -> float | None:
        """The rest of the result that is under way."""
        spent_s = now_s - self._part_s
        if self._end_s is not None:
            rest_s = max(0.0, self._end_s - now_s)
            return rest_s + self._recording_s() * (self._part == Stage.TIMING)
        if self._part in (Stage.SETTING_UP, Stage.RECORDING):
            each_s = self._mean_s(self._part)
            if each_s is None:
                return None
            more = self._variants - self._variants_done - 1
            variants_s = max(0.0, each_s - spent_s) + each_s * more
            later_s = self._budget_s + self._recording_s()
            return variants_s + later_s * (self._part == Stage.SETTING_UP)
        if self._part == Stage.TIMING:
            return max(0.0, self._budget_s - spent_s) + self._recording_s()
        if self._part == Stage.LOADING:
            return max(0.0, self._budget_s - spent_s)
        each_s = self._mean_s(self._result)
        return None if each_s is None else max(0.0, each_s - (now_s - self._result_s))

    def _recording_s(self) -> float:
        each_s = self._mean_s(Stage.RECORDING)
        return self._variants * (RECORDING_S if each_s is None else each_s)


class TrainProgress(LiveLine):
    """Shows which variant runs, results so far, and the time left.

    What is counted is saved one after another: timed comparisons, trainings, and measured loaders.
    """

    _total: int

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        super().__init__(console, 0, quiet=quiet)
        self.time_left = TimeLeft(time.monotonic)
        self._names: dict[str, str] = {}
        self._process = ""

    def expect(self, kind: str, more: int) -> None:
        """Add to the number of results of a kind that will be saved."""
        self._total += more
        self.time_left.expect(kind, more)

    def restarted(self) -> None:
        """Another process goes on: it says what is left."""
        self._total = self._done
        self.time_left.restart()

    def next_process(self, number: int, of: int) -> None:
        """A fresh process times comparisons once more."""
        self._process = f"process {number} of {of}: "
        self._doing = f"{self._process}starting"

    def begins(self, begun: Begun) -> None:
        """Something begins with these cases."""
        self.time_left.begin(begun)
        cases = begun.cases
        if cases and isinstance(cases[0], LoadCase):
            self._doing = fmt.clean(f"{loader_name(cases[0])}: loading")
            return
        variants = [case for case in cases if isinstance(case, TrainCase)]
        self._names = {case.key: variant_name(case) for case in variants}
        if begun.what == Stage.SETTING_UP and not self._process:
            count = fmt.count(len(variants), "variant")
            self.say(fmt.clean(f"{variants[0].network} {_size(variants[0])}, {count}"))

    def stage(self, key: str, stage: str) -> None:
        """A variant entered a stage."""
        self.time_left.variant(key)
        name = self._names.get(key, "")
        self._doing = self._process + fmt.clean(f"{name}: {stage}" if name else stage)

    def timed(self, trainings: list[Training]) -> None:
        """A comparison, timed or only predicted, was saved."""
        figures = ((t, fmt.throughput(t.per_s) if t.per_s else t.status) for t in trainings)
        parts = [f"{variant_name(training.case)} {what}" for training, what in figures]
        case, unit = trainings[0].case, trainings[0].unit
        timed = f" {unit}/s" * any(t.per_s for t in trainings)
        network = f"{self._process}{case.network}"
        self._advance(f"{network} {_size(case)}: {', '.join(parts)}{timed}")

    def loaded(self, loading: Loading) -> None:
        """A loader's measurement was saved."""
        unit = unit_of([loading])
        per_s = f"{fmt.throughput(loading.per_s)} {unit}/s" if loading.per_s else loading.status
        self._advance(f"{loader_name(loading.case)}: {per_s}")

    def trained(self, case: TrainCase, repeat: Repeat) -> None:
        """A training was saved."""
        result = "no held-out data" if repeat.loss is None else f"loss {repeat.loss:.3f}"
        if repeat.accuracy is not None:
            result = f"accuracy {repeat.accuracy:.1%}"
        if repeat.train_loss is None:
            result = "the loss is not finite"
        took = fmt.duration(repeat.train_s)
        self._advance(
            f"{variant_name(case)} batch {case.batch} seed {repeat.seed}: {result} after "
            f"{fmt.count(repeat.steps, 'step')} in {took}"
        )

    def _advance(self, line: str) -> None:
        self._done += 1
        self.time_left.done()
        self.say(fmt.clean(f"[{self._done}/{self._total}] {line}"))

    def left_s(self) -> float | None:
        """Estimated seconds to the end; None while too little is known."""
        return self.time_left.seconds()


def loader_name(case: LoadCase) -> str:
    """Such as "torchvision, 4 workers, cold files, prefetch 4"."""
    name, _, how = cells(case)
    return f"{name}, {how}"


def variant_name(case: TrainCase) -> str:
    """Such as "amp nhwc +compile"."""
    return " ".join(in_words(case, ("recipe", "layout", "fused", "compile", "graph", "compress")))


def _size(case: TrainCase) -> str:
    """ "batch 256", "batch 256, 2 GPUs"."""
    return ", ".join(in_words(case, ("batch", "gpus")))


# ---------------------------------------------------------------- the images of --data made


def make_usual(console: Console) -> None:
    """Generate the dataset of `--data made` in the cache if needed, with its progress."""
    from e2e.data.sources.jpegs import USUAL, cached

    with MakeProgress(console, USUAL.images) as progress:
        cached(progress.there, begin=progress.say)


class MakeProgress(LiveLine):
    """Images generated so far, their rate, and the time left."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        self._before: int | None = None  # made by an earlier call, which was interrupted
        self._began_s = self._said_s = time.monotonic()

    def there(self, done: int, total: int) -> None:
        """Show that `done` images are generated."""
        now_s = time.monotonic()
        if self._before is None:
            self._began_s, self._before = now_s, done
        self._done = done
        self._doing = f"{fmt.number(self._per_s())} images/s" if self._per_s() else "generating"
        if not is_live(self._console) and now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            left = self._left()
            self.say(f"[{done:,}/{total:,}] {self._doing}{f', {left}' if left else ''}")

    def _per_s(self) -> float:
        """Images that this call generates in a second; 0 before the first."""
        took_s = time.monotonic() - self._began_s
        return (self._done - (self._before or 0)) / took_s if took_s > 0 else 0.0

    def left_s(self) -> float | None:
        """Seconds until the last image is made, at the rate so far."""
        return (self._total - self._done) / self._per_s() if self._per_s() else None
