# SPDX-License-Identifier: Apache-2.0
"""tcpkmon daemon: real captures under a socket in place of systemd's."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import verify_file
from tests.live.daemons import Daemon
from tests.live.faults import RECEIVE_CALL, Flood, Space, verify, wait_until

CAPTURE = """
[capture.calls]
locations = ["RECEIVE_CALL"]
columns = ["classic", "cpu", "serial", "time_ns"]
netns = ["{space}"]
ports = {ports}
output = "@/calls"
"""


def calls_in(path: Path) -> int:
    with tcpkmon.open(path) as capture:
        return int((capture.column("location") == RECEIVE_CALL).sum())


def test_a_filter_changes_without_a_gap(daemon: Daemon, space: Space) -> None:
    with Flood(space) as flood:
        daemon.configure(CAPTURE.format(space=space.path, ports=[flood.port]))
        daemon.start()
        flood.begin(0, rate=20_000)
        flood.advance(2000)
        for more in (1, 2, 3):
            daemon.configure(CAPTURE.format(space=space.path, ports=[flood.port, more]))
            done = daemon.command("reload")
            assert done.stdout == b"calls: changed while it goes on: filters\n", done.stderr
        flood.advance(2000)
        made = flood.halt()
        daemon.configure(CAPTURE.format(space=space.path, ports=[1]))
        assert daemon.command("reload").code == 0
        flood.burst(0, 500)
        assert daemon.finish().code == 0
    (path,) = daemon.files("calls")
    verify(path, 0)
    assert calls_in(path) == made
    with open_capture(path) as capture:
        changes = [one for _, one in capture.controls() if isinstance(one, Change)]
    assert [(one.kind, one.old, one.new) for one in changes] == [
        (ChangeKind.FILTERS, *counts) for counts in ((3, 4), (4, 4), (4, 4), (4, 3))
    ]


def test_the_next_file_names_the_filters(daemon: Daemon, space: Space) -> None:
    with Flood(space) as flood:
        for ports in ([flood.port], [flood.port, 1]):
            text = CAPTURE.format(space=space.path, ports=ports)
            daemon.configure(text + "[capture.calls.rotation]\nevery = '1h'\n")
            if len(ports) == 1:
                daemon.start()
                flood.begin(0, rate=5_000)
                flood.advance(500)
        assert daemon.command("reload").code == 0
        flood.advance(2000)
        made = flood.halt()
        assert daemon.finish().code == 0
    files = daemon.files("calls")
    found = []
    for path in files:
        with open_capture(path) as capture:
            found.append(sorted(capture.settings["filters"]["ports"]))
    assert found == [[flood.port], sorted([flood.port, 1])]
    folder = daemon.folder / "calls"
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0, chain.problems
    assert sum(map(calls_in, files)) == made


def numbers_in(path: Path) -> set[int]:
    """The numbers of a flood's calls."""
    with tcpkmon.open(path) as capture:
        is_call = capture.column("location") == RECEIVE_CALL
        return {int(value) - 1 for value in capture.column("callvalue")[is_call]}


def test_another_takes_over_without_a_gap(daemon: Daemon, space: Space) -> None:
    with Flood(space) as flood:
        text = CAPTURE.format(space=space.path, ports=[flood.port])
        daemon.configure(text)
        daemon.start()
        before = daemon.status()["calls"]["pid"]
        flood.begin(0, rate=5_000)
        flood.advance(1000)
        # What cannot be attached changes nothing: the one before goes on.
        (daemon.folder / "file").touch()
        daemon.configure(text.replace("@/calls", "@/file"))
        assert b"relieved" in daemon.command("reload").stdout
        daemon.says("could not be attached as it is configured now; the one before goes on")
        assert daemon.status()["calls"]["pid"] == before
        for low_water in (40, 50):
            daemon.configure(text + f"low_water = {low_water}\n")
            done = daemon.command("reload")
            assert done.stdout == (
                b"calls: relieved by another, which is attached first: low_water changed\n"
            )
        wait_until(
            lambda: len(daemon.files("calls")) > 1
            and daemon.status()["calls"]["state"] == "is attached",
            "another is attached", 20,
        )  # fmt: skip
        flood.advance(1000)
        made = flood.halt()
        assert daemon.status()["calls"]["pid"] != before
        assert daemon.finish().code == 0
    files = daemon.files("calls")
    for path in files:
        verify(path, 0)
    found = [numbers_in(path) for path in files]
    assert set().union(*found) == set(range(made))
    assert max(map(len, found)) < made


