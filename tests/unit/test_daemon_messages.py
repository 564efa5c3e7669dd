# SPDX-License-Identifier: Apache-2.0
"""A capture's process that was taken over sends what it likes: the supervisor stays as it is."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tcpkmon.collector.daemon.channel import pair
from tcpkmon.collector.daemon.child import Child, State
from tcpkmon.collector.daemon.held import Held
from tcpkmon.collector.daemon.messages import Ear
from tcpkmon.collector.daemon.supervisor import Supervisor
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.daemon.telling import Telling
from tcpkmon.collector.linux.syscalls import perf_event_open
from tests.descriptors import descriptors

DRAINED = {"what": "drained", "records": 1, "lost": 0}
HUGE = json.loads("1" + "0" * 400)


@dataclass
class Heard:
    """A capture that is attached, and its process's end of the channel."""

    child: Child
    end: socket.socket

    def says(self, what: object, *fds: int) -> None:
        """Send this, and let the supervisor hear it."""
        line = what if isinstance(what, bytes) else json.dumps(what).encode()
        if fds:
            socket.send_fds(self.end, [line], fds)
        else:
            self.end.send(line)
        self.child.hear()

    def tells(self) -> None:
        """What systemd is told of it, and who asks."""
        Telling(Systemd({})).tell([self.child], True)
        nobody = type("Nobody", (), {"_children": {"calls": self.child}})
        json.dumps(Supervisor.status(nobody), allow_nan=False)  # type: ignore[arg-type]


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    held = Held(Systemd({}), "calls", {})
    held.add({"path": "p"}, ["link/f/0"], [os.open(os.devnull, os.O_RDONLY)], trusted=True)
    child = Child("calls", {"folder": str(tmp_path), "table": {}}, None, held)
    child.state = State.ATTACHED
    ours, theirs = pair()
    child.channel = ours
    with socket.socket(fileno=os.dup(theirs.fileno())) as end:
        theirs.close()
        yield Heard(child, end)
    held.close()
    if child.channel is not None:
        child.channel.close()


@pytest.mark.parametrize(
    "what",
    [
        {**DRAINED, "records": HUGE}, {**DRAINED, "lost": -HUGE}, {**DRAINED, "records": -1},
        {**DRAINED, "records": float("inf")}, {**DRAINED, "records": float("nan")},
        {**DRAINED, "records": "1"}, {**DRAINED, "records": True}, {**DRAINED, "records": 1.5},
        {**DRAINED, "records": None}, {**DRAINED, "records": [1]}, {**DRAINED, "more": 1},
        {"what": "drained", "records": 1}, {"what": "gone"}, {"what": None}, {"what": ["ready"]},
        {"what": "park", "state": {"path": "q"}, "names": []},
        {"what": "park", "state": {}, "names": [["x"]]},
        {"what": "went on", "killed": float("inf")}, {"what": "anew", "why": "x" * 5000},
        {"more": True}, b'{"what": "drained", "records": 1' + b"0" * 5000 + b', "lost": 0}',
        b"[" * 100_000, b"\xff", b"1",
    ],
)  # fmt: skip
def test_what_is_no_message_cuts_the_process_off(heard: Heard, what: object) -> None:
    heard.says(DRAINED)
    heard.says(what)
    heard.tells()
    (said,) = heard.child.said
    assert said.startswith("sent ") and said.endswith(": its process is killed"), said
    assert (heard.child.channel, heard.child.records, heard.child.cut_off) == (None, 1, 1)
    assert (heard.child.held.fds, heard.child.held.state) == ({}, {}), "nothing is gone on with"


def test_the_process_is_killed(heard: Heard) -> None:
    stuck = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)\n" \
            "time.sleep(60)"  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", stuck], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    heard.child._process = process
    heard.says({"what": "nothing"})
    assert process.wait(10) == -9
    process.stdout.close()


def test_a_flood_is_cut_off(heard: Heard) -> None:
    heard.end.setblocking(False)
    sent, end_s = 0, time.monotonic() + 20
    while heard.child.channel is not None and time.monotonic() < end_s:
        heard.says(DRAINED)
        sent += 1
    assert heard.child.channel is None and sent < 5000
    assert heard.child.said == ["sent more than 1,000 messages at once: its process is killed"]


