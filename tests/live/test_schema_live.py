# SPDX-License-Identifier: Apache-2.0
"""A user's schema from its two files to a log: exact counts, levels, limits, mistakes, trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.live.schema_logs import make_schema

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120
CONF = """
enum half { even, odd }
event CALLED { uint pid  half parity  string16 comm  ulonglong start }
loglevel low < event SELDOM { uint pid } >
loglevel high < include low omit SELDOM event EVERY { uint pid longlong minus } >
using high
"""
TEXT = """
#include "klogger.h"
struct task_struct;

PROBE(called, "CALLED SELDOM EVERY", "btf:sys_enter raw:sys_enter")
{
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    struct task_struct *task;

    if (ARG(1) != 110)
        return;
    task = (struct task_struct *)bpf_get_current_task();
    klogger(CALLED, pid, pid & 1 ? KLOGGER_half_odd : KLOGGER_half_even, task->comm,
            READ(0, task, start_time));
    klogger(SELDOM, pid);
    if (KLOGGER_ENABLED(EVERY))
        klogger(EVERY, pid, -5);
}
"""
# Calls getppid a known number of times.
FLOOD = "import ctypes, sys; c = ctypes.CDLL(None).getppid; [c() for _ in range(int(sys.argv[1]))]"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At one place for all tests, as its program is compiled once then."""
    return make_schema(tmp_path_factory.mktemp("schema") / "calls", CONF, TEXT)


