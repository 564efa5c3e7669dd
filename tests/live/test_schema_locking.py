# SPDX-License-Identifier: Apache-2.0
"""The schema locking: locks are held by the test, waited for, and found exactly that often."""

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
from pathlib import Path

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.syscalls import address
from tcpkmon.collector.linux.syscalls import bpf as call_bpf
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tests.full import first
from tests.live.capturing import wait_until
from tests.live.held_page import (
    SYS_GETDENTS64,
    HeldPage,
    Thread,
    list_into,
    state_of,
    write_from,
)
from tests.live.schema_logs import Log, Logging, Record, Scenario, logging, play

WAITERS = 3
HELD_S = 0.02
FINISHES = (
    "SPINLOCK_FINISH",
    "PREEMPT_SPINLOCK_FINISH",
    "READLOCK_FINISH",
    "WRITELOCK_FINISH",
    "PREEMPT_WRITELOCK_FINISH",
    "MUTEX_FINISH",
)


Span = tuple[int, int]


def hold_on() -> Span:
    """Lets some time pass, in which a lock is waited for: from when to when, in ns."""
    begin = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() - begin > HELD_S * 1e9)
    return begin, time.monotonic_ns()


def check_wait(log: Log, event: str, pid: int, span: Span, lock_type: str) -> Record:
    """The only wait of a thread that lasted all that time, which ended well."""
    (record,) = [
        one for one in log.of(event, pid=pid)
        if one["acquired"] - one["waited"] <= span[0] and span[1] <= one["acquired"]
    ]  # fmt: skip
    assert record["type"] == lock_type
    assert record["moment"] in {"ACQUIRED", "RELEASED"}
    assert record["error"] == 0
    assert record["time_ns"] - record["acquired"] >= 0
    assert (record["tgid"], record["lock"] >> 63) == (os.getpid(), 1)
    return record


def wait_for_writers(folder: Path, page: HeldPage) -> tuple[Span, list[int]]:
    """WAITERS threads wait to write to a file; their ids."""
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT, 0o600)
    holder = write_from(fd, page)
    writers = [Thread(lambda: os.pwrite(fd, b"x", 0)) for _ in range(WAITERS)]
    for writer in writers:
        writer.wait_until_blocked()
    span = hold_on()
    page.release()
    for thread in (holder, *writers):
        thread.join()
    os.close(fd)
    return span, [writer.native_id or 0 for writer in writers]


def wait_for_readers(folder: Path, page: HeldPage) -> tuple[Span, int, list[int]]:
    """A folder is being listed; a thread waits to make one in it, others behind it to list it."""
    inner = folder / "inner"
    inner.mkdir()
    fd = os.open(inner, os.O_RDONLY)
    holder = list_into(fd, page)
    writer = Thread(lambda: os.mkdir(inner / "new"))
    writer.wait_until_blocked()
    readers = [Thread(lambda: list(os.scandir(inner))) for _ in range(WAITERS)]
    for reader in readers:
        reader.wait_until_blocked()
    span = hold_on()
    page.release()
    for thread in (holder, writer, *readers):
        thread.join()
    os.close(fd)
    return span, writer.native_id or 0, [reader.native_id or 0 for reader in readers]


def wait_for_mutex(page: HeldPage) -> tuple[Span, list[int]]:
    """WAITERS threads wait to write into a pipe; their ids."""
    read_end, write_end = os.pipe()
    holder = write_from(write_end, page)
    writers = [Thread(lambda: os.write(write_end, b"x")) for _ in range(WAITERS)]
    for writer in writers:
        writer.wait_until_blocked()
    span = hold_on()
    page.release()
    for thread in (holder, *writers):
        thread.join()
    os.close(read_end)
    os.close(write_end)
    return span, [writer.native_id or 0 for writer in writers]


def writers_that_wait(folder: Path, page: HeldPage) -> Scenario:
    span, writers = wait_for_writers(folder, page)
    log = yield
    waits = [check_wait(log, "WRITELOCK_FINISH", pid, span, "RWSEM") for pid in writers]
    assert len({wait["lock"] for wait in waits}) == 1


def readers_that_wait(folder: Path, page: HeldPage) -> Scenario:
    span, writer, readers = wait_for_readers(folder, page)
    log = yield
    waits = [check_wait(log, "READLOCK_FINISH", pid, span, "RWSEM") for pid in readers]
    waits.append(check_wait(log, "WRITELOCK_FINISH", writer, span, "RWSEM"))
    assert len({wait["lock"] for wait in waits}) == 1
    # The writer was there first.
    assert waits[-1]["acquired"] <= min(wait["acquired"] for wait in waits)


