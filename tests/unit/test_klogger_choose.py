# SPDX-License-Identifier: Apache-2.0
"""Filters and clocks of decoded Klogger logs, merging of CPUs, and the books of losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.klogger.choose import Choice, parse_condition
from tcpkmon.formats.klogger.clock import LogClock, Moment, parse_time
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.merge import merge_logs
from tcpkmon.formats.klogger.reader import LogReader
from tests.full import examples
from tests.unit.log_files import CLOCK, LogMaker

SECOND = 1_000_000_000


def serials(path: Path, *conditions: str, clock: str = "mono", **how: Any) -> list[int]:
    """The serials of the records that a choice leaves."""
    choice = Choice(conditions=tuple(map(parse_condition, conditions)), **how)
    with LogReader(path) as reader:
        [(_, records)] = Logs([reader], choice, clock).streams()
        return [int(serial) for batch, _ in records for serial in batch.serials]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    maker = LogMaker()
    maker.add("SCHEDOUT", {"pid": 5}).add("SCHEDOUT", {"pid": -5}).add("COUNTED", {"pid": 5})
    maker.add("EVERY", {"how": "RR", "text": "abc", "f": 1 << 63, "addr": bytes(15) + b"\1"})
    maker.add("EVERY", {"how": 9, "text": b"ab\0x", "raw": b"\xab\0\0\0"})
    return maker.add("KLOGGER_FINISH").write(tmp_path / "log")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["pid=5"], [2, 4]),
        (["pid != 5"], [3]),
        (["pid<0"], [3]),
        (["pid>=-5", "pid<=4"], [3]),
        (["pid=0x5"], [2, 4]),
        (["how=RR"], [5]),
        (["how=2"], [5]),
        (["how!=RR"], [6]),
        (["how>2"], [6]),
        (["text=ab"], [6]),
        (["text!=ab"], [5]),
        (["addr=::1"], [5]),
        (["raw=AB000000"], [6]),
        (["f=9223372036854775808"], [5]),
        (["f>-1"], [5, 6]),
        (["f>=9223372036854775808", "a=0"], [5]),
        (["pid=5", "how=RR"], []),
        (["text= ab "], [6]),
        (["pid == 5 or pid == -5"], [2, 3, 4]),
        (["not pid == 5"], [3]),
        (["pid + 1 > 5 and pid < 6k"], [2, 4]),
        (["how == RR or how > 8"], [5, 6]),
        (['text == "ab" or addr == "::1"'], [5, 6]),
    ],
)
def test_conditions(log: Path, conditions: list[str], expected: list[int]) -> None:
    assert serials(log, *conditions) == expected


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        (["pidd=5"], r"no event has a field 'pidd' \(did you mean 'pid'\?\)"),
        (["pid=x"], "expected a number"),
        (["how=IDLE"], "expected a value of enum policy"),
        (["text<b"], "can be = or != only"),
        (["addr=localhost"], "no address"),
        (["pid=" + "9" * 100], "too large"),
        (["pid"], "expected a condition here, found a number"),
        (["=5"], "expected a name"),
        (["how == 2 and text"], "found a text"),
        (["pid == 5 or how == RR"], "no event has all of these fields"),
        (["pid == 5 or pidd == 6"], "no event has a field 'pidd'"),
        (["how < 5 or text < \"b\""], "texts are compared by == and !="),
    ],
)
def test_conditions_that_cannot_be_are_refused(log: Path, conditions: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        serials(log, *conditions)


def test_null_fulfils_no_condition(tmp_path: Path) -> None:
    maker = LogMaker("event PING { uint rtt // @none4294967295\n string8 name // @none0\n }")
    maker.add("PING", {"rtt": 5, "name": "a"}).add("PING", {"rtt": 2**32 - 1, "name": ""})
    path = maker.add("KLOGGER_FINISH").write(tmp_path / "log")
    for condition in ("rtt>1", "rtt != 4", "not rtt == 6", "name!=b", 'rtt > 1 or name == "a"'):
        assert serials(path, condition) == [2], condition


def test_events_and_times(log: Path) -> None:
    assert serials(log, events=("SCHEDOUT",)) == [2, 3]
    assert serials(log, "pid=5", events=("SCHEDOUT",)) == [2]
    with pytest.raises(UsageError, match=r"no event 'SCHEDOT' .*did you mean 'SCHEDOUT'"):
        serials(log, events=("SCHEDOT",))
    since = parse_time(str(CLOCK[0] + 3000), "mono")
    assert serials(log, since=since) == [3, 4, 5, 6, 7, 8]
    assert serials(log, since=since, until=parse_time(str(CLOCK[0] + 4000), "mono")) == [3, 4]
    assert serials(log, until=parse_time("0.0000025", "rel"), clock="rel") == [1, 2]
    assert serials(log, until=Moment(CLOCK[1] + 2500, True), clock="mono") == [1, 2]
    assert serials(log, since=parse_time("2024-11-21T14:40:00.000007", "mono")) == [7, 8]
    assert serials(log, since=parse_time("2024-11-21T15:40:00.000007+01:00", "iso")) == [7, 8]
    assert serials(log, since=parse_time("1732200000.000007", "epoch"), clock="epoch") == [7, 8]


@pytest.mark.parametrize("text", ["yesterday", "", "nan", "1e40", "12:00"])
@pytest.mark.parametrize("clock", ["mono", "iso", "epoch", "rel"])
def test_what_is_no_time_is_refused(text: str, clock: str) -> None:
    with pytest.raises(UsageError, match="no time"):
        parse_time(text, clock)


def test_real_time_follows_the_clock_events(tmp_path: Path) -> None:
    """The time of day was set back by an hour between the second and the third record."""
    mono, real, _ = CLOCK
    maker = LogMaker().add("EMPTY", at=0)
    maker.add("CLOCK", {"mono_ns": mono, "realtime_ns": real - 3600 * SECOND}, at=SECOND)
    maker.add("EMPTY", at=SECOND).end_dump().add("EMPTY", at=2 * SECOND)
    path = maker.write(tmp_path / "log")
    with LogReader(path) as reader:
        clock = LogClock(reader.format, "epoch")
        found = [
            int(time) - real
            for batch in reader.batches()
            for time in clock.times(batch)[batch.where("EMPTY")]
        ]
    assert found == [0, SECOND - 3600 * SECOND, 2 * SECOND - 3600 * SECOND]


def test_a_log_without_a_clock_has_only_its_own_time(tmp_path: Path) -> None:
    path = LogMaker(clock=None).add("EMPTY").write(tmp_path / "log")
    assert serials(path) == [1, 2, 3]
    for clock in ("iso", "epoch", "rel"):
        with pytest.raises(UsageError, match="no clock pair"):
            serials(path, clock=clock)
    with pytest.raises(UsageError, match="no clock pair"):
        serials(path, since=Moment(5, True))


# Merging


def make_logs(folder: Path, times: list[list[int]], per_dump: int = 5) -> list[LogReader]:
    readers = []
    for cpu, moments in enumerate(times):
        maker = LogMaker(cpu=cpu)
        for place, moment in enumerate(moments):
            maker.add("SCHEDOUT", {"pid": place}, at=moment)
            if place % per_dump == per_dump - 1:
                maker.end_dump()
        maker.add("KLOGGER_FINISH")
        readers.append(LogReader(maker.write(folder / f"log{cpu}")))
    return readers


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(
    st.lists(st.lists(st.integers(0, 10_000), max_size=30), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_merged_logs_are_in_time_order_and_whole(
    tmp_path: Path, times: list[list[int]], records: int
) -> None:
    times = [sorted(moments) for moments in times]
    readers = make_logs(tmp_path, times)
    found: list[tuple[int, int, int]] = []
    for batch in merge_logs(readers, records):
        pids = batch.rows("SCHEDOUT")["pid"].tolist()
        at = batch.where("SCHEDOUT")
        found += zip(batch.times_ns[at].tolist(), batch.cpus[at].tolist(), pids, strict=True)
    expected = [
        (CLOCK[0] + time, cpu, pid)
        for cpu, moments in enumerate(times)
        for pid, time in enumerate(moments)
    ]
    assert sorted(found) == sorted(expected)
    assert [time for time, *_ in found] == sorted(time for time, *_ in found)
    for cpu in range(len(times)):
        assert [pid for _, one, pid in found if one == cpu] == list(range(len(times[cpu])))
    assert all(not reader.damage and not reader.losses.lost for reader in readers)


def test_logs_of_different_captures_are_not_merged(tmp_path: Path) -> None:
    one = LogReader(LogMaker().add("EMPTY").write(tmp_path / "one"))
    cases: list[dict[str, Any]] = [{"host": "elsewhere"}, {"kernel": "7.0"}]
    for changes in cases:
        other = LogMaker(**changes).add("EMPTY").write(tmp_path / "other")
        with pytest.raises(UsageError, match="not of one capture"):
            list(merge_logs([one, LogReader(other)]))
    other = LogMaker("event EMPTY { }").add("EMPTY").write(tmp_path / "other")
    with pytest.raises(UsageError, match="not of one capture"):
        list(merge_logs([one, LogReader(other)]))


# Losses


def read_losses(path: Path) -> LogReader:
    with LogReader(path) as reader:
        for _ in reader.batches(2):
            pass
    return reader


def test_the_ledger_tells_losses_that_serials_do_not(tmp_path: Path) -> None:
    maker = LogMaker().add("EMPTY")
    maker.add("LEDGER", {"number": 44, "ring_full": 1, "filtered": 99, "in_file": 5})
    maker.add("LEDGER", {"number": 44, "ring_full": 4, "disk_full": 2, "limited": 7})
    maker.add("LEDGER", {"number": 45, "ring_full": 1, "unchanged": 3})
    maker.add("CPU_LEDGER", {"damaged": 1, "serials": 1000})
    maker.add("PROGRAM_LEDGER", {"program": "a", "missed": 2})
    maker.add("PROGRAM_LEDGER", {"program": "a", "missed": 3, "kprobe_missed": 1})
    losses = read_losses(maker.add("KLOGGER_FINISH").write(tmp_path / "log")).losses
    assert losses.by_cause == {"ring_full": 5, "disk_full": 2, "killed": 1}
    assert (losses.missed, losses.lost) == (4, 12)
    assert losses.describe() == (
        "12 events lost; 0 serials missing in 0 gaps "
        "(ring full 5, disk full 2, killed 1, missed by programs 4)"
    )
