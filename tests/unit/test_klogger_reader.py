# SPDX-License-Identifier: Apache-2.0
"""Reading Klogger logs: what was packed comes back, and a file that lies or is cut is no harm."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.encode import encode_preamble
from tcpkmon.formats.klogger.reader import LogReader
from tests.full import IS_FULL, examples
from tests.unit.log_files import CLOCK, LogMaker, ring_rows, sample_header, write_big_endian

STEP = 1 if IS_FULL else 5


def read(path: Path, **how: Any) -> tuple[LogReader, list[LogBatch]]:
    with LogReader(path) as reader:
        return reader, list(reader.batches(**how))


def seal(head: bytes) -> bytes:
    """A dump's head with the crc of its first 36 bytes set right."""
    return head[:36] + struct.pack("<I", zlib.crc32(head[:36])) + head[40:]


def write_dump(path: Path, numbers: list[int], records: bytes, **head: int) -> Path:
    """A file of one dump, right in its checksums and wrong wherever `head` says."""
    listed = np.array(numbers, np.uint16).tobytes()
    body = listed + bytes(-len(listed) % 8) + records
    values = {
        "index": 0, "count": len(numbers), "size": len(body), "serial": 1, "crc": zlib.crc32(body),
    }  # fmt: skip
    values.update(head)
    packed = struct.pack("<8sIIQQIIQ", b"KLOGDUMP", *values.values(), 0, 0)
    path.write_bytes(encode_preamble(sample_header()) + seal(packed) + body)
    return path


def record(number: int, serial: int, payload: bytes = b"", size: int = 0) -> bytes:
    return struct.pack("<IIQQ", number, size or 24 + len(payload), serial, 5) + payload


def sample_log() -> LogMaker:
    maker = LogMaker()
    maker.add("KLOGGER_START").add("SCHEDOUT", {"pid": 7}).end_dump()
    maker.add("EMPTY").add("EVERY", {"text": "abc", "how": "RR"}).end_dump()
    return maker.add("SCHEDOUT", {"pid": -8}).add("KLOGGER_FINISH").end_dump()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    reader, batches = read(sample_log().write(tmp_path / "log"))
    assert (reader.cpu, reader.header["kernel"]) == (0, "6.18.0")
    assert [batch.dump for batch in batches] == [0, 1, 2]
    names = [reader.format.event(int(n)).name for batch in batches for n in batch.numbers]
    assert names[:4] == ["DUMP_BEGIN", "KLOGGER_START", "SCHEDOUT", "DUMP_FINISH"]
    assert [int(n) for batch in batches for n in batch.serials] == list(range(1, 13))
    assert batches[0].times_ns.tolist() == [CLOCK[0] + 1000 * n for n in range(1, 5)]
    assert batches[2].rows("SCHEDOUT")["pid"].tolist() == [-8]
    assert batches[1].rows("EVERY")["text"].tolist() == [b"abc"]
    assert batches[1].where("EMPTY").tolist() == [1]
    assert batches[1].rows("EMPTY").shape == (1,)
    finish = batches[0].rows("DUMP_FINISH")["bytes"].tolist()
    assert finish == [len(sample_log().dumps[0]) - 48]
    assert (reader.damage, reader.tail, reader.losses.lost) == ("", "", 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(st.data())
def test_rows_come_back_whatever_the_pieces(tmp_path: Path, data: st.DataObject) -> None:
    maker = LogMaker()
    sizes = {name: maker.format.event(name).size for name in ("SCHEDOUT", "COUNTED", "EMPTY")}
    expected: list[tuple[str, bytes, int]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        names = data.draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=30))
        payloads = [data.draw(st.binary(min_size=size, max_size=size)) for size in
                    (sizes[name] for name in names)]  # fmt: skip
        times = np.arange(len(names), dtype=np.uint64) + np.uint64(maker.time_ns)
        numbers = np.array([maker.format.event(name).number for name in names])
        maker.add_rows(numbers, ring_rows(payloads, 24 + 16), times).end_dump()
        expected += zip(names, payloads, times.tolist(), strict=True)
    records = data.draw(st.sampled_from([1, 3, 1 << 16]))
    reader, batches = read(maker.write(tmp_path / "log"), records=records)
    assert max(map(len, batches)) <= records
    found = []
    for batch in batches:
        for place in range(len(batch)):
            event = batch.format.event(int(batch.numbers[place]))
            if event.name in sizes:
                row = batch.rows(event, np.array([place]))
                found.append((event.name, row.tobytes(), int(batch.times_ns[place])))
    assert found == expected
    assert not reader.damage


