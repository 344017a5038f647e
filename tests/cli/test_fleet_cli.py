"""A fleet check of several ranks: one table of all, also where a rank has no GPU or dies."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest

from microbench import fleet
from microbench.__main__ import main
from microbench.errors import UserError

WORLD, NO_GPU, DIES = 4, 2, 3
WORDS = ["fleet", "--backend", "cpu", "--dtype", "fp32", "--sizes", "16", "--budget", "0.2",
         "--expect", "2", "--fail-on"]  # fmt: skip


def run_rank(words: list[str]) -> None:
    """A process of one rank, which has a CPU in place of its GPU."""

    def devices_of(place: fleet.Place) -> list[str]:
        if place.rank == NO_GPU:
            raise UserError("no GPU here")
        if place.rank == DIES:
            os._exit(0)
        return ["cpu"]

    fleet.devices_of = devices_of
    fleet.RANKS_S = 8.0
    sys.exit(main(words))


def test_rank_0_reports_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fleet.json"
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    ranks = []
    for rank in range(WORLD):
        monkeypatch.setenv("RANK", str(rank))
        words = [*WORDS, "failed", "--json", str(path)]
        process = multiprocessing.get_context("spawn").Process(
            target=run_rank, args=(words,), daemon=False
        )
        process.start()
        ranks.append(process)
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks[:2]] == [1, 0]
    data = json.loads(path.read_text())
    assert data["finished_at"]
    reasons = {row["rank"]: row["reason"] for row in data["rows"]}
    assert reasons == {0: None, 1: None, NO_GPU: "no GPU here"}
    assert data["missing"] == [DIES]
