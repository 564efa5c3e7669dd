# SPDX-License-Identifier: Apache-2.0
"""collect --reconcile with many connections: all are compared, at each rotation, beside the drain.

With TCPKMON_FULL 200,000 sockets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.formats.registry import format_of
from tests.live.capturing import ROOT, WAIT_S
from tests.live.faults import FULL, wait_until
from tests.live.test_many_connections import Program

CONNECTIONS = 100_000 if FULL else 2_000
MOST_S = 5.0 if FULL else 1.0
"""A comparison beside the drain takes at most this time."""
ROUND_S = 0.3
"""No round of the reader may take longer; a ring of the test has room for more."""
MEASURED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tcpkmon.collector.session.reconciling import Reconciling
from tcpkmon.collector.session.capture import Session
begin, step, whole = Reconciling._begin, Session._step, {}
def _begin(self, when):
    work = self._work
    begin(self, when)
    if self._work is not work:
        whole[self] = time.monotonic(), 0.0, int(when)
def _step(self):
    before = time.monotonic()
    step(self)
    one, now = self._reconciling, time.monotonic()
    if one in whole:
        began, longest, when = whole[one]
        whole[one] = began, max(longest, now - before), when
        if one._work is None:
            print("took", when, now - began, whole.pop(one)[1], flush=True)
Reconciling._begin, Session._step = _begin, _step
from tcpkmon.collector.commands import collect
collect.main()
"""


@contextmanager
def held(count: int) -> Iterator[subprocess.Popen[str]]:
    """Connections in a namespace of their own, of which one more is at work."""
    command = 'ip link set lo up && exec "$0" tests/live/connecting.py'
    words = ["unshare", "--net", "sh", "-c", command, sys.executable]
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        program = Program(process)
        program.do(f"hold {count}")
        program.do("work")
        yield process
    finally:
        process.communicate()


@pytest.mark.timeout(300)
def test_all_are_compared_at_each_rotation(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    read, write = os.pipe()
    told = tmp_path / "told"
    with held(CONNECTIONS) as holder, told.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-c", MEASURED, "-q", "--reconcile", "--columns", "full",
             "--netns", str(holder.pid), "--rotate-every", "1s", "-o", str(folder),
             "--ready-fd", str(write)],
            cwd=ROOT, pass_fds=[write], stdout=output,
        )  # fmt: skip
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            assert ready.read(1)
        wait_until(lambda: told.read_text().count("took 2") >= 2, "two comparisons", WAIT_S)
        running.send_signal(signal.SIGINT)
        assert running.wait(WAIT_S) == 0
    lines = [line.split()[1:] for line in told.read_text().splitlines()]
    print(f"{CONNECTIONS} connections:", lines)
    for when, took, longest in lines:
        assert float(took) < MOST_S
        assert float(longest) < ROUND_S, when
    *parts, chain = format_of(folder).verify(folder)
    assert all(part.exit_code == 0 for part in (*parts, chain)), chain.problems
    assert chain.lost_total == 0
    notes = [note for part in parts for note in part.notes if note.startswith("reconciled")]
    print("\n".join(notes))
    at_rest, all_of = 2 * CONNECTIONS, 2 * CONNECTIONS + 2
    counts = f"of {all_of} connections compared, 0 difference(s)"
    for when in ("at the start", "after the rotation", "at the end"):
        some = [note for note in notes if when in note]
        assert some, when
        for note in some:
            assert note.endswith(counts), note
            assert int(note.split(": ")[1].split()[0]) >= at_rest, note
