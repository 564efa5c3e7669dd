# SPDX-License-Identifier: Apache-2.0
"""What an event costs: measured for real, with every record accounted for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tcpkmon.collector.commands import event_cost
from tcpkmon.collector.commands.event_cost import measure
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import KernelError, UsageError
from tests.descriptors import descriptors

ALL_TYPES = """
enum colour { RED = -1, GREEN }
loglevel used < event USED { int a } >
loglevel unused < event UNUSED { int a } >
using used
event EMPTY { }
event EVERYTHING {
    short a
    ushort b
    int c
    uint d
    long e
    ulong f
    longlong g
    ulonglong h
    colour i
    string1 j
    string7 k
    string300 l
    string16 m      // [raw]
}
"""
PROBE = """
PROBE(anything, "EMPTY", "raw:sched_switch")
{
    klogger(EMPTY);
}
"""


@pytest.fixture
def schema(tmp_path: Path) -> str:
    (tmp_path / "own.conf").write_text(ALL_TYPES)
    (tmp_path / "own.bpf.c").write_text(PROBE)
    return str(tmp_path)


def test_each_call_is_timed_and_written() -> None:
    before = descriptors(), os.sched_getaffinity(0)
    # No multiple of what one run of the program does.
    costs = list(measure(["EVENT_STOP", "EVENT_START"], ["stopwatch"], iterations=130, rounds=3))
    assert (descriptors(), os.sched_getaffinity(0)) == before
    assert [(cost.schema, cost.event) for cost in costs] == [
        ("stopwatch", "EVENT_START"),
        ("stopwatch", "EVENT_STOP"),
    ]
    for cost in costs:
        assert cost.written == 130 * 4, "a round to warm up, and three"
        assert 0 < cost.fastest_ns <= cost.enabled_ns <= cost.slowest_ns
        assert cost.disabled_ns < cost.enabled_ns


def test_a_record_that_is_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cost, "_RING_BYTES", 4096)
    with pytest.raises(KernelError, match=r"of 200 calls for EVENT_START [0-9]+ were written"):
        list(measure(["EVENT_START"], ["stopwatch"], iterations=100, rounds=1))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "EVENT_START", "--schema", "stopwatch", "--iterations", "10"]
    assert run(command, words, "tcpkmon") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["schema", "event"]
    assert row.split()[:2] == ["stopwatch", "EVENT_START"]
    assert len(row.split()) == 7
    assert run(command, [*words, "--json"], "tcpkmon") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["event"] == "EVENT_START"
    assert told["written"] == 10 * (event_cost.ROUNDS + 1)
    assert run(command, ["benchmark", "--iterations", "0"], "tcpkmon") == UsageError.exit_code
