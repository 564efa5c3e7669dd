# SPDX-License-Identifier: Apache-2.0
"""From the sequencer to a real, small disk: what does not fit is proven by the file itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.plan.columns import choose_columns, load_schema, make_layout
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.ordered_batch import stamp_control
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.ledger import Books, reserve_bytes
from tcpkmon.collector.writer.output_file import Output
from tcpkmon.collector.writer.spool import Spool
from tcpkmon.collector.writer.tape import Account, Finish
from tcpkmon.collector.writer.written import RETRY_NS, Written
from tcpkmon.formats.base.control import EndReason, Start, encode_many
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.psc.header import encode_header, writer_header
from tcpkmon.formats.verify import verify_file
from tests.unit.ordering import Whole
from tests.unit.writers import psc_writer

WAIT_S = 120.0
LOCATION = 1
CPUS = 2


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Capture:
    """What collect does behind the rings, with records made up here."""

    def __init__(self, path: Path) -> None:
        schema = load_schema()
        event = schema.event("SNAPSHOT")
        self.layout = make_layout(schema, choose_columns(event, "default"), ())
        self.dtype = self.layout.dtype
        self.clocks = Clocks()
        self.now_ns = 0
        pair = self.clocks.start
        self.time_ns = pair.mono_ns
        output = Output(path)
        header = encode_header(
            writer_header(
                self.layout.columns, self.layout.entry_size, mods=6, version="tktest",
                mclsize=4096, host="test", kernel="test",
                clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
                schema="", settings={},
            )
        )  # fmt: skip
        start = encode_many([Start(pair.mono_ns, pair.realtime_ns, CPUS, 1)], self.dtype)
        stamp_control(start, np.array([1], np.int64), pair.mono_ns, self.clocks.to_epoch)
        output.begin(header + start.tobytes())
        reserve = reserve_bytes(CPUS, 1, self.layout.entry_size)
        self.sink = FileSink(output.fd, self.layout.entry_size, reserve_bytes=reserve)
        self.writer = psc_writer(
            self.sink, self.dtype, self.clocks.to_epoch, Written(1, 1), lambda: self.now_ns
        )
        self.sequencer = Whole(self.dtype, self.clocks.to_epoch, first_seq=2)
        self.ledger = np.zeros((CPUS, ROWS), ACCOUNT)
        self.serials = np.zeros(CPUS, np.uint64)

    def records(self, count: int, lose: int = 0) -> Any:
        """Some records of each CPU; the kernel loses some before them."""
        for cpu in range(CPUS):
            first = int(self.serials[cpu]) + lose + 1
            rows = np.zeros(count, self.dtype)
            serials = np.arange(first, first + count)
            times = self.time_ns + serials * 100
            rows["seq_no"] = serials
            # Where the time of day will stand, the kernel has left nanoseconds.
            rows.view(np.uint8).reshape(count, -1)[:, 4:12] = (
                times.astype(np.uint64).view(np.uint8).reshape(count, 8)
            )
            rows["location"], rows["lport"], rows["rport"] = LOCATION, 1, 2
            rows["cpu"], rows["serial"], rows["time_ns"] = cpu, serials, times
            self.sequencer.push(Batch(cpu, rows, 0))
            self.serials[cpu] += count + lose
            for name, number in (
                ("attempts", count + lose), ("written", count), ("ring_full", lose)
            ):  # fmt: skip
                self.ledger[name][cpu, LOCATION] += number
        return self.sequencer.release(2**62)

    def books(self) -> Books:
        return Books(
            self.ledger.copy(), self.serials.copy(), read=dict(self.sequencer.read),
            late=dict(self.sequencer.late), online=frozenset(range(CPUS)),
        )  # fmt: skip


def finish(capture: Capture, spool: Spool) -> None:
    books = capture.books()
    now_ns = capture.time_ns + 10**9
    spool.put_control([Account(books, final=True)], now_ns, reserved=True)
    spool.put_control([Finish(EndReason.DURATION)], now_ns, reserved=True)
    assert spool.close(WAIT_S)


@pytest.mark.parametrize("size", ["256k", "1m"])
def test_full_disk_is_proven_by_the_file(tmp_path: Path, size: str) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        path = disk / "out.pm"
        capture = Capture(path)
        spool = Spool(capture.writer)
        spool.start()
        for turn in range(60):
            spool.put(capture.records(100, lose=turn % 2))
            spool.put_control([Account(capture.books())], capture.time_ns, sync=True)
        finish(capture, spool)
        report = verify_file(path)
        assert not report.problems, report.problems
        assert report.proven_end
        assert report.exit_code == 3
        assert report.totals.lost["disk full"] > 0
        assert report.totals.attempts == int(capture.serials.sum())
        written = capture.writer.written
        assert written.disk_full.total() + written.in_file.total() == CPUS * 6000
        # The disk was used, but for the reserve.
        total = os.statvfs(disk)
        assert path.stat().st_size > 0.75 * total.f_blocks * total.f_frsize


def test_capture_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        filler = disk / "filler"
        capture = Capture(disk / "out.pm")
        room = os.statvfs(disk)
        filler.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 100_000))
        for _ in range(10):
            capture.writer.write(capture.records(200))
        capture.writer.tally.settle()
        before = capture.writer.written.in_file.total()
        assert capture.writer.written.disk_full.total() > 0
        filler.unlink()
        capture.now_ns += RETRY_NS
        for _ in range(3):
            capture.writer.write(capture.records(200, lose=3))
        capture.writer.tally.settle()
        assert capture.writer.written.in_file.total() == before + 1200
        spool = Spool(capture.writer)
        spool.start()
        finish(capture, spool)
        report = verify_file(disk / "out.pm")
        assert not report.problems, report.problems
        assert report.exit_code == 3 and report.proven_end


def test_no_room_for_the_header_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        output = Output(disk / "out.pm")
        with pytest.raises(FileError, match="no room"):
            output.begin(b"h" * 100_000)
        assert os.listdir(disk) == []


def test_whole_capture_adds_up(tmp_path: Path) -> None:
    capture = Capture(tmp_path / "out.pm")
    spool = Spool(capture.writer)
    spool.start()
    for _ in range(20):
        spool.put(capture.records(500))
        spool.put_control([Account(capture.books())], capture.time_ns)
    finish(capture, spool)
    report = verify_file(tmp_path / "out.pm")
    assert not report.problems, report.problems
    assert report.exit_code == 0
    assert report.totals.in_file == 20_000


def test_killed_writer_leaves_a_file_that_opens(tmp_path: Path) -> None:
    """SIGKILL while writing: what stands there is whole, and the tail is said to be unknown."""
    path = tmp_path / "out.pm"
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.live.test_output_live import *\n"
        "capture = Capture(Path(sys.argv[1]))\n"
        "spool = Spool(capture.writer)\n"
        "spool.start()\n"
        "while True:\n"
        "    spool.put(capture.records(100))\n"
        "    spool.put_control([Account(capture.books())], capture.time_ns)\n"
        "    if capture.writer.written.checkpoints > 5:\n"
        "        print('going', flush=True)\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=root, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)
    report = verify_file(path)
    assert not report.problems, report.problems
    assert report.tail_unknown
    assert report.checkpoints > 5


def test_a_reader_without_permission_is_refused(tmp_path: Path) -> None:
    """Nobody but root may name a file in a folder that is root's."""
    tmp_path.chmod(0o755)
    code = (
        "import os, sys; sys.path.insert(0, '.')\n"
        "from tcpkmon.collector.writer.output_file import Output\n"
        "from tcpkmon.formats.base.errors import FileError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    Output('/proc/out')\n"
        "except FileError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    Output('/usr/out.pm')\n"
        "except FileError as error:\n"
        "    print(error)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no permission to write /usr/out.pm; choose another place with -o" in done.stdout
