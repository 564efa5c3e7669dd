# SPDX-License-Identifier: Apache-2.0
"""What a writer counts: what is in the file, and what was dropped on the way to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.ordered_batch import count_places
from tcpkmon.formats.base.causes import COLLECTOR_CAUSES
from tcpkmon.formats.base.control import LossCause

RETRY_NS = 100_000_000
"""After a failed write, records are dropped for this time. Then comes the next try."""
END_TRIES = 3
"""How often the last entries of a file are tried, without a pause."""

TALLY_ENTRIES = 1 << 16
Place = tuple[int, int]
"""(cpu, location)"""


class Tally:
    """Counts written records, many batches at a time: to count each batch alone costs more than
    to number its entries. The counter is complete after settle()."""

    def __init__(self, counter: Counter[Place]) -> None:
        self._counter = counter
        self._by_cpu: defaultdict[int, list[NDArray[np.uint32]]] = defaultdict(list)
        self._waiting = 0

    def add(self, cpu: int, locations: NDArray[np.uint32]) -> None:
        """Count a CPU's records."""
        self._by_cpu[cpu].append(locations)
        self._waiting += len(locations)
        if self._waiting > TALLY_ENTRIES:
            self.settle()

    def count(self, counts: Counter[Place]) -> None:
        """Count records that are counted."""
        self._counter.update(counts)

    def settle(self) -> None:
        """Bring the counter up to date."""
        for cpu, found in self._by_cpu.items():
            self._counter.update(count_places(cpu, np.concatenate(found)))
        self._by_cpu.clear()
        self._waiting = 0


@dataclass
class Written:
    """What is in the file, and what was dropped on the way to it. The writer updates it.

    Another thread may read it after close(), or for a display. Counters are of records (no
    control entries) by (cpu, location). in_file is up to date when control entries are made, and
    after close().
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
