"""On every GPU there is: a fleet check. One is enough."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from microbench.__main__ import main
from microbench.device.device import gpu_for
from microbench.report.fleet import COPY, FAILED, SLOW


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    assert not [row for row in rows if row["finding"] == FAILED]
    return rows


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fleet") / "fleet.json"
    words = ("--sizes", "4096", "--budget", "1", "--threshold", "1000%")
    assert main(["fleet", *words, "--json", str(found)]) == 0
    return found


def test_every_gpu_has_rows_with_rates_and_sensors(path: Path) -> None:
    rows = rows_of(path)
    assert [row["gpu"] for row in rows[::2]] == list(range(torch.cuda.device_count()))
    for copied, gemm in zip(rows[::2], rows[1::2], strict=True):
        assert copied["case"] == COPY
        assert 1e11 < copied["work"] / copied["median_s"] < 1e13
        assert gemm["median_s"]
        if gpu_for(gemm["gpu"]):
            assert gemm["sm_clock_mhz"]
        assert (gemm["vs_others_pct"] is None) == (torch.cuda.device_count() == 1)


def test_the_file_names_neither_card_nor_host(path: Path) -> None:
    text, card = path.read_text(), gpu_for(0)
    assert socket.gethostname() not in text
    assert card is None or (str(card.ask("nvmlDeviceGetUUID")) not in text)
    assert card is None or str(card.card()) not in text


def test_every_gpu_has_every_case(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    words = ["fleet", "--sizes", "1024,2048", "--dtype", "fp16,tf32"]
    assert main([*words, "--budget", "2", "--json", str(path)]) in (0, 1)
    cases = 1 + 2 * 2  # the copy; sizes and precisions
    assert len(rows_of(path)) == torch.cuda.device_count() * cases


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_gpu_that_another_process_keeps_busy_is_named_slow(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert busy.stdout
        assert busy.stdout.readline()
        assert main(["fleet", "--sizes", "8192", "--budget", "3", "--json", str(path)]) == 1
    finally:
        busy.kill()
        busy.wait()
    assert {row["gpu"] for row in rows_of(path) if row["finding"] == SLOW} == {1}


BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda:1", dtype=torch.float16)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(1)
"""
