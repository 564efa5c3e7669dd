# SPDX-License-Identifier: Apache-2.0
"""Packets rebuilt from records against tcpdump's of the same traffic, and both joined.

tshark reads all files: it shares no code with what wrote them.
"""

from __future__ import annotations

import csv
import fcntl
import io
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import DEVICE, Bottleneck, Lab
from tcpkmon.collector.lab.namespaces import Side
from tests.full import IS_FULL
from tests.live.capturing import (
    Outcome,
    Pair,
    capturing,
    join,
    listening,
    receive,
    wait_until,
    within,
)

TCPKMON = Path(sys.executable).with_name("tcpkmon")
WITH_SEGMENTS = ("--columns", "all", "--locations", "default,TRANSMIT", "--buffer-size", "16")
BYTES = 12_000_000 if IS_FULL else 4_000_000
PACKET = ("tcp.srcport", "tcp.seq_raw", "tcp.ack_raw", "tcp.len", "tcp.flags")
PATHS = (None, Bottleneck(rate_mbit=50, queue_bytes=200_000, loss_percent=1.0))
SO_RCVBUFFORCE = 33
FLAGS = 0x3F
"""ECE and CWR are set where no record sees them."""
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


@dataclass
class Both:
    """A capture of the records of both ends, and tcpdump's at the client's device and the server's.

    sent: whether the kernel offers what records each segment that is sent. dropped: packets that
    reached the server's device, where tcpdump saw them, and were dropped there.
    """

    records: Path
    packets: dict[str, Path]
    outcome: Outcome
    client_port: int
    sent: bool
    dropped: int

    @property
    def seen(self) -> float:
        """The share of the packets that has records at least: some kernels run no program in the
        interrupts that come while process 1 has the CPU, and the file says so."""
        return 0.95 if "unseen" in self.outcome.capture.settings else 1.0


@contextmanager
def dumping(side: Side, path: Path) -> Iterator[None]:
    command = ["tcpdump", "-i", DEVICE, "-s", "128", "-B", "32768", "-Z", "root", "-U",
               "--immediate-mode", "-w", str(path), "tcp"]  # fmt: skip
    process = side.start(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None and "listening" in process.stderr.readline()
        yield
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert "\n0 packets dropped by kernel" in said, said


def transfer(pair: Pair, size: int = BYTES) -> None:
    """Data to the server, which reads it at once in the end, so that no segment waits for a reader
    (the kernel would join it with others); then requests and answers."""
    pair.client.sendall(bytes(size))
    wait_until(lambda: not unsent(pair.client))
    receive(pair.server, size)
    for _ in range(20):
        pair.exchange(2000)


def unsent(end: socket.socket) -> int:
    """Bytes that the peer has not acknowledged (SIOCOUTQ)."""
    return int(struct.unpack("i", fcntl.ioctl(end.fileno(), termios.TIOCOUTQ, bytes(4)))[0])


def both(
    folder: Path, bottleneck: Bottleneck | None = None, address: str = "10.77.0.2",
    size: int = BYTES,
) -> Both:  # fmt: skip
    packets = {"a": folder / "a.pcap", "b": folder / "b.pcap"}
    with Lab(bottleneck) as lab, listening(lab.b, address) as listener:
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 * BYTES)
        with capturing(folder / "both.pm", *WITH_SEGMENTS, *within(lab)) as run:
            with dumping(lab.a, packets["a"]), dumping(lab.b, packets["b"]):
                pair = join(lab.a, listener, address)
                port = pair.client_port
                transfer(pair, size)
                pair.close()
                time.sleep(0.2)
            outcome = run.stop()
        dropped = lab.dropped() if bottleneck else 0
    outcome.check_complete()
    sent = "TRANSMIT" in outcome.capture.settings["locations"]
    return Both(folder / "both.pm", packets, outcome, port, sent, dropped)


def tshark(path: Path, *fields: str, only: str = "tcp") -> list[list[str]]:
    """The fields of the packets that pass the filter."""
    words = ["tshark", "-r", path, "-Y", only, "-T", "fields", "-E", "separator=/t",
             "-o", "tcp.relative_sequence_numbers:TRUE"]  # fmt: skip
    words += [word for field in fields for word in ("-e", field)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in text.splitlines()]


