# SPDX-License-Identifier: Apache-2.0
"""Positions of streams of many connections at once: maxima of each, and where one is reached.

A connection is ranked above the one before by MOST, so that one pass over all of them does. int64
has room for AT_ONCE ranks: more connections are taken in parts.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array

MOST = 1 << 43
"""Positions are below this."""
AT_ONCE = (1 << 63) // MOST - 1


def running_maxima(values: Array, firsts: Array) -> Array:
    """Of each group. values: (n,) below MOST; firsts: (m,) the rows at which groups begin."""
    found = np.empty(len(values), np.int64)
    starts = np.append(firsts, len(values))
    for low in range(0, len(firsts), AT_ONCE):
        some = starts[low : low + AT_ONCE + 1]
        rows = slice(some[0], some[-1])
        ranks = np.repeat(np.arange(len(some) - 1) * MOST, np.diff(some))
        found[rows] = np.maximum.accumulate(values[rows] + ranks) - ranks
    return found


def first_rows(values: Array, firsts: Array, group: Array, upto: Array) -> Array:
    """The first row of a group at which its values, which rise, are not below `upto`; the row
    behind the group where there is none. group: sorted, (k,) of each of upto."""
    found = np.zeros(len(group), np.int64)
    starts = np.append(firsts, len(values))
    for low in range(0, len(firsts), AT_ONCE):
        some = starts[low : low + AT_ONCE + 1]
        asked = slice(*np.searchsorted(group, (low, low + len(some) - 1)))
        rows = slice(some[0], some[-1])
        keys = values[rows] + np.repeat(np.arange(len(some) - 1) * MOST, np.diff(some))
        wanted = upto[asked] + (group[asked] - low) * MOST
        found[asked] = rows.start + np.searchsorted(keys, wanted)
    return np.clip(found, starts[group], starts[group + 1])
