# SPDX-License-Identifier: Apache-2.0
"""Packets of a lossy transfer beside records of each segment that is sent: the state at each one.

Only here: kernels in the lab of some hosts offer nothing that records TRANSMIT.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Bottleneck
from tests.live.capturing import Records
from tests.live.test_wireshark_live import (
    PACKET,
    both,
    check_sent,
    packets_of,
    run_tcpkmon,
    tshark,
)

BYTES = 600_000
PATH = Bottleneck(rate_mbit=20, queue_bytes=100_000, loss_percent=5.0)
WAYS = ("record", "part", "time", "none")
TOLD = r"([\d,]+) (?:have a record|are part of one|have the state|are of no connection)"
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


def test_each_packet_of_a_lossy_transfer_has_its_states(tmp_path: Path) -> None:
    made = both(tmp_path, PATH, size=BYTES)
    if not made.sent:
        missing = made.outcome.capture.settings["missing_locations"]
        pytest.skip(f"no record of what is sent: {missing.get('TRANSMIT')}")
    rebuilt = tmp_path / "rebuilt.pcapng"
    run_tcpkmon("export", made.records, "-o", rebuilt)
    packets, out, table = made.packets["a"], tmp_path / "a.pcapng", tmp_path / "a.csv"
    said = run_tcpkmon("join", made.records, packets, "-o", out, "--table", table)
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    left = f"tcp.srcport == {made.client_port}"
    sent = packets_of(packets, left)
    assert Counter(packets_of(rebuilt, f'{left} && frame.interface_name == "TRANSMIT"')) == Counter(
        sent
    )
    check_sent(made, rows, packets, left)
    check_each(said, rows, len(packets_of(packets, "tcp")))
    check_again(made.outcome.records, rows, packets, left)
    told = tshark(out, "frame.number", only='frame.comment contains "tcpkmon out before (record"')
    assert len(told) >= len(sent)  # those of the server too


def check_each(said: str, rows: list[dict[str, str]], packets: int) -> None:
    """Each packet is counted in one way, and has the states that this way gives."""
    counts = [int(one.replace(",", "")) for one in re.findall(TOLD, said)]
    assert sum(counts) == packets and len(counts) == len(WAYS), said
    best: dict[str, int] = {}
    for row in rows:
        way = WAYS.index(row["match"])
        best[row["packet"]] = min(way, best.get(row["packet"], way))
    assert len(best) == packets
    assert [list(best.values()).count(way) for way in range(len(WAYS))] == counts
    known = [row for row in rows if row["match"] in ("record", "part")]
    assert all(row["before_state"] and row["before_snd_una"] for row in known)
    # A connection's last record has none after it.
    ends = Counter(row["conn_id"] for row in known if not row["after_state"])
    assert len(known) - ends.total() > 0.98 * len(known) and max(ends.values(), default=0) <= 2


def check_again(records: Records, rows: list[dict[str, str]], packets: Path, left: str) -> None:
    """Of bytes that were sent more than once, the first packet has the first record, and so on."""
    transmits = records.at("TRANSMIT")
    of_bytes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for seq, length, number in zip(*(transmits[name].tolist() for name in (
            "seg_seq", "seg_len", "seq")), strict=True):  # fmt: skip
        of_bytes[seq, length].append(number)
    found = {row["packet"]: row for row in rows
             if row["direction"] == "out" and row["match"] == "record"}  # fmt: skip
    seen: Counter[tuple[int, int]] = Counter()
    again = 0
    for number, _, seq, _, length, _ in tshark(packets, "frame.number", *PACKET, only=left):
        key = int(seq), int(length)
        place = seen[key]
        seen[key] += 1
        if key[1] and number in found and len(of_bytes[key]) > 1:
            assert int(found[number]["record"]) == of_bytes[key][place]
            again += place > 0
    assert again