def test_a_file_cut_anywhere_gives_its_good_dumps(tmp_path: Path) -> None:
    maker = sample_log()
    data = maker.data()
    starts = [len(encode_preamble(maker.header))]
    for dump in maker.dumps:
        starts.append(starts[-1] + len(dump))
    path = tmp_path / "log"
    for size in sorted({*starts[:-1], *range(starts[0], len(data), STEP)}):
        path.write_bytes(data[:size])
        reader, batches = read(path)
        whole = sum(start <= size for start in starts) - 1
        assert sorted({batch.dump for batch in batches}) == list(range(whole))
        assert bool(reader.damage) == (size not in starts)
        assert reader.tail.startswith("tail unknown")
        assert reader.losses.lost == 0


def test_a_file_cut_in_its_header_is_refused(tmp_path: Path) -> None:
    maker = sample_log()
    data = maker.data()
    path = tmp_path / "log"
    for size in (0, 1, 8, 23, 24, 25, len(encode_preamble(maker.header)) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(DamagedError, match="log"):
            LogReader(path)


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    maker = sample_log()
    data = bytearray(maker.data())
    begin = len(encode_preamble(maker.header))
    reserved = {16, 17, 18, 19, 20, 21, 22, 23}
    for start in np.cumsum([begin, *map(len, maker.dumps[:-1])]).tolist():
        reserved |= set(range(start + 40, start + 48))
    path = tmp_path / "log"
    for place in [*range(100), *range(begin, len(data), STEP)]:
        data[place] ^= 0x41
        path.write_bytes(data)
        try:
            reader, batches = read(path)
        except DamagedError:
            assert place < begin
        else:
            assert reader.damage, place
            # A dump that is damaged is left out whole; the others are there.
            assert sum(map(len, batches)) in ((12,) if place in reserved else (0, 4, 8))
        data[place] ^= 0x41


_NUMBERS = {event["name"]: event["number"] for event in sample_header()["events"]}
BEGIN, FINISH, SCHEDOUT = (_NUMBERS[name] for name in ("DUMP_BEGIN", "DUMP_FINISH", "SCHEDOUT"))


@pytest.mark.parametrize(
    ("numbers", "records", "head", "why"),
    [
        ([], b"", {}, "senseless size"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {"count": 1 << 31}, "senseless size"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {"size": (1 << 64) - 8}, "senseless size"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {"size": 44}, "senseless size"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {"size": 1 << 29}, "cut off"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {"index": 3}, "dump 3 where dump 0 should be"),
        ([BEGIN], record(BEGIN, 1, bytes(16)), {}, "do not fill"),
        ([BEGIN, 255], record(BEGIN, 1, bytes(24)) + record(255, 2), {}, "does not describe"),
        ([BEGIN, 999], record(BEGIN, 1, bytes(24)) + record(999, 2), {}, "does not describe"),
        ([SCHEDOUT], record(SCHEDOUT, 1, bytes(8)), {}, "no DUMP_BEGIN"),
        ([BEGIN], record(BEGIN, 1, bytes(24)), {}, "no DUMP_FINISH"),
        (
            [BEGIN, FINISH],
            record(BEGIN, 1, bytes(24)) + record(FINISH, 1, bytes(8)),
            {},
            "serials do not rise",
        ),
        (
            [BEGIN, FINISH],
            record(BEGIN, 0, bytes(24)) + record(FINISH, 1, bytes(8)),
            {"serial": 0},
            "serials do not rise",
        ),
        (
            [BEGIN, FINISH],
            record(BEGIN, 1, bytes(24)) + record(FINISH, 2, bytes(8)),
            {"serial": 2},
            "first serial",
        ),
        (
            [BEGIN, FINISH],
            record(BEGIN, 1, bytes(24)) + record(SCHEDOUT, 2, bytes(8)),
            {},
            "not what the dump lists",
        ),
        (
            [BEGIN, FINISH],
            record(BEGIN, 1, bytes(24), size=1 << 31) + record(FINISH, 2, bytes(8)),
            {},
            "not what the dump lists",
        ),
    ],
)
def test_lies_in_a_dump_are_told(
    tmp_path: Path, numbers: list[int], records: bytes, head: dict[str, int], why: str
) -> None:
    reader, batches = read(write_dump(tmp_path / "log", numbers, records, **head))
    assert why in reader.damage
    assert not batches or why.startswith(("dump 3", "cut"))


def change(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The sample's header with one value changed (or taken away: None)."""
    header: dict[str, Any] = json.loads(json.dumps(sample_header()))
    inner: Any = header
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return header


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("byteorder",), "pdp"),
        (("byteorder",), ["little"]),
        (("events",), None),
        (("events",), []),
        (("events",), {}),
        (("events", 0), "x"),
        (("events", 0, "number"), 256),
        (("events", 0, "number"), -1),
        (("events", 0, "number"), 1.5),
        (("events", 0, "number"), True),
        (("events", 0, "name"), ""),
        (("events", 0, "name"), "KLOGGER_FINISH"),
        (("events", 0, "name"), "x" * 300),
        (("events", 0, "size"), 12),
        (("events", 0, "size"), 1 << 40),
        (("events", 0, "fields"), None),
        (("events", 0, "fields", 0), 1),
        (("events", 0, "fields", 0, "kind"), "float"),
        (("events", 0, "fields", 0, "length"), 0),
        (("events", 0, "fields", 0, "length"), 1 << 40),
        (("events", 0, "fields", 0, "offset"), 80),
        (("events", 0, "fields", 1, "length"), 3),
        (("events", 0, "fields", 1, "name"), "kernel"),
        (("cpu",), "0"),
    ],
)
def test_headers_that_make_no_sense_are_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    data = json.dumps(change(path, value)).encode()
    data += b" " * (-len(data) % 8)
    preamble = struct.pack("<8sIIQ", b"KERNLOG\x01", len(data), zlib.crc32(data), 0)
    log = tmp_path / "log"
    log.write_bytes(preamble + data)
    with pytest.raises(DamagedError, match=str(log)):
        LogReader(log)


