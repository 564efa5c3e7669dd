# SPDX-License-Identifier: Apache-2.0
"""A capture above its budget leaves out events step by step, whole connections, and comes back."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.loader.prepare import decide
from tcpkmon.collector.plan.budget import Budget, is_in_sample
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.verify import verify_file
from tests.live.capturing import Records, Running, capturing, wait_until

CONNECTIONS = 48
TURN_S = 0.02
RATE = 320_000
SERVER = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def echo(end):
    while data := end.recv(100):
        end.sendall(data)
while True:
    threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()
"""


class Load:
    """Counted ping-pong on connections of its own, from begin to end of a `with`."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        self.ends = [
            socket.create_connection(("127.0.0.1", self.port)) for _ in range(CONNECTIONS)
        ]
        for end in self.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on = False

    def turn(self) -> None:
        for end in self.ends:
            end.sendall(bytes(100))
        for end in self.ends:
            assert len(end.recv(100, socket.MSG_WAITALL)) == 100

    def _run(self) -> None:
        while self._on:
            self.turn()
            threading.Event().wait(self._turn_s)

    def __enter__(self) -> Load:
        self._on = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self._server.kill()
        self._server.wait()


def level_of(capture: Running) -> int:
    return int(Client(choose(capture.process.pid)).status()["shed_level"])


def settled(capture: Running) -> bool:
    """No step more for longer than one takes."""
    before = level_of(capture)
    threading.Event().wait(1.6)
    return level_of(capture) == before >= 3


def test_steps_samples_and_back(tmp_path: Path) -> None:
    load = Load()
    options = ("--ports", str(load.port), "--max-disk-rate", str(RATE), "--back-after", "1s",
               "--columns", "default,segs_in", "--when-changed", "segs_in")  # fmt: skip
    path = tmp_path / "a.pm"
    try:
        with capturing(path, *options) as capture:
            with load:
                wait_until(lambda: settled(capture))
                shown = Client(choose(capture.process.pid)).status()
            wait_until(lambda: level_of(capture) < shown["shed_level"])
            outcome = capture.stop()
    finally:
        load.close()
    outcome.check_complete()
    report = verify_file(path)
    assert report.exit_code == 0 and not report.problems, report.problems
    assert not report.lost_total and report.totals.shed >= shown["shed_events"] > 0
    assert len(shown["shed_steps"]) == shown["shed_level"]
    assert shown["shed_why"].startswith("disk rate at ")
    steps = outcome.capture.settings["budget"]["steps"]
    assert steps[0].startswith("CONG_STATE"), "a step for calls would leave out nothing here"
    assert steps[1:] == [f"all but 1/{2**n} of the connections" for n in range(1, 7)]
    with tcpkmon.open(path) as capture_file:
        found = [entry for _, entry in capture_file.controls() if isinstance(entry, Change)]
    levels = [one for one in found if one.kind == ChangeKind.SHED]
    most = shown["shed_level"]
    assert [one.new for one in levels[: most + 1]] == [*range(1, most + 1), most - 1]
    assert len(report.shed) == len(levels)
    assert "budget: disk rate at " in outcome.errors and "step 1 of 7 leaves out" in outcome.errors
    check_samples(outcome.records, levels)
    last, back = levels[most - 1 : most + 1]
    inside = outcome.records.pick(
        (outcome.records["time_ns"] > last.after_ns) & (outcome.records["time_ns"] < back.before_ns)
    )
    span_s = (int(inside["time_ns"].max()) - last.after_ns) / 1e9
    assert len(inside) * outcome.capture.header.entry_size / span_s < 1.2 * RATE


def check_samples(records: Records, levels: list[Change]) -> None:
    """While a sample is in force its connections have a record of each segment, others none."""
    for begin, end in pairwise(levels):
        sample = begin.new - 1
        if sample < 1:
            continue
        time_ns = records["time_ns"]
        inside = records.pick((time_ns > begin.after_ns) & (time_ns < end.before_ns))
        ids = [conn for conn in np.unique(inside["conn_id"]).tolist() if conn]
        assert ids and all(is_in_sample(conn, sample) for conn in ids)
        if begin.new > end.new:
            continue  # while it was in force, there was nothing to record at last
        whole = {conn for conn in range(1, 2 * CONNECTIONS + 1) if is_in_sample(conn, sample)}
        assert len(whole & set(ids)) >= len(whole) - 2, "the load has them all at work"
        for conn in ids:
            segs_in = inside.where(conn_id=conn).at("SEGMENT_RECEIVED")["segs_in"]
            if len(segs_in) > 1:
                assert abs(int(segs_in[-1]) - int(segs_in[0]) + 1 - len(segs_in)) <= 1, conn


@pytest.mark.full
def test_without_a_budget_the_programs_have_none(tmp_path: Path) -> None:
    """No map, no counter, and the same programs as of a text without the budget's lines."""
    wish = Request(Filters(), "-", schemata=("tcp",), existing=True)
    plain, bounded = decide(wish), decide(replace(wish, budget=Budget(cpu=0.05)))
    cut = replace(plain, text=without_budget(plain.text))
    assert cut.text != plain.text
    images = [one.compile(one.make_engine()) for one in (plain, cut, bounded)]
    assert images[0] == images[1]
    names = [{spec.name for spec in image.maps} for image in images]
    assert "klogger_shedding" not in names[0] and "klogger_shedding" in names[2]
    assert images[0].programs != images[2].programs


def without_budget(text: str) -> str:
    """The C text without what `#if KLOGGER_SHED...` guards."""
    kept: list[str] = []
    inside: list[bool | None] = []
    """By nesting: False: in a part to leave out, True: in its #else, None: of another #if."""
    for line in text.splitlines():
        word = next(iter(line.split()), "")
        if word in ("#if", "#ifdef", "#ifndef"):
            inside.append(False if "KLOGGER_SHED" in line else None)
            if inside[-1] is False:
                continue
        elif word == "#else" and inside[-1] is False:
            inside[-1] = True
            continue
        elif word == "#endif" and inside.pop() is not None:
            continue
        if False not in inside:
            kept.append(line)
    return "\n".join(kept) + "\n"
