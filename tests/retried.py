# SPDX-License-Identifier: Apache-2.0
"""Lists the tests that failed and passed when they were tried again: a plugin of pytest.

TCPKMON_RETRIED names a file that gets their names too, so that scripts/test counts those of all its
runs.
"""

from __future__ import annotations

import os

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    names = {
        outcome: {report.nodeid for report in terminalreporter.stats.get(outcome, ())}
        for outcome in ("rerun", "passed", "failed", "error")
    }
    retried = names["rerun"] | (names["passed"] if config.getoption("lf", False) else set())
    retried -= names["failed"] | names["error"]
    if not retried:
        return
    terminalreporter.section("failed, and passed when tried again")
    terminalreporter.write("".join(f"{name}\n" for name in sorted(retried)))
    if path := os.environ.get("TCPKMON_RETRIED"):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in sorted(retried))
