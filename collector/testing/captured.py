# SPDX-License-Identifier: Apache-2.0
"""What was captured during a block of a test: tables, ledger, assertions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tcpkmon.collector.capturing import Control
from tcpkmon.collector.testing.baseline import Baseline
from tcpkmon.collector.testing.watch import Choose, Watch
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

if TYPE_CHECKING:
    from tcpkmon.formats.analysis import check, latency
    from tcpkmon.formats.analysis.check import Proof
    from tcpkmon.formats.analysis.why import Table
    from tcpkmon.formats.verify import Report


class Captured:
    """A capture on the disk, at `path`. All but path, name and mark() is known after the block."""

    def __init__(
        self,
        path: Path,
        name: str,
        baseline: Baseline | None = None,
        running: Control | Watch | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self._baseline = baseline
        self._running = running
        self._proof: Proof | None = None
        self._ports: Choose | None = None

    def finish(self, proof: Proof | None = None, ports: Choose | None = None) -> None:
        """The block has ended, and the file is complete.

        proof, ports: of a span of another capture, and the connections in it that are meant.
        """
        self._running = None
        self._proof, self._ports = proof, ports

    def mark(self, number: int) -> None:
        """Record a mark, in the block."""
        if self._running is None:
            raise UsageError("the capture has ended: a mark is recorded in its block")
        self._running.mark(number)

    @cached_property
    def _checked(self) -> check.Capture:
        from tcpkmon.formats.analysis import check

        self._wait_for_end()
        return check.Capture(self.path, self._proof, self._ports)

    def _wait_for_end(self) -> None:
        if self._running is not None:
            raise UsageError("the capture runs: look at it after its block")

    @property
    def proven(self) -> bool:
        """Whether it is proven that nothing is missing."""
        return self._checked.proven

    @property
    def connections(self) -> Table:
        """The table connections: numpy columns by name (docs/connections.md)."""
        return self._checked.connections

    @property
    def intervals(self) -> Table:
        """The table intervals: numpy columns by name."""
        return self._checked.intervals

    @cached_property
    def records(self) -> Table:
        """All snapshots of connections: numpy columns by name, those that hold numbers."""
        return self._checked.table("record", self._checked.record_kinds).columns

    @cached_property
    def ledger(self) -> Report:
        """What tcpkmon verify says of the capture: totals, losses by cause, the verdict."""
        from tcpkmon.formats.registry import format_of

        self._wait_for_end()
        if self._proof is not None:
            raise UsageError("the ledger is in the files of the capture that runs on")
        return format_of(self.path).verify(self.path)[-1]

    @cached_property
    def latency(self) -> latency.Report:
        """Where the time of each byte went; UsageError without capture(latency=True)."""
        from tcpkmon.formats.analysis import latency, open_log

        self._wait_for_end()
        if not self.path.is_dir():
            raise UsageError("this capture has no layers", "capture(latency=True)")
        with open_log(self.path) as log:
            found = latency.Latency(log)
            wanted = latency.find_flows(found.survey, ())
            summary = latency.Summary(wanted, found.survey.begin_ns, 3)
            for some in found:
                summary.add(some)
            return latency.make_report(found, summary)

    def check(self, *texts: str, unproven_ok: bool = False) -> None:
        """AssertionError unless all of these hold (docs/check.md), and the capture is proven.

        It has the values that were seen, and the worst connections. ValueError for mistakes.
        """
        __tracebackhide__ = True
        from tcpkmon.formats.analysis.check import as_lines, check

        try:
            results = check(self._checked, texts)
        except UsageError as error:
            raise ValueError("\n".join(error.lines())) from None
        told = []
        if not unproven_ok and not self._checked.proven:
            told.append(f"not proven: {self._checked.verdict}")
        broken = sum(not result.ok for result in results)
        if broken:
            told.append(f"{broken} of {len(results)} assertions do not hold")
        if told:
            told += [line for result in results for line in as_lines(result)]
            raise AssertionError("\n".join((*told, f"capture: {self.path}")))

    def baseline(
        self, *values: str, tolerance: float | Mapping[str, float] | None = None
    ) -> None:
        """Compare values with those of --tcpkmon-baseline, or store them; nothing without it.

        values: names of baseline.VALUES (by default all), or expressions of docs/check.md that are
        one number. tolerance: the relative difference that is allowed, or that by value.
        AssertionError with all differences. ValueError for an expression, and for a tolerance of
        what is not compared.
        """
        __tracebackhide__ = True
        if self._baseline is None:
            return
        try:
            measured = self._baseline.measure(self._checked, values)
        except TcpkmonError as error:
            raise ValueError("\n".join(error.lines())) from None
        named = tolerance if isinstance(tolerance, Mapping) else ()
        if others := [name for name in named if name not in measured]:
            raise ValueError(f"a tolerance of what is not compared: {', '.join(others)}")
        if not self._checked.proven:
            raise AssertionError(f"not proven: {self._checked.verdict}\ncapture: {self.path}")
        differences = self._baseline.compare(self.name, measured, tolerance)
        if differences:
            raise AssertionError("\n".join((*differences, f"capture: {self.path}")))
