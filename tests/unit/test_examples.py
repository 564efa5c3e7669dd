# SPDX-License-Identifier: Apache-2.0
"""Examples of the documents run: programs, queries, a notebook, the matrix of CI."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
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
from tcpkmon.formats.schema import format_schema, load
from tests.unit.log_files import BASE, ROOT, LogMaker, Values, describe_events
from tests.unit.psc_files import write_runs
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
    says = {"--xplot": "1 of 8 connections", "pcapng": "packets that arrived have no ACK"}
    told = next((text for word, text in says.items() if word in words), "")
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


DOCUMENT = ROOT / "docs" / "analysis.md"
SCHED = ROOT / "bpf" / "schemata" / "sched.conf"
US = 1_000


def programs() -> dict[str, str]:
    """The programs of the document by the names of their files."""
    found = re.findall(r"^```python (\S+)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    return dict(found)


def sched_maker(cpu: int) -> LogMaker:
    """A log of base and sched."""
    schema = load([BASE, SCHED])
    return LogMaker(cpu=cpu, schema=format_schema(schema), events=describe_events(schema))


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPUs' logs in the folder `run`, which is here."""
    folder = tmp_path / "run"
    folder.mkdir()
    first, second = sched_maker(0), sched_maker(1)
    for maker in (first, second):
        maker.add("KLOGGER_START", {"kernel": "6.18.0"}, at=0)
    wake: Values = {"pid": 7, "wakes": 1}
    run: Values = {"pid": 7, "comm": "sleep"}
    second.add("TRY_TO_WAKEUP", wake, at=10 * US).add("SCHEDIN", run, at=11 * US)
    second.add("SCHEDOUT", {**run, "reason": "BLOCKED"}, at=15 * US)
    first.add("MARK", {"number": 1, "pid": 1}, at=20 * US)
    for start in (100, 200, 300):
        # Woken on one CPU, run on the other: only in time order does that make sense.
        first.add("TRY_TO_WAKEUP", wake, at=start * US)
        first.add("TRY_TO_WAKEUP", {"pid": 7, "wakes": 0}, at=(start + 1) * US)
        second.add("ADD_TO_RUNQ", {"pid": 7}, at=(start + 2) * US)
        second.add("SCHEDIN", run, at=(start + 30) * US)
        second.add("SCHEDOUT", {**run, "reason": "BLOCKED"}, at=(start + 40) * US)
        second.add("REMOVE_FROM_RUNQ", {"pid": 7}, at=(start + 41) * US)
        second.add("SLEEP", {"tid": 7, "tgid": 7, "class": "TIMER"}, at=(start + 42) * US)
    second.add("SCHEDIN", {"pid": 8, "comm": "sh"}, at=400 * US)
    second.add("SCHEDOUT", {"pid": 8, "comm": "sh", "reason": "PREEMPTED"}, at=460 * US)
    second.add("EXIT", {"pid": 8, "comm": "sh"}, at=465 * US)
    first.add("MARK", {"number": 1, "pid": 1}, at=500 * US)
    second.add("SCHEDOUT", {"pid": 9, "reason": "EXITED"}, at=600 * US)
    for maker in (first, second):
        maker.add("KLOGGER_FINISH", {"reason": 0}, at=700 * US)
        maker.write(folder / f"kernlog.dump.cpu{maker.format.cpu}")
    monkeypatch.chdir(tmp_path)
    return folder


