# SPDX-License-Identifier: Apache-2.0
"""Klogger logs above their budget: fewer events, whole connections, and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import tcpkmon
from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.plan.budget import is_in_sample
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.klogger.batch import facts_of
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.live.capturing import WAIT_S, Running, wait_until
from tests.live.test_budget_live import CONNECTIONS, Load, level_of

RATE = 200_000
"""Far below what the load makes."""
WITHOUT_IP = "SOCK_SEND,TCP_SEND,DEV_SEND,DEV_RECV,TCP_RECV,SOCK_RECV"
"""Then the first step is a sample of the connections."""


@contextmanager
def recording(path: Path, port: int, *options: str) -> Iterator[Running]:
    """A capture that starts."""
    words = ("--schema", "magnet", "--ports", str(port), "--max-disk-rate", str(RATE))
    running = Running(path, (*words, *options), "")
    try:
        yield running
    finally:
        running.close()


def stop(capture: Running) -> str:
    """End it in order; what it said."""
    capture.interrupt()
    _, errors = capture.process.communicate(timeout=WAIT_S)
    assert capture.process.returncode == 0, errors
    return str(errors)


def changes_in(path: Path) -> list[Change]:
    """The steps that CPU 0's file tells."""
    with LogReader(path / "kernlog.dump.cpu0") as log:
        found = [change for batch in log.batches() for _, change in facts_of(batch, Change)]
    return [change for change in found if change.kind == ChangeKind.SHED]


def rows_of(path: Path, name: str) -> tuple[NDArray[np.int64], list[int]]:
    """Times and connections of an event's records."""
    times: list[int] = []
    ids: list[int] = []
    with tcpkmon.open(path) as log:
        for reader in log.readers:
            for batch in reader.batches():
                event = batch.format.find_event(name)
                if event is not None and event in batch.events():
                    at = batch.where(event)
                    times += batch.times_ns[at].astype(np.int64).tolist()
                    ids += batch.rows(event, at)["connection"].tolist()
    return np.array(times, np.int64), ids


def check(path: Path, errors: str, events: int) -> Report:
    """It adds up, and tells its steps everywhere. events: that its status had counted."""
    *_, report = format_of(path).verify(path)
    assert report.exit_code == 0 and not report.problems, report.problems
    assert not report.lost_total and report.totals.shed >= events > 0
    steps = changes_in(path)
    assert steps[0].new == 1 and steps[0].why and len(report.shed) == len(steps)
    assert "(disk rate at " in report.shed[0] and "budget: disk rate at " in errors
    return report


def check_sample(path: Path, name: str, level: int, sample: int) -> None:
    """At this level records are of connections in the sample alone, and of all these."""
    steps = changes_in(path)
    begin = next(one.after_ns for one in steps if one.new == level)
    later = [one.before_ns for one in steps if one.before_ns > begin]
    times, ids = rows_of(path, name)
    inside = (times > begin) & (times < min(later, default=1 << 62))
    before = {conn for time_ns, conn in zip(times.tolist(), ids, strict=True) if time_ns < begin}
    found = {conn for conn, here in zip(ids, inside.tolist(), strict=True) if here}
    assert len(before) >= CONNECTIONS and found
    assert found == {conn for conn in before if is_in_sample(conn, sample)}


@pytest.mark.full
def test_fewer_events_and_whole_connections(tmp_path: Path) -> None:
    """The first step leaves out events, or where none can be, a half of the connections."""
    log, lean = tmp_path / "log", tmp_path / "lean"
    load = Load()
    try:
        with ExitStack() as stack:
            one = stack.enter_context(recording(log, load.port, "--format", "klogger"))
            options = ("--format", "klogger", "--locations", WITHOUT_IP)
            two = stack.enter_context(recording(lean, load.port, *options))
            one.wait_until_ready()
            two.wait_until_ready()
            with load:
                wait_until(lambda: level_of(one) and level_of(two))
                shown = [Client(choose(each.process.pid)).status() for each in (one, two)]
                threading.Event().wait(0.2)
            two.interrupt()
            said = [stop(one), stop(two)]
    finally:
        load.close()
    assert [each["shed_steps"][0] for each in shown] == [
        "IP_SEND, IP_RECV", "all but 1/2 of the connections"
    ]
    for path, errors, status in zip((log, lean), said, shown, strict=True):
        assert status["shed_why"].startswith("disk rate at ")
        report = check(path, errors, status["shed_events"])
        counts = {row.name: row.shed for row in report.rows}
        # On a slow machine the log may have come to the second step, or the third.
        has_sampled = path == lean or len(changes_in(log)) > 1
        assert (counts["SOCK_SEND"] > 0) == has_sampled
    first = changes_in(log)[0]
    times, _ = rows_of(log, "IP_SEND")
    assert len(times) and not (times > first.after_ns).any()
    check_sample(lean, "SOCK_SEND", 1, 1)
