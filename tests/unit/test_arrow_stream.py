# SPDX-License-Identifier: Apache-2.0
"""Arrow streams of entries: what PSC files hold, in columns; rotated, cut, taken over, recorded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tcpkmon
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tests.unit.segment_maker import CPUS, Maker, make
from tests.unit.test_takeover import Killed


class Arrow(Maker):
    form = "arrow"


class KilledArrow(Killed):
    form = "arrow"


def test_other_tools_read_it_and_it_is_proven(tmp_path: Path) -> None:
    paths = make(tmp_path / "a", segments=3, count=50, lose=2, kind=Arrow)
    plain = make(tmp_path / "p", segments=3, count=50, lose=2)
    assert [path.suffix for path in paths] == [".arrow"] * 3
    *each, chain = tcpkmon.verify(tmp_path / "a")
    *_, same = tcpkmon.verify(tmp_path / "p")
    assert [one.problems for one in (*each, chain)] == [[]] * 4 and chain.exit_code == 3
    assert [vars(row) for row in chain.rows] == [vars(row) for row in same.rows]
    found = pa.concat_tables(pa.ipc.open_stream(path).read_all() for path in paths)
    rows = found.filter(found["control"].is_null()).to_pandas()
    with open_capture(*plain) as capture:
        records = ~capture.control()
        for name in ("serial", "cpu", "location", "lport"):
            assert rows[name].tolist() == capture.column(name)[records].tolist(), name
    assert found["control"].drop_null().type == pa.binary() and len(rows) == 3 * 50 * CPUS
    assert len(tcpkmon.open(tmp_path / "a").table()) == found.num_rows


def test_another_process_goes_on(tmp_path: Path) -> None:
    """The journal says where the file ends; what is behind that is cut off, and read again."""
    maker = KilledArrow(tmp_path / "f")
    maker.records(30)
    maker.rotate()
    maker.records(20, lose=2)
    maker.checkpoint()
    maker.wait()
    journal = os.memfd_create("journal")
    os.write(journal, os.pread(maker.journal.fd, 1 << 24, 0))
    maker.records(12, lose=1)
    maker.wait()
    for file in maker.stream._writer.files.values():
        file.sink.close()
    maker.journal.close()
    maker.journal = Journal(CPUS + 1, journal)
    assert maker.go_on(maker.folder, {0: 50, 1: 52}) == {0: 0, 1: 2}
    *single, chain = format_of(maker.folder).verify(maker.folder)
    assert [report.problems for report in (*single, chain)] == [[]] * (len(single) + 1)
    assert [row.in_file for row in chain.rows] == [62, 60]
    assert [row.lost for row in chain.rows] == [{"ring full": 3}, {"ring full": 3, "killed": 2}]


def test_what_is_cut_or_damaged_is_told(tmp_path: Path) -> None:
    (path,) = make(tmp_path / "a", segments=1, count=300, kind=Arrow)
    data = path.read_bytes()
    for size in range(len(data) - 1, 0, -max(1, len(data) // 50)):
        path.write_bytes(data[:size])
        try:
            (report,) = format_of(path).verify(path)
        except TcpkmonError:
            continue
        assert report.exit_code, size
        if size < len(data) - 2000:
            continue
        _, mended = format_of(path).repair(path, tmp_path / f"{size}.pm")
        assert mended.problems == []
    random = np.random.default_rng(1)
    for at in random.integers(4, len(data), 200).tolist():
        forged = bytearray(data)
        forged[at] ^= 1 << int(random.integers(8))
        path.write_bytes(forged)
        format_of(path).verify(path)  # no traceback


def test_a_stream_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    with pa.ipc.new_stream(path, pa.schema([("a", pa.int64())])):
        pass
    with pytest.raises(DamagedError, match="an Arrow stream that is no capture"):
        tcpkmon.open(path)
