# SPDX-License-Identifier: Apache-2.0
"""What an event costs: measured for real, with every record accounted for."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from tcpkmon.collector.commands import event_cost
from tcpkmon.collector.commands.event_cost import measure, shipped_names
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import KernelError, PrivilegeError, UsageError
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


def test_a_program_runs_where_it_is_told() -> None:
    # r0 = bpf_get_smp_processor_id(); exit
    code = struct.pack("=BBhiBBhi", 0x85, 0, 0, 8, 0x95, 0, 0, 0)
    fd = bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, code, "where")
    try:
        for cpu in online_cpus():
            assert bpf.prog_test_run(fd, cpu) == cpu
        with pytest.raises(KernelError, match="running a BPF program on CPU 100000"):
            bpf.prog_test_run(fd, 100000)
    finally:
        os.close(fd)


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


def test_any_type_and_any_size(schema: str) -> None:
    costs = {cost.event: cost for cost in measure((), [schema], iterations=20, rounds=1)}
    assert costs.keys() == {"EMPTY", "EVERYTHING", "USED"}
    assert {cost.record_bytes for cost in costs.values()} == {24 + 376}
    assert {cost.written for cost in costs.values()} == {40}


def test_a_record_that_is_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cost, "_RING_BYTES", 4096)
    with pytest.raises(KernelError, match=r"of 200 calls for EVENT_START [0-9]+ were written"):
        list(measure(["EVENT_START"], ["stopwatch"], iterations=100, rounds=1))


def test_what_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match=r"no schema here logs an event 'EVENT_STRAT' \(did you"):
        next(measure(["EVENT_STRAT"], ["stopwatch"]))
    with pytest.raises(UsageError, match="takes snapshots"):
        next(measure((), ["tcp"]))
    with pytest.raises(UsageError, match="log no events with klogger"):
        next(measure((), ["base"]))
    assert {"stopwatch", "sched", "network", "locking"} <= set(shipped_names())
    assert not {"base", "tcp"} & set(shipped_names())


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


def test_it_needs_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(command, ["benchmark"], "tcpkmon") == PrivilegeError.exit_code
    assert "needs root" in capsys.readouterr().err


def test_base_events_are_timed_where_they_are_made() -> None:
    """As the HOWTO's files benchmarks/KLOGGER_START and PROCESS_EXISTS: text costs more."""
    start, process = measure(["KLOGGER_START", "PROCESS_EXISTS"], iterations=50, rounds=5)
    assert (start.schema, start.event, process.event) == ("base", "KLOGGER_START", "PROCESS_EXISTS")
    assert 0 < start.fastest_ns <= start.enabled_ns <= start.slowest_ns
    assert process.record_bytes > start.record_bytes > 24
    assert start.disabled_ns is None
