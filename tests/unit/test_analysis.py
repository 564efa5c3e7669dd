# SPDX-License-Identifier: Apache-2.0
"""Analysis of Klogger logs: events in time order, filters, pairs, statistics, time on CPUs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tcpkmon.formats.analysis import (
    cpu_times,
    latencies,
    match_pairs,
    open_log,
    sleep_times,
    sleeps,
)
from tcpkmon.formats.analysis.intervals import Matcher
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.klogger import merge
from tests.unit.log_files import CLOCK, LogMaker, clean_log

TEXT = """
enum state { RUNNING = 0, SLEEPING = -2 }
event SCHEDIN { int pid; string16 comm }
event SCHEDOUT { int pid; state how }
event EVENT_START { int id; string8 who; longlong wide }
event EVENT_STOP { uint id; string16 who; short wide }
event EMPTY { }
event ADDRESS { string16 addr // @address
    string4 raw // @raw
}
"""


def make(tmp_path: Path, *makers: LogMaker) -> Path:
    for maker in makers:
        maker.write(tmp_path / f"kernlog.dump.cpu{maker.format.cpu}")
    return tmp_path


def stopwatch(tmp_path: Path, events: Sequence[tuple[int, str, int]]) -> Path:
    """A log of (time, "start" or "stop", id)."""
    maker = LogMaker(TEXT)
    for at, what, number in events:
        maker.add(f"EVENT_{what.upper()}", {"id": number}, at=at)
    return make(tmp_path, maker)


# Events.


def test_events_have_a_head_and_fields(tmp_path: Path) -> None:
    maker = LogMaker(TEXT).add("SCHEDOUT", {"pid": -1, "how": "SLEEPING"}, at=5)
    maker.add("SCHEDOUT", {"how": 77}, at=6).add("EMPTY", {}, at=7)
    maker.add("SCHEDIN", {"pid": 3, "comm": "a\nb"}, at=8)
    maker.add("ADDRESS", {"addr": bytes(10) + b"\xff\xff\x7f\0\0\1", "raw": b"\0\1\0\0"}, at=9)
    with open_log(make(tmp_path, maker)) as log:
        events = {(event.type, event.timestamp - CLOCK[0]): event for event in log}
        slept = events["SCHEDOUT", 5]
        assert (slept.serial, slept.cpu, slept["pid"], slept["how"]) == (2, 0, -1, "SLEEPING")
        assert events["SCHEDOUT", 6]["how"] == 77
        assert events["EMPTY", 7].fields == {}
        assert events["SCHEDIN", 8].fields == {"pid": 3, "comm": "a\nb"}
        assert events["ADDRESS", 9].fields == {"addr": "127.0.0.1", "raw": b"\0\1\0\0"}
        assert slept.get("comm") is None
        assert slept.get("comm", 4) == 4
        with pytest.raises(KeyError):
            slept["comm"]
        assert log.format.event("SCHEDIN").name == "SCHEDIN"


def test_events_of_several_cpus_come_in_time_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "HOLD", 4)
    original = merge.merge_logs
    short = partial(original, records=5)
    monkeypatch.setattr("tcpkmon.formats.klogger.logs.merge_logs", short)
    one, two = LogMaker(TEXT, 0), LogMaker(TEXT, 1)
    for number in range(100):
        one.add("SCHEDIN", {"pid": number}, at=20 * number)
        two.add("SCHEDIN", {"pid": 1000 + number}, at=20 * number + 10)
        if number % 30 == 29:
            one.end_dump()
    folder = make(tmp_path, one, two)
    for paths in ([folder], sorted(folder.iterdir()), sorted(folder.iterdir())[::-1]):
        with open_log(*paths) as log:
            events = list(log.choose("SCHEDIN"))
            assert [e.timestamp - CLOCK[0] for e in events] == list(range(0, 2000, 10))
            assert [event["pid"] for event in events[:4]] == [0, 1000, 1, 1001]
            assert {event.cpu for event in events} == {0, 1}
            assert len(list(log.choose("SCHEDIN"))) == 200


def test_a_log_can_be_narrowed(tmp_path: Path) -> None:
    maker = LogMaker(TEXT)
    for number in range(10):
        maker.add("SCHEDIN", {"pid": number % 3, "comm": "x"}, at=1000 * number)
        maker.add("SCHEDOUT", {"pid": number % 3, "how": "SLEEPING"}, at=1000 * number + 500)
    with open_log(make(tmp_path, maker)) as log:
        assert len(list(log.choose("SCHEDIN", where=["pid=1"]))) == 3
        assert len(list(log.choose(where=["how=SLEEPING", "pid!=1"]))) == 7
        inside = log.choose("SCHEDOUT", since=CLOCK[0] + 2500, until=CLOCK[0] + 4500)
        assert [event["pid"] for event in inside] == [2, 0, 1]
        assert [event["pid"] for event in inside.choose("SCHEDOUT", where=["pid!=0"])] == [2, 1]
        with pytest.raises(UsageError, match="both choices"):
            inside.choose("SCHEDIN")
        assert len(list(log.choose("SCHEDIN", since="2020-01-01"))) == 10
        assert list(log.choose("SCHEDIN", since="2100-01-01")) == []
        assert {event.type for event in log.choose("SCHEDIN", "EMPTY")} == {"SCHEDIN"}
        for wrong in ("SCHEDINN", "schedin"):
            with pytest.raises(UsageError, match="no event"):
                log.choose(wrong)
        for condition in ("pid", "nothing=1", "pid=abc"):
            with pytest.raises(UsageError):
                log.choose(where=[condition])


def test_losses_and_ends_are_told(tmp_path: Path) -> None:
    with open_log(make(tmp_path, clean_log().finish().maker)) as log:
        assert sum(1 for _ in log) == 52
        assert (log.lost, log.problems) == (0, [])
    build = clean_log().lose("ring_full", 5).log("SCHEDIN", pid=1).end_dump().ledger()
    path = build.write(tmp_path / "kernlog.dump.cpu0")
    with open_log(path) as log:
        assert sum(1 for _ in log)
        assert log.lost == 5
        assert len(log.problems) == 1
        assert "tail unknown" in log.problems[0]
    data = bytearray(path.read_bytes())
    data[-300] ^= 1
    path.write_bytes(data)
    with open_log(path) as log:
        assert sum(1 for _ in log)
        assert any("checksum" in problem for problem in log.problems)


# Pairs.


def test_pairs_are_the_nearest_of_their_key(tmp_path: Path) -> None:
    events = [
        (10, "stop", 1),  # began before the log
        (20, "start", 1), (25, "start", 2), (30, "stop", 1), (45, "stop", 2),
        (50, "start", 1), (60, "start", 1), (61, "stop", 1),  # the first one's stop was lost
        (70, "stop", 1),  # and this one's start
        (80, "start", 3),  # ends after the log
    ]  # fmt: skip
    with open_log(stopwatch(tmp_path, events)) as log:
        for found in (match_pairs(log), match_pairs(iter(log)), match_pairs(list(log))):
            pairs = [(i.key, i.start_ns - CLOCK[0], i.stop_ns - CLOCK[0]) for i in found]
            assert pairs == [(1, 20, 30), (2, 25, 45), (1, 60, 61)]
            assert (found.unstarted, found.unstopped, len(found)) == (2, 2, 3)
            assert [i.duration_ns for i in found] == found.durations_ns.tolist() == [10, 20, 1]
            assert {key: s.count for key, s in found.by_key().items()} == {1: 2, 2: 1}
            assert found.by_key()[1].total_ns == 11


def test_keys_may_be_several_fields_of_any_kind(tmp_path: Path) -> None:
    one, two = LogMaker(TEXT, 0), LogMaker(TEXT, 1)
    one.add("EVENT_START", {"id": 1, "who": "anna", "wide": -5}, at=10)
    one.add("EVENT_START", {"id": 1, "who": "bert", "wide": -5}, at=20)
    one.add("EVENT_STOP", {"id": 1, "who": "anna", "wide": -5}, at=40)
    two.add("EVENT_STOP", {"id": 1, "who": "bert", "wide": -6}, at=50)
    with open_log(make(tmp_path, one, two)) as log:
        for events in (log, list(log)):
            found = match_pairs(events, key=["who", "id"])
            assert [(i.key, i.duration_ns) for i in found] == [
                (("anna", 1), 30), (("bert", 1), 30),
            ]  # fmt: skip
            assert set(found.by_key()) == {("anna", 1), ("bert", 1)}
            here = match_pairs(events, key=("cpu", "who"))
            assert [i.key for i in here] == [(0, "anna")]
            agreeing = match_pairs(events, key="who", same="wide")
            assert [i.key for i in agreeing] == [("anna", -5)]
            assert (agreeing.unstarted, agreeing.unstopped) == (1, 1)
        with pytest.raises(UsageError, match="no field 'nothing'"):
            match_pairs(log, key="nothing")
        with pytest.raises(UsageError, match="no event 'NOTHING'"):
            match_pairs(log, start="NOTHING")
        with pytest.raises(UsageError, match="key"):
            match_pairs(log, key=())


def test_pairs_do_not_depend_on_how_the_log_is_cut_into_batches(tmp_path: Path) -> None:
    choose = random.Random(9)
    events = [
        (at, choose.choice(["start", "stop"]), choose.randrange(20)) for at in range(3000)
    ]  # fmt: skip
    with open_log(stopwatch(tmp_path, events)) as log:
        whole, single = match_pairs(log), match_pairs(list(log))
        parts = Matcher(["EVENT_START"], "EVENT_STOP", ["id"])
        for batch in log.batches():
            for start in range(0, len(batch), 7):
                parts.feed(batch.take(slice(start, start + 7)))
    assert len(whole) > 300
    for found in (single, parts.intervals()):
        assert list(found) == list(whole)
        assert (found.unstarted, found.unstopped) == (whole.unstarted, whole.unstopped)
    types = Counter(what for _, what, _ in events)
    assert types["start"] == len(whole) + whole.unstopped
    assert types["stop"] == len(whole) + whole.unstarted


# Time on CPUs.


def slices(maker: LogMaker, parts: Sequence[tuple[int, int, int]]) -> LogMaker:
    for pid, start, stop in parts:
        maker.add("SCHEDIN", {"pid": pid, "comm": f"name{pid}"}, at=start)
        maker.add("SCHEDOUT", {"pid": pid}, at=stop)
    return maker


def test_time_on_cpus_by_thread(tmp_path: Path) -> None:
    one = LogMaker(TEXT, 0).add("PROCESS_EXISTS", {"pid": 5, "comm": "early"}, at=1)
    one.add("SCHEDOUT", {"pid": 4}, at=2)
    slices(one, [(5, 10, 20), (6, 20, 50), (5, 50, 55)])
    # Lost in between: SCHEDOUT of 5, SCHEDIN of 6. That is no slice of either.
    one.add("SCHEDIN", {"pid": 5, "comm": "late"}, at=60).add("SCHEDOUT", {"pid": 6}, at=900)
    one.add("SCHEDIN", {"pid": 7, "comm": "last"}, at=950)
    two = slices(LogMaker(TEXT, 1), [(5, 15, 18), (0, 18, 800)])
    with open_log(make(tmp_path, one, two)) as log:
        found = cpu_times(log)
    assert [(p.pid, p.name, p.on_cpu_ns, p.slices, p.longest_ns) for p in found] == [
        (0, "name0", 782, 1, 782),
        (6, "name6", 30, 1, 30),
        (5, "late", 18, 3, 10),
    ]


SCHED = """
enum sleep_class { OTHER, PIPE, DISK }
event ADD_TO_RUNQ { int pid }
event SCHEDIN { int pid }
event SCHEDOUT { int pid }
event SLEEP { int tid; int tgid; ulonglong place; sleep_class class }
"""


def test_latencies_begin_where_a_thread_could_run(tmp_path: Path) -> None:
    maker = LogMaker(SCHED)
    for at, event, pid in [
        (10, "SCHEDIN", 1),  # since when it waited is not known
        (20, "SCHEDOUT", 1), (20, "SCHEDIN", 0),  # blocked, so ADD_TO_RUNQ is its beginning
        (30, "ADD_TO_RUNQ", 1), (33, "SCHEDOUT", 0), (34, "SCHEDIN", 1),
        (40, "SCHEDOUT", 1), (47, "SCHEDIN", 1),  # preempted
        (50, "ADD_TO_RUNQ", 2),
    ]:  # fmt: skip
        maker.add(event, {"pid": pid}, at=at)
    with open_log(make(tmp_path, maker)) as log:
        found = latencies(log)
    assert found.durations_ns.tolist() == [4, 7]
    assert [array.tolist() for array in found.keys] == [[1, 1]]


def test_sleeps_by_process_and_class(tmp_path: Path) -> None:
    maker = LogMaker(SCHED)
    for at, tid, kind, until in [
        (10, 1, "PIPE", 15), (20, 1, "DISK", 120), (30, 2, "PIPE", 60), (31, 3, 77, 32),
        (200, 1, "PIPE", 0),
    ]:  # fmt: skip
        where = {"tid": tid, "tgid": 1 if tid < 3 else 3, "place": tid, "class": kind}
        maker.add("SLEEP", where, at=at)
        if until:
            maker.add("ADD_TO_RUNQ", {"pid": tid}, at=until)
    with open_log(make(tmp_path, maker)) as log:
        found = [(one.tgid, one.sleep_class, one.sleeps) for one in sleep_times(log)]
        every = sleeps(log)
    times = [(tgid, kind, all_.count, all_.total_ns) for tgid, kind, all_ in found]
    assert times == [(1, "DISK", 1, 100), (1, "PIPE", 2, 35), (3, "77", 1, 1)]
    rows = sorted(zip(*(column.tolist() for column in every.keys), strict=True))
    assert rows == [(1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 2), (3, 3, 77, 3)]
    assert every.unstopped == 1


def test_without_the_collectors_own_events(tmp_path: Path) -> None:
    """By the process where an event has one, also beside other conditions."""
    text = "event A { int pid; int tgid } event B { int pid } event C { int other }"
    maker = LogMaker(text, settings={"collector_pids": [7]})
    for pid in (7, 8):
        maker.add("A", {"pid": 70 + pid, "tgid": pid}).add("B", {"pid": pid}).add("C", {"other": 7})
    with open_log(maker.write(tmp_path / "kernlog.dump.cpu0")) as log:
        assert log.collector_pids == (7,)
        kept = log.without_collector().choose("A", "B", "C")
        assert [(e.type, e.get("pid")) for e in kept] == [
            ("C", None), ("A", 78), ("B", 8), ("C", None)
        ]  # fmt: skip
        assert [e["pid"] for e in kept.choose("B", where=["pid<=8"])] == [8]
