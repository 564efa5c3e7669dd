# SPDX-License-Identifier: Apache-2.0
"""--pid and --follow: the processes that a process starts, also when they have ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan import engine_config
from tcpkmon.collector.plan.filters import PIDS, parse
from tcpkmon.collector.plan.request import Request
from tests.live.capturing import Outcome, capturing, read
from tests.live.faults import COLLECT, run

LOCATIONS = ("--locations", "STATE_CHANGE,SEND_CALL,SEGMENT_RECEIVED,DESTROY")
OPTIONS = (*LOCATIONS, "--columns", "default,pid,comm")
ROUNDS = 3
CHILDREN = 60

# A master that listens; its workers accept, and leave the answer to a child of theirs, whose exit
# closes the connection.
PREFORK = textwrap.dedent("""
    import os, socket, sys
    listener = socket.create_server(("127.0.0.1", 0))
    workers, rounds = int(sys.argv[1]), int(sys.argv[2])
    def work():
        for _ in range(rounds):
            c, _peer = listener.accept()
            if not (child := os.fork()):
                c.recv(100)
                c.sendall(b"x" * 1000)
                os._exit(0)
            c.close()
            os.waitpid(child, 0)
        os._exit(0)
    def start(count):
        return [pid for _ in range(count) if (pid := os.fork()) or work()]
    pids = start(1)
    print(listener.getsockname()[1], pids[0], flush=True)
    sys.stdin.readline()
    pids += start(workers - 1)
    for pid in pids:
        os.waitpid(pid, 0)
""")
# A process whose children, and children of children without a parent, connect once each.
TREE = textwrap.dedent("""
    import os, socket, sys, time
    port, count = int(sys.argv[1]), int(sys.argv[2])
    def connect():
        with socket.create_connection(("127.0.0.1", port)) as c:
            c.sendall(b"hi")
            while c.recv(100): pass
        os._exit(0)
    for n in range(count):
        if not (pid := os.fork()):
            if n % 2 and os.fork():
                os._exit(0)         # the connecting one is an orphan now
            connect()
        os.waitpid(pid, 0)
    time.sleep(0.5)
""")


# A process that listens at a port that the kernel chose, and then no more.
BRIEFLY = textwrap.dedent("""
    import socket, sys
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    sys.stdin.readline()
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.readline()
    listener.close()
    print("closed", flush=True)
    sys.stdin.readline()
""")


# A process that has a listener of its parent's, and one of its own at the same port. Both close the
# parent's before the first connection.
BESIDE = textwrap.dedent("""
    import os, socket, sys
    def listen(port):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
        return one
    shared = listen(0)
    port = shared.getsockname()[1]
    heard, told = os.pipe()
    if not (pid := os.fork()):
        own = listen(port)
        print(port, os.getpid(), flush=True)
        os.read(heard, 1)
        shared.close()
        print("closed", flush=True)
        for _ in range(3):
            stream, _peer = own.accept()
            stream.recv(100)
            stream.sendall(b"x" * 1000)
            stream.close()
        os._exit(0)
    sys.stdin.readline()
    shared.close()
    os.write(told, b"x")
    os.waitpid(pid, 0)
""")


@contextmanager
def prefork(workers: int, rounds: int) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """The master, its port, and its first worker; the others come with go()."""
    arguments = [sys.executable, "-c", PREFORK, str(workers), str(rounds)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as master:
        try:
            assert master.stdout is not None
            port, worker = map(int, master.stdout.readline().split())
            yield master, port, worker
        finally:
            master.kill()


def go(master: subprocess.Popen[str]) -> None:
    assert master.stdin is not None
    master.stdin.write("\n")
    master.stdin.flush()


def ask(port: int) -> int:
    """An exchange with the server; the client's port."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"hi")
        while client.recv(4096):
            pass
        return int(client.getsockname()[1])


def check_whole(outcome: Outcome, server: int, clients: set[int]) -> None:
    """Each connection of the server's is there from the SYN to its end, and nothing else is."""
    outcome.check_complete()
    records = outcome.records
    ours = records.pick((records["lport"] == server) & (records["rport"] != 0))
    assert set(ours["rport"].tolist()) == clients
    assert set(records["lport"].tolist()) <= {server}
    for client in clients:
        one = ours.where(rport=client)
        assert one.counts()["SEGMENT_RECEIVED"] >= 2
        assert one.counts()["DESTROY"] == 1
        # To ESTABLISHED, the half close of the peer or the own one, ..., CLOSE.
        assert one.counts()["STATE_CHANGE"] >= 4
        assert len(set(one["conn_id"].tolist())) == 1


KINDS = [
    pytest.param("", id="typed"),
    pytest.param("raw,kprobe,iter", id="untyped", marks=pytest.mark.full),
]


