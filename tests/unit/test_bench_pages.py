# SPDX-License-Identifier: Apache-2.0
"""A page per CPU model, and an index that tells what the pages tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_bench_report import run_bench
from test_bench_stats import filled

from scripts.benchmark import pages
from scripts.benchmark.main import MEASURES
from scripts.benchmark.report import markdown
from scripts.benchmark.work import WORK
from scripts.experiments.results import Results
from scripts.experiments.stats import number, percent
from tcpkmon.formats.base.errors import FileError, UsageError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def whole() -> Results:
    """Results of all sections, of a slowdown of 25 % where perf has 100 %."""
    results = filled(default=80.0, same=90.0, perf=50.0, filtered=98.0)
    results.machine = {
        "CPU model": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        "date": "2026-11-23 10:00 UTC", "tree": "abc1234", "kernel": "6.18 #1 x",
    }  # fmt: skip
    results.seconds = dict.fromkeys(MEASURES, 1.0)
    return results


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("AMD EPYC 9B14 96-Core Processor", "amd-epyc-9b14-96-core"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("../..", "unknown"),
    ],
)
def test_name_of_a_page_is_that_of_the_model(model: str, name: str) -> None:
    assert pages.slug(model) == name


def test_headline_is_of_the_results_and_comes_back_from_json(whole: Results) -> None:
    page = pages.headline(whole)
    assert (page.date, page.tree, page.kernel) == ("2026-11-23", "abc1234", "6.18")
    assert page.default is not None
    assert (page.default.mean, page.default.works) == (0.25, len(WORK))
    assert page.other_ports == pytest.approx(0.0204)
    assert pages.Page.from_json(page.to_json()) == page
    for text in ("[]", "{}", "3", "{", '{"default": null, "perf_columns": null, "other": 1}'):
        with pytest.raises(ValueError):
            pages.Page.from_json(text)


def test_a_run_writes_the_page_of_its_model_and_leaves_the_others(
    whole: Results, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    folder.mkdir()
    other = folder / "amd-epyc.md"
    other.write_text("by hand")
    (folder / "amd-epyc.json").write_text(pages.Page("AMD", "d", "t", "k", source="x").to_json())
    written = pages.write(whole, tmp_path, list(MEASURES))
    page = folder / "intel-xeon-platinum-8481c.md"
    assert written == [page, page.with_suffix(".json"), tmp_path / "benchmark.md"]
    assert page.read_text() == markdown(whole)
    assert other.read_text() == "by hand"
    assert not list(tmp_path.rglob("*.new"))
    index = written[-1].read_text()
    assert "| [AMD](benchmark/amd-epyc.md) | d | t (x) | - | - | - |" in index
    assert f"abc1234 | 0.25, mean of {len(WORK)}; worst: " in index and " 2.0 % |" in index
    # Measured again: the page is another, and the index has one line of it.
    whole.machine["tree"] = "def5678"
    pages.write(whole, tmp_path, list(MEASURES))
    index = written[-1].read_text()
    assert index.count("8481C") == 1 and "def5678" in index and "abc1234" not in index


def test_no_page_is_made_of_a_quick_run_or_of_a_part(whole: Results, tmp_path: Path) -> None:
    del whole.seconds["scale"]
    with pytest.raises(UsageError, match="lack scale"):
        pages.write(whole, tmp_path, list(MEASURES))
    whole.seconds["scale"] = 1.0
    whole.quick = True
    with pytest.raises(UsageError, match="these are quick"):
        pages.write(whole, tmp_path, list(MEASURES))
    assert not list(tmp_path.iterdir())
    saved = tmp_path / "saved.json"
    saved.write_text(whole.to_json())
    for words in (["--quick"], ["--only", "rates"], ["--read", str(saved)]):
        done = run_bench("--docs", *words)
        assert done.returncode == 2 and "whole run" in done.stderr, done.stderr


def test_a_damaged_headline_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FileError, match=r"bad\.json"):
        pages.index(tmp_path)


def test_the_index_in_docs_is_made_of_the_headlines_beside_the_pages() -> None:
    assert (DOCS / "benchmark.md").read_text(encoding="utf-8") == pages.index(DOCS / "benchmark")


def test_each_page_in_docs_has_its_headline_and_says_the_same() -> None:
    folder = DOCS / "benchmark"
    assert {path.stem for path in folder.glob("*.json")} == {
        path.stem for path in folder.glob("*.md")
    } - {"tried"}
    for path in folder.glob("*.json"):
        headline = pages.Page.from_json(path.read_text(encoding="utf-8"))
        page = path.with_suffix(".md").read_text(encoding="utf-8")
        assert headline.tree in page and headline.date in page
        shares = [share for share in (headline.default, headline.perf_columns) if share]
        figures = [number(share.mean) for share in shares]
        if headline.other_ports is not None:
            figures.append(percent(headline.other_ports))
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", page), (path.name, figure)
