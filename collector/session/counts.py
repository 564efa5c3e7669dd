# SPDX-License-Identifier: Apache-2.0
"""What a running capture has counted so far: the kernel, the rings and the collector."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.perf_counters import OpenCounters
from tcpkmon.collector.ring.rings import Rings
from tcpkmon.collector.session.existing import Existing
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.formats.base.unseen import Unseen


@dataclass(frozen=True)
class Counts:
    """Reads the counts of one capture. cpu_clock: of process 1, where no program runs then."""

    kernel: Kernel
    rings: Rings
    counters: OpenCounters
    existing: Existing
    stream: Stream
    cpu_clock: int | None = None

    def books(self) -> Books:
        """The ledger at this moment."""
        heads = self.kernel.heads()
        order = self.stream.order
        return Books(
            ledger=heads["accounts"].copy(),
            serials=heads["serial"].copy(),
            programs=self.kernel.programs(heads),
            read=dict(order.read),
            late=dict(order.late),
            ring_lost=self.rings.lost(),
            killed=dict(order.killed),
            online=frozenset(self.rings.cpus),
            shed=heads["shed"].copy() if "shed" in (heads.dtype.names or ()) else None,
            unseen=self.unseen(),
        )

    def unseen(self) -> Unseen | None:
        """The CPU time of process 1, where no program runs then."""
        if self.cpu_clock is None:
            return None
        return Unseen(time.monotonic_ns(), time.clock_gettime_ns(self.cpu_clock))

    def serials(self) -> dict[int, int]:
        """By CPU, the last serial that the kernel gave out."""
        serials = self.kernel.heads()["serial"]
        return {cpu: int(serial) for cpu, serial in enumerate(serials) if serial}

    def connections(self) -> int:
        """How many connections were seen."""
        return self.kernel.connections()

    def losses(self) -> dict[str, int]:
        """Records lost, by cause."""
        return {"in the kernel": self.stream.order.lost, **self.stream.written.losses()}

    def lost(self) -> int:
        """Records lost so far, as far as the collector knows, and events that a budget left out."""
        return sum(self.losses().values()) + self.kernel.shed_events()

    def absent(self) -> int:
        """Records that the file lacks so far: the lost, and what a budget left out."""
        return self.books().totals(self.stream.written).absent

    def causes(self) -> dict[str, int]:
        """Records lost by every cause that the ledger knows."""
        return self.books().totals(self.stream.written).by_cause

    def refused(self) -> dict[str, str]:
        """What the kernel refuses a CPU now, and why."""
        found = {f"ring of CPU {cpu}": why for cpu, why in self.rings.refused.items()}
        for cpu, why in self.counters.refused.items():
            found[f"counters of CPU {cpu}"] = why
        return {**found, **self.kernel.loaded.refused_places()}