@pytest.mark.parametrize("kinds", KINDS)
def test_workers_that_exist_and_those_that_come(tmp_path: Path, kinds: str) -> None:
    with (
        prefork(3, ROUNDS) as (master, port, _worker),
        capturing(tmp_path / "a.pm", *OPTIONS, "--pid", str(master.pid), kinds=kinds) as capture,
    ):
        clients = {ask(port) for _ in range(ROUNDS)}
        go(master)
        clients |= {ask(port) for _ in range(2 * ROUNDS)}
        assert master.wait(30) == 0
        outcome = capture.stop()
    check_whole(outcome, port, clients)
    # The children that answered have ended, and their connections are still theirs.
    owners = set(outcome.records.at("DESTROY")["pid"].tolist())
    assert len(owners - {master.pid}) == 3 * ROUNDS


def test_of_a_worker_only_what_it_accepts(tmp_path: Path) -> None:
    with (
        prefork(2, ROUNDS) as (master, port, worker),
        capturing(tmp_path / "a.pm", *OPTIONS, "--pid", str(worker)) as capture,
        prefork(1, 1) as (_other, foreign, _worker),
    ):
        ask(foreign)
        clients = {ask(port) for _ in range(ROUNDS)}  # the second worker is not there yet
        go(master)
        others = {ask(port) for _ in range(ROUNDS)}
        outcome = capture.stop()
    outcome.check_complete()
    seen = set(outcome.records["rport"].tolist())
    assert seen >= clients
    assert not seen & others
    assert foreign not in set(outcome.records["lport"].tolist())


def test_a_port_is_followed_while_it_is_listened_at_alone(tmp_path: Path) -> None:
    """The kernel gives a port that it chose back before the listener's state changes."""
    with subprocess.Popen(
        [sys.executable, "-c", BRIEFLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            with capturing(tmp_path / "a.pm", *OPTIONS, "--pid", str(one.pid)) as capture:
                go(one)
                assert one.stdout is not None
                port = int(one.stdout.readline())
                with socket.create_connection(("127.0.0.1", port)) as seen:
                    client = seen.getsockname()[1]
                go(one)
                assert one.stdout.readline() == "closed\n"
                with (
                    socket.create_server(("127.0.0.1", port)) as other,
                    socket.create_connection(("127.0.0.1", port)) as foreign,
                ):
                    other.accept()[0].close()
                    hidden = foreign.getsockname()[1]
                outcome = capture.stop()
        finally:
            one.kill()
    outcome.check_complete()
    found = set(outcome.records["rport"].tolist())
    assert client in found and hidden not in found


def test_a_command_and_its_children_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.pm"
    with prefork(1, CHILDREN) as (_master, port, _worker):
        command = [sys.executable, "-c", TREE, str(port), str(CHILDREN)]
        # Through a shell that ends before its background process does.
        shell = ["sh", "-c", '"$@" & wait', "sh", *command]
        done = run([COLLECT, "--follow", "-q", *OPTIONS, "-o", str(path), "--", *shell])
        assert done.code == 0, done.stderr
    outcome = read(path)
    outcome.check_complete()
    records = outcome.records
    assert set(records["rport"].tolist()) == {port}
    assert records.counts()["DESTROY"] == CHILDREN
    assert records.counts()["SEND_CALL"] == CHILDREN
    assert len(set(records["pid"].tolist())) == CHILDREN


def test_a_process_that_ended_is_no_filter(tmp_path: Path) -> None:
    """Its number may become another's."""
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        request = Request(parse(pids=[one.pid, other.pid]), "-", locations="STATE_CHANGE")
        with Kernel(prepare(request), request.filters) as kernel:
            kernel.load()
            kernel.attach()

            def followed() -> set[int]:
                fd = kernel.loaded.maps[PIDS]
                return {
                    pid
                    for pid in (one.pid, other.pid)
                    if bpf.map_lookup(fd, pid.to_bytes(4, sys.byteorder), 4)
                }

            assert followed() == {one.pid, other.pid}
            other.kill()
            other.wait()
            assert followed() == {one.pid}
        one.kill()


def test_processes_without_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_config, "MOST_FOLLOWED", 1)
    request = Request(parse(pids=[os.getpid()]), "-", locations="STATE_CHANGE")
    with Kernel(prepare(request), request.filters) as kernel:
        kernel.load()
        kernel.attach()
        for _ in range(3):
            subprocess.run(["true"], check=True)
        assert kernel.programs(kernel.heads())["state_change"].missed == 3


@pytest.mark.parametrize("kinds", KINDS)
def test_the_end_of_a_shared_listener_takes_no_others_count(tmp_path: Path, kinds: str) -> None:
    """The one of the process itself, at the same port, is still followed: from the handshake on."""
    with subprocess.Popen(
        [sys.executable, "-c", BESIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            port, pid = map(int, parent.stdout.readline().split())
            path = tmp_path / "a.pm"
            with capturing(path, *OPTIONS, "--pid", str(pid), kinds=kinds) as capture:
                go(parent)
                assert parent.stdout.readline() == "closed\n"
                clients = {ask(port) for _ in range(3)}
                outcome = capture.stop()
        finally:
            parent.kill()
    check_whole(outcome, port, clients)
