# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon join`: which record each packet gets, the states, and that all else stays."""

from __future__ import annotations

import csv
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.packets.blocks import RAW_IP, block, enhanced, interface, section
from tests.unit.psc_files import (
    DESTROY,
    LOCAL,
    REALTIME_NS,
    RECEIVED,
    REMOTE,
    RETRANSMIT,
    TRANSMIT,
    packet,
    pcapng,
    write_segments,
)

OUT, IN = (LOCAL, REMOTE), (REMOTE, LOCAL)
OTHER = ("10.0.0.9", 443)


def join(*words: object) -> int:
    return cli.run(command, ["join", *map(str, words)], "tcpkmon")


def rows(
    folder: Path, records: list[dict[str, Any]], packets: bytes, **options: Any
) -> list[dict[str, str]]:
    """The table of a capture and packets."""
    write_segments(folder / "a.pm", records, **options)
    (folder / "in.pcapng").write_bytes(packets)
    code = join(folder / "a.pm", folder / "in.pcapng", "-o", folder / "out.pcapng", "--table",
                folder / "out.csv", "--force")  # fmt: skip
    assert code == (3 if options.get("lose") else 0)
    return list(csv.DictReader((folder / "out.csv").open()))


def pick(found: list[dict[str, str]], *names: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in names) for row in found]


def received(ms: float, seq: int, ack: int, length: int = 0, **more: Any) -> dict[str, Any]:
    segment = {"seg_seq": seq, "seg_ack": ack, "seg_len": length}
    return {"location": RECEIVED, "ms": ms, **segment, **more}


def sent(ms: float, seq: int, length: int, **more: Any) -> dict[str, Any]:
    return {"location": TRANSMIT, "ms": ms, "seg_seq": seq, "seg_len": length, **more}


SENDS = [
    sent(0, 1000, 1000, snd_una=1000, snd_cwnd_segs=10),
    received(5, 9000, 2000, snd_una=1000, snd_cwnd_segs=10),
    sent(5.1, 2000, 2000, snd_una=2000, snd_cwnd_segs=11),
    received(9, 9000, 4000, snd_una=2000, snd_cwnd_segs=11),
    {"location": DESTROY, "ms": 20, "state": 7, "snd_una": 4000, "snd_cwnd_segs": 12},
]


def test_each_packet_has_the_state_before_and_after(tmp_path: Path) -> None:
    found = rows(tmp_path, SENDS, pcapng(
        (0.01, packet(*OUT, 1000, 9000, 1000), 1000), (4.9, packet(*IN, 9000, 2000), 0),
        (5.11, packet(*OUT, 2000, 9000, 2000), 2000), (8.99, packet(*IN, 9000, 4000), 0),
    ))  # fmt: skip
    assert pick(found, "packet", "direction", "match", "record", "before_cwnd", "after_cwnd") == [
        ("1", "out", "record", "2", "10", "10"), ("2", "in", "record", "3", "10", "11"),
        ("3", "out", "record", "4", "11", "11"), ("4", "in", "record", "5", "11", "12"),
    ]  # fmt: skip
    assert pick(found[1:2], "src", "src_port", "seq", "ack", "length", "before_snd_una",
                "after_snd_una", "delay_us", "before_state", "conn_id", "before_ssthresh") == [
        ("10.0.0.2", "80", "9000", "2000", "0", "1000", "2000", "100", "ESTABLISHED", "1", "")
    ]  # fmt: skip


def test_packets_the_kernel_joined_or_a_device_cut(tmp_path: Path) -> None:
    found = rows(tmp_path, [
        sent(0, 1000, 3000), received(3, 9000, 4000, 2500), received(6, 11_500, 4000),
        received(9, 11_500, 6000),
    ], pcapng(
        (0.1, packet(*OUT, 1000, 9000, 1500), 1500), (0.2, packet(*OUT, 2500, 9000, 1500), 1500),
        (2.1, packet(*IN, 9000, 4000, 1000), 1000), (2.2, packet(*IN, 10_000, 4000, 1500), 1500),
        (5.9, packet(*IN, 11_500, 4000), 0),
        (8.7, packet(*IN, 11_500, 5000), 0), (8.8, packet(*IN, 11_500, 6000), 0),
    ))  # fmt: skip
    assert pick(found, "match", "record") == [
        ("part", "2"), ("part", "2"), ("part", "3"), ("part", "3"), ("record", "4"), ("part", "5"),
        ("record", "5"),
    ]  # fmt: skip


