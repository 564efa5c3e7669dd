# SPDX-License-Identifier: Apache-2.0
"""What a start must not wait for: imports that few captures need, and types that are known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {
    "bcc", "pyroute2", "pyarrow", "polars", "duckdb", "matplotlib", "rich", "plotext",
    "numpy.ma", "numpy.random",
    "tcpkmon.collector.lab",
    "tcpkmon.collector.control.client",
    "tcpkmon.collector.loader.sock_diag",
    "tcpkmon.formats.analysis",
    "tcpkmon.formats.export",
    "tcpkmon.formats.klogger",
    "tcpkmon.formats.lines",
    "tcpkmon.formats.pmgraph",
    "tcpkmon.formats.tables",
    "tcpkmon.formats.verify",
}  # fmt: skip
PROGRAM = """
import sys
from tcpkmon.collector.commands import collect
collect.import_quietly()
import tcpkmon.collector.writer.psc_codec
print(*sys.modules)
"""


def test_the_default_capture_imports_nothing_that_it_does_not_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "tcpkmon.collector.session.session" in imported
    assert not imported & HEAVY


def test_the_options_of_a_capture_need_no_numpy() -> None:
    """The command line is there before import_quietly(), which keeps numpy from starting threads.
    """
    program = "import sys; import tcpkmon.collector.commands.collect; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"numpy", "tcpkmon.collector.session.session"} & set(done.stdout.split())


def test_a_command_imports_no_other() -> None:
    program = """
import sys
from tcpkmon.collector.commands.tcpkmon import command
command.main(["verify", "--help"], standalone_mode=False)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "tcpkmon.formats.commands.verify" in imported
    assert not imported & {"tcpkmon.collector.loader.prepare", "tcpkmon.formats.commands.why"}
