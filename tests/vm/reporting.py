# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for scripts/vmtest: writes the outcome of each test, and what was recorded.

Into $TCPKMON_RESULTS: collected.json, the tests; outcomes.jsonl, a line for each when it is done;
results.jsonl, a line for each file; failures.log; seen.json, for scripts/kernels. Times are s.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.live.capturing import Outcome

RESULTS = Path(os.environ["TCPKMON_RESULTS"])
_FUNCTIONS = ("fentry", "fexit", "kprobe")
_OUTCOMES = ("passed", "failed", "skipped", "rerun")
_CAPTURING = "tests.live.capturing"


class _Reporter:
    def __init__(self) -> None:
        self._file = ""
        self._begun = self._test_begun = time.monotonic()
        self._counts = dict.fromkeys(_OUTCOMES, 0)
        self._test = ""
        self._worst = "passed"
        self._recorded: dict[str, dict[str, int]] = {}
        self._kernel: dict[str, Any] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        _write("collected.json", [item.nodeid for item in session.items])
        if _CAPTURING in sys.modules:
            vars(sys.modules[_CAPTURING])["OBSERVERS"].append(self.note)

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._flush()
            self._file = file
        self._test, self._worst = nodeid, ""
        self._test_begun = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = str(report.outcome)
        if report.when == "call" or outcome != "passed":
            outcome = outcome if outcome in self._counts else "failed"
            self._counts[outcome] += 1
            # The last run of a test counts.
            if outcome != "rerun" and self._worst != "failed":
                self._worst = outcome
        if outcome in {"failed", "rerun"}:
            with (RESULTS / "failures.log").open("a") as stream:
                stream.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n")

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        if self._worst:
            seconds = round(time.monotonic() - self._test_begun, 1)
            row = {"test": nodeid, "outcome": self._worst, "seconds": seconds}
            _append("outcomes.jsonl", row)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._file = report.nodeid
            self._counts["failed"] += 1
            self._flush()
            self._file = ""
            _append("outcomes.jsonl", {"test": report.nodeid, "outcome": "failed"})
            with (RESULTS / "failures.log").open("a") as stream:
                stream.write(f"==== {report.nodeid}\n{report.longreprtext}\n")

    def pytest_sessionfinish(self) -> None:
        self._flush()
        if not self._recorded and (refused := _refusal()):
            _write("seen.json", {"kernel": platform.release(), "refused": refused})

    def note(self, outcome: Outcome) -> None:
        """What a capture recorded: location, way to attach, entries."""
        ways = outcome.capture.settings["locations"]
        for location, count in outcome.records.counts().items():
            way = "iter:tcp" if location == "EXISTING" else ways.get(location)
            if way is not None:
                row = self._recorded.setdefault(location, {})
                row[way] = row.get(way, 0) + int(count)

    def _flush(self) -> None:
        if self._file:
            seconds = round(time.monotonic() - self._begun)
            _append("results.jsonl", {"file": self._file, "seconds": seconds, **self._counts})
            if self._recorded:
                self._kernel = self._kernel or _describe()
                for name, place in self._kernel["locations"].items():
                    place["recorded"] = self._recorded.get(name, {})
                _write("seen.json", self._kernel)
        self._counts = dict.fromkeys(_OUTCOMES, 0)
        self._begun = time.monotonic()


def _refusal() -> str:
    """Why this kernel cannot capture at all."""
    from tcpkmon.collector.loader.attach_trials import check_atomics
    from tcpkmon.formats.base.errors import KernelError

    try:
        check_atomics()
    except KernelError as error:
        return error.message
    return ""


def _describe() -> dict[str, Any]:
    """This kernel: the ways to each location, and why some do not work."""
    from tcpkmon.collector.linux.btf import Btf
    from tcpkmon.collector.loader.attach_trials import Probing
    from tcpkmon.collector.plan.probes import absent_columns, counts_skipped, find_probes
    from tcpkmon.collector.plan.schema_sources import find_sources, read_texts
    from tcpkmon.collector.ring.rings import choose_transport

    btf = Btf.from_kernel()
    probing = Probing(btf)
    text = read_texts(find_sources(["tcp"]))
    locations: dict[str, Any] = {}
    for probe in find_probes(text):
        ways = {f"{kind}:{name}": probing.why_not(kind, name) for kind, name in probe.alternatives}
        for location in probe.locations:
            locations[location] = {"ways": ways}
    has_kprobes = probing.can("kprobe", "tcp_sendmsg")
    return {
        "kernel": platform.release(),
        "rings": choose_transport()[0].name,
        "functions": [kind for kind in _FUNCTIONS if probing.can(kind, "tcp_sendmsg")],
        "counts_kprobes": counts_skipped(btf, "kprobe") if has_kprobes else None,
        "preemption": next(iter(re.findall(r"PREEMPT\w*", os.uname().version)), "none"),
        "machine": platform.machine(),
        "guest": "TCPKMON_GUEST" in os.environ,
        "locations": locations,
        "absent_columns": list(absent_columns(text, btf)),
    }


def _write(name: str, value: object) -> None:
    """Writes the file at once: a guest may end at any moment."""
    new = RESULTS / f".{name}"
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.rename(RESULTS / name)


def _append(name: str, row: object) -> None:
    with (RESULTS / name).open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(_Reporter(), "tcpkmon-reporting")
