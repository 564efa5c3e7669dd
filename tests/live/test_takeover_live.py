# SPDX-License-Identifier: Apache-2.0
"""A daemon's capture goes on where its process was killed: every call is in its files."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import verify_file
from tcpkmon.formats.verify.report import Report
from tests.full import first
from tests.live.daemons import Daemon
from tests.live.faults import FULL, RECEIVE_CALL, Flood, Space, wait_until
from tests.live.grouped_workload import root_of, run

CAPTURE = """
[capture.calls]
locations = ["RECEIVE_CALL"]
columns = ["classic", "cpu", "serial", "time_ns"]
netns = ["{space}"]
ports = {port}
output = "@/calls"
buffer_size = "16M"
"""
ROTATION = "[capture.calls.rotation]\nevery = '{every}'\n"
ROUNDS = 17 if FULL else 1
KILLS = 3 if FULL else 2
"""In a round: a capture that dies again within a minute waits longer each time."""


def kill_worker(daemon: Daemon, name: str = "calls") -> float:
    """SIGKILL of a capture's process; how long until another goes on [s]."""
    pid = daemon.status()[name]["pid"]
    os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    daemon.replaced(pid, name)
    return time.monotonic() - began_s


def chain_of(folder: Path) -> Report:
    """What verify says of all files together; each of them adds up."""
    reports = format_of(folder).verify(folder)
    for report in reports:
        assert not report.error and not report.problems, (report.path, report.problems)
    return reports[-1]


def calls_in_log(folder: Path) -> np.ndarray:
    """The numbers of the flood's calls, in order."""
    with open_log(folder) as log:
        numbers = [event["callvalue"] for event in log.choose("SNAPSHOT")]
    return np.sort(np.array(numbers)) - 1


def calls_in(paths: list[Path]) -> np.ndarray:
    """The numbers of the flood's calls, in the order of the files."""
    found = []
    for path in paths:
        with tcpkmon.open(path) as capture:
            is_call = capture.column("location") == RECEIVE_CALL
            found.append(capture.column("callvalue")[is_call].astype(np.int64) - 1)
    return np.concatenate(found)


@pytest.mark.parametrize("file_format", ["psc", "klogger"])
@pytest.mark.parametrize("every", first(1, ["1s", "1h"]))
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_record_is_missing(
    daemon: Daemon, space: Space, every: str, number: int, file_format: str
) -> None:
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, port=flood.port)
        text += f"format = '{file_format}'\n"
        daemon.configure(text + ROTATION.format(every=every))
        daemon.start()
        began_ns = time.monotonic_ns()
        flood.begin(0, rate=10_000)
        took = []
        for _ in range(KILLS):
            time.sleep(random.uniform(0.0, 0.4))
            took.append(kill_worker(daemon))
            daemon.says("goes on where its process was killed; 0 records are lost by that")
        time.sleep(0.3)
        made = flood.halt()
        lasted_ns = time.monotonic_ns() - began_ns
        assert daemon.finish().code == 0
    assert "starts anew" not in daemon.stderr
    chain = chain_of(daemon.folder / "calls")
    if chain.unseen_cpu_ns is not None:  # of process 1, also while no collector was there
        assert lasted_ns <= chain.unseen_span_ns
    assert chain.exit_code == 0, (chain.verdict, [row.lost for row in chain.rows], daemon.stderr)
    assert sum(row.in_file for row in chain.rows if row.location == RECEIVE_CALL) == made
    folder = daemon.folder / "calls"
    is_log = file_format == "klogger"
    numbers = calls_in_log(folder) if is_log else calls_in(daemon.files("calls"))
    numbers = numbers[numbers >= 0]  # a log begins with the sockets that exist
    assert np.array_equal(np.sort(numbers), np.arange(made))
    print(f"from SIGKILL to going on: {took} s")


def test_the_whole_daemon_is_killed(daemon: Daemon, space: Space) -> None:
    """The service manager holds what was parked. The third daemon finds another byte code."""
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, port=flood.port) + ROTATION.format(every="1s")
        daemon.configure(text)
        daemon.start()
        flood.begin(0, rate=5_000)
        flood.advance(2_000)
        daemon.kill()
        stored = set(daemon.stored)
        kinds = {name.split("/")[2] for name in stored}
        assert kinds == {"state", "journal", "map", "prog", "link"}
        flood.advance(1_000)
        daemon.start()
        daemon.says("goes on where its process was killed; 0 records are lost by that")
        assert set(daemon.stored) == stored
        flood.advance(1_000)
        made = flood.halt()
        daemon.kill()
        (name,) = [one for one in daemon.stored if one.endswith("/state")]
        found = json.loads(os.pread(daemon.stored[name], 1 << 20, 0))
        found["state"]["digests"]["the byte code"] = "another"
        os.close(daemon.stored[name])
        daemon.stored[name] = os.memfd_create("state")
        os.write(daemon.stored[name], json.dumps(found).encode())
        daemon.start()
        daemon.says("starts anew, not where its process was killed: the byte code changed")
        flood.burst(0, 500)
        now = os.pread(daemon.stored[name], 1 << 20, 0)
        assert json.loads(now)["state"]["digests"]["the byte code"] != "another"
        assert daemon.finish().code == 0
    wait_until(lambda: not daemon.stored, "nothing is stored", 20)
    folder = daemon.folder / "calls"
    wait_until(lambda: all(one.sealed for one in find_segments(folder)), "all are sealed", 20)
    *_, first, second = [one for one in format_of(folder).verify(folder) if one.path == str(folder)]
    assert (first.exit_code, second.exit_code) == (3, 0), first.problems  # an unknown tail
    paths = daemon.files("calls")
    assert np.array_equal(calls_in(paths[-1:]), np.arange(made, made + 500))
    numbers = np.sort(calls_in(paths[:-1]))  # without what was in the rings
    assert np.array_equal(numbers, np.arange(len(numbers)))
    with tcpkmon.open(paths[-1]) as capture:
        assert capture.settings["started_anew"] == "the byte code changed"


