# SPDX-License-Identifier: Apache-2.0
"""A capture's process that was taken over, beside one that goes on: the daemon serves the other.

The test takes the worker's end of the channel, and sends in its place.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.live.daemons import Daemon
from tests.live.faults import FULL, GUEST, Flood, Space, wait_until
from tests.live.test_daemon_live import calls_in

CONFIG = """
[capture.calls]
locations = ["RECEIVE_CALL"]
columns = ["classic", "cpu", "serial", "time_ns"]
netns = ["{space}"]
ports = [{port}]
output = "@/calls"
[capture.calls.rotation]
every = "1h"
[capture.bad]
locations = ["RECEIVE_CALL"]
ports = {bad}
output = "@/bad"
"""
ANSWER_S = 10.0 if GUEST else 3.0
"""The supervisor answers within it."""
SPOKEN_S = (12.0 if FULL else 6.0) * float(os.environ.get("TCPKMON_HOSTILE", "1"))
_PIDFD_GETFD, _PIDFD_OPEN = 438, 434
DRAINED = {"what": "drained", "records": 1, "lost": 0}


def channel_of(pid: int, supervisor: int) -> socket.socket:
    """A copy of a worker's end of its channel: the packet socket that the supervisor made."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(_PIDFD_OPEN, pid, 0)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                continue
            fd = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
            assert fd >= 0, os.strerror(ctypes.get_errno())
            found = socket.socket(fileno=fd)
            if found.family == socket.AF_UNIX and found.type == socket.SOCK_SEQPACKET:
                raw = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if struct.unpack("=iII", raw)[0] == supervisor:
                    return found
            found.close()
    finally:
        os.close(pidfd)
    raise AssertionError("no channel")


def say(what: object) -> Callable[[socket.socket], None]:
    line = what if isinstance(what, bytes) else json.dumps(what).encode()
    return lambda end: void(end.send(line))


def void(_: object) -> None:
    """For its effect."""


def flood(end: socket.socket) -> None:
    line = json.dumps(DRAINED).encode()
    until_s = time.monotonic() + 20
    with suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() < until_s:
            end.send(line)
        raise AssertionError("nobody cut it off")


