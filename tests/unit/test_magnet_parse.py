# SPDX-License-Identifier: Apache-2.0
"""MAGNeT records as C has them in every layout, and magnet-parse, decode and export of them."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow.ipc
import pytest
from pyarrow import parquet

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.magnet.control import decode, encode, encode_header, text_records
from tcpkmon.formats.magnet.layout import EVERY, IP, NATIVE, TCP, Layout, convert
from tests.unit.log_files import MONO_NS, clean_file, in_layout, lossy_file

SIZES = {(64, False): 24, (64, True): 120, (32, False): 20, (32, True): 68}
# struct magnet_data, then struct magnet_tcp, and struct magnet_ip at its place. C pads a structure
# of 64 bits before the first long, and both at the end.
TCP_FORMATS = {64: "QQIi2H4x10QH6x", 32: "IQIi2H10IH2x"}
IP_FORMATS = {64: "QQIi2B2H2B88x", 32: "IQIi2B2H2B40x"}


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_record_is_as_c_has_it(layout: Layout) -> None:
    assert layout.size == SIZES[layout.bits, layout.data]
    head = layout.order + ("QQIi" if layout.bits == 64 else "IQIi")
    if not layout.data:
        (row,) = layout.rows(struct.pack(head, 7, 8, 9, -10))
        assert row.tolist() == (7, 8, 9, -10)
        return
    values = list(range(100, 112))
    data = struct.pack(layout.order + TCP_FORMATS[layout.bits], 7, 8, 9, -10, *values, 0x0102)
    (row,) = layout.rows(data)
    assert [int(row[name]) for name in TCP] == [*values, 0x0102]
    data = struct.pack(layout.order + IP_FORMATS[layout.bits], 7, 8, 9, -10, 4, 16, 500, 600, 64, 6)
    (row,) = layout.rows(data)
    assert [int(row[name]) for name in IP] == [4, 16, 500, 600, 64, 6]


def test_bit_fields_begin_at_the_other_end() -> None:
    native, big = NATIVE[True], Layout(">", 64, True)
    rows = np.zeros(3, native.dtype)
    rows["flags"] = [1, 2, 0x80]  # FIN, SYN, CWR
    found = convert(rows, native, big, np.full(3, "tcp"))
    assert found["flags"].tolist() == [0x8000, 0x4000, 0x0100]


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_control_entry(layout: Layout) -> None:
    values = {"kind": "CHECK", "time_ns": 5, "number": 1, "records": 0, "block": 0, "sums": []}
    data = encode(values | {"text": "x" * 300}, layout)
    rows = layout.rows(data)
    assert decode(rows, layout) == values | {"text": "x" * 300}
    for at in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[at] ^= bit
            other = layout.rows(bytes(changed))
            if (other["event"] != rows["event"]).any():
                continue  # whoever walks does not find an entry there
            with pytest.raises(DamagedError):
                decode(other, layout)
    with pytest.raises(DamagedError, match="not whole"):
        decode(rows[:-1], layout)


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_header(layout: Layout) -> None:
    data = encode_header({"a": "b" * 100}, layout)
    rows = layout.rows(data)
    assert len(rows) == 1 + text_records(int(rows["size"][0]), layout)
    assert decode(rows, layout) == {"a": "b" * 100}
    word = layout.bits // 8
    for at in {*range(8, word + 8), *range(word + 16, layout.size)}:
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DamagedError):
            decode(layout.rows(bytes(changed)), layout)


Capture = pytest.CaptureFixture[str]
HEAD = ["sockid", "timestamp", "event", "size"]


def tool(*arguments: object) -> int:
    return cli.run(command, [str(one) for one in arguments], prog="tcpkmon")


def parse(capfd: Capture, *arguments: object, code: int = 0) -> list[list[str]]:
    capfd.readouterr()
    assert tool("magnet-parse", *arguments) == code, capfd.readouterr().err
    return [line.split("\t") for line in capfd.readouterr().out.splitlines()]


def test_the_table(tmp_path: Path, capfd: Capture) -> None:
    path = clean_file(tmp_path / "a").write()
    table = parse(capfd, path)
    assert table[0] == HEAD
    assert table[1] == ["7", str(MONO_NS + 1), "MAGNET_CONNECTION", "0"]
    assert table[2] == ["1", str(MONO_NS - 5), "MAGNET_SOCK_SEND", "100"]
    assert next(row for row in table if row[3] == "-11")[2] == "MAGNET_SOCK_RECV"
    assert ["5", "MARK", "99"] in [[row[0], *row[2:]] for row in table]
    assert len(table) == 1 + 184


def test_the_table_with_data(tmp_path: Path, capfd: Capture) -> None:
    table = parse(capfd, clean_file(tmp_path / "a", data=True).write())
    assert table[0] == [*HEAD, *TCP, *IP]
    assert {len(row) for row in table} == {len(table[0])}
    rows = {row[2]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
    sent, ip = rows["MAGNET_TCP_SEND"], rows["MAGNET_IP_SEND"]
    assert (sent["source"], sent["dest"], sent["snd_cwnd"]) == ("5001", "40000", "10")
    assert (sent["copied_seq"], sent["flags"], sent["ttl"]) == ("4000000000", "18", "-")
    assert (ip["version"], ip["id"], ip["ttl"], ip["source"]) == ("4", "4660", "64", "-")
    assert set(list(rows["MAGNET_CONNECTION"].values())[4:]) == {"-"}


@pytest.mark.parametrize(
    ("order", "bits", "data"), [("<", 32, True), (">", 32, False), (">", 64, True)]
)
def test_other_machines(
    tmp_path: Path, capfd: Capture, data: bool, order: str, bits: int
) -> None:
    path = clean_file(tmp_path / "a", data).write()
    wanted = parse(capfd, path)
    other = in_layout(path, tmp_path / "b", order, bits)
    found = parse(capfd, other)
    if bits == 32:  # the time of day does not fit
        wanted, found = ([r for r in t if r[2] != "CLOCK"] for t in (wanted, found))
    assert found == wanted
    # The records alone, as the original made them: described by options.
    bare = in_layout(path, tmp_path / "c", order, bits, header=False)
    with tcpkmon.open(path) as logs:
        names = [f"--event={event.number}={event.name}" for event in logs.format.events]
    options = [f"--bits={bits}", *["--big-endian"] * (order == ">"), *["--data"] * data]
    found = parse(capfd, bare, *options, *names)
    assert [row for row in found if row[2] != "CLOCK"] == [
        row for row in wanted if row[2] != "CLOCK"
    ]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_a_file_of_the_original(tmp_path: Path, capfd: Capture, order: str, bits: int) -> None:
    """Made as a C program would, without our code."""
    tcp = struct.pack(order + TCP_FORMATS[bits], 9, 1000, 3, 1448, 80, 4000, *range(10), 18)
    ip = struct.pack(order + IP_FORMATS[bits], 9, 1001, 4, -11, 4, 8, 77, 0, 64, 6)
    other = struct.pack(order + IP_FORMATS[bits], 9, 1002, 200, 5, 4, 8, 77, 0, 64, 6)
    path = tmp_path / "a"
    path.write_bytes(tcp + ip + other)
    options = [f"--bits={bits}", "--data", *["--big-endian"] * (order == ">")]
    names = ["--event", "3=MAGNET_TCP_SEND", "--event", "4=MAGNET_IP_SEND"]
    table = parse(capfd, path, *options, *names)
    # Bit fields begin at the other end there: 18 is no flag that TCP has.
    flags = "18" if order == "<" else str(int(f"{18:016b}"[::-1], 2))
    counts = [str(one) for one in range(10)]
    assert table[1:] == [
        ["9", "1000", "MAGNET_TCP_SEND", "1448", "80", "4000", *counts, flags, *["-"] * 6],
        ["9", "1001", "MAGNET_IP_SEND", "-11", *["-"] * 13, "4", "8", "77", "0", "64", "6"],
        ["9", "1002", "EVENT_200", "5", *["-"] * 19],
    ]


def test_what_options_are_wrong(tmp_path: Path, capfd: Capture) -> None:
    path = clean_file(tmp_path / "a").write()
    assert tool("magnet-parse", path, "--bits", "32") == 2
    assert "has a header, which describes it" in capfd.readouterr().err
    other = tmp_path / "b"
    other.write_bytes(bytes(30))
    assert tool("magnet-parse", other) == 2
    assert "has no header of tcpkmon; give the layout" in capfd.readouterr().err
    assert tool("magnet-parse", other, "--bits", "64") == 2
    assert "no array of records of 24 bytes" in capfd.readouterr().err
    assert tool("magnet-parse", other, "--bits=64", "--event", "3=A", "--event", "4=A") == 2
    assert "two events have one name" in capfd.readouterr().err
    other.write_bytes(b"KERNLOG\x01" + bytes(40))
    assert tool("magnet-parse", other) == 1
    assert "is a Klogger log, not a MAGNeT file; use tcpkmon decode" in capfd.readouterr().err


def test_codes_that_cannot_be_events_are_damage(tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<QQIi", 1, 2, 3, 4) + struct.pack("<QQIi", 1, 2, 70_000, 4))
    assert tool("magnet-parse", path, "--bits", "64") == 5
    output = capfd.readouterr()
    assert output.out.splitlines()[1:] == ["1\t2\tEVENT_3\t4"]
    assert "1 record(s) of unknown events, the first 70000" in output.err


def test_losses_and_ends_have_exit_codes(tmp_path: Path, capfd: Capture) -> None:
    table = parse(capfd, lossy_file(tmp_path / "a").write(), code=3)
    lost = [row for row in table if row[2] == "MAGNET_LOST"]
    assert [row[3] for row in lost] == ["3", "2", "4"]
    parse(capfd, clean_file(tmp_path / "b").write(None), code=3)
    path = clean_file(tmp_path / "c").write()
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    parse(capfd, path, code=5)


def test_export_and_decode(tmp_path: Path, capfd: Capture) -> None:
    path = lossy_file(tmp_path / "a").write()
    capfd.readouterr()
    assert tool("export", "--format", "csv", path) == 3
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert len(rows) == 189 and rows[1]["type"] == "MAGNET_SOCK_SEND" and rows[1]["sockid"] == "1"
    serials = [int(row["serial"]) for row in rows]
    lost = next(n for n, row in enumerate(rows) if row["type"] == "MAGNET_LOST")
    assert serials[: lost + 2] == [*range(1, lost + 2), lost + 4], "3 are missing"
    assert (rows[lost]["count"], rows[lost]["cause"]) == ("3", "0")
    asked = ("--event", "MAGNET_SOCK_RECV", "--where", "size<0")
    assert tool("decode", "--format", "json", *asked, path) == 3
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["size"] == -11
    assert tool("export", path, "-o", tmp_path / "p", "--format", "parquet") == 3
    table = parquet.read_table(tmp_path / "p" / "MAGNET_SOCK_SEND.parquet")
    assert table["sockid"].to_pylist() == [1 + n % 3 for n in range(20)]
    assert tool("export", path, "-o", tmp_path / "r", "--format", "arrow") == 3
    again = pyarrow.ipc.open_file(tmp_path / "r" / "MAGNET_SOCK_SEND.arrow").read_all()
    assert again.equals(table)
    assert tool("decode", path) == 3 and "MAGNET_IP_SEND" in capfd.readouterr().out
