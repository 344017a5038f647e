"""What a run file says stays text: in pages and charts (looked at in a browser), CSV, Markdown."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from samples import judge

from microbench.__main__ import main
from microbench.report import writers
from microbench.report.charts import write_chart
from microbench.report.comparison import case_name
from microbench.report.report import report_of, report_of_file
from microbench.report.writers import csv_text
from microbench.results.runfile import read_run
from microbench.results.types import Run, Warning

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "</script><script>console.log('owned')</script><img src=x onerror=alert(1)>\"'<b>&"


def planted(run: Run) -> Run:
    """The run with markup wherever a file may hold text."""
    results = tuple(
        replace(r, why=EVIL, variant=EVIL, warnings=(Warning(EVIL, EVIL, EVIL),))
        for r in run.results
    )
    facts = {name: EVIL for name in run.software}
    return replace(
        run, device={**run.device, "name": EVIL, "driver": EVIL}, software=facts, results=results,
        command=("python", "-m", "microbench", EVIL), settings={EVIL: EVIL},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-1.5, "-1.5"), ("-1.5", "-1.5"), ("+2e3", "+2e3"), ("1", "1"), (None, ""), (True, "true"),
        ("-", "'-"), ("=1+1", "'=1+1"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"), ("@SUM(1)", "'@SUM(1)"), ("\t=1", "'=1"), ("\r=1", "'=1"),
    ],
)  # fmt: skip
def test_a_spreadsheet_computes_no_text_and_numbers_stay_numbers(value: Any, cell: str) -> None:
    assert csv_text(value).replace("\t", "").replace("\r", "") == cell


def test_file_names_are_printed_clean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "a\x1b[31m\u202eb.svg"
    assert main(["show", str(GEMM), "--chart", str(chart)]) == 0
    assert chart.exists()
    assert capfd.readouterr().out.replace("\n", "").isprintable()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a browser's console says of each page, opened from disk, each in a frame of one page.

    What a page's policy forbids is said there.
    """
    if BROWSER is None:
        pytest.skip("no chromium here")
    folder = tmp_path_factory.mktemp("pages")
    run = read_run(GEMM)
    evil = writers.page({EVIL: report_of(planted(run)), "b": report_of(planted(run))}, EVIL)
    pages = {"page.html": writers.page({"": report_of(run)}), "evil.html": evil}
    write_chart(report_of(planted(run)).chart(), folder / "evil-chart.html")
    pages["evil-chart.html"] = (folder / "evil-chart.html").read_text(encoding="utf-8")
    write_chart(report_of(planted(run)).chart(), folder / "evil.svg")
    for name, page, more in (
        ("script.html", "page.html", "<script>console.log('owned')</script>"),
        ("request.html", "page.html", '<img src="https://a.invalid/">'),
    ):
        before, _, after = pages[page].rpartition("</body>")
        pages[name] = f"{before}{more}</body>{after}"
    pages["loud.html"] = "<script>console.log('heard')</script>"
    names = [*pages, "evil.svg"]
    pages["all.html"] = "".join(f'<iframe src="{name}"></iframe>' for name in names)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}",
         "--virtual-time-budget=4000", (folder / "all.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return {name: "\n".join(line for line in lines if f"/{name} (" in line) for name in names}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("page.html", ""), ("evil.html", ""), ("evil-chart.html", ""), ("evil.svg", ""),
        ("loud.html", "heard"), ("script.html", "Content Security Policy"),
        ("request.html", "Content Security Policy"),
    ],
)  # fmt: skip
def test_a_browser_runs_nothing_and_says_what_it_refuses(
    name: str, words: str, said: dict[str, str]
) -> None:
    assert words in said[name]
    assert words or not said[name]
    assert "owned" not in said[name]


def test_an_image_has_text_as_text_and_a_comparison_folds_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "chart.svg"
    write_chart(report_of(planted(read_run(GEMM))).chart(), chart)
    assert "owned" in (text := chart.read_text(encoding="utf-8"))
    assert not [*judge.in_xml(text), *judge.in_markup(text)]
    page, every = tmp_path / "page.html", GEMM.with_name("gemm-all.json")
    assert main(["compare", str(every), str(GEMM), "--html", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"\nPage: {page}\n")
    assert main(["compare", str(every), str(GEMM), "--html", str(page)]) == 2  # it is there
    assert main(["compare", str(every), str(GEMM), "--json", "-"]) == 2
    text = page.read_text(encoding="utf-8")
    common = {r.case.key for r in read_run(GEMM).results}
    alone = {case_name(r.case) for r in read_run(every).results if r.case.key not in common}
    before, folded = text.split("<summary>Cases that only one run has")
    assert before.count("not in B: ") == 1
    listed = set(re.findall(r"only in A: ([^<]*)<", folded))
    assert len(alone) > 100
    assert alone <= listed


def test_a_folder_has_one_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["fleet.json", "gemm-fp16.json", "train-resnet50.json"]
    for name in names:
        shutil.copy(GEMM.with_name(name), tmp_path / name)
    (tmp_path / "cut.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "overview.html").read_text(encoding="utf-8")
    findings = [report_of_file(tmp_path / name).finding for name in names]
    for text in (page, capfd.readouterr().out):
        words = " ".join(unescape(text).split())
        places = [words.index(name) for name in names]
        assert places == sorted(places)
        assert all(finding.split("(")[0] in words for finding in findings)
    assert page.count("<section") == len(names) + 1  # and what was not read
    assert "cut.json is not complete JSON" in page
    assert not list(judge.in_markup(page))
    assert main(["report", str(tmp_path)]) == 0, "the page is its own"
    assert main(["report", str(tmp_path / "nothing")]) == 2


def test_several_files_are_one_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [str(GEMM), str(GEMM.with_name("fleet.json"))]
    assert main(["show", *files]) == 0
    assert capfd.readouterr().out.startswith("2 files, NVIDIA H200\n")
    assert main(["show", *files, "--html", str(tmp_path / "page.html")]) == 0
    assert "2 files, NVIDIA H200" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for form in (["--csv"], ["--chart", str(tmp_path / "a.svg")]):
        assert main(["show", *files, *form]) == 2
    capfd.readouterr()
    assert main(["show", str(GEMM), "--csv", "-"]) == 2
    assert "--csv prints the report, and takes no -" in capfd.readouterr().err
    assert main(["show", str(GEMM), "--ledger"]) == 2
