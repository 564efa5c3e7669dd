# SPDX-License-Identifier: Apache-2.0
"""What listens at a control socket may be another's, or was taken over: clients end, in words."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tcpkmon.collector.commands import openmetrics, tcpkmon
from tcpkmon.collector.control.client import Client, Collector
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import TcpkmonError

HUGE = b"1" + b"0" * 400


@contextmanager
def serving(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[Path]:
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
    with serving(tmp_path, drip) as path:
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
    with serving(tmp_path, telling(result)):
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
        with serving(tmp_path, telling(json.dumps(wrong).encode())) as path:
            assert openmetrics.ask_all() == ({}, 1), wrong
        path.unlink()
