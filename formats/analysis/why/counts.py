# SPDX-License-Identifier: Apache-2.0
"""Percentiles of values of many connections in bounded memory: counts of classes within 6 %."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, runs
from tcpkmon.formats.analysis.why.grouping import Kept, Places

_PARTS = 8
"""Classes to a power of two."""
_CLASSES = 1 << 9
_COMPACT_AT = 1 << 20
_NO_LEAST = np.iinfo(np.int64).max
BIN_NS = 100_000_000
"""Rates are those of such times, which begin with the connection."""


class Counts:
    """How many values of each class each connection has; only those that occur take memory."""

    def __init__(self) -> None:
        self._keys: list[Array] = []
        self._numbers: list[Array] = []
        self._pending = 0

    def add(self, places: Array, values: Array) -> None:
        """Count values of at least 1 and below 2^64; (n,) each. Fastest with ascending places."""
        if not len(places):
            return
        classes = (np.log2(values.astype(np.float32)) * _PARTS).astype(np.int64)
        np.clip(classes, 0, _CLASSES - 1, out=classes)
        keys, numbers = _count(places * _CLASSES + classes)
        self._keys.append(keys)
        self._numbers.append(numbers)
        self._pending += len(keys)
        if self._pending > _COMPACT_AT:
            self._compact()
            self._pending = 0

    def _compact(self) -> None:
        keys, numbers = np.concatenate(self._keys), np.concatenate(self._numbers)
        order = np.argsort(keys, kind="stable")  # fast: they are runs that ascend
        keys, numbers = keys[order], numbers[order]
        firsts, _ = runs(keys)
        self._keys, self._numbers = [keys[firsts]], [np.add.reduceat(numbers, firsts)]

    def percentile(
        self, share: float, count: int, least: Array, most: Array, zeros: Array | None = None
    ) -> Array:
        """(count,) float64, the value of each connection that so many values do not exceed.

        The middle of its class; NaN without values. least, most: (count,) of the values that were
        added: a middle may be beyond. zeros: (count,) how many values were 0.
        """
        found = np.full(count, np.nan)
        zeros = np.zeros(count, np.int64) if zeros is None else zeros
        found[zeros > 0] = 0.0
        if not self._keys:
            return found
        self._compact()
        keys, numbers = self._keys[0], self._numbers[0]
        places = keys // _CLASSES
        firsts, lasts = runs(places)
        counts = lasts - firsts + 1
        sums = np.cumsum(numbers)
        base = np.repeat(sums[firsts] - numbers[firsts], counts)
        totals = np.add.reduceat(numbers, firsts) + zeros[places[firsts]]
        wanted = np.ceil(share * totals)
        upto = sums - base + zeros[places]
        enough = upto >= np.repeat(wanted, counts)
        at = np.flatnonzero(enough)
        mine, where = np.unique(places[at], return_index=True)
        values = 2 ** ((keys[at[where]] % _CLASSES + 0.5) / _PARTS)
        values = np.clip(values, least[mine], most[mine])
        found[mine] = np.where(zeros[mine] >= np.ceil(share * totals[
            np.searchsorted(places[firsts], mine)]), 0.0, values)  # fmt: skip
        return found


def _count(keys: Array) -> tuple[Array, Array]:
    """The distinct keys, ascending, and how often each occurs."""
    least = int(keys.min())
    span = int(keys.max()) - least + 1
    if span <= 8 * len(keys):
        numbers = np.bincount(keys - least, minlength=span)
        at = np.flatnonzero(numbers)
        return at + least, numbers[at]
    return np.unique(keys, return_counts=True)


class Rates:
    """Bytes a second in each BIN_NS of each connection; of both directions the larger."""

    def __init__(self, places: Places) -> None:
        self._counts, self._kept = Counts(), Kept(places)

    def add(self, places: Array, since_ns: Array, acked: Array, received: Array) -> None:
        """Steps, (n,) each, those of a connection together. since_ns: from its start to their end.

        Steps without bytes may be left out.
        """
        if not len(places):
            return
        bins = since_ns // BIN_NS
        begins = np.ones(len(places), np.bool_)
        begins[1:] = (places[1:] != places[:-1]) | (bins[1:] != bins[:-1])
        starts = np.flatnonzero(begins)
        place, number = places[starts], bins[starts]
        sums = np.column_stack([np.add.reduceat(values, starts) for values in (acked, received)])
        firsts, lasts = runs(place)
        mine, (bin_of, sums_of) = place[firsts], self._open()
        same = bin_of[mine] == number[firsts]
        sums[firsts[same]] += sums_of[mine[same]]
        self._close(mine[~same], sums_of[mine[~same]])
        done = np.ones(len(place), np.bool_)
        done[lasts] = False
        self._close(place[done], sums[done])
        bin_of[mine], sums_of[mine] = number[lasts], sums[lasts]

    def _open(self) -> tuple[Array, Array]:
        """The bin of each connection that is not over, and its bytes in both directions."""
        return self._kept.of("bin"), self._kept.of("sums", (np.int64, 2))

    def _extremes(self) -> tuple[Array, Array]:
        """The least and the largest rate of each connection."""
        return self._kept.of("least", np.int64, _NO_LEAST), self._kept.of("most")

    def _close(self, places: Array, sums: Array) -> None:
        rates = sums.max(axis=1) * (10**9 // BIN_NS) if len(sums) else np.zeros(0, np.int64)
        some = rates > 0
        places, rates = places[some], rates[some]
        self._counts.add(places, rates)
        least, most = self._extremes()
        np.minimum.at(least, places, rates)
        np.maximum.at(most, places, rates)
        np.add.at(self._kept.of("busy"), places, 1)

    def finish(self, durations_ns: Array, means: Array) -> dict[str, Array]:
        """p50, p99 and max by name, (count,) float64. A connection without a whole bin: its mean.

        A last bin that is not whole does not count.
        """
        count = len(durations_ns)
        bins = durations_ns // BIN_NS
        bin_of, sums_of = self._open()
        whole = np.flatnonzero(bin_of[:count] < bins)
        self._close(whole, sums_of[whole])
        zeros = np.maximum(bins - self._kept.of("busy")[:count], 0)
        least, most = (values[:count] for values in self._extremes())
        found = {
            "p50": self._counts.percentile(0.50, count, least, most, zeros),
            "p99": self._counts.percentile(0.99, count, least, most, zeros),
            "max": most.astype(np.float64),
        }
        return {name: np.where(bins == 0, means, values) for name, values in found.items()}
