# SPDX-License-Identifier: Apache-2.0
"""The daemon's smaller parts: what systemd is told, messages, the unit file."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.daemon.channel import pair
from tcpkmon.collector.daemon.child import STEADY_S, Child, State
from tcpkmon.collector.daemon.held import Held, Stored
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.linux.privileges import CAPABILITIES

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
