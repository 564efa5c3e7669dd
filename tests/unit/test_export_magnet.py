# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files of logs: as the captures of commit a475560f wrote them, with LOST in its places."""

from __future__ import annotations

import lzma
import os
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES
from tcpkmon.formats.export.magnet import convert, write
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import CLOCK, CONTROL, FIRST_EVENT, LOST, MARK, MOST_LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_folder, verify_magnet
from tcpkmon.formats.verify.magnet import digest_of
from tests.full import IS_FULL
from tests.kept.make import HERE, unpack
from tests.unit.log_files import (
    BULK_RECORDS,
    LEAN,
    MagnetBuilder,
    clean_file,
    clean_log,
    in_layout,
    lossy_file,
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
    for writes in (8_000, 32_000):
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


SIZE = 24


def test_a_clean_file(tmp_path: Path) -> None:
    report = verify_magnet(clean_file(tmp_path / "a").write())
    assert (report.exit_code, report.verdict) == (0, "adds up: nothing lost")
    assert report.end_reason == "asked" and report.proven_end and not report.unchecked
    assert report.totals.in_file == report.totals.attempts == 182
    assert report.notes[-1].startswith("the proof is that of the log")


def test_it_says_what_verify_says_of_the_log(tmp_path: Path) -> None:
    made = lossy_file(tmp_path / "a")
    made.lose("IP_SEND", 1, 2).logs[0].programs["one"] = (3, 0)
    report = verify_magnet(made.write())
    log = verify_folder(tmp_path / "a.klog")[-1]
    assert report.exit_code == log.exit_code == 3 and not report.problems
    assert report.verdict == log.verdict
    assert report.ring_lost == report.seq_lost == 11 and report.seq_gaps == 3
    assert report.missed_total == 3 and report.lost_total == log.lost_total == 14
    for name in ("attempts", "written", "in_file", "lost_total"):
        assert getattr(report.totals, name) == getattr(log.totals, name)
    with tcpkmon.open(tmp_path / "a") as reader:
        assert reader.lost == 14


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_layout(tmp_path: Path, order: str, bits: int) -> None:
    path = lossy_file(tmp_path / "a").write()
    report = verify_magnet(in_layout(path, tmp_path / "b", order, bits))
    assert report.verdict == "adds up: 9 lost, all accounted for"
    assert report.totals == verify_magnet(path).totals


def test_what_the_kernel_does_not_count_is_not_proven(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a", unproven={"IP_SEND": "kprobe:ip_queue_xmit"})
    report = verify_magnet(made.log("IP_SEND").write())
    assert (report.exit_code, report.problems) == (3, [])
    assert "not proven for 1 event(s)" in report.verdict
    assert report.unproven == {"MAGNET_IP_SEND": "kprobe:ip_queue_xmit"}


@pytest.mark.parametrize("data", [False, True])
def test_every_changed_byte_is_found(tmp_path: Path, data: bool) -> None:
    path = clean_file(tmp_path / "a", data, count=1).write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        first = file.first * file.layout.size
    step = 1 if IS_FULL else 3
    some = range(0, first, 61 if IS_FULL else 997) if not data else ()
    for at in (*range(0, 200, step), *some, *range(first, len(whole), 7 * step)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        if whole[:8] == changed[:8]:
            assert verify_magnet(path).exit_code == 5, at
            continue
        assert "not a MAGNeT file" in str(verify_magnet(path).error)


def test_missing_and_doubled_records_are_found(tmp_path: Path) -> None:
    path = lossy_file(tmp_path / "a").write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        first, count = file.first, file.count
    for at in (*range(first, count, 5 if IS_FULL else 25), *range(count - 30, count, 5)):
        row = whole[at * SIZE : (at + 1) * SIZE]
        path.write_bytes(whole[: at * SIZE] + whole[(at + 1) * SIZE :])
        assert verify_magnet(path).exit_code == 5, f"without {at}"
        path.write_bytes(whole[: at * SIZE] + row + whole[at * SIZE :])
        assert verify_magnet(path).exit_code == 5, f"{at} twice"


Edit = Callable[[dict[str, Any]], Any]
Change = Callable[[np.ndarray], np.ndarray]


def forged(
    path: Path, rows: Change = lambda rows: rows, proof: Edit | None = None, digest: bool = True
) -> Report:
    """verify of the file with other records, and their checksums, or another proof in its header.

    digest: that of the proof is made right, too.
    """
    with MagnetFile(path) as file:
        header, layout = file.header, file.layout
        if proof is not None:
            proof(header["proof"])
            if digest:
                header["proof"]["digest"] = digest_of(header["proof"])
        out, block, records = encode_header(header, layout), Block(layout.size), 0
        for found in Walk(file):
            if isinstance(found, Piece):
                data = rows(found.rows.copy()).tobytes()
                block.add(data)
                records += len(data) // layout.size
                out += data
            else:
                out += encode(found.values | block.values() | {"records": records}, layout)
                block = Block(layout.size)
    path.write_bytes(out)
    return verify_magnet(path)


def more_lost(rows: np.ndarray) -> np.ndarray:
    rows["size"][rows["event"] == LOST] += 1
    return rows


def other_event(rows: np.ndarray) -> np.ndarray:
    rows["event"][1] = rows["event"][2]
    return rows


def put(name: str, value: Any) -> Edit:
    return lambda proof: proof.update({name: value})


def in_event(name: str, step: int) -> Edit:
    def edit(proof: dict[str, Any]) -> None:
        proof["events"]["MAGNET_IP_SEND"][name] += step

    return edit


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rows": more_lost}, "LOST counts 12, the proof 9"),
        ({"rows": other_event}, "records of MAGNET_SOCK_SEND, but the proof counts 20"),
        ({"rows": lambda rows: rows[:-3]}, "LOST counts 5, the proof 9"),
        ({"proof": put("seq_lost", 8)}, "LOST counts 9, the proof 8"),
        ({"proof": in_event("in_file", 1)}, "21 records of MAGNET_IP_SEND, but the proof"),
        ({"proof": put("problems_total", 2)}, "the log does not add up: 2 problem(s)"),
        ({"proof": in_event("attempts", 1), "digest": False}, "digest of the proof in the header"),
        ({"proof": put("digest", 5), "digest": False}, "digest of the proof in the header"),
        ({"proof": put("events", [])}, "the proof in the header cannot be read"),
        ({"proof": put("events", {"X": {}})}, "the proof in the header cannot be read"),
        ({"proof": put("missed", [{}])}, "the proof in the header cannot be read"),
        ({"proof": put("notes", 5)}, "the proof in the header cannot be read"),
        ({"proof": put("seq_lost", True)}, "the proof in the header cannot be read"),
        ({"proof": put("unproven", {"a": 1})}, "the proof in the header cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_its_proof(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    path = lossy_file(tmp_path / "a").write()
    assert forged(path).exit_code == 3, "nothing changed"
    report = forged(path, **change)
    assert report.exit_code == 5
    assert any(what in problem.what for problem in report.problems), report.problems
    assert report.as_json()["exit_code"] == 5
    with tcpkmon.open(path) as reader:  # whatever is forged
        assert reader.lost >= 0


@pytest.mark.parametrize("size", [10, MOST_CONTROL_BYTES])
def test_beginnings_of_entries_take_no_more_than_linear_time(tmp_path: Path, size: int) -> None:
    path = clean_file(tmp_path / "a", count=1).write()
    with MagnetFile(path) as file:
        rows = np.zeros(20_000, file.layout.dtype)
    rows["event"], rows["size"] = CONTROL, size
    with path.open("ab") as out:
        out.write(rows.tobytes())
    before = time.process_time()
    assert verify_magnet(path).problems_total >= len(rows)
    assert time.process_time() - before < 5, "each read on to the end"


def blocks_of(path: Path) -> Iterator[tuple[int, int]]:
    """Where each block with its control entry begins and ends, in records."""
    with MagnetFile(path) as file:
        start = file.first
        for piece in Walk(file):
            if isinstance(piece, Entry):
                yield start, piece.start + piece.count
                start = piece.start + piece.count


def test_missing_and_doubled_blocks_are_found(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a")
    for _ in range(40):
        made.log("IP_SEND", 0, 500).log("DEV_SEND", 1, 500)
    path = made.write()
    whole = path.read_bytes()
    blocks = list(blocks_of(path))
    assert len(blocks) == 3
    for start, stop in blocks:
        block = whole[start * SIZE : stop * SIZE]
        path.write_bytes(whole.replace(block, b""))
        assert verify_magnet(path).exit_code == 5
        path.write_bytes(whole.replace(block, block * 2))
        assert verify_magnet(path).exit_code == 5
    first, second = (whole[a * SIZE : b * SIZE] for a, b in blocks[:2])
    path.write_bytes(whole.replace(first + second, second + first))
    assert verify_magnet(path).exit_code == 5


# Files of before.


@pytest.mark.parametrize(("name", "code"), [("plain", 0), ("lossy", 3), ("killed", 3), ("cut", 3)])
def test_a_file_of_before(tmp_path: Path, name: str, code: int) -> None:
    unpack(f"magnet-{name}", tmp_path)
    (path,) = tmp_path.iterdir()
    report = verify_magnet(path)
    assert report.exit_code == code and not report.problems
    assert "its ledgers, which tcpkmon until commit a475560f adds up" in report.unchecked
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify_magnet(path).exit_code == 5


def test_no_repair_and_no_anonymising(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = clean_file(tmp_path / "a", count=1).write()
    for words, told in (
        (["repair", str(path)], "repair the log, then export it"),
        (["anonymise", str(path)], "anonymise the log, then export it"),
    ):
        assert cli.run(command, [*words, "-o", str(tmp_path / "new")], prog="tcpkmon") == 2
        output = capfd.readouterr().err
        assert told in output and output.count("\n") == 1
    unpack("magnet-rotated", tmp_path)
    words = ["anonymise", str(tmp_path / "magnet-rotated"), "-o", str(tmp_path / "new")]
    assert cli.run(command, words, prog="tcpkmon") == 2
    with pytest.raises(UsageError):
        format_of(path).repair(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
