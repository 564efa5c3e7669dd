# SPDX-License-Identifier: Apache-2.0
"""Each loss of a log has a place: a gap in its file's serials, also what was lost at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.formats.klogger.logs import open_sources
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.verify import verify_folder, verify_log
from tests.unit.forging import LogFile
from tests.unit.makers import CPUS, LogMaker

LOG = "kernlog.dump.cpu"


def lose(maker: LogMaker, count: int) -> None:
    """Events of each CPU that found no room, after which no record came."""
    for cpu in range(CPUS):
        maker.serials[cpu] += count
        maker.ledger["attempts"][cpu, maker.row] += count
        maker.ledger["ring_full"][cpu, maker.row] += count


def make(folder: Path, before: int, at_end: int, segments: int = 0) -> None:
    maker = LogMaker(folder, rotates=segments > 0)
    for number in range(3):
        maker.records(20, lose=before)
        maker.checkpoint()
        if number < segments - 1:
            maker.rotate()
    lose(maker, at_end)
    maker.close()


@pytest.mark.parametrize("segments", [0, 3])
@pytest.mark.parametrize(("before", "at_end"), [(0, 0), (3, 0), (0, 7), (3, 7)])
def test_verify_and_decode_count_the_same_losses_in_gaps(
    tmp_path: Path, before: int, at_end: int, segments: int
) -> None:
    folder = tmp_path / "out"
    make(folder, before, at_end, segments)
    lost, gaps = 0, 0
    for path in sorted(folder.rglob(f"{LOG}*")):
        report = verify_log(path)
        assert not report.problems, report.problems
        assert report.seq_lost == report.lost_total
        with LogReader(path) as reader:
            serials = [int(n) for batch in reader.batches() for n in batch.serials]
            assert serials[-1] - len(serials) == report.seq_lost
        for source in open_sources(path):
            with source:
                for _ in source.batches():
                    pass
                missing, counted = source.losses.counted
                assert missing == counted == report.seq_lost
                gaps += source.losses.gaps
        lost += report.seq_lost
    assert lost == CPUS * (3 * before + at_end)
    assert gaps == CPUS * (3 * bool(before) + bool(at_end))


@pytest.mark.parametrize("at_end", [0, 7])
def test_a_lossy_log_takes_no_more_missing_record(tmp_path: Path, at_end: int) -> None:
    """The ledger rewritten to fit, the gap of the record left: one more gap than losses."""
    folder = tmp_path / "out"
    make(folder, 3, at_end)
    path = folder / f"{LOG}0"
    data = path.read_bytes()
    assert verify_log(path).exit_code == 3
    for which in range(0, len(LogFile(data).records), 7):
        log = LogFile(data)
        log.drop([which])
        path.write_bytes(log.encode(("serial",)))
        report = verify_log(path)
        assert report.exit_code == 5, (which, report.verdict)


def test_a_gap_before_other_events_of_the_collector_does_not_add_up(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make(folder, 3, 7)
    path = folder / f"{LOG}0"
    log = LogFile(path.read_bytes())
    for dump in log.dumps[-2:]:
        for record in dump:
            record[1] += 1
    path.write_bytes(log.encode(()))
    assert verify_log(path).exit_code == 5
    assert verify_folder(folder)[-1].exit_code == 5