def a_mutex_that_is_waited_for(page: HeldPage) -> Scenario:
    span, writers = wait_for_mutex(page)
    log = yield
    waits = [check_wait(log, "MUTEX_FINISH", pid, span, "MUTEX") for pid in writers]
    assert len({wait["lock"] for wait in waits}) == 1


def a_wait_that_a_signal_ends(folder: Path, page: HeldPage) -> Scenario:
    """A killed process gives up waiting: it never had the lock."""
    inner = folder / "closed"
    inner.mkdir()
    fd = os.open(inner, os.O_RDONLY)
    holder = list_into(fd, page)
    writer = Thread(lambda: os.mkdir(inner / "new"))
    writer.wait_until_blocked()
    victim = subprocess.Popen(
        [sys.executable, "-c", "import os, sys; os.listdir(sys.argv[1])", inner]
    )
    wait_until(lambda: _waits_to_list(victim.pid))
    victim.kill()
    assert victim.wait() == -signal.SIGKILL
    page.release()
    holder.join()
    writer.join()
    os.close(fd)
    log = yield
    given_up = log.one("READLOCK_FINISH", pid=victim.pid, moment="GIVEN_UP")
    assert (given_up["acquired"], given_up["error"], given_up["type"]) == (0, -4, "RWSEM")
    assert given_up["waited"] > 0


def _waits_to_list(pid: int) -> bool:
    call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    return call == str(SYS_GETDENTS64) and state_of(pid) == "D"


# Counts the waits for spinlocks of each process, by the same tracepoint.
COUNTER = """
BPF_HASH(counts, u32, u64, 4096);

int count(void *ctx)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    u64 *counter, one = 1;

    if (((volatile u64 *)ctx)[1] != 1)
        return 0;
    counter = counts.lookup(&tgid);
    if (counter)
        __sync_fetch_and_add(counter, 1);
    else
        counts.insert(&tgid, &one);
    return 0;
}
"""
# A process that fights with others for the lock of an eventfd, for a second.
FIGHTER = """
import os, sys, time
sys.stdin.readline()
end = time.monotonic() + 1
while time.monotonic() < end:
    for _ in range(1000):
        os.eventfd_write(int(sys.argv[1]), 1)
"""


def fight(fd: int) -> list[int]:
    """Four processes add to an eventfd for a second, whose spinlock they fight for; their pids."""
    fighters = [
        subprocess.Popen(
            [sys.executable, "-c", FIGHTER, str(fd)], stdin=subprocess.PIPE, pass_fds=(fd,)
        )
        for _ in range(4)
    ]
    for fighter in fighters:
        assert fighter.stdin is not None
        fighter.stdin.write(b"\n")
        fighter.stdin.close()
    for fighter in fighters:
        assert fighter.wait() == 0
    return [fighter.pid for fighter in fighters]


