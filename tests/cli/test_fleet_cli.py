"""A fleet check of several ranks: one table of all ranks, also where a rank has no GPU or dies."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples.commands import environment

# In place of its GPU each rank has a CPU; rank 1 has what the test says.
SCRIPT = """
import os, sys
from microbench import fleet
from microbench.__main__ import main
from microbench.errors import UserError

fleet.RANKS_S = 20.0

def devices_of(place):
    if place.rank == 1 and {trouble!r} == "no GPU":
        raise UserError("no GPU here")
    if place.rank == 1 and {trouble!r} == "dies":
        os._exit(0)
    return ["cpu"]

fleet.devices_of = devices_of
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


WORDS = ["fleet", "--backend", "cpu", "--dtype", "fp32", "--sizes", "64", "--budget", "0.5"]


def test_ranks_meet_without_torchrun_too(tmp_path: Path) -> None:
    script, path = tmp_path / "check.py", tmp_path / "fleet.json"
    script.write_text(SCRIPT.format(trouble=""))
    words = [sys.executable, script, *WORDS, "--fail-on", "failed", "--expect", "2"]
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen([*words, "--json", path], env=environment(**place, RANK=str(rank)))
        for rank in (0, 1)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    assert [row["rank"] for row in json.loads(path.read_text())["rows"]] == [0, 1]


@pytest.mark.parametrize("trouble", ["", "no GPU", "dies"])
def test_rank_0_reports_all_ranks(tmp_path: Path, trouble: str) -> None:
    script, path = tmp_path / "check.py", tmp_path / "fleet.json"
    script.write_text(SCRIPT.format(trouble=trouble))
    ran = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            str(script), *WORDS, "--fail-on", "failed", "--json", str(path),
        ],
        env=environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    data: dict[str, Any] = json.loads(path.read_text())
    assert (ran.returncode == 0) == (not trouble), ran.stderr
    assert data["finished_at"]
    reasons = {row["rank"]: row["reason"] for row in data["rows"]}
    expected = {"": {0: None, 1: None}, "no GPU": {0: None, 1: "no GPU here"}, "dies": {0: None}}
    assert reasons == expected[trouble]
    assert data["missing"] == ([1] if trouble == "dies" else [])
    assert ran.stdout.count("Run file:") == 1
