# SPDX-License-Identifier: Apache-2.0
"""The layout of a CPU's ring, and what a drain takes from it.

A ring is rows of one size, in arrays of one size (parts) that lie one after the other; position p
is in row p % rows. Programs (bpf/include/klogger.h) build the records in them:

     0            entry size    row - 8        row
    +-------------+-----------+--------------+
    | the entry   | padding   | position + 1 |       the last is written last: the record is whole
    +-------------+-----------+--------------+

A ring's head, all u64:

     0          8       16     24        32     40
    +----------+-------+------+---------+------+
    | reserved | limit | rows | wake at | full |
    +----------+-------+------+---------+------+

Programs write reserved and full, the collector limit (the first position that is not free, 0: there
is no ring) and wake_at (when that many positions are given out, the program rings the bell).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from collector.linux import bpf

RINGS, HEADS, BELLS = "klogger_rings", "klogger_heads", "klogger_bells"
"""Maps: the parts of the rings, their heads, and the perf events that wake the collector."""
PARTS = 2048
"""A ring has so many at most, which is 1 GiB: CPU c's have the numbers from c * PARTS on."""
RESERVED, LIMIT, ROWS, WAKE_AT, FULL = range(5)
"""Words of a ring's head."""
HEAD_BYTES = 64
MARK_BYTES = 8
_PART_BYTES = 1 << 20


def row_bytes(entry_size: int) -> int:
    """Bytes of a row that holds entries of this size."""
    return (entry_size + 7) // 8 * 8 + MARK_BYTES


def part_shift(row: int) -> int:
    """A part has 2 to the power of this rows of so many bytes: whole pages, over half a MiB."""
    return max(9, (_PART_BYTES // row).bit_length() - 1)


def make_part(row: int) -> int:
    """A part of a ring, which programs and this process write to; its descriptor.

    KernelError when refused.
    """
    return bpf.map_create(
        bpf.BPF_MAP_TYPE_ARRAY, 4, row, 1 << part_shift(row), bpf.BPF_F_MMAPABLE,
        "klogger_part",
    )  # fmt: skip


def make_ring_map(name: str, row: int) -> int:
    """One of the two maps that the rings are in, with nothing in it; its descriptor.

    0 for any other name. KernelError when refused.
    """
    cpus = bpf.possible_cpus()
    if name == HEADS:
        return bpf.map_create(
            bpf.BPF_MAP_TYPE_ARRAY, 4, HEAD_BYTES, cpus, bpf.BPF_F_MMAPABLE, HEADS
        )
    if name != RINGS:
        return 0
    like = make_part(row)
    try:
        return bpf.map_create(
            bpf.BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, cpus * PARTS, 0, RINGS, like
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
