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

from tcpkmon.formats.klogger.choose import ALL, Choice
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.reader import LogReader
from tests.unit.log_files import LogMaker

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
