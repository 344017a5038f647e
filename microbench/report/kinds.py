"""The documents of this package that are not runs (see `microbench.results.kinds`)."""

from __future__ import annotations

from microbench.report import documents, fleet
from microbench.results.kinds import Document, register_document

for document in (
    Document("fleet", {"check": "fleet"}, fleet.sheet),
    Document("a check of the method (tests/)", {"check": None}, documents.check),
    Document("timm's benchmark.py", dict.fromkeys(("model", "train_samples_per_sec")),
             documents.figures),
    Document("examples/plain_dataloader.py", dict.fromkeys(("workers", "images_per_s", "torch")),
             documents.figures),
):  # fmt: skip
    register_document(document)
