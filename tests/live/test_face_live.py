# SPDX-License-Identifier: Apache-2.0
"""`import tcpkmon`: the program of docs/python.md, and captures that are started from Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tcpkmon
from tests.unit.log_files import ROOT

PAGE = ROOT / "docs" / "python.md"
pytestmark = pytest.mark.live


def test_the_program_of_the_page(tmp_path: Path) -> None:
    [(name, text)] = re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", name], cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdict, _, row, *told = done.stdout.splitlines()
    assert verdict.startswith("0 ")
    assert re.search(r"\b1000000\b.*\bTrue$", row)
    assert len(told) == 2 and all(re.match(r"\d+ -> \d+ \S", line) for line in told)


def test_a_capture_is_a_path_and_is_controlled(tmp_path: Path) -> None:
    with tcpkmon.collect(tmp_path / "log", schema="sched", buffer_size="1") as capture:
        assert capture.run_workload(["true"], mark=7) == 0
        assert tcpkmon.attach(capture.pid).status()["pid"] == capture.pid
    with tcpkmon.open(capture) as reader:
        assert reader.lost == 0
    assert {report.exit_code for report in tcpkmon.verify(capture)} == {0}


def test_what_collect_refuses(tmp_path: Path) -> None:
    with pytest.raises(tcpkmon.UsageError, match="no option for prots=1"):
        tcpkmon.collect(tmp_path / "a.pm", prots=1)
    with pytest.raises(tcpkmon.UsageError, match="unknown schema"):
        tcpkmon.collect(tmp_path / "b", schema="nonsense")
    assert not list(tmp_path.iterdir())
