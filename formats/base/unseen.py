# SPDX-License-Identifier: Apache-2.0
"""The entry that says how much CPU time process 1 has had, on kernels that run no program then.

A collector reads it before it records, with each ledger, and when it records no more. What process
1 had between two entries is their difference. So it does not matter who wrote them: a collector
that was killed and the next one, or the end of a segment and the beginning of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tcpkmon.formats.base.control import U64, Control
from tcpkmon.formats.base.tcp import Location

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Unseen(Control):
    """CPU time of all threads of process 1 since the boot [ns], and when it was read."""

    location: ClassVar[int] = Location.UNSEEN
    event: ClassVar[str] = "UNSEEN"
    mono_ns: U64
    cpu_ns: U64


def describe(cpu_ns: int, span_ns: int, whole: str) -> str:
    """A line for a person. whole: what lasted span_ns: "capture", "segment" ..."""
    return f"process 1 had a CPU for {_short(cpu_ns)} of the {whole}'s {_short(span_ns)}"


def _short(time_ns: int) -> str:
    if time_ns < _SECOND_NS:
        return f"{time_ns / 1e6:.1f} ms"
    return f"{time_ns / _SECOND_NS:.1f} s"