def test_of_two_same_packets_the_one_that_arrived(tmp_path: Path) -> None:
    """The first was lost between device and TCP (in), or TCP's first before the device (out)."""
    found = rows(tmp_path, [
        received(50, 9000, 1000, 500), sent(100, 1000, 700), sent(300, 1000, 700),
    ], pcapng(
        (1, packet(*IN, 9000, 1000, 500), 500), (49, packet(*IN, 9000, 1000, 500), 500),
        (301, packet(*OUT, 1000, 9000, 700), 700),
    ))  # fmt: skip
    assert pick(found, "match", "record") == [("time", ""), ("record", "2"), ("record", "4")]


def test_duplicate_acks_keep_their_order(tmp_path: Path) -> None:
    acks = [received(10 + n / 10, 9000, 1000) for n in range(5)]
    packets = [(n / 10, packet(*IN, 9000, 1000), 0) for n in range(5)]
    found = rows(tmp_path, acks, pcapng(*packets))
    assert pick(found, "record") == [("2",), ("3",), ("4",), ("5",), ("6",)]


def test_packets_of_no_record_have_the_state_of_their_time(tmp_path: Path) -> None:
    found = rows(tmp_path, SENDS, pcapng(
        (-3, packet(*OUT, 999, 0, 0, 2), 0),  # before the first record
        (2, packet(*OUT, 1, 1, 7), 7),
        (25, packet(*IN, 9000, 4000), 0),  # the connection is over
        (3, packet(LOCAL, OTHER, 1), 0),
    ))  # fmt: skip
    assert pick(found, "match", "conn_id", "before_cwnd", "after_cwnd") == [
        ("time", "1", "", "10"), ("time", "1", "10", "10"), ("none", "", "", ""),
        ("none", "", "", ""),
    ]  # fmt: skip
    assert pick(found[3:], "dst", "dst_port") == [("10.0.0.9", "443")]


def test_both_ends_in_one_capture(tmp_path: Path) -> None:
    far = {"laddr": REMOTE[0], "raddr": LOCAL[0], "lport": 80, "rport": 5000, "conn_id": 2}
    found = rows(tmp_path, [sent(0, 1000, 500), received(2, 1000, 9000, 500, **far)],
                 pcapng((1, packet(*OUT, 1000, 9000, 500), 500)))  # fmt: skip
    assert pick(found, "packet", "direction", "conn_id", "record") == [
        ("1", "out", "1", "2"), ("1", "in", "2", "3")
    ]


def test_ports_that_another_connection_had_before(tmp_path: Path) -> None:
    found = rows(tmp_path, [
        sent(0, 1000, 500), {"location": DESTROY, "ms": 5, "state": 7},
        sent(20, 1000, 500, conn_id=2), received(30, 9000, 1500, conn_id=2),
    ], pcapng((0.1, packet(*OUT, 1000, 9000, 500), 500), (20.1, packet(*OUT, 1000, 9000, 500), 500),
              (25, packet(*OUT, 7, 7), 0)))  # fmt: skip
    assert pick(found, "match", "conn_id", "record") == [
        ("record", "1", "2"), ("record", "2", "4"), ("time", "2", "")
    ]


def test_records_that_are_missing_between(tmp_path: Path) -> None:
    found = rows(tmp_path, SENDS, pcapng((0.01, packet(*OUT, 1000, 9000, 1000), 1000)), lose=[1, 2])
    assert pick(found, "match", "record", "lost_records") == [("record", "2", "2")]
    assert b"after (2 records lost between)" in (tmp_path / "out.pcapng").read_bytes()


def test_without_transmit_retransmissions_have_records(tmp_path: Path) -> None:
    again = {"location": RETRANSMIT, "ms": 5, "seg_seq": 1000, "seg_len": 500}
    segment = packet(*OUT, 1000, 9000, 500)
    packets = pcapng((0, segment, 500), (5.1, segment, 500))
    found = rows(tmp_path, [again], packets, transmit=False)
    assert pick(found, "match") == [("time",), ("record",)]


