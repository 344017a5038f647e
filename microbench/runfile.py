"""The run file: a `Run` as one JSON document, read and written.

Nothing in a file is ever executed, and a file is replaced at once or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from kernels.case import Case
from microbench.errors import UserError
from microbench.results import (
    SCHEMA_VERSION,
    STATUSES,
    Ceiling,
    Interval,
    Json,
    Measurement,
    Ratio,
    Result,
    Run,
    Warning,
)


def result_to_json(result: Result) -> Json:
    """The result as the schema writes it: raw values and the derived ones readers want."""
    case = result.case
    out: Json = {
        "op": case.op,
        "case": {**case.dims, "layout": case.layout, "data": case.data},
        "precision": case.precision_name,
        "backend": case.backend,
        "status": result.status,
        "reason": result.reason,
    }
    if result.measurement:
        out |= vars(result.measurement)
        out |= {
            "tflops": _scaled(result.flop_per_s, 1e12),
            "gb_per_s": _scaled(result.byte_per_s, 1e9),
        }
    return out | {
        "flops": result.flops,
        "min_bytes": result.min_bytes,
        "ceiling_pct": result.ceiling_pct,
        "efficiency_pct": dict(result.efficiency_pct),
        "rel_error": result.rel_error,
        "variant": result.variant,
        "kernels": list(result.kernels),
        "tile": list(result.tile) if result.tile else None,
        "tensor_core": result.tensor_core,
        "speedup": {name: vars(ratio) for name, ratio in result.speedup.items()},
        "vs_backend": {name: vars(ratio) for name, ratio in result.vs_backend.items()},
        "bound": result.bound,
        "why": result.why,
        "warnings": [vars(warning) for warning in result.warnings],
    }


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def run_to_json(run: Run) -> Json:
    """The whole document."""
    return {
        "schema_version": run.schema_version,
        "method_version": run.method_version,
        "command": list(run.command),
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "device": run.device,
        "software": run.software,
        "settings": run.settings,
        "ceilings": [
            {name: value for name, value in vars(c).items() if value is not None}
            for c in run.ceilings
        ],
        "results": [result_to_json(result) for result in run.results],
    }


def result_from_json(data: Json) -> Result:
    """The inverse of `result_to_json`; KeyError, TypeError or ValueError on a foreign document."""
    dims = dict(data["case"])
    layout, spread = dims.pop("layout", ""), dims.pop("data", "normal")
    case = Case(data["op"], dims, data["precision"], data["backend"], layout, spread)
    if data["status"] not in STATUSES:
        raise ValueError(f"status {data['status']!r}")
    tile = data.get("tile")
    return Result(
        case=case,
        status=data["status"],
        reason=data["reason"],
        measurement=_measurement_from_json(data) if "times_s" in data else None,
        flops=int(data["flops"]),
        min_bytes=int(data["min_bytes"]),
        rel_error=data["rel_error"],
        variant=data.get("variant"),
        kernels=tuple(data["kernels"]),
        tile=tuple(tile) if tile else None,
        tensor_core=data["tensor_core"],
        speedup=_ratios(data["speedup"]),
        vs_backend=_ratios(data.get("vs_backend", {})),
        ceiling_pct=data["ceiling_pct"],
        efficiency_pct=data.get("efficiency_pct", {}),
        bound=data["bound"],
        why=data["why"],
        warnings=tuple(Warning(**warning) for warning in data["warnings"]),
    )


def _ratios(data: Mapping[str, Json]) -> dict[str, Ratio]:
    return {name: Ratio(float(r["ratio"]), _pair(r["ci95"])) for name, r in data.items()}


def _pair(values: Sequence[float] | None) -> Interval | None:
    if values is None:
        return None
    low, high = values
    return float(low), float(high)


def _measurement_from_json(data: Json) -> Measurement:
    return Measurement(
        times_s=tuple(float(t) for t in data["times_s"]),
        blocks=tuple(int(n) for n in data["blocks"]),
        median_s=float(data["median_s"]),
        ci95_s=_pair(data["ci95_s"]),
        timer=data["timer"],
        l2=data["l2"],
        regime=data["regime"],
        timer_overhead_s=data["timer_overhead_s"],
        timer_resolution_s=data["timer_resolution_s"],
        sm_clock_mhz=data["sm_clock_mhz"],
        power_w=data["power_w"],
        energy_j=data["energy_j"],
        temperature_c=data["temperature_c"],
        throttle=tuple(data["throttle"]),
    )


def run_from_json(data: Json) -> Run:
    """The inverse of `run_to_json`."""
    return Run(
        command=tuple(data["command"]),
        started_at=data["started_at"],
        device=dict(data["device"]),
        software=dict(data["software"]),
        settings=dict(data.get("settings", {})),
        ceilings=tuple(Ceiling(**ceiling) for ceiling in data["ceilings"]),
        results=tuple(result_from_json(result) for result in data["results"]),
        finished_at=data["finished_at"],
        schema_version=data["schema_version"],
        method_version=data["method_version"],
    )


def read_run(path: Path) -> Run:
    """The run in a file. UserError, in one line, for a missing, truncated, foreign or newer one."""
    data = _read_document(path)
    version = data.get("schema_version")
    if not isinstance(version, int) or "results" not in data:
        raise UserError(f"{path} is not a run file of this project (no schema_version or results)")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema_version {version}, this program reads up to {SCHEMA_VERSION}; "
            "update halfway"
        )
    try:
        return run_from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UserError(f"{path} is damaged or not of this project: {what}") from None


def _read_document(path: Path) -> Json:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {_short(error)}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not whole JSON (line {error.lineno}: {error.msg}); was the copy cut short?"
        ) from None
    except RecursionError:
        raise UserError(f"{path} is not a run file: nested too deeply") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a run file: no JSON object")
    return cast(Json, data)


def _short(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def check_writable(path: Path, option: str) -> None:
    """UserError unless a new file can be made there. Found before measuring, not after."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; name a file in it")
    if path.exists():
        raise UserError(
            f"{option} {path} exists already; name another file, or add to it with --resume {path}"
        )
    probe(path, option)


def probe(path: Path, option: str) -> None:
    """UserError unless the file's folder takes a new file."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write there ({_short(error)})") from None


def write_run(run: Run, path: Path) -> None:
    """Write, flush, rename: the file is the old run or the new one, never half of either."""
    write_text(json.dumps(run_to_json(run), separators=(",", ":"), allow_nan=False), path)


def write_text(text: str, path: Path) -> None:
    """Replace a file at once by one that holds the text."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