def test_what_systemd_is_told(daemon: Daemon, space: Space) -> None:
    daemon.configure(CAPTURE.format(space=space.path, ports=[5001]))
    ready_s = daemon.start().told[-1][0]
    daemon.hears("WATCHDOG=1", ready_s)
    daemon.hears("STATUS=0 records/s, 0 lost", ready_s)
    (pid,) = [one["pid"] for one in daemon.status().values()]
    os.kill(pid, signal.SIGSTOP)  # it drains no more: the watchdog is not told
    try:
        stopped_s = time.monotonic() + 6  # HEARD_S, and a second
        time.sleep(7.5)
        assert not [at for at, lines in daemon.told if at > stopped_s and "WATCHDOG=1" in lines]
    finally:
        os.kill(pid, signal.SIGCONT)
    daemon.hears("WATCHDOG=1", stopped_s)
    before_s = time.monotonic()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.hears("RELOADING=1", before_s)
    daemon.hears("READY=1", before_s)
    second = daemon.command("daemon", "--config", str(daemon.config))
    assert (second.code, second.lines) == (
        2, [f"tcpkmon: a daemon runs already, as process {daemon.process.pid}; "
            "tcpkmon reload applies what changed"],
    )  # fmt: skip
    assert daemon.finish().code == 0
    assert not list((daemon.folder / "run").iterdir())


def test_reload_restarts_what_cannot_change(daemon: Daemon, space: Space) -> None:
    text = CAPTURE.format(space=space.path, ports=[5001])
    daemon.configure(text)
    daemon.start()
    (before,) = [one["pid"] for one in daemon.status().values()]
    daemon.configure(text + "low_watr = 50\n")
    refused = daemon.command("reload")
    assert refused.code == 2
    assert refused.lines[0].endswith("low_watr: no such key (did you mean 'low_water'?)")
    daemon.configure(text + "low_water = 50\n[capture.more]\noutput = '@/more'\nports = 5002\n")
    done = daemon.command("reload")
    assert done.stdout == (
        b"calls: relieved by another, which is attached first: low_water changed\nmore: started\n"
    )
    wait_until(
        lambda: [one["state"] for one in daemon.status().values()] == ["is attached"] * 2,
        "both attached", 20,
    )  # fmt: skip
    assert daemon.status()["calls"]["pid"] != before
    daemon.configure(text)
    assert b"more: ended, as it is not in the configuration" in daemon.command("reload").stdout
    wait_until(lambda: "more" not in daemon.status(), "the other capture ended", 20)
    for path in (*daemon.files("more"), daemon.files("calls")[0]):
        verify(path, 0)


def test_a_capture_that_dies_is_started_again(daemon: Daemon, space: Space) -> None:
    with Flood(space) as flood:
        daemon.configure(
            CAPTURE.format(space=space.path, ports=[flood.port])
            + 'rings = "perf"\n'  # they end with their process: the next one begins anew
            + "[capture.calls.rotation]\nevery = '1h'\n"
        )
        daemon.start()
        flood.begin(0, rate=5_000)
        flood.advance(15_000)
        pid = daemon.status()["calls"]["pid"]
        os.kill(pid, signal.SIGKILL)
        daemon.says("capture calls ended by SIGKILL; it is started again in 0 s")
        daemon.replaced(pid)
        daemon.says("of a capture that was killed")
        flood.advance(1000)
        flood.halt()
        assert daemon.finish().code == 0
    first, second = daemon.files("calls")
    killed = verify_file(first)
    assert killed.exit_code in {0, 3}, killed.problems
    verify(second, 0)
    before, after = numbers_in(first), numbers_in(second)
    assert len(before) > 5000
    assert before == set(range(len(before)))
    assert max(before) < min(after)
    assert after == set(range(min(after), max(after) + 1))
    index = [json.loads(line) for line in (daemon.folder / "calls/index.jsonl").open()]
    assert [(one["what"], one["name"]) for one in index] == [
        ("repaired", first.name), ("sealed", second.name),
    ]  # fmt: skip


def test_a_signal_is_for_the_flight_recorders(daemon: Daemon, space: Space) -> None:
    with Flood(space) as flood:
        daemon.configure(
            CAPTURE.format(space=space.path, ports=[flood.port])
            + "[capture.calls.recorder]\nlast = '30s'\nafter = '100ms'\n"
        )
        daemon.start()
        flood.burst(0, 500)
        time.sleep(0.5)
        assert not daemon.files("calls")
        daemon.process.send_signal(signal.SIGUSR2)
        (path,) = wait_until(lambda: daemon.files("calls"), "a dump", 20)
        assert daemon.finish().code == 0
    assert numbers_in(path) == set(range(500))


@pytest.mark.full
def test_what_was_killed_just_now_is_repaired_when_it_is_quiet(
    daemon: Daemon, space: Space
) -> None:
    """The daemon and all its processes are killed, and it is started again at once."""
    rotation = "[capture.calls.rotation]\nevery = '1h'\n"
    daemon.configure(CAPTURE.format(space=space.path, ports=[5001]) + rotation)
    daemon.start()
    pid = daemon.status()["calls"]["pid"]
    daemon.process.kill()
    os.killpg(pid, signal.SIGKILL)
    daemon.process.wait()
    (hidden,) = (daemon.folder / "calls").glob(".*.part")
    daemon.told.clear()
    daemon.start()
    assert hidden.exists()
    wait_until(lambda: not hidden.exists(), "it is repaired", 30)
    assert daemon.finish().code == 0
    assert len(daemon.files("calls")) == 2
