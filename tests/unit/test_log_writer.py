# SPDX-License-Identifier: Apache-2.0
"""The writer of Klogger logs: serials through records and base events; whole dumps or none."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.plan.event_layout import lay_out, ring_dtype
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues
from tcpkmon.collector.writer.codec import File
from tcpkmon.collector.writer.file_sink import Calls, FileSink
from tcpkmon.collector.writer.klogger_codec import KloggerCodec, LogState
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.log_folder import LogFolder
from tcpkmon.collector.writer.note import FIRST_CPU, Note
from tcpkmon.collector.writer.output_file import Owner
from tcpkmon.collector.writer.writer import Writer
from tcpkmon.formats.base.control import Change, Clock
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.limits import MOST_DUMP_BYTES
from tcpkmon.formats.klogger.describe import describe_event, make_header
from tcpkmon.formats.klogger.encode import encode_preamble
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.schema.parser import load

BASE = load([source.conf for source in find_sources([])])


class Full(Calls):
    """A disk that takes no more from the k-th write on, until it is told otherwise."""

    left = 10**9

    def write(self, fd, data):  # type: ignore[override]
        if self.left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        return super().write(fd, data)

    @staticmethod
    def fallocate(fd, offset, length):
        raise OSError(errno.EOPNOTSUPP, "no")


@pytest.fixture
def log(tmp_path: Path):
    schema = load([*(s.conf for s in find_sources([])), _conf(tmp_path)])
    layout = lay_out(schema, [event.name for event in BASE.events])
    table = [describe_event(schema, s.event, s.number) for s in layout.slots]
    header = make_header(
        schema, table, cpu=0, cpus=2, host="h", kernel="k", version="0", buffer_bytes=4096,
        low_water_percent=75, clock=(1, 2, 3), settings={},
    )  # fmt: skip
    return _Log(tmp_path, layout, header)


def _conf(folder: Path) -> Path:
    path = folder / "own.conf"
    path.write_text("event PING { uint pid ulonglong n }")
    return path


class _Log:
    def __init__(self, folder, layout, header):
        self.folder, self.layout, self.header = folder, layout, header
        self.calls = Full()
        self.format = LogFormat.of(header)
        codec = KloggerCodec(self.format, now_ns=lambda: 10**9)
        self.writer = Writer(codec, now_ns=lambda: 10**9)
        for cpu in (0, 1):
            self.writer.files[cpu] = self.open_file(cpu)
        self.number = layout.slot("PING").number

    def path(self, cpu):
        return self.folder / f"cpu{cpu}"

    def open_file(self, cpu):
        fd = os.open(self.path(cpu), os.O_WRONLY | os.O_CREAT)
        os.write(fd, encode_preamble({**self.header, "cpu": cpu}))
        return File(cpu, FileSink(fd, 1, self.calls, reserve_bytes=0), LogState())

    def batch(self, *parts):
        """(cpu, serials) each."""
        queues = Queues(ring_dtype(self.layout.entry_size))
        for cpu, serials in parts:
            rows = np.zeros(len(serials), queues._opaque)
            words = rows.view(np.uint32).reshape(len(serials), -1)
            words[:, 0] = serials
            words[:, 1] = 1000 + np.array(serials)
            words[:, 4] = self.number
            words[:, 6] = 77
            words[:, 8] = serials
            queues.push(Batch(cpu, rows.view(ring_dtype(self.layout.entry_size)), 10**6))
        return [LogBatch(*copy) for copy in queues.copies(FOREVER_NS, Pool())]

    def read(self, cpu):
        """(event, serial, first field or None) of every record; damage."""
        reader = LogReader(self.path(cpu))
        found = []
        for dump in reader.batches(MOST_DUMP_BYTES, MOST_DUMP_BYTES):
            for number, serial in zip(dump.numbers.tolist(), dump.serials.tolist(), strict=True):
                found.append((self.format.event(number).name, serial))
        return found, reader.damage


def test_serials_run_through_records_and_base_events_and_gaps_stay(log):
    log.writer.write(*log.batch((0, [1, 2, 5])))
    log.writer.control([Note("MARK", {"number": 7}, FIRST_CPU)], 5)
    log.writer.write(*log.batch((0, [6])))
    log.writer.close()
    found, damage = log.read(0)
    assert not damage
    assert [serial for _, serial in found] == [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13]
    assert [name for name, _ in found] == [
        "DUMP_BEGIN", "PING", "PING", "PING", "DUMP_FINISH",
        "DUMP_BEGIN", "MARK", "DUMP_FINISH", "DUMP_BEGIN", "PING", "DUMP_FINISH",
    ]  # fmt: skip
    assert log.writer.written.in_file == Counter({(0, log.number): 4})


def test_a_full_disk_loses_whole_dumps_which_are_counted(log):
    log.writer.write(*log.batch((0, [1, 2])))
    log.calls.left = 0
    log.writer.write(*log.batch((0, [3, 4, 5])))
    assert not log.writer.control([Note("MARK", {"number": 1})], 5)
    assert log.writer.written.disk_full == Counter({(0, log.number): 3})
    log.calls.left = 10**9
    log.writer._retry_ns = 0
    log.writer.write(*log.batch((0, [6])))
    log.writer.close()
    found, damage = log.read(0)
    assert not damage
    # DUMP_BEGIN takes 5; 3, 4 and 5 of the kernel, which are lost, would have taken 6 to 8.
    assert found[-4:] == [("DUMP_FINISH", 4), ("DUMP_BEGIN", 5), ("PING", 9), ("DUMP_FINISH", 10)]
    assert log.writer.written.error is None


def test_what_others_are_misread_without_comes_later(log):
    """Changes of one event as one, and the step of the clock, before the next records."""
    log.calls.left = 0
    for items in ([Change(0, 2, 1, 2, 1, 0)], [Clock(3, 4, 5, 6), Change(0, 2, 3, 4, 0, 1)]):
        assert not log.writer.control(items, 5)
    log.calls.left = 10**9
    log.writer._retry_ns = 0
    log.writer.write(*log.batch((0, [1])))
    log.writer.close()
    names = [name for name, _ in log.read(0)[0]]
    assert [n for n in names if not n.startswith("DUMP")] == ["CHANGE", "CLOCK", "PING"]


def test_a_folder_of_an_earlier_log_is_kept_unless_forced(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    old = folder / "kernlog.dump.cpu7"
    old.write_text("old")
    with pytest.raises(FileError, match="holds a log already"):
        LogFolder(folder)
    forced = LogFolder(folder, force=True)
    assert old.exists()
    forced.clear()
    assert not old.exists()


def test_a_folder_that_another_user_swaps_stays_the_same(tmp_path):
    for force in (False, True):
        path, victim, gone = (tmp_path / f"{name}{force}" for name in ("log", "victim", "gone"))
        for each in (path, victim):
            each.mkdir()
            if force:
                (each / "kernlog.dump.cpu7").write_text("old")
        folder = LogFolder(path, force)
        path.rename(gone)
        path.symlink_to(victim)
        folder.clear()
        output = folder.output(0)
        output.begin(b"header")
        os.close(output.fd)
        folder.discard()
        assert os.listdir(gone) == ["kernlog.dump.cpu0"]
        assert os.listdir(victim) == (["kernlog.dump.cpu7"] if force else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_log_belongs_to_its_owner(tmp_path):
    (tmp_path / "there").mkdir()
    for name, wanted in (("new", (4242, 4243)), ("there", (0, 0))):
        folder = LogFolder(tmp_path / name, owner=Owner(4242, 4243))
        output = folder.output(0)
        output.begin(b"header")
        os.close(output.fd)
        folder.discard()
        file, status = next((tmp_path / name).iterdir()).stat(), (tmp_path / name).stat()
        assert (file.st_uid, file.st_gid, file.st_mode & 0o777) == (4242, 4243, 0o640)
        assert (status.st_uid, status.st_gid) == wanted
