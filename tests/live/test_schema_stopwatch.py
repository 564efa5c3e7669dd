# SPDX-License-Identifier: Apache-2.0
"""The schema stopwatch: started and stopped from programs, and from the C file of a schema."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full import first
from tests.live.capturing import ROOT
from tests.live.schema_logs import Log, Scenario, logging, make_schema, play

TIMES = 50
OPTION = 0x6B6C6F67
EVENT_START, EVENT_STOP, THREAD_START, THREAD_STOP = 1, 2, 3, 4
EINVAL = 22
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def press(operation: int, number: int) -> None:
    """What docs/schemas.md says; the kernel knows no such option."""
    assert LIBC.prctl(OPTION, operation, number & 0xFFFFFFFF, 0, 0) == -1
    assert ctypes.get_errno() == EINVAL


def mine(log: Log, event: str, numbers: range) -> list[int]:
    return [one["id"] for one in log.of(event) if one["id"] in numbers]


def some_numbers(salt: int) -> range:
    """Numbers that no other test uses at the same time."""
    first = (os.getpid() * 4 + salt) % (1 << 20) * 1024
    return range(first, first + TIMES)


def a_program_is_timed() -> Scenario:
    numbers = some_numbers(0)
    for number in numbers:
        press(EVENT_START, number)
        press(EVENT_STOP, number)
    press(EVENT_START, -1)
    log = yield
    assert mine(log, "EVENT_START", numbers) == list(numbers)
    assert mine(log, "EVENT_STOP", numbers) == list(numbers)
    assert log.one("EVENT_START", id=-1)
    for number in numbers:
        start, stop = log.one("EVENT_START", id=number), log.one("EVENT_STOP", id=number)
        assert start["time_ns"] < stop["time_ns"]


def the_page_of_the_manual_works() -> Scenario:
    """The Python snippet of docs/schemas.md, as it stands there."""
    page = (ROOT / "docs" / "schemas.md").read_text().partition("\n## stopwatch\n")[2]
    page = page.partition("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", snippet], check=True)
    log = yield
    assert log.of("EVENT_START", id=7)
    assert log.of("EVENT_STOP", id=7)


@pytest.mark.parametrize("kinds", first(1, ["", "raw"]))
def test_a_program_is_timed(tmp_path: Path, kinds: str) -> None:
    scenarios = [a_program_is_timed(), the_page_of_the_manual_works()]
    play(tmp_path / "log", "stopwatch", scenarios=scenarios, kinds=kinds)


# The HOWTO's template, in the C file of a schema of the user's own.
CONF = """
event TIMED { int pid }
"""
TEXT = """
#include "klogger.h"

#if USE_timed
PROBE(timed, "TIMED EVENT_START EVENT_STOP", "btf:task_rename raw:task_rename")
{
    u32 pid = bpf_get_current_pid_tgid();

    klogger(EVENT_START, pid);
    klogger(TIMED, pid);
    klogger(EVENT_STOP, pid);
}
#endif
"""
RENAMER = """
import sys
for number in range(int(sys.argv[1])):
    with open("/proc/thread-self/comm", "w") as file:
        file.write(f"name{number}")
"""


def test_any_schema_may_use_it(tmp_path: Path) -> None:
    folder = make_schema(tmp_path / "timed", CONF, TEXT)
    with logging(tmp_path / "log", "stopwatch", str(folder)) as running:
        process = subprocess.Popen([sys.executable, "-c", RENAMER, str(TIMES)])
        assert process.wait() == 0
    log = running.finish()
    found = [
        one for one in log.records
        if one.get("id", one.get("pid")) == process.pid
        and one["event"] in {"EVENT_START", "TIMED", "EVENT_STOP"}
    ]  # fmt: skip
    # The first time when the program was executed.
    assert [one["event"] for one in found] == ["EVENT_START", "TIMED", "EVENT_STOP"] * (TIMES + 1)