def output_of(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / name
    path.write_text(programs()[name])
    runpy.run_path(str(path))
    return capsys.readouterr().out.splitlines()


def test_the_worked_example(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_of("analyse.py", tmp_path, capsys) == [
        "0 events lost",
        "BLOCKED: 3 switches",
        "PREEMPTED: 1 switches",
        "3 wake-ups, 30.0 us to the CPU (median)",
    ]


def test_the_filters(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of("filters.py", tmp_path, capsys)
    assert re.fullmatch(r"\d+ EXIT 8", lines[0])
    # Two marks, 3 x 6 events, and 3 of the shell; and what brackets their dumps.
    assert re.fullmatch(r"\d+ events inside", lines[1])
    assert 23 <= int(lines[1].split()[0]) <= 27


def test_the_pairs(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of("pairs.py", tmp_path, capsys) == [
        "2 naps, 0.061 ms on average, p99 0.061 ms",
        "pid 7 slept 2 times",
        "8 sh: 0.1 ms in 1 slices",
        "7 sleep: 0.0 ms in 4 slices",
        "28 us to the CPU (p99)",
        "7 waited 0.1 ms for TIMER",
    ]


MATRIX = ROOT / "docs/examples/ci/matrix"
SETTING = "net.ipv4.tcp_slow_start_after_idle"
GUEST = """#!/bin/bash
for word in "$@"; do case $word in sysctl.*) found=-${word##*=} ;; esac; done
name=$(basename "$2")
name=${name#vmlinuz-}
[ "$name" != dead ] || { echo no KVM; exit 1; }
script=${!#}
folder=$(dirname "${script//[\\'\\"]/}")
folder=${folder#bash }
cp -r "$MADE/$name${found:-}" "$folder/tests"
echo "=== 2 passed in 1.00s ===" >"$folder/output"
echo 0 >"$folder/exit"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vng that puts captures in place: of two kernels, and one again with another setting."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "vng").write_text(GUEST)
    (programs / "vng").chmod(0o755)
    for name, kernel, value in (("6.1", "6.1", 1), ("7.3", "7.3", 1), ("7.3-0", "7.3", 0)):
        for test, capture in (("begins0", "pause"), ("grows0", "grows")):
            folder = tmp_path / "made" / name / test
            folder.mkdir(parents=True)
            system = {"sysctl": {SETTING: str(value), "net.ipv4.tcp_rmem": kernel}}
            write_runs(folder / f"{capture}.pm", [(1e6, 500)], {"system": system})
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("MADE", str(tmp_path / "made"))
    monkeypatch.setenv("PYTHON", sys.executable)
    return tmp_path


def matrix(out: Path, *kernels: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MATRIX, out, *kernels], capture_output=True, text=True, check=False)


def shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-ec", words], cwd=folder, capture_output=True, text=True,
                          check=False)  # fmt: skip


def test_a_guest_is_compared_with_the_first_one_on_its_kernel(path: Path) -> None:
    done = matrix(path / "out", "/x/6.1", "/x/vmlinuz-7.3", f"/x/vmlinuz-7.3,{SETTING}=0")
    assert done.returncode == 0 and not done.stderr, done
    told, first, second = re.split(r"Settings that differ *\n", done.stdout)
    assert told.splitlines()[:3] == [
        "6.1: 2 passed in 1.00s (exit 0)", "7.3: 2 passed in 1.00s (exit 0)",
        f"7.3,{SETTING}=0: 2 passed in 1.00s (exit 0)",
    ]  # fmt: skip
    rows = [[line.split() for line in text.splitlines() if line.startswith("net.")]
            for text in (first, second)]  # fmt: skip
    assert rows == [[["net.ipv4.tcp_rmem", "6.1", "7.3"]], [[SETTING, "1", "0"]]]


def test_the_workflow_checks_what_the_matrix_leaves(path: Path) -> None:
    """Its step, as a shell runs it."""
    assert matrix(path / "out", "/x/6.1").returncode == 0
    (workflow,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    assert workflow.startswith("on: ") and "\njobs:\n" in workflow
    (step,) = re.findall(r"run: >\n(.*?)\n      - ", workflow, re.DOTALL)
    tcpkmon = str(Path(sys.executable).with_name("tcpkmon"))
    words = " ".join(step.split()).replace(".venv/bin/tcpkmon", tcpkmon)
    done = shell(words, path)
    # The made capture lacks the column `delivered`: only that is said.
    assert done.returncode == 2 and "no column 'delivered'" in done.stderr, done
    words = words.replace("10 + delivered", "10").replace(" == 5310", " == 80")
    done = shell(words, path)
    assert done.returncode == 0 and (path / "out/check.xml").exists(), done
