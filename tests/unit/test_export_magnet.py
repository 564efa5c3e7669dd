# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files of logs: as the captures of commit a475560f wrote them, with LOST in its places."""

from __future__ import annotations

import lzma
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.export.magnet import convert, write
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import CLOCK, FIRST_EVENT, LOST, MARK, MOST_LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.verify import verify_magnet
from tests.kept.make import HERE, unpack
from tests.unit.log_files import (
    BULK_RECORDS,
    LEAN,
    MagnetBuilder,
    clean_file,
    clean_log,
    sample_header,
    write_big_endian,
    write_bulk,
)

Capture = pytest.CaptureFixture[str]


def rows_of(path: Path) -> np.ndarray:
    with MagnetFile(path) as file:
        found = [piece.rows.tobytes() for piece in Walk(file) if isinstance(piece, Piece)]
        return file.layout.rows(bytearray(b"".join(found)))


def tool(*arguments: object) -> int:
    return cli.run(command, [str(one) for one in arguments], prog="tcpkmon")


def exported(log: Path, to: Path) -> Path:
    with tcpkmon.open(log) as reader:
        write(reader, to, force=False)
    return to


@pytest.mark.parametrize("name", ["events-plain", "events-lossy-own", "events-lossy-made"])
def test_a_log_becomes_what_was_written_before(name: str, tmp_path: Path) -> None:
    """NAME.magnet.xz is what the MAGNeT codec of commit a475560f made of the records of this log:
    of a capture with --data; of one with losses, the level driver, and an event of a user's own; of
    a made one in which times step back, and the clock is set. It had a code for RECONCILED too."""
    unpack(name, tmp_path)
    before, new = tmp_path / "before", tmp_path / "new"
    before.write_bytes(lzma.decompress((HERE / f"{name}.magnet.xz").read_bytes()))
    exported(tmp_path / name, new)
    old, made = rows_of(before), rows_of(new)
    with MagnetFile(before) as one, MagnetFile(new) as other:
        codes = {kind.name: kind.code for kind in other.kinds}
        table = {kind.code: codes.get(kind.name) for kind in one.kinds}
        assert [k.name for k in one.kinds if k.name not in codes] == ["MAGNET_RECONCILED"]
        for key in one.header.keys() - {"events", "clock"}:
            assert one.header[key] == other.header[key], key
    old["event"] = [table[code] for code in old["event"].tolist()]
    assert len(old) == len(made)
    own = [np.isin(rows["event"], (MARK, CLOCK)) for rows in (old, made)]
    kinds = [rows.view(f"V{rows.dtype.itemsize}") for rows in (old, made)]  # all of their bytes
    assert (kinds[0][~own[0]] == kinds[1][~own[1]]).all(), "records, and LOST in its places"
    told = [
        sorted(rows[mine][["event", "sockid", "size"]].tolist())
        for rows, mine in zip((old, made), own, strict=True)
    ]
    assert told[0] == told[1]
    assert (np.diff(made["timestamp"][own[1]].astype(np.int64)) >= 0).all()


