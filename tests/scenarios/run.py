"""Runs one script as `halfway diagnose` does, with its cause and without, and reads both again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.commands.diagnose import Report, diagnose_script
from e2e.commands.record import Script
from e2e.profile.diagnosis import Diagnosis, Traced, diagnose
from e2e.report.scenarios import Cause, Found, Scenario
from microbench.errors import UserError
from microbench.results.fields import decode

from .pack_trace import pack
from .table import Planted, Steps

FIXED = "--fixed"


def run(planted: Planted, out: Path, steps: Steps | None = None) -> Scenario:
    """The script with its cause, and with --fixed. What fails is said in `problem`.

    `out` gets NAME.json, the diagnosis, in diagnose/, and the packed traces in traces/.
    """
    began_s = time.monotonic()
    words = ("halfway", "diagnose", planted.path.name, *planted.arguments)
    found = Scenario(planted.name, planted.cause, words, planted.fix_saves, 0.0)
    steps = steps or planted.steps
    live, kept, problem = _one(planted, (), planted.name, out, steps)
    found = replace(found, live=live, alone=_alone(kept), problem=problem)
    if kept:
        found = replace(found, trace_bytes=kept[-1].stat().st_size)
    if planted.cause:
        fixed, kept, trouble = _one(planted, (FIXED,), f"{planted.name}-fixed", out, steps)
        found = replace(found, fixed=fixed, fixed_alone=_alone(kept), problem=problem or trouble)
    return replace(found, wall_s=time.monotonic() - began_s)


def _one(
    planted: Planted, arguments: tuple[str, ...], name: str, out: Path, steps: Steps
) -> tuple[Found | None, list[Path], str]:
    """(what was found live, the packed traces, the base first, and what went wrong)."""
    document = out / "diagnose" / f"{name}.json"
    document.parent.mkdir(parents=True, exist_ok=True)
    report = Report(json_path=document, html=None, fail_on=None, verbose=False, quiet=True)
    script = Script(
        planted.path, (*planted.arguments, *arguments), None, steps.after, steps.bare,
        steps.traced, stack=False, whole=False,
    )  # fmt: skip
    full = out / "full"
    code = diagnose_script(report, script, planted.other, full)
    if code or not document.exists():
        return None, [], f"{name}: exit code {code}"
    data = json.loads(document.read_text())
    diagnosis: Diagnosis = decode(
        Diagnosis, {key: data.get(key) for key in ("runs", "aligned")}, ""
    )
    kept: list[Path] = []
    for run_ in diagnosis.runs:
        is_base = planted.other is not None and run_ is diagnosis.runs[0]
        target = out / "traces" / f"{name}{'-base' if is_base else ''}.json.gz"
        try:
            pack(full / run_.name, target)
        except UserError as error:
            return found_in(diagnosis), [], f"{name}: not packed: {error}"
        (full / run_.name).unlink()
        kept.append(target)
    return found_in(diagnosis), kept, ""


def _alone(kept: Sequence[Path]) -> Found | None:
    if not kept:
        return None
    try:
        return found_in(diagnose(kept))
    except UserError:
        return None


def found_in(diagnosis: Diagnosis) -> Found:
    """What a diagnosis says of its last run."""
    *_, last = diagnosis.runs
    causes = tuple(Cause(finding.title, finding.most_ms) for finding in last.findings)
    recorded_s = last.step_ms / 1e3
    return Found(
        last.bare_step_s or recorded_s, recorded_s, last.busy, all(map(_exact, diagnosis.runs)),
        causes,
    )  # fmt: skip


def _exact(run_: Traced) -> bool:
    total: Any = sum(term.ns for term in run_.terms)
    return total == run_.window_ns
