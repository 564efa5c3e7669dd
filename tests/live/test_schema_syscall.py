# SPDX-License-Identifier: Apache-2.0
"""The schema syscall: counted calls of threads are found exactly that often, each with its exit."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tcpkmon.formats.analysis import match_calls, open_log
from tests.live.capturing import ROOT, wait_until
from tests.live.faults import FULL
from tests.live.schema_logs import Log, Scenario, logging, play, read_log

THREADS, CALLS = 4, 25_000 if FULL else 5_000
SYS_MMAP = 9
# perf needs tracefs. Where it is not mounted, perf gets it alone: in a mount namespace of its own.
PERF = (
    "{ mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing; } && "
    'exec perf stat -x, -o "$0" -e raw_syscalls:sys_enter "$@"'
)
# getpid() of 32-bit programs: mov eax, 20; int 0x80; ret. Prints what it gives.
CALL_32 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""


def call_in_threads(calls: int = CALLS) -> list[int]:
    """THREADS threads make so many calls each; their ids."""

    def run() -> None:
        for _ in range(calls):
            os.getppid()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    tids = [thread.native_id or 0 for thread in threads]
    for thread in threads:
        thread.join()
    return tids


def by_thread(log: Log, event: str, **values: object) -> Counter[int]:
    return Counter(record["tid"] for record in log.of(event, **values))


@pytest.mark.parametrize("kinds", ["", pytest.param("raw", marks=pytest.mark.full)])
def test_each_thread_has_its_calls(tmp_path: Path, kinds: str) -> None:
    """H1: as many starts and exits of each thread as it made calls, all of them pairs."""
    folder = tmp_path / "log"
    with logging(folder, "syscall", kinds=kinds, more=["--syscalls", "getppid"]) as running:
        tids = call_in_threads()
    check_calls(running.finish(), folder, tids, CALLS, kinds or "btf")


def check_calls(log: Log, folder: Path, tids: list[int], calls: int, kind: str) -> None:
    for event in ("SYSCALL_START", "SYSCALL_EXIT"):
        counts = by_thread(log, event, number="getppid", tgid=os.getpid())
        assert {tid: counts[tid] for tid in tids} == dict.fromkeys(tids, calls)
        assert {record["number"] for record in log.of(event)} == {"getppid"}
        assert log.ways[event].startswith(kind)
    with open_log(folder) as events:
        found = match_calls(events)
        ours = Counter(tid for tid in found.pairs.keys[0].tolist() if tid in tids)
        assert dict(ours) == dict.fromkeys(tids, calls)
        assert (found.pairs.durations_ns > 0).all()
        assert found.by_name()["getppid"].count == len(found.pairs)


def as_many_as_perf_counts(told: Path) -> Scenario:
    """All calls of a program, from its execve on."""
    script = "import os\nfor _ in range(500): os.stat('/')"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", PERF, told]
    subprocess.run([*command, sys.executable, "-c", script], check=True)
    counted = int(told.read_text().splitlines()[-1].split(",")[0])
    log = yield
    # The last execve that perf's child makes is the one that counting begins with.
    stats = Counter(record["tgid"] for record in log.of("SYSCALL_START", number="newfstatat"))
    child = max(stats, key=lambda tgid: stats[tgid])
    begun = max(
        record["time_ns"] for record in log.of("SYSCALL_EXIT", tgid=child, number="execve")
    )
    starts = [one for one in log.of("SYSCALL_START", tgid=child) if one["time_ns"] > begun]
    assert len(starts) == counted > 500


def arguments_values_and_errors(folder: Path) -> Scenario:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (0x11000, 0, 3, 0x22, (1 << 64) - 1, 0x5000)
    assert libc.syscall(SYS_MMAP, *map(ctypes.c_ulong, arguments)) == -1
    assert ctypes.get_errno() == errno.EINVAL
    with pytest.raises(FileNotFoundError):
        os.open(folder / "none", os.O_RDONLY)
    fd = os.open(folder, os.O_RDONLY)
    os.close(fd)
    log = yield
    me = threading.get_native_id()
    (start,) = log.of("SYSCALL_START", tid=me, number="mmap", arg0=0x11000)
    assert tuple(start[f"arg{n}"] for n in range(6)) == arguments
    assert (start["tgid"], start["uid"]) == (os.getpid(), os.geteuid())
    assert start["cpu_time"] > 0
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [tuple(int(x, 16) for x in one.split()[0].split("-")) for one in maps if " r-xp" in one]
    assert any(low <= start["ip"] < high for low, high in spans)
    ended = next(one for one in log.of("SYSCALL_EXIT", tid=me, number="mmap") if one["result"] < 0)
    assert (ended["result"], ended["error"]) == (-errno.EINVAL, "EINVAL")
    opened = [(one["result"], one["error"])
              for one in log.of("SYSCALL_EXIT", tid=me, number="openat")]  # fmt: skip
    at = opened.index((-errno.ENOENT, "ENOENT"))
    assert (fd, "NO_ERROR") in opened[at:]


def calls_without_an_exit(folder: Path) -> Scenario:
    """exit_group and a signal handler's return have none; what a signal interrupts has one."""
    script = (
        "import os, signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "for _ in range(3): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(flush=True)\n"
        "signal.pause()"
    )
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    assert ended.wait() == 0
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    wait_until(lambda: " 34 " in f" {Path(f'/proc/{killed.pid}/syscall').read_text()}")
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    log = yield
    with open_log(folder) as events:
        ours = match_calls(events.choose(where=[f"tgid={ended.pid}"]))
        assert ours.without_exit == {"exit_group": 1}
        theirs = match_calls(events.choose(where=[f"tgid={killed.pid}"]))
        assert theirs.without_exit == {"rt_sigreturn": 3}
    assert log.one("SYSCALL_EXIT", tgid=killed.pid, number="pause")["error"] == "ERESTARTNOHAND"


