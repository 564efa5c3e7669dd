# SPDX-License-Identifier: Apache-2.0
"""The filters of `collect` with the schema magnet: as with tcp, at each of its layers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.plan.filters import find_cgroup
from tests.full import first
from tests.live.capturing import Pair, connected, join, listening
from tests.live.schema_logs import Log, logging

EVENTS = ("SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND", "DEV_RECV", "IP_RECV", "SOCK_RECV")
ENDS = ("client", "server")


def by_ports(lab: Lab, wanted: Pair) -> tuple[list[str], tuple[str, ...]]:
    return ["--ports", str(wanted.client_port)], ENDS


def by_pair(lab: Lab, wanted: Pair) -> tuple[list[str], tuple[str, ...]]:
    return ["--pair", f"{wanted.server_port}.{wanted.client_port}"], ("server",)


def by_namespace(lab: Lab, wanted: Pair) -> tuple[list[str], tuple[str, ...]]:
    return ["-6", "--netns", lab.b.name], ("server",)


@pytest.mark.parametrize("choose", first(1, [by_pair, by_ports, by_namespace]))
def test_only_what_is_wanted_is_recorded(
    lab: Lab,
    tmp_path: Path,
    choose: Callable[[Lab, Pair], tuple[list[str], tuple[str, ...]]],
) -> None:
    with connected(lab) as other, connected(lab, "fd77::2") as wanted:
        options, ends = choose(lab, wanted)
        with logging(tmp_path / "log", "magnet", more=options) as capture:
            for _ in range(3):
                other.exchange(500)
                wanted.exchange(700)
        ports = {
            "client": (wanted.client_port, wanted.server_port),
            "server": (wanted.server_port, wanted.client_port),
        }
    log = capture.finish()
    check(log, {ports[end] for end in ends}, size=3 * 700)
    for event in ("SOCK_SEND", "DEV_SEND"):  # the call has the flags of the segment that was built
        flags = {r["flags"] for r in log.of(event) if r["size"]}
        assert event in log.missing or flags == {0x18}, event


def test_a_datagram_without_a_connected_socket(lab: Lab, tmp_path: Path) -> None:
    """Its SOCK_SEND passes a filter of the remote port as its IP_SEND does, the others' do not."""
    servers = [lab.b.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in "ab"]
    client = lab.a.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with servers[0] as wanted, servers[1] as other, client:
        for server in servers:
            server.bind(("10.77.0.2", 0))
        port = str(wanted.getsockname()[1])
        with logging(tmp_path / "log", "magnet", more=["-D", port]) as capture:
            for size in (1, 20, 300):
                client.sendto(bytes(size), wanted.getsockname())
                client.sendto(bytes(size + 1), other.getsockname())
    log = capture.finish()
    for event in ("SOCK_SEND", "IP_SEND", "DEV_SEND"):
        assert event in log.missing or [r["size"] for r in log.of(event)] == [1, 20, 300], event
    assert len({r["connection"] for event in ("SOCK_SEND", "DEV_SEND") for r in log.of(event)}) == 1


def check(log: Log, ports: set[tuple[int, int]], size: int) -> None:
    """Each layer has these connections, all their bytes, and nothing else."""
    ids = {(r["lport"], r["rport"]): r["connection"] for r in log.of("MAGNET_CONNECTION")}
    assert set(ids) == ports
    for event in EVENTS:
        if event in log.missing:
            continue
        found = {record["connection"] for record in log.of(event)}
        # A connection that was open: its first segment came before its socket did anything.
        assert found - {0} == set(ids.values()), event
        for connection in ids.values():
            bytes_ = sum(r["size"] for r in log.of(event, connection=connection))
            assert bytes_ == size or (event == "DEV_RECV" and bytes_ == size - 700), event
        assert all(r["size"] == 700 for r in log.of(event, connection=0) if r["size"]), event


def exchange(lab: Lab, address: str, done: str) -> str:
    """A program that connects to `address` and sends 700 bytes three times, each answered."""
    return f"""
import socket, sys
sys.stdin.readline()
with socket.create_connection(("{address}", {done})) as stream:
    for _ in range(3):
        stream.sendall(bytes(700))
        size = 0
        while size < 700:
            size += len(stream.recv(700))
    print(stream.getsockname()[1], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", first(1, ["pid", "cgroup"]))
def test_processes_and_cgroups(lab: Lab, tmp_path: Path, kind: str) -> None:
    with listening(lab.b, "10.77.0.2") as listener:
        text = exchange(lab, "10.77.0.2", str(listener.getsockname()[1]))
        child = lab.a.start(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin and child.stdout
        group = Path(find_cgroup("/").path) / f"tcpkmon-test-{os.getpid()}"
        group.mkdir()
        try:
            (group / "cgroup.procs").write_text(str(child.pid))
            options = ["--pid", str(child.pid)] if kind == "pid" else ["--cgroup", str(group)]
            with logging(tmp_path / "log", "magnet", more=options) as capture:
                other = join(lab.a, listener, "10.77.0.2")
                other.exchange(500)
                child.stdin.write("go\n")
                child.stdin.flush()
                server, _ = listener.accept()
                for _ in range(3):
                    size = 0
                    while size < 700:
                        size += len(server.recv(700))
                    server.sendall(bytes(700))
                ports = int(child.stdout.readline()), listener.getsockname()[1]
                server.close()
                other.close()
        finally:
            child.communicate("end\n", timeout=60)
            group.rmdir()
    check(capture.finish(), {ports}, size=3 * 700)
