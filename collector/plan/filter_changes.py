# SPDX-License-Identifier: Apache-2.0
"""Other filters for a capture that runs: what passes both the old and the new passes meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tcpkmon.collector.plan.filters import FILTER_MAP, Filters
from tcpkmon.collector.plan.options import options_of
from tcpkmon.collector.plan.syscall_choice import LEFT_OUT
from tcpkmon.formats.base.errors import UsageError

_PORTS = "filter_ports"
"""An array of bits: none of its entries can be deleted."""
_U32 = struct.Struct("=I")

Step = tuple[str, bytes, bytes | None]
"""A map, a key, and its value from now on; None: the entry is deleted."""


def check_change(old: Filters, new: Filters) -> None:
    """Raises UsageError for what cannot change: programs were compiled for it, or the capture has
    no right any more to find out."""
    for name, one in options_of(Filters).items():
        if not one.live and getattr(old, name) != getattr(new, name):
            raise UsageError(f"the filter {one.names[0]} cannot change while a capture runs")


def steps(old: Filters, new: Filters) -> Iterator[Step]:
    """What to write, in this order: first what is new, then which filters are in force, then what
    is old goes."""
    before = {name: dict(rows) for name, rows in old.entries().items() if name != LEFT_OUT}
    after = {name: dict(rows) for name, rows in new.entries().items() if name != LEFT_OUT}
    settings = after.pop(FILTER_MAP)
    for name, rows in after.items():
        there = before[name]
        for key, value in rows.items():
            if name == _PORTS and key in there:
                both = _U32.unpack(value)[0] | _U32.unpack(there[key])[0]
                yield name, key, _U32.pack(both)
            elif there.get(key) != value:
                yield name, key, value
    for key, value in settings.items():
        yield FILTER_MAP, key, value
    for name, rows in after.items():
        for key, value in before[name].items():
            if name == _PORTS:
                if rows.get(key) != value:
                    yield name, key, rows.get(key, _U32.pack(0))
            elif key not in rows:
                yield name, key, None
