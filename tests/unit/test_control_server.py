# SPDX-License-Identifier: Apache-2.0
"""The control socket: what it takes, what it refuses, and that nobody can hold it up."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands import openmetrics, tcpkmon
from tcpkmon.collector.control import access, lines, onlookers, server
from tcpkmon.collector.control.access import Peer, listen, peer_of
from tcpkmon.collector.control.client import Client, Collector
from tcpkmon.collector.control.lines import CLIENTS, REQUEST_BYTES
from tcpkmon.collector.control.server import ControlServer
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tests.descriptors import descriptors

LIMIT_S = 60.0


class Recording:
    """Controls that note what was called, and refuse the event NO."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def status(self) -> dict[str, Any]:
        self.calls.append(("status",))
        return {"pid": os.getpid(), "text": "x" * 500_000}

    def public_status(self) -> dict[str, Any]:
        self.calls.append(("public",))
        return {"records": 1}

    def set_enabled(self, names: Sequence[str] | None, on: bool) -> dict[str, Any]:
        if names and "FAIL" in names:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if names and "NO" in names:
            raise UsageError("unknown event 'NO'", "try another")
        self.calls.append(("enabled", names, on))
        return {}

    def mark(self, number: int, pid: int) -> dict[str, Any]:
        self.calls.append(("mark", number, pid))
        return {}

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        self.calls.append(("buffer", n))
        return {}

    def set_low_water(self, percent: int) -> dict[str, Any]:
        self.calls.append(("low", percent))
        return {}


class Running:
    """A server whose "session" waits as the real one does: on a descriptor that `wake` writes."""

    def __init__(self, folder: Path) -> None:
        self.controls = Recording()
        self._wake_fd = os.eventfd(0)
        self.server = ControlServer(folder, None, lambda: os.eventfd_write(self._wake_fd, 1))

    def serve(self) -> None:
        assert select.select([self._wake_fd], [], [], LIMIT_S)[0], "nobody woke the session"
        os.eventfd_read(self._wake_fd)
        self.server.serve_pending(self.controls)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LIMIT_S)
        connection.connect(os.fspath(self.server.path))
        return connection

    def ask(self, request: object, serve: bool = True) -> dict[str, Any]:
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        with self.connect() as connection:
            connection.sendall(line)
            if serve:
                self.serve()
            return answer_of(connection)

    def close(self) -> None:
        self.server.close()
        os.close(self._wake_fd)


def answer_of(connection: socket.socket) -> dict[str, Any]:
    said = b""
    while not said.endswith(b"\n"):
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        assert part, f"no answer, only {said!r}"
        said += part
    answer: dict[str, Any] = json.loads(said)
    return answer


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "run")
    with running.server:
        yield running
    running.close()


@pytest.mark.parametrize(
    ("request_", "call"),
    [
        ({"op": "enable", "events": None}, ("enabled", None, True)),
        ({"op": "enable"}, ("enabled", None, True)),
        ({"op": "disable", "events": ["A", "B"]}, ("enabled", ["A", "B"], False)),
        ({"op": "mark", "number": (1 << 64) - 1}, ("mark", (1 << 64) - 1, os.getpid())),
        ({"op": "buffer-size", "bytes": 1 << 22}, ("buffer", 1 << 22)),
        ({"op": "lowwater", "percent": 5}, ("low", 5)),
    ],
)
def test_requests_become_calls(
    running: Running, request_: dict[str, Any], call: tuple[Any, ...]
) -> None:
    assert running.ask(request_) == {"ok": True, "result": {}}
    assert running.controls.calls == [call]


