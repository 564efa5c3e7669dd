# SPDX-License-Identifier: Apache-2.0
"""The base events of a Klogger log, which the collector makes: the start, the ledger, the end.

Their fields are declared in bpf/schemata/base.conf.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.note import FIRST_CPU, Note
from tcpkmon.collector.writer.tape import Account, Finish, Item, Logging, Marks, Paused, Switched
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import Change, Clock, Control, Trigger
from tcpkmon.formats.base.text import address_of

PAUSED = 5
"""KLOGGER_FINISH.reason. Other reasons are in EndReason."""


def notes_of(items: Iterable[Item], written: Written, cpus: Container[int] = ()) -> list[Note]:
    """The base events of these items. cpus: those that have a file."""
    ordered = sorted(items, key=lambda item: isinstance(item, Clock | Finish))  # these end a file
    return [note for item in ordered for note in _notes(item, written, cpus)]


def _notes(item: Item, written: Written, cpus: Container[int]) -> Sequence[Note]:
    match item:
        case Note():
            return [item]
        case Account():
            unseen = item.books.unseen
            own = _notes(unseen, written, cpus) if unseen is not None else ()
            return [*own, *ledger_notes(item.books, written, item.final, cpus)]
        case Clock():
            return [Note("CLOCK", asdict(item), mono_ns=item.mono_ns)]
        case Change():
            values = asdict(item)
            values["number"] = values.pop("which")
            return [Note("CHANGE", values, mono_ns=item.after_ns)]
        case Marks():
            told = [{"number": mark.number, "pid": item.pid} for mark in item.marks]
            return [Note("MARK", each, FIRST_CPU) for each in told]
        case Trigger():
            return [Note(item.event, asdict(item), FIRST_CPU, item.told_ns)]
        case Control() if item.event:
            return [Note(item.event, asdict(item), FIRST_CPU)]
        case Finish():
            return [Note("KLOGGER_FINISH", {"reason": int(item.reason)})]
        case Paused():
            return [Note("KLOGGER_FINISH", {"reason": PAUSED})]
        case Switched():
            return _events(item.states)
        case Logging():
            start: dict[str, int | str | bytes] = {
                "kernel": os.uname().release,
                "buffer_bytes": item.buffer_bytes,
                "low_water_percent": item.low_water_percent,
            }
            clock = Note("CLOCK", asdict(item.clock), mono_ns=item.clock.mono_ns)
            return [Note("KLOGGER_START", start), clock, *_events(item.states)]
    return ()


def _events(states: Mapping[str, tuple[int, int]]) -> list[Note]:
    """Each event. states: (number, 1 on, 0 off, -1 not on this kernel) by name."""
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
            status = (entry / "status").read_text(errors="surrogateescape")
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
            "uid": int(status.split("\nUid:", 1)[1].split(maxsplit=1)[0]),
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
