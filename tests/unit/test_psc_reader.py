# SPDX-License-Identifier: Apache-2.0
"""The reader against an independent decoder, cut and bent files, wrapped numbers and big files."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcpkmon
from tcpkmon.formats.base import control
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.psc import reader, sequence
from tcpkmon.formats.psc.columns import CLASSIC, Column, entry_dtype
from tcpkmon.formats.psc.header import Header, encode_header, writer_header
from tcpkmon.formats.psc.reader import Capture
from tests.full import IS_FULL
from tests.unit.psc_files import (
    END,
    LITTLE,
    LITTLE_DATA,
    LITTLE_ENTRY,
    PDP,
    describe,
    entry_size,
    record,
    save,
)

shared_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)  # each example overwrites the file of the one before


def read_all(capture: Capture) -> None:
    """Everything that a reader can be asked for; fails only as it may."""
    assert len(capture.array) == len(capture)
    for name in capture.names:
        assert len(capture.column(name)) == len(capture)
    assert len(capture.seq()) == len(capture)
    assert capture.lost == sum(gap.missing for gap in capture.gaps())
    for index, entry in capture.controls():
        assert 0 <= index < len(capture)
        assert isinstance(entry, control.Control)
    capture.mono_ns()
    if "time" in capture.names:
        with suppress(UsageError):  # its description may have become that of no timeval
            capture.time_ns()
    assert isinstance(capture.complete, bool)
    assert isinstance(capture.settings, dict)
    assert isinstance(capture.location_name(1), str)
    assert capture.clock is None or len(capture.clock) == 3


# --- an independent decoder ---


def reference_integer(data: bytes, endian: Endian, flags: int) -> int:
    if flags & 1 or endian == Endian.BIG:
        return int.from_bytes(data, "big")
    if endian == Endian.LITTLE:
        return int.from_bytes(data, "little")
    pairs = [data[at : at + 2] for at in range(0, len(data), 2)]
    return int.from_bytes(b"".join(pair[::-1] for pair in pairs), "big")


@st.composite
def files(draw: st.DrawFn) -> tuple[Header, list[bytes]]:
    columns = []
    offset = 0
    for index in range(draw(st.integers(1, 6))):
        offset += draw(st.integers(0, 3))
        length = draw(st.integers(1, 20))
        columns.append(Column(f"c{index}", offset, length, flags=draw(st.integers(0, 2))))
        offset += length
    size = offset + draw(st.integers(0, 5))
    rows = draw(st.lists(st.binary(min_size=size, max_size=size), max_size=8))
    order = tuple(draw(st.permutations(columns)))
    return Header(1, "", size, order, draw(st.sampled_from(Endian))), rows


@given(files(), st.integers(0, 9), st.integers(0, 9), st.integers(1, 60))
@shared_folder
def test_columns_as_an_independent_decoder_reads_them(
    tmp_path: Path, file: tuple[Header, list[bytes]], start: int, stop: int, read_bytes: int
) -> None:
    header, rows = file
    path = save(tmp_path, encode_header(header) + b"".join(rows))
    with pytest.MonkeyPatch.context() as patch, tcpkmon.open(path) as capture:
        patch.setattr(reader, "READ_BYTES", read_bytes)
        assert len(capture) == len(rows)
        assert capture.names == tuple(column.name for column in header.columns)
        assert capture.array.tobytes() == b"".join(rows)
        found = capture.columns(capture.names, start, stop)
        for column in header.columns:
            raw = [row[column.offset : column.offset + column.length] for row in rows[start:stop]]
            values = found[column.name]
            if column.flags != 2 and column.length <= 8:
                expected = [reference_integer(data, header.endian, column.flags) for data in raw]
                assert values.dtype.kind == "u" and values.dtype.isnative
                assert values.tolist() == expected
            else:
                assert values.dtype == np.dtype(
                    f"{'S' if column.flags == 2 else 'V'}{column.length}"
                )
                assert values.tobytes() == b"".join(raw)
            assert capture.column(column.name, start, stop).tobytes() == values.tobytes()


# --- a file as the collector writes it ---

SCHEMA = """
enum location { SEGMENT_RECEIVED = 1, START = 224 }
enum tcp_state { NONE = 0, LOW = -1 }
event SNAPSHOT { uint seq_no longlong offset tcp_state state string16 laddr string8 name }
"""
OWN = (
    *(
        Column(name, offset, length if name != "snd_fack" else 0, flags=int(name.endswith("port")))
        for name, (offset, length) in CLASSIC.items()
    ),
    Column("seq", 64, 8),
    Column("time_ns", 72, 8),
    Column("offset", 80, 8),
    Column("state", 88, 4),
    Column("laddr", 92, 16, flags=2),
    Column("name", 108, 8, flags=2),
)
OWN_SIZE = 120
ADDRESS = bytes(10) + b"\xff\xff\x0a\x00\x00\x00"


def own_file(endian: Endian = Endian.LITTLE, end: bool = True, schema: str = SCHEMA) -> bytes:
    """START, two snapshots, a loss of three, a snapshot and END, with their sequence numbers."""
    header = writer_header(
        OWN, OWN_SIZE, mods=3, version="0.1", mclsize=4096, host="h", kernel="k",
        clock=(1, 2, 3), schema=schema, settings={"ports": [1]},
    )  # fmt: skip
    header = Header(
        3, "0.1", OWN_SIZE, OWN, endian, 4096, header.extras
    )  # not this machine's byte order
    order = "<" if endian == Endian.LITTLE else ">"
    dtype = entry_dtype(OWN, OWN_SIZE, order)
    entries = [
        control.Start(5, 6, 1, 1),
        control.Loss(0, 77, 3, 0),
        control.End(control.EndReason.ASKED, 5, 3, 0),
    ]
    controls = control.encode_many(entries, dtype)
    snapshots = np.zeros(3, dtype)
    snapshots["location"] = [1, 226, 300]
    snapshots["lport"] = [80, 0, 443]
    snapshots["rport"] = [4000, 0, 4001]
    snapshots["offset"] = np.array([-1, 2, -(2**40)]).astype(np.uint64)
    snapshots["state"] = np.array([-1, 0, 0]).astype(np.uint32)
    snapshots["laddr"] = np.array([ADDRESS] * 3).astype("S16").view("V16")
    snapshots["name"] = np.array([b"cubic", b"bbr", b"cubic"]).astype("S8").view("V8")
    raw = np.concatenate([controls.view(f"V{OWN_SIZE}"), snapshots.view(f"V{OWN_SIZE}")])
    rows = raw[[0, 3, 4, 1, 5, 2]].view(dtype)
    seq = [2**32 + n for n in (1, 2, 3, 7, 8, 9)]
    rows["seq"] = seq
    rows["seq_no"] = [n & 0xFFFFFFFF for n in seq]
    rows["tv_sec"] = 1_600_000_000
    rows["tv_usec"] = range(6)
    rows["time_ns"] = range(100, 106)
    return encode_header(header) + (rows if end else rows[:-1]).tobytes()


@pytest.mark.parametrize("endian", [Endian.LITTLE, Endian.BIG])
def test_own_file(tmp_path: Path, endian: Endian) -> None:
    with tcpkmon.open(save(tmp_path, own_file(endian))) as capture:
        assert capture.header.endian == endian
        assert capture.control().tolist() == [True, False, False, True, False, True]
        assert capture.control(2, 5).tolist() == [False, True, False]
        assert list(capture.controls()) == [
            (0, control.Start(5, 6, 1, 1)),
            (3, control.Loss(0, 77, 3, 0)),
            (5, control.End(0, 5, 3, 0)),
        ]
        assert list(capture.controls(1, 4)) == [(3, control.Loss(0, 77, 3, 0))]
        assert capture.complete and not capture.damaged
        assert capture.seq().tolist() == [2**32 + n for n in (1, 2, 3, 7, 8, 9)]
        assert capture.column("seq_no").tolist() == [1, 2, 3, 7, 8, 9]
        assert [tuple(gap) for gap in capture.gaps()] == [(2**32 + 3, 2**32 + 7, 3, 3)]
        assert capture.lost == 3
        assert capture.time_ns(4).tolist() == [
            1_600_000_000_000_004_000,
            1_600_000_000_000_005_000,
        ]
        mono = capture.mono_ns(1, 3)
        assert mono is not None and mono.dtype == np.int64 and mono.tolist() == [101, 102]
        assert capture.column("offset").tolist() == [0, -1, 2, 0, -(2**40), 0]
        assert capture.column("state", 1, 2).tolist() == [-1]
        assert capture.column("lport").tolist() == [0, 80, 0, 0, 443, 0]
        assert capture.column("name").tolist() == [b"", b"cubic", b"bbr", b"", b"cubic", b""]
        assert capture.clock == (1, 2, 3)
        assert capture.settings == {"ports": [1]}
        assert capture.schema is not None
        assert capture.schema.event("SNAPSHOT").fields[0].name == "seq_no"
        assert [capture.location_name(n) for n in (1, 224, 231, 77)] == [
            "SEGMENT_RECEIVED",
            "START",
            "LEDGER",
            "77",
        ]
        assert [(piece.start, piece.stop) for piece in capture.chunks(4)] == [(0, 4), (4, 6)]
        assert capture.warnings == []
        with pytest.raises(UsageError, match="no column snd_fack"):
            capture.column("snd_fack")


def test_reading_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "READ_BYTES", 250)  # two entries
    with tcpkmon.open(save(tmp_path, own_file())) as capture:
        assert [row for row, _ in capture.controls()] == [0, 3, 5]
        assert capture.seq(1, 6).tolist() == [2**32 + n for n in (2, 3, 7, 8, 9)]
        assert capture.rows(2, 4).tobytes() == own_file()[-4 * OWN_SIZE : -2 * OWN_SIZE]
        assert capture.column("seq_no", 5, 2).tolist() == []
        assert capture.column("seq_no", -2).tolist() == [8, 9]


def test_ports_tell_a_snapshot_from_a_control_entry(tmp_path: Path) -> None:
    # Location 300 with ports is a snapshot; the file of 1999 has no place for control entries.
    assert not tcpkmon.open(save(tmp_path, own_file())).control(4, 5).any()
    assert not tcpkmon.open(save(tmp_path, LITTLE)).control().any()


def test_ports_that_are_no_numbers_make_no_control_entries(tmp_path: Path) -> None:
    header = Header(1, "", 64, tuple(Column(name, *at, flags=2) for name, at in CLASSIC.items()))
    data = encode_header(header) + own_file()[-OWN_SIZE:][:64]
    with tcpkmon.open(save(tmp_path, data)) as capture:
        assert not capture.control().any() and not capture.complete
        read_all(capture)


def test_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with tcpkmon.open(save(tmp_path, own_file())) as capture:
        table = capture.table()
        assert table.column_names == list(capture.names)
        assert table["seq"].to_pylist() == [2**32 + n for n in (2, 3, 8)]  # no control entries
        assert table["name"].to_pylist() == ["cubic", "bbr", "cubic"]
        assert table["laddr"].to_pylist()[0] == ADDRESS
        assert table["offset"].to_pylist() == [-1, 2, -(2**40)]
        assert str(table["time"].type) == "timestamp[ns, tz=UTC]"
        assert capture.table(["lport"]).column_names == ["lport"]
    with tcpkmon.open(save(tmp_path, LITTLE[:LITTLE_DATA])) as capture:
        assert capture.table().num_rows == 0
        assert capture.table().column_names == list(capture.names)


# --- cut and bent files ---


@pytest.mark.parametrize(
    "data", [LITTLE, PDP, own_file()], ids=["little", "pdp", "own"]
)
def test_cut_at_every_byte(tmp_path: Path, data: bytes) -> None:
    whole = tcpkmon.open(save(tmp_path, data, "whole.pm"))
    start, size = len(data) - len(whole) * whole.header.entry_size, whole.header.entry_size
    for length in range(0, len(data), 1 if IS_FULL else 7):
        path = save(tmp_path, data[:length])
        if length < start:
            with pytest.raises(DamagedError, match=r"at offset \d+: "):
                tcpkmon.open(path)
            continue
        with tcpkmon.open(path) as capture:
            good, rest = divmod(length - start, size)
            assert len(capture) == good
            assert capture.damaged == (rest > 0)
            cut = f"at offset {length - rest}: the last entry is cut short, {rest} of {size} bytes"
            assert [warning.startswith(cut) for warning in capture.warnings] == [True] * bool(rest)
            assert not capture.complete
            assert capture.rows().tobytes() == data[start : start + good * size]
            read_all(capture)


def described(*records: bytes) -> bytes:
    return entry_size(4) + describe("a", 0, 4) + b"".join(records) + END


UNREADABLE = {
    "schema": (record(0x103, b"event {"), "schema"),
    "schema of bad bytes": (record(0x103, b"\xff\xfe\x00\x1b"), "schema"),
    "schema too long": (record(0x103, b"// " + b"x" * 60000 + b"\n") * 20, "schema"),
    "schema deep": (record(0x103, b"event a {" * 5000), "schema"),
    "settings": (record(0x104, b"{"), "settings"),
    "settings no object": (record(0x104, b"[1]"), "settings"),
    "settings deep": (record(0x104, b"[" * 60000), "settings"),
    "settings of long numbers": (record(0x104, b'{"a":' + b"9" * 60000 + b"}"), "settings"),
    "clock too short": (record(0x102, bytes(23)), "clock"),
    "clock twice": (record(0x102, bytes(24)) * 2, "clock"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_the_header_says_beyond_the_layout_is_only_warned_of(
    tmp_path: Path, name: str
) -> None:
    data, what = UNREADABLE[name]
    with tcpkmon.open(save(tmp_path, described(data) + bytes(8))) as capture:
        assert (capture.schema, capture.settings, capture.clock) == (None, {}, None)
        assert len(capture.warnings) == 1 and what in capture.warnings[0]
        assert "\n" not in capture.warnings[0]
        assert capture.column("a").tolist() == [0, 0]


def test_no_sequence_numbers(tmp_path: Path) -> None:
    with tcpkmon.open(save(tmp_path, described() + bytes(12))) as capture:
        assert capture.seq(1).tolist() == [2, 3]
        assert capture.lost == 0
        assert capture.warnings == ["the file has no sequence numbers; gaps cannot be seen"]


# --- files that cannot be opened ---


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.pm", tmp_path, tmp_path / "fifo", "a\0b"):
        with pytest.raises(FileError, match="cannot"):
            tcpkmon.open(path)


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, LITTLE)
    with tcpkmon.open(path) as capture:
        os.truncate(path, LITTLE_DATA + LITTLE_ENTRY + 1)
        assert capture.column("snd_cwnd", 0, 1).tolist() == [1460]
        with pytest.raises(DamagedError, match="shorter"):
            capture.column("snd_cwnd")
        with pytest.raises(FileError, match="cannot map"):
            len(capture.array)


def test_file_that_grows_is_read_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path, LITTLE)
    with tcpkmon.open(path) as capture:
        path.write_bytes(LITTLE + LITTLE[-LITTLE_ENTRY:])
        assert len(capture) == len(capture.column("seq_no")) == 3
    assert len(tcpkmon.open(path)) == 4


# --- sequence numbers ---


def numbered(tmp_path: Path, numbers: list[int], length: int) -> Capture:
    name = "seq" if length == 8 else "seq_no"
    header = Header(1, "", length, (Column(name, 0, length),))
    mask = (1 << 8 * length) - 1
    body = b"".join((number & mask).to_bytes(length, "little") for number in numbers)
    return tcpkmon.open(save(tmp_path, encode_header(header) + body))


@given(
    st.integers(0, 2**40),
    st.lists(st.integers(-(2**15) + 1, 2**15 - 1), max_size=40),
    st.sampled_from([2, 3, 4, 8]),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 41), st.integers(0, 41)), min_size=1, max_size=4),
)
@shared_folder
def test_unwrapping(
    tmp_path: Path,
    first: int,
    steps: list[int],
    length: int,
    chunk: int,
    ranges: list[tuple[int, int]],
) -> None:
    first = first % (1 << 8 * length) if length < 8 else first + 2**20
    numbers = np.cumsum([first, *steps]).tolist()
    with pytest.MonkeyPatch.context() as patch, numbered(tmp_path, numbers, length) as capture:
        patch.setattr(sequence, "CHUNK_ROWS", chunk)
        for start, stop in ranges:  # in any order: what was passed is remembered
            expected = [number % 2**64 for number in numbers[start:stop]]
            assert capture.seq(start, stop).tolist() == expected
        gaps, highest = [], numbers[0]
        for row, number in enumerate(numbers[1:], 1):
            if number > highest + 1:
                gaps.append((highest % 2**64, number % 2**64, number - highest - 1, row))
            highest = max(highest, number)
        assert [tuple(gap) for gap in capture.gaps()] == gaps
        assert capture.lost == sum(missing for _, _, missing, _ in gaps)


def test_hostile_numbers_give_numbers(tmp_path: Path) -> None:
    numbers = [0, 2**64 - 1, 2**63, 2**63 - 1, 1, 2**62]
    with numbered(tmp_path, numbers, 8) as capture:
        assert capture.seq().tolist() == numbers
        assert capture.lost == sum(gap.missing for gap in capture.gaps()) >= 0


# --- big files ---


def test_memory_is_bounded(tmp_path: Path) -> None:
    rows, size = 1_000_000, 64
    path = save(tmp_path, entry_size(size) + describe("seq_no", 0, 4) + END)
    body = np.zeros((rows, size // 4), "<u4")
    body[:, 0] = np.arange(rows) * 2
    with path.open("ab") as file:
        body.tofile(file)
    del body
    tracemalloc.start()
    try:
        with tcpkmon.open(path) as capture:
            assert capture.lost == rows - 1
            assert int(capture.column("seq_no")[-1]) == 2 * rows - 2
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20  # the file has 64 MB; its one column 4


SECOND_NS = 1_000_000_000


def test_little_endian_file_without_mods_and_endian(tmp_path: Path) -> None:
    with tcpkmon.open(save(tmp_path, LITTLE)) as capture:
        header = capture.header
        assert (header.version, header.mods, header.endian) == ("0.9", 1, Endian.LITTLE)
        assert (header.entry_size, header.mclsize) == (24, 0)
        assert header.extras == {99: [b"\x01\x02\x03"]}
        assert header.columns == (
            Column("seq_no", 0, 4, 0, 0, 0),
            Column("time", 4, 8, 0, 0, 0),
            Column("lport", 12, 2, 2, 0, 1),
            Column("rport", 14, 2, 2, 0, 1),
            Column("snd_fack", 16, 0, 2, 4, 0),
            Column("snd_cwnd", 16, 4, 2, 0, 0),
            Column("flags", 20, 4, 2, 0, 2),
        )
        assert capture.names == ("seq_no", "time", "lport", "rport", "snd_cwnd", "flags")
        assert len(capture) == 3
        assert capture.column("seq_no").tolist() == [4294967294, 4294967295, 2]
        assert capture.seq().tolist() == [4294967294, 4294967295, 4294967298]
        assert capture.time_ns().tolist() == [
            943185216 * SECOND_NS + 1000,
            943185216 * SECOND_NS + 100_000_000,
            943185217 * SECOND_NS,
        ]
        assert capture.column("lport").tolist() == [1055, 1055, 1056]
        assert capture.column("rport").tolist() == [5050, 5050, 5051]
        assert capture.column("snd_cwnd").tolist() == [1460, 2920, 4294967295]
        assert capture.column("flags").tolist() == [b"AB", b"\xff\x00\x0a\x1b", b""]
        assert capture.column("flags").tobytes() == b"AB\0\0\xff\x00\x0a\x1b\0\0\0\0"
        assert [tuple(gap) for gap in capture.gaps()] == [(4294967295, 4294967298, 2, 2)]
        assert capture.lost == 2
        assert capture.mono_ns() is None
        assert capture.schema is None and capture.clock is None and capture.settings == {}
        assert not capture.control().any()
        assert (capture.warnings, capture.damaged, capture.complete) == ([], False, False)


def test_pdp_endian_file(tmp_path: Path) -> None:
    with tcpkmon.open(save(tmp_path, PDP)) as capture:
        assert capture.header.endian == Endian.PDP
        assert capture.column("seq_no").tolist() == [0x0A0B0C0D]
        assert capture.time_ns().tolist() == [943185216 * SECOND_NS + 100_000_000]
        assert capture.column("lport").tolist() == [1055]
        assert capture.column("wide").tolist() == [0x0102030405060708]
        assert capture.column("short").tolist() == [0x1234]
        assert capture.column("byte").tolist() == [127]
        assert len(capture.array) == 1
