# SPDX-License-Identifier: Apache-2.0
"""docs/then-and-now.md, row by row: what a command says of a session that has everything.

A session is recorded three times: by `monitor`, by `iscan`, and by Klogger's commands. CHECKS has for
each row what is looked at, and what its text must match. Experiments are run by their own tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.collector.control.client import find_collectors
from tcpkmon.formats.analysis import open_log
from tests.live.file_workload import PAGE, make_cold
from tests.live.tty_workload import answerer, terminal
from tests.unit.test_then_and_now import NONE, rows

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
IDS = """sleep swtch setrq remrq trap syscall exec exit disc_io_id timeshare_insert bread breada bwrite
bdwrite syscallstart syscallexit sampler SAMPLE_FRAME SOCKET_CREATE UDP_SEND IP_SENDPACKET""".split()
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

    def run(self, name: str, *words: str, **options: object) -> None:
        done = subprocess.run(
            [TCPKMON, *words], cwd=self.folder, capture_output=True, text=True, **options  # type: ignore[call-overload]
        )
        self.texts[name] = f"exit {done.returncode}\n{done.stdout}{done.stderr}"


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
    with open(folder / "file", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        import mmap

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


def nobody(said: Said, name: str, *words: str) -> None:
    done = subprocess.run(
        [TCPKMON, *words], check=False, capture_output=True, text=True, cwd="/", user=65534,
        group=65534, extra_groups=[],
    )  # fmt: skip
    said.texts[name] = f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def record_1987(said: Said) -> None:
    said.run("monitor", "monitor")
    said.run("help", "monitor", "-help")
    nobody(said, "nobody on", "monitor", "-on")
    said.run("on", "monitor", "-on", "-b", "2", "12000000", "-events", "1", "2", "3", "4", "5", "6")
    try:
        said.run("on again", "monitor", "-on")
        work(said.folder)
        nobody(said, "nobody status", "monitor", "-s")
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
    said.run("condense --discard-lossy", "condense", "monitor.out", "--discard-lossy", "0")
    said.run("records", "translate", "--records-1987", "old", "monitor.out")
    said.texts["old"] = old_records((said.folder / "old").read_bytes())


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
        lines.append(f"{what >> 8}.{what & 255} len {size} user {uid} pid {pid} cpu {cpu} aux {aux}")
        at += size
    return "\n".join(lines)


def record_1988(said: Said) -> None:
    nobody(said, "msmod -l", "msmod", "-l")
    words = [TCPKMON, "iscan", *IDS, "-o", "scan", "-q", "--force"]
    before = {one.pid for one in find_collectors()}
    with subprocess.Popen(words, cwd=said.folder, stderr=subprocess.PIPE) as scan:
        try:
            for _ in range(600):
                if scan.pid in {one.pid for one in find_collectors()} - before:
                    break
                time.sleep(0.1)
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
    said.run("decode 1988", "decode", "--format", "json", "--merge",
             *map(str, sorted((said.folder / "scan").iterdir())))  # fmt: skip
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
    (made.folder / "said.json").write_text(json.dumps(made.texts))
    yield made.texts


def event(name: str, *fields: str) -> str:
    """A record in JSON with these fields, as `name` or `name":VALUE`, in this order."""
    return rf'"type":"{name}".*' + ".*".join(f'"{field}' for field in fields)


A, B, C = "decode 1987", "decode 1988", "decode 2007"
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "The UBC event monitor": {
        "`monitor -on`": ("on", r"^exit 0$", r"^MONITOR version "),
        "`-off`: MONITOR is turned OFF; Event data collected in file": (
            "off", r"MONITOR is turned OFF\nEvent data collected in file monitor.out$"),
        "`-status`, `-s`": ("nobody status", r"^Size of each CPU's ring \(bytes\) : 16777216$"),
        "`-help`, `-h`; without an option the usage": ("monitor", r"^Usage: monitor -on \| -off"),
        "`-buffer nbufs bufsize`, `-b`": ("on", r"buffer \(bytes\) : 12000000$", r"16777216 bytes"),
        "`-events 1 3 5`, `-e`": ("on", r"^1\. Transaction\n2\. Login/Logout\n3\. Pagein\n"),
        "`-file fname`, `-f`, default monitor.out": ("on", r"^Output file name : monitor.out$"),
        "an existing file: the user is asked": ("on exists", r"^monitor.out exists. Overwrite it"),
        "a second -on: MONITOR is already turned on": ("on again", r"^MONITOR is already turned on"),
        "super-user only": ("nobody on", r"needs root"),
        "`probe(event_group, event_type, auxinfo, auxlen)` in the kernel": (
            C, event("MINE", 'way":"RUDE"')),
        "probe() in user programs": ("scan status", r'"USER_EVENT"|"pid"'),
        "is the monitor on, is the event selected": ("one disabled", r'"EVENT_STOP"'),
        "no empty buffer: count; never wait": ("verify 1987", r"total +\d+ .* \d+$"),
        "`struct event_record`: len, event_id, user_id, pid, cpu_time, real_time, auxinfo": (
            "old", r"^6\.1 len 16 user 65534 pid \d+ cpu \d+ aux $",
            r"^5\.0 len 20 user \d+ pid \d+ cpu \d+ aux [0-9a-f]{8}$"),
        "its shape of 1987": ("records", r"^exit [03]$", r"did not fit|^exit 0"),
        "header record": ("old", r"^header year \d+ user \w+ cpus \d+ memory \d+ nusers [2-9]"),
        "trailer record": ("old", r"^0\.1 len 16 user 0 pid 0 cpu 0 aux $"),
        "`lost_event` of each buffer": ("old", r"^0\.2 len 18 user 0 pid \d+ cpu 0 aux [0-9a-f]{4}$"),
        "discard a buffer that lost much": ("condense --discard-lossy", r"Total blocks/buffers read"),
        "1 Transaction START: a line, in raw mode a character": (
            A, event("TRANSACTION_START", 'raw":1')),
        "1 Transaction END: the first output": (A, event("TRANSACTION_END", 'raw":1')),
        "2 Login": (A, event("LOGIN", r"session", 'loginuid":12345')),
        "2 Logout": (A, event("LOGOUT", r"session", 'loginuid":12345')),
        "3 Pagein START, END with the page number": (A, event("PAGEIN_END", r'page":\d', "with_io")),
        "4 Pageout": (A, r'"number":\d+,"enabled":1,"name":"PAGEOUT_START"'),
        "5 Disk I/O with the device": (A, event("DISK_COMPLETE", r'device":\d')),
        "6 Fork, Exit": (A, event("FORK", 'kind":"PROCESS"', 'uid":0'), event("EXIT", 'uid":65534')),
        "Monitor started on, version, user name and number, CPU, memory": (
            "condense", r"^Monitor started on .*\nMonitor Version: .*\nMonitor User Name: \w+\n"
            r"Monitor User Number: \d+\nCPU: .*\nMemory: \d+ Megabytes"),
        "Elapsed time, number of events, blocks/buffers read": (
            "condense", r"^Elapsed time = .*\nNumber of events processed = \d+\n"
            r"Total blocks/buffers read = [1-9]"),
        "Light, Medium, Heavy, Overall": (
            "condense", r"^Classes of processes", r"^System Parameters +Light +Medium +Heavy +Over"),
        "response time, think time": ("condense", r"^Response time \(secs\) .*0\.1\d\d$"),
        "true CPU": ("condense", r"^True CPU \(ms\) .*\d\.\d{3}$"),
        "true I/O": ("condense", r"^True I/O \(ms\) .*\d\.\d{3}$"),
        "physical, virtual page faults": (
            "condense", r"^Physical Page Fault \(number\) .* \d+$", r"^Virtual Page .* [1-9]\d*$"),
        "login, logout in seconds: of sessions, or of child processes": (
            "condense", r"^Login \(secs\) .*\d\.\d{3}$", r"^Life of a process \(secs\) .*\d\.\d{3}$",
            r"^Between processes \(secs\) .*\d\.\d{3}$"),
        "CPU utilisation: true, virtual, total": ("condense", r"^CPU Utili\S+ \(percent\)( +\d+\.\d+){3}$"),
        "disk utilisation without queueing": (
            "condense", r"^Disk Utili\S+ \(percent\)( +\d+\.\d+){3}$", r"^device \d+:\d+ "),
        "page fault rate": ("condense", r"^Page Fault Rate .*( +\d+\.\d+){3}$"),
        "a report per user": ("condense", r"^65534 +[1-9]", r"^Cgroup "),
        "means over hours hide peaks": ("condense", r"^From s .*Peak of", r" transactions,|, cpu"),
    },
    "The measurement system of HP-UX": {
        "`msmod -l`: what this kernel can measure, by anyone": (
            "msmod -l", r"^exit 0$", r"^BKL_LOCK_FINISH: not on this kernel: "),
        "lines that describe themselves": (
            "msmod -l", r"^syscallstart \(SYSCALL_START\): seconds, microseconds, "),
        "msmod switches by name": ("scan status", r'"SCHEDOUT"'),
        "iscan collects": (B, *(rf'"enabled":1,"name":"{name}"' for name in (
            "SLEEP", "PAGE_DIRTY", "DISK_QUEUE", "SAMPLE_FRAME", "RESHUFFLE"))),
        "translate prints: id, decimal words, the time as two words": (
            "translate", r"^setrq 1\d{9} \d+ \d+ "),
        "versions: a mismatch warns and goes on": ("translate", r"^exit [03]$"),
        "a pid and a priority share a word: 66070": ("legend", r"swtch: .*pid<<16\|priority<<8"),
        "sleep: the address slept on": (
            B, event("SLEEP", r'place":[1-9]', r'symbol":"\w', r'class":"(TIMER|POLL|WAIT)"')),
        "swtch": ("translate", r"^swtch 1\d{9} "),
        "setrq, remrq": ("translate", r"^setrq 1\d{9} ", r"^remrq 1\d{9} "),
        "trap: where it touches the run queue": (B, event("SCHEDOUT", r'reason":"PREEMPTED')),
        "syscall: the same; shuffled, not run": ("translate", r"^shuffle 1\d{9} "),
        "exec, three records": (
            "translate", r"^exec (\d+ \d+) (\d+) \d+ \d+ \d+ \d+ \d+\nexec \1 \2( \d+){4}\n"
            r"exec \1 \2( \d+){24}$"),
        "exit": ("translate", r"^exit 1\d{9} "),
        "disk: queued, off the queue, complete": (
            "translate", r"^disc_queue 1\d{9} ", r"^disc_start 1\d{9} ", r"^disc_done 1\d{9} "),
        "timeshare_insert: the queue in order, realtime negative, at most 1000": (
            "translate", r"^timeshare_insert 1\d{9} "),
        "bread: hit or not": (B, event("FILE_READ", 'hit":0'), event("FILE_READ", 'hit":1')),
        "breada": (B, event("FILE_READAHEAD", 'demand":1')),
        "bwrite, bdwrite": (B, event("FILE_WRITE", r'synchronous":0'), event("PAGE_DIRTY", "bytes")),
        "syscallstart": (B, event("SYSCALL_START", *(f"arg{number}" for number in range(6)))),
        "the return pointer of a call: where the program goes on": (
            B, event("SYSCALL_START", r'ip":[1-9]\d{10}')),
        "syscallexit": (B, event("SYSCALL_EXIT", "result", "error")),
        "sampler: every 4th tick, adjustable; pid -1, state 0 to 3": (
            B, event("SAMPLE", r'pid":-1.*"state":"\w+"|state":"\w+"'), r'"period":5000000'),
        "(none: stacks)": ("flamegraph", r"^\S.*;.* \d+$"),
        "kernel preemption, the fifth group": ("msmod -l", r"^PREEMPT_OFF: (not on|seconds)"),
        "networking, ids that appear after an ioctl": (B, event("UDP_SEND", 'bytes":5')),
    },
    "Klogger": {
        "enabled: 1 or 0": ("disabled", r'"enabled": false'),
        "a file for each event: 1 or 0": ("one disabled", r'"EVENT_STOP"[^}]*"enabled": false'),
        "/tmp/kernlog.dump.cpuN": ("files", r"^kernlog\.dump\.cpu0"),
        "buffer_size, in MB, 4MB/CPU": ("size", r"^4.*MB"),
        "lowwater, 10%": ("low now", r"^10%$"),
        "no setting changes while it is enabled": ("size refused", r"cannot change while logging"),
        "benchmarks/EVENT, iterations": (
            "benchmark", r"^base +KLOGGER_START +\d", r"^stopwatch +EVENT_START +\d"),
        "mark": (C, event("MARK", 'number":77')),
        "klogger_decoder: an array of Perl hashes": (
            "perl", r'^\{\n    header => \{\n            "type" +=> "EVENT_START",\n'),
        "klogger-autogen.pl --list-counters": ("counters", r"context_switches"),
        "the Perl module's control functions": (C, event("MARK", 'number":78')),
        "the Perl module's log analysis functions, Algorithm 1": ("log", r"^ascending"),
        ".klogger.conf.NAME": ("check", r"^exit 0$"),
        "the schema's kernel patch": (C, event("MINE", "way")),
        "event, its types, enum": (C, event("MINE", 'way":"RUDE"', r'comm":"\w')),
        "loglevel, include, omit, using": (C, r'"enabled":1,"name":"MINE"', r"\A(?!.*:\"NOT\",)"),
        "`klogger(EVENT, ...)`": (C, event("MINE", "way")),
        "CONFIG_KLOGGER": (C, event("MINE", "way")),
        "arch ARCH_NAME, counter1 ... counterN": (C, event("MINE", 'switches":1')),
        "klogger_get_counter(), klogger_get_NAME(), their _ll, KLOGGER_ARCH_COMPILED": (
            C, event("MINE", 'switches":1', 'arch":1')),
        "KLOGGER_START: kernel version, buffer size": (
            C, event("KLOGGER_START", r'kernel":"\d+\.\d', r'buffer_bytes":4194304')),
        "KLOGGER_FINISH": (C, event("KLOGGER_FINISH", 'reason":"DISABLED"')),
        "PROCESS_EXISTS: pid, priority, policy, command line": (
            C, event("PROCESS_EXISTS", r'pid":1,', 'priority":', 'policy":', r'cmdline":"\S', 'uid":0')),
        "LOGGING_EVENT for each event": (C, event("LOGGING_EVENT", 'enabled":1')),
        "DUMP_BEGIN with its index": (
            C, event("DUMP_BEGIN", 'index":0'), event("DUMP_BEGIN", r'index":[1-9]', r'wrote_from":[1-9]')),
        "DUMP_FINISH with its bytes": (C, event("DUMP_FINISH", r'bytes":[1-9]')),
        "telling Klogger's own traffic from the rest": ("log", r"own True left 0$"),
        "MARK: number, pid": (C, event("MARK", 'number":77', r'pid":[1-9]')),
        "serial numbers with gaps where events were lost": ("verify 2007", r"adds up"),
        "the cycle counter as time, whose synchronisation is untested": ("log", "ascending True"),
        "stopwatch: EVENT_START, EVENT_STOP": (
            C, event("EVENT_START", 'id":5'), event("EVENT_STOP", 'id":5')),
        "scheduler: TRY_TO_WAKEUP, REMOVE_FROM_RUNQ, ADD_TO_RUNQ, SCHEDOUT, SCHEDIN": (
            B, *(event(name, "pid") for name in ("REMOVE_FROM_RUNQ", "ADD_TO_RUNQ", "SCHEDOUT"))),
        "scheduler: FORK, EXEC, EXIT": (C, *(event(name, "pid") for name in ("FORK", "EXEC", "EXIT"))),
        "locking: a spinlock, a read/write lock was initialised, released": (
            "msmod -l", r"^SPINLOCK_FINISH: ", r"^RWLOCK_INIT: ", r"^WRITELOCK_FINISH: "),
        "network: socket, connection, protocol and IP level, for IPv4": (
            B, event("SOCKET_CREATE", "socket"), event("UDP_SEND", 'bytes":5'),
            event("IP_SENDPACKET", "size")),
    },
}  # fmt: skip


@pytest.mark.parametrize("system", CHECKS)
def test_each_row_has_a_check(system: str) -> None:
    experiment = re.compile(r"[UHM]\d|mtime ")
    wanted = {
        then for then, now, _ in rows()[system]
        if not now.startswith(NONE) and not experiment.match(then)
    }  # fmt: skip
    assert set(CHECKS[system]) == wanted


@pytest.mark.parametrize(
    ("system", "then"), [(system, then) for system, each in CHECKS.items() for then in each]
)
def test_a_command_shows_it(said: dict[str, str], system: str, then: str) -> None:
    name, *patterns = CHECKS[system][then]
    for pattern in patterns:
        assert re.search(pattern, said[name], re.MULTILINE), f"{pattern}\n{said[name][:3000]}"
