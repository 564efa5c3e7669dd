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
from tcpkmon.collector.commands import collect
collect.import_quietly()
import tcpkmon.collector.writer.psc_codec
"""


def loaded(program: str) -> set[str]:
    """The modules that an interpreter has after this program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_the_default_capture_imports_nothing_that_it_does_not_need() -> None:
    imported = loaded(PROGRAM)
    assert "tcpkmon.collector.session.session" in imported
    assert not imported & HEAVY


def test_the_options_of_a_capture_need_no_numpy() -> None:
    """The command line is there before import_quietly(), which keeps numpy from starting threads.
    """
    imported = loaded("import tcpkmon.collector.commands.collect")
    assert not {"numpy", "tcpkmon.collector.session.session"} & imported


def test_a_command_imports_no_other() -> None:
    imported = loaded(
        "from tcpkmon.collector.commands.tcpkmon import command\n"
        "command.main(['verify', '--help'], standalone_mode=False)"
    )
    assert "tcpkmon.formats.commands.verify" in imported
    assert not imported & {"tcpkmon.collector.loader.prepare", "tcpkmon.formats.commands.why"}


def test_the_package_loads_nothing_before_it_is_used() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "rich", "click", "pyroute2", "bcc"}
    assert not heavy & loaded("import tcpkmon")
