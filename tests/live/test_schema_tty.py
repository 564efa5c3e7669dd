# SPDX-License-Identifier: Apache-2.0
"""The schema tty: the lines and keys that a user types, the answers to them, logins and logouts."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live.schema_logs import Log, Record, Scenario, logging, play
from tests.live.tty_workload import EVENTS, Terminal, answerer, terminal


def of(user: Terminal, log: Log) -> list[Record]:
    """A terminal's transactions; another one may get the same number later."""
    return [
        one for one in log.records
        if one["event"] in EVENTS and one["tty"] == user.number
        and user.since < one["time_ns"] < user.until
    ]  # fmt: skip


@pytest.mark.parametrize("kinds", ["", pytest.param("raw", marks=pytest.mark.full)])
def test_response_and_think_times(tmp_path: Path, kinds: str) -> None:
    """Each answer comes 200 ms after its line, each line 500 ms after the answer before it."""
    with (
        logging(tmp_path / "log", "tty", kinds=kinds) as running,
        terminal(*answerer(0.2, "cooked")) as user,
    ):
        user.wait_for(b"ready")
        for _ in range(5):
            user.type(b"hel")  # not yet a line
            user.type(b"lo\n")
            user.wait_for(b"answer")
            time.sleep(0.5)
    log = running.finish()
    found = of(user, log)
    assert [one["event"] for one in found] == [*EVENTS] * 5
    for one in found:
        assert (one["tid"], one["tgid"], one["uid"], one["raw"]) == (user.pid, user.pid, 0, 0)
        assert one["device"] == 136 << 20 | user.number
        assert one["cpu_time"] > 0
    times = [one["time_ns"] / 1e9 for one in found]
    response = [end - start for start, end in zip(times[::2], times[1::2], strict=True)]
    think = [start - end for end, start in zip(times[1::2], times[2::2], strict=False)]
    assert statistics.median(response) == pytest.approx(0.2, abs=0.005), response
    assert statistics.median(think) == pytest.approx(0.5, abs=0.005), think


def answers_at_once_and_answers_of_others() -> Scenario:
    """The answer comes 2 ms after the echo; a child's output is the child's."""
    quick = "echo ready; while read x; do sleep 0.002; echo $x; done"
    with terminal("sh", "-c", quick) as fast:
        fast.wait_for(b"ready")
        for number in range(50):
            fast.type(f"<{number}>\n".encode())
            fast.wait_for(f"<{number}>\r\n<{number}>".encode())  # echo and answer
            time.sleep(0.005)  # lines that are handed on together are one
    shell = "echo ready; read x; sleep 0.05; /bin/echo child; sleep 0.05; echo more; read x"
    with terminal("sh", "-c", shell) as user:
        user.wait_for(b"ready")
        user.type(b"x\n")
        user.wait_for(b"more")
    log = yield
    found = of(fast, log)
    assert len([one for one in found if one["event"] == EVENTS[0]]) == 50
    ends = [one for one in found if one["event"] == EVENTS[1]]
    assert len(ends) == 50
    assert {one["tgid"] for one in found} == {fast.pid}
    start, end = of(user, log)[:2]
    assert (start["event"], start["tgid"]) == (EVENTS[0], user.pid)
    assert end["event"] == EVENTS[1]
    assert end["tgid"] not in {0, user.pid}
    assert end["time_ns"] - start["time_ns"] > 50_000_000


LOGIN = """
import os, sys, time
pid = os.fork()                # as sshd does for a connection
if not pid:
    with open("/proc/self/loginuid", "w") as file:
        file.write("12345")
    import pty
    child, master = pty.fork()
    if not child:
        os.setresuid(12345, 12345, 12345)
        os.execv("/bin/sh", ["sh", "-c", "sh -c :; sleep 0.1; exit"])
    print(child, open(f"/proc/{child}/sessionid").read(), flush=True)
    os.waitpid(child, 0)
    os._exit(0)
os.waitpid(pid, 0)
"""


def answer_a_line() -> Terminal:
    """A line typed at a terminal, and a program's answer to it: for the guests too."""
    with terminal("sh", "-c", "echo ready; read x; sleep 0.1; echo more; read x") as user:
        user.wait_for(b"ready")
        user.type(b"line\n")
        user.wait_for(b"more")
    return user


def check_answer(log: Log, user: Terminal) -> None:
    found = [(one["event"], one["tgid"], one["raw"]) for one in of(user, log)]
    assert found == [(event, user.pid, 0) for event in EVENTS]


def a_line_is_not_answered_in_the_next_session() -> Scenario:
    """What the next session of a terminal writes is no answer to what was typed in the last one."""
    user = Terminal("sh", "-c", "echo ready; exec sleep 1000")
    user.wait_for(b"ready")
    user.type(b"line\n")
    user.wait_for(b"line")
    os.kill(user.pid, signal.SIGKILL)
    os.waitpid(user.pid, 0)
    later = f"exec setsid sh -c 'exec <>/dev/pts/{user.number} >&0; echo later'"
    subprocess.run(["sh", "-c", later], check=True)
    user.wait_for(b"later")
    user.until = time.monotonic_ns()
    os.close(user.master)
    log = yield
    assert [(one["event"], one["tgid"]) for one in of(user, log)] == [(EVENTS[0], user.pid)]


def test_whose_answers_are(tmp_path: Path) -> None:
    scenarios = [
        answers_at_once_and_answers_of_others(), a_line_is_not_answered_in_the_next_session(),
    ]  # fmt: skip
    play(tmp_path / "log", "tty", scenarios=scenarios)


def log_in() -> tuple[int, int]:
    """A login session comes and goes; its shell's pid, and its number."""
    command = [sys.executable, "-c", LOGIN]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    subprocess.run(["sh", "-c", "sh -c :"], check=True)
    if done.returncode or not done.stdout:
        pytest.skip(f"no login session can be made here: {done.stderr[-200:]}")
    shell, session = map(int, done.stdout.split())
    return shell, session


def test_logins_and_logouts(tmp_path: Path) -> None:
    with logging(tmp_path / "log", "tty") as running:
        shell, session = log_in()
    check_login(running.finish(), shell, session)


def check_login(log: Log, shell: int, session: int) -> None:
    entered = log.one("LOGIN", session=session)
    assert (entered["tgid"], entered["uid"], entered["loginuid"]) == (shell, 12345, 12345)
    left = log.one("LOGOUT", session=session)
    assert (left["tgid"], left["loginuid"]) == (shell, 12345)
    assert left["time_ns"] - entered["time_ns"] > 100_000_000
