# SPDX-License-Identifier: Apache-2.0
"""docs/then-and-now.md, row by row: what a command says of sessions that have everything.

A session is recorded four times: by `monitor`, by `iscan`, by Klogger's commands and MAGNeT's. Its
texts must match what CHECKS says of each row. Experiments are run by their own tests.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector import capturing
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.errors import TcpkmonError
from tests.live.capturing import wait_until
from tests.live.disk_workload import loop_device
from tests.live.faults import as_nobody
from tests.live.file_workload import PAGE, make_cold
from tests.live.magnet_2001 import CHECKS as CHECKS_2001
from tests.live.magnet_2001 import record_2001
from tests.live.memory_workload import NotHere, outgrow, small_cgroup, swap_on, swapped
from tests.live.then_and_now import CHECKS as OTHERS
from tests.live.tty_workload import answerer, terminal
from tests.unit.klogger_samples import ROOT, LogMaker
from tests.unit.test_then_and_now import NONE, rows

CHECKS = {**OTHERS, "MAGNeT": CHECKS_2001}
NOT_HERE = "not on this machine"
TCPKMON = Path(sys.executable).with_name("tcpkmon")
LOGIN = """
import os, pty
with open("/proc/self/loginuid", "w") as file:
    file.write("12345")
child, master = pty.fork()
if not child:
    os.execv("/bin/sh", ["sh", "-c", "sh -c :; exit"])
os.waitpid(child, 0)
"""
IDS = (
    "sleep", "swtch", "setrq", "remrq", "trap", "syscall", "exec", "exit", "disc_io_id",
    "timeshare_insert", "bread", "breada", "bwrite", "bdwrite", "syscallstart", "syscallexit",
    "sampler", "SAMPLE_FRAME", "SOCKET_CREATE", "UDP_SEND", "IP_SENDPACKET", "USER_EVENT",
    "FILE_SYNC", "breada_reada",
)  # fmt: skip
OWN_CONF = """
enum how { NICE = 3, RUDE }
loglevel all < event MINE { how way; ulonglong switches; uint arch; string16 comm } event NOT { } >
loglevel less < include all  omit NOT >
using less
arch any { counter1 context_switches; }
"""
OWN_TEXT = """#include "klogger.h"
struct task_struct;
PROBE(mine, "MINE NOT", "btf:sched_process_exec raw:sched_process_exec")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
#ifdef CONFIG_KLOGGER
    klogger(MINE, KLOGGER_how_RUDE, klogger_get_context_switches_ll() - klogger_get_counter_ll(
            KLOGGER_COUNTER1) < 2, KLOGGER_ARCH_COMPILED != KLOGGER_ARCH_UNKNOWN, &task->comm);
