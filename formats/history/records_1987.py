# SPDX-License-Identifier: Apache-2.0
"""A log in the shape that the UBC event monitor wrote in 1987, big-endian as its SUN workstations.

    struct header_record { short month, day, year, hour, min, sec, userno; char username[32];
                           char version[16]; short cpuid, memory, nusers, mon_version; }
                           version: of the system; nusers: users whose events follow
    struct event_record  { short len, event_id, user_id, pid; unsigned long cpu_time, real_time;
                           short auxinfo[]; }          event_id = group * 256 + type
    buffer's end         one of group 0, type 2: auxinfo is lost_event, the events that are missing
                         from a buffer (a dump), pid its CPU
    trailer              one of group 0, type 1: real_time is that of the end

auxinfo of 1987: the page of groups 3 and 4, the device of group 5. Besides, groups 1 and 2 have the
number of the terminal and of the session here, and FORK the child's pid.

Threads are neither forked nor ended processes, and have no record. Who is not known is user 65535;
the collector's own processes are root's.
cpu_time is that of the thread; at EXIT that of the process. The kernel adds it up at ticks and
switches alone, so what a thread has used since its last switch is taken from SCHEDIN where the log
has it.
Times are in milliseconds: the thesis does not tell the unit. 32-bit users and processes, longer
times and more memory do not fit: they are cut to their low bits, and the caller is told how many.
"""

from __future__ import annotations

import datetime
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from tcpkmon.formats.analysis import Event, Log
from tcpkmon.formats.analysis.gather import dumps
from tcpkmon.formats.history.processes import NO_USER

_HEADER = struct.Struct(">7h32s16s4h")
_RECORD = struct.Struct(">4HII")
_START, _END = 0, 1
_TRAILER, _BUFFER = 1, 2
_GROUPS = {
    "TRANSACTION_START": (1, _START, ("tty",)), "TRANSACTION_END": (1, _END, ("tty",)),
    "LOGIN": (2, _START, ("session",)), "LOGOUT": (2, _END, ("session",)),
    "PAGEIN_START": (3, _START, ("page",)), "PAGEIN_END": (3, _END, ("page",)),
    "PAGEOUT_START": (4, _START, ("page",)), "PAGEOUT_END": (4, _END, ("page",)),
    "DISK_INSERT": (5, _START, ("device",)), "DISK_COMPLETE": (5, _END, ("device",)),
    "FORK": (6, _START, ("child_pid",)), "EXIT": (6, _END, ()),
}  # fmt: skip
"""By event: group, type and the fields of auxinfo, two shorts each. A disk request starts where it
is queued; FORK is the start of a process and EXIT its end."""
_USER_EVENT = "USER_EVENT"


def write_records_1987(log: Log, out: BinaryIO) -> Iterator[str]:
    """Writes the records of the six groups, and those of probe(); yields what it had to cut."""
    cut: Counter[str] = Counter()
    own = frozenset(log.collector_pids)
    users = {_user(event, own) for event in log if _has_record(event)} - {NO_USER}
    out.write(_header(log, len(users), cut))
    used = _CpuTimes()
    start_ns = last_ns = None
    ends = {reader.format.cpu: [lost for _, lost in dumps(reader)][::-1] for reader in log.readers}
    for event in log:
        start_ns = event.timestamp if start_ns is None else start_ns
        last_ns = event.timestamp
        since_ns = event.timestamp - start_ns
        cpu_ns = used.follow(event)
        if event.type == "DUMP_FINISH" and ends.get(event.cpu):
            count = max(ends[event.cpu].pop(), 0)
            cut["the lost events"] += count > 0xFFFF
            aux = struct.pack(">H", min(count, 0xFFFF))
            out.write(_own_record(_BUFFER, since_ns, event.cpu, aux))
        elif _has_record(event):
            out.write(_record(event, _user(event, own), cpu_ns, since_ns, cut))
    out.write(_own_record(_TRAILER, (last_ns or 0) - (start_ns or 0)))
    for what, count in sorted((+cut).items()):
        yield f"{what} did not fit into the record of 1987 in {count} records: low bits only"