def spinlocks_that_are_waited_for(oracle: Loaded) -> Scenario:
    """As many as another program counts at the same tracepoint."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    oracle.load([ProgramSpec("count", "raw", "contention_begin", required=True)])
    oracle.attach()
    fighters = fight(fd)
    counted = {}
    for fighter in fighters:
        value = bpf.map_lookup(oracle.maps["counts"], struct.pack("=I", fighter), 8)
        counted[fighter] = struct.unpack("=Q", value)[0] if value else 0
    os.close(fd)
    log = yield
    found = {pid: log.of("SPINLOCK_FINISH", tgid=pid) for pid in fighters}
    assert {pid: len(records) for pid, records in found.items()} == counted
    assert sum(counted.values()) > 0
    for records in found.values():
        for record in records:
            assert (record["type"], record["error"]) == ("SPINLOCK", 0)
            assert record["moment"] in {"ACQUIRED", "RELEASED"}
            assert 0 < record["acquired"] <= record["time_ns"]


def what_has_no_place(kind: str) -> Scenario:
    """It is told by name, where functions cannot be probed."""
    log = yield
    assert log.ways["WRITELOCK_FINISH"] == f"{kind}:contention_end {kind}:contention_begin"
    assert log.missing["BKL_LOCK_FINISH"] == "no probe of its schema logs it"
    assert "__init_rwsem" in log.missing["RWLOCK_INIT"]
    assert "__raw_spin_lock_init" in log.missing["SPINLOCK_INIT"]
    assert set(log.ways) == set(FINISHES)


@pytest.mark.parametrize("kinds", first(1, ["btf,raw", "raw"]))
def test_locks_that_are_waited_for(tmp_path: Path, kinds: str, btf: Btf) -> None:
    image = compile_text(COUNTER, ["count"], cache=False)
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(contextlib.closing(HeldPage())) for _ in range(4)]
        scenarios = [
            writers_that_wait(tmp_path, pages[0]), readers_that_wait(tmp_path, pages[1]),
            a_mutex_that_is_waited_for(pages[2]), a_wait_that_a_signal_ends(tmp_path, pages[3]),
            spinlocks_that_are_waited_for(stack.enter_context(Loaded(image, btf))),
            what_has_no_place(kinds.partition(",")[0]),
        ]  # fmt: skip
        play(tmp_path / "log", "locking", scenarios=scenarios, kinds=kinds)


# Kinds of locks that no test can make wait here: their tracepoints are run as a kernel would.
SPIN, READ, WRITE, RT, PERCPU, MUTEX = (1 << bit for bit in range(6))
KINDS_OF_LOCKS = {
    "spinlock": (SPIN, "SPINLOCK_FINISH", "SPINLOCK"),
    "rwlock read": (SPIN | READ, "READLOCK_FINISH", "RWLOCK"),
    "rwlock write": (SPIN | WRITE, "WRITELOCK_FINISH", "RWLOCK"),
    "percpu read": (PERCPU | READ, "READLOCK_FINISH", "PERCPU_RWSEM"),
    "percpu write": (PERCPU | WRITE, "WRITELOCK_FINISH", "PERCPU_RWSEM"),
    "rt_mutex": (RT, "PREEMPT_SPINLOCK_FINISH", "RT_MUTEX"),
    "rt read": (RT | READ, "READLOCK_FINISH", "RT_RWLOCK"),
    "rt write": (RT | WRITE, "PREEMPT_WRITELOCK_FINISH", "RT_RWLOCK"),
    "mutex": (MUTEX | SPIN, "MUTEX_FINISH", "MUTEX"),
    "semaphore": (0, "MUTEX_FINISH", "SEMAPHORE"),
}
BPF_PROG_TEST_RUN, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD = 10, 13, 15
TEST_RUN_ON_CPU = 1
EINTR = 4


class Tracepoints:
    """Runs a capture's own programs on given arguments, as if their tracepoint had been hit."""

    def __init__(self, running: Logging) -> None:
        self._fds: dict[str, list[int]] = {}
        # On this thread's own CPU the program runs in this thread.
        self._cpus = os.sched_getaffinity(0)
        self._cpu = min(self._cpus)
        os.sched_setaffinity(0, {self._cpu})
        for info in Path(f"/proc/{running.process.pid}/fdinfo").iterdir():
            lines = dict(
                line.split(":", 1) for line in info.read_text().splitlines() if ":" in line
            )
            if "prog_id" in lines and "link_id" not in lines:
                wanted = struct.pack("=III", int(lines["prog_id"]), 0, 0)
                fd, _ = call_bpf(BPF_PROG_GET_FD_BY_ID, wanted)
                self._fds.setdefault(_name(fd), []).append(fd)

    def hit(self, name: str, *arguments: int) -> None:
        """Runs the program once; its second copy steps in only for a first that was skipped."""
        context = ctypes.create_string_buffer(struct.pack(f"={len(arguments)}Q", *arguments))
        (fd,) = self._fds[name]
        attributes = struct.pack(
            "=IIIIQQIIIIQQIII", fd, 0, 0, 0, 0, 0, 0, 0, 8 * len(arguments), 0, address(context),
            0, TEST_RUN_ON_CPU, self._cpu, 0,
        )  # fmt: skip
        call_bpf(BPF_PROG_TEST_RUN, attributes)

    def close(self) -> None:
        os.sched_setaffinity(0, self._cpus)
        for fd in (fd for fds in self._fds.values() for fd in fds):
            os.close(fd)


def _name(fd: int) -> str:
    info = ctypes.create_string_buffer(80)
    call_bpf(BPF_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), address(info)))
    return info.raw[64:80].split(b"\0")[0].decode()


def test_every_kind_of_lock_has_its_event(tmp_path: Path) -> None:
    begun = 1 << 62
    with (
        logging(tmp_path / "log", "locking", kinds="raw") as running,
        contextlib.closing(Tracepoints(running)) as tracepoints,
    ):
        for number, (flags, _, _) in enumerate(KINDS_OF_LOCKS.values()):
            for error in (0, 0, -EINTR & (1 << 64) - 1):
                tracepoints.hit("begins", begun + number, flags)
                tracepoints.hit("ends", begun + number, error)
            # An end without a beginning was one of a wait from before the capture.
            tracepoints.hit("ends", begun + number, 0)
    log = running.finish()
    for number, (_, event, lock_type) in enumerate(KINDS_OF_LOCKS.values()):
        found = [one for name in FINISHES for one in log.of(name, lock=begun + number)]
        assert {(one["event"], one["type"]) for one in found} == {(event, lock_type)}
        assert [(one["moment"], one["error"]) for one in found] == [
            ("ACQUIRED", 0), ("ACQUIRED", 0), ("GIVEN_UP", -EINTR)
        ]  # fmt: skip
        assert {one["pid"] for one in found} == {threading.get_native_id()}
