"""`--json` documents keep their fields: docs/schema.json has names and types, and files obey."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples.kernel_runs import measured, run_of

from docs import schema
from e2e.commands.diagnose import document_of_diagnosis
from e2e.profile.diagnosis import Diagnosis
from kernels import OPS
from kernels.attention import Attention
from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from kernels.linear import Linear
from microbench.commands import compare_with
from microbench.results.codec import RETIRED, run_to_json
from microbench.results.runfile import read_run

Json = dict[str, Any]
RESULTS = schema.ROOT / "results"
TYPES = {one.__name__: one for one in schema.documents()}
NAMES = {"diagnose": "Diagnosis", "fleet": "Fleet", "compare": "Comparison",
         "comparisons": "Comparisons", "train": "TrainResult", "load": "LoadResult"}  # fmt: skip
# What older versions wrote, and nothing reads.
OLD = {"model", "expected", "missing"}
TRAINED = RESULTS / "nvidia-h200" / "ledger-resnet50.json"


def check(document: Json) -> None:
    """msgspec.ValidationError for a field that the schema does not have, or with another type."""
    kind = document.get("check") or document.get("kind")
    name = NAMES[str(kind)] if "results" not in document else "Run"
    msgspec.convert({k: v for k, v in document.items() if k not in OLD}, TYPES[name])
    for result in document.get("results", ()):
        op = result["op"]
        if op in RETIRED:
            continue
        msgspec.convert(result, TYPES[NAMES.get(op, "KernelResult")])
        if op in OPS:
            msgspec.convert(result["case"], TYPES[f"{op.title()}Case"])


def written(document: object) -> Json:
    return json.loads(json.dumps(document))


def kernels() -> Json:
    """A run with a result of every op."""
    problems = (Gemm(512, 512, 512), Gemm(8, 8, 8, batch=3), Attention(1, 2, 2, 64, 64),
                Linear(64, 64, 64), Conv(ConvShape(1, 8, 8, 8, 8, 3, 3), "fprop"))  # fmt: skip
    assert {problem.op for problem in problems} == OPS.keys()
    cases = [Case(problem, "bf16", "cublas") for problem in problems]
    return written(run_to_json(run_of([measured(case, 37.0) for case in cases])))


def test_the_schema_is_that_of_the_types_and_keeps_every_field() -> None:
    assert schema.main() == 0, "python docs/schema.py --write"


def test_every_published_document_obeys_the_schema() -> None:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.rglob("*.json"))]
    found = [one for one in found if "results" in one or one.get("check") in ("diagnose", "fleet")]
    assert len(found) > 100
    for one in found:
        check(one)


def test_every_document_that_is_written_names_its_kind_and_version(tmp_path: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    compare_with([TRAINED] * 2, json=one)
    compare_with([TRAINED] * 3, json=several)
    documents = {
        "diagnose": written(document_of_diagnosis(Diagnosis(()), ["trace"])),
        "compare": json.loads(one.read_text()), "comparisons": json.loads(several.read_text()),
        "train": written(run_to_json(read_run(TRAINED))), "gemm": kernels() | {"kind": "gemm"},
    }  # fmt: skip
    for kind, document in documents.items():
        check(document)
        assert document["kind"] == kind
        version = schema.VERSIONS["run" if "results" in document else "other"]
        assert document["schema_version"] == version
    documents["gemm"]["results"][0]["median_ms"] = 1e-2
    with pytest.raises(msgspec.ValidationError):
        check(documents["gemm"])


def test_a_field_may_come_and_none_may_go_or_change_its_type() -> None:
    old = schema.schema()["$defs"]
    assert not list(schema.broken(old, old))
    for change, said in (
        (lambda of: of["properties"].update(more={"type": "string"}), ""),
        (lambda of: of["properties"]["op"]["enum"].append("sum"), ""),
        (lambda of: of["properties"].pop("median_s"), "KernelResult.properties.median_s is gone"),
        (lambda of: of["properties"].update(median_s={"type": "number"}), "median_s.anyOf is gone"),
        (lambda of: of["properties"]["op"]["enum"].remove("gemm"), "has no gemm now"),
        (lambda of: of["properties"]["flops"].update(type="number"), "was integer, is number"),
        (lambda of: of["required"].remove("op"), "KernelResult.op may be missing now"),
    ):
        new = deepcopy(old)
        change(new["KernelResult"])
        found = list(schema.broken(old, new))
        assert bool(found) == bool(said)
        assert said in "".join(found)