def test_the_group_writes_little_into_the_file(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of changes and marks of its members entries tell: a loop filled 14 GB a day."""
    take = running.server._take_turn
    member, owner = (Peer(7, uid, 5, (5,)) for uid in (os.getuid() + 4242, os.getuid()))
    monkeypatch.setattr(server, "GROUP_A_SECOND", 0.0)
    for number in range(server.GROUP_WRITES):
        take(["mark", "enable", "set-filters"][number % 3], member)
    with pytest.raises(TcpkmonError, match="1,000 changes and marks"):
        take("mark", member)
    take("status", member)
    take("mark", owner)
    monkeypatch.setattr(server, "GROUP_A_SECOND", 1.0)
    running.server._turns_s = time.monotonic() - 2.5
    take("mark", member)
    monkeypatch.setattr(server, "GROUP_A_SECOND", 0.0)
    take("mark", member)
    with pytest.raises(TcpkmonError, match="1,000 changes and marks"):
        take("mark", member)


def test_clients_in_a_loop_get_few_connections(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread shares Python's lock with the reader, which would lose records."""
    accepted = [0]

    def count(connection: socket.socket) -> Peer:
        accepted[0] += 1
        return peer_of(connection)

    monkeypatch.setattr(lines, "peer_of", count)
    until = time.monotonic() + 1.0

    def connect() -> None:
        while time.monotonic() < until:
            with suppress(OSError), running.connect() as connection:
                connection.sendall(b"{")

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 10 < accepted[0] < 150
    controls = threading.Thread(target=running.serve)
    controls.start()
    client = Client(Collector(os.getpid(), running.server.path), LIMIT_S)
    assert client.enable() == {}, "others still get their turn"
    controls.join()


def test_a_request_that_fails_ends_no_capture(running: Running) -> None:
    answer = running.ask({"op": "enable", "events": ["FAIL"]})
    error = {"message": "enable failed: Too many open files", "hint": "", "code": 1}
    assert answer == {"ok": False, "error": error}
    assert running.ask({"op": "enable"})["ok"]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"op": 5}\n',
        b'{"op": "explode"}\n',
        b'{"op": "status", "more": 1}\n',
        b'{"op": "mark"}\n',
        b'{"op": "mark", "number": true}\n',
        b'{"op": "mark", "number": -1}\n',
        b'{"op": "mark", "number": 18446744073709551616}\n',
        b'{"op": "enable", "events": "A"}\n',
        b'{"op": "enable", "events": [""]}\n',
        b'{"op": "enable", "events": [1]}\n',
        b'{"op": "buffer-size", "bytes": 0}\n',
        b'{"op": "lowwater", "percent": 100}\n',
        b"[" * 4000 + b"\n",
        b"\xff\xfe\n",
        b"x" * (REQUEST_BYTES + 1),
        b'{"op": "status", "x": "' + b"y" * REQUEST_BYTES + b'"}\n',
    ],
)
def test_bad_requests_never_reach_the_session(running: Running, line: bytes) -> None:
    answer = running.ask(line, serve=False)
    assert answer["ok"] is False
    assert answer["error"]["code"] == UsageError.exit_code
    assert running.controls.calls == []
    assert running.ask({"op": "mark", "number": 1})["ok"] is True, "it goes on"


def test_who_waited_longest_gives_way(running: Running) -> None:
    silent = [running.connect() for _ in range(CLIENTS)]
    try:
        silent[0].sendall(b'{"op": "mar')  # half a request keeps no place either
        assert running.ask({"op": "mark", "number": 1})["ok"]
        assert "too many" in answer_of(silent[0])["error"]["message"]
        silent[1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[1].recv(1)
    finally:
        for connection in silent:
            connection.close()


def test_the_silent_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "TIME_LIMIT_S", 0.05)
    running = Running(tmp_path)
    with running.server, running.connect() as connection:
        assert connection.recv(1) == b""
    running.close()


def test_who_waits_is_told_of_the_end(running: Running) -> None:
    woken = threading.Event()
    running.server._wake_session = woken.set
    with running.connect() as connection:
        connection.sendall(b'{"op": "status"}\n')
        assert woken.wait(LIMIT_S)
        running.server.close()
        assert answer_of(connection)["error"]["message"] == "the capture is over"


def read_status(running: Running) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(os.fspath(running.server.onlookers.path))
        return answer_of(connection)


def serving(running: Running) -> threading.Thread:
    thread = threading.Thread(target=running.serve, daemon=True)
    thread.start()
    return thread