#endif
    klogger(NOT);
}
"""


class Said:
    """The texts of a session, by name. run() adds one: exit code, stdout, stderr."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, str] = {}

    def run(self, name: str, *words: str, **options: Any) -> None:
        self.run_all(name, [str(TCPKMON), *words], **options)

    def run_all(self, name: str, words: list[str], **options: Any) -> None:
        """The same of a whole command."""
        done = subprocess.run(words, check=False, cwd=self.folder,
                              capture_output=True, text=True, **options)  # fmt: skip
        self.texts[name] = f"exit {done.returncode}\n{done.stdout}{done.stderr}"

    def collect(self, name: str, *words: str) -> None:
        """The same of collect."""
        done = subprocess.run([TCPKMON.with_name("collect"), *words], check=False, cwd=self.folder,
                              capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
        self.texts[name] = f"exit {done.returncode}\n{done.stdout}{done.stderr}"

    def stop_and(self, pid: int, do: Callable[[], object]) -> None:
        """Do something while a process is stopped."""
        os.kill(pid, signal.SIGSTOP)
        try:
            do()
        finally:
            os.kill(pid, signal.SIGCONT)

    def run_as_nobody(self, name: str, *words: str) -> None:
        self.folder.chmod(0o755)
        self.run_all(name, as_nobody("tcpkmon", *words))


def work(folder: Path) -> None:
    """Somebody types, logs in, reads and writes; processes come and go, and wait for a CPU."""
    with terminal(*answerer(0.1, "raw")) as user:
        user.wait_for(b"ready")
        user.type(b"x")
        user.wait_for(b"answer")
    subprocess.run([sys.executable, "-c", LOGIN], check=False, capture_output=True)
    subprocess.run(["/bin/true"], check=True, user=65534, group=65534, extra_groups=[])
    subprocess.run([TCPKMON, "probe", "7", "1", "hello"], check=True)
    fd = make_cold(folder / "file", 64)
    os.pread(fd, 8 * PAGE, 0)
    os.pread(fd, 8 * PAGE, 0)
    os.pwrite(fd, b"x" * PAGE, 0)
    os.fsync(fd)
    os.close(fd)
    fd = os.open(folder / "file", os.O_WRONLY | os.O_DSYNC)
    os.pwrite(fd, b"x" * PAGE, 2 * PAGE)
    os.close(fd)
    threading.Thread(target=int).start()
    with open(folder / "file", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            memory[32 * PAGE]
    cpu = min(os.sched_getaffinity(0))
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(3)]
    for nice, one in enumerate(busy * 3, 1):
        os.sched_setaffinity(one.pid, {cpu})
        os.setpriority(os.PRIO_PROCESS, one.pid, nice)
        time.sleep(0.05)
    for one in busy:
        one.kill()
        one.wait()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"hello", ("127.0.0.1", 9))


def record_1987(said: Said) -> None:
    said.run("monitor", "monitor")
    said.run("help", "monitor", "-help")
    said.run_as_nobody("nobody on", "monitor", "-on")
    said.run("on", "monitor", "-on", "-b", "2", "12000000", "-events", "1", "2", "3", "4", "5", "6")
    try:
        said.run("on again", "monitor", "-on")
        work(said.folder)
        swapped_out = outgrow_memory(said.folder)
        said.run_as_nobody("nobody status", "monitor", "-s")
        said.run("status", "monitor", "-status")
    finally:
        said.run("off", "monitor", "-off")
    said.run("on exists", "monitor", "-on", input="n\n")
    said.run("verify 1987", "verify", "monitor.out")
    said.run("decode 1987", "decode", "--format", "json", "--merge",
             *map(str, sorted((said.folder / "monitor.out").iterdir())))  # fmt: skip
    said.run("condense", "condense", "monitor.out")
    for word in ("--by-user", "--without-collector"):
        said.run(f"condense {word}", "condense", "monitor.out", word)
    lossy = LogMaker("event SCHEDOUT { int pid; int prio }")
    for lost in (0, 3, 0):
        lossy.skip(lost).add("SCHEDOUT", {"pid": 1, "prio": 2}).end_dump()
    (said.folder / "lossy").mkdir()
    lossy.add("KLOGGER_FINISH").write(said.folder / "lossy" / "kernlog.dump.cpu0")
    for most in ("0", "3"):
        said.run(f"condense --discard-lossy {most}", "condense", "lossy", "--discard-lossy", most)
    said.run("records", "translate", "--records-1987", "old", "monitor.out")
    said.texts["old"] = old_records((said.folder / "old").read_bytes())
    events = [json.loads(line) for line in said.texts["decode 1987"].splitlines()
              if line.startswith("{")]  # fmt: skip
    said.texts["both shapes"] = compare_shapes(events, said.texts["old"])
    said.texts["page-outs"] = NOT_HERE
    if swapped_out is not None:
        starts, ends = (
            sum(one["pages"] for one in events if one["header"]["type"] == f"PAGEOUT_{name}")
            for name in ("START", "END")
        )
        said.texts["page-outs"] = f"swapped out {swapped_out} started {starts} ended {ends}"


