# SPDX-License-Identifier: Apache-2.0
"""The base events of a Klogger log, which the collector makes: the system at the start, the ledger.

Their fields are declared in bpf/schemata/base.conf.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.writer.ledger import Books
from collector.writer.written import Written
from formats.base.control import Clock, EndReason
from formats.base.text import address_of

EVERY_CPU = -1
FIRST_CPU = -2
DISABLED = 5
"""KLOGGER_FINISH.reason of a pause; the others are EndReason's."""


@dataclass(frozen=True)
class Note:
    """A base event to be written: for which CPU's file, and when it happened (0: now)."""

    name: str
    values: Mapping[str, int | str | bytes]
    cpu: int = EVERY_CPU
    mono_ns: int = 0


def start_note(buffer_bytes: int, low_water_percent: int) -> Note:
    """Logging begins."""
    values: dict[str, int | str | bytes] = {
        "kernel": os.uname().release,
        "buffer_bytes": buffer_bytes,
        "low_water_percent": low_water_percent,
    }
    return Note("KLOGGER_START", values)


def finish_note(reason: EndReason | int) -> Note:
    """Logging ends, or pauses."""
    return Note("KLOGGER_FINISH", {"reason": int(reason)})


def clock_note(clock: Clock) -> Note:
    """A pair of clock readings."""
    values = {
        "mono_ns": clock.mono_ns,
        "realtime_ns": clock.realtime_ns,
        "uncertainty_ns": clock.uncertainty_ns,
        "step_ns": clock.step_ns,
    }
    return Note("CLOCK", values, mono_ns=clock.mono_ns)


def mark_note(number: int, pid: int) -> Note:
    """A mark, by a process."""
    return Note("MARK", {"number": number, "pid": pid}, FIRST_CPU)


def event_notes(states: Mapping[str, tuple[int, int]]) -> list[Note]:
    """Each event that may be logged: name -> (number, 1 on, 0 off, -1 not on this kernel)."""
    return [
        Note("LOGGING_EVENT", {"number": number, "enabled": enabled, "name": name})
        for name, (number, enabled) in states.items()
    ]


def process_notes() -> Iterator[Note]:
    """Each process that is there now, as /proc tells it."""
    for entry in sorted(Path("/proc").iterdir(), key=lambda path: path.name.zfill(12)):
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(errors="surrogateescape")
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        # The name stands in brackets and may hold any of them itself.
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        values: dict[str, int | str | bytes] = {
            "pid": int(entry.name),
            "nice": int(fields[16]),
            "priority": int(fields[37]),
            "policy": int(fields[38]),
            "comm": name,
            "cmdline": line.rstrip(b"\0").replace(b"\0", b" ")[:128],
        }
        yield Note("PROCESS_EXISTS", values, FIRST_CPU)


def socket_note(
    netns: int, inode: int, family: int, state: int, local: tuple[bytes, int],
    remote: tuple[bytes, int],
) -> Note:  # fmt: skip
    """A TCP socket that is there now. Its ends are addresses (16 bytes) and ports."""
    values: dict[str, int | str | bytes] = {
        "netns": netns,
        "inode": inode,
        "family": family,
        "state": state,
        "sport": local[1],
        "dport": remote[1],
        "saddr": _address(local[0], family),
        "daddr": _address(remote[0], family),
    }
    return Note("SOCKET_EXISTS", values, FIRST_CPU)


def _address(packed: bytes, family: int) -> str:
    return address_of(packed) if family == 2 else str(ipaddress.IPv6Address(packed))


def ledger_notes(books: Books, written: Written, final: bool) -> list[Note]:
    """The books as they stand, for the file of each CPU."""
    notes = []
    for cpu, point in books.places(written):
        values: dict[str, Any] = {"number": point, "final": int(final)}
        values.update(books.kernel(cpu, point))
        values.update(books.collector(cpu, point, written))
        notes.append(Note("LEDGER", values, cpu))
    for entry in books.cpus():
        values = {
            "serials": entry.serials,
            "read": entry.read,
            "damaged": entry.damaged,
            "late": entry.late,
            "ring_lost": entry.ring_lost,
            "online": entry.online,
            "final": int(final),
        }
        notes.append(Note("CPU_LEDGER", values, entry.cpu))
    for name, program in books.programs.items():
        values = {
            "program": name,
            "missed": program.missed,
            "kprobe_missed": program.kprobe_missed,
            "final": int(final),
        }
        notes.append(Note("PROGRAM_LEDGER", values, FIRST_CPU))
    return notes
