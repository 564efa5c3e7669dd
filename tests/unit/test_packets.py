# SPDX-License-Identifier: Apache-2.0
"""Packet captures of others: each block as it was, all link layers, and files that are hostile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.limits import MOST_BLOCK_BYTES, MOST_INTERFACES
from tcpkmon.formats.packets.blocks import (
    RAW_IP,
    block,
    enhanced,
    interface,
    option,
    section,
    text_option,
)
from tcpkmon.formats.packets.headers import parse
from tcpkmon.formats.packets.reading import Batch, PacketFile, with_comment
from tests.unit.psc_files import LOCAL, REALTIME_NS, REMOTE, packet, pcapng

ETHERNET = b"\2" * 12


def read(tmp_path: Path, data: bytes) -> tuple[list[Batch], PacketFile]:
    path = tmp_path / "packets"
    path.write_bytes(data)
    with PacketFile(path) as file:
        return list(file.batches()), file


def columns_of(tmp_path: Path, data: bytes) -> tuple[Any, dict[str, Any]]:
    batch = read(tmp_path, data)[0][0]
    return parse(batch.data, batch.columns()), batch.columns()


def swapped(data: bytes) -> bytes:
    """A file of section, interface and packets as a big-endian machine writes it."""
    out, at = b"", 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        body = data[at + 8 : at + length - 4]
        if kind == 0x0A0D0D0A:
            body = struct.pack(">IHHQ", 0x1A2B3C4D, 1, 0, (1 << 64) - 1) + _options(body[16:])
        elif kind == 1:
            body = struct.pack(">HHI", *struct.unpack_from("<HHI", body)) + _options(body[8:])
        else:
            fixed = struct.unpack_from("<IIIII", body)
            end = 20 + fixed[3] + -fixed[3] % 4
            body = struct.pack(">IIIII", *fixed) + body[20:end] + _options(body[end:])
        size = struct.pack(">I", length)
        out += struct.pack(">I", kind) + size + body + size
        at += length
    return out


def _options(data: bytes) -> bytes:
    out, at = b"", 0
    while at < len(data):
        code, length = struct.unpack_from("<HH", data, at)
        size = length + -length % 4
        out += struct.pack(">HH", code, length) + data[at + 4 : at + 4 + size]
        at += 4 + size
    return out


DATA = packet(LOCAL, REMOTE, 1000, 9000, 1400, 24, options=12)
PACKETS = pcapng((0, DATA, 1400), (1.5, packet(REMOTE, LOCAL, 9000, 2400), 0))


@pytest.mark.parametrize("order", ["<", ">"])
def test_blocks_stay_as_they_are(tmp_path: Path, order: str) -> None:
    strange = block(0x0BAD1234, b"who knows?!!") + block(5, bytes(12)) + block(10, b"secrets ")
    data = PACKETS + strange if order == "<" else swapped(PACKETS)
    (batch,), file = read(tmp_path, data)
    assert b"".join(one.raw for one in batch.blocks) == data
    assert file.count == len(batch) == 2 and file.cut is None
    found = parse(batch.data, batch.columns())
    assert found.is_tcp.all()
    assert found.seq.tolist() == [1000, 9000] and found.ack.tolist() == [9000, 2400]
    assert found.length.tolist() == [1400, 0] and found.flags.tolist() == [24, 16]
    assert batch.columns()["times_ns"].tolist() == [REALTIME_NS, REALTIME_NS + 1_500_000]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_comment_is_added_and_nothing_else_changes(tmp_path: Path, order: str) -> None:
    data = PACKETS if order == "<" else swapped(PACKETS)
    (batch,), _ = read(tmp_path, data)
    one = batch.blocks[2]
    made = with_comment(one, ["state é", "x"])
    added = text_option(1, "state é", order) + text_option(1, "x", order)
    assert made.replace(added, b"")[8:-4] == one.raw[8:-4]
    assert len(made) == len(one.raw) + len(added)
    again = read(tmp_path, data.replace(one.raw, made))[0][0]
    assert again.columns()["lengths"].tolist() == batch.columns()["lengths"].tolist()
    bare = enhanced(0, 0, b"abc", 3)
    (batch,), _ = read(tmp_path, section("x") + interface(RAW_IP) + bare)
    made = with_comment(batch.blocks[2], ["c"])
    assert made == enhanced(0, 0, b"abc", 3, text_option(1, "c") + bytes(4))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("magic, unit", [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_pcap_becomes_pcapng(tmp_path: Path, order: str, magic: int, unit: int) -> None:
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 96, RAW_IP | 0xF << 28)
    data += struct.pack(f"{order}IIII", 1_700_000_000, 7, len(DATA), len(DATA) + 1400) + DATA
    (batch,), file = read(tmp_path, data)
    assert batch.columns()["times_ns"].tolist() == [REALTIME_NS + 7 * unit]
    again = read(tmp_path, b"".join(one.raw for one in batch.blocks))[0][0]
    assert {name: values.tolist() for name, values in again.columns().items()} == {
        name: values.tolist() for name, values in batch.columns().items()
    }
    assert file.cut is None
    file = read(tmp_path, data + b"\0" * 7)[1]
    assert file.cut == len(data)


@pytest.mark.parametrize("link, head", [
    (1, ETHERNET + b"\x08\0"),
    (1, ETHERNET + b"\x81\0\0\5\x08\0"),
    (1, ETHERNET + b"\x88\xa8\0\5\x81\0\0\6\x08\0"),
    (113, bytes(14) + b"\x08\0"), (276, b"\x08\0" + bytes(18)),
    (0, struct.pack("<I", 2)), (108, struct.pack(">I", 2)), (12, b""), (228, b""),
])  # fmt: skip
def test_link_layers(tmp_path: Path, link: int, head: bytes) -> None:
    found, _ = columns_of(tmp_path, pcapng((0, head + DATA, 1400), link=link))
    assert found.is_tcp.tolist() == [True] and found.length.tolist() == [1400]
    assert bytes(found.source[0]) == b"\0" * 10 + b"\xff\xff\x0a\0\0\1" + struct.pack("!H", 5000)


def test_ip6_and_its_extensions(tmp_path: Path) -> None:
    ends = ("fd00::1", 5000), ("fd00::2", 80)
    plain = packet(*ends, 5, 6, 100)
    more = bytearray(plain[:40] + b"\x06\0" + bytes(6) + plain[40:])
    more[6], more[4:6] = 60, struct.pack("!H", 20 + 8 + 100)
    later = bytearray(plain[:40] + b"\x06\0\0\x08" + bytes(4) + plain[40:])
    later[6] = 44
    found, _ = columns_of(tmp_path, pcapng((0, plain, 100), (0, bytes(more), 100),
                                           (0, bytes(later), 100)))  # fmt: skip
    assert found.is_tcp.tolist() == [True, True, False]
    assert found.length.tolist()[:2] == [100, 100] and found.seq.tolist()[:2] == [5, 5]


def test_what_is_no_segment(tmp_path: Path) -> None:
    udp, fragment, odd = bytearray(DATA), bytearray(DATA), bytearray(DATA)
    udp[9], fragment[7], odd[32] = 17, 9, 0x10
    found, _ = columns_of(tmp_path, pcapng(
        (0, bytes(udp), 0), (0, bytes(fragment), 0), (0, bytes(odd), 0), (0, DATA[:39], 0),
        (0, b"", 0),
    ))  # fmt: skip
    assert not found.is_tcp.any()


@pytest.mark.parametrize("data, error, words", [
    (b"", FileError, "neither pcapng nor pcap"),
    (b"\x1f\x8b\x08" + bytes(30), FileError, "gunzip"),
    (b"PSC 1" + bytes(30), FileError, "tcpdump -w"),
    (struct.pack("<I", 0xA1B2C3D4), DamagedError, "its head is cut off"),
    (section("x")[:4], DamagedError, "its head is cut off"),
    (section("x")[:-1], DamagedError, "its head is cut off"),
    (section("x")[:8] + b"abcd" + section("x")[12:], DamagedError, "byte order"),
    (PACKETS + struct.pack("<II", 6, 13) + bytes(20), DamagedError, "a block of 13 bytes at off"),
    (PACKETS + struct.pack("<II", 6, MOST_BLOCK_BYTES + 4) + bytes(9), DamagedError, "a block of"),
    (PACKETS + block(6, bytes(20))[:-4] + b"\1\2\3\4", DamagedError, "two lengths"),
    (section("x") + block(1, b"1234"), DamagedError, "interface is too short"),
    (section("x") + enhanced(0, 0, b"", 0), DamagedError, "not described"),
    (PACKETS + block(6, bytes(8)), DamagedError, "too short"),
    (PACKETS + block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99)), DamagedError, "longer than"),
    (section("x") + block(1, bytes(8) + option(9, b"\x40") + bytes(4)), DamagedError, "too fine"),
    (section("x") + interface(1) * (MOST_INTERFACES + 1), DamagedError, "interfaces"),
])  # fmt: skip
def test_errors_for_people(tmp_path: Path, data: bytes, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        read(tmp_path, data)


def test_a_file_that_is_cut_ends_before(tmp_path: Path) -> None:
    for cut in range(1, 60):
        batches, file = read(tmp_path, PACKETS[:-cut])
        assert sum(map(len, batches)) == 1 and file.cut is not None


def test_times_of_all_units(tmp_path: Path) -> None:
    def at(options: bytes, value: int) -> int:
        idb = block(1, struct.pack("<HHI", RAW_IP, 0, 0) + options + bytes(4))
        data = section("x") + idb + enhanced(0, value, DATA, 60)
        return int(columns_of(tmp_path, data)[1]["times_ns"][0])

    assert at(b"", 3_000_001) == 3_000_001_000
    assert at(option(9, b"\x03"), 3001) == 3_001_000_000
    assert at(option(9, b"\x8a"), 1024 * 3) == 3_000_000_000
    assert at(option(14, struct.pack("<q", 100)), 1_000_000) == 101_000_000_000
    assert at(option(14, struct.pack("<q", (1 << 62))), (1 << 64) - 1) == (1 << 62) - 1