def outgrow_memory(folder: Path) -> int | None:
    """A process outgrows its cgroup; the pages that went to swap. None: not on this machine."""
    with ExitStack() as stack:
        try:
            device = stack.enter_context(loop_device(folder, 40))
            if device is None:
                return None
            stack.enter_context(swap_on(device.path))
            procs = stack.enter_context(small_cgroup(8 << 20))
        except NotHere:
            return None
        before = swapped()
        subprocess.run(outgrow(procs), cwd=ROOT, check=True, capture_output=True)
        return swapped()[1] - before[1]


def compare_shapes(events: list[dict[str, Any]], old: str) -> str:
    """How many processes began and ended by the log, and by the file of 1987: with their pids."""
    kinds = {name: [one for one in events if one["header"]["type"] == name]
             for name in ("FORK", "EXIT")}  # fmt: skip
    forks = [one["child_pid"] & 0xFFFFFFFF for one in kinds["FORK"] if one["kind"] == "PROCESS"]
    exits = [one["tgid"] & 0xFFFF for one in kinds["EXIT"] if one["group_dead"]]
    began = [int(aux, 16) for aux in re.findall(r"^6\.0 .* aux ([0-9a-f]{8})$", old, re.MULTILINE)]
    ended = [int(pid) for pid in re.findall(r"^6\.1 .* pid (\d+) ", old, re.MULTILINE)]
    threads = len(kinds["FORK"]) - len(forks)
    same = sorted(forks) == sorted(began), sorted(exits) == sorted(ended)
    return f"began {len(forks)} ended {len(exits)} the same {same} threads left out {threads}"


def old_records(data: bytes) -> str:
    """The file of 1987 as text: the header, then group.type, length, user, pid, CPU, auxinfo."""
    head = struct.Struct(">7h32s16s4h")
    values = head.unpack_from(data)
    lines = [f"header year {values[2]} user {values[7].rstrip(bytes(1)).decode()} cpus {values[9]} "
             f"memory {values[10]} nusers {values[11]}"]  # fmt: skip
    at = head.size
    while at < len(data):
        size, what, uid, pid, cpu, _ = struct.unpack_from(">4HII", data, at)
        aux = data[at + 16 : at + size].hex()
        name = f"{what >> 8}.{what & 255}"
        lines.append(f"{name} len {size} user {uid} pid {pid} cpu {cpu} aux {aux}")
        at += size
    return "\n".join(lines)


def is_recording(pid: int) -> bool:
    with suppress(TcpkmonError):
        return bool(capturing.attach(pid).status()["records"] > 0)
    return False


def record_1988(said: Said) -> None:
    said.run_as_nobody("msmod -l", "msmod", "-l")
    words = [TCPKMON, "iscan", *IDS, "-o", "scan", "-q", "--force"]
    with subprocess.Popen(words, cwd=said.folder, stderr=subprocess.PIPE) as scan:
        try:
            wait_until(lambda: is_recording(scan.pid))
            pid = str(scan.pid)
            work(said.folder)
            said.run("msmod", "msmod", "--collector", pid, "-swtch", "+sleep")
            said.run("period", "sampler-period", "--collector", pid, "5ms")
            said.run("scan status", "status", "--json", "--collector", pid)
            time.sleep(0.5)
        finally:
            scan.send_signal(signal.SIGINT)
            scan.wait()
    said.run("translate", "translate", "--names", "scan")
    said.run("legend", "translate", "-l", "scan")
    old = LogMaker("event SCHEDOUT { int pid; int prio }", tcpkmon="0.0.7")
    old.add("SCHEDOUT", {"pid": 1, "prio": 2}).add("KLOGGER_FINISH")
    said.run("version", "translate", "--names", str(old.write(said.folder / "kernlog.dump.cpu0")))
    said.run("decode 1988", "decode", "--format", "json", "--merge",
             *map(str, sorted((said.folder / "scan").iterdir())))  # fmt: skip
    types = re.findall(r'"type":"(\w+)"', said.texts["decode 1988"])
    said.texts["scanned"] = f" {' '.join(sorted({*types}))} "
    said.run("flamegraph", "flamegraph", "scan")


