"""Files that are not runs: a fleet check, and documents of other programs.

Each GPU of a fleet is compared with the median of the others of its model, so that it does not hide
itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import cast

from microbench import fmt
from microbench.report.parts import Column, Line, Part, Report, Row
from microbench.report.report import HEADER
from microbench.results.codec import decode
from microbench.results.kinds import DOCUMENTS, Document
from microbench.results.types import Interval, Json, Ratio, Result

CHECK = "fleet"  # the value of "check" in the file
COPY = "memory copy"
FAULTS = FAILED, SLOW = "failed", "slow"
READ = ("median_s", "ci95_s", "sm_clock_mhz", "power_w", "temperature_c", "throttle")
RAW = ("case", "gpu", "name", "work", "median_s", "status", "reason", "vs_others_pct",
       "sm_clock_mhz", "power_w", "temperature_c", "throttle", "finding")  # fmt: skip
COUNT = 3  # GPUs: of fewer there is no telling which one is as it should be


@dataclass(frozen=True)
class GpuResult:
    """One case on one GPU: median seconds, their 95 % interval, and the sensors meanwhile.

    `gpu` is torch's index, `work` FLOP of a launch, bytes for COPY. Without seconds, `reason` says
    why. `finding` is one of FAULTS, "unclear" or "". Nothing identifies the card or the host.
    """

    gpu: int
    name: str = "unknown"
    case: str = ""
    work: float = 0.0
    median_s: float | None = None
    ci95_s: Interval | None = None
    status: str = "ok"
    reason: str | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    vs_others_pct: float | None = None
    finding: str = ""

    def of(self, result: Result) -> GpuResult:
        """A kernel's result on this GPU."""
        case, measurement = result.case, result.measurement
        layout = "" if case.problem.layout == "nt" else case.problem.layout  # the usual one
        words = (case.precision_name, fmt.size(case), layout, case.backend)
        read = {name: getattr(measurement, name) for name in READ} if measurement else {}
        return replace(self, case=" ".join(filter(None, words)), work=result.flops,
                       status=result.status, reason=result.reason, **read)  # fmt: skip

    @property
    def rate(self) -> str:
        """FLOP/s, or bytes/s for COPY; why there is none."""
        if not self.median_s:
            return fmt.clean(self.reason or "")
        per_s = self.work / self.median_s
        return fmt.bandwidth(per_s) if self.case == COPY else f"{fmt.number(per_s / 1e12)} TFLOP/s"


def judged(rows: Sequence[GpuResult], threshold_pct: float) -> list[GpuResult]:
    """The rows with their distance from the others', and what is wrong with each.

    Slow is one whose whole interval, where it has one, is beyond the threshold.
    """
    graded: list[GpuResult] = []
    for row in rows:
        ratio, finding = _relative(row, rows), FAILED if row.status == FAILED else ""
        if ratio and ratio.ruined_pct:
            finding = "unclear"
        elif ratio and (ratio.ci95 or (ratio.ratio,))[0] > 1 + threshold_pct / 100:
            finding = SLOW
        distance_pct = 100 * (1 / ratio.ratio - 1) if ratio else None
        graded.append(replace(row, vs_others_pct=distance_pct, finding=finding))
    return graded


def _relative(row: GpuResult, rows: Sequence[GpuResult]) -> Ratio | None:
    """Its time over the median time of the others, with the noise of both; None for no time."""
    others = [r for r in rows if (r.name, r.case) == (row.name, row.case) and r.gpu != row.gpu]
    times_s = [r.median_s for r in others if r.median_s]
    if not row.median_s or not times_s:
        return None
    ratio = row.median_s / median(times_s)
    halves = [math.log(r.ci95_s[1] / r.ci95_s[0]) / 2 for r in others if r.ci95_s]
    if row.ci95_s is None or not halves:
        return Ratio(ratio, None)
    half = math.hypot(math.log(row.ci95_s[1] / row.ci95_s[0]) / 2, median(halves))
    return Ratio(ratio, (ratio * math.exp(-half), ratio * math.exp(half)))


def to_json(facts: Json, rows: Sequence[GpuResult]) -> Json:
    """The file: facts of the command, then the rows."""
    return {**facts, "rows": [asdict(row) for row in rows]}