def test_a_supervisor_that_stood_still_cuts_nobody_off(heard: Heard) -> None:
    """What fills the socket is heard at once."""
    heard.end.setblocking(False)
    sent = 0
    try:
        while True:
            heard.end.send(json.dumps(DRAINED).encode())
            sent += 1
    except BlockingIOError:
        pass
    assert 50 < sent < 900
    assert heard.child.channel is not None
    while heard.child.channel is not None and heard.child.channel.has_more():
        heard.child.hear()
    assert heard.child.said == []


def test_descriptors_that_are_no_links_are_closed(heard: Heard) -> None:
    before = len(descriptors())
    with open(os.devnull) as file:
        names = [f"more/f{number}/0" for number in range(250)]
        heard.says({"what": "park", "state": {}, "names": names}, *[file.fileno()] * 250)
    assert heard.child.channel is None
    assert len(descriptors()) == before - 2, "its channel and what it held"


@pytest.mark.parametrize("depth", [40, 900, 949, 970, 1200])
def test_a_state_that_can_be_read_can_be_written(heard: Heard, depth: int) -> None:
    """It is stored, and told to the next process, where more calls are under way."""
    heard.child._ear = Ear(trusted=True)
    state = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    with open(os.devnull) as file:
        heard.says(b'{"what":"park","state":' + state + b',"names":["journal"]}', file.fileno())
    json.dumps({"parked": {"state": heard.child.held.state}})
    assert heard.child.cut_off == 1


def test_a_link_that_is_attached_later_is_held(heard: Heard) -> None:
    try:  # the task clock: what a probe in user space is attached by is of its kind
        fd = perf_event_open(struct.pack("=IIQ", 1, 64, 1).ljust(64, b"\0"), -1, 0)
    except OSError as error:
        pytest.skip(f"no perf event: {error}")
    heard.says({"what": "park", "state": {}, "names": ["more/f/0"]}, fd)
    os.close(fd)
    assert heard.child.said == [] and list(heard.child.held.fds) == ["link/f/0", "more/f/0"]


def test_parts_of_a_message_are_not_waited_for(heard: Heard) -> None:
    """Eight thousand descriptors in parts that have no end; each would be held."""
    before = len(descriptors())
    began_s = time.monotonic()
    with open(os.devnull) as file:
        for _ in range(32):
            if heard.child.channel is not None:
                heard.says({"more": True}, *[file.fileno()] * 250)
    assert time.monotonic() - began_s < 0.9
    assert len(descriptors()) <= before


def test_a_huge_message_is_not_read(heard: Heard) -> None:
    heard.end.setsockopt(socket.SOL_SOCKET, 32, 1 << 24)  # SO_SNDBUFFORCE
    try:
        heard.says({"what": "anew", "why": "x" * (1 << 20)})
    except OSError:
        pytest.skip("only root sends so much at once")
    assert heard.child.said == ["sent a message of more than 256 KiB: its process is killed"]


def test_who_is_attached_does_not_begin_again(heard: Heard) -> None:
    heard.says({"what": "ready"})
    assert heard.child.channel is not None
    heard.says({"what": "anew", "why": "so"})
    assert heard.child.channel is None


def lingering() -> tuple[socket.socket, socket.socket]:
    """A socket whose close() waits for 5 s, and the other end, which reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    near.setblocking(False)
    with suppress(BlockingIOError):
        while near.send(bytes(1 << 16)):
            pass
    return near, far


@pytest.mark.parametrize("heard_first", (True, False))
def test_a_socket_that_lingers_holds_nobody_up(heard: Heard, heard_first: bool) -> None:
    """Refused, or left in the channel when that is closed."""
    near, far = lingering()
    line = json.dumps({"what": "park", "state": {}, "names": ["more/f/0"]}).encode()
    socket.send_fds(heard.end, [line], [near.fileno()])
    near.close()
    began_s = time.monotonic()
    assert heard.child.channel is not None
    if heard_first:
        heard.child.hear()
        assert heard.child.cut_off == 1
    else:
        heard.child.channel.close()
    assert time.monotonic() - began_s < 2
    far.close()