def record_2007(said: Said) -> None:
    own = said.folder / "own"
    own.mkdir()
    (own / "own.conf").write_text(OWN_CONF)
    (own / "own.bpf.c").write_text(OWN_TEXT)
    prctl = "import ctypes; c = ctypes.CDLL(None).prctl; c(0x6b6c6f67, 1, 5); c(0x6b6c6f67, 2, 5)"
    options = ["--locations", "EVENT_START,EVENT_STOP,MINE,FORK,EXEC,EXIT,SCHEDIN"]
    with capturing.start(
        ["stopwatch", "sched", own], said.folder / "klog", options=options
    ) as capture:
        which = ("--collector", str(capture.pid))
        said.run("size", "buffer-size", *which)
        said.run("low", "lowwater", *which)
        said.run("size refused", "buffer-size", *which, "1")
        subprocess.run([sys.executable, "-c", prctl], check=True)
        said.run("mark", "mark", *which, "77")
        capture.disable()
        said.run("disabled", "status", "--json", *which)
        said.run("low 10", "lowwater", *which, "10")
        said.run("size 1", "buffer-size", *which, "1")
        capture.enable()
        said.run("low now", "lowwater", *which)
        said.run("size now", "buffer-size", *which)
        said.run("one off", "disable", *which, "EVENT_STOP")
        said.run("one disabled", "status", "--json", *which)
        said.run("enable", "enable", *which, "EVENT_STOP")
        assert capture.run_workload(["/bin/true"], mark=78) == 0
    logs = sorted((said.folder / "klog").iterdir())
    said.texts["files"] = " ".join(path.name for path in logs)
    said.run("perl", "decode", "--merge", *map(str, logs))
    said.run("decode 2007", "decode", "--format", "json", "--merge", *map(str, logs))
    said.run("verify 2007", "verify", "klog")
    said.run("check", "schema", "check", "own")
    said.run("counters", "schema", "list-counters")
    said.run("benchmark", "benchmark", "--iterations", "20", "KLOGGER_START", "EVENT_START")
    with open_log(said.folder / "klog") as log:
        times = [event.timestamp for event in log]
        own_pid = log.collector_pids[0]
        left = [e for e in log.without_collector() if e.get("tgid") == own_pid]
        mine = sum(event.get("tgid") == own_pid for event in log)
    said.texts["log"] = f"ascending {times == sorted(times)} own {mine > 0} left {len(left)}"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    made = Said(tmp_path_factory.mktemp("then"))
    record_1987(made)
    record_1988(made)
    record_2007(made)
    record_2001(made)
    (made.folder / "said.json").write_text(json.dumps(made.texts))
    yield made.texts


@pytest.mark.parametrize("system", CHECKS)
def test_each_row_has_a_check(system: str) -> None:
    experiment = re.compile(r"[UHM]\d|mtime ")
    wanted = {
        then for then, now, _ in rows()[system]
        if not now.startswith(NONE) and not experiment.match(then)
    }  # fmt: skip
    assert set(CHECKS[system]) == wanted


@pytest.mark.full
@pytest.mark.parametrize(
    ("system", "then"), [(system, then) for system, each in CHECKS.items() for then in each]
)
def test_a_command_shows_it(said: dict[str, str], system: str, then: str) -> None:
    name, *patterns = CHECKS[system][then]
    if said.get(name) == NOT_HERE:
        pytest.skip("this machine has no swap that a test may fill")
    for pattern in patterns:
        if pattern.startswith("@"):
            name = pattern[1:]
            continue
        assert re.search(pattern, said[name], re.MULTILINE), f"{pattern}\n{said[name][:3000]}"