def collect(*arguments: object, code: int = 0) -> str:
    """What collect says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", "from tcpkmon.collector.commands.collect import main; main()",
         *map(str, arguments)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def events(folder: Path) -> list[dict]:
    """Every event of a log, as `tcpkmon decode` gives it."""
    done = subprocess.run(
        [sys.executable, "-c", "from tcpkmon.collector.commands.tcpkmon import main; main()",
         "decode", "--format", "json", "--merge", *map(str, sorted(folder.iterdir()))],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
        check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def flood(count: int) -> list[str]:
    return ["--", sys.executable, "-c", FLOOD, str(count)]


def test_events_are_counted_exactly_and_carry_their_values(schema, tmp_path):
    out = tmp_path / "log"
    collect("--schema", schema, "-o", out, "-q", *flood(3000))
    found = events(out)
    called = [e for e in found if e["header"]["type"] == "CALLED"]
    ours = Counter(e["pid"] for e in called).most_common(1)[0][0]
    mine = [e for e in called if e["pid"] == ours]
    # The interpreter itself may call getppid, but not our command's process but for the loop.
    assert len(mine) == 3000
    assert {e["parity"] for e in mine} == {"odd" if ours & 1 else "even"}
    assert all(e["comm"] for e in mine) and len({e["start"] for e in mine}) == 1
    every = [e for e in found if e["header"]["type"] == "EVERY" and e["pid"] == ours]
    assert len(every) == 3000 and {e["minus"] for e in every} == {-5}
    assert not [e for e in found if e["header"]["type"] == "SELDOM"]
    # The log tells of the system, and ends with its books.
    names = Counter(e["header"]["type"] for e in found)
    files = len(list(out.iterdir()))
    assert names["KLOGGER_START"] == names["KLOGGER_FINISH"] == files
    logging = {e["name"]: e["enabled"] for e in found if e["header"]["type"] == "LOGGING_EVENT"}
    assert logging == {"CALLED": 1, "EVERY": 1}
    processes = {e["pid"]: e for e in found if e["header"]["type"] == "PROCESS_EXISTS"}
    assert os.getpid() in processes and processes[1]["policy"] == "SCHED_NORMAL"
    assert names["SOCKET_EXISTS"] >= 0 and names["CLOCK"] == 2 * files
    final = [e for e in found if e["header"]["type"] == "LEDGER" and e["final"]]
    assert final
    for row in final:
        losses = [row[n] for n in ("ring_full", "no_ring", "other", "table_full", "no_slot")]
        kept = row["filtered"] + row["unchanged"] + row["limited"] + row["written"]
        assert row["attempts"] == kept + sum(losses) and row["written"] == row["in_file"]


def test_another_log_level_is_chosen_without_editing_the_schema(schema, tmp_path):
    out = tmp_path / "log"
    collect("--schema", schema, "--schema", "network", "--using", "low", "-o", out, "-q",
            *flood(10))  # fmt: skip
    found = events(out)
    logging = {e["name"] for e in found if e["header"]["type"] == "LOGGING_EVENT"}
    assert {"CALLED", "SELDOM", "IP_SENDPACKET"} <= logging and "EVERY" not in logging
    said = collect("--schema", schema, "--using", "lows", "-o", tmp_path / "x", code=2)
    assert "did you mean 'low'" in said


def test_a_limit_holds_a_second_and_cpu_and_is_accounted_for(schema, tmp_path):
    out = tmp_path / "log"
    said = collect("--schema", schema, "--locations", "CALLED", "--limit", "CALLED=100", "-o", out,
                   *flood(5000))  # fmt: skip
    assert "over their limit" in said
    final = [e for e in events(out) if e["header"]["type"] == "LEDGER" and e["final"]]
    assert sum(row["attempts"] for row in final) >= 5000
    assert sum(row["limited"] for row in final) >= 4000
    assert all(row["attempts"] == row["limited"] + row["written"] for row in final)


@pytest.mark.parametrize("rings", ["bpf", pytest.param("perf", marks=pytest.mark.full)])
def test_two_schemata_and_tcp_share_a_log(schema, tmp_path, rings):
    out = tmp_path / "log"
    collect("--schema", schema, "--schema", "tcp", "--schema", "stopwatch", "-o", out, "-q",
            "--rings", rings, *flood(500))  # fmt: skip
    found = events(out)
    names = {e["name"] for e in found if e["header"]["type"] == "LOGGING_EVENT"}
    assert {"CALLED", "EVERY", "EVENT_START", "SEGMENT_RECEIVED"} <= names
    assert sum(e["header"]["type"] == "CALLED" for e in found) >= 500


def test_large_strings_are_whole_and_too_large_ones_refused(tmp_path):
    schema = make_schema(tmp_path / "calls", CONF, TEXT)
    (schema / "calls.conf").write_text("event CALLED { uint pid string2000 comm string4 end }\n")
    (schema / "calls.bpf.c").write_text(
        '#include "klogger.h"\nstruct task_struct;\n'
        'PROBE(called, "CALLED", "btf:sys_enter raw:sys_enter")\n{\n'
        "    struct task_struct *task = (struct task_struct *)bpf_get_current_task();\n\n"
        "    if (ARG(1) == 110)\n"
        "        klogger(CALLED, bpf_get_current_pid_tgid() >> 32, task->comm, task->comm);\n}\n"
        '/*\nPROBE(old, "CALLED", "btf:sys_exit")\n*/\n'
    )
    out = tmp_path / "log"
    collect("--schema", schema, "-o", out, "-q", *flood(200))
    called = [e for e in events(out) if e["header"]["type"] == "CALLED"]
    assert len(called) >= 200 and all(e["comm"].startswith(e["end"]) for e in called)
    (schema / "calls.conf").write_text("event CALLED { uint pid string4096 comm string4096 end }\n")
    said = collect("--schema", schema, "-o", tmp_path / "other", code=2)
    assert "shorter strings" in said


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["--format", "psc"], "a PSC file holds the schema tcp and what extends it"),
        (["--locations", "SELDOM"], "log level is not in use"),
        (["--limit", "CALLED=x"], "not a limit"),
        (["--control-group", "no-such-group"], "no-such-group"),
    ],
)
def test_what_makes_no_sense_is_refused(schema, tmp_path, arguments, what):
    said = collect("--schema", schema, "-o", tmp_path / "log", *arguments, code=2)
    assert what in said and not (tmp_path / "log").exists()
