# SPDX-License-Identifier: Apache-2.0
"""docs/open-with.md, docs/sql.md and docs/examples/capture.ipynb: what stands there runs."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon_command
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tests.unit.log_files import ROOT
from tests.unit.test_tables import capture_of

PAGE = (ROOT / "docs" / "open-with.md").read_text()
NOTEBOOK = ROOT / "docs" / "examples" / "capture.ipynb"
COMMANDS = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", PAGE, re.MULTILINE)
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run.pm is, and we are."""
    capture_of("psc-plain", tmp_path).rename(tmp_path / "run.pm")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_each_tool() -> None:
    for tool in ("Wireshark", "Perfetto", "xplot", "pandas", "polars", "DuckDB", "Excel",
                 "Grafana", "Jupyter"):  # fmt: skip
        assert tool in PAGE
    assert len(COMMANDS) >= 10 and len(PROGRAMS) == 4


@pytest.mark.parametrize("line", [one for one in COMMANDS if "metrics" not in one])
def test_a_command_of_the_page_runs(
    line: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name, *words = shlex.split(line)
    assert cli.run({"tcpkmon": tcpkmon_command, "pmgraph": pmgraph}[name], words, prog=name) == 0
    out_text, err = capfd.readouterr()
    told = "" if "--xplot" not in words else "1 of 8 connections"
    assert told in err and bool(told) == bool(err), line
    if "--xplot" in words:
        assert (folder / words[-1]).read_text().startswith("timeval")
        return
    if "-o" not in words:
        assert "127.0.0.1" in out_text
        return
    out = folder / words[words.index("-o") + 1]
    assert out.stat().st_size
    if out.suffix == ".parquet":
        assert pyarrow.parquet.read_table(out).num_rows == 311
    elif out.suffix == ".csv":
        with out.open() as file:
            assert len({len(row) for row in csv.reader(file)}) == 1


def test_the_command_for_grafana_is_one() -> None:
    [line] = [one for one in COMMANDS if "metrics" in one]
    assert line in (ROOT / "docs" / "metrics.md").read_text() or "--listen" in line
    help_text = CliRunner().invoke(tcpkmon_command, ["metrics", "--help"]).stdout
    for word in shlex.split(line)[2:]:
        assert not word.startswith("--") or word in help_text


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_page_runs(
    program: str, folder: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("_RJEM_MALLOC_CONF", "")  # which polars sets
    exec(program, {})
    out, err = capfd.readouterr()
    assert not err
    assert not out or re.search("app|SEGMENT_RECEIVED", out)


def test_the_queries_of_the_page_run(folder: Path) -> None:
    text = (ROOT / "docs" / "sql.md").read_text()
    commands = re.findall(r"^    tcpkmon sql ([\w. ]+) '(.*?)'", text, re.MULTILINE)
    block = next(one for one in text.split("\n\n") if one.startswith("    --"))
    queries = [query for _, query in commands]
    queries += [one.partition("\n")[2] for one in re.split(r"^    --", block, flags=re.M)[1:]]
    assert len(queries) == 7
    for query in queries:
        assert tcpkmon.sql(query, "run.pm").num_columns, query


def outputs(notebook: Any) -> list[str]:
    return ["".join(str(one.get("data", {}).get("text/html", one.get("text", "")))
                    for one in cell.outputs)
            for cell in notebook.cells if cell.cell_type == "code"]  # fmt: skip


@pytest.mark.full
def test_the_notebook_runs(folder: Path) -> None:
    written = nbformat.reads(NOTEBOOK.read_text(), as_version=4)
    nbformat.validate(written)
    for cell in written.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None
    NotebookClient(
        written, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    first, table, words, *_, ledger = outputs(written)
    assert "adds up: nothing lost" in first and "main_limit" in first
    assert "bytes_received" in table and "->" in words and "SEGMENT_RECEIVED" in ledger
    assert "image/png" in json.dumps(written.cells, default=dict)