def test_everybody_may_read_the_status(running: Running) -> None:
    path = running.server.onlookers.path
    assert path.name == f"{os.getpid()}.status" and stat.S_IMODE(path.stat().st_mode) == 0o666
    thread = serving(running)
    assert read_status(running) == {"ok": True, "result": {"records": 1}}
    thread.join(LIMIT_S)
    assert running.controls.calls == [("public",)]
    # The session is not asked again for a while.
    assert all(read_status(running)["ok"] for _ in range(20))
    assert running.controls.calls == [("public",)]


def test_onlookers_are_not_read(running: Running) -> None:
    thread = serving(running)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(os.fspath(running.server.onlookers.path))
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b'{"op": "disable"}\n{"op": "mark", "number": 1}\n')
        thread.join(LIMIT_S)
    assert running.ask({"op": "lowwater", "percent": 5})["ok"]
    assert running.controls.calls == [("public",), ("low", 5)]


def test_a_crowd_of_onlookers_holds_nobody_up(running: Running) -> None:
    """They wait, since nobody serves them; those who may control are answered all the same."""
    crowd = []
    for _ in range(3 * onlookers.ONLOOKERS):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(os.fspath(running.server.onlookers.path))  # waits for its turn
        one.settimeout(LIMIT_S)
        crowd.append(one)
    ended = 0
    deadline = time.monotonic() + LIMIT_S
    while ended < 2 * onlookers.ONLOOKERS and time.monotonic() < deadline:
        ready, _, _ = select.select(crowd[onlookers.ONLOOKERS :], [], [], LIMIT_S)
        ended = len(ready)
    assert ended == 2 * onlookers.ONLOOKERS, "too many: their connections have ended"
    os.eventfd_read(running._wake_fd)  # the session does not come to it
    assert running.ask({"op": "mark", "number": 3})["ok"]
    assert running.controls.calls == [("public",), ("mark", 3, os.getpid())]
    for one in crowd[: onlookers.ONLOOKERS]:
        assert answer_of(one) == {"ok": True, "result": {"records": 1}}
    for one in crowd:
        one.close()


def test_others_are_refused(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def stranger(connection: socket.socket) -> Peer:
        return dataclasses.replace(peer_of(connection), uid=os.geteuid() + 1)

    monkeypatch.setattr(lines, "peer_of", stranger)
    with running.connect() as connection:
        answer = answer_of(connection)
    assert answer["error"]["message"] == "only root may ask this"


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "allowed"),
    [
        (0, 0, (), True),
        (4711, 4711, (4711,), False),
        (4711, 50, (), True),
        (4711, 4711, (49, 50), True),
    ],
)
def test_who_may(uid: int, gid: int, groups: tuple[int, ...], allowed: bool) -> None:
    peer = Peer(1, uid, gid, groups)
    assert peer.may_control(50) is allowed
    assert peer.may_control(None) is (uid == 0)


def test_the_socket_and_its_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path, listener = listen(tmp_path / "run", os.getegid())
    finally:
        os.umask(before)
    with listener:
        assert path == tmp_path / "run" / f"{os.getpid()}.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.stat().st_gid == os.getegid()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    path, listener = listen(tmp_path / "run", None)  # a dead process's, with our number
    with listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def make_stale(folder: Path, name: str) -> Path:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(folder / name))
    return folder / name


def test_sockets_of_the_dead_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "exists", lambda pid: pid == os.getppid())
    gone = [make_stale(tmp_path, f"999999999.{kind}") for kind in ("sock", "status")]
    stay = [
        make_stale(tmp_path, f"{os.getppid()}.sock"),
        make_stale(tmp_path, f"{os.getppid()}.status"),
        make_stale(tmp_path, "name.sock"),
        tmp_path / "999999998.sock",
    ]
    stay[-1].write_text("a file")
    tmp_path.chmod(0o755)
    _, listener = listen(tmp_path, None)
    listener.close()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stay)


