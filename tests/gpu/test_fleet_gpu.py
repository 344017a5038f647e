"""On every GPU there is: a fleet check. One is enough."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from microbench.__main__ import main
from microbench.device.device import gpu_for
from microbench.fleet_verdict import (
    COPY,
    FAILED,
    SLOW,
    Fleet,
    findings,
    fleet_from_json,
    peers,
    relative,
)

SHORT = ("--sizes", "4096", "--budget", "1", "--fail-on", "failed")


def checked(path: Path) -> Fleet:
    fleet = fleet_from_json(json.loads(path.read_text()))
    assert not [one for one in findings(fleet) if one.kind == FAILED]
    return fleet


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fleet") / "fleet.json"
    assert main(["fleet", *SHORT, "--json", str(found)]) == 0
    return found


def test_every_gpu_has_a_row_with_rates_and_sensors(path: Path) -> None:
    fleet = checked(path)
    assert [row.gpu for row in fleet.rows] == list(range(torch.cuda.device_count()))
    for row in fleet.rows:
        assert [one.per_s is not None for one in row.readings] == [True, True]
        copied = row.reading(COPY)
        assert copied
        assert copied.per_s
        assert 1e11 < copied.per_s < 1e13
        if gpu_for(row.gpu):
            assert row.readings[1].sm_clock_mhz


def test_gpus_are_compared_where_there_are_several(path: Path) -> None:
    fleet = checked(path)
    for row in fleet.rows:
        others = peers(row, fleet)
        ratio = relative(row, others, fleet.cases[1])
        assert (ratio is None) == (not others)
        assert ratio is None or ratio.ci95


def test_the_file_names_neither_card_nor_host(path: Path) -> None:
    text, card = path.read_text(), gpu_for(0)
    assert socket.gethostname() not in text
    assert card is None or (str(card.ask("nvmlDeviceGetUUID")) not in text)
    assert card is None or str(card.card()) not in text


def test_gemm_on_all_devices_has_every_case_of_each(tmp_path: Path) -> None:
    path = tmp_path / "gemm.json"
    words = ["gemm", "--device", "all", "--sizes", "1024,2048", "--backend", "cublas"]
    assert main([*words, "--budget", "2", "--json", str(path)]) in (0, 1)
    for row in checked(path).rows:
        assert len(row.readings) == 1 + 2 * 3  # fp16, fp32, tf32


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
    slow = [one for one in findings(checked(path)) if one.kind == SLOW]
    assert {one.where for one in slow} == {"GPU 1"}


BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda:1", dtype=torch.float16)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(1)
"""
