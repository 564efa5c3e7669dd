# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files of this kernel: a counted transfer, losses, the end by SIGKILL, what is refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import FIRST_CONTROL, LOST
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_magnet
from tests.live.capturing import WAIT_S, wait_until
from tests.live.faults import Disk
from tests.live.wire import decode

ROOT = Path(__file__).resolve().parents[2]
COLLECT = [sys.executable, "-c", "from tcpkmon.collector.commands import collect; collect.main()"]
MESSAGES, BYTES, ANSWER = 300, 4000, 100


def start(path: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    """collect that is attached."""
    read, write = os.pipe()
    words = [*COLLECT, "--format", "magnet", "-o", str(path), "--ready-fd", str(write), *options]
    process = subprocess.Popen(
        words, cwd=ROOT, pass_fds=[write], stderr=subprocess.PIPE, text=True, **more
    )
    os.close(write)
    with os.fdopen(read, "rb") as ready:
        assert ready.read(1), process.communicate()[1]
    return process


def stop(process: subprocess.Popen[str], path: Path) -> Report:
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, told
    return verify_magnet(path)


def transfer(messages: int = MESSAGES) -> tuple[int, int]:
    """Messages with answers over loopback; the ports of both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as end:
                for _ in range(messages):
                    end.recv(BYTES, socket.MSG_WAITALL)
                    end.sendall(bytes(ANSWER))

        server = threading.Thread(target=serve)
        server.start()
        with socket.create_connection(listener.getsockname()) as end:
            ports = end.getsockname()[1], listener.getsockname()[1]
            for _ in range(messages):
                end.sendall(bytes(BYTES))
                end.recv(ANSWER, socket.MSG_WAITALL)
            server.join()
    return ports


def rows_of(path: Path) -> tuple[np.ndarray, dict[str, int]]:
    """The records as a reader finds them that knows struct magnet_data alone, and the codes."""
    with MagnetFile(path) as file:
        codes = {kind.name: kind.code for kind in file.kinds}
        rows = np.fromfile(path, file.layout.dtype)
    return rows[rows["event"] < FIRST_CONTROL], codes


def of(rows: np.ndarray, codes: dict[str, int], name: str, connection: int) -> np.ndarray:
    return rows[(rows["event"] == codes[name]) & (rows["sockid"] == connection)]


@pytest.mark.parametrize("options", [(), ("--data", "--using", "driver")], ids=["lean", "data"])
def test_a_counted_transfer(tmp_path: Path, options: Sequence[str]) -> None:
    path = tmp_path / "a.magnet"
    process = start(path, *options)
    ports = transfer()
    report = stop(process, path)
    assert report.exit_code == 0 and report.proven_end, report.problems
    rows, codes = rows_of(path)
    assert len(rows) == report.entries and not (rows["event"] == LOST).any()
    assert rows.dtype.itemsize == (120 if options else 24)
    # Other connections may exist: the one with as many messages is ours.
    sent = rows[rows["event"] == codes["MAGNET_SOCK_SEND"]]
    ids, counts = np.unique(sent["sockid"][sent["size"] == BYTES], return_counts=True)
    (client,) = ids[counts == MESSAGES].tolist()
    answers = sent["sockid"][sent["size"] == ANSWER]
    ids, counts = np.unique(answers, return_counts=True)
    (server,) = ids[counts == MESSAGES].tolist()
    for name, there, size in (("RECV", server, MESSAGES * BYTES), ("RECV", client, None)):
        read = of(rows, codes, f"MAGNET_SOCK_{name}", there)
        assert read["size"][read["size"] > 0].sum() == (size or MESSAGES * ANSWER)
    tcp = of(rows, codes, "MAGNET_TCP_SEND", client)
    device = of(rows, codes, "MAGNET_DEV_SEND", client)
    assert len(tcp) >= MESSAGES and device["size"].sum() == MESSAGES * BYTES
    arrived = of(rows, codes, "MAGNET_IP_RECV", server)
    assert arrived["size"].sum() == MESSAGES * BYTES
    begun = of(rows, codes, "MAGNET_SOCK_SEND", client)
    begun = begun[begun["size"] == BYTES]["timestamp"]
    taken = tcp["timestamp"][np.searchsorted(tcp["timestamp"], begun)]
    assert (taken - begun < 10**9).all(), "a call begins before TCP takes its data"
    if options:
        assert {(int(r["source"]), int(r["dest"])) for r in tcp} == {ports}
        assert set(device["protocol"].tolist()) == {6} and (tcp["snd_cwnd"] > 0).all()
        assert len(of(rows, codes, "MAGNET_DRIVER_START", client)) == len(device)
    else:
        data = path.read_bytes()
        assert not any(f'"{p}"'.encode() in data or f":{p}".encode() in data for p in ports)


def test_flags_are_those_on_the_wire(tmp_path: Path) -> None:
    """Each segment is read before the next one comes, so that none is merged into another."""
    path = tmp_path / "a.magnet"
    process = start(path, "--data")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as tap,
    ):
        tap.bind(("lo", 3))
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        ends = client.getsockname()[1], listener.getsockname()[1]
        for number in range(20):
            one, other = (client, server) if number % 2 else (server, client)
            one.send(b"x" * 200)
            assert len(other.recv(200)) == 200
        client.close()
        assert server.recv(1) == b""
        server.close()
        assert stop(process, path).exit_code == 0
        packets = []
        with suppress(BlockingIOError):
            while True:
                data, where = tap.recvfrom(1 << 16, socket.MSG_DONTWAIT)
                packet = decode(data, where[2] == socket.PACKET_OUTGOING)
                if packet is not None and not packet.sent:
                    packets.append(packet)
    rows, codes = rows_of(path)
    rows = rows[rows["event"] == codes["MAGNET_TCP_RECV"]]
    for mine, peer in (ends, ends[::-1]):
        # What reaches the reader: data, and the FIN; not the SYN, nor what is an ACK alone. The
        # client has closed: nobody reads the server's FIN.
        wanted = [one.flags for one in packets if one.ports == (peer, mine)
                  and (one.size or (one.flags & 1 and mine == ends[1]))]  # fmt: skip
        assert len(wanted) >= 10
        got = rows[(rows["source"] == mine) & (rows["dest"] == peer)]["flags"].tolist()
        assert [one for one in got if one] == wanted


def test_losses_are_in_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.magnet"
    process = start(path, "--buffer-size", "0.008")
    process.send_signal(signal.SIGSTOP)  # nobody reads the rings
    try:
        transfer(200)
    finally:
        process.send_signal(signal.SIGCONT)
    transfer(5)
    report = stop(process, path)
    assert report.exit_code == 3 and not report.problems, report.problems
    rows, _ = rows_of(path)
    lost = rows[rows["event"] == LOST]
    assert lost["size"].sum() == report.totals.lost_total > 500
    assert report.ring_lost == report.totals.lost["ring full"]


def export(log: Path, path: Path) -> int:
    return cli.run(command, ["export", "--format", "magnet", str(log), "-o", str(path)])


def has_all(log: Path) -> bool:
    """Each log has a ledger, and together they have the transfer."""
    *each, _ = format_of(log).verify(log)
    return all(one.checkpoints for one in each) and sum(one.entries for one in each) > 4 * MESSAGES


def test_a_capture_that_is_killed_leaves_its_log(tmp_path: Path) -> None:
    path, log = tmp_path / "a.magnet", tmp_path / "a.magnet.klog"
    process = start(path)
    transfer()
    wait_until(lambda: has_all(log), "a ledger with the transfer", step_s=0.2)
    process.kill()
    process.communicate(timeout=WAIT_S)
    assert not path.exists() and os.listdir(tmp_path) == [log.name], "nothing hidden stays"
    again = subprocess.run(
        [*COLLECT, "--format", "magnet", "-o", str(path)], cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert again.returncode == 1 and "a capture that was not converted" in again.stderr
    assert export(log, path) == 3
    report = verify_magnet(path)
    assert report.exit_code == 3 and report.tail_unknown and not report.problems
    assert report.checkpoints >= 1 and report.entries > 4 * MESSAGES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_capture_and_it_is_converted(
    tmp_path: Path, number: signal.Signals
) -> None:
    """To the whole group, as a terminal and service managers send them."""
    path = tmp_path / "a.magnet"
    process = start(path, start_new_session=True)
    transfer(20)
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=WAIT_S)
    assert process.returncode in (0, 128 + number), told
    assert os.listdir(tmp_path) == [path.name], told
    report = verify_magnet(path)
    assert report.exit_code == 0 and report.end_reason == "asked"


def test_a_full_disk_while_it_is_converted_keeps_the_log(tmp_path: Path) -> None:
    with Disk(32 << 20) as disk:
        path, log = disk.path / "a.magnet", disk.path / "a.magnet.klog"
        process = start(path)
        transfer(50)
        ballast = disk.fill()
        process.send_signal(signal.SIGINT)
        # What the capture still writes has no room either: so that its log is whole, some of it.
        os.truncate(ballast, ballast.stat().st_size - (256 << 10))
        wait_until(lambda: b"KLOGGER_FINISH" in (log / "kernlog.dump.cpu0").read_bytes())
        _, told = process.communicate(timeout=WAIT_S)
        if process.returncode == 0:
            pytest.skip("there was room for it")
        assert process.returncode == 1 and "the log stays" in told, told
        assert not path.exists() and log.is_dir()
        ballast.unlink()
        assert export(log, path) in (0, 3)
        assert verify_magnet(path).exit_code in (0, 3)


def test_the_file_is_made_by_the_user_who_called_sudo(tmp_path: Path) -> None:
    """In a folder of root's, which the user may not even enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    path = folder / "a.magnet"
    done = subprocess.run(
        [*COLLECT, "--format", "magnet", "-o", str(path), "--as-root", "--", "true"], cwd=ROOT,
        check=False, capture_output=True, text=True,
        env=os.environ | {"SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert os.listdir(folder) == [path.name]
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    assert verify_magnet(path).exit_code == 0


OWN = {
    "mine.conf": "event FREED { ulonglong connection; int size }\nevent OTHER { int size }\n",
    "mine.bpf.c": """#include "klogger.h"

struct sk_buff;

PROBE(freed, "FREED", "btf:consume_skb raw:consume_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);

    klogger(FREED, 7, READ(DIRECT, skb, len));
}
""",
}


def test_own_events_are_in_it(tmp_path: Path) -> None:
    """As 2001 promised: the event declared, and a call where it happens."""
    folder, path = tmp_path / "mine", tmp_path / "a.magnet"
    folder.mkdir()
    for name, text in OWN.items():
        (folder / name).write_text(text)
    words = ("--schema", "magnet", "--schema", str(folder))
    done = subprocess.run(
        [*COLLECT, "--format", "magnet", "-o", str(path), *words], cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "the event OTHER has no field connection" in done.stderr
    (folder / "mine.conf").write_text(OWN["mine.conf"].splitlines()[0])
    process = start(path, *words)
    transfer(20)
    report = stop(process, path)
    assert report.exit_code == 0 and report.proven_end, report.problems
    rows, codes = rows_of(path)
    freed = rows[rows["event"] == codes["MAGNET_FREED"]]
    assert len(freed) > 3 and set(freed["sockid"].tolist()) == {7}
    assert (rows["event"] == codes["MAGNET_SOCK_SEND"]).sum() >= 40
    mine = [row for row in report.rows if row.name == "MAGNET_FREED"]
    assert sum(row.in_file for row in mine) == len(freed)


def test_marks_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("TCPKMON_RUN", str(folder))
    path = tmp_path / "a.magnet"
    process = start(path)
    assert cli.run(command, ["mark", "77"], prog="tcpkmon") == 0
    assert cli.run(command, ["disable", "IP_RECV"], prog="tcpkmon") == 0
    transfer(5)
    assert cli.run(command, ["enable", "IP_RECV"], prog="tcpkmon") == 0
    report = stop(process, path)
    assert report.exit_code == 0 and not report.problems
    assert len(report.off) == 1 and report.off[0].startswith("IP_RECV was off from")
    rows, codes = rows_of(path)
    marks = rows[rows["event"] == codes["MARK"]]
    assert (marks["sockid"].tolist(), marks["size"].tolist()) == ([77], [os.getpid()])