class _CpuTimes:
    """The CPU time of each thread at its events, and that of the threads of a process that ended.

    Between two switches it grows with the time."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._runs: dict[int, tuple[int, int]] = {}
        """By CPU: the thread that it runs, and since when."""
        self._ended: Counter[int] = Counter()

    def follow(self, event: Event) -> int:
        """The CPU time that the event's thread has used, at EXIT its process, in ns. Give it each
        event of the log in the order of time."""
        tid = _number(event, "tid") or _number(event, "pid")
        told = _number(event, "cpu_time") or _number(event, "runtime")
        match event.type:
            case "SCHEDIN":
                self._used[tid] = told
                self._runs[event.cpu] = (tid, event.timestamp)
                return told
            case "SCHEDOUT":
                self._used[tid] = told
                self._runs.pop(event.cpu, None)
                return told
            case "FORK":
                self._used.pop(_number(event, "child_pid"), None)
        runs, since_ns = self._runs.get(event.cpu, (0, 0))
        used = self._used.get(tid, 0)
        if tid and runs == tid:
            used += event.timestamp - since_ns
        used = max(told, used)
        if event.type != "EXIT":
            return used
        process = _number(event, "tgid")
        if not event.get("group_dead", 1):
            self._ended[process] += used
            return used
        return used + self._ended.pop(process, 0)


def _has_record(event: Event) -> bool:
    """Whether it has a record. Threads have none."""
    if event.type == "FORK":
        return bool(event.get("kind", "PROCESS") == "PROCESS")
    if event.type == "EXIT":
        return bool(event.get("group_dead", 1))
    return event.type in _GROUPS or event.type == _USER_EVENT


def _own_record(kind: int, since_ns: int, pid: int = 0, aux: bytes = b"") -> bytes:
    """A record of the monitor's own, in group 0."""
    real = since_ns // 1_000_000 & 0xFFFFFFFF
    return _RECORD.pack(_RECORD.size + len(aux), kind, 0, pid & 0xFFFF, 0, real) + aux


def _header(log: Log, users: int, cut: Counter[str]) -> bytes:
    header = log.format.header
    settings = header.get("settings")
    machine = settings.get("machine") if isinstance(settings, dict) else None
    machine = machine if isinstance(machine, dict) else {}
    realtime = log.format.clock[1] if log.format.clock is not None else 0
    when = datetime.datetime.fromtimestamp(realtime / 1e9, datetime.timezone.utc)
    memory = machine.get("memory_bytes")
    return _HEADER.pack(
        when.month, when.day, when.year, when.hour, when.minute, when.second,
        _short(machine.get("uid"), "the user", cut), _text(machine.get("user"), 32),
        _text(f"Linux {header.get('kernel', '')}", 16), _short(header.get("cpus"), "the CPUs", cut),
        _short(memory >> 20 if isinstance(memory, int) else 0, "the memory", cut),
        _short(users, "the users", cut), 1,
    )  # fmt: skip


def _record(event: Event, user: int, cpu_ns: int, since_ns: int, cut: Counter[str]) -> bytes:
    if event.type == _USER_EVENT:
        group, kind = _number(event, "group") & 0xFF, _number(event, "type") & 0xFF
        aux = str(event.get("aux", "")).encode()
        aux += b"\0" * (len(aux) % 2)
    else:
        group, kind, names = _GROUPS[event.type]
        aux = b"".join(struct.pack(">I", _number(event, name) & 0xFFFFFFFF) for name in names)
    values = {
        "the user": (user, 0xFFFF),
        "the process": (_number(event, "tgid"), 0xFFFF),
        "the CPU time": (cpu_ns // 1_000_000, 0xFFFFFFFF),
        "the time": (since_ns // 1_000_000, 0xFFFFFFFF),
    }
    for what, (value, most) in values.items():
        if value > most and value != NO_USER:
            cut[what] += 1
    uid, pid, cpu, real = (value & most for value, most in values.values())
    return _RECORD.pack(_RECORD.size + len(aux), group << 8 | kind, uid, pid, cpu, real) + aux


def _user(event: Event, own: frozenset[int]) -> int:
    """own: the collector's processes."""
    if "uid" not in event.fields:
        return NO_USER
    return 0 if _number(event, "tgid") in own else _number(event, "uid")


def _number(event: Event, name: str) -> int:
    value: Any = event.get(name, 0)
    return value if isinstance(value, int) else 0


def _short(value: Any, what: str, cut: Counter[str]) -> int:
    number = value if isinstance(value, int) else 0
    if not 0 <= number < 1 << 15:
        cut[what] += 1
    return number & 0x7FFF


def _text(value: Any, size: int) -> bytes:
    return (value if isinstance(value, str) else "").encode()[:size].ljust(size, b"\0")
