# SPDX-License-Identifier: Apache-2.0
"""What a writer counts: what is in the file, and what was dropped on the way to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tcpkmon.formats.base.causes import COLLECTOR_CAUSES
from tcpkmon.formats.base.control import LossCause

RETRY_NS = 100_000_000
"""After a failed write, records are dropped for this time. Then comes the next try."""
END_TRIES = 3
"""How often the last entries of a file are tried, without a pause."""

Place = tuple[int, int]
"""(cpu, location)"""


@dataclass
class Written:
    """What is in the file, and what was dropped on the way to it. The writer updates it.

    Another thread may read it after close(), or for a display. Counters are of records (no
    control entries) by (cpu, location).
    """

    entries: int = 0
    """Entries in the file, with control entries."""
    last_seq: int = 0
    checkpoints: int = 0
    in_file: Counter[Place] = field(default_factory=Counter)
    queue_full: Counter[Place] = field(default_factory=Counter)
    disk_full: Counter[Place] = field(default_factory=Counter)
    write_error: Counter[Place] = field(default_factory=Counter)
    refused: int = 0
    """Control entries that could not be written; they have no sequence numbers."""
    error: OSError | None = None
    """The error of the last write; None if it had none."""
    sync_error: OSError | None = None
    skipped: int = 0
    """Sequence numbers that LOSS entries without a CPU count."""
    states: int = 0
    """Entries EXISTING that repeat the last records of earlier files: see Writer.begin()."""
    segment: int = 1
    """The number of the file that is written now."""
    rotation_error: Exception | None = None
    """Why the last rotation, or the last sealing of a file, failed; None if it did not."""

    @property
    def lost(self) -> int:
        """Sequence numbers up to last_seq that are not in the file."""
        return self.last_seq - self.entries

    @property
    def drops(self) -> dict[str, Counter[Place]]:
        """Dropped records by cause, which is a field of formats.base.control.Collector."""
        return {
            "queue_full": self.queue_full,
            "disk_full": self.disk_full,
            "write_error": self.write_error,
        }

    def dropped(self, cause: LossCause) -> Counter[Place]:
        """The counter of one cause."""
        return self.drops[cause.name.lower()]

    def losses(self) -> dict[str, int]:
        """How many records were dropped, by the cause in words."""
        return {COLLECTOR_CAUSES[name]: n.total() for name, n in self.drops.items()}