def report(data: Json) -> Report:
    """The file of a check. ValueError names the invalid field."""
    pct: float = decode(float, data.get("threshold_pct"), "threshold_pct")
    rows: list[GpuResult] = []
    for i, stored in enumerate(decode(tuple[Json, ...], data.get("rows"), "rows")):
        # In older files a row is a GPU.
        readings = decode(tuple[Json, ...], stored.get("readings", [{}]), f"rows[{i}].readings")
        parts = [stored | part for part in readings]
        lost = "readings" in stored and stored.get("reason")
        died = [stored | {"status": FAILED}] if lost else []
        rows += (decode(GpuResult, part, f"rows[{i}]") for part in parts + died)
    for row in rows:
        low, high = row.ci95_s or (1.0, 1.0)
        if (row.median_s is not None and row.median_s <= 0) or not 0 < low <= high:
            raise ValueError(f"rows: the time of {row.case} is not above zero, or no interval")
    cases = list(dict.fromkeys(row.case for row in rows))
    rows = sorted(judged(rows, pct), key=lambda row: (cases.index(row.case), row.gpu))
    models = list(dict.fromkeys(row.name for row in rows))
    columns = [
        Column("case", "case", once=True), Column("GPU", "gpu"),
        *([Column("name", "name", drop=5)] if len(models) > 1 else []),
        Column("rate", "rate"), Column("vs others", "vs_others_pct", fmt.signed_pct),
        Column("finding", "finding"), Column("SM MHz", "sm_clock_mhz", "{:.0f}".format, 1),
        Column("power W", "power_w", "{:.0f}".format, 3),
        Column("°C", "temperature_c", "{:.0f}".format, 2),
        Column("throttle", "throttle", ", ".join, 4),
    ]  # fmt: skip
    raw = [{**{name: getattr(row, name) for name in RAW}, "throttle": ", ".join(row.throttle)}
           for row in rows]  # fmt: skip
    part = Part("", columns, [Row(row) for row in rows])
    return Report("", _answer(rows, models, pct), [part], raw=[(RAW, raw)])


def _answer(rows: Sequence[GpuResult], models: Sequence[str], pct: float) -> list[Line]:
    gpus = fmt.count(len({row.gpu for row in rows}), "GPU")
    bad = [row for row in rows if row.finding]
    lines: list[Line] = []
    for gpu in dict.fromkeys(row.gpu for row in bad):
        texts = [
            f"{row.finding} ({row.reason})" if row.vs_others_pct is None
            else f"{row.finding} ({fmt.signed_pct(row.vs_others_pct)} in {row.case})"
            for row in bad if row.gpu == gpu
        ]  # fmt: skip
        lines.append(Line("", f"GPU {gpu} is {', '.join(texts)}"))
    distances = [row.vs_others_pct for row in rows if row.vs_others_pct is not None]
    slowest = f"; slowest {fmt.signed_pct(min(distances))}" if distances else ""
    whole = f"({', '.join(models)}{slowest}, threshold {pct:g} %)"
    lines.append(Line("", f"{gpus}: {len(bad) or 'no'} findings {whole}"))
    if bad:
        lines.append(Line("Do", f"halfway doctor --device cuda:{bad[0].gpu}"))
    if len({row.gpu for row in rows}) < COUNT:
        few = "with fewer than three GPUs there is no telling which one is as it should be"
        lines.append(Line("Doubt", few))
    cases = list(dict.fromkeys(row.case for row in rows if row.case))
    return [*lines, Line("Doubt", f"nothing but {fmt.joined(cases)} was checked")]


# ---------------------------------------------------------------- of other programs


SAID = (  # of the values of a document, by name
    "the 95 % interval holds 1 in {holding_1} of {tries} comparisons of a kernel with itself",
    "{within_target} of {rows} kernels have the time that Nsight Compute has",
    "{right} of {counted} planted bottlenecks are named right",
    "{faster} faster, {slower} slower, {same} same, {cannot_tell} cannot tell of {pairs} pairs",
    "{model} trains {train_samples_per_sec} img/s at batch {train_batch_size}",
    "{images_per_s} img/s with {workers} workers",
)


def figures(data: Mapping[str, object]) -> Report:
    """The values in another program's document, one per line, in its own units; of a check of the
    method the totals, and how long its lists are.
    """
    rows: list[Json] = []
    for name, value in data.items():
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if "check" in data and isinstance(value, list):
            items = [len(items)]
        if name not in HEADER and not ("check" in data and isinstance(value, dict)):
            short = [fmt.throughput(one) if isinstance(one, float) else str(one) for one in items]
            texts = {"value": ", ".join(map(str, items)), "shown": "; ".join(short)}
            rows.append({"figure": fmt.clean(name), **{k: fmt.clean(v) for k, v in texts.items()}})
    shown = {str(row["figure"]): row["shown"] for row in rows}
    said = [
        text.format_map(shown) for text in SAID if shown.keys() >= {*re.findall(r"{(\w+)}", text)}
    ]
    said.append(fmt.listed([f"{name} {text}" for name, text in shown.items()]))
    part = Part("", [Column("figure", "figure"), Column("value", "shown")], list(map(Row, rows)))
    return Report("", [Line("", said[0])], [part], raw=[(["figure", "value"], rows)])


DOCUMENTS.extend((
    Document("fleet", {"check": "fleet"}, report),
    Document("a check of the method (tests/)", {"check": None}, figures),
    Document("timm's benchmark.py", dict.fromkeys(("model", "train_samples_per_sec")),
             figures),
    Document("examples/plain_dataloader.py", dict.fromkeys(("workers", "images_per_s", "torch")),
             figures),
))  # fmt: skip
