# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon export --format pcapng`, read by the real tshark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tests.unit.psc_files import (
    DESTROY,
    RECEIVED,
    RETRANSMIT,
    RTO,
    STATE_CHANGE,
    TRANSMIT,
    clean_capture,
    write_segments,
)

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
WIDE = {"laddr": "fd00::1", "raddr": "fd00::2", "family": 10, "conn_id": 2}
RECORDS = [
    {"location": STATE_CHANGE, "state": 2, "callvalue": 1, "seg_flags": 0},
    {"location": TRANSMIT, "seg_seq": 999, "seg_flags": 2, "seg_len": 0, "rcv_nxt": 0, "state": 2},
    {"location": TRANSMIT, "seg_seq": 1000, "seg_len": 1000, "seg_flags": 24},
    {"location": RECEIVED, "seg_seq": 9000, "seg_ack": 2000, "seg_len": 0, "snd_una": 1000},
    {"location": RTO, "callvalue": 1, "ca_state": 4, "seg_flags": 0},
    {"location": RETRANSMIT, "seg_seq": 2000, "seg_len": 1000, "callvalue": 2000},
    {"location": TRANSMIT, "seg_seq": 2000, "seg_len": 1000, "ca_state": 4},
    {"location": TRANSMIT, "seg_seq": 3000, "seg_len": 70_000},
    {"location": RECEIVED, "seg_seq": 5, "seg_ack": 7, "seg_len": 1200, **WIDE},
    {"location": RECEIVED, "seg_seq": 9000, "seg_ack": 3000, "seg_len": 500, "snd_una": 2000},
    {"location": DESTROY, "state": 7, "seg_flags": 0},
]


def tshark(path: Path, *fields: str, only: str = "") -> list[list[str]]:
    words = ["tshark", "-n", "-r", str(path), "-T", "fields", *(["-Y", only] if only else [])]
    words += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stderr and "bug" not in done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def export(*words: object) -> int:
    return cli.run(command, ["export", *map(str, words)], "tcpkmon")


def made(folder: Path, code: int = 0, **options: object) -> Path:
    write_segments(folder / "a.pm", RECORDS, **options)  # type: ignore[arg-type]
    assert export(folder / "a.pm", "-o", folder / "a.pcapng") == code
    return folder / "a.pcapng"


def test_packets_are_rebuilt(tmp_path: Path) -> None:
    out = made(tmp_path)
    fields = ("frame.interface_name", "ip.src", "tcp.srcport", "tcp.seq_raw", "tcp.ack_raw",
              "tcp.len", "tcp.flags", "frame.len", "frame.cap_len")  # fmt: skip
    found = tshark(out, *fields, only="ip")
    assert found == [
        ["TRANSMIT", "10.0.0.1", "5000", "999", "0", "0", "0x0002", "48", "48"],
        ["TRANSMIT", "10.0.0.1", "5000", "1000", "9000", "1000", "0x0018", "1040", "40"],
        ["SEGMENT_RECEIVED", "10.0.0.2", "80", "9000", "2000", "0", "0x0010", "40", "40"],
        ["TRANSMIT", "10.0.0.1", "5000", "2000", "9000", "1000", "0x0010", "1040", "40"],
        ["TRANSMIT", "10.0.0.1", "5000", "3000", "9000", "70000", "0x0018", "70040", "40"],
        ["SEGMENT_RECEIVED", "10.0.0.2", "80", "9000", "3000", "500", "0x0010", "540", "40"],
    ]
    fields = ("ipv6.src", "ipv6.dst", "tcp.seq_raw", "tcp.ack_raw", "tcp.len")
    assert tshark(out, *fields, only="ipv6") == [["fd00::2", "fd00::1", "5", "7", "1200"]]
    assert tshark(out, "tcp.window_size_value", "tcp.options.mss_val", "tcp.options.wscale.shift",
                  only="tcp.flags.syn == 1") == [["65535", "1460", "7"]]  # fmt: skip
    assert tshark(out, "tcp.window_size_value", only="tcp.seq_raw == 1000 || tcp.seq_raw == 5") == [
        [str(131072 >> 7)], [str(65536 >> 2)]
    ]
    assert not tshark(out, "frame.number", only="_ws.malformed")
    (first,) = tshark(out, "frame.time_epoch", only="tcp.flags.syn == 1")[0]
    assert first == "1700000000.001000000"


