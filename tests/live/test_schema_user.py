# SPDX-License-Identifier: Apache-2.0
"""The schema user: programs of any user log events, with their real ids, up to a limit."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpkmon.collector.commands.probe import USER_OPTION
from tests.full import first
from tests.live.capturing import ROOT
from tests.live.faults import as_nobody
from tests.live.schema_logs import Scenario, play

NOBODY = 65534
PAGE = (ROOT / "docs" / "schemas.md").read_text().partition("\n## user\n")[2]

# Logs so many events, within one second of the kernel's clock, as each of so many users.
FLOOD = """
import ctypes, os, sys, time
users = int(sys.argv[3])
prctl = ctypes.CDLL(None).prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong]
while True:
    left = 1 - time.monotonic() % 1
    if left > 0.7:
        break
    time.sleep(left)
for user in range(users):
    if users > 1:
        os.setresuid(20000 + user, 0, 0)
    for number in range(int(sys.argv[1])):
        prctl(int(sys.argv[2]), 9, number, b"", 0)
"""


def run_as_nobody(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), user=NOBODY, group=NOBODY, extra_groups=[], check=True,
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip


def the_command_logs_with_its_real_ids() -> Scenario:
    text = "a user's text, \u00e9"
    for more in ([], [text], ["x" * 100]):
        process = subprocess.Popen(as_nobody("tcpkmon", "probe", "2", "1", *more))
        assert process.wait() == 0
    log = yield
    found = log.of("USER_EVENT", group=2, type=1, uid=NOBODY)
    told = [(one["aux"], one["auxlen"]) for one in found]
    assert told == [("", 0), (text, len(text.encode())), ("x" * 63, 100)]
    assert found[-1]["tgid"] == found[-1]["tid"] == process.pid
    assert found[-1]["cpu_time"] > 0


def the_programs_of_the_page_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Scenario:
    pythons = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    (pairs,) = re.findall(r"```python pairs.py\n(.*?)```", PAGE, re.DOTALL)
    commands = [[sys.executable, "-c", *pythons]]
    if compiler := shutil.which("cc"):
        (folder / "program.c").write_text(program)
        made = [compiler, "-Wall", "-Werror", "-o", folder / "program", folder / "program.c"]
        subprocess.run(made, check=True)
        commands.append([str(folder / "program")])
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in processes] == [0] * len(commands)
    log = yield
    for process in processes:
        found = log.of("USER_EVENT", tgid=process.pid)
        assert [(one["group"], one["type"], one["aux"]) for one in found] == [
            (7, 0, "work"), (7, 1, "work"),
        ]  # fmt: skip
    monkeypatch.chdir(folder)
    (folder / "pairs.py").write_text(pairs)
    runpy.run_path("pairs.py")
    shown = capsys.readouterr().out
    assert len(re.findall(r"^work: \d+ us$", shown, re.M)) >= len(commands)


def a_users_events_are_limited() -> Scenario:
    """A user who logs too much loses events, counted; the others lose none."""
    run_as_nobody("/usr/bin/python3", "-c", FLOOD, "2500", str(USER_OPTION), "1")
    subprocess.run([sys.executable, "-c", FLOOD, "100", str(USER_OPTION), "1"], check=True)
    time.sleep(1)  # nobody may log again
    log = yield
    found = [one["type"] for one in log.of("USER_EVENT", group=9, uid=NOBODY)]
    assert found == list(range(1000))
    assert len(log.of("USER_EVENT", group=9, uid=os.getuid())) == 100
    row = log.ledger["USER_EVENT"]
    assert (row["limited"], row["written"]) == (1500, row["attempts"] - 1500)


def strange_calls_do_no_harm() -> Scenario:
    """Addresses and lengths of all kinds: the text is empty where it cannot be read."""
    script = f"""
import ctypes
call = ctypes.CDLL(None).prctl
call.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
kernel = 0xffffffff81000000
for number, (where, length) in enumerate([(0, 5), (1, 5), (kernel, 64), (2**64 - 1, 2**64 - 1)]):
    call({USER_OPTION}, 2**32 + 8, number, where, length)
call({USER_OPTION + 1}, 8, 77, 0, 0)
"""
    run_as_nobody("/usr/bin/python3", "-c", script)
    log = yield
    found = [(one["type"], one["aux"], one["auxlen"]) for one in log.of("USER_EVENT", group=8)]
    assert found == [(0, "", 5), (1, "", 5), (2, "", 64), (3, "", 2**31 - 1)]


@pytest.mark.parametrize("kinds", first(1, ["", "raw"]))
def test_programs_of_users(
    tmp_path: Path, kinds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenarios = [
        a_users_events_are_limited(), the_command_logs_with_its_real_ids(),
        the_programs_of_the_page_log(tmp_path, monkeypatch, capsys), strange_calls_do_no_harm(),
    ]  # fmt: skip
    play(tmp_path / "log", "user", scenarios=scenarios, kinds=kinds)