@pytest.mark.full
def test_who_is_killed_before_the_daemon_is_ready(daemon: Daemon, space: Space) -> None:
    """It is started again, with what is parked; the other captures notice nothing."""
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, port=flood.port)
        daemon.configure(text + "[capture.other]\nports = 9\noutput = '@/other'\n")
        daemon.start()
        flood.begin(0, rate=5_000)
        flood.advance(1_000)
        daemon.kill()
        daemon.start(is_ready=False)

        def process() -> int | None:
            with suppress(OSError):
                return daemon.status()["calls"]["pid"]
            return None

        os.kill(wait_until(process, "its process", 40), signal.SIGKILL)
        daemon.says("capture calls ended by SIGKILL; it is started again")
        daemon.says("attached: calls, other")
        flood.advance(1_000)
        made = flood.halt()
        assert daemon.finish().code == 0
    assert "starts anew" not in daemon.stderr
    numbers = calls_in(daemon.files("calls"))
    assert np.array_equal(np.sort(numbers[numbers >= 0]), np.arange(made))


@pytest.mark.parametrize("file_format", first(1, ["psc", "klogger"]))
def test_a_file_that_does_not_rotate_goes_on(
    daemon: Daemon, space: Space, file_format: str
) -> None:
    """In the same file. What is switched off stays so."""
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, port=flood.port) + f"format = '{file_format}'\n"
        daemon.configure(text.replace('["RECEIVE_CALL"]', '["RECEIVE_CALL", "SEND_CALL"]'))
        daemon.start()
        pid = daemon.status()["calls"]["pid"]
        done = daemon.command("disable", "SEND_CALL", "--collector", str(pid))
        assert done.code == 0, done.stderr
        flood.begin(0, rate=5_000)
        flood.advance(2_000)
        kill_worker(daemon)
        flood.advance(1_000)
        made = flood.halt()
        assert daemon.finish().code == 0
    (path,) = (daemon.folder / "calls").iterdir()
    is_log = file_format == "klogger"
    report = chain_of(path) if is_log else verify_file(path)
    assert (report.exit_code, report.problems) == (0, [])
    numbers = calls_in_log(path) if is_log else calls_in([path])
    assert np.array_equal(np.sort(numbers[numbers >= 0]), np.arange(made))
    assert "SEND_CALL" not in {row.name for row in report.rows if row.in_file}


@pytest.mark.parametrize("wait_s", first(1, [0.3, 0.05, 0.6, 1.0]))
def test_who_is_killed_while_another_relieves_it(
    daemon: Daemon, space: Space, wait_s: float
) -> None:
    """What its rings hold is taken by another, which then ends."""
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, port=flood.port)
        daemon.configure(text + ROTATION.format(every="1h"))
        daemon.start()
        flood.begin(0, rate=10_000)
        flood.advance(5_000)
        pid = daemon.status()["calls"]["pid"]
        more = text.replace('"cpu", "serial"', '"cpu", "serial", "mss"')
        daemon.configure(more + ROTATION.format(every="1h"))
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
        daemon.replaced(pid)
        flood.advance(5_000)
        made = flood.halt()
        assert daemon.finish().code == 0
    folder = daemon.folder / "calls"
    wait_until(lambda: all(one.sealed for one in find_segments(folder)), "all are sealed", 20)
    numbers = np.unique(calls_in(daemon.files("calls")))
    assert np.array_equal(numbers, np.arange(made)), (made - len(numbers), daemon.stderr)


WHOSE = """
[capture.calls]
columns = ["default", "cgroup"]
ports = {port}
output = "@/calls"
"""


@pytest.mark.full
@pytest.mark.parametrize("file_format", ["psc", "klogger"])
def test_who_goes_on_tells_whose_the_groups_are(daemon: Daemon, file_format: str) -> None:
    """Groups from before the kill, from the time in which no process looks, and from after it."""
    root = root_of(Path("/proc/self/mountinfo").read_text())
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no control group of version 2 can be made here")
    truth: dict[int, str] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def work(name: str) -> None:
            group = root / f"tcpkmon{os.getpid()}{name}.service"
            group.mkdir()
            for one in run(group, port, 5):
                truth[one] = group.name
                server.accept()[0].close()
            wait_until(lambda: _removed(group), "the group is empty", 10)

        daemon.configure(WHOSE.format(port=port) + f"format = '{file_format}'\n")
        daemon.start()
        work("before")
        pid = daemon.status()["calls"]["pid"]
        os.kill(pid, signal.SIGKILL)
        work("meanwhile")
        daemon.replaced(pid)
        work("after")
        assert daemon.finish().code == 0
    assert "starts anew" not in daemon.stderr
    (path,) = (daemon.folder / "calls").iterdir()
    with tcpkmon.open(path) as capture:
        rows = capture.table("connections").to_pylist()
    told = {row["lport"]: row["unit"] for row in rows if row["rport"] == port}
    assert told == truth and len(truth) == 15


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # its last process is not gone yet
        return False
    return True
