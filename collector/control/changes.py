# SPDX-License-Identifier: Apache-2.0
"""Writes an entry for each change of what is recorded: switches, limits, rings and filters.

It compares what is in force with what was in force before. So it also finds what others changed in
the programs' maps, up to a second later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.ring.rings import Rings
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change


class Changes:
    """The changes of a capture that records already."""

    def __init__(
        self,
        kernel: Kernel,
        rings: Rings,
        stream: Stream,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._kernel = kernel
        self._rings = rings
        self._stream = stream
        self._now_ns = now_ns
        self._looked_ns = now_ns()
        self._values = self._read()

    def look(self) -> None:
        """Write what others changed since the last look. Call it about once a second."""
        self._write(self._looked_ns, by_others=True)

    @contextmanager
    def making(self, *, of_filters: bool = False, why: int = 0) -> Iterator[None]:
        """Write what is changed inside a `with`. of_filters: they are, even if their number is not.
        why: of a step of the budget.
        """
        self.look()
        before_ns = self._now_ns()
        try:
            yield
        finally:
            self._write(before_ns, by_others=False, of_filters=of_filters, why=why)

    def _write(
        self, before_ns: int, by_others: bool, of_filters: bool = False, why: int = 0
    ) -> None:
        values = self._read()
        self._looked_ns = after_ns = self._now_ns()
        changes = [
            Change(
                *key,
                before_ns,
                after_ns,
                was,
                values.get(key, 0),
                int(by_others),
                why if key[0] == ChangeKind.SHED else 0,
            )
            for key in sorted({*self._values, *values})
            if (was := self._values.get(key, 0)) != values.get(key, 0)
            or (of_filters and key[0] == ChangeKind.FILTERS)
        ]
        self._values = values
        if changes:
            self._stream.changed(changes)

    def _read(self) -> dict[tuple[ChangeKind, int], int]:
        """What is in force, by kind and number; see ChangeKind."""
        kernel = self._kernel
        kernel.read_switches()
        found = {(ChangeKind.SWITCH, n): max(0, state) for n, state in kernel.states().values()}
        found |= {(ChangeKind.LIMIT, n): limit for n, limit in kernel.limits().items()}
        found |= {(ChangeKind.RING, cpu): kernel.buffer_bytes for cpu in self._rings.cpus}
        found[ChangeKind.LOW_WATER, 0] = kernel.low_water_percent
        found[ChangeKind.FILTERS, 0] = kernel.filters_in_force()
        found[ChangeKind.SHED, 0] = kernel.shed_level
        return found
