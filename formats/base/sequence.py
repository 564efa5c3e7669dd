# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of numbers of few bits, which begin again at 0: of TCP's bytes, and of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.tcp import Location, State

NO_NUMBER = np.iinfo(np.int64).min
"""In place of a number that is not known yet."""

Rows = Mapping[str, NDArray[Any]]
"""Snapshots of the schema tcp: by name of the column, (n,)."""


def ahead_of(now: NDArray[Any], before: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) by how much sequence numbers are ahead of others, the shorter way round: -2^31 to
    2^31 - 1; behind is negative. Integers of any width; the low 32 bits count."""
    step = now.astype(np.uint32, copy=False) - before.astype(np.uint32, copy=False)
    found: NDArray[np.int64] = step.view(np.int32).astype(np.int64)
    return found


def ahead(now: int, before: int) -> int:
    """The same of two numbers, of which the low 32 bits count."""
    return (now - before + (1 << 31)) % (1 << 32) - (1 << 31)


def unwrap(
    numbers: NDArray[Any], before: NDArray[Any] | None = None,
    firsts: NDArray[Any] | None = None, known: NDArray[np.bool_] | None = None, bits: int = 32,
) -> NDArray[np.int64]:  # fmt: skip
    """(n,) numbers of `bits` bits as ones of 64 bits, which count on past the end of the range.

    Each is the shorter way round from the one before it in its stream:

        of 8 bits    254   255     0     2     1
        of 64        254   255   256   258   257

    firsts: (m,) the first row of each stream, ascending; by default all rows are one. before: (m,)
    the last number of each stream so far, of 64 bits; of one that begins, NO_NUMBER, as by default.
    known: (n,) whether a row has a number; by default all have one. One without has that of the
    row before it in its stream; if none is before it, the stream's first one; else NO_NUMBER.
    """
    if not len(numbers):
        return np.zeros(0, np.int64)
    if firsts is None:
        firsts = np.zeros(1, np.int64)
    if before is None:
        before = np.full(len(firsts), NO_NUMBER)
    before, low = before.astype(np.int64), numbers.astype(np.int64)
    count, sizes, begins = len(low), np.diff(firsts, append=len(low)), before == NO_NUMBER
    nameless = np.zeros(0, np.bool_)
    if known is not None and not known.all():
        at, first = np.arange(count), np.repeat(firsts, sizes)
        last = np.maximum.accumulate(np.where(known, at, -1))
        following = np.minimum.accumulate(np.where(known, at, count)[::-1])[::-1]
        leads = last < first
        low = low[np.minimum(np.where(leads, following, last), count - 1)]
        low = np.where(leads & ~np.repeat(begins, sizes), np.repeat(before, sizes), low)
        nameless = np.repeat(begins & (following[firsts] >= firsts + sizes), sizes)
    start = np.where(begins, low[firsts], before)
    steps = np.diff(low, prepend=low[:1])
    steps[firsts] = low[firsts] - start
    # In the upper bits of 64, a step over the end of the range is an ordinary signed difference.
    steps = steps << 64 - bits >> 64 - bits
    sums = np.cumsum(steps)
    found: NDArray[np.int64] = sums + np.repeat(start + steps[firsts] - sums[firsts], sizes)
    if nameless.any():
        found[nameless] = NO_NUMBER
    return found


def state_after(rows: Rows) -> NDArray[Any]:
    """(n,) the state of the socket after each snapshot: a change of it has the old one."""
    return np.where(rows["location"] == Location.STATE_CHANGE, rows["callvalue"], rows["state"])


def has_numbers(rows: Rows) -> NDArray[np.bool_]:
    """(n,) whether the sequence numbers of both directions are those of the connection.

    The peer's are 0 in a socket that calls, also where two call each other and the state changes to
    SYN_RECV. A socket that is closed may have been disconnected, which takes new ones.
    """
    state = state_after(rows)
    called = (rows["location"] == Location.STATE_CHANGE) & (state == State.SYN_RECV)
    return np.asarray((state != State.SYN_SENT) & (state != State.CLOSE) & ~called)