def descriptors(end: socket.socket) -> None:
    """8,000 in parts."""
    with open(os.devnull) as file, suppress(BrokenPipeError, ConnectionResetError):
        fds = array.array("i", [file.fileno()] * 250).tobytes()
        for _ in range(32):
            end.sendmsg([b'{"more": true}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def links(end: socket.socket) -> None:
    """Descriptors that are none, as links."""
    with open(os.devnull) as file:
        names = [f"more/program{number}/0" for number in range(250)]
        socket.send_fds(
            end, [json.dumps({"what": "park", "state": {}, "names": names}).encode()],
            [file.fileno()] * 250,
        )  # fmt: skip


def huge(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, 32, 1 << 24)  # SO_SNDBUFFORCE
    end.send(json.dumps({"what": "anew", "why": "x" * (3 << 20)}).encode())


WORST = {
    "a number of 400 digits": say(b'{"what":"drained","records":1' + b"0" * 400 + b',"lost":0}'),
    "depth": say(b"[" * 100_000),
    "8,000 descriptors": descriptors,
    "no links": links,
    "a huge message": huge,
    "a flood": flood,
}
"""tests/unit/test_daemon_parts.py has more."""


@pytest.fixture
def prompt(daemon: Daemon) -> Daemon:
    """A daemon that starts a capture again at once, and not after 30 s at last."""
    daemon.program = [sys.executable, str(Path(__file__).with_name("wrapped_worker.py"))]
    return daemon


def answers(daemon: Daemon) -> dict[str, dict[str, object]]:
    """The status, which comes at once."""
    began_s = time.monotonic()
    found: dict[str, dict[str, object]] = daemon.status()
    assert time.monotonic() - began_s < ANSWER_S
    return found


def test_a_hostile_process_harms_its_own_capture_alone(prompt: Daemon, space: Space) -> None:
    daemon = prompt
    with Flood(space) as flood_:
        daemon.configure(CONFIG.format(space=space.path, port=flood_.port, bad=[1]))
        daemon.start()
        healthy = daemon.status()["calls"]["pid"]
        flood_.begin(0, rate=20_000)
        before = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        for count, (name, attack) in enumerate(WORST.items(), 1):
            pid = wait_until(
                lambda: (one := daemon.status()["bad"])["state"] == "is attached" and one["pid"],
                "it is attached again", 60,
            )  # fmt: skip
            with channel_of(pid, daemon.process.pid) as end:
                os.kill(pid, signal.SIGSTOP)  # it does not end by itself
                end.settimeout(30)
                with suppress(BrokenPipeError, ConnectionResetError):
                    attack(end)
                wait_until(lambda: answers(daemon)["bad"]["pid"] != pid, f"{name}: cut off", 10)  # noqa: B023
            assert not Path(f"/proc/{pid}").exists(), name
            found = answers(daemon)
            assert found["calls"]["pid"] == healthy and found["calls"]["lost"] == 0, name
            assert found["bad"]["cut_off"] == count, name
        began_s = time.monotonic()
        assert daemon.command("reload").code == 0
        assert time.monotonic() - began_s < 10 * ANSWER_S  # two processes of Python are in it
        wait_until(lambda: answers(daemon)["bad"]["state"] == "is attached", "attached", 60)
        after = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        assert after <= before + 5
        made = flood_.halt()
        assert daemon.finish().code == 0
    folder = daemon.folder / "calls"
    *_, chain = format_of(folder).verify(folder)
    assert (chain.exit_code, chain.problems) == (0, [])
    assert sum(map(calls_in, daemon.files("calls"))) == made
    assert daemon.stderr.count("its process is killed") == len(WORST), daemon.stderr


@pytest.mark.parametrize("seed", first(1, range(2)))
def test_who_speaks_for_a_process_harms_its_capture_alone(
    prompt: Daemon, space: Space, seed: int
) -> None:
    """From its first message on, as root: parked descriptors and states are changed too."""
    daemon = prompt
    with Flood(space) as flood_:
        daemon.configure(CONFIG.format(space=space.path, port=flood_.port, bad=[1]))
        daemon.start()
        healthy = daemon.status()["calls"]["pid"]
        flood_.begin(0, rate=20_000)
        before = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        (daemon.folder / "run" / "bad").write_text(str(seed))
        os.kill(daemon.status()["bad"]["pid"], signal.SIGKILL)
        pids, until_s = set(), time.monotonic() + SPOKEN_S
        while time.monotonic() < until_s:
            found = answers(daemon)
            assert found["calls"]["pid"] == healthy and found["calls"]["lost"] == 0
            pids.add(found["bad"]["pid"])
            time.sleep(0.1)
        assert len(pids) > 3, "it was started again"
        (daemon.folder / "run" / "bad").unlink()
        if pid := answers(daemon)["bad"]["pid"]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: answers(daemon)["bad"]["state"] == "is attached", "honest again", 60)
        assert len(os.listdir(f"/proc/{daemon.process.pid}/fd")) <= before + 60
        made = flood_.halt()
        assert daemon.finish().code == 0
    folder = daemon.folder / "calls"
    *_, chain = format_of(folder).verify(folder)
    assert (chain.exit_code, chain.problems) == (0, [])
    assert sum(map(calls_in, daemon.files("calls"))) == made


@pytest.mark.full
def test_captures_that_stand_still_hold_no_reload_up(daemon: Daemon, space: Space) -> None:
    """Each would be waited for 5 s, and systemd's watchdog waits 30 s for all."""
    text = "".join(
        f'[capture.c{n}]\nlocations = ["RTO"]\nports = [@@]\noutput = "@/c{n}"\n' for n in range(4)
    )
    daemon.configure(text.replace("@@", "1"))
    daemon.start()
    pids = [one["pid"] for one in daemon.status().values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    daemon.configure(text.replace("@@", "2"))
    done: list[bytes] = []
    began_s = time.monotonic()
    reload = threading.Thread(target=lambda: done.append(daemon.command("reload").stdout))
    reload.start()
    try:
        while reload.is_alive():
            answers(daemon)
            time.sleep(0.1)
        assert 4 < time.monotonic() - began_s < 15, "they are asked at the same time"
        assert done[0].count(b"did not answer within 5 s") == 4
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        reload.join()
    assert daemon.finish().code == 0


def test_a_client_that_drips_holds_nobody_up(daemon: Daemon, space: Space) -> None:
    daemon.configure(CONFIG.format(space=space.path, port=1, bad=[1]))
    daemon.start()
    clients = []
    for line in (b'{"op": "st', b"", b"[" * 60_000 + b"\n", b'{"op":[]}\n', b"x" * 100_000) * 8:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(ANSWER_S * 5)
        client.connect(str(daemon.folder / "run" / "daemon.sock"))
        with suppress(BrokenPipeError, ConnectionResetError):
            client.send(line)
        clients.append(client)
        answers(daemon)
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        for client in clients:
            with suppress(OSError):
                client.send(b"x")
        answers(daemon)
        time.sleep(0.3)
    for client in clients:
        client.close()
    answers(daemon)
    assert daemon.finish().code == 0
