# SPDX-License-Identifier: Apache-2.0
"""Packets rebuilt from records against tcpdump's of the same traffic, and both joined.

tshark reads all files: it shares no code with what wrote them.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.lab.lab import DEVICE, Bottleneck, Lab
from tests.live.capturing import Outcome, Pair, capturing, connected, receive, wait_until, within

TCPKMON = Path(sys.executable).with_name("tcpkmon")
WITH_SEGMENTS = ("--columns", "all", "--locations", "default,TRANSMIT", "--buffer-size", "16")
BYTES = 6_000_000
PACKET = ("tcp.srcport", "tcp.seq_raw", "tcp.ack_raw", "tcp.len", "tcp.flags")
FLAGS = 0x3F
"""ECE and CWR are set where no record sees them."""
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


@dataclass
class Both:
    """A capture of records, and tcpdump's of the client's device and of the server's."""

    records: Path
    packets: Path
    outcome: Outcome
    client_port: int


@contextmanager
def dumping(lab: Lab, path: Path) -> Iterator[None]:
    command = ["tcpdump", "-i", DEVICE, "-s", "128", "-B", "65536", "-Z", "root", "-U", "-w",
               str(path), "tcp"]  # fmt: skip
    process = lab.a.start(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), True)
        assert "listening" in process.stderr.readline()
        yield
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert "0 packets dropped by kernel" in said, said


def transfer(pair: Pair) -> None:
    """Data to the server, in the end some back."""
    reader = threading.Thread(target=receive, args=(pair.server, BYTES))
    reader.start()
    pair.client.sendall(bytes(BYTES))
    reader.join()
    for _ in range(20):
        pair.exchange(2000)


def both(folder: Path, bottleneck: Bottleneck | None = None, address: str = "10.77.0.2") -> Both:
    with Lab(bottleneck) as lab:
        only_a = ("--netns", lab.a.name)
        with capturing(folder / "a.pm", *WITH_SEGMENTS, *only_a) as run:
            with dumping(lab, folder / "a.pcap"), connected(lab, address) as pair:
                port = pair.client_port
                transfer(pair)
            outcome = run.stop()
    outcome.check_complete()
    return Both(folder / "a.pm", folder / "a.pcap", outcome, port)


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


def packets_of(path: Path) -> list[tuple[int, ...]]:
    found = []
    for port, seq, ack, length, flags in tshark(path, *PACKET):
        found.append((int(port), int(seq), int(ack), int(length), int(flags, 16) & FLAGS))
    return found


@pytest.mark.parametrize("bottleneck", [None, Bottleneck(rate_mbit=50, loss_percent=1.0)],
                         ids=["free", "lossy"])  # fmt: skip
@pytest.mark.parametrize("address", ["10.77.0.2", "fd77::2"])
def test_rebuilt_packets_are_those_of_tcpdump(
    tmp_path: Path, bottleneck: Bottleneck | None, address: str
) -> None:
    made = both(tmp_path, bottleneck, address)
    out = tmp_path / "rebuilt.pcapng"
    run_tcpkmon("export", made.records, "-o", out)
    rebuilt, real = packets_of(out), packets_of(made.packets)
    for port_is_client in (True, False):
        ours = [one for one in rebuilt if (one[0] == made.client_port) == port_is_client]
        theirs = [one for one in real if (one[0] == made.client_port) == port_is_client]
        if not port_is_client:
            theirs = theirs[1:]  # the SYN-ACK
        assert Counter(ours) == Counter(theirs)
        assert ours == theirs or not port_is_client
