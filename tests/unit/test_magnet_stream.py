# SPDX-License-Identifier: Apache-2.0
"""The stream into a MAGNeT file: what it makes of the rings' records, in which order, and LOST."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.writer import appender
from tcpkmon.collector.writer.file_sink import Calls
from tcpkmon.collector.writer.magnet_records import Packing
from tcpkmon.formats.base.control import LossCause
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import FIRST_CONTROL, FIRST_EVENT, LOST, MOST_LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.verify import verify_magnet
from tests.unit.magnet_builder import (
    MONO_NS,
    MagnetBuilder,
    clean_file,
    lossy_file,
    make_schema,
)


def rows_of(path: Path) -> np.ndarray:
    with MagnetFile(path) as file:
        found = [piece.rows.tobytes() for piece in Walk(file) if isinstance(piece, Piece)]
        return file.layout.rows(b"".join(found))


def test_lean_records(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write()
    rows = rows_of(path)
    assert rows.dtype.itemsize == 24
    with MagnetFile(path) as file:
        names = {kind.code: kind.name for kind in file.kinds}
        assert names[FIRST_EVENT] == "MAGNET_SOCK_SEND"
        assert "MAGNET_KLOGGER_START" not in names.values()
        header = file.header
    assert header["clock"]["mono_ns"] == MONO_NS and header["tick_ns"] == 1
    assert header["settings"] == {"hz": 250}, "addresses and ports are not in it"
    assert b"192.0.2.1" not in path.read_bytes() and b"5001" not in path.read_bytes()
    of = {name: rows[rows["event"] == code] for code, name in names.items()}
    assert len(of["MAGNET_CONNECTION"]) == 1 and of["MAGNET_CONNECTION"]["size"][0] == 0
    assert of["MAGNET_SOCK_SEND"]["sockid"].tolist() == [1 + n % 3 for n in range(20)]
    assert set(of["MAGNET_SOCK_SEND"]["timestamp"].tolist()) == {MONO_NS - 5}, "when it began"
    assert (np.diff(of["MAGNET_TCP_SEND"]["timestamp"].astype(np.int64)) > 0).all()
    assert of["MAGNET_SOCK_RECV"]["size"].tolist() == [100] * 20 + [-11]
    assert (of["MARK"]["sockid"].tolist(), of["MARK"]["size"].tolist()) == ([5], [99])


def test_data_is_that_of_the_layer(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a", data=True).write()
    rows = rows_of(path)
    assert rows.dtype.itemsize == 120
    with MagnetFile(path) as file:
        kinds = {kind.name: kind for kind in file.kinds}
        assert file.header["settings"]["filters"] == {"ports": [5001]}
    send = rows[rows["event"] == kinds["MAGNET_SOCK_SEND"].code]
    assert kinds["MAGNET_SOCK_SEND"].data == "tcp" and kinds["MAGNET_QDISC_ENQUEUE"].data == "ip"
    for name, value in {"source": 5001, "dest": 40000, "snd_cwnd": 10, "flags": 18}.items():
        assert set(send[name].tolist()) == {value}, name
    assert send["copied_seq"][0] == 4_000_000_000
    ip = rows[rows["event"] == kinds["MAGNET_DEV_RECV"].code]
    found = {name: ip[name][0].item() for name in ("version", "tos", "id", "frag_off", "ttl")}
    assert found == {"version": 4, "tos": 8, "id": 0x1234, "frag_off": 0x4000, "ttl": 64}
    assert not ip["snd_cwnd"].any() and not ip["flags"].any()
    connection = rows[rows["event"] == kinds["MAGNET_CONNECTION"].code]
    assert not connection["snd_cwnd"].any()


def test_a_plain_reader_skips_by_the_code_alone(tmp_path: Path) -> None:
    data = lossy_file(tmp_path / "a").write().read_bytes()
    form = np.dtype([("sockid", "<u8"), ("timestamp", "<u8"), ("event", "<u4"), ("size", "<i4")])
    rows = np.frombuffer(data, form)
    plain = rows[rows["event"] < FIRST_CONTROL]
    assert plain.tobytes() == rows_of(tmp_path / "a").tobytes()


def test_cpus_are_merged_by_time_and_lost_is_in_its_place(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a")
    made.log("IP_SEND", 0, 2, size=1).log("DEV_SEND", 1, 2, size=2).lose("IP_SEND", 0, 5)
    made.log("IP_SEND", 0, 1, size=3).lose("IP_SEND", 1, 1).log("DEV_SEND", 1, 1, size=4)
    rows = rows_of(made.lose("SOCK_RECV", 0, 7).write())
    lost = rows["event"] == LOST
    assert rows["size"][:-1].tolist() == [1, 1, 2, 2, 5, 3, 1, 4, 7]
    assert np.flatnonzero(lost).tolist() == [4, 6, 8]
    assert set(rows["sockid"][lost].tolist()) == {LossCause.KERNEL}
    assert (np.diff(rows["timestamp"].astype(np.int64)) >= 0).all()
    with tcpkmon.open(tmp_path / "a") as reader:
        assert reader.lost == 13 and reader.complete and not reader.damaged


def test_late_records_are_lost(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a").log("IP_SEND", 0, 2)
    point, _ = made.places["IP_SEND"]
    late = made.rows(1)
    late["low"], late["time"], late["location"] = 3, made.now_ns, point
    made.serials[0] += 1
    for counter in ("attempts", "written"):
        made.accounts[0, point, counter] += 1
    made.log("IP_SEND", 0, 2).release()
    made.stream.push([Batch(0, late, 0)])
    report = verify_magnet(made.write())
    assert report.exit_code == 3 and not report.problems, report.problems
    assert report.totals.lost == {"late": 1} | dict.fromkeys(
        set(report.totals.lost) - {"late"}, 0
    )


def test_more_than_one_record_can_count() -> None:
    packing = Packing(make_schema(), [])
    found = packing.missing([5, 2 * MOST_LOST + 3, MOST_LOST, 0], 3, 9)
    sizes = [5, MOST_LOST, MOST_LOST, 3, MOST_LOST]
    assert found.entries["size"].tolist() == sizes
    assert found.lost == found.span == sum(sizes) and found.records == 0
    assert found.lost_from(2) == sum(sizes[2:])


def test_many_records_have_checks_between(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a")
    for _ in range(5):
        made.log("IP_SEND", 0, 30_000).log("DEV_SEND", 1, 30_000).release()
    path = made.write()
    with MagnetFile(path) as file:
        entries = [piece for piece in Walk(file) if isinstance(piece, Entry)]
    assert sum(entry.kind == "CHECK" for entry in entries) >= 3
    assert all(entry.sound for entry in entries)
    assert verify_magnet(path).exit_code == 0
    assert path.stat().st_size < 300_000 * 24 * 1.01 + 20_000


class FullDisk(Calls):
    """A disk that is full for some writes."""

    full = False

    def write(self, fd: int, data: object) -> int:  # type: ignore[override]
        if FullDisk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return Calls.write(fd, data)  # type: ignore[arg-type]


def test_a_full_disk_is_lost_and_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "RETRY_NS", 0)
    made = MagnetBuilder(tmp_path / "a")
    made.stream._writer.files[0].sink._calls = FullDisk()
    made.log("IP_SEND", 0, 4).lose("IP_SEND", 0, 2).log("IP_SEND", 0, 1).checkpoint()
    wait(made)
    FullDisk.full = True
    made.log("IP_SEND", 0, 3).lose("IP_SEND", 0, 6).log("IP_SEND", 0, 1).release()
    made.change(0, made.places["IP_SEND"][0], 1, 2, 1, 0, 0)
    wait(made)
    FullDisk.full = False
    made.log("SOCK_RECV", 1, 2)
    report = verify_magnet(made.write())
    assert not report.problems, report.problems
    assert report.exit_code == 3 and report.proven_end
    assert report.totals.lost["disk full"] == 4 and report.totals.lost["ring full"] == 8
    assert report.seq_lost == 12
    assert "MAGNET_IP_SEND was off" in report.off[0]


def wait(made: MagnetBuilder) -> None:
    """Until the spool has nothing left."""
    import time

    for _ in range(500):
        if not made.stream._spool._bytes:
            return
        time.sleep(0.01)
    raise AssertionError("the spool does not end")


