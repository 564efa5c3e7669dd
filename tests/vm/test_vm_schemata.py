# SPDX-License-Identifier: Apache-2.0
"""The schemata sched, locking, stopwatch, user, tty where functions can be probed, by each way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands.probe import USER_OPTION
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tests.live import test_schema_locking as locking
from tests.live import test_schema_sched as sched
from tests.live import test_schema_stopwatch as stopwatch
from tests.live import test_schema_tty as terminals
from tests.live.held_page import HeldPage
from tests.live.schema_logs import Log, logging

TIMES = 20
KPROBES = "raw,kprobe"
FIGHTS = 10
"""One thread emulates both CPUs of a guest, so that in one fight often nobody waits."""
SLOW_PATHS = ("native_queued_spin_lock_slowpath", "queued_spin_lock_slowpath")
"""On x86-64, elsewhere."""


def skip_without(probing: Probing, kind: str) -> None:
    if why := probing.why_not(kind, "up_write"):
        pytest.skip(why)


@pytest.fixture(autouse=True)
def functions_can_be_probed(probing: Probing) -> None:
    skip_without(probing, "kprobe")


# Is never asleep, and tells each signal that it got.
BUSY = """
import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: os.write(1, b"x"))
os.write(1, b"x")
while True:
    pass
"""


@pytest.mark.parametrize(("kinds", "way"), [("", "fentry"), (KPROBES, "kprobe")])
def test_all_of_them(tmp_path: Path, probing: Probing, kinds: str, way: str) -> None:
    """In one capture, since an emulated CPU takes long to start each."""
    skip_without(probing, way)
    schemata = ("sched", "locking", "stopwatch", "user", "tty")
    with logging(tmp_path / "log", *schemata, kinds=kinds) as running:
        wakeups = wake_up()
        locks = use_locks(tmp_path)
        numbers = press_all()
        user = terminals.answer_a_line()
    log = running.finish()
    check_wakeups(log, way, wakeups)
    check_locks(log, way, locks)
    terminals.check_answer(log, user)
    if not probing.can("btf", "task_prctl_unknown"):  # that one the live tests try
        check_presses(log, f"{way}:security_task_prctl", numbers)


@dataclass(frozen=True)
class Wakeups:
    """Of a process that sleeps, with what it told, and of one that is never asleep."""

    sleeper: int
    told: str
    busy: int


def wake_up() -> Wakeups:
    sleeper, told = sched.run_sleeper()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        assert os.read(busy.stdout.fileno(), 1)
        for _ in range(TIMES):
            busy.send_signal(signal.SIGUSR1)
            assert os.read(busy.stdout.fileno(), 1)
        busy.kill()
    return Wakeups(sleeper, told, busy.pid)


def check_wakeups(log: Log, way: str, done: Wakeups) -> None:
    """As on the host; and a wake-up is seen of a process that is awake, one for each signal."""
    assert log.ways["TRY_TO_WAKEUP"] == f"{way}:try_to_wake_up"
    sched.check_sleeper(log, done.sleeper, done.told, least=1)
    sleeps = log.of("SLEEP", tid=done.sleeper, **{"class": "TIMER"})
    assert sleeps and all(one["symbol"] for one in sleeps)
    tries = log.of("TRY_TO_WAKEUP", pid=done.busy, waker=threading.get_native_id())
    awake = [one for one in tries if not one["wakes"]]
    # The last one is SIGKILL's.
    assert len(awake) == TIMES + 1
    assert {(one["state"], one["queued"]) for one in awake} == {("RUNNING", 1)}


def make_locks() -> None:
    """TIMES each of an eventfd, a pipe and an address space."""
    for _ in range(TIMES):
        os.close(os.eventfd(0))
        for end in os.pipe():
            os.close(end)
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)


@dataclass(frozen=True)
class Locks:
    """When locks were made, and who waited for which: event, thread, span, type of lock."""

    made: locking.Span
    waits: list[tuple[str, int, locking.Span, str]]


def use_locks(folder: Path) -> Locks:
    begin = time.monotonic_ns()
    make_locks()
    made = begin, time.monotonic_ns()
    pages = [HeldPage() for _ in range(3)]
    write_span, writers = locking.wait_for_writers(folder, pages[0])
    read_span, writer, readers = locking.wait_for_readers(folder, pages[1])
    mutex_span, mutexes = locking.wait_for_mutex(pages[2])
    for page in pages:
        page.close()
    waits = [("WRITELOCK_FINISH", pid, write_span, "RWSEM") for pid in writers]
    waits.append(("WRITELOCK_FINISH", writer, read_span, "RWSEM"))
    waits += [("READLOCK_FINISH", pid, read_span, "RWSEM") for pid in readers]
    waits += [("MUTEX_FINISH", pid, mutex_span, "MUTEX") for pid in mutexes]
    return Locks(made, waits)


def check_locks(log: Log, way: str, done: Locks) -> None:
    """A lock that was waited for is logged when it is released, and all are that are made."""
    check_made(log, way, done.made)
    assert log.missing["BKL_LOCK_FINISH"] == "no probe of its schema logs it"
    if "PREEMPT_RT" in os.uname().version:
        return  # all these locks are rt_mutexes there
    for wait in done.waits:
        record = locking.check_wait(log, *wait)
        assert record["moment"] == "RELEASED"
        assert record["acquired"] < record["time_ns"]


def check_made(log: Log, way: str, span: locking.Span) -> None:
    made = {"&ctx->wqh": TIMES}
    made |= dict.fromkeys(("&pipe->rd_wait", "&pipe->wr_wait"), TIMES)
    inits = sched.between(log.of("SPINLOCK_INIT", tgid=os.getpid()), *span)
    found = [one for one in inits if one["name"] in made]
    assert Counter(one["name"] for one in found) == made
    assert "MUTEX_WAITERS" not in {one["holder"] for one in found}
    check_mutexes(log, inits, way)
    spaces = log.of("RWLOCK_INIT", name="&mm->mmap_lock", type="RWSEM", tgid=os.getpid())
    assert len(sched.between(spaces, *span)) == TIMES
    assert log.ways["RWLOCK_INIT"] == f"{way}:__init_rwsem"


def check_mutexes(log: Log, inits: Sequence[Mapping[str, Any]], way: str) -> None:
    """The mutex of each pipe, found by its place: newer kernels do not know its name."""
    btf = Btf.from_kernel()
    wait = btf.member("pipe_inode_info", "rd_wait.lock")
    mutex = btf.member("pipe_inode_info", "mutex.wait_lock")
    if mutex is None:  # PREEMPT_RT: an rt_mutex, which has no spinlock
        assert "MUTEX_WAITERS" not in {one["holder"] for one in inits}
        return
    assert wait is not None
    apart = (wait.offset_bits - mutex.offset_bits) // 8
    wanted = Counter(one["lock"] - apart for one in inits if one["name"] == "&pipe->rd_wait")
    pipes = [one for one in inits if one["holder"] == "MUTEX_WAITERS" and one["lock"] in wanted]
    assert Counter(one["lock"] for one in pipes) == wanted
    named = btf.find(Kind.FUNC, "__mutex_init") is not None
    assert {one["name"] for one in pipes} == {"&pipe->mutex" if named else ""}
    function = "__mutex_init" if named else "mutex_init_generic"
    assert f"{way}:{function}" in log.ways["SPINLOCK_INIT"].split()


def test_a_release_that_is_not_seen(tmp_path: Path) -> None:
    """A lock that is acquired twice was released in between, whoever did that."""
    lock = 1 << 62
    with (
        logging(tmp_path / "log", "locking", kinds=KPROBES) as running,
        contextlib.closing(locking.Tracepoints(running)) as tracepoints,
    ):
        for _ in range(3):
            tracepoints.hit("begins", lock, locking.WRITE)
            tracepoints.hit("ends", lock, 0)
    found = running.finish().of("WRITELOCK_FINISH", lock=lock)
    assert [one["moment"] for one in found] == ["UNSEEN", "UNSEEN"]
    assert all(one["acquired"] < one["time_ns"] for one in found)


COUNTER = """
BPF_HASH(counts, u32, u64, 4096);

