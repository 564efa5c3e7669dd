# SPDX-License-Identifier: Apache-2.0
"""The base events of a Klogger log, which the collector makes: the start, the ledger, the end.

Their fields are declared in bpf/schemata/base.conf.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collector.writer.ledger import Books
from collector.writer.written import Written
from formats.base.control import Change, Clock, Control, EndReason
from formats.base.text import address_of

EVERY_CPU = -1
FIRST_CPU = -2
DISABLED = 5
"""KLOGGER_FINISH.reason of a pause. Other reasons are in EndReason."""


@dataclass(frozen=True)
class Note:
    """A base event to be written into a CPU's file. mono_ns: when it happened, 0 for now."""

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
    return Note("CLOCK", asdict(clock), mono_ns=clock.mono_ns)


def change_note(change: Change) -> Note:
    """A change of what is recorded, in the file of each CPU."""
    values = asdict(change)
    values["number"] = values.pop("which")
    return Note("CHANGE", values, mono_ns=change.after_ns)


def mark_note(number: int, pid: int) -> Note:
    """A mark that a process set."""
    return Note("MARK", {"number": number, "pid": pid}, FIRST_CPU)


def reconciled_note(entry: Control) -> Note:
    """A difference between the kernel and the records, or their summary."""
    return Note("RECONCILED", asdict(entry), FIRST_CPU)


def event_notes(states: Mapping[str, tuple[int, int]]) -> list[Note]:
    """Each event of the capture. states: (number, 1 on, 0 off, -1 not on this kernel) by name."""
    return [
        Note("LOGGING_EVENT", {"number": number, "enabled": enabled, "name": name})
        for name, (number, enabled) in states.items()
    ]


def process_notes() -> Iterator[Note]:
    """Each process that exists now, from /proc."""
    for entry in sorted(Path("/proc").iterdir(), key=lambda path: path.name.zfill(12)):
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(errors="surrogateescape")
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        # The name is in brackets, and may contain brackets itself.
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
    """A TCP socket that exists now. local, remote: address (16 bytes) and port."""
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


def ledger_notes(
    books: Books, written: Written, final: bool, cpus: Container[int] = ()
) -> list[Note]:
    """The ledger at this moment, for the file of each CPU. cpus: those that have a file."""
    notes = []
    for cpu, point in books.places(written):
        values: dict[str, Any] = {"number": point, "final": int(final), "shed": 0}
        values.update(books.kernel(cpu, point))
        values.update(books.collector(cpu, point, written))
        notes.append(Note("LEDGER", values, cpu))
    for entry in books.cpus(cpus):
        values = {**asdict(entry), "final": int(final)}
        del values["cpu"]
        notes.append(Note("CPU_LEDGER", values, entry.cpu))
    for name, program in books.programs.items():
        missed = {"missed": program.missed, "kprobe_missed": program.kprobe_missed}
        values = {"program": name, **missed, "final": int(final)}
        notes.append(Note("PROGRAM_LEDGER", values, FIRST_CPU))
    return notes
