# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for scripts/vmtest: a line of JSON for each test file as soon as it is done."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

RESULTS = Path(os.environ["TCPKMON_RESULTS"])
PATIENT_S = 900.0
"""An emulated CPU compiles for a minute and more: so long a test in a guest may wait for it."""
_OUTCOMES = ("passed", "failed", "skipped", "rerun")


class _Reporter:
    def __init__(self) -> None:
        self._file = ""
        self._begun = time.monotonic()
        self._counts = dict.fromkeys(_OUTCOMES, 0)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for name in ("capturing", "faults", "tests.live.capturing", "tests.live.faults"):
            if "TCPKMON_GUEST" in os.environ and name in sys.modules:
                vars(sys.modules[name])["WAIT_S"] = PATIENT_S

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._flush()
            self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = str(report.outcome)
        if report.when == "call" or outcome != "passed":
            self._counts[outcome if outcome in self._counts else "failed"] += 1
        if outcome in {"failed", "rerun"}:
            with (RESULTS / "failures.log").open("a") as stream:
                stream.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._file = report.nodeid
            self._counts["failed"] += 1
            self._flush()
            self._file = ""

    def pytest_sessionfinish(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._file:
            seconds = round(time.monotonic() - self._begun)
            with (RESULTS / "results.jsonl").open("a") as stream:
                line = {"file": self._file, "seconds": seconds, **self._counts}
                stream.write(json.dumps(line) + "\n")
        self._counts = dict.fromkeys(_OUTCOMES, 0)
        self._begun = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reporter(), "tcpkmon-reporting")
