# SPDX-License-Identifier: Apache-2.0
"""What a writer counts: what is in the file, and what was dropped on the way to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from formats.base.causes import COLLECTOR_CAUSES
from formats.base.control import LossCause

RETRY_NS = 100_000_000
"""After a failed write, records are dropped for so long before the next try."""
END_TRIES = 3
"""The last entries of a file are tried so often, at once."""

Place = tuple[int, int]
"""(cpu, location)"""


@dataclass
class Written:
    """What stands in the file, and what was dropped on the way to it; the writer keeps it.

    Read it from another thread only after close(), or for a display. Counters are of records (no
    control entries) by (cpu, location); in_file is up to date in control entries and after close().
    """

    entries: int = 0
    """Entries in the file, control entries too."""
    last_seq: int = 0
    checkpoints: int = 0
    in_file: Counter[Place] = field(default_factory=Counter)
    queue_full: Counter[Place] = field(default_factory=Counter)
    disk_full: Counter[Place] = field(default_factory=Counter)
    write_error: Counter[Place] = field(default_factory=Counter)
    refused: int = 0
    """Control entries that could not be written; they took no numbers."""
    error: OSError | None = None
    """The last error of a write; None again when writing went on."""
    sync_error: OSError | None = None

    @property
    def lost(self) -> int:
        """Sequence numbers up to last_seq that no entry of the file has."""
        return self.last_seq - self.entries

    @property
    def drops(self) -> dict[str, Counter[Place]]:
        """What did not get into the file, by cause: a field of formats.base.control.Collector."""
        return {
            "queue_full": self.queue_full,
            "disk_full": self.disk_full,
            "write_error": self.write_error,
        }

    def dropped(self, cause: LossCause) -> Counter[Place]:
        """The counter of one cause."""
        return self.drops[cause.name.lower()]

    def losses(self) -> dict[str, int]:
        """How much was dropped, by the causes' words."""
        return {COLLECTOR_CAUSES[name]: n.total() for name, n in self.drops.items()}