def spoil_by_mode(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def spoil_by_link(folder: Path) -> None:
    (folder.parent / "real").mkdir()
    folder.symlink_to("real")


def spoil_by_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize("spoil", [spoil_by_mode, spoil_by_link, spoil_by_file])
def test_a_folder_not_to_be_trusted(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "run")
    with pytest.raises(FileError):
        listen(tmp_path / "run", None)


def test_closed_it_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    with ControlServer(tmp_path, None, lambda: None) as server:
        assert server.path.exists()
    server.close()
    assert not server.path.exists()
    assert descriptors() == before
    never_entered = ControlServer(tmp_path, None, lambda: None)
    never_entered.close()
    assert not server.path.exists()
    assert descriptors() == before


def test_the_thread_takes_no_signals(running: Running) -> None:
    assert running.ask({"op": "mark", "number": 1})["ok"] is True
    status = Path(f"/proc/self/task/{running.server._thread.native_id}/status").read_text()
    found = re.search(r"^SigBlk:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert found is not None
    assert int(found[1], 16) >> (signal.SIGTERM - 1) & 1


HUGE = b"1" + b"0" * 400


@contextmanager
def listening(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[Path]:
    """A server in the place of this process's; each client gets serve() in a thread."""
    folder.chmod(0o755)
    path = folder / f"{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(path))
    listener.listen(16)

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            serve(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def telling(result: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        if connection.recv(1 << 16):
            connection.sendall(b'{"ok": true, "result": ' + result + b"}\n")

    return serve


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def test_an_answer_that_drips_has_an_end(tmp_path: Path) -> None:
    with listening(tmp_path, drip) as path:
        began_s = time.monotonic()
        with pytest.raises(TcpkmonError, match="did not answer within"):
            Client(Collector(os.getpid(), path), 0.5).status()
        assert time.monotonic() - began_s < 5


LISTENS = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
os.setresuid(12345, 12345, 12345)
listener.bind(sys.argv[1]); listener.listen()
print(flush=True)
while True:
    connection, _ = listener.accept()
    if connection.recv(1000):
        connection.sendall(b'{"ok": true, "result": {"pid": 1}}\\n')
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_another_user_is_not_believed() -> None:
    folder = Path(f"/run/tcpkmon-test-{os.getpid()}")
    folder.mkdir(0o777)
    folder.chmod(0o777)
    path = folder / f"{os.getpid()}.sock"
    process = subprocess.Popen([sys.executable, "-c", LISTENS, path], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        os.chown(path, 0, 0)  # as by a link: what the file says is not who listens
        with pytest.raises(TcpkmonError, match="another user listens there"):
            Client(Collector(os.getpid(), path), 5).status()
    finally:
        process.kill()
        process.communicate()
        path.unlink()
        folder.rmdir()


ASKS = """
import os, sys
from tcpkmon.collector.control.client import find_collectors
os.setresuid(12345, 12345, 12345)
find_collectors()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_a_folder_that_nobody_else_may_enter_is_not_an_empty_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environment = {**os.environ, "TCPKMON_RUN": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert f"{tmp_path}, where captures listen: Permission denied" in done.stderr


WRONG = (
    b'{"records": ' + HUGE + b"}", b'{"ring_fill": 1e999}', b'{"ring_fill": NaN}',
    b'{"a": -Infinity}', b'{"recorder": {"oldest": "x"}}', b'{"recorder": {"oldest": 1e300}}',
    b'{"refused": 5, "events": 5}', b'{"recorder": {"records": "x"}}',
    b'{"events": [1, {"name": {}}], "recorder": {"bytes": []}}',
    b'{"recorder": {"held_back": "many"}}', b"5", b"[" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("result", WRONG)
def test_status_tells_what_makes_no_sense(
    result: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))
    with listening(tmp_path, telling(result)):
        assert run(tcpkmon.command, ["status"], "tcpkmon") == 1
    told = capsys.readouterr().err
    assert "gave no answer that makes sense" in told and "Traceback" not in told


def test_a_capture_that_makes_no_sense_spoils_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))
    for wrong in (
        {"cost": 5}, {"cost": {"cpu_s": "x", "memory_bytes": 1}}, {"lost": {"a": [1]}},
        {"cost": {"cpu_s": 1, "memory_bytes": 1}, "records": {}}, {"events": [[]]}, {},
    ):  # fmt: skip
        with listening(tmp_path, telling(json.dumps(wrong).encode())) as path:
            assert openmetrics.ask_all() == ({}, 1), wrong
        path.unlink()
