# SPDX-License-Identifier: Apache-2.0
"""What the process that goes on after this one was killed must know, in memory that both map.

A supervisor holds its descriptor too. Each value is stored with its number last, so a process that
is killed between leaves the one before:

    retired      by CPU: records that were read from rings that are not there any more
    ring_lost    by CPU: records that found those rings full
    notes        of the last two checkpoints of the file: see note()
    files        where the files end, of logs: collector/ring/notes.py
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcpkmon.collector.ring.notes import Notes
from tcpkmon.collector.ring.notes import layout as notes_layout
from tcpkmon.formats.base.closing import Closing


@dataclass(frozen=True)
class Note:
    """The stream at a checkpoint. released: by CPU, the last serial that was released or lost, and
    how many up to it were lost; offset_ns: time of day less monotonic time."""

    released: Mapping[int, tuple[int, int]]
    offset_ns: int


class Journal(Closing):
    """The journal of a capture with so many CPUs. fd: of one that there is; it is closed here."""

    def __init__(self, cpus: int, fd: int | None = None) -> None:
        note = np.dtype(
            [("number", "=i8"), ("offset_ns", "=i8"), ("serials", "=i8", cpus),
             ("lost", "=i8", cpus)]
        )  # fmt: skip
        layout = np.dtype(
            [("retired", "=i8", cpus), ("ring_lost", "=i8", cpus),
             ("notes", note, 2), ("files", notes_layout(cpus + 1))]
        )  # fmt: skip
        if fd is None:
            fd = os.memfd_create("tcpkmon-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, layout.itemsize)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.fd = fd
        if os.fstat(fd).st_size != layout.itemsize:
            self.close()
            raise ValueError("the journal is of another machine")
        memory: Any = np.frombuffer(mmap.mmap(fd, layout.itemsize), layout)
        self._memory = memory[0]
        self.files = Notes(self._memory["files"])
        self._cpus = cpus

    def retire(self, cpu: int, read: int, lost: int) -> None:
        """A ring is gone, with so many records that were read, and that found it full."""
        self._memory["retired"][cpu] += read
        self._memory["ring_lost"][cpu] += lost

    def retired(self, cpu: int) -> int:
        """How many records were read from this CPU's former rings."""
        return int(self._memory["retired"][cpu])

    def ring_lost(self) -> dict[int, int]:
        """By CPU, how many records found its former rings full."""
        counts = self._memory["ring_lost"]
        return {int(cpu): int(counts[cpu]) for cpu in np.flatnonzero(counts)}

    def note(self, number: int, note: Note) -> None:
        """Checkpoint `number` is about to be written."""
        slot = self._memory["notes"][number % 2]
        slot["number"] = 0
        slot["offset_ns"] = note.offset_ns
        slot["serials"] = slot["lost"] = 0
        for cpu, (serial, lost) in note.released.items():
            slot["serials"][cpu], slot["lost"][cpu] = serial, lost
        slot["number"] = number + 1

    def find(self, number: int) -> Note | None:
        """The note of a checkpoint, if it is one of the last two."""
        slot = self._memory["notes"][number % 2]
        if slot["number"] != number + 1:
            return None
        pairs = zip(slot["serials"].tolist(), slot["lost"].tolist(), strict=True)
        released = {cpu: pair for cpu, pair in enumerate(pairs) if any(pair)}
        return Note(released, int(slot["offset_ns"]))

    def close(self) -> None:
        """Close the descriptor; the memory is still there for the writing thread."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
