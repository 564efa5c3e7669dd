# SPDX-License-Identifier: Apache-2.0
"""Control of a capture that runs, and who may have it: tried with real users and groups."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.control.access import group_name
from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.control.server import ControlServer
from tcpkmon.collector.linux.privileges import capability_sets
from tests.live.capturing import wait_until
from tests.live.faults import PLACE, at
from tests.live.schema_logs import logging
from tests.live.test_magnet_file import start, stop

NOBODY = 65534
GROUP = 12  # `man` on Debian: a group that exists and that nobody is in
LIMIT_S = 60


class Session:
    """Controls that answer, served by a thread as the session's main one."""

    def __init__(self, folder: Path, group: str | None) -> None:
        self.marks: list[tuple[int, int]] = []
        self._fd = os.eventfd(0)
        self._over = False
        self.server = ControlServer(folder, group, lambda: os.eventfd_write(self._fd, 1))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._over:
            select.select([self._fd], [], [])
            os.eventfd_read(self._fd)
            self.server.serve_pending(self)

    def __enter__(self) -> Session:
        self.server.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        os.eventfd_write(self._fd, 1)
        self._thread.join()
        self.server.close()
        os.close(self._fd)

    def status(self) -> dict[str, Any]:
        return {"pid": os.getpid()}

    def public_status(self) -> dict[str, Any]:
        return {"records": 5}

    def set_enabled(self, names: Sequence[str] | None, on: bool) -> dict[str, Any]:
        return {}

    def mark(self, number: int, pid: int) -> dict[str, Any]:
        self.marks.append((number, pid))
        return {}

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        return {}

    def set_low_water(self, percent: int) -> dict[str, Any]:
        return {}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own, which others may not look into: the socket's mode is what is tested here.
    with tempfile.TemporaryDirectory(prefix="tcpkmon-test-", dir="/run") as made:
        os.chmod(made, 0o755)
        yield Path(made, "run")


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with Session(folder, group_name(GROUP)) as session:
        yield session


AS_USER = """
import os, sys
from tcpkmon.collector.commands.tcpkmon import main
uid, gid, *groups = [int(word) for word in sys.argv.pop(1).split(",")]
os.setgroups(groups)
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
print(os.getpid(), flush=True)
main()
"""


def as_user(
    folder: Path, groups: Sequence[int], *words: str, gid: int = NOBODY
) -> subprocess.CompletedProcess[str]:
    """tcpkmon with these words, run by `nobody` with these groups; first it prints its PID."""
    who = ",".join(map(str, (NOBODY, gid, *groups)))
    return subprocess.run(
        at(PLACE, PLACE / ".venv/bin/python", "-c", AS_USER, who, *words),
        env={"TCPKMON_RUN": str(folder), "PYTHONPATH": str(PLACE), "PATH": os.environ["PATH"],
             "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/", capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "gid"), [((1, GROUP), NOBODY), ((), GROUP)])
def test_a_member_of_the_group_may(
    folder: Path, session: Session, groups: tuple[int, ...], gid: int
) -> None:
    done = as_user(folder, groups, "mark", "7", gid=gid)
    assert (done.returncode, done.stderr) == (0, "")
    assert [number for number, _ in session.marks] == [7]
    assert session.marks[0][1] == int(done.stdout)