def run_tcpkmon(*words: str | Path) -> str:
    done = subprocess.run([TCPKMON, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def packets_of(path: Path, only: str) -> list[tuple[int, ...]]:
    """Port, sequence number, ACK, length and flags of packets."""
    found = []
    for port, seq, ack, length, flags in tshark(path, *PACKET, only=only):
        found.append((int(port), int(seq), int(ack), int(length), int(flags, 16) & FLAGS))
    return found


@pytest.mark.parametrize(("address", "bottleneck"), [
    pytest.param("10.77.0.2", PATHS[0], id="10.77.0.2-free", marks=pytest.mark.full),
    pytest.param("10.77.0.2", PATHS[1], id="10.77.0.2-lossy", marks=pytest.mark.full),
    pytest.param("fd77::2", PATHS[0], id="fd77::2-free", marks=pytest.mark.full),
    pytest.param("fd77::2", PATHS[1], id="fd77::2-lossy"),
])  # fmt: skip
def test_rebuilt_packets_are_those_of_tcpdump(
    tmp_path: Path, bottleneck: Bottleneck | None, address: str
) -> None:
    made = both(tmp_path, bottleneck, address)
    out = tmp_path / "rebuilt.pcapng"
    run_tcpkmon("export", made.records, "-o", out)
    by_client = f"tcp.srcport == {made.client_port}"
    arrived = packets_of(out, f'{by_client} && frame.interface_name contains "SEGMENT_"')
    # The handshake has no established connection yet, and the last ACK may have none any more.
    real = packets_of(made.packets["b"], by_client)[2:]
    # The kernel may join segments that wait while a process has the socket.
    whole = Counter(real)
    alone = [one for one in arrived if whole[one]]
    assert len(alone) >= 0.99 * len(arrived)
    assert not Counter(alone) - whole
    if bottleneck is None:
        seen = iter(real)
        assert all(one in seen for one in alone)  # each one, in this order
    if len(alone) == len(arrived):
        missing = len(real) - len(arrived) - made.dropped
        assert 0 <= missing <= 1 + (1 - made.seen) * len(real)
    assert sum(one[3] for one in arrived) >= made.seen * BYTES
    if made.sent:
        sent = packets_of(out, f'{by_client} && frame.interface_name == "TRANSMIT"')
        left = packets_of(made.packets["a"], by_client)
        assert Counter(sent) == Counter(left)


@pytest.mark.parametrize("bottleneck", [
    pytest.param(PATHS[0], id="free", marks=pytest.mark.full), pytest.param(PATHS[1], id="lossy"),
])  # fmt: skip
def test_joined_packets_have_the_state_at_their_time(
    tmp_path: Path, bottleneck: Bottleneck | None
) -> None:
    made = both(tmp_path, bottleneck)
    records = {int(one): at for at, one in enumerate(made.outcome.records["seq"])}
    columns = made.outcome.records.columns
    for side, packets in made.packets.items():
        out, table = tmp_path / f"{side}.pcapng", tmp_path / f"{side}.csv"
        run_tcpkmon("join", made.records, packets, "-o", out, "--table", table)
        assert packets_of(out, "tcp") == packets_of(packets, "tcp")
        port = made.client_port
        here = f"tcp.dstport == {port}" if side == "a" else f"tcp.srcport == {port}"
        arrive = {
            int(one[0]): one[1:] for one in tshark(packets, "frame.number", *PACKET, only=here)
        }
        rows = list(csv.DictReader(io.StringIO(table.read_text())))
        mine = [row for row in rows if int(row["packet"]) in arrive and row["direction"] == "in"]
        found = [row for row in mine if row["match"] in ("record", "part")]
        expected = len(arrive) - (made.dropped if side == "b" else 0)
        # Not the handshake, nor the last ACK.
        assert made.seen * 0.99 * expected - 2 <= len(found) <= expected
        used = Counter(row["record"] for row in found if row["match"] == "record")
        assert max(used.values()) == 1
        segments = made.outcome.records.at("SEGMENT_RECEIVED", "SEGMENT_CLOSING")
        ends = segments.where(lport=port) if side == "a" else segments.where(rport=port)
        whole = {str(one) for one in ends["seq"].tolist()}
        assert len(whole - set(used)) <= sum(row["match"] == "part" for row in found)
        last = -1
        for row in found:
            at = records[int(row["record"])]
            _, seq, ack, length, flags = arrive[int(row["packet"])]
            if row["match"] == "record":
                told = (columns["seg_seq"][at], columns["seg_len"][at], columns["seg_ack"][at])
                assert told == (int(seq), int(length), int(ack))
                assert columns["seg_flags"][at] & FLAGS == int(flags, 16) & FLAGS
            assert at >= last
            last = at
            assert -1000 < float(row["delay_us"]) < 100_000
            if row["after_snd_una"] and row["match"] == "record":
                newer = (int(ack) - int(row["before_snd_una"])) & 0xFFFFFFFF
                known = (int(row["before_snd_nxt"]) - int(row["before_snd_una"])) & 0xFFFFFFFF
                after = (int(row["after_snd_una"]) - int(row["before_snd_una"])) & 0xFFFFFFFF
                assert after >= newer if newer <= known else True
        if made.sent:
            check_sent(made, rows, packets, f"!({here})")
        said = f'{here} && frame.comment contains "tcpkmon in before (record"'
        comments = tshark(out, "frame.comment", only=said)
        assert len(comments) == sum(used.values())


def check_sent(made: Both, rows: list[dict[str, str]], packets: Path, here: str) -> None:
    """Where each segment that is sent has a record, so has each packet, once."""
    columns = made.outcome.records.columns
    at = {int(one): place for place, one in enumerate(columns["seq"])}
    left = {int(one[0]): one[1:] for one in tshark(packets, "frame.number", *PACKET, only=here)}
    found = [
        row for row in rows if row["direction"] == "out" and row["match"] == "record"
        and int(row["packet"]) in left
    ]  # fmt: skip
    for row in found:
        _, seq, ack, length, flags = left[int(row["packet"])]
        place = at[int(row["record"])]
        told = [int(columns[name][place]) for name in ("seg_seq", "seg_len", "rcv_nxt")]
        assert told == [int(seq), int(length), int(ack) if int(flags, 16) & 16 else told[2]]
    assert max(Counter(row["record"] for row in found).values()) == 1
    if packets == made.packets["a"] or not made.dropped:  # the router may cut and join others
        assert len(found) >= 0.99 * len(left) - 1  # the SYN-ACK
