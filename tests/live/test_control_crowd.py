# SPDX-License-Identifier: Apache-2.0
"""Members of the control group, as real users, try to keep others out and to fill the disk."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.collector.control.access import group_name
from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tcpkmon.formats.registry import format_of
from tests.live.faults import COLLECT, GUEST, environment, wait_until
from tests.live.test_control_live import GROUP, Session, folder

__all__ = ["folder"]
HOSTILE, OTHER = 65533, 65532
ANSWER_S = 20.0 if GUEST else 10.0
_BECOME = """
import json, os, socket, sys, threading, time
uid, path, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
os.setgroups([])
os.setresgid({gid}, {gid}, {gid})
os.setresuid(uid, uid, uid)
until = time.monotonic() + seconds
def connect():
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(path)
    return made
"""
HALF = """
def hold():
    held = []
    while time.monotonic() < until:
        try:
            one = connect()
            one.sendall(b'{"op": "mar')
            held = [*held[-30:], one]
        except OSError:
            time.sleep(0.001)
threads = [threading.Thread(target=hold) for _ in range(40)]
for each in threads: each.start()
print(flush=True)
for each in threads: each.join()
"""
FILTERS = """
done = 0
while time.monotonic() < until:
    ports = str(done % 5 + 1)
    one = connect()
    one.sendall(json.dumps({"op": "set-filters", "filters": {"ports": ports}}).encode() + b"\\n")
    answer = json.loads(one.makefile().readline())
    assert answer["ok"], answer
    done += 1
print(done, flush=True)
"""
ONE = """
one = connect()
one.sendall(b'{"op": "mark", "number": 5}\\n')
print(json.loads(one.makefile().readline())["ok"], flush=True)
"""


def start(code: str, uid: int, path: Path, seconds: float) -> subprocess.Popen[str]:
    """A member of the group that runs this."""
    whole = _BECOME.replace("{gid}", str(GROUP)) + code
    return subprocess.Popen(
        ["/usr/bin/python3", "-c", whole, str(uid), str(path), str(seconds)],
        stdout=subprocess.PIPE, text=True, cwd="/", stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def hostile(code: str, path: Path, seconds: float) -> Iterator[None]:
    process = start(code, HOSTILE, path, seconds)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(GUEST, reason="40 threads of a user take all of an emulated CPU")
def test_half_requests_keep_nobody_out(folder: Path) -> None:
    with Session(folder, group_name(GROUP)) as session, hostile(HALF, session.server.path, 30):
        client = Client(choose(folder=folder), ANSWER_S)
        for number in range(10):
            began_s = time.monotonic()
            assert client.mark(number) == {}, "root"
            assert time.monotonic() - began_s < ANSWER_S
        assert [number for number, _ in session.marks] == list(range(10))


def test_one_user_takes_not_all_places(folder: Path) -> None:
    """Without a crowd before the door, which is the kernel's."""
    few = HALF.replace("range(40)", "range(1)").replace("held = [*", "time.sleep(0.05); held = [*")
    with Session(folder, group_name(GROUP)) as session, hostile(few, session.server.path, 30):
        time.sleep(1.5)
        for _ in range(5):
            other = start(ONE, OTHER, session.server.path, 30)
            out, _ = other.communicate(timeout=30)
            assert out == "True\n"


def test_other_filters_of_the_group_make_no_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three files that are kept, none would be root's."""
    monkeypatch.setenv("TCPKMON_RUN", str(folder))
    out = tmp_path / "out"
    words = ["--ports", "1", "-o", str(out), "--rotate-every", "1h", "--keep-files", "3",
             "--control-group", group_name(GROUP)]  # fmt: skip
    process = subprocess.Popen([COLLECT, *words], env=environment(), stdin=subprocess.DEVNULL)
    try:
        path = folder / f"{process.pid}.sock"
        wait_until(path.exists, "it listens")
        wait_until(lambda: len(list(out.glob(".*.part"))) == 1, "it records")
        asking = start(FILTERS, HOSTILE, path, 4)
        done, _ = asking.communicate(timeout=60)
        assert int(done) >= 5
        assert not list(out.glob("*.pm")), "the first file goes on"
        result = Client(choose(process.pid)).ask({"op": "set-filters", "filters": {"ports": "7"}})
        assert result == {"filters": {"ports": [7]}}
        wait_until(lambda: len(list(out.glob("*.pm"))) == 1, "root's begin the next one", 20)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    *_, chain = format_of(out).verify(out)
    assert (chain.exit_code, chain.problems) == (0, [])
    assert not list(folder.iterdir()), "its sockets have gone"