def test_comments_and_events_tell_the_state(tmp_path: Path) -> None:
    out = made(tmp_path)
    said = [one for (one,) in tshark(out, "frame.comment", only="ip")]
    assert said[2].startswith("SEGMENT_RECEIVED limit=")
    assert "cwnd=10 ssthresh=inf srtt_us=24000" in said[2]
    assert tshark(out, "frame.number", only='frame.comment contains "ca_state=Loss"')
    events = tshark(out, "bblog.flex_1", "bblog.flex_2", "bblog.state", "bblog.snd_cwnd",
                    "bblog.srtt", "bblog.event_id", "bblog.snd_una", only="bblog")  # fmt: skip
    assert [one for one in events if one[0]] == [
        ["4", "1", "2", "10000", "24000", "0", "1000"],
        ["14", "1", "4", "10000", "24000", "3", "1000"],
        ["2", "2000", "4", "10000", "24000", "2", "1000"],
        ["11", "0", "0", "10000", "24000", "54", "1000"],
    ]
    assert tshark(out, "frame.time_epoch", only="bblog.flex_1 == 14") == [["1700000000.004000000"]]
    assert any(
        "10.0.0.1:5000 -> 10.0.0.2:80 RTO" in one
        for (one,) in tshark(out, "frame.comment", only="bblog.flex_1 == 14")
    )
    again = tshark(out, "tcp.seq_raw", only="tcp.analysis.ack_rtt")
    assert again == [["9000"], ["9000"]]


def test_losses_are_skip_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made(tmp_path, 3, lose=[2, 3, 10])
    found = [one for (one,) in tshark(out, "frame.comment") if one.startswith("records")]
    assert found == ["records lost here: 2", "records lost here: 1"]
    text = subprocess.check_output(["tshark", "-n", "-r", out], text=True)
    shown = [line.split("events: ")[1] for line in text.splitlines() if "skipped" in line]
    assert shown == ([] if "Netflix" in text else ["2", "1"])  # Wireshark 4.4 shows no number
    assert "3 records were lost" in capsys.readouterr().err


def comment_of(path: Path) -> str:
    return subprocess.check_output(["capinfos", path], text=True)


def test_the_section_says_what_the_file_cannot_hold(tmp_path: Path) -> None:
    assert "one direction" not in comment_of(made(tmp_path))
    (tmp_path / "less").mkdir()
    said = comment_of(made(tmp_path / "less", transmit=False))
    assert "one direction" in said and "collect --locations default,TRANSMIT" in said
    out = tmp_path / "less/a.pcapng"
    assert tshark(out, "tcp.seq_raw", only='frame.interface_name == "RETRANSMIT"') == [["2000"]]


def test_without_acks_no_packet_claims_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = made(tmp_path, leave="seg_ack")
    assert "packets that arrived have no ACK" in capsys.readouterr().err
    assert "lack ACK" in comment_of(out)
    claims = 'frame.interface_name == "SEGMENT_RECEIVED" && tcp.flags.ack == 1'
    assert not tshark(out, "frame.number", only=claims)


def test_captures_without_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segments(tmp_path / "a.pm", RECORDS, leave="seg_flags")
    assert export(tmp_path / "a.pm", "-o", tmp_path / "a.pcapng") == 2
    assert "it lacks seg_flags" in capsys.readouterr().err
    assert not (tmp_path / "a.pcapng").exists()
    clean_capture().write(tmp_path / "b.pm")
    assert export(tmp_path / "b.pm", "-o", tmp_path / "a.pcapng") == 2
    assert "lacks what tells the limits" in capsys.readouterr().err