@pytest.mark.parametrize("text", [b"[]", b"{", b"\xff" * 8, b"[" * 100_000])
def test_headers_that_are_no_object_are_refused(tmp_path: Path, text: bytes) -> None:
    text += b" " * (-len(text) % 8)
    log = tmp_path / "log"
    log.write_bytes(struct.pack("<8sIIQ", b"KERNLOG\x01", len(text), zlib.crc32(text), 0) + text)
    with pytest.raises(DamagedError):
        LogReader(log)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"MZ" * 100)
    with pytest.raises(DamagedError, match="not a Klogger log"):
        LogReader(other)
    with pytest.raises(FileError, match="No such file"):
        LogReader(tmp_path / "none")
    with pytest.raises(FileError, match="not a regular file"):
        LogReader(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        LogReader(tmp_path / "pipe")


def test_a_file_that_becomes_shorter_meanwhile(tmp_path: Path) -> None:
    path = sample_log().write(tmp_path / "log")
    with LogReader(path) as reader:
        batches = reader.batches()
        next(batches)
        os.truncate(path, path.stat().st_size - 10)
        assert len(list(batches)) == 1
        assert "the file ends" in reader.damage


def test_a_file_of_a_big_endian_machine(tmp_path: Path) -> None:
    log = write_big_endian(
        tmp_path / "log", sample_header(), "COUNTED", struct.pack(">iIQ", -5, 0, 1 << 50)
    )
    reader, [batch] = read(log)
    assert reader.damage == ""
    assert batch.serials.tolist() == [1, 2, 3]
    assert batch.times_ns.tolist() == [1 << 40] * 3
    assert batch.rows("COUNTED").tolist() == [(-5, 1 << 50)]


def test_damage_says_where_it_is(tmp_path: Path) -> None:
    data = bytearray(sample_log().data())
    with LogReader(sample_log().write(tmp_path / "log")) as reader:
        walk = reader.walk()
        first, second, _ = list(walk)
    assert (first.end, walk.end) == (second.offset, len(data))
    data[second.body + 40] ^= 1
    (tmp_path / "log").write_bytes(data)
    reader, _ = read(tmp_path / "log")
    assert [problem.offset for problem in reader.problems] == [second.body]
    assert str(reader.problems[0]).startswith(f"at offset {second.body}: dump 1: the checksum")
