"""Pages: whole, offline, and safe against what a run file says. Looked at in a browser."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from samples import golden

from microbench.__main__ import main
from microbench.report.comparison import case_name
from microbench.report.page import to_page
from microbench.results.runfile import read_run
from microbench.results.types import Run, Warning

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'<b>&"


class Elements(HTMLParser):
    """The names of a page's elements and what they refer to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


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


@pytest.mark.parametrize("path", golden.run_files(), ids=golden.name_of)
def test_every_file_has_a_page_without_scripts_or_addresses(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["show", str(path), "--html", str(page)]) == 0
    found = Elements(page.read_text(encoding="utf-8"))
    assert "script" not in found.names
    assert "table" in found.names
    assert all(address.startswith("data:image/svg+xml;base64,") for address in found.addresses)


def test_text_of_a_run_file_is_never_markup() -> None:
    plain, evil = (Elements(to_page(run)) for run in (read_run(GEMM), planted(read_run(GEMM))))
    assert not evil.handlers
    assert set(evil.names) == set(plain.names)
    assert len(evil.addresses) == len(plain.addresses) == 1


def test_show_writes_a_page_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["show", str(GEMM), "--html", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    assert main(["show", str(GEMM), "--html", str(page)]) == 2  # nothing is overwritten
    assert main(["show", str(GEMM), "--html", str(tmp_path / "no" / "page.html")]) == 2


@pytest.mark.parametrize(
    "words",
    [["compare", str(GEMM), str(GEMM)], ["doctor", "--device", "cpu"]],
    ids=["compare", "doctor"],
)
def test_commands_that_measure_nothing_write_pages_too(words: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main([*words, "--html", str(page)]) == 0
    found = Elements(page.read_text(encoding="utf-8"))
    assert "script" not in found.names
    assert found.names.count("tr") > 3
    assert main([*words, "--html", str(page)]) == 2  # nothing is overwritten


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
class TestInABrowser:
    """Opened from disk. What the policy of a page forbids is said on the browser's console."""

    def test_it_has_nothing_to_complain_of(self, tmp_path: Path) -> None:
        found = opened(to_page(read_run(GEMM)), tmp_path)
        assert "</table>" in found.stdout
        assert "CONSOLE" not in found.stderr

    def test_planted_text_stays_text(self, tmp_path: Path) -> None:
        found = opened(to_page(planted(read_run(GEMM))), tmp_path)
        assert "<title>owned</title>" not in found.stdout
        assert "CONSOLE" not in found.stderr

    def test_a_request_would_be_refused_and_seen(self, tmp_path: Path) -> None:
        loading = to_page(read_run(GEMM)).replace(
            "</body>", '<img src="https://a.invalid/"></body>'
        )
        assert "Content Security Policy" in opened(loading, tmp_path).stderr


def opened(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "page.html").write_text(page, encoding="utf-8")
    return subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}",
         (folder / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_comparison_s_page_folds_the_cases_that_only_one_run_has(tmp_path: Path) -> None:
    page, every = tmp_path / "page.html", GEMM.with_name("gemm-all.json")
    assert main(["compare", str(every), str(GEMM), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    common = {r.case.key for r in read_run(GEMM).results}
    alone = {case_name(r.case) for r in read_run(every).results if r.case.key not in common}
    before, folded = text.split("<summary>Cases that only one run has")
    assert before.count("only in A: ") == 1
    listed = {line.partition("only in A: ")[2] for line in folded.split("</pre>")[0].splitlines()}
    assert len(alone) > 100
    assert alone <= listed
