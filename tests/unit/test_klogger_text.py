# SPDX-License-Identifier: Apache-2.0
"""Decoded Klogger logs: the HOWTO's own text; Perl, JSON and CSV readers agree on values."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.klogger.choose import ALL, Choice, parse_condition
from tcpkmon.formats.klogger.clock import LogClock, Moment, parse_time
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.merge import merge_logs
from tcpkmon.formats.klogger.reader import LogReader
from tests.full import examples
from tests.unit.log_files import CLOCK, LogMaker

HOWTO_SCHEDOUT = """{
    header => {
            "type"      => "SCHEDOUT",
            "serial"    => "119",
            "timestamp" => "1032071755760",
    },
    "pid"               => "1073",
},
"""
HOWTO_WITH_COUNTER = """{
    header => {
            "type"           => "SCHEDOUT",
            "serial"         => "119",
            "timestamp"      => "1032071755760",
    },
    "pid"                    => "1073",
    "l2_cache_misses_user"   => "35678014",
},
"""
# Perl prints what it read: `do FILE`, and each value as a string of characters.
PERL = """
use strict; use warnings FATAL => 'all'; use JSON::PP;
my $events = do $ARGV[0]; die "$@$!" unless ref $events eq 'ARRAY';
print JSON::PP->new->ascii->canonical->encode($events);
"""


def decode(paths: list[Path], form: str, choice: Choice = ALL, **how: Any) -> str:
    readers = [LogReader(path) for path in paths]
    out = io.BytesIO()
    Logs(readers, choice, **how).write_text(form, out)
    for reader in readers:
        reader.close()
    return out.getvalue().decode("utf-8")


def run_perl(text: str, folder: Path) -> list[dict[str, Any]]:
    """The events as Perl itself reads them."""
    perl = shutil.which("perl")
    assert perl is not None
    (folder / "log.pl").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [perl, "-e", PERL, str(folder / "log.pl")], check=True, capture_output=True, timeout=120
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def as_strings(event: dict[str, Any]) -> dict[str, Any]:
    """An event of the JSON lines as Perl has it: everything is text, the head names no CPU."""
    head = {key: str(value) for key, value in event["header"].items() if key != "cpu"}
    return {key: str(value) for key, value in event.items()} | {"header": head}


@pytest.mark.parametrize(
    ("schema", "expected", "values"),
    [
        ("event SCHEDOUT { int pid }", HOWTO_SCHEDOUT, {"pid": 1073}),
        (
            "event SCHEDOUT { int pid; ulonglong l2_cache_misses_user }",
            HOWTO_WITH_COUNTER,
            {"pid": 1073, "l2_cache_misses_user": 35678014},
        ),
    ],
)
def test_perl_is_printed_as_in_the_howto(
    tmp_path: Path, schema: str, expected: str, values: dict[str, int]
) -> None:
    maker = LogMaker(schema).skip(117)
    maker.add("SCHEDOUT", values, at=1032071755760 - 1_000_000_000)
    text = decode([maker.write(tmp_path / "log")], "perl", Choice(("SCHEDOUT",)))
    assert text == f"[\n{expected}]\n"


NASTY = (
    "$x @y %z \"q\" 'p' \\ ${\\ die } @{[die]} \x00\n\r\t\x1b[31m \x7f\u0085\u202e\u2028é😀 `id` #"
)


def nasty_log(folder: Path) -> Path:
    maker = LogMaker("""
        enum policy { NORMAL, FIFO, BATCH = -3 }
        event EVERY {
            short a; ushort b; longlong e; ulonglong f; policy how; string200 text
            string4 raw // @raw
            string16 addr // @address
            string4 addr4 // @address
        }
        event EMPTY { }
    """)
    maker.add("KLOGGER_START", {"kernel": NASTY[:20]})
    low, high = {"a": -32768, "e": -(1 << 63)}, {"b": 65535, "f": (1 << 64) - 1}
    text = NASTY.replace("\0", "")
    mapped = bytes(10) + b"\xff\xff\x7f\0\0\1"
    maker.add(
        "EVERY", {**low, "text": text, "how": "BATCH", "addr": mapped, "addr4": b"\x0a\0\0\1"}
    )
    maker.add("EVERY", {**high, "text": b"cut\0rubbish", "how": 12, "raw": b"\0\xff$@"})
    maker.add("EMPTY").add("EVERY", {"text": b"\xff\xfe not utf-8 \xc3", "how": -1})
    return maker.add("KLOGGER_FINISH", {"reason": "COUNT"}).write(folder / "log")


def test_perl_and_json_give_the_same_values(tmp_path: Path) -> None:
    log = nasty_log(tmp_path)
    perl = run_perl(decode([log], "perl"), tmp_path)
    lines = [json.loads(line) for line in decode([log], "json").splitlines()]
    assert perl == [as_strings(line) for line in lines]
    types = [event["header"]["type"] for event in perl]
    assert types == [
        "DUMP_BEGIN", "KLOGGER_START", "EVERY", "EVERY", "EMPTY", "EVERY", "KLOGGER_FINISH",
        "DUMP_FINISH",
    ]  # fmt: skip
    first, second, third = lines[2], lines[3], lines[5]
    assert first["text"] == NASTY.replace("\0", "")
    assert (first["how"], first["a"], first["e"]) == ("BATCH", -32768, -(1 << 63))
    assert (first["addr"], first["addr4"]) == ("127.0.0.1", "10.0.0.1")
    assert (second["text"], second["raw"], second["how"]) == ("cut", "00ff2440", 12)
    assert (second["addr"], second["b"], second["f"]) == ("::", 65535, (1 << 64) - 1)
    assert third["text"] == "\\xff\\xfe not utf-8 \\xc3"
    assert lines[6]["reason"] == "COUNT"
    assert lines[0]["header"] == {
        "type": "DUMP_BEGIN", "serial": 1, "timestamp": 1_000_001_000, "cpu": 0
    }  # fmt: skip


@pytest.mark.parametrize("form", ["perl", "json", "csv"])
def test_no_control_character_of_a_file_is_printed(tmp_path: Path, form: str) -> None:
    text = decode([nasty_log(tmp_path)], form)
    bad = [c for c in text if c != "\n" and not c.isprintable()]
    assert not bad
    if form != "csv":
        assert text.isascii()


def test_names_that_a_hostile_header_gives_are_quoted(tmp_path: Path) -> None:
    maker = LogMaker("event EVIL { int pid }")
    for event in maker.header["events"]:
        if event["name"] == "EVIL":
            event["name"] = '", system("id"), "\n@x'
            event["fields"][0]["name"] = '$y", `id`, "\x1b'
    evil = LogMaker("event EVIL { int pid }", events=maker.header["events"])
    evil.add('", system("id"), "\n@x', {'$y", `id`, "\x1b': 7})
    log = evil.write(tmp_path / "log")
    perl = run_perl(decode([log], "perl"), tmp_path)
    lines = [json.loads(line) for line in decode([log], "json").splitlines()]
    assert perl == [as_strings(line) for line in lines]
    assert perl[1]['$y", `id`, "\x1b'] == "7"
    rows = list(csv.reader(decode([log], "csv").splitlines()))
    assert rows[2][0] == '", system("id"), "\\n@x'
    assert len({len(row) for row in rows}) == 1


def test_csv_is_one_table_of_all_events(tmp_path: Path) -> None:
    maker = LogMaker(
        "event A { int pid; string8 comm }\nevent B { uint cpu; int pid }\nevent C { }"
    )
    maker.add("A", {"pid": 3, "comm": 'x,"y"'}).add("B", {"pid": 4, "cpu": 9}).add("C")
    log = maker.write(tmp_path / "log")
    rows = list(csv.DictReader(decode([log], "csv", Choice(("A", "B", "C"))).splitlines()))
    head = {"serial": "2", "timestamp": "1000002000", "cpu": "0"}
    assert rows[0] == {"type": "A", **head, "pid": "3", "comm": 'x,"y"', "field.cpu": ""}
    assert rows[1]["pid"] == "4" and rows[1]["field.cpu"] == "9" and rows[1]["comm"] == ""
    assert rows[2]["type"] == "C"
    # Columns are those of events that occur and were asked for.
    assert decode([log], "csv", Choice(("C",))).splitlines()[0] == "type,serial,timestamp,cpu"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mono", ["400000000", "1000000000", "1000000001", "3600000000009"]),
        ("rel", ["-0.600000000", "0.000000000", "0.000000001", "3599.000000009"]),
        (
            "epoch",
            [
                "1732199999.400000000", "1732200000.000000000", "1732200000.000000001",
                "1732203599.000000009",
            ],
        ),
        (
            "iso",
            [
                "2024-11-21T14:39:59.400000000Z", "2024-11-21T14:40:00.000000000Z",
                "2024-11-21T14:40:00.000000001Z", "2024-11-21T15:39:59.000000009Z",
            ],
        ),
    ],
)  # fmt: skip
def test_times_as_text(tmp_path: Path, kind: str, expected: list[str]) -> None:
    maker = LogMaker()
    for at in (-600_000_000, 0, 1, 3_599_000_000_009):
        maker.add("EMPTY", at=at)
    log = maker.write(tmp_path / "log")
    rows = csv.DictReader(decode([log], "csv", Choice(("EMPTY",)), clock=kind).splitlines())
    assert [row["timestamp"] for row in rows] == expected


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
