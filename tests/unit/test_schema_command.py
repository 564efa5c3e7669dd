# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon schema: mistakes all at once, the merged text, JSON, counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tcpkmon.collector.commands import schema as commands
from tcpkmon.collector.commands import tcpkmon
from tcpkmon.collector.linux.perf_names import table
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader.perf_counters import Listed
from tcpkmon.collector.plan.schema_sources import INCLUDES, find_sources, load_schema_of
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.schema import parse

CONF = """
using two
enum how { SLOW = -1, FAST }
// Begins.
event START { int id; how way }  // first
loglevel one < event A { string5 name; short x } event B { } >
loglevel two < include one omit A event C { } >
arch any { counter1 task_clock }
"""
TEXT = """
PROBE(all, "START A B C", "btf:sched_switch raw:sched_switch")
{
    klogger(START, 1, 2);
    klogger(A, 0, 1);
    klogger(B);
    klogger(C);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.conf").write_text(CONF)
    (tmp_path / "mine.bpf.c").write_text(TEXT)
    return tmp_path


def schema(*arguments: str | Path) -> int:
    return run(tcpkmon.command, ["schema", *map(str, arguments)], prog="tcpkmon")


def test_check_of_what_is_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema("check", folder, "tcp") == 0
    out, err = capsys.readouterr()
    assert out == "mine: 4 events, 1 of them switched off by levels\ntcp: 1 event\n"
    assert err == ""
    assert schema("check", Path(__file__).parents[2] / "docs/examples/wakeups") == 0
    assert capsys.readouterr().out.startswith("wakeups: "), "not tcp, which it extends"


def test_check_tells_all_mistakes_and_no_path_reaches_the_terminal_raw(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.conf").write_text(f"{CONF}\n\x1b\nevent D {{ u8 x }}")
    probe = 'PROBE(more, "A BB", "tracepoint:sched_switch")'
    (folder / "mine.bpf.c").write_text(f'{TEXT}\n#include "x.h"\n{probe}')
    assert schema("check", folder) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.replace(f"{folder}/", "") for line in err.splitlines()] == [
        "tcpkmon: mine.conf:10:1: expected 'event', 'fields', 'enum', 'loglevel', 'using',"
        " 'arch' or 'extends', found '\\x1b'",
        "tcpkmon: mine.conf:11:11: expected a type, found 'u8' (did you mean 'ushort'?)",
        "tcpkmon: mine.bpf.c:10:11: expected a header beside this file or of"
        f" {INCLUDES}, found 'x.h'",
        "tcpkmon: mine.bpf.c:11:16: expected the name of an event, found unknown 'BB'"
        " (did you mean 'B'?)",
        f"tcpkmon: mine.bpf.c:11:22: expected a way to attach ({', '.join(KINDS)}), found"
        " 'tracepoint' (did you mean 'btf'?)",
    ]


def test_check_knows_the_counters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.conf").write_text(CONF.replace("task_clock", "task_clok"))
    assert schema("check", folder) == 2
    assert "found 'task_clok' (did you mean 'task_clock'?)" in capsys.readouterr().err


def test_check_takes_a_declaration_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.bpf.c").unlink()
    assert schema("check", folder / "mine.conf") == 0
    assert capsys.readouterr() == ("mine: 4 events, 1 of them switched off by levels\n", "")


def test_show_is_a_schema_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema("show", folder) == 0
    out, _ = capsys.readouterr()
    assert parse(out) == load_schema_of(find_sources([str(folder)], trusted_only=False))
    numbers = [line.split()[1:] for line in out.splitlines() if line.startswith("//   ")]
    base = len(load_schema_of(find_sources([])).events)
    assert numbers[0] == ["32", "KLOGGER_START", "by", "the", "collector"]
    assert numbers[base:] == [
        [str(32 + base), "START", "yes"],
        [str(33 + base), "A", "no"],
        [str(34 + base), "B", "yes"],
        [str(35 + base), "C", "yes"],
    ]


def test_show_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema("show", folder, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["schemata"]] == ["base", "mine"]
    assert told["schemata"][1] == {
        "name": "mine", "conf": f"{folder}/mine.conf", "text": f"{folder}/mine.bpf.c",
        "shipped": False,
    }  # fmt: skip
    assert told["using"] == ["two"]
    events = {event["name"]: event for event in told["events"]}
    assert events["MARK"]["logged"] == "by the collector"
    assert (events["A"]["logged"], events["A"]["bytes"]) == ("no", 8)
    start = events["START"]
    assert (start["logged"], start["doc"], start["bytes"]) == ("yes", "Begins.\nfirst", 8)
    assert start["fields"][1] == {
        "name": "way", "type": "how", "kind": "enum", "offset": 4, "bytes": 4, "unit": "",
        "doc": "", "tags": [],
    }  # fmt: skip
    assert [field["offset"] for field in events["A"]["fields"]] == [0, 6]
    how = next(enum for enum in told["enums"] if enum["name"] == "how")
    assert [(one["name"], one["value"]) for one in how["members"]] == [("SLOW", -1), ("FAST", 0)]
    assert told["loglevels"][1] == {
        "name": "two", "doc": "", "events": ["C"], "includes": ["one"], "omits": ["A"],
    }  # fmt: skip
    assert told["arches"] == [{"name": "any", "counters": {"counter1": "task_clock"}, "doc": ""}]


def test_counters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = table()
    listed = (Listed(known["task_clock"], ""), Listed(known["cycles"], "its CPU has none"))
    monkeypatch.setattr(commands, "list_counters", lambda: listed)
    assert schema("list-counters") == 0
    out, err = capsys.readouterr()
    assert "task_clock" in out and "cycles" not in out
    assert err == "1 more are not counted on this machine (--all lists them)\n"
    assert schema("list-counters", "--all") == 0
    out, err = capsys.readouterr()
    assert "-- its CPU has none" in out and err == ""
    assert schema("list-counters", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["available"]) for row in rows] == [
        ("task_clock", True), ("cycles", False),
    ]  # fmt: skip


def test_compiling_needs_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    assert schema("check", folder, "--compile") == 1
    assert "needs root" in capsys.readouterr().err
