# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario under a capture, and compares what `tcpkmon why` finds with the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collector.klogger import start
from collector.lab.lab import Lab
from formats.analysis.why import LIMITS, Source, cut, tally
from scripts.why.scenarios import CLIENT, SECONDS, Scenario, run


@dataclass(frozen=True)
class Judged:
    """shares: of the sharp time, by limit. right: in a limit that is true. lost: records."""

    scenario: Scenario
    shares: dict[str, float]
    lost: int

    @property
    def right(self) -> float:
        return sum(self.shares.get(name, 0.0) for name in self.scenario.truth)


def play(
    scenario: Scenario, folder: Path, seconds: float = SECONDS, columns: str = "default"
) -> Judged:
    """One round. TcpkmonError, PrivilegeError."""
    path = folder / "why.pm"
    with Lab(scenario.bottleneck) as lab:
        options = ["--format", "psc", "--netns", lab.a.name, "--quiet",
                   "--columns", columns]  # fmt: skip
        with start("tcp", path, force=True, options=options):
            port, begin, end = run(lab, scenario, seconds)
    return judge(scenario, path, port, begin, end)


def judge(scenario: Scenario, path: Path, port: int, begin: float, end: float) -> Judged:
    """What a capture tells of the connection with this local port, from begin to end (s)."""
    with Source(path) as source:
        rows = tally(source.read())
    (one,) = (row for row in rows if row.lport == port and row.laddr == CLIENT)
    with Source(path) as source:
        found = np.concatenate(list(cut(source.read())))
        lost = source.reader.lost
    found = found[found["conn_id"] == one.conn_id]
    starts = np.maximum(found["start_ns"], int(begin * 1e9))
    spans = np.maximum(np.minimum(found["end_ns"], int(end * 1e9)) - starts, 0)
    total = max(int(spans.sum()), 1)
    sums = np.bincount(found["limit"], spans, len(LIMITS))
    shares = {name: float(ns / total) for name, ns in zip(LIMITS, sums, strict=True) if ns}
    return Judged(scenario, shares, lost)
