# SPDX-License-Identifier: Apache-2.0
"""The daemon's smaller parts: what systemd is told, messages, the unit file."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
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
from tcpkmon.collector.daemon.child import STEADY_S, Child, State
from tcpkmon.collector.daemon.held import Held, Stored
from tcpkmon.collector.daemon.messages import Ear
from tcpkmon.collector.daemon.supervisor import Supervisor
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.daemon.telling import Telling
from tcpkmon.collector.linux.privileges import CAPABILITIES
from tcpkmon.collector.linux.syscalls import perf_event_open
from tests.descriptors import descriptors

UNIT = Path(__file__).resolve().parents[2] / "collector" / "daemon" / "tcpkmon.service"


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        systemd = Systemd(environment)
        before_us = time.monotonic_ns() // 1000
        systemd.reloading()
        systemd.tell("READY=1", "STATUS=5 records/s")
        lines = listener.recv(4096).decode().split("\n")
        assert lines[0] == "RELOADING=1"
        assert before_us <= int(lines[1].removeprefix("MONOTONIC_USEC=")) <= before_us + 10**7
        assert listener.recv(4096) == b"READY=1\nSTATUS=5 records/s"
    systemd.tell("READY=1")  # it is away: no error
    Systemd({}).tell("READY=1")


def test_descriptors_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with datagrams as listener, open(tmp_path / "a", "w+") as file:
        listener.bind(str(tmp_path / "notify"))
        systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        held = Held(systemd, "web", {"ports": 80})
        held.add({"path": "p"}, ["map/m"], [os.dup(file.fileno())], trusted=True)
        got = [socket.recv_fds(listener, 4096, 4) for _ in range(2)]
        names = [data.decode().split("\n") for data, _, _, _ in got]
        assert [lines[0] for lines in names] == ["FDSTORE=1"] * 2
        assert [lines[2] for lines in names] == ["FDPOLL=0"] * 2
        prefix = names[0][1].removesuffix("/state")
        assert names[1][1] == f"{prefix}/map/m"
        stored = [(lines[1].removeprefix("FDNAME="), fds[0]) for lines, (_, fds, _, _) in
                  zip(names, got, strict=True)]  # fmt: skip
        monkeypatch.setattr(Systemd, "stored", lambda _: stored)
        found = Stored(systemd)
        assert not found.take("other", {"ports": 80}).fds
        again = found.take("web", {"ports": 80})
        assert (again.state, list(again.fds)) == ({"path": "p"}, ["map/m"])
        again.close()
        forgotten = {listener.recv(4096).decode().split("\n")[1] for _ in range(2)}
        assert forgotten == {f"{prefix}/state", f"{prefix}/map/m"}
        held.close()


def test_another_configuration_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state = os.memfd_create("state")
    os.write(state, b'{"state": {"path": "p"}, "table": {"ports": 80}}')
    broken = os.memfd_create("state")
    reader, writer = os.pipe()
    stored = [("web/7/state", state), ("web/7/map/m", reader), ("bad/7/state", broken)]
    monkeypatch.setattr(Systemd, "stored", lambda _: stored)
    found = Stored(Systemd({}))
    assert not found.take("bad", {}).state
    assert not found.take("web", {"ports": 81}).fds
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")  # its only reader was closed
    os.close(writer)


def test_what_systemd_passes_on() -> None:
    code = (
        "import os; from tcpkmon.collector.daemon.systemd import Systemd\n"
        "for name in ('PID', 'FDS', 'FDNAMES'): assert os.environ['LISTEN_' + name]\n"
        "os.environ['LISTEN_PID'] = str(os.getpid() + int(os.environ['OFF']))\n"
        "print(Systemd(os.environ).stored(), 'LISTEN_FDS' in os.environ)"
    )
    for off, said in (("0", "[('a', 3), ('b', 4)] False"), ("1", "[] True")):
        done = subprocess.run(
            ["sh", "-c", 'exec "$0" -c "$1" 3</dev/null 4</dev/null', sys.executable, code],
            env={**os.environ, "LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b",
                 "OFF": off},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == said + "\n"


def test_a_message_has_its_descriptors() -> None:
    one, other = pair()
    pipes = [os.pipe() for _ in range(300)]  # more than the kernel passes in a message
    try:
        assert one.send({"what": "hold"}, [reader for reader, _ in pipes])
        message = other.receive()
        assert message is not None
        assert message.what == {"what": "hold"}
        assert len(message.fds) == len(pipes)
        for (_, writer), fd in zip(pipes, message.fds, strict=True):
            assert not os.get_inheritable(fd)
            os.write(writer, b"%d" % writer)
            assert os.read(fd, 10) == b"%d" % writer
            os.close(fd)
    finally:
        for ends in pipes:
            for end in ends:
                os.close(end)
    one.close()
    assert other.receive() is None
    assert not other.send({})
    other.close()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/usr/bin/tcpkmon", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text("\n".join(one for one in text.splitlines() if "man:" not in one))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_has_the_capabilities_that_tcpkmon_names() -> None:
    lines = UNIT.read_text().splitlines()
    kept = {
        word
        for line in lines
        if line.startswith("CapabilityBoundingSet=")
        for word in line.partition("=")[2].split()
    }
    assert kept == {*CAPABILITIES, "CAP_SETPCAP"}


def test_a_start_of_the_service_asks_for_no_start_of_the_unit_that_it_ends() -> None:
    """systemd drops the end of a unit that the same transaction starts, and the service requires
    these targets."""
    required = {"sysinit.target", "basic.target"}
    for path in UNIT.parent.glob("tcpkmon-early*.service"):
        lines = [line.partition("=") for line in path.read_text().splitlines()]
        wanted = {word for key, _, words in lines if key == "WantedBy" for word in words.split()}
        assert not wanted & required, path
    early = UNIT.with_name("tcpkmon-early.service").read_text()
    assert "Before=tcpkmon.service\n" in early
    assert "Conflicts=shutdown.target tcpkmon.service\n" in early


def test_a_capture_that_cannot_start_again_waits_longer_each_time() -> None:
    """It was attached for long, but that was another process."""
    child = Child("calls", {}, None, Held(Systemd({}), "calls", {}))
    child.was_attached = True
    child._attached_s = time.monotonic() - 2 * STEADY_S
    waits = []
    for state in (State.ATTACHED, *[State.STARTING] * 3):
        child.state = state
        child._process = subprocess.Popen(["false"])
        child._process.wait()
        waits.append(child.reap())
    assert waits == [f"exit code 1; it is started again in {s} s" for s in (0, 1, 2, 5)]


_STARTS_METRICS = """
import sys, time
from tcpkmon.collector.daemon.metrics_process import MetricsProcess
metrics = MetricsProcess()
metrics.adopt({"listen": sys.argv[1]}, None)
metrics.look_after()
print(metrics._process.pid, flush=True)
time.sleep(60)
"""


def test_metrics_end_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    """Nobody else would end them where there is no systemd."""
    at = tmp_path / "metrics.sock"
    words = [sys.executable, "-c", _STARTS_METRICS, f"unix:{at}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        metrics = os.pidfd_open(int(daemon.stdout.readline()))
        try:
            until_s = time.monotonic() + 60
            while not at.exists() and time.monotonic() < until_s:
                time.sleep(0.05)
            assert at.exists()
            assert not select.select([metrics], [], [], 0)[0]
            daemon.kill()
            assert select.select([metrics], [], [], 20)[0], "they go on"
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(metrics, signal.SIGKILL)
            os.close(metrics)


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
