# SPDX-License-Identifier: Apache-2.0
"""The layout of a CPU's ring, and what a drain takes from it.

A ring is an array of rows of one size, made by bpf/include/klogger.h. Row 0 is its head, the others
hold a record each; a position's row is 1 + position % rows:

     0          8       16     24        32                0            entry size    row - 8    row
    +----------+-------+------+---------+------+          +-------------+-----------+------------+
    | reserved | limit | rows | wake at | full |  ...     | the entry   | padding   | position+1 |
    +----------+-------+------+---------+------+          +-------------+-----------+------------+
     all u64                                               written last: the record is whole

Programs write reserved and full, the collector limit (the first position that is not free) and
wake_at (when that many positions are given out, the program rings the bell).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from collector import bpfsys

RINGS, BELLS = "klogger_rings", "klogger_bells"
"""Maps: the rings by CPU, and the perf events that wake the collector."""
RESERVED, LIMIT, ROWS, WAKE_AT, FULL = range(5)
"""Words of a ring's head."""
HEAD_BYTES = 40
MARK_BYTES = 8


def row_bytes(entry_size: int) -> int:
    """Bytes of a row that holds entries of this size."""
    return max(HEAD_BYTES, (entry_size + 7) // 8 * 8 + MARK_BYTES)


def make_ring(row_size: int, rows: int) -> int:
    """A ring of one CPU: an array that programs and this process write to; its descriptor.

    rows: that of the head is one of them. KernelError when refused.
    """
    flags = bpfsys.BPF_F_MMAPABLE | bpfsys.BPF_F_INNER_MAP
    return bpfsys.map_create(bpfsys.BPF_MAP_TYPE_ARRAY, 4, row_size, rows, flags, "klogger_ring")


def make_rings(row_size: int) -> int:
    """The array of the rings of all possible CPUs, none of them in it yet; its descriptor."""
    like = make_ring(row_size, 1)
    try:
        return bpfsys.map_create(
            bpfsys.BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, bpfsys.possible_cpus(), 0, RINGS, like
        )
    finally:
        os.close(like)


@dataclass(frozen=True)
class Batch:
    """What one drain took from one CPU's ring; `entries` may be a view that ends with the drain.

    entries: (n,) of the capture's dtype, strided. read_before_ns: CLOCK_MONOTONIC before the ring
    was looked at; what is not here is later than this.
    """

    cpu: int
    entries: NDArray[Any]
    read_before_ns: int