def test_everybody_may_read_the_status_and_nothing_else(folder: Path, session: Session) -> None:
    done = as_user(folder, (1, 2), "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.partition("\n")[2]) == {"records": 5, "name": "capture"}
    for words in ("enable", "disable", "mark 7", "buffer-size 1", "lowwater 5"):
        done = as_user(folder, (1, 2), *words.split())
        assert done.returncode == 1
        assert f"root and the members of the group {group_name(GROUP)}" in done.stderr
    assert session.marks == []
    whole = as_user(folder, (GROUP,), "status", "--json")
    assert "pid" in json.loads(whole.stdout.partition("\n")[2]), "who may control it knows more"


def test_what_everybody_knows_of_a_capture(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(folder))
    path = tmp_path / "a.magnet"
    running = start(path, "--data")
    try:
        done = as_user(folder, (), "status", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.partition("\n")[2])
        assert as_user(folder, (), "disable").returncode == 1
        modes = {one.suffix: one.stat().st_mode & 0o777 for one in folder.iterdir()}
        assert modes == {".sock": 0o600, ".status": 0o666, ".name": 0o644}
        assert told["pid"] == running.pid
    finally:
        assert not stop(running, path).problems
    assert not list(folder.iterdir()), "the sockets and the name have gone"
    assert (told["format"], told["schemata"]) == ("klogger", "magnet"), "the file is made later"
    assert told["enabled"] is told["data"] is True
    assert {"SOCK_SEND", "IP_RECV"} <= {row["name"] for row in told["events"]}
    assert set(told) == {
        "name", "tcpkmon", "pid", "format", "schemata", "data", "enabled", "rings", "buffer_bytes",
        "low_water_percent", "records", "bytes", "rates", "ring_fill", "reader_lag_s", "cost",
        "disk_free_bytes", "unproven", "lost", "events",
    }  # fmt: skip


def test_the_peer_counts_not_the_files_mode(folder: Path, session: Session) -> None:
    session.server.path.chmod(0o666)
    done = as_user(folder, (1, 2), "mark", "7")
    assert done.returncode == 1
    assert f"only root and the group {group_name(GROUP)} may ask this" in done.stderr
    assert session.marks == []
    assert as_user(folder, (GROUP,), "mark", "8").returncode == 0


def test_without_a_group_root_alone(folder: Path) -> None:
    with Session(folder, None) as session:
        done = as_user(folder, (0, GROUP), "mark", "7")
        assert "listens to root only" in done.stderr
        assert session.marks == []


def test_the_thread_has_no_capabilities(folder: Path, session: Session) -> None:
    assert as_user(folder, (GROUP,), "enable").returncode == 0
    native = session.server._thread.native_id
    lines = Path(f"/proc/self/task/{native}/status").read_text().splitlines()
    told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert int(told["CapEff"], 16) == int(told["CapPrm"], 16) == 0
    assert told["NoNewPrivs"] == "1"
    assert capability_sets()[0] != 0, "the main thread keeps its own"


STOPWATCH = 0x6B6C6F67
BEGIN, END = 1, 2
OWN = os.getpid() % (1 << 22) << 8
"""Of the stopwatch's ids: other tests may use it at the same time."""
_libc = ctypes.CDLL(None)


def stamp(number: int) -> None:
    """Logs EVENT_START and EVENT_STOP with an id of ours."""
    for operation in (BEGIN, END):
        _libc.prctl(STOPWATCH, ctypes.c_ulong(operation), ctypes.c_ulong(OWN + number), 0, 0)


def test_nothing_is_logged_while_it_is_off(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(folder))
    over = threading.Event()
    pauses = []
    stamped = 0

    def go_on() -> None:
        nonlocal stamped
        while not over.is_set():
            stamp(7)
            stamped += 1
            over.wait(0.0005)

    def some_more() -> None:
        now = stamped
        wait_until(lambda: stamped > now + 2)

    with logging(tmp_path / "log", "stopwatch") as running:
        client = Client(choose())
        stamping = threading.Thread(target=go_on)
        stamping.start()
        try:
            for _ in range(5):
                client.disable()
                begin = time.monotonic_ns()
                some_more()
                pauses.append((begin, time.monotonic_ns()))
                client.enable()
                some_more()
        finally:
            over.set()
            stamping.join()
        log = running.finish()  # which finds that nothing is missing
    times = [int(record["time_ns"]) for record in log.of("EVENT_STOP", id=OWN + 7)]
    for begin, end in pauses:
        assert not [time_ns for time_ns in times if begin <= time_ns <= end]
    for (_, end), (begin, _) in itertools.pairwise(pauses):
        assert [time_ns for time_ns in times if end < time_ns < begin], "it was on in between"