def test_more_than_one_record_can_count(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a").log("IP_SEND").lose("IP_SEND", 0, 2 * MOST_LOST + 3)
    rows = rows_of(made.log("IP_SEND").lose("IP_SEND", 0, MOST_LOST).write())
    sizes = rows["size"][rows["event"] == LOST].tolist()
    assert sizes == [MOST_LOST, MOST_LOST, 3, MOST_LOST]
    report = verify_magnet(tmp_path / "a")
    assert report.exit_code == 3 and report.seq_lost == sum(sizes)


def test_a_large_log_takes_no_more_memory(tmp_path: Path) -> None:
    """Four times the records, and the same memory; a control entry comes at the latest after
    16,384 of them."""
    peaks = []
    for writes in (2_000, 8_000):
        log, path = write_bulk(tmp_path / f"log{writes}", writes), tmp_path / f"{writes}.magnet"
        tracemalloc.start()
        with tcpkmon.open(log) as reader, path.open("wb") as out:
            convert(reader, out)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        report = verify_magnet(path)
        assert report.exit_code == 0, report.problems
        assert report.totals.in_file == writes * BULK_RECORDS + 20
    assert peaks[1] < 1.2 * peaks[0], peaks
    with MagnetFile(path) as file:
        entries = [piece for piece in Walk(file) if isinstance(piece, Entry)]
    assert all(entry.sound and entry.values["block"] <= 16_384 for entry in entries)
    assert path.stat().st_size < writes * BULK_RECORDS * 24 * 1.01 + 20_000


def test_a_log_of_a_big_endian_machine(tmp_path: Path, capfd: Capture) -> None:
    payload = struct.pack(">QQIIIiIHH", 7, 1 << 39, 1, 101, 5, -11, 3, 18, 2)
    text = f"event SOCK_SEND {{{LEAN}}}"
    header = sample_header(text, settings={})
    payload = payload.ljust(next(e for e in header["events"] if e["name"] == "SOCK_SEND")["size"])
    log = write_big_endian(tmp_path / "kernlog.dump.cpu0", header, "SOCK_SEND", payload)
    exported(log, tmp_path / "a")
    (row,) = rows_of(tmp_path / "a")[["sockid", "timestamp", "event", "size"]]
    assert row.tolist() == (7, 1 << 39, FIRST_EVENT, -11)
    assert tool("magnet-parse", tmp_path / "a") == 3  # the log has no end
    assert capfd.readouterr().out.splitlines()[1] == f"7\t{1 << 39}\tMAGNET_SOCK_SEND\t-11"


def test_a_damaged_log(tmp_path: Path, capfd: Capture) -> None:
    log = clean_file(tmp_path / "a", count=20).write_log()
    file = log / "kernlog.dump.cpu0"
    data = bytearray(file.read_bytes())
    with tcpkmon.open(file) as reader:
        list(reader.readers[0].batches())
        dump = reader.readers[0].walked.found[1]
    data[dump.body + 200] ^= 1
    file.write_bytes(data)
    out = tmp_path / "new.magnet"
    assert tool("export", log, "-o", out) == 5
    assert "checksum is wrong" in capfd.readouterr().err
    report = verify_magnet(out)
    assert report.exit_code == 5
    assert "the log does not add up" in report.problems[0].what
    rows = rows_of(out)
    assert (rows["event"] == MARK).sum() == 1 and rows["size"][rows["event"] == LOST].sum() > 40
    other = log / "kernlog.dump.cpu1"
    assert len(rows_of(exported(other, tmp_path / "one"))) == 81, "a CPU's log alone, and CLOCK"


def test_a_log_without_its_end(tmp_path: Path) -> None:
    log = clean_file(tmp_path / "a").write_log(None)
    out = tmp_path / "new.magnet"
    assert tool("export", log, "-o", out) == 3
    report = verify_magnet(out)
    assert report.exit_code == 3 and report.tail_unknown and not report.problems
    with tcpkmon.open(out) as reader:
        assert not reader.complete and not reader.damaged


def test_what_a_magnet_file_cannot_hold(tmp_path: Path, capfd: Capture) -> None:
    clean_log().write(tmp_path / "kernlog.dump.cpu0")
    out = tmp_path / "out.magnet"
    assert tool("export", tmp_path / "kernlog.dump.cpu0", "-o", out) == 2
    assert "has no field connection, which each record" in capfd.readouterr().err
    unpack("psc-plain", tmp_path)
    unpack("klogger-rotated", tmp_path)
    for name in ("psc-plain.pm", "klogger-rotated"):
        assert tool("export", "--format", "magnet", tmp_path / name, "-o", out) == 2
        assert "a MAGNeT file is made of one Klogger log" in capfd.readouterr().err
    log = clean_file(tmp_path / "a", count=1).write_log()
    assert tool("export", "--columns", "size", log, "-o", out) == 2
    assert not out.exists()
    out.write_text("mine")
    assert tool("export", log, "-o", out) == 1 and out.read_text() == "mine"
    assert "--force" in capfd.readouterr().err
    assert tool("export", "--force", log, "-o", out) == 0
    assert verify_magnet(out).exit_code == 0 and out.stat().st_mode & 0o777 == 0o640


def test_a_conversion_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = clean_file(tmp_path / "a", count=1).write_log()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert tool("export", log, "-o", tmp_path / "new.magnet") == 1
    assert os.listdir(tmp_path) == [log.name]
