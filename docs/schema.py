"""The JSON Schema of every document that `--json` writes, made of the types that write it.

    python docs/schema.py          # what differs from docs/schema.json; exit code 1 if anything
    python docs/schema.py --write  # write it: after a field was added

A field may be added. One that goes, or has another type, needs a new `schema_version`
(microbench/results/types.py for run files, kinds.py for the others): --write refuses without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from e2e.case import TrainCase  # noqa: E402
from e2e.profile.diagnosis import Diagnosis  # noqa: E402
from e2e.results import codec, loader_types, types  # noqa: E402
from e2e.results.exchange import Exchange  # noqa: E402
from kernels.conv.shape import ConvShape  # noqa: E402
from kernels.op import OPS  # noqa: E402
from microbench.device.device import DeviceInfo  # noqa: E402
from microbench.report import fleet  # noqa: E402
from microbench.results.comparison import CompareRow  # noqa: E402
from microbench.results.kinds import DOCUMENT_VERSION, kinds  # noqa: E402
from microbench.results.types import (  # noqa: E402
    SCHEMA_VERSION,
    Interval,
    Measurement,
    Result,
    Run,
)

PAGE = Path(__file__).with_suffix(".json")
Json = dict[str, Any]
Names = tuple[str, ...]
VERSIONS = {"run": SCHEMA_VERSION, "other": DOCUMENT_VERSION}
LEFT_OUT = ("title", "description", "default", "pattern", "minimum", "maximum", "exclusiveMinimum")
LONG = 100  # characters of a line
RESULTS = ("KernelResult", "TrainResult", "LoadResult")


def of(kind: type, *without: str, null: bool = False) -> Json:
    """The fields of a dataclass. A document may lack those with a default, as older ones do.

    `null`: each may also be null.
    """
    hints = get_type_hints(kind, include_extras=True)
    found: Json = {}
    for one in fields(kind):
        hint = hints[one.name] | None if null else hints[one.name]
        needed = one.default is MISSING and one.default_factory is MISSING
        found[one.name] = hint if needed else hint | UnsetType
    return {name: hint for name, hint in found.items() if name not in without}


def maybe(hint: Any, *names: str) -> Json:
    """Fields that a document may lack, or that may be null."""
    return dict.fromkeys(names, hint | None | UnsetType)


def struct(title: str, hints: Json) -> type:
    """A type with these fields."""
    members = [
        (name, hint, UNSET) if UnsetType in getattr(hint, "__args__", ()) else (name, hint)
        for name, hint in hints.items()
    ]
    return msgspec.defstruct(
        title, members, rename={"which": "pass"}, kw_only=True, forbid_unknown_fields=True
    )


def documents() -> Iterator[type]:
    """Each document, and the results and cases in a run."""
    for name, op in OPS.items():
        sizes = of(ConvShape) if "shape" in get_type_hints(op.problem) else {}
        hints = of(op.problem, "shape") | sizes | {"data": str | UnsetType}
        yield struct(f"{name.title()}Case", hints)
    result = of(Result, "case", "measurement")
    measured = {name: hint | UnsetType for name, hint in of(Measurement, null=True).items()}
    yield struct("KernelResult", {
        "op": Literal[tuple(OPS)], "case": Json, "precision": str, "backend": str,
        **result, **measured, **maybe(float, "tflops", "gb_per_s"),
    })  # fmt: skip
    # Older files have null for no lines of a ledger, and for no causes.
    trained = of(types.Training, "steps", "state")
    trained |= {name: trained[name] | None for name in codec.LISTS}
    state = get_type_hints(types.Training)["state"]
    steps = {name: hint | UnsetType for name, hint in of(types.StepTimes, null=True).items()}
    mean = struct(
        "MeanAndDeviation", dict.fromkeys(("mean", "std"), float) | maybe(float, "population_std")
    )
    exchange = of(Exchange) | maybe(float, "overlapped", "bus_bytes_per_s")
    yield struct("TrainResult", {
        "op": Literal[codec.OP], **trained, **of(state),
        "case": struct("TrainCase", of(TrainCase) | maybe(int, "image_size")),
        "step_s": steps.pop("median_s"), **steps,
        "exchange": struct("Exchange", exchange) | UnsetType,
        **maybe(float, "images_per_s", "images_per_j", "data_wait_s"),
        **maybe(mean, "loss", "accuracy"),
    })  # fmt: skip
    yield struct("LoadResult", {
        "op": Literal[loader_types.OP], **of(loader_types.Loading),
        **maybe(float, "images_per_s", "images_per_s_per_core", "read_mb_per_s"),
        **maybe(Interval, "ci95_images_per_s"),
    })  # fmt: skip
    device = maybe(str, "capability") | {
        name: hint | UnsetType for name, hint in of(DeviceInfo, "index", "capability").items()
    }
    facts = {"device": struct("Device", device), "software": dict[str, str | None]}
    yield struct("Run", {
        **of(Run, "others"), **facts, "results": list[Json],
        "schema_version": int, "method_version": int,
    })  # fmt: skip
    header = {"kind": str | UnsetType, "schema_version": int | UnsetType}
    made = {"check": str, "command": Names, "finished_at": str}
    yield struct("Diagnosis", {**header, **made, "halfway": str, **of(Diagnosis)})
    yield struct("Fleet", {
        **header, **made, **facts, "seed": int, "threshold_pct": float,
        "rows": get_type_hints(fleet.to_json)["rows"],
    })  # fmt: skip
    compared = {
        "counts": dict[str, int],
        **dict.fromkeys(("noise_pct", *(f"{op}_noise_pct" for op in kinds())), float),
        **maybe(float, "threshold_pct"), **maybe(str, "card"),
        **dict.fromkeys(("differences", "only_a", "only_b"), Names),
        "rows": list[struct("ComparedCase", of(CompareRow, "case"))],
    }  # fmt: skip
    yield struct("Comparison", {**header, **compared})
    one = struct("ComparisonOfOne", {"run": str, **compared})
    yield struct("Comparisons", {**header, "baseline": str, "comparisons": list[one]})


def schema() -> Json:
    """The schema: a definition for each document, each result and each case."""
    types = list(documents())
    _, made = msgspec.json.schema_components(types, ref_template="{name}")
    found: Json = {one.__name__: plain(made[one.__name__], made) for one in types}
    cases = [f"{name.title()}Case" for name in OPS]
    found["KernelResult"]["properties"]["case"] = any_of(cases)
    found["Run"]["properties"]["results"] = {"type": "array", "items": any_of(RESULTS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "versions": VERSIONS,
        "$defs": dict(sorted(found.items())),
    }


def any_of(names: Iterable[str]) -> Json:
    """What is one of these definitions."""
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


def plain(made: Any, all_made: Json) -> Any:
    """Names and types alone: without names and words of our code, defaults and bounds. A reader has
    to pass over fields that it does not know.
    """
    if isinstance(made, list | tuple):
        return [plain(one, all_made) for one in made]
    if not isinstance(made, dict):
        return made
    if "$ref" in made:
        return plain(all_made[made["$ref"]], all_made)
    return {
        name: plain(one, all_made) for name, one in made.items()
        if isinstance(one, dict) or (name not in LEFT_OUT and one is not False)
    }  # fmt: skip


def text(found: Any, indent: str = "") -> str:
    """As JSON, with a line for each field; short ones are in one."""
    line = json.dumps(found)
    if not isinstance(found, dict) or len(indent + line) < LONG:
        return line
    inner = indent + " "
    lines = (f"{inner}{json.dumps(name)}: {text(one, inner)}" for name, one in found.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def broken(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The fields of an older schema that the new one has no longer, or with another type."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield f"{where} was {old}, is {new}"
        return
    for name, one in old.items():
        place = f"{where}.{name}".removeprefix(".")
        if name not in new:
            yield f"{place} is gone"
        elif name == "required":
            yield from (f"{where}.{lost} may be missing now" for lost in set(one) - set(new[name]))
        elif name in ("anyOf", "enum") and {"type": "null"} not in new[name]:
            lost = [each for each in one if each not in new[name]]
            yield from (f"{place} has no {each} now" for each in lost)
        else:
            yield from broken(one, new[name], place)


def main() -> int:
    """Check or write the file: 1 where it differs, or where a change needs a new version."""
    found = schema()
    before = json.loads(PAGE.read_text()) if PAGE.exists() else {"$defs": {}, "versions": {}}
    lost = list(broken(before["$defs"], found["$defs"]))
    if lost and before["versions"] == VERSIONS:
        print("\n".join([*lost, "this needs a new schema_version"]))
        return 1
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text(found) + "\n")
    elif found != before:
        print("docs/schema.json is out of date: python docs/schema.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