def a_call_of_32_bits_has_a_number_of_its_own() -> Scenario:
    program = subprocess.run(
        [sys.executable, "-c", CALL_32], check=False, capture_output=True, text=True
    )
    log = yield
    if program.returncode == -signal.SIGSEGV:
        return  # this kernel has no calls of 32-bit programs
    pid = int(program.stdout)
    number = str(0x20000000 + 20)
    assert log.one("SYSCALL_EXIT", tgid=pid, number=number)["result"] == pid
    assert log.one("SYSCALL_START", tgid=pid, number=number)


def test_calls(tmp_path: Path) -> None:
    scenarios = [
        as_many_as_perf_counts(tmp_path / "perf"), arguments_values_and_errors(tmp_path),
        calls_without_an_exit(tmp_path / "log"), a_call_of_32_bits_has_a_number_of_its_own(),
    ]  # fmt: skip
    play(tmp_path / "log", "syscall", scenarios=scenarios)


@pytest.mark.parametrize("namespace", [(), ("unshare", "-p", "--fork", "--mount-proc")])
def test_the_collectors_own_calls_are_left_out(tmp_path: Path, namespace: tuple[str, ...]) -> None:
    """Also where its process ids are those of a namespace. Another process makes calls."""
    folder = tmp_path / "log"
    other = subprocess.Popen(["sh", "-c", "while sleep 0.05; do :; done"])
    driver = "from tcpkmon.collector.commands import collect; collect.main()"
    words = ("-q", "--schema", "syscall", "--duration", "1s", "-o", str(folder))
    running = subprocess.Popen([*namespace, sys.executable, "-c", driver, *words], cwd=ROOT)
    pid = running.pid
    try:
        if namespace:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            pid = int(wait_until(children.read_text))
        assert running.wait() == 0
    finally:
        other.kill()
        other.wait()
    log = read_log(folder)
    assert log.of("SYSCALL_START", tgid=other.pid)
    assert not log.of("SYSCALL_START", tgid=pid)