def test_sequence_numbers_that_wrap(tmp_path: Path) -> None:
    top = (1 << 32) - 500
    found = rows(tmp_path, [sent(0, top, 3000)], pcapng(
        (0.1, packet(*OUT, top, 9000, 1400), 1400),
        (0.2, packet(*OUT, top + 1400, 9000, 1600), 1600),
    ))  # fmt: skip
    assert pick(found, "match") == [("part",), ("part",)]


def test_all_other_blocks_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = block(0x0BAD1234, b"who knows?!!")
    simple = block(3, struct.pack("<I", 4) + b"abcd")
    data = pcapng((0.01, packet(*OUT, 1000, 9000, 1000), 1000)) + strange + simple
    data += section("second") + interface(RAW_IP) + enhanced(0, REALTIME_NS, b"junk", 4)
    found = rows(tmp_path, SENDS, data)
    made = (tmp_path / "out.pcapng").read_bytes()
    assert made.endswith(data[data.index(strange) :])
    assert made.startswith(data[: len(section("test")) + len(interface(RAW_IP, "eth0"))])
    assert b"theirs" in made and b"tcpkmon out before (record 2): TRANSMIT limit=" in made
    assert [row["packet"] for row in found] == ["1", "3"]
    said = capsys.readouterr().err
    assert "3 packets, 1 of them TCP: 1 have a record" in said
    assert "1 packets are not TCP" in said and "1 packets have no time" in said


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_tshark_reads_both_comments(tmp_path: Path) -> None:
    rows(tmp_path, SENDS, pcapng((4.9, packet(*IN, 9000, 2000), 0)))
    text = subprocess.check_output(
        ["tshark", "-n", "-r", tmp_path / "out.pcapng", "-Y", 'frame.comment contains "cwnd=11"',
         "-T", "fields", "-e", "frame.comment"], text=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert "tcpkmon in before (record 3): SEGMENT_RECEIVED" in text
    assert "tcpkmon in after: TRANSMIT" in text and "theirs" in text


def test_errors_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, packets = write_segments(tmp_path / "a.pm", SENDS), tmp_path / "in.pcapng"
    data = pcapng((4.9, packet(*IN, 9000, 2000), 0), (8.99, packet(*IN, 9000, 4000), 0))
    packets.write_bytes(data)
    for words, said in (
        ((capture, packets), "needs -o or --table"),
        ((capture, packets, "--table", tmp_path / "x.txt"), "ending is of no table"),
        ((capture, packets, "-o", packets), "one of the captures"),
        ((capture, packets, "-o", tmp_path / "x.csv", "--table", tmp_path / "x.csv"), "same file"),
        ((packets, packets, "-o", tmp_path / "x"), "in.pcapng"),
    ):
        assert join(*words) in (1, 2, 5)
        assert said in capsys.readouterr().err
    assert packets.read_bytes() == data
    packets.write_bytes(data[:-9])
    assert join(capture, packets, "-o", tmp_path / "x") == 5
    assert "ends within a block" in capsys.readouterr().err
    assert (tmp_path / "x").stat().st_size > 200
    packets.write_bytes(data + b"\6\0\0\0\1\0\0\0" + bytes(8))
    assert join(capture, packets, "-o", tmp_path / "y") == 5
    assert "a block of 1 bytes" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def test_records_that_are_too_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tcpkmon.formats.analysis.beside import window

    records = [received(n / 10, 9000, 1000) for n in range(9)]
    packets = pcapng((0, packet(*IN, 9000, 1000), 0))
    monkeypatch.setattr(window, "MOST_BESIDE", 9)
    assert pick(rows(tmp_path, records, packets), "match") == [("record",)]
    monkeypatch.setattr(window, "MOST_BESIDE", 8)
    words = (tmp_path / "a.pm", tmp_path / "in.pcapng", "-o", tmp_path / "x")
    assert join(*words) == 2
    assert "more than 8 records" in capsys.readouterr().err and not (tmp_path / "x").exists()
    # Old records of a connection make room.
    slow = [received(n * 5000, 9000, 1000) for n in range(30)]
    assert pick(rows(tmp_path, slow, pcapng((140_000, packet(*IN, 9000, 1000), 0))), "match") == [
        ("record",)
    ]