int count(void *ctx)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    u64 *counter, one = 1;

    counter = counts.lookup(&tgid);
    if (counter)
        __sync_fetch_and_add(counter, 1);
    else
        counts.insert(&tgid, &one);
    return 0;
}
"""


def test_spinlocks_that_are_waited_for(tmp_path: Path, probing: Probing) -> None:
    """As many as another program counts at the entry of the slow path, until their release where
    that is a function: arm64 without preemption inlines it.
    """
    skip_without(probing, "fentry")
    slow_path = next(name for name in SLOW_PATHS if probing.can("fentry", name))
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    image = compile_text(COUNTER, ["count"], cache=False)
    with (
        logging(tmp_path / "log", "locking") as running,
        Loaded(image, Btf.from_kernel()) as oracle,
    ):
        oracle.load([ProgramSpec("count", "fentry", slow_path, required=True)])
        oracle.attach()
        counted: dict[int, int] = {}
        for _ in range(FIGHTS):
            for fighter in locking.fight(fd):
                value = bpf.map_lookup(oracle.maps["counts"], struct.pack("=I", fighter), 8)
                counted[fighter] = struct.unpack("=Q", value)[0] if value else 0
            if any(counted.values()):
                break
    os.close(fd)
    log = running.finish()
    found = {pid: log.of("SPINLOCK_FINISH", tgid=pid) for pid in counted}
    assert {pid: len(records) for pid, records in found.items()} == counted
    assert sum(counted.values()) > 0
    moment = "RELEASED" if probing.can("fentry", "_raw_spin_unlock_irq") else "ACQUIRED"
    assert {one["moment"] for records in found.values() for one in records} == {moment}


def press_all() -> range:
    numbers = stopwatch.some_numbers(2)
    for number in numbers:
        stopwatch.press(stopwatch.EVENT_START, number)
        stopwatch.press(stopwatch.THREAD_START, number)
        stopwatch.press(stopwatch.THREAD_STOP, number)
        stopwatch.press(stopwatch.EVENT_STOP, number)
    text = ctypes.create_string_buffer(b"text")
    stopwatch.LIBC.prctl(USER_OPTION, 3, 4, ctypes.addressof(text), 4)
    return numbers


def check_presses(log: Log, way: str, numbers: range) -> None:
    assert log.ways["EVENT_START"] == way
    for event in ("EVENT_START", "EVENT_STOP", "THREAD_START", "THREAD_STOP"):
        assert stopwatch.mine(log, event, numbers) == list(numbers)
    assert {one["pid"] for one in log.of("THREAD_STOP") if one["id"] in numbers} == {
        threading.get_native_id()
    }
    assert log.ways["USER_EVENT"] == way
    pressed = log.one("USER_EVENT", tgid=os.getpid())
    assert (pressed["group"], pressed["type"], pressed["aux"]) == (3, 4, "text")


def test_stopwatch_without_functions(tmp_path: Path, probing: Probing) -> None:
    if probing.can("btf", "task_prctl_unknown"):
        pytest.skip("this kernel has a tracepoint for it, which the live tests try")
    with logging(tmp_path / "log", "stopwatch", "user", kinds="btf,raw") as running:
        numbers = press_all()
    check_presses(running.finish(), "raw:sys_enter", numbers)
